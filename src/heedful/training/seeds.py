"""Randomness from counters: a resumed run draws what the unbroken one would have drawn, with no state to replay."""

from __future__ import annotations

import hashlib

import torch


def seed_for(seed: int, step: int, micro: int = 0, rank: int = 0) -> int:
    """A seed of 63 bits for one micro-batch: the first bits of BLAKE2b over the four counters written in decimal."""
    counters = f"{seed},{step},{micro},{rank}".encode()
    digest = hashlib.blake2b(counters, digest_size=8, person=b"heedful-seed").digest()
    return int.from_bytes(digest, "big") >> 1


def reseed(device: torch.device, seed: int, step: int, micro: int = 0, rank: int = 0) -> None:
    """Set the generators that dropout draws from, on the CPU and on a CUDA device, for one micro-batch."""
    value = seed_for(seed, step, micro, rank)
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(value)
