"""Tests here change how many threads torch has, and how it takes numbers near zero."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)
