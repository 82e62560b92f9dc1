"""Paragraph captioning: images with boxes and phrases; scores of the text, and of drawn scenes, of its truth."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from heedful.blocks.losses import Loss
from heedful.data.formats.sources import Split
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.normalization import channel_statistics
from heedful.data.images.paragraph_batches import EncodedParagraphs, ParagraphBatches, encode_paragraphs
from heedful.data.images.paragraphs import DescribedImages, own_paragraphs
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.tasks.base import Artifact, Evaluated, HeldOut, Names, Source, Task
from heedful.tasks.captioning.predictor import CaptionVocabulary
from heedful.tasks.captioning.task import IMAGES, TOKENIZER, CaptioningTask, encoder_in
from heedful.tasks.paragraphs.losses import mean_loss, paragraph_loss
from heedful.tasks.paragraphs.predictor import ImageDescriber, paragraph_scores
from heedful.tasks.paragraphs.recipe import ParagraphDecodeConfig, ParagraphRecipe


class ParagraphTask(Task[DescribedImages, CaptionVocabulary, EncodedParagraphs, ImageDescriber]):
    """Describe an image and its regions in a paragraph."""

    words: ClassVar = Names(
        examples="images",
        tokens="tokens",
        too_long="images with a sentence longer than the model's context, left out",
        blank="images without a paragraph, left out",
        learning="training the tokenizer",
        encoding="tokenizing the paragraphs",
        testing="describing the {} set",
        sample=("image", "reference", "paragraph"),
    )
    decoding: ClassVar = ParagraphDecodeConfig
    artifacts: ClassVar = CaptioningTask.artifacts
    searches: ClassVar = True
    recipe: ParagraphRecipe

    @property
    def decode(self) -> ParagraphDecodeConfig:
        """The settings of the search."""
        return self.recipe.decode

    def read(self, split: Split) -> DescribedImages:
        """The images of a split with their paragraphs."""
        found: DescribedImages = self.recipe.data.read(split)
        return found

    collect = staticmethod(own_paragraphs)

    def learn(self, read: DescribedImages) -> CaptionVocabulary:
        """A tokenizer of the training texts, and the shape, mean and deviation of the training images."""
        channels, rows, columns = read.pixels.shape[1:]
        spec = ImageSpec((channels, rows, columns), (), *channel_statistics(read.pixels))
        texts = (text for each in read.paragraphs for text in (*each.phrases, *each.sentences))
        return CaptionVocabulary(TrainedTokenizer.train(self.recipe.tokenizer, texts), spec)

    @classmethod
    def artifacts_of(cls, vocabulary: CaptionVocabulary) -> dict[str, Artifact]:
        """The tokenizer, and how images are read."""
        return {TOKENIZER: vocabulary.words, IMAGES: vocabulary.images}

    @classmethod
    def vocabulary_of(cls, artifacts: Mapping[str, Any]) -> CaptionVocabulary:
        """Both together."""
        return CaptionVocabulary(artifacts[TOKENIZER], artifacts[IMAGES])

    fitted = staticmethod(CaptioningTask.fitted)

    def adapted(self, vocabulary: CaptionVocabulary | ImageSpec, read: DescribedImages) -> CaptionVocabulary:
        """The vocabulary of the model to start from; of an image encoder alone, its normalization."""
        if isinstance(vocabulary, CaptionVocabulary):
            return vocabulary
        own = self.learn(read)
        return replace(own, images=replace(own.images, mean=vocabulary.mean, std=vocabulary.std))

    def elsewhere(self, folder: Path) -> Source:
        """The weights of an image encoder, of our own or published."""
        found = encoder_in(str(folder))
        return Source(found.tokenizer, found.tensors, folder, part="encoder")

    def encode(self, read: DescribedImages, vocabulary: CaptionVocabulary) -> EncodedParagraphs:
        """The pixels, unchanged, and token ids."""
        vocabulary.images.require(read.pixels, "the data")
        model = self.recipe.model
        return encode_paragraphs(read, vocabulary.images, vocabulary.words, model.context, model.regions)

    def batches(self, encoded: EncodedParagraphs, packed: bool, even: bool) -> ParagraphBatches:
        """Batches of about the same number of images."""
        return ParagraphBatches(encoded, self.recipe.train.seed, self.recipe.images)

    def loss_of(self, model: Any, packed: bool) -> Callable[[Any], Loss]:
        """Cross-entropy of words, regions and ends."""
        return partial(paragraph_loss, model, weigh=self.recipe.task)

    @staticmethod
    def predictor(
        model: Any,
        config: Any,
        vocabulary: CaptionVocabulary,
        decode: ParagraphDecodeConfig,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> ImageDescriber:
        """The predictor of a trained model."""
        return ImageDescriber(model, vocabulary, device, decode, notes)

    def loss(self, predictor: ImageDescriber, encoded: EncodedParagraphs) -> float:
        """The mean loss per token."""
        model: Any = predictor.model
        return mean_loss(model, encoded, predictor.device)

    def evaluate(self, predictor: ImageDescriber, held_out: HeldOut[DescribedImages, EncodedParagraphs]) -> Evaluated:
        """BLEU, chrF, exact match, and of drawn scenes the truth; and a few paragraphs."""
        read = held_out.read
        found = predictor.describe_all(read, held_out.beams, held_out.progress)
        rows = held_out.rows(len(found), self.recipe.train.samples)
        samples = [(f"image {row}", read.paragraphs[row].text, found[row].text) for row in rows]
        return held_out.result(paragraph_scores(found, read), samples)

    @property
    def metric(self) -> str:
        """chrF."""
        return "chrf"

    def in_words(self, loss: float) -> str:
        """The loss and the perplexity."""
        perplexity = f"{math.exp(loss):.4f}" if loss < 100 else "inf"
        return f"loss {loss:.5f}, perplexity {perplexity}"

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """Commands that describe an image, and that evaluate."""
        name = shlex.quote(str(folder))
        return [f"heedful describe {name} image.png --boxes boxes.json", f"heedful eval {name}"]
