"""AlexNet (Krizhevsky et al., 2012)."""
