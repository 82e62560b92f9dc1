"""Losses: the definition, the sliced form and torch's own agree."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.blocks import losses
from heedful.blocks.losses import Loss, confidence_penalty, cross_entropy, projected_cross_entropy, squared_error
from tolerance import close

N, D, V = 7, 6, 11


def case(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    x, weight = torch.randn(N, D, dtype=dtype, requires_grad=True), torch.randn(V, D, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, V, (N,))
    targets[2] = -100
    return x, weight, targets


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_definition_sliced_form_and_torch_agree(smoothing: float) -> None:
    x, weight, targets = case()
    ours = cross_entropy(x @ weight.mT, targets, smoothing)
    sliced = projected_cross_entropy(x, weight, targets, smoothing)
    torchs = F.cross_entropy(x @ weight.mT, targets, label_smoothing=smoothing, reduction="sum")
    gradients = [torch.autograd.grad(total, (x, weight)) for total in (ours.total, sliced.total, torchs)]
    for total, grads in zip((ours.total, sliced.total), gradients[:2], strict=True):
        close(total, torchs)
        for mine, theirs in zip(grads, gradients[2], strict=True):
            close(mine, theirs)
    plain = F.cross_entropy(x @ weight.mT, targets, reduction="sum")
    for loss in (ours, sliced):
        close(loss.plain, plain.detach())
        assert loss.count == N - 1
        assert not loss.plain.requires_grad


def test_slices_do_not_change_result(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, targets = case()
    whole = projected_cross_entropy(x, weight, targets, 0.1)
    seen, step = [], losses._slice_loss

    def counted(logits: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        seen.append(len(logits))
        return step(logits, *rest)

    monkeypatch.setattr(losses, "_slice_loss", counted)
    monkeypatch.setattr(losses, "max", lambda *_: 2, raising=False)  # rows of a slice; ordinarily millions of logits
    again = projected_cross_entropy(x, weight, targets, 0.1)
    torch.testing.assert_close(again.total, whole.total)
    assert seen == [2, 2, 2, 1]


def test_only_needed_gradients_are_computed() -> None:
    x, weight, targets = case()
    loss = projected_cross_entropy(x, weight.detach(), targets)
    (alone,) = torch.autograd.grad(loss.total, (x,))
    both, _ = torch.autograd.grad(projected_cross_entropy(x, weight, targets).total, (x, weight))
    assert alone.equal(both)
    assert not projected_cross_entropy(x.detach(), weight.detach(), targets).total.requires_grad


def test_all_targets_ignored_is_zero_not_nan() -> None:
    x, weight, _ = case()
    ignored = torch.full((N,), -100)
    for loss in (cross_entropy(x @ weight.mT, ignored, 0.1), projected_cross_entropy(x, weight, ignored, 0.1)):
        assert (loss.total.item(), loss.count.item()) == (0.0, 0)
        assert all(bool((g == 0).all()) for g in torch.autograd.grad(loss.total, (x, weight)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_sums_in_float32(dtype: torch.dtype) -> None:
    x, weight, targets = case(dtype)
    loss: Loss = projected_cross_entropy(x, weight, targets, 0.1)
    assert loss.total.dtype == torch.float32
    truth = cross_entropy(x.detach().double() @ weight.detach().double().mT, targets, 0.1)
    assert loss.total.item() == pytest.approx(truth.total.item(), rel=2e-2)
    grads = torch.autograd.grad(loss.total, (x, weight))
    assert [g.dtype for g in grads] == [dtype, dtype]


def test_autocast_keeps_the_loss_in_float32() -> None:
    x, weight, targets = case()
    with torch.autocast("cpu", torch.bfloat16):
        loss = projected_cross_entropy(x, weight, targets)
    assert loss.total.dtype == torch.float32
    assert [g.dtype for g in torch.autograd.grad(loss.total, (x, weight))] == [torch.float32, torch.float32]


def test_bias_is_added_to_the_logits() -> None:
    x, weight, bias = torch.randn(7, 5), torch.randn(11, 5), torch.randn(11)
    inputs = [t.double().requires_grad_() for t in (x, weight, bias)]
    targets = torch.tensor([0, 3, -100, 10, 4, 4, 1])
    mine = projected_cross_entropy(inputs[0], inputs[1], targets, 0.1, bias=inputs[2])
    right = cross_entropy(inputs[0] @ inputs[1].mT + inputs[2], targets, 0.1)
    assert mine.total.item() == pytest.approx(right.total.item(), rel=1e-12)
    for a, b in zip(torch.autograd.grad(mine.total, inputs), torch.autograd.grad(right.total, inputs), strict=True):
        close(a, b, slack=524288)


# ------------------------------------------------------------------ squares
def test_squared_error_and_its_gradient() -> None:
    made = torch.randn(3, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    target = torch.rand(3, 2, 4, 5, dtype=torch.float64)
    assert float(squared_error(made, target).detach()) == pytest.approx(float((made - target).square().sum().detach()))
    assert torch.autograd.gradcheck(lambda x: 0.3 * squared_error(x, target), made)
    turned = made.transpose(1, 3)  # not contiguous
    assert torch.autograd.gradcheck(lambda x: squared_error(x, target.transpose(1, 3)), turned)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_squared_error_of_half_precision_is_in_float32(dtype: torch.dtype) -> None:
    made, target = torch.rand(40_000, dtype=dtype, requires_grad=True), torch.rand(40_000)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = squared_error(made, target)
    loss.backward()
    expected = (made.detach().double() - target.double()).square().sum()
    assert loss.dtype == torch.float32
    assert float(loss.detach()) == pytest.approx(float(expected), rel=1e-5)
    assert made.grad is not None and made.grad.dtype == dtype
    assert torch.equal(made.grad, (2 * (made.detach().float() - target)).to(dtype))


def test_squared_error_of_an_empty_batch_is_zero() -> None:
    made = torch.zeros(0, 5, requires_grad=True)
    loss = squared_error(made, torch.zeros(0, 5))
    loss.backward()
    assert float(loss.detach()) == 0 and made.grad is not None


@pytest.mark.claim("M16")
def test_confidence_penalty_subtracts_the_entropy_of_what_is_kept() -> None:
    logits = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([2, -100, 0, 5])
    plain = cross_entropy(logits, targets)
    found = confidence_penalty(plain, logits, targets != -100, 0.3)
    p = logits.detach().softmax(-1)
    expected = -(p * p.log()).sum(-1)[targets != -100].sum()
    close(found.parts["entropy"], expected)
    close(found.parts["cross_entropy"], plain.plain)
    close(found.total, plain.total - 0.3 * expected)
    close(found.plain, found.total)
    found.total.backward()
    assert logits.grad is not None
    sure = F.one_hot(targets.clamp(min=0), 6) - p  # the gradient of the entropy is p (H - log 1/p) ...
    each = p * (-(p * p.log()).sum(-1, keepdim=True) + p.log())  # ... with a minus sign, as it is subtracted
    close(logits.grad, torch.where((targets != -100)[:, None], -sure + 0.3 * each, 0.0))
    assert confidence_penalty(plain, logits, targets != -100, 0.0) is plain
