"""Image captioning with attention over a feature map."""
