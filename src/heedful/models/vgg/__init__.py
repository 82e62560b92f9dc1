"""VGG (Simonyan and Zisserman, 2015)."""
