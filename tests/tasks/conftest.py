"""Tests here train small models, and look at other files of their runs than the picture of the losses."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _quick_end(no_loss_curve: None) -> None:
    """What a run draws is tested in tests/runs."""
