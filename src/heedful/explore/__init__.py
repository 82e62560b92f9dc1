"""The explorer: a local web page that shows the inside of trained models."""
