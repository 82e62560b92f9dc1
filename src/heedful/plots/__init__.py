"""Figures of values and images, drawn by Matplotlib."""
