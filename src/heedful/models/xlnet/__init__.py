"""XLNet (Yang et al., 2019)."""
