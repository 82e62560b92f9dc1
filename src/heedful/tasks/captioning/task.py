"""Image captioning: two artifacts, the tokenizer and how images are read; BLEU, ROUGE-L, CIDEr-D and chrF."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from heedful.data.formats.sources import Split
from heedful.data.images.caption_batches import CaptionBatches, EncodedCaptions, encode_captions
from heedful.data.images.captions import CaptionedImages, SceneCaptions
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.normalization import channel_statistics
from heedful.data.own import captioned_images
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.decode.settings import CaptionConfig, CaptionSettings
from heedful.errors import UserError
from heedful.hub import pretrained
from heedful.tasks.base import Artifact, Codec, Evaluated, Example, HeldOut, Names, Source, Task
from heedful.tasks.captioning.losses import PROCESSES, caption_loss, hard_loss, mean_loss, self_critical_loss
from heedful.tasks.captioning.predictor import CaptionVocabulary, ImageCaptioner
from heedful.tasks.captioning.recipe import CaptioningRecipe, SelfCritical
from heedful.tasks.captioning.truth import scene_scores
from heedful.tasks.compiled import compile_model
from heedful.training.caption_metrics import CiderD, caption_scores
from heedful.training.checkpoint.weights import load_part

TOKENIZER, IMAGES = "tokenizer.json", "images.json"


class CaptioningTask(Task[CaptionedImages, CaptionVocabulary, EncodedCaptions, ImageCaptioner]):
    """Describe an image by a sentence."""

    words: ClassVar = Names(
        examples="images",
        tokens="tokens",
        too_long="captions longer than the model's context, left out",
        blank="images without a caption, left out",
        learning="training the tokenizer",
        encoding="tokenizing the captions",
        testing="describing the {} set",
        sample=("image", "reference", "caption"),
    )
    decoding: ClassVar = CaptionConfig
    artifacts: ClassVar = {
        TOKENIZER: Codec(TrainedTokenizer, TrainedTokenizer.load),
        IMAGES: Codec(ImageSpec.parse, ImageSpec.load),
    }
    searches: ClassVar = True
    recipe: CaptioningRecipe
    rewards: CiderD[int]  # of self-critical training, against the training captions

    @classmethod
    def artifacts_of(cls, vocabulary: CaptionVocabulary) -> dict[str, Artifact]:
        """The tokenizer, and how images are read."""
        return {TOKENIZER: vocabulary.words, IMAGES: vocabulary.images}

    @classmethod
    def vocabulary_of(cls, artifacts: Mapping[str, Any]) -> CaptionVocabulary:
        """Both together."""
        return CaptionVocabulary(artifacts[TOKENIZER], artifacts[IMAGES])

    @property
    def decode(self) -> CaptionConfig:
        """The settings of the beam search."""
        return self.recipe.decode

    def read(self, split: Split) -> CaptionedImages:
        """The images of a split, with their captions."""
        found: CaptionedImages = self.recipe.data.read(split)
        return found

    collect = staticmethod(captioned_images)

    def learn(self, read: CaptionedImages) -> CaptionVocabulary:
        """A tokenizer of the training captions, and the shape, mean and deviation of the training images."""
        texts = (text for captions in read.captions for text in captions)
        return CaptionVocabulary(TrainedTokenizer.train(self.recipe.tokenizer, texts), self._spec(read))

    def _spec(self, read: CaptionedImages, like: ImageSpec | None = None) -> ImageSpec:
        """How images are read: normalized as the recipe says, as by another model, or by their own statistics."""
        task, (channels, rows, columns) = self.recipe.task, read.pixels.shape[1:]
        for name, given in (("mean", task.mean), ("std", task.std)):
            if given is not None and len(given) != channels:
                raise UserError(
                    f"there must be one {name} for each channel", where=f"task.{name}", found=f"{len(given)} numbers",
                    expected=f"{channels}, as the images have channels",
                )  # fmt: skip
        mean, std = channel_statistics(read.pixels)
        if like is not None and len(like.mean) == channels:
            mean, std = like.mean, like.std
        return ImageSpec((channels, rows, columns), (), task.mean or mean, task.std or std)

    @staticmethod
    def fitted(config: Any, vocabulary: CaptionVocabulary, where: str) -> Any:
        """The settings of the model with the size of the vocabulary, if it reads images of this size."""
        encoder = config.encoder
        channels, *size = vocabulary.images.image
        for name, found, there in (("channels", encoder.channels, channels), ("size", list(encoder.size), size)):
            if found != there:
                raise UserError(
                    "the model does not fit the images", where=f"{where}.encoder.{name}", found=str(found),
                    expected=f"{there}, as the images have",
                    todo=f"write model.encoder.{name}: {there}, or change data.{name}",
                )  # fmt: skip
        return Task.fitted(config, vocabulary, where)

    def adapted(self, vocabulary: CaptionVocabulary | ImageSpec, read: CaptionedImages) -> CaptionVocabulary:
        """The tokenizer of the captioner to start from, and the normalization of its encoder."""
        start = self.recipe.start
        if isinstance(vocabulary, ImageSpec):  # the encoder alone is there
            return replace(self.learn(read), images=self._spec(read, vocabulary))
        there = vocabulary.images if start is None or start.encoder is None else encoder_in(start.encoder).tokenizer
        return replace(vocabulary, images=self._spec(read, there))

    def reused(self, source: Source, vocabulary: CaptionVocabulary) -> Source:
        """All weights, since soft and hard attention have the same; those of the decoder, with another encoder."""
        if self.recipe.start is None or self.recipe.start.encoder is None:
            return source
        decoder = {name: x for name, x in source.tensors.items() if name.startswith("decoder.")}
        return source._replace(
            tensors={name.removeprefix("decoder."): x for name, x in decoder.items()}, part="decoder"
        )

    def elsewhere(self, folder: Path) -> Source:
        """The weights of an image encoder, of our own or published."""
        found = encoder_in(str(folder))
        return Source(found.tokenizer, found.tensors, folder, part="encoder")

    def joined(self, model: Any) -> list[str]:
        """The weights of `start.encoder`, in place of the encoder of `start.folder`."""
        start = self.recipe.start
        if start is None or start.encoder is None:
            return []
        load_part(model.encoder, encoder_in(start.encoder).tensors, start.encoder)
        return [f"the encoder is initialized from {start.encoder}"]

    def encode(self, read: CaptionedImages, vocabulary: CaptionVocabulary) -> EncodedCaptions:
        """The pixels, unchanged, and the ids of all captions."""
        vocabulary.images.require(read.pixels, "the data")
        return encode_captions(read, vocabulary.images, vocabulary.words, self.recipe.model.context)

    def batches(self, encoded: EncodedCaptions, packed: bool, even: bool) -> CaptionBatches:
        """Batches of images, each with some of its captions."""
        recipe, critical = self.recipe, isinstance(self.recipe.task.objective, SelfCritical)
        if critical:
            self.rewards = CiderD(encoded.references)
        even = even and not critical  # a search cannot be captured with the step
        return CaptionBatches(encoded, recipe.train.seed, recipe.images, recipe.task.per_image, recipe.augment, even)

    def loss_of(self, model: Any, packed: bool) -> Callable[..., Any]:
        """The cross-entropy of the captions with coverage; with hard attention, the bound that REINFORCE raises."""
        config, objective = self.recipe.model, self.recipe.task.objective
        if isinstance(objective, SelfCritical):
            longest = min(self.decode.max_length or config.context, config.context - 1)
            return partial(self_critical_loss, model, rewards=self.rewards, samples=objective.samples, longest=longest)
        smoothing = objective.label_smoothing
        if config.hard:
            return partial(hard_loss, model, settings=config.decoder.attention, label_smoothing=smoothing)
        trained: Any = compile_model(model, dynamic=True) if self.recipe.train.compile else model
        return partial(caption_loss, trained, label_smoothing=smoothing, coverage=config.coverage)

    def first_carry(self, model: Any, batches: Any, device: torch.device) -> Tensor | None:
        """The baseline of hard attention, a row for each process; None with soft attention."""
        config, critical = self.recipe.model, isinstance(self.recipe.task.objective, SelfCritical)
        return torch.zeros(PROCESSES, config.context, device=device) if config.hard and not critical else None

    def threads(self, model: Any, cores: int) -> int:
        """All cores: the convolutions use them."""
        return cores

    @staticmethod
    def predictor(
        model: Any,
        config: Any,
        vocabulary: CaptionVocabulary,
        decode: CaptionConfig,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> ImageCaptioner:
        """The captioner of a trained model."""
        return ImageCaptioner(model, vocabulary, config.context, device, CaptionSettings.of(decode), notes)

    def loss(self, predictor: ImageCaptioner, encoded: EncodedCaptions) -> float:
        """The mean loss per token."""
        return mean_loss(predictor.model, encoded, predictor.device)

    def evaluate(self, predictor: ImageCaptioner, held_out: HeldOut[CaptionedImages, EncodedCaptions]) -> Evaluated:
        """The scores of captions; of drawn scenes, also how many are true, and whether nouns attend to their things."""
        read, data = held_out.read, self.recipe.data
        captions = predictor.captions_of(held_out.encoded.pixels, held_out.beams, held_out.progress)
        found = [caption.text for caption in captions]
        scores = caption_scores(found, read.captions)
        if isinstance(data, SceneCaptions):
            scores = (*scores, *scene_scores(data.scenes(held_out.split), captions))
        rows = held_out.rows(len(found), self.recipe.train.samples)
        samples = [(read.names[row], read.captions[row][0], found[row]) for row in rows]
        return held_out.result(scores, samples)

    def examples(self, split: Split) -> Iterator[Example]:
        """None: images are no texts."""
        return iter(())

    @property
    def metric(self) -> str:
        """The score in `task.metric`."""
        return str(self.recipe.task.metric)

    def in_words(self, loss: float) -> str:
        """The loss and the perplexity."""
        perplexity = f"{math.exp(loss):.4f}" if loss < 100 else "inf"
        return f"loss {loss:.5f}, perplexity {perplexity}"

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """Commands that describe an image, with a picture of what each word attends to, and that evaluate."""
        run = shlex.quote(str(folder))
        return [f"heedful caption {run} image.png --picture words.png", f"heedful eval {run} --beams 5"]


def encoder_in(folder: str) -> Any:
    """The image encoder in a folder, of our own or published."""
    return pretrained(Path(folder), role="image_encoder")
