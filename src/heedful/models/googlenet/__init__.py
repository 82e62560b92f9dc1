"""GoogLeNet (Szegedy et al., 2015)."""
