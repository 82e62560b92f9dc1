"""Random labelled trees."""

from __future__ import annotations

import random


def random_tree(seed: int, leaves: int, widest: int = 2) -> str:
    """A random tree with five labels and twenty words, as one line of text."""
    r = random.Random(seed)
    parts = [f"({r.randrange(5)} w{r.randrange(20)})" for _ in range(leaves)]
    while len(parts) > 1:
        size = min(len(parts), r.randint(2, widest))
        at = r.randrange(len(parts) - size + 1)
        parts[at : at + size] = [f"({r.randrange(5)} {' '.join(parts[at : at + size])})"]
    return parts[0]
