"""Image classification: the cross-entropy of the class of an image."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from heedful.blocks.losses import Loss
from heedful.blocks.patches import resize_positions
from heedful.data.formats.sources import Split
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.labelled_batches import EncodedLabelledImages, LabelledImageBatches, encode_labelled_images
from heedful.data.images.normalization import channel_statistics
from heedful.data.images.sources import Images
from heedful.data.own import labelled_images
from heedful.errors import UserError, shown
from heedful.hub import pretrained
from heedful.models import build
from heedful.models.roles import ImageModelConfig
from heedful.tasks.base import Codec, Evaluated, HeldOut, Names, Source, Task
from heedful.tasks.image_classification.glimpses import GlimpseClassifier, glimpse_loss
from heedful.tasks.image_classification.predictor import (
    ImageClassifier,
    class_scores,
    frozen_logits,
    image_loss,
    logits_of,
    loss_sums,
    mean_loss,
)
from heedful.tasks.image_classification.recipe import ImageClassificationRecipe
from heedful.tasks.imbalance import class_weights
from heedful.training.class_report import ClassReport, class_report


class ImageClassificationTask(Task[Images, ImageSpec, EncodedLabelledImages, ImageClassifier]):
    """Predict the class of an image."""

    words: ClassVar = Names(
        examples="images",
        tokens="values in each",
        too_long="images that are too large",
        blank="files in the folders that are not images, left out",
        learning="measuring the images",
        encoding="encoding the images",
        testing="classifying the {} set",
        sample=("image", "class", "predicted"),
        counted="images",
        loss="nats an image",
    )
    decoding: ClassVar = None
    artifacts: ClassVar = {"images.json": Codec(ImageSpec.parse, ImageSpec.load)}
    searches: ClassVar = False
    recipe: ImageClassificationRecipe

    def read(self, split: Split) -> Images:
        """The images of a split, which must have labels."""
        found: Images = self.recipe.data.read(split)
        if found.labels is None:
            raise UserError(
                "these images have no labels", where=f"data.{split}", expected="the class of each image",
                todo="name the labels; image folders have a subfolder per class",
            )  # fmt: skip
        return found

    collect = staticmethod(labelled_images)

    def learn(self, read: Images) -> ImageSpec:
        """The shape, the classes, and the mean and standard deviation of the training images."""
        assert read.labels is not None, "checked in `read`"
        present = np.unique(read.labels)
        if len(present) < 2:
            raise UserError(
                "all training images are of one class", where="data.train", found=shown(read.names[present[0]]),
                expected="two classes or more",
            )  # fmt: skip
        task, (channels, rows, columns) = self.recipe.task, read.stored.shape[1:]
        mean, std = channel_statistics(read.stored)
        for name, given in (("mean", task.mean), ("std", task.std)):
            if given is not None and len(given) != channels:
                raise UserError(
                    f"there must be one {name} for each channel", where=f"task.{name}", found=f"{len(given)} numbers",
                    expected=f"{channels}, as the images have channels",
                )  # fmt: skip
        image = (channels, rows, columns)
        return ImageSpec(image, read.names, task.mean or mean, task.std or std, resample=read.resample)

    def adapted(self, vocabulary: ImageSpec, read: Images) -> ImageSpec:
        """The classes and the size of these images, with the normalization of the model to start from."""
        own = self.learn(read)
        if vocabulary.image[0] != own.image[0]:
            return own
        task = self.recipe.task
        mean, std = task.mean or vocabulary.mean, task.std or vocabulary.std
        return replace(own, mean=mean, std=std)

    def reused(self, source: Source, vocabulary: ImageSpec) -> Source:
        """All weights; without the last layers, named `head`, where the classes are others."""
        there: ImageSpec = source.vocabulary
        same = there.names == vocabulary.names
        heads = () if same else tuple(name for name in source.tensors if "head" in name.split("."))
        kept = {name: tensor for name, tensor in source.tensors.items() if name not in heads}
        _, rows, columns = there.image
        return source._replace(tensors=self._for_size(kept, (rows, columns)), random=heads or ("head.",))

    def _for_size(self, tensors: dict[str, Tensor], size: tuple[int, int]) -> dict[str, Tensor]:
        """The tensors of a model for images of a size, with positions interpolated for those of the recipe."""
        grids = (self.recipe.model.grids(size) if not self.recipe.own_model else {}).items()
        changed = {name: resize_positions(tensors[name], *grid) for name, grid in grids if name in tensors}
        return tensors | changed

    def elsewhere(self, folder: Path) -> Source | None:
        """A published model: all its weights but those of the last layers."""
        found = pretrained(folder, role="image_encoder")
        may_differ = {"classes", "size", "freeze", "sides"}
        may_differ |= {name for name in type(self.recipe.model).model_fields if name.endswith("dropout")}
        there, here = (config.model_dump(exclude=may_differ) for config in (found.config, self.recipe.model))
        if there != here:
            named = [name for name in {**there, **here} if there.get(name) != here.get(name)]
            raise UserError(
                "the model to start from differs from the recipe", where=f"start.folder: {folder}",
                found=", ".join(f"model.{name}: {shown(here.get(name))}" for name in named),
                expected=", ".join(f"{name}: {shown(there.get(name))}" for name in named),
            )  # fmt: skip
        kept = {name: tensor for name, tensor in found.tensors.items() if "head" not in name.split(".")}
        with torch.device("meta"):
            heads = [name for name in build(self.recipe.model).state_dict() if "head" in name.split(".")]
        return Source(found.tokenizer, self._for_size(kept, found.config.size), folder, random=tuple(heads))

    @staticmethod
    def fitted(config: Any, vocabulary: ImageSpec, where: str) -> Any:
        """The settings of the model with the number of classes, if it reads images of this size."""
        known: ImageModelConfig = config
        channels, *size = vocabulary.image
        for name, found, there in (("channels", known.channels, channels), ("size", list(known.size), size)):
            if found != there:
                raise UserError(
                    "the model does not fit the images", where=f"{where}.{name}", found=str(found),
                    expected=f"{there}, as the images have",
                    todo=f"write model.{name}: {there}, or change the images: data.{name} of image folders",
                )  # fmt: skip
        count = len(vocabulary.names)
        if known.classes not in (None, count):
            raise UserError(
                "the model has another number of classes than the data", where=f"{where}.classes",
                found=str(known.classes), expected=str(count), todo="leave model.classes out",
            )  # fmt: skip
        return known.model_copy(update={"classes": count})

    def encode(self, read: Images, vocabulary: ImageSpec) -> EncodedLabelledImages:
        """The pixels, unchanged, and the number of each class."""
        vocabulary.require_shape(read.stored.shape, "the data")
        return encode_labelled_images(read, vocabulary)

    def batches(self, encoded: EncodedLabelledImages, packed: bool, even: bool) -> LabelledImageBatches:
        """Batches of about the same number of images."""
        recipe, balanced = self.recipe, self.recipe.task.sampling == "balanced"
        weights = class_weights(encoded.labels, encoded.spec.names, recipe.task.class_weights)
        return LabelledImageBatches(encoded, recipe.train.seed, recipe.images, weights, balanced, recipe.augment)

    def loss_of(self, model: Any, packed: bool) -> Callable[[Any], Loss]:
        """Cross-entropy of the classes; of a model that chooses glimpses, also the REINFORCE loss of their places."""
        smoothing = self.recipe.task.label_smoothing
        if self.recipe.model.hard and not self.recipe.model.freeze:
            look: Any = torch.compile(model.look, dynamic=False) if self.recipe.train.compile else model.look
            return partial(glimpse_loss, look, model.head, label_smoothing=smoothing)
        logits: Any = frozen_logits(model) if self.recipe.model.freeze else model.training_logits
        compiled = torch.compile(loss_sums, dynamic=False) if self.recipe.train.compile else None
        return partial(image_loss, logits, label_smoothing=smoothing, compiled=compiled)

    @staticmethod
    def predictor(
        model: Any,
        config: Any,
        vocabulary: ImageSpec,
        decode: None,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> ImageClassifier:
        """The classifier of a trained model."""
        kind = GlimpseClassifier if config.hard else ImageClassifier
        return kind(model, vocabulary, device, notes)

    def loss(self, predictor: ImageClassifier, encoded: EncodedLabelledImages) -> float:
        """The mean cross-entropy per image."""
        return mean_loss(predictor.model, encoded, predictor.device)

    def evaluate(self, predictor: ImageClassifier, held_out: HeldOut[Images, EncodedLabelledImages]) -> Evaluated:
        """Accuracy, top-5 accuracy and F1, and a few images with predicted classes."""
        encoded, names = held_out.encoded, predictor.labels
        logits = logits_of(predictor.model, encoded, predictor.device)
        samples = []
        for row in held_out.rows(len(encoded), self.recipe.train.samples):
            shares = logits[row].softmax(-1)
            best = int(shares.argmax())
            samples.append(
                (encoded.name(row), names[encoded.labels[row]], f"{names[best]} ({float(shares[best]):.0%})")
            )
        return held_out.result(class_scores(logits, encoded.labels, names), samples)

    def details(self, predictor: ImageClassifier, split: Split) -> ClassReport:
        """Confusion, scores of each class, calibration and the worst mistakes."""
        encoded = self.encode(self.read(split), predictor.canvas)
        best = logits_of(predictor.model, encoded, predictor.device).softmax(-1).max(-1)  # (N,)
        found, shares = best.indices.numpy(), best.values.numpy()
        return class_report(split, "images", encoded.labels, found, shares, encoded.spec.names, encoded.name)

    @property
    def metric(self) -> str:
        """The score in `task.metric`."""
        return str(self.recipe.task.metric)

    @property
    def validates(self) -> bool:
        """Whether there are validation images; otherwise the test images are used."""
        return self.recipe.data.valid is not None

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """Commands that classify images, and that evaluate."""
        name = shlex.quote(str(folder))
        return [f"heedful classify {name} image.png", f"heedful eval {name} --split valid"]
