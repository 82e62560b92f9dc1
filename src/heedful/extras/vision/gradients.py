"""Pictures of what in an image decides a value: gradients, deconvnet, guided backpropagation, integrated gradients.

A deconvnet (Zeiler and Fergus, 2014, "Visualizing and understanding convolutional networks") leads a value back through
the net: filters are transposed, max pools undone by the places of the maxima, and relu applied to what comes back. The
first two are what a gradient does, so it is the gradient with another rule for relu; guided backpropagation
(Springenberg et al., 2015, "Striving for simplicity") applies both rules.

B batch, C channels, Y rows, X columns, N classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from heedful.blocks.taps import watch
from heedful.extras.vision.layers import as_map
from heedful.models.layer_graph import evaluating

Score = Callable[[Tensor], Tensor]  # images (B, C, Y, X) -> the values (B,) that are explained
RELUS = (torch.relu, torch.relu_, functional.relu, functional.relu_, Tensor.relu, Tensor.relu_)
STEPS = 64  # points on the path of integrated gradients


# ------------------------------------------------------------------ what is explained
def class_score(model: nn.Module, classes: int | Tensor) -> Score:
    """The logit of a class, or of one for each image (B,)."""

    def score(images: Tensor) -> Tensor:
        with evaluating(model):
            logits = model(images)
        chosen = torch.as_tensor(classes, device=logits.device).expand(len(logits))
        found: Tensor = logits.gather(1, chosen[:, None]).squeeze(1)
        return found

    return score


def channel_score(model: Any, layer: str, channel: int, place: tuple[int, int] | None = None) -> Score:
    """The value of a channel at a tap: its largest, or that of one row and column of the map."""

    def score(images: Tensor) -> Tensor:
        found: list[Tensor] = []
        with evaluating(model), watch(model, layer, edit=lambda _, value: found.append(value)):
            grid = model.map(images).shape[2:]
        map = as_map(found[-1], grid)[:, channel]  # (B, Y, X)
        return map.amax((1, 2)) if place is None else map[:, place[0], place[1]]

    return score


# ------------------------------------------------------------------ rules for relu
class DeconvRelu(torch.autograd.Function):
    """relu(x), whose gradient is relu(g) wherever x is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].clamp_min(0)


class GuidedRelu(torch.autograd.Function):
    """relu(x), whose gradient is relu(g) where x > 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x > 0)
        return x.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return gradients[0].clamp_min(0) * positive


class ReluRule(TorchFunctionMode):
    """Within it, every relu is computed by another function."""

    def __init__(self, relu: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.relu, self.count = relu, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in RELUS:
            return func(*args, **(kwargs or {}))
        self.count += 1
        return self.relu(args[0] if args else (kwargs or {})["input"])


@torch.no_grad()
def uses_relu(model: Any, images: Tensor) -> bool:
    """Whether a model has any relu: without one, deconvnet and guided backpropagation are the gradient."""
    with evaluating(model), ReluRule(torch.relu) as rule:
        model(images)
    return rule.count > 0


# ------------------------------------------------------------------ pictures, as large as the images
def gradient(score: Score, images: Tensor) -> Tensor:
    """The derivative of the score by every pixel."""
    with torch.enable_grad():
        x = images.detach().clone().requires_grad_()
        return torch.autograd.grad(score(x).sum(), x)[0]


def deconvnet(score: Score, images: Tensor) -> Tensor:
    """The score led back to the pixels: transposed filters, unpooling by the places of maxima, and relu."""
    with ReluRule(DeconvRelu.apply):
        return gradient(score, images)


def guided_backprop(score: Score, images: Tensor) -> Tensor:
    """The gradient, of which every relu lets through what is positive, from units that are."""
    with ReluRule(GuidedRelu.apply):
        return gradient(score, images)


def gradient_times_input(score: Score, images: Tensor) -> Tensor:
    """The derivative by each pixel, times the pixel."""
    return gradient(score, images) * images


def integrated_gradients(score: Score, images: Tensor, baseline: Tensor | None = None, steps: int = STEPS) -> Tensor:
    """(x - b) times the mean gradient on the straight line from a baseline b to x (Sundararajan et al., 2017).

    The values of an image add up to score(x) - score(b), up to the error of the midpoint rule. The baseline is black,
    or, of normalized images, grey: all zeros.
    """
    start = torch.zeros_like(images) if baseline is None else baseline.expand_as(images)
    total = torch.zeros_like(images)
    for step in range(steps):
        total += gradient(score, start + (images - start) * ((step + 0.5) / steps))
    return (images - start) * total / steps


METHODS: dict[str, Callable[[Score, Tensor], Tensor]] = {
    "gradient": gradient,
    "gradient x input": gradient_times_input,
    "integrated gradients": integrated_gradients,
    "guided backprop": guided_backprop,
    "deconvnet": deconvnet,
}
RELU_METHODS = ("guided backprop", "deconvnet")  # the gradient, where there is no relu


def saliency(picture: Tensor) -> Tensor:
    """The largest absolute value (B, Y, X) over the channels of a picture (B, C, Y, X) (Simonyan et al., 2014)."""
    return picture.abs().amax(1)
