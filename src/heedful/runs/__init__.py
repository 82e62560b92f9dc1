"""Runs: a recipe trained in a folder, loaded, evaluated and reported."""
