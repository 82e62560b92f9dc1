"""The settings of training: validation, and no import of torch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from heedful.config import parse
from heedful.errors import UserError
from heedful.training.configs import Budget, TrainConfig
from heedful.training.optim import Constant, Cosine, Linear, Noam


def settings(**changes: Any) -> TrainConfig:
    return parse(TrainConfig, {"budget": {"steps": 10}, **changes})


def test_configs_do_not_import_torch() -> None:
    code = "import sys, heedful.training.configs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_training_needs_a_budget() -> None:
    with pytest.raises(UserError, match="training would never end; write at least one of steps, tokens, epochs"):
        parse(TrainConfig, {"budget": {}})
    with pytest.raises(UserError, match="budget is missing"):
        parse(TrainConfig, {})
    assert parse(Budget, {"minutes": 0.5}).minutes == 0.5
    assert parse(Budget, {"steps": 3, "tokens": 7}) == Budget(steps=3, tokens=7)


@pytest.mark.parametrize(
    ("kind", "cls"), [("noam", Noam), ("cosine", Cosine), ("linear", Linear), ("constant", Constant)]
)
def test_schedule_is_chosen_by_kind(kind: str, cls: type) -> None:
    assert type(settings(schedule={"kind": kind, "warmup": 7}).schedule) is cls
    assert settings(schedule={"kind": kind, "warmup": 7}).schedule.warmup == 7


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schedule": {"kind": "cosin"}}, "did you mean cosine"),
        ({"schedule": {"kind": "constant", "floor": 0.1}}, "schedule.floor is an unknown key"),
        ({"precision": "fp8"}, "'auto', 'fp32', 'bf16' or 'fp16'"),
        ({"workers": -1}, "greater than or equal to 0"),
        ({"parallel": "fdsp"}, "did you mean fsdp"),
        ({"batching": "packd"}, "did you mean packed"),
        ({"batch_tokens": 0}, "greater than or equal to 1"),
        ({"accumulate": 0}, "greater than or equal to 1"),
        ({"clip": 0}, "greater than 0"),
        ({"clip": float("nan")}, "invalid value for clip"),
        ({"seed": -1}, "greater than or equal to 0"),
        ({"seed": 2**63}, "invalid value for seed"),
        ({"keep": 1}, "greater than or equal to 2"),
        ({"average": 3}, "3 checkpoints cannot be averaged when 2 are kept; write train.keep: 3"),
        ({"threads": 0}, "greater than or equal to 1"),
        ({"device": "gpu"}, "'auto', 'cpu' or 'cuda'"),
        ({"compile": "yes"}, "true or false"),
        ({"budget": {"steps": 1.5}}, "a whole number"),
        ({"save_evry": 3}, "did you mean save_every"),
        ({"optimizer": {"lr": "1e-3"}}, "a number"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_invalid_values_are_rejected_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        settings(**changes)
    assert words in str(error.value)


def test_configs_are_frozen() -> None:
    with pytest.raises(ValidationError):
        settings().seed = 3  # type: ignore[misc]
    assert settings(clip=None).clip is None
    assert settings(keep=5, average=5).average == 5
