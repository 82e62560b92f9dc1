"""ALBERT (Lan et al., 2020)."""
