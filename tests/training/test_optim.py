"""Schedules against their formulas, clipping by both rules, and saving the optimizer's state by name."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from heedful.errors import UserError
from heedful.training.optim import (
    AdamW,
    Constant,
    Cosine,
    Linear,
    Noam,
    clip,
    load_optimizer,
    make_optimizer,
    optimizer_tensors,
)

CPU = torch.device("cpu")


def small_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def test_configs_do_not_import_torch() -> None:
    code = "import sys, heedful.training.optim; sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, check=False).returncode
        == 0
    )


def test_noam_matches_the_paper_and_peaks_at_warmup() -> None:
    schedule = Noam(warmup=4000, width=512)
    rates = {step: schedule.factor(step, 0.0) for step in (1, 3999, 4000, 4001, 100_000)}
    assert rates[1] == pytest.approx(512**-0.5 * 4000**-1.5)
    assert rates[4000] == pytest.approx((512 * 4000) ** -0.5) == pytest.approx(6.9877e-4, rel=1e-4)
    assert rates[4000] > rates[3999]
    assert rates[4000] > rates[4001]
    assert rates[100_000] == pytest.approx(512**-0.5 * 100_000**-0.5)


@pytest.mark.parametrize("progress", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_cosine_and_linear_decay_to_their_floor(progress: float) -> None:
    cosine, linear = Cosine(floor=0.1), Linear(floor=0.1)
    assert cosine.factor(7, progress) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi * progress)) / 2)
    assert linear.factor(7, progress) == pytest.approx(0.1 + 0.9 * (1 - progress))


@pytest.mark.parametrize("schedule", [Cosine(warmup=10), Linear(warmup=10), Constant(warmup=10)])
def test_warmup_is_linear(schedule: Cosine | Linear | Constant) -> None:
    assert [schedule.factor(step, 0.0) for step in (1, 5, 10, 11)] == pytest.approx([0.1, 0.5, 1.0, 1.0])


def test_constant_does_not_change() -> None:
    assert {Constant().factor(step, step / 100) for step in range(1, 101)} == {1.0}


@pytest.mark.parametrize("wrong", [{"betas": (0.9, 1.0)}, {"lr": 0.0}, {"eps": -1e-9}, {"speed": 1}])
def test_adamw_rejects_invalid_values(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AdamW.model_validate(wrong)


def test_groups_are_sorted_and_only_matrices_decay() -> None:
    model = small_model()
    model[2].bias.requires_grad_(False)
    matrices, vectors = make_optimizer(AdamW(weight_decay=0.3), model, CPU).param_groups
    assert matrices["param_names"] == ["0.weight", "2.weight"]
    assert vectors["param_names"] == ["0.bias", "1.bias", "1.weight"]
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.3, 0.0)
    assert matrices["params"][0] is model[0].weight
    assert vectors["eps"] == 1e-9
    assert vectors["betas"] == (0.9, 0.98)


def with_gradients(*gradients: list[float]) -> list[torch.Tensor]:
    weights = [torch.zeros(len(gradient), requires_grad=True) for gradient in gradients]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = torch.tensor(gradient)
    return weights


def gradient(weight: torch.Tensor) -> list[float]:
    assert weight.grad is not None
    return weight.grad.tolist()


def test_clip_by_norm_keeps_a_gradient_at_the_limit() -> None:
    (weight,) = with_gradients([3.0, 4.0])
    assert clip([weight], 5.0).item() == 5.0
    assert gradient(weight) == [3.0, 4.0]


def test_clip_keeps_a_gradient_below_the_limit() -> None:
    (weight,) = weights = with_gradients([0.3, 0.4])
    assert float(clip(weights, 5.0)) == pytest.approx(0.5)
    assert weight.grad is not None and weight.grad.tolist() == torch.tensor([0.3, 0.4]).tolist()


def test_clip_by_the_squared_rule_reproduces_the_misprint() -> None:
    (weight,) = with_gradients([3.0, 4.0])
    assert clip([weight], 5.0, rule="squared").item() == 5.0
    assert gradient(weight) == pytest.approx([0.6, 0.8])


def test_clip_scales_all_gradients_by_the_global_norm() -> None:
    first, second = with_gradients([3.0, 0.0], [0.0, 4.0])
    without = torch.zeros(2, requires_grad=True)
    assert clip([first, without, second], 1.0).item() == 5.0
    assert gradient(first) == pytest.approx([0.6, 0.0])
    assert gradient(second) == pytest.approx([0.0, 0.8])


def test_clip_without_a_limit_only_measures() -> None:
    (weight,) = with_gradients([3.0, 4.0])
    assert clip([weight], None).item() == 5.0
    assert gradient(weight) == [3.0, 4.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_clip_leaves_non_finite_gradients_for_the_report(bad: float) -> None:
    good, broken = with_gradients([3.0, 4.0], [bad, 1.0])
    assert not clip([good, broken], 1.0).isfinite()
    assert gradient(good) == [3.0, 4.0]
    assert gradient(broken)[1] == 1.0


def test_clip_of_zero_gradients_gives_zeros() -> None:
    (weight,) = with_gradients([0.0, 0.0])
    assert clip([weight], 1.0).item() == 0.0
    assert gradient(weight) == [0.0, 0.0]


def test_saved_state_resumes_bit_for_bit() -> None:
    config = AdamW(lr=0.05)
    unbroken = small_model()
    optimizer = make_optimizer(config, unbroken, CPU)
    take_steps(unbroken, optimizer, 0, 3)

    resumed = small_model(seed=1)
    resumed.load_state_dict({name: value.clone() for name, value in unbroken.state_dict().items()})
    saved = {name: value.clone() for name, value in optimizer_tensors(optimizer, unbroken).items()}
    assert saved["step.0.weight"].item() == 3
    assert len(saved) == 3 * 6
    second = make_optimizer(config, resumed, CPU)
    load_optimizer(second, resumed, saved)

    take_steps(unbroken, optimizer, 3, 6)
    take_steps(resumed, second, 3, 6)
    for (name, one), (_, other) in zip(unbroken.named_parameters(), resumed.named_parameters(), strict=True):
        assert torch.equal(one, other), name
    after, other_after = optimizer_tensors(optimizer, unbroken), optimizer_tensors(second, resumed)
    assert all(torch.equal(after[name], other_after[name]) for name in after)
    assert saved["step.0.weight"].item() == 3, "loading must not lend the caller's tensors to the optimizer"


def test_new_optimizer_has_no_state() -> None:
    model = small_model()
    optimizer = make_optimizer(AdamW(), model, CPU)
    assert optimizer_tensors(optimizer, model) == {}
    load_optimizer(optimizer, model, {})
    assert len(optimizer.state) == 0


@pytest.mark.parametrize("damage", ["missing", "unknown", "shape"])
def test_mismatched_state_is_rejected_by_name(damage: str) -> None:
    model = small_model()
    optimizer = make_optimizer(AdamW(), model, CPU)
    take_steps(model, optimizer, 0, 1)
    saved = optimizer_tensors(optimizer, model)
    if damage == "missing":
        del saved["exp_avg.0.weight"]
    elif damage == "unknown":
        saved["exp_avg.9.weight"] = torch.zeros(1)
    else:
        saved["exp_avg.0.weight"] = torch.zeros(5, 7)
    with pytest.raises(UserError, match=r"9\.weight" if damage == "unknown" else r"0\.weight"):
        load_optimizer(make_optimizer(AdamW(), model, CPU), model, saved)
