"""Image classification by glimpses: the loss of their places, and the predictor with its path.

B batch, T glimpses, K patches of each, G their sides, S side of the widest, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from heedful.blocks.losses import Loss
from heedful.data.images.inputs import AnyImage
from heedful.data.images.labelled_batches import LabelledImageBatch
from heedful.data.images.normalization import normalize
from heedful.tasks.image_classification.predictor import TOP, Floats, ImageClassification, ImageClassifier, class_losses

Look = Callable[[Tensor], Any]  # images -> their glimpses: `look` of a model in the role `glimpse_classifier`
Head = Callable[[Tensor], Tensor]  # states -> logits


def glimpse_loss(look: Look, head: Head, batch: LabelledImageBatch, label_smoothing: float = 0.0) -> Loss:
    """The cross-entropy of the class after the last glimpse, and REINFORCE for the places (Williams, 1992).

    The reward of an image is 1 if its class is predicted (of a mixed image, the share of that class), otherwise 0.
    log p of each place is weighted by the reward minus the baseline, which depends only on what was seen before, so
    that the gradient is unbiased; the baseline is learned by least squares.
    """
    seen = look(normalize(batch.pixels, batch.mean, batch.std))
    logits = head(seen.states[:, -1])
    smooth, each = class_losses(logits, batch.targets, batch.others, batch.shares, label_smoothing)
    with torch.no_grad():
        found = logits.argmax(-1)
        reward = batch.shares * (found == batch.targets) + (1 - batch.shares) * (found == batch.others)
    total = smooth + policy_loss(seen.logs, seen.values, reward)
    return Loss((batch.weights * total).sum(), each.detach().sum(), batch.indices.new_full((), len(batch.indices)))


def policy_loss(logs: Tensor, values: Tensor, reward: Tensor) -> Tensor:
    """sum_t -(R - b_t) log p_t + (R - b_t)^2 (B,), of which only the second part trains the baseline b."""
    advantage = reward[:, None] - values  # (B, T - 1)
    return (advantage.square() - advantage.detach() * logs).sum(1)


@dataclass(frozen=True, repr=False)
class GlimpseClassification(ImageClassification):
    """The class of an image, its probability, the first classes with theirs, and the path of the glimpses.

    `path` has the row and the column of the centre of each glimpse, in pixels of the image as the model reads it.
    """

    path: list[tuple[float, float]] = field(repr=False)


@dataclass
class GlimpseClassifier(ImageClassifier):
    """Predicts the class of images, as an `ImageClassifier`, and says where the model looked."""

    @torch.inference_mode()
    def predict(self, inputs: Sequence[AnyImage], top: int = TOP) -> Sequence[GlimpseClassification]:
        """The class of each image, with the `top` most probable ones, and the path of the glimpses."""
        found = list[GlimpseClassification]()
        for seen in self._run(self._net.look, inputs):
            paths = self.pixels(seen.places).tolist()
            named = self._most_probable(self._net.head(seen.states[:, -1]), top)
            found += [
                GlimpseClassification(*each, [*map(tuple, path)]) for each, path in zip(named, paths, strict=True)
            ]
        return found

    @torch.inference_mode()
    def views(self, image: AnyImage) -> Floats:
        """What each glimpse at an image sees (T, C, S, S): fine in the middle, coarse around it; pixels from 0 to 1."""
        x = self.inputs([image]).to(self.device)  # (1, C, Y, X)
        places = self._net.look(x).places[0]
        patches = self._net.patches(x.expand(len(places), -1, -1, -1), places)  # (T, K, C, G, G)
        count, side = patches.shape[1], patches.shape[-1]
        view = patches.new_empty(len(places), x.shape[1], side << (count - 1), side << (count - 1))  # (T, C, S, S)
        for scale in reversed(range(count)):
            cut = (view.shape[-1] - (side << scale)) // 2
            fine = patches[:, scale].repeat_interleave(1 << scale, 2).repeat_interleave(1 << scale, 3)
            view[:, :, cut : cut + fine.shape[2], cut : cut + fine.shape[3]] = fine
        mean, std = (
            torch.tensor(values, device=self.device)[:, None, None] for values in (self.canvas.mean, self.canvas.std)
        )
        return (view * std + mean).float().cpu().numpy()

    def pixels(self, places: Tensor) -> Tensor:
        """Places from -1 to 1 as rows and columns (..., 2) of the image."""
        _, rows, columns = self.canvas.image
        return (places.float().cpu() + 1) / 2 * torch.tensor([rows, columns])
