"""Pairs of texts."""
