"""Texts with labels."""
