"""Environments of reinforcement learning, with Gymnasium's interface."""
