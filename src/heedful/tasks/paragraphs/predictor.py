"""The predictor of paragraphs, which says which regions each sentence comes from.

B images, R regions, S sentences, K regions of a sentence, N texts, T tokens, H width of a topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.inputs import AnyImage, display, file_channels, prepare
from heedful.data.images.normalization import normalize
from heedful.data.images.paragraph_batches import WHOLE, encode_paragraphs, ints, pad
from heedful.data.images.paragraphs import (
    Box,
    DescribedImages,
    Paragraph,
    ParagraphFiles,
    ParagraphJsonl,
    parse_boxes,
    parse_paragraph,
)
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.decode.rules import SuppressTokens
from heedful.decode.search import beam, drain, greedy
from heedful.errors import UserError, shown
from heedful.plots.paragraph_plot import paragraph_plot
from heedful.plots.style import Figure, Style
from heedful.tasks.captioning.predictor import CaptionVocabulary
from heedful.tasks.paragraphs.losses import BATCH_SIZE, are_words, mean_loss
from heedful.tasks.paragraphs.recipe import ParagraphDecodeConfig
from heedful.tasks.paragraphs.truth import truth_scores
from heedful.tasks.predictor import Evaluation, Predictor, Result, batch_of
from heedful.training.metrics import Score, translation_scores

SPECIAL = (TrainedTokenizer.pad, TrainedTokenizer.unk, TrainedTokenizer.bos)
PixelBox = Sequence[float]  # top, left, bottom, right


@dataclass(frozen=True, repr=False)
class DescribedSentence(Result):
    """A sentence, the region that it is about, and that region's phrase; 0 is the whole image, n the n-th box.

    `regions` are all that it speaks of, the first one first, and `weights` (K, R) those of every region for each.
    """

    text: str
    region: int
    phrase: str
    regions: tuple[int, ...]
    weights: NDArray[np.float32] = field(repr=False)
    log_probability: float = field(repr=False)


@dataclass(frozen=True, repr=False)
class Description(Result):
    """A paragraph about an image: its sentences, and the boxes in pixels with their phrases."""

    text: str
    sentences: list[DescribedSentence]
    boxes: list[tuple[float, ...]] = field(repr=False)
    phrases: list[str] = field(repr=False)
    complete: bool = field(repr=False)  # whether the model ended it, not the limit of sentences

    def plot(self, image: AnyImage, title: str = "", style: Style = "light") -> Figure:
        """The image with its numbered boxes, and the sentences in the colours of the boxes that they are about."""
        sentences = [(sentence.text, sentence.region) for sentence in self.sentences]
        return paragraph_plot(display(image), self.boxes, self.phrases, sentences, title, style)


@dataclass
class ImageDescriber(Predictor[tuple[AnyImage, Sequence[PixelBox]], Description, tuple[AnyImage, dict[str, object]]]):
    """Describes images and their regions in a paragraph, and says which region each sentence comes from."""

    task: ClassVar = "paragraphs"

    model: nn.Module
    tokenizer: CaptionVocabulary
    device: torch.device
    settings: ParagraphDecodeConfig = field(default_factory=ParagraphDecodeConfig)
    notes: tuple[str, ...] = ()

    @property
    def canvas(self) -> ImageSpec:
        """The shape of its images, and how they are prepared."""
        return self.tokenizer.images

    @property
    def decode_settings(self) -> ParagraphDecodeConfig:
        """The settings of the search."""
        return self.settings

    def predict(self, inputs: Sequence[tuple[AnyImage, Sequence[PixelBox]]]) -> list[Description]:
        """A paragraph for each (image, boxes)."""
        batch_of(inputs, "pairs, as [(image, boxes)]")
        return self.describe([image for image, _ in inputs], [boxes for _, boxes in inputs])

    def describe(
        self,
        images: Sequence[AnyImage],
        regions: Sequence[Sequence[PixelBox]],
        phrases: Sequence[Sequence[str]] | None = None,
        beams: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Description]:
        """A paragraph for each image and its boxes: top, left, bottom, right in pixels.

        The phrases of the boxes are the model's own, unless they are given.
        """
        batch_of(images, "images, as [image]")
        if len(images) != len(regions) or len(phrases or regions) != len(regions):
            raise ValueError(f"{len(images)} images need as many lists of boxes and of phrases")
        boxes = [
            parse_boxes(list(map(list, each)), display(image).shape[:2], f"image {number}")
            for number, (image, each) in enumerate(zip(images, regions, strict=True), start=1)
        ]
        for number, (each, given) in enumerate(zip(boxes, phrases or boxes, strict=True), start=1):
            if len(each) != len(given):
                raise UserError(
                    "each box needs a phrase",
                    where=f"image {number}",
                    found=shown(given),
                    expected=f"{len(each)} texts",
                )
        found = list[Description]()
        for start in range(0, len(images), BATCH_SIZE):
            part = slice(start, start + BATCH_SIZE)
            pixels = torch.stack([torch.from_numpy(np.array(prepare(image, self.canvas))) for image in images[part]])
            described = self.describe_pixels(pixels, boxes[part], None if phrases is None else phrases[part], beams)
            for result, given_boxes in zip(described, regions[part], strict=True):
                found.append(replace(result, boxes=[tuple(map(float, box)) for box in given_boxes]))
            if progress is not None:
                progress(len(pixels))
        return found

    @torch.inference_mode()
    def describe_pixels(
        self,
        pixels: Tensor,
        boxes: Sequence[Sequence[Box]],
        phrases: Sequence[Sequence[str]] | None = None,
        beams: int | None = None,
    ) -> list[Description]:
        """A paragraph for each image (B, C, Y, X) in the form of the training images, with boxes from 0 to 1."""
        memory, real, texts = self.remember(pixels, boxes, phrases, beams)
        plans = self._plans(memory, real)
        ends = torch.stack([plan.last > 0 for plan in plans], 1).cpu()  # (B, S)
        weights = torch.stack([plan.weights for plan in plans], 1).float().cpu()  # (B, S, K, R)
        topics = torch.stack([plan.topic for plan in plans], 1)  # (B, S, H)
        counts = [next((n for n, end in enumerate(row, 1) if end), len(row)) for row in ends.tolist()]
        kept = torch.arange(len(plans)) < ints(counts)[:, None]  # (B, S)
        written = iter(self.write(topics[kept.to(self.device)], beams))
        named, found = iter(texts), list[Description]()
        for image, count in enumerate(counts):
            own = [next(named) for _ in boxes[image]]
            sentences = [
                self._sentence(*next(written), weights[image, n, :, : 1 + len(own)], own) for n in range(count)
            ]
            text = " ".join(sentence.text for sentence in sentences)
            complete = bool(ends[image, count - 1])
            found.append(Description(text, sentences, [tuple(box) for box in boxes[image]], own, complete))
        return found

    @torch.inference_mode()
    def remember(
        self,
        pixels: Tensor,
        boxes: Sequence[Sequence[Box]],
        phrases: Sequence[Sequence[str]] | None = None,
        beams: int | None = None,
    ) -> tuple[Tensor, Tensor, list[str]]:
        """The memory of all regions (B, R, M), which of them are real (B, R), and the phrases of all boxes."""
        most = 1 + max(map(len, boxes))
        table = torch.tensor([[WHOLE, *each, *[WHOLE] * (most - 1 - len(each))] for each in boxes])  # (B, R, 4)
        boxed = torch.arange(most) <= ints([len(each) for each in boxes])[:, None]  # (B, R)
        table, real = table.to(self.device), boxed.to(self.device)
        images = normalize(pixels.to(self.device), self.canvas.mean, self.canvas.std)
        regions = self._net.look(images, table, real)  # (B, R, M)
        named = real & (torch.arange(most, device=self.device) > 0)  # (B, R), the whole image has no phrase
        if phrases is None:
            texts = [text for text, _ in self.write(self._net.phrase_topics(regions)[named], beams)]
        else:
            texts = [text for each in phrases for text in each]
        words = pad(self.tokenizer.words.ids(texts)).to(self.device)  # (N, T)
        tokens = words.new_zeros(*named.shape, words.shape[1])  # (B, R, T)
        tokens[named] = words
        return self._net.remember(regions, tokens, are_words(tokens)), real, texts

    def _sentence(self, text: str, log: float, weights: Tensor, phrases: Sequence[str]) -> DescribedSentence:
        best = weights.argmax(-1).tolist()  # (K,)
        region = best[0]
        phrase = phrases[region - 1] if region else ""
        return DescribedSentence(text, region, phrase, tuple(dict.fromkeys(best)), weights.numpy(), log)

    def _plans(self, memory: Tensor, real: Tensor) -> list[Any]:
        """The plan of each sentence, until all paragraphs have ended."""
        state, plans = self._net.begin_paragraph(memory, real), list[Any]()
        ended = torch.zeros(len(memory), dtype=torch.bool, device=self.device)  # (B,)
        while len(plans) < self.settings.sentences and not bool(ended.all()):
            plan, state = self._net.plan(memory, real, state)
            plans.append(plan)
            ended = ended | (plan.last > 0)
        return plans

    @torch.inference_mode()
    def write(self, topics: Tensor, beams: int | None = None) -> list[tuple[str, float]]:
        """The best text for each topic (N, H), and log p of it."""
        width, rules = beams or self.settings.beams, (SuppressTokens(SPECIAL),)
        prefix = torch.full((len(topics), 1), TrainedTokenizer.bos, device=self.device)  # (N, 1)
        limit = torch.full((len(topics),), self._net.config.context)  # (N,)
        state, eos = self._net.start(topics), TrainedTokenizer.eos
        if width == 1:
            paths = drain(greedy(self._net, state, prefix, limit, eos, rules))
        else:
            penalty = self.settings.length_penalty
            paths = drain(beam(self._net, state, prefix, limit, eos, width, 1, penalty, rules=rules))
        rows = zip(paths.tokens[:, 0].tolist(), paths.lengths[:, 0].tolist(), paths.logs[:, 0].tolist(), strict=True)
        return [(self.tokenizer.words.decode(ids[:length]), log) for ids, length, log in rows]

    def _evaluate(self, data: Path | Sequence[tuple[AnyImage, dict[str, object]]]) -> Evaluation:
        read = self._read(data)
        config = self._net.config
        encoded = encode_paragraphs(read, self.canvas, self.tokenizer.words, config.context, config.regions)
        loss = mean_loss(self._net, encoded, self.device) if len(encoded) else None
        return Evaluation.of(paragraph_scores(self.describe_all(read), read), loss, len(read))

    def describe_all(
        self, read: DescribedImages, beams: int | None = None, progress: Callable[[int], None] | None = None
    ) -> list[Description]:
        """A paragraph for each image of a split."""
        found, pixels = list[Description](), torch.from_numpy(np.array(read.pixels))
        for start in range(0, len(read), BATCH_SIZE):
            part = slice(start, start + BATCH_SIZE)
            found += self.describe_pixels(pixels[part], [each.boxes for each in read.paragraphs[part]], beams=beams)
            if progress is not None:
                progress(len(pixels[part]))
        return found

    def _read(self, data: Path | Sequence[tuple[AnyImage, dict[str, object]]]) -> DescribedImages:
        if isinstance(data, Path):
            files, size = ParagraphFiles(paragraphs=data.name, images="."), self.canvas.image[1:]
            channels: Any = file_channels(self.canvas)
            return ParagraphJsonl(root=str(data.parent), train=files, valid=files, channels=channels, size=size).read(
                "valid"
            )
        pixels, paragraphs = list[NDArray[Any]](), list[Paragraph]()
        for number, (image, said) in enumerate(data):
            pixels.append(prepare(image, self.canvas))
            paragraphs.append(parse_paragraph(said, display(image).shape[:2], f"example {number + 1}"))
        return DescribedImages(np.stack(pixels), tuple(paragraphs))


def paragraph_scores(found: Sequence[Description], read: DescribedImages) -> tuple[Score, ...]:
    """BLEU, chrF and exact match of the paragraphs; of drawn scenes, also how many sentences are true and grounded."""
    scores = translation_scores([each.text for each in found], [each.text for each in read.paragraphs])
    return (*truth_scores([each.sentences for each in found], read.scenes), *scores) if read.scenes else scores
