"""Dialogues: utterances with their speakers."""
