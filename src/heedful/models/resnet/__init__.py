"""ResNet (He et al., 2016)."""
