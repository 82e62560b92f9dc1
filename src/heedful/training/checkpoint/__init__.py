"""Checkpoints: what a run folder holds, and the protocol by which it is written."""
