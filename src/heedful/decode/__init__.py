"""One engine that decodes with every model."""
