"""Models of the attention era, built from one small set of blocks."""

__version__ = "0.1.0"
