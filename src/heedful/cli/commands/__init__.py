"""The arguments and options of each command. Nothing here imports torch, so that help and completion are fast."""
