"""Kernels in Triton, for GPUs only: each is a faster implementation of a block, which tests compare with it."""
