"""Studies of settings: many runs of one recipe, or of several, with the table of their results."""
