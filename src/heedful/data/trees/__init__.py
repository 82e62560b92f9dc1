"""Trees of words."""
