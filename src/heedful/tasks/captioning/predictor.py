"""The predictor of captioners: beam search, sampling, and what each word attended to.

B images, R captions, T tokens, W words, P places of the map, Y rows and X columns of the map.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from heedful.blocks.taps import taps, watch, watched
from heedful.data.images.caption_batches import encode_captions
from heedful.data.images.captions import CaptionedImages, collect_captions, json_captions
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.inputs import AnyImage, display, prepare
from heedful.data.images.normalization import normalize
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.decode.graphs import Graphs
from heedful.decode.rules import Rule, SuppressTokens, sampling_rules
from heedful.decode.search import Paths, Search, beam, drain, greedy, sample
from heedful.decode.settings import CaptionConfig, CaptionSettings
from heedful.errors import UserError
from heedful.models import build
from heedful.models.own import Plain, settings_of
from heedful.plots.caption_grid import caption_grid
from heedful.plots.style import Figure, Style
from heedful.tasks.captioning.losses import mean_loss
from heedful.tasks.predictor import Evaluation, Predictor, Result, batch_of
from heedful.training.caption_metrics import caption_scores

BATCH_SIZE = 256  # images of a batch, divided by the hypotheses


@dataclass(frozen=True)
class CaptionVocabulary:
    """What a captioner keeps beside its weights: the tokenizer of its captions, and how images are read."""

    words: TrainedTokenizer
    images: ImageSpec

    @property
    def vocab(self) -> int:
        """The number of different tokens."""
        return self.words.vocab

    @property
    def json(self) -> str:
        """The text of both files."""
        return self.words.json + self.images.json

    @property
    def sha256(self) -> str:
        """A hash of both."""
        return hashlib.sha256(self.json.encode()).hexdigest()


@dataclass(frozen=True, repr=False)
class Caption(Result):
    """A caption: its text, log p(caption | image), its words with their probabilities, and what each attended to.

    A word of several tokens has the product of their probabilities, and the mean of their maps.
    """

    text: str
    log_probability: float
    score: float = field(repr=False)  # after the length penalty
    words: list[str] = field(repr=False)
    probabilities: list[float] = field(repr=False)
    maps: Tensor | None = field(repr=False)  # (W, Y, X) attention weights, None without attention
    ids: list[int] = field(repr=False)
    complete: bool = field(repr=False)  # whether the model ended it, not the length limit

    def plot(self, image: AnyImage, title: str = "", style: Style = "light") -> Figure:
        """The image, and beside it one map a word."""
        if self.maps is None:
            raise UserError("this model does not attend to the image", found="a captioner without attention")
        return caption_grid(display(image), self.words, self.maps.numpy(), title or self.text, style=style)


@dataclass
class ImageCaptioner(Predictor[AnyImage, Caption, tuple[AnyImage, Sequence[str]]]):
    """Describes images by a sentence: files, images of Pillow, or arrays (Y, X), (Y, X, C) or (C, Y, X)."""

    task: ClassVar = "captioning"

    model: nn.Module
    tokenizer: CaptionVocabulary  # of its captions, with how images are read
    context: int
    device: torch.device
    settings: CaptionSettings = field(default_factory=CaptionSettings)
    notes: tuple[str, ...] = ()
    graphs: Graphs | None = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        captures = self.device.type == "cuda" and not isinstance(self.model, Plain)
        self.graphs = Graphs(self.model) if captures else None

    @property
    def words(self) -> TrainedTokenizer:
        """The tokenizer of its captions."""
        return self.tokenizer.words

    @property
    def canvas(self) -> ImageSpec:
        """The shape of its images, and how they are prepared."""
        return self.tokenizer.images

    @property
    def decode_settings(self) -> CaptionConfig:
        """The settings of the beam search."""
        return CaptionConfig(**self.settings.model_dump(include=set(CaptionConfig.model_fields)))

    @cached_property
    def attends(self) -> bool:
        """Whether its words attend to places of the image."""
        return any(fnmatchcase(name, self._net.alignment) for name in taps(self.model))

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the map that its words attend to."""
        rows, columns = self._net.config.grid
        return rows, columns

    def predict(self, inputs: Sequence[AnyImage]) -> list[Caption]:
        """The best caption of each image."""
        return self.caption(inputs)

    def caption(self, images: Sequence[AnyImage], beams: int | None = None) -> list[Caption]:
        """The best caption of each image, with its words, their probabilities and what they attended to."""
        return [found[0] for found in self.search(images, beams)]

    def search(self, images: Sequence[AnyImage], beams: int | None = None, top: int = 1) -> list[list[Caption]]:
        """The `top` best captions of each image by beam search, best first; one beam is greedy search."""
        batch_of(images, "images, as [image]")
        width = self.settings.beams if beams is None else beams
        if not 1 <= top <= width:
            raise ValueError(f"{width} beams cannot give {top} captions")
        found = list[list[Caption]]()
        for start in range(0, len(images), max(1, BATCH_SIZE // width)):
            pixels = self.inputs(images[start : start + max(1, BATCH_SIZE // width)])
            found += self._captions(pixels, self._paths(pixels, width, top))
        return found

    def sample(
        self, images: Sequence[AnyImage], settings: CaptionSettings | None = None, **changes: float | None
    ) -> list[Caption]:
        """A sampled caption of each image; image n gives the same result for the same seed in any batch.

        Single settings may be passed by name: temperature, top_k, top_p, seed.
        """
        batch_of(images, "images, as [image]")
        settings = (settings or self.settings).but(**changes)
        rules, found = [*self.rules(), *sampling_rules(settings)], list[Caption]()
        for start in range(0, len(images), BATCH_SIZE):
            pixels = self.inputs(images[start : start + BATCH_SIZE])
            seeds = [(settings.seed * 1_000_003 + start + row) % 2**63 for row in range(len(pixels))]
            with torch.inference_mode():
                state, prefix, limit = self.start(pixels)
                paths = drain(sample(self._net, state, prefix, limit, self.words.eos, seeds, rules, self._graphs()))
            found += [each[0] for each in self._captions(pixels, paths)]
        return found

    def captions_of(
        self, pixels: Tensor, beams: int | None = None, progress: Callable[[int], None] | None = None
    ) -> list[Caption]:
        """The best caption of each of many images (N, C, Y, X), as they are stored."""
        width, found = self.settings.beams if beams is None else beams, list[Caption]()
        for part in pixels.split(max(1, BATCH_SIZE // width)):
            images = normalize(part.to(self.device), self.canvas.mean, self.canvas.std)
            found += [best[0] for best in self._captions(images, self._paths(images, width, 1))]
            if progress is not None:
                progress(len(part))
        return found

    @torch.inference_mode()
    def describe(self, image: AnyImage, ids: Sequence[int]) -> Caption:
        """A given caption of an image, as token ids that end with eos: how likely it is, and what it attends to."""
        tokens = torch.tensor([[list(ids)]])  # (1, 1, T)
        zero = torch.zeros(1, 1)
        paths = Paths(tokens, torch.full((1, 1), len(ids)), zero, zero)
        return self._captions(self.inputs([image]), paths)[0][0]

    def attending(self, kind: Literal["soft", "hard"]) -> ImageCaptioner:
        """The same captioner, its weights shared, with soft or hard attention."""
        config: Any = settings_of(self.model)
        decoder = config.decoder.model_dump() if self.attends else {}
        attention = decoder.get("attention")
        if attention is None:
            raise UserError(
                "this captioner has no soft or hard attention", found=f"a decoder of kind {config.decoder.kind}",
                expected="a recurrent decoder with attention",
            )  # fmt: skip
        shared = {name: attention[name] for name in ("score", "normalize", "gate")}
        other = config.model_dump() | {"decoder": decoder | {"attention": shared | {"kind": kind}}}
        model = build(type(config).model_validate(other))
        model.load_state_dict(self.model.state_dict(), assign=True)
        return ImageCaptioner(model, self.tokenizer, self.context, self.device, self.settings, self.notes)

    def inputs(self, images: Sequence[AnyImage]) -> Tensor:
        """Images as the model reads them, normalized (B, C, Y, X)."""
        pixels = [torch.from_numpy(np.array(prepare(image, self.canvas))) for image in images]
        if not pixels:
            return torch.zeros(0, *self.canvas.image, device=self.device)
        whole = torch.stack([normalize(one[None], self.canvas.mean, self.canvas.std)[0] for one in pixels])
        return whole.to(self.device)

    def start(self, images: Tensor) -> tuple[object, Tensor, Tensor]:
        """The decoder's state for images (B, C, Y, X), the start tokens (B, 1), and the length limits (B,)."""
        limit = min(self.settings.max_length or self.context, self.context - 1)
        prefix = torch.full((len(images), 1), self.words.bos, device=self.device)  # (B, 1)
        return self._net.start(images), prefix, torch.full((len(images),), limit)

    def rules(self) -> tuple[Rule, ...]:
        """The rule that suppresses special tokens."""
        return (SuppressTokens((self.words.pad, self.words.unk, self.words.bos)),)

    @torch.inference_mode()
    def steps(self, image: AnyImage, beams: int, top: int = 1) -> Search:
        """A beam search for captions of an image, step by step."""
        state, prefix, limit = self.start(self.inputs([image]))
        return beam(
            self._net, state, prefix, limit, self.words.eos, beams, top, self.settings.length_penalty,
            rules=self.rules(), graphs=self._graphs(),
        )  # fmt: skip

    @torch.inference_mode()
    def _paths(self, images: Tensor, width: int, top: int) -> Paths:
        state, prefix, limit = self.start(images)
        if width == 1:
            return drain(greedy(self._net, state, prefix, limit, self.words.eos, self.rules(), self._graphs()))
        return drain(
            beam(
                self._net, state, prefix, limit, self.words.eos, width, top, self.settings.length_penalty,
                rules=self.rules(), graphs=self._graphs(),
            )
        )  # fmt: skip

    @torch.inference_mode()
    def _captions(self, images: Tensor, paths: Paths) -> list[list[Caption]]:
        """The captions of each image, with the probabilities and the maps of their words."""
        (rows, top, _), tokens = paths.tokens.shape, paths.tokens.flatten(0, 1).to(self.device)  # (R, T)
        first = torch.full((len(tokens), 1), self.words.bos, device=self.device)
        inputs = torch.cat([first, tokens[:, :-1]], 1)  # (R, T)
        maps = None
        if self.attends:
            with watch(self.model, self._net.alignment) as seen:
                read = self._net.read(images, inputs)
            maps = self._maps([_over_time(values, len(tokens)) for values in seen.all.values()])
        else:
            read = self._net.read(images, inputs)
        logs = self._net.tokens.logits(read.x).float().log_softmax(-1)  # (R, T, V)
        logs = logs.gather(-1, tokens[:, :, None]).squeeze(-1).cpu()  # (R, T)
        found = []
        parts = (paths.tokens, paths.lengths, paths.scores)
        for row, (ids, length, score) in enumerate(zip(*(part.flatten(0, 1).tolist() for part in parts), strict=True)):
            there = None if maps is None else maps[row, :length]
            found.append(self._caption(ids[:length], logs[row, :length], score, there))
        return [found[row * top : (row + 1) * top] for row in range(rows)]

    def _caption(self, ids: list[int], logs: Tensor, score: float, maps: Tensor | None) -> Caption:
        ended = bool(ids) and ids[-1] == self.words.eos
        spoken = ids[:-1] if ended else ids
        groups = words_of(self.words, spoken)
        probabilities = [float(logs[list(places)].sum().exp()) for _, places in groups]
        each = None
        if maps is not None:
            each = torch.stack([maps[list(places)].mean(0) for _, places in groups]) if groups else maps[:0]
        words = [word for word, _ in groups]
        text = self.words.decode(ids)
        return Caption(text, float(logs.sum()), score or float(logs.sum()), words, probabilities, each, ids, ended)

    def _maps(self, layers: list[Tensor]) -> Tensor:
        """The weights (R, T, Y, X) of the layer with the lowest entropy, which is chosen for each caption."""
        stacked = torch.stack(layers)  # (L, R, T, P)
        sharpest = torch.special.entr(stacked).sum((2, 3)).argmin(0)  # (R,)
        chosen = stacked[sharpest, torch.arange(stacked.shape[1])]  # (R, T, P)
        return chosen.unflatten(2, self.grid)

    def _evaluate(self, data: Path | Sequence[tuple[AnyImage, Sequence[str]]]) -> Evaluation:
        if isinstance(data, Path):
            named = json_captions(data)
            pairs: Sequence[tuple[AnyImage, Sequence[str]]] = [
                (data.parent / name, texts) for name, texts in collect_captions(named, data).items()
            ]
        else:
            pairs = data
        pixels = np.stack([prepare(image, self.canvas) for image, _ in pairs])
        captions = tuple((texts,) if isinstance(texts, str) else tuple(texts) for _, texts in pairs)
        images = CaptionedImages(pixels, captions, tuple(f"image {number}" for number in range(len(pairs))))
        encoded = encode_captions(images, self.canvas, self.words, self.context)
        found = [caption.text for caption in self.captions_of(encoded.pixels)]
        return Evaluation.of(caption_scores(found, captions), mean_loss(self._net, encoded, self.device), len(pairs))

    def _graphs(self) -> Graphs | None:
        """Captured CUDA graphs, unless the model has hooks, which a graph would not call."""
        return None if watched(self.model) else self.graphs


def _over_time(values: Iterable[Tensor], rows: int) -> Tensor:
    """The weights (R, T, P) that a tap saw, once a step or once for all steps, averaged over heads."""
    parts = []
    for each in values:
        mean = each.float().mean(1)  # (B, W * T, P), some captions of an image after each other
        parts.append(mean.reshape(rows, -1, mean.shape[-1]))
    return torch.cat(parts, 1).cpu()  # (R, T, P)


def words_of(tokenizer: TrainedTokenizer, ids: Sequence[int]) -> list[tuple[str, range]]:
    """The words of a text, each with the places of its tokens; punctuation is a word."""
    found, before = list[tuple[str, range]](), ""
    for place in range(len(ids)):
        text = tokenizer.decode(list(ids[: place + 1]))
        more = text[len(before) :] if text.startswith(before) else ""
        piece = more.strip()
        joins = bool(found) and more == piece and (not piece or (piece[0].isalnum() and found[-1][0][-1:].isalnum()))
        if joins:
            word, places = found[-1]
            found[-1] = (word + piece, range(places.start, place + 1))
        else:
            found.append((piece, range(place, place + 1)))
        before = text
    return found
