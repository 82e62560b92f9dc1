"""Image classification: the loss, scores, and the predictor.

B batch, N images, C channels, Y rows, X columns, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from heedful.blocks.folded import FoldedConvolution, fold
from heedful.blocks.losses import Loss
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.inputs import AnyImage, prepare, read_labelled
from heedful.data.images.labelled_batches import EncodedLabelledImages, LabelledImageBatch
from heedful.data.images.normalization import normalize, scaled, statistics
from heedful.errors import UserError
from heedful.tasks.predictor import Evaluation, Predictor, Result, batch_of
from heedful.training.metrics import Score, accuracy, f1, top_accuracy

Floats = NDArray[np.float32]
BATCH_SIZE = 256  # images
T = TypeVar("T")
TOP = 5  # classes of the second accuracy, where there are more


TrainingLogits = Callable[[Tensor], list[tuple[float, Tensor]]]


def image_loss(
    training_logits: TrainingLogits, batch: LabelledImageBatch, label_smoothing: float = 0.0, compiled: Any = None
) -> Loss:
    """Cross-entropy of the class of each image, summed; of mixed images, of both classes by their shares.

    `compiled` is `loss_sums` by torch.compile, if it is used.
    """
    total, plain = (compiled or loss_sums)(
        training_logits, label_smoothing, batch.pixels, batch.targets, batch.others, batch.shares, batch.weights,
        *statistics(batch.mean, batch.std, batch.pixels.device),
    )  # fmt: skip
    return Loss(total, plain, batch.indices.new_full((), len(batch.indices)))


def loss_sums(
    training_logits: TrainingLogits, label_smoothing: float, pixels: Tensor, targets: Tensor, others: Tensor,
    shares: Tensor, weights: Tensor, shift: Tensor | None, scale: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The loss that is minimized, and the cross-entropy without weights and label smoothing, from the bytes on."""
    x = scaled(pixels, shift, scale)
    x = x.contiguous(memory_format=torch.channels_last) if x.is_cuda else x  # in which convolutions are fastest there
    totals, plains = [], []
    for weight, logits in training_logits(x):
        smooth, each = class_losses(logits, targets, others, shares, label_smoothing)
        totals.append(weight * (weights * smooth).sum())
        plains.append(each.detach().sum())
    return torch.stack(totals).sum(), plains[0]


