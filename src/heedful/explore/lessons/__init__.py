"""Lessons: text files of steps through the explorer. Nothing here imports torch."""
