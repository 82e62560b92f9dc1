"""The catalogue: every part of the library, the key of a recipe that selects it, and what can stand in its place."""
