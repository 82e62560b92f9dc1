"""Reading and writing files: regular files only, JSON and YAML within limits, every write atomic."""