def class_losses(
    logits: Tensor, targets: Tensor, others: Tensor, shares: Tensor, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """The cross-entropy of each image (B,) with label smoothing, and without."""
    logs = logits.float().log_softmax(-1)
    first = -logs.gather(1, targets[:, None]).squeeze(1)
    second = -logs.gather(1, others[:, None]).squeeze(1)
    each = shares * first + (1 - shares) * second
    return (1 - label_smoothing) * each - label_smoothing * logs.mean(-1), each


def frozen_logits(model: Any) -> TrainingLogits:
    """The logits of a model whose last layer alone is trained; the others stay as they are in evaluation."""
    for name, weight in model.named_parameters():
        weight.requires_grad_(name.startswith("head."))

    def training_logits(images: Tensor) -> list[tuple[float, Tensor]]:
        for name, part in model.named_children():
            part.train(name == "head")
        return [(1.0, model.head(model.features(images)))]

    return training_logits


@torch.inference_mode()
def logits_of(model: nn.Module, encoded: EncodedLabelledImages, device: torch.device) -> Tensor:
    """The logits (N, classes) of all images, in order."""
    found = []
    for batch in encoded.in_order(BATCH_SIZE):
        there = batch.to(device)
        found.append(model(normalize(there.pixels, there.mean, there.std)).float().cpu())
    return torch.cat(found)


def class_scores(logits: Tensor, labels: NDArray[np.int64], names: Sequence[str]) -> tuple[Score, ...]:
    """Accuracy, top-5 accuracy where there are more classes, and F1."""
    found = logits.argmax(-1).numpy()
    top = (top_accuracy(logits.topk(TOP).indices.numpy(), labels),) if len(names) > TOP else ()
    return accuracy(found, labels, "images"), *top, f1(found, labels, names, "images")


@torch.inference_mode()
def mean_loss(model: nn.Module, encoded: EncodedLabelledImages, device: torch.device) -> float:
    """The mean cross-entropy over a split, without weights and label smoothing."""
    labels = torch.from_numpy(encoded.labels)
    return float(F.cross_entropy(logits_of(model, encoded, device).double(), labels))


@dataclass(frozen=True, repr=False)
class ImageClassification(Result):
    """The most probable class of an image, its probability, and the first classes with theirs, in order."""

    label: str
    probability: float
    probabilities: dict[str, float] = field(repr=False)


@dataclass
class ImageClassifier(Predictor[AnyImage, ImageClassification, tuple[AnyImage, str]]):
    """Predicts the class of images: files, images of Pillow, or arrays (Y, X), (Y, X, C) or (C, Y, X).

    Bytes are scaled to 0..1; an array of floats has the range and the size of the training images.
    """

    task: ClassVar = "image_classification"

    model: nn.Module
    tokenizer: ImageSpec  # the shape of its images, their classes, and how they are prepared
    device: torch.device
    notes: tuple[str, ...] = ()

    @property
    def canvas(self) -> ImageSpec:
        """The shape of its images, their classes, and how they are prepared."""
        return self.tokenizer

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.canvas.names

    def predict(self, inputs: Sequence[AnyImage], top: int = TOP) -> Sequence[ImageClassification]:
        """The class of each image, with the `top` most probable ones."""
        parts = self._run(self.model, inputs)
        return [ImageClassification(*named) for logits in parts for named in self._most_probable(logits, top)]

    def _most_probable(self, logits: Tensor, top: int) -> Iterator[tuple[str, float, dict[str, float]]]:
        """The class of each row of logits, its probability, and the first classes with theirs."""
        for row in logits.float().softmax(-1).cpu():
            values, numbers = row.topk(min(max(1, top), len(row)))
            named = [self.labels[number] for number in numbers.tolist()]
            shares = dict(zip(named, values.tolist(), strict=True))
            yield named[0], shares[named[0]], shares

    def features(self, inputs: Sequence[AnyImage]) -> Floats:
        """The vector of each image (N, F), from which the last layer predicts its class."""
        parts = [part.float().cpu().numpy() for part in self._run(self._net.features, inputs)]
        return np.concatenate(parts) if parts else np.zeros((0, self._net.head.in_features), np.float32)

    def for_cpu(self, bf16: bool = False) -> ImageClassifier:
        """A copy that is faster on a CPU: batch norms are folded into convolutions, which run with what follows them.

        `bf16`: in bfloat16, about twice as fast on CPUs that have such instructions, and slightly less exact.
        """
        folded = fold(self.model, torch.bfloat16 if bf16 else torch.float32)
        return replace(self, model=folded, device=torch.device("cpu"))

    def save(self, folder: str | Path) -> None:
        """Write a model folder, from which `heedful.load` makes the same predictor."""
        if any(isinstance(part, FoldedConvolution) for part in self.model.modules()):
            raise UserError(
                "a model for the CPU cannot be saved", todo="save the original model, and call for_cpu() after loading"
            )
        super().save(folder)

    def inputs(self, images: Sequence[AnyImage]) -> Tensor:
        """Images as the model reads them, normalized (N, C, Y, X)."""
        pixels = [torch.from_numpy(np.array(prepare(image, self.canvas))) for image in images]
        return torch.stack([normalize(one[None], self.canvas.mean, self.canvas.std)[0] for one in pixels])

    def _evaluate(self, data: Path | Sequence[tuple[AnyImage, str]]) -> Evaluation:
        encoded = read_labelled(data, self.canvas)
        logits = logits_of(self.model, encoded, self.device)
        loss = float(F.cross_entropy(logits.double(), torch.from_numpy(encoded.labels)))
        return Evaluation.of(class_scores(logits, encoded.labels, self.labels), loss, len(encoded))

    @torch.inference_mode()
    def _run(self, function: Callable[[Tensor], T], inputs: Sequence[AnyImage]) -> Iterator[T]:
        batch_of(inputs, "images, as [image]")
        for start in range(0, len(inputs), BATCH_SIZE):
            yield function(self.inputs(inputs[start : start + BATCH_SIZE]).to(self.device, self._precision))

    @property
    def _precision(self) -> torch.dtype:
        """The data type of the weights, and of the images that the model reads."""
        return next((weight.dtype for weight in self.model.parameters()), torch.float32)
