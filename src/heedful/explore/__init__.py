"""The explorer: a local page that looks inside trained models."""
