"""How files are read and written: plain files alone, JSON and YAML within limits, every write atomic."""
