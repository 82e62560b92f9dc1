"""Kernels in Triton, for GPUs only: each is a faster way to say what a block says, and held equal to it by tests."""
