"""Pre-trained encoders: vectors of texts and of tokens, masked tokens, and next-sentence prediction.

N texts, T tokens of a text, D width, L layers, B texts of a batch, G masks, V vocabulary.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from heedful.blocks.features import FEATURES
from heedful.blocks.int8 import Int8Linear, int8
from heedful.blocks.layouts import Padded
from heedful.data.labelled.sequences import pad_sequences
from heedful.data.text.documents import TextDocuments
from heedful.data.text.pretraining import PairRules, encode_documents
from heedful.data.tokenizers.base import (
    MaskTokenizer,
    count_around,
    count_special_tokens,
    last_segment,
    require_list,
    truncate_pair,
)
from heedful.errors import UserError, shown
from heedful.hub.sentence_transformers import SentenceConfig
from heedful.tasks.predictor import Evaluation, Predictor, Result
from heedful.tasks.pretraining.loss import evaluate_pretraining

TOGETHER = {"cpu": 2048, "cuda": 65536}  # tokens that are read at a time; a CPU works best on what its caches hold
BATCH_TOKENS, LONGEST = 16384, 1_000_000  # of an evaluation: tokens at a time, and characters of a line
SPECIAL = (0, 0)  # where a token stands that is not in the text

Pooling = Literal["mean", "first"]


@dataclass(frozen=True)
class TokenizedTexts:
    """Token ids of texts, special tokens included, and how many texts were truncated to the context."""

    rows: list[list[int]]
    cut: int


@dataclass(frozen=True, repr=False)
class Embedding(Result):
    """The vector (D,) of a text."""

    text: str
    vector: Tensor  # (D,)


@dataclass(frozen=True, repr=False)
class TokenEmbeddings(Result):
    """The tokens of a text: their spelling, their characters in the text, and their vectors (T, D) or (L + 1, T, D)."""

    pieces: list[str]
    offsets: list[tuple[int, int]] = field(repr=False)
    values: Tensor


@dataclass(frozen=True, repr=False)
class TokenPrediction(Result):
    """A token in place of a mask, and its probability."""

    word: str
    probability: float


@dataclass(frozen=True, repr=False)
class JointPrediction(Result):
    """Tokens for all masks of a text at once, and their log-probability in nats.

    Independent: the product over the masks, each predicted while the others stay masked, as BERT is trained.
    Forward: by the chain rule from the first mask to the last, each token filled in before the next is predicted.
    Backward: the same from the last mask to the first.
    """

    words: tuple[str, ...]
    independent: float
    forward: float
    backward: float


@dataclass(frozen=True, repr=False)
class MaskPredictions(Result):
    """The most probable tokens for each mask of a text; where there are several masks, also for all of them jointly."""

    text: str
    predictions: list[list[TokenPrediction]]
    joint: list[JointPrediction]

    @property
    def dependence(self) -> float | None:
        """How much the masked tokens depend on each other: the mean of forward - independent, in nats.

        Joint predictions are weighted by their forward probability. None for a single mask; zero if the masks are
        independent.
        """
        if not self.joint:
            return None
        weights = [math.exp(filling.forward) for filling in self.joint]
        apart = [filling.forward - filling.independent for filling in self.joint]
        return sum(w * a for w, a in zip(weights, apart, strict=True)) / sum(weights)


@dataclass
class TextEncoder(Predictor[str, Embedding, tuple[str, str]]):
    """A pre-trained encoder: vectors of texts and tokens, masked tokens, and whether two texts follow each other.

    `pooling`, `normalize` and `longest` are the defaults of `embed`, which puts `prompt` before each text, and makes
    both lower case if `lowercase`. An example to evaluate on is a text with one mask and the token expected there.
    """

    task: ClassVar = "pretraining"

    model: nn.Module
    tokenizer: MaskTokenizer
    device: torch.device
    notes: tuple[str, ...] = ()
    pooling: Pooling | None = None
    normalize: bool = False
    longest: int | None = None  # tokens of a text that are read
    lowercase: bool = False
    prompt: str = ""

    _settings_key: ClassVar[str] = "sentences"

    @property
    def decode_settings(self) -> SentenceConfig | None:
        """How texts become vectors, where the model's folder says it."""
        found = SentenceConfig(**{name: getattr(self, name) for name in SentenceConfig.model_fields})
        return None if found == SentenceConfig() else found

    def save(self, folder: str | Path) -> None:
        """Write a model folder, from which `heedful.load` makes the same predictor."""
        if any(isinstance(part, Int8Linear) for part in self.model.modules()):
            raise UserError(
                "a model in eight bits cannot be saved", todo="save the model, and call int8() on what is loaded"
            )
        super().save(folder)

    def predict(self, inputs: Sequence[str]) -> list[Embedding]:
        """The vector of each text, as `embed` gives it."""
        return [Embedding(text, vector) for text, vector in zip(inputs, self.embed(inputs), strict=True)]

    @torch.inference_mode()
    def _evaluate(self, data: Path | Sequence[tuple[str, str]]) -> Evaluation:
        self._require_masked_words()
        if isinstance(data, Path):
            documents = TextDocuments(files=[str(data)], between="blank_lines").documents(".", LONGEST)
            config = self._net.config
            rules = PairRules(
                unrelated=0.0 if config.pairs is None else 0.5,
                pairs=config.segments > 1,
                swapped=config.pairs == "sentence_order",
            )
            encoded = encode_documents(documents, self.tokenizer, self.room, rules)
            found = evaluate_pretraining(self.model, encoded, self.device, BATCH_TOKENS)
            return Evaluation.of(found.scores(rules.hidden, config.pairs), found.loss, found.hidden)
        right, total = 0, 0.0
        for text, word in data:
            row, ids = self._with_masks(text), self.tokenizer.ids([word])[0]
            masks = [at for at, number in enumerate(row) if number == self.tokenizer.mask]
            if len(masks) != 1 or len(ids) != 1:
                raise UserError(
                    "an example has one mask, and one token for it",
                    found=f"{len(masks)} masks in {shown(text)}, {len(ids)} tokens in {shown(word)}",
                )
            number = ids[0]
            logs = self._logs([row], masks)[0, 0]  # (V,)
            right, total = right + (int(logs.argmax()) == number), total - float(logs[number])
        return Evaluation({"masked_accuracy": 100 * right / len(data)}, total / len(data), len(data))

    @property
    def room(self) -> int:
        """The tokens of a text that are read, special ones included."""
        context: int = self._net.config.context
        return min(self.longest or context, context)

    def int8(self) -> TextEncoder:
        """The same in eight bits on the CPU: about twice as fast there, and a little less exact.

        A text gives the same alone and among others: only texts of the same length are then read together, since with
        padding, sums are rounded in another way, and what lies between two steps may fall on either.
        """
        return replace(self, model=int8(self.model), device=torch.device("cpu"))

    # -------------------------------------------------------------- vectors
    def embed(
        self,
        texts: Sequence[str],
        layers: str = "last",
        pooling: Pooling | None = None,
        normalize: bool | None = None,
    ) -> Tensor:
        """A vector for each text (N, D): the mean of its tokens' vectors, special ones included, or the first one's."""
        given = self.encoded(texts)
        self._warn(given.cut)
        return self.embedded(given, layers, pooling, normalize)

    def encoded(self, texts: Sequence[str]) -> TokenizedTexts:
        """The texts as the model reads them."""
        given = [self.prompt + text for text in require_list(texts)]
        rows, room = (
            self.tokenizer.ids([text.lower() for text in given] if self.lowercase else given),
            self.room - count_special_tokens(self.tokenizer, 1),
        )
        cut = sum(len(row) > room for row in rows)
        return TokenizedTexts([self.tokenizer.pair(row[:room])[0] for row in rows], cut)

    def embedded(
        self,
        texts: TokenizedTexts,
        layers: str = "last",
        pooling: Pooling | None = None,
        normalize: bool | None = None,
    ) -> Tensor:
        """The same for texts that are encoded; what is cut is known then."""
        how = pooling or self.pooling or "mean"
        found: Tensor | None = None
        for places, each, real in self._read(texts.rows):
            x = feature(layers, each).float()  # (B, T, D)
            x = x[:, 0] if how == "first" else mean(x, real)
            if found is None:
                found = x.new_empty(len(texts.rows), x.shape[1], device="cpu")
            found[torch.tensor(places)] = x.cpu()
        if found is None:
            return torch.empty(0, self.width(layers))
        return torch.nn.functional.normalize(found) if self._normalizes(normalize) else found

    def width(self, layers: str = "last") -> int:
        """How many numbers there are in a vector."""
        width: int = self._net.config.width
        return width * (4 if layers == "concat_last_four" else 1)

    def vectors(self, texts: Sequence[str], layers: str = "last") -> list[TokenEmbeddings]:
        """A vector for each token of each text, special ones included."""
        return [
            TokenEmbeddings(one.pieces, one.offsets, feature(layers, list(one.values)))
            for one in self.layers(texts)
        ]  # fmt: skip

    def layers(self, texts: Sequence[str]) -> list[TokenEmbeddings]:
        """The embeddings and what every block leaves of each token, (L + 1, T, D) of each text."""
        encodings, room = (
            self.tokenizer.encode_batch(require_list(texts)),
            self.room - count_special_tokens(self.tokenizer, 1),
        )
        self._warn(sum(len(one.ids) > room for one in encodings))
        rows = [self.tokenizer.pair(one.ids[:room])[0] for one in encodings]
        found, (before, after) = dict[int, TokenEmbeddings](), count_around(self.tokenizer)
        for places, each, real in self._read(rows):
            lengths = [each[0].shape[1]] * len(places) if real is None else real.sum(1).tolist()
            for row, (place, length) in enumerate(zip(places, lengths, strict=True)):
                values = torch.stack([x[row, :length] for x in each]).float().cpu()  # (L + 1, T, D)
                offsets = [*[SPECIAL] * before, *encodings[place].offsets[:room], *[SPECIAL] * after]
                found[place] = TokenEmbeddings(self.tokenizer.pieces(rows[place]), offsets, values)
        return [found[place] for place in range(len(rows))]

    @torch.inference_mode()
    def _read(self, rows: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], list[Tensor], Tensor | None]]:
        """The layers (B, T, D) of texts that are about as long: which ones, and which tokens are real if not all."""
        alike = any(isinstance(part, Int8Linear) for part in self.model.modules())
        for places in together([len(row) for row in rows], TOGETHER[self.device.type], alike):
            given = [(rows[place], self._segments(rows[place])) for place in places]
            some = pad_sequences(given, self.tokenizer.pad).to(self.device)
            segments = None if last_segment(self.tokenizer) is None else some.segments
            if len({len(rows[place]) for place in places}) == 1:
                yield places, self._net.layers(some.ids, segments), None
            else:
                yield places, self._net.layers(some.ids, segments, Padded(some.real)), some.real

    def _segments(self, row: Sequence[int]) -> list[int]:
        """The segments of one text, special tokens included."""
        last = last_segment(self.tokenizer)
        return [0] * len(row) if last is None else [*[0] * (len(row) - 1), last]

    def _normalizes(self, asked: bool | None) -> bool:
        return self.normalize if asked is None else asked

    def _warn(self, cut: int) -> None:
        if cut:
            warnings.warn(cut_note(cut, self.room), stacklevel=3)

    # -------------------------------------------------------------- masks
    @torch.inference_mode()
    def fill(self, text: str, top: int = 5) -> MaskPredictions:
        """The most probable tokens for each mask of a text; where there are several, how they depend on each other."""
        self._require_masked_words()
        row = self._with_masks(text)
        gaps = [place for place, number in enumerate(row) if number == self.tokenizer.mask]
        logs = self._logs([row], gaps)[0]  # (G, V)
        top = min(top, logs.shape[1])
        values, ids = logs.topk(top)  # (G, top)
        predictions = [
            [
                TokenPrediction(piece, math.exp(value))
                for piece, value in zip(self.tokenizer.pieces(some), those, strict=True)
            ]
            for some, those in zip(ids.tolist(), values.tolist(), strict=True)
        ]
        return MaskPredictions(text, predictions, self._joint(row, gaps, logs, top) if len(gaps) > 1 else [])

    def _require_masked_words(self) -> None:
        if self._net.masked_words is None:
            raise UserError(
                "this model has no head that predicts masked tokens",
                todo="name the folder of a model with its pre-training heads",
            )

    def _with_masks(self, text: str) -> list[int]:
        """The ids of a text in which the mask's name stands for the mask."""
        ids, name = self.tokenizer.encode_with_masks(text), self.tokenizer.mask_name
        row, _ = self.tokenizer.pair(ids)
        if self.tokenizer.mask not in ids:
            raise UserError(
                "there is no mask in this text", found=shown(text), expected=f"a text with {name} in it",
                todo=f"write {name} where a token is to be predicted",
            )  # fmt: skip
        if len(row) > self.room:
            raise UserError(
                "this text is too long for the model", found=f"{len(row):,} tokens", expected=f"at most {self.room:,}",
                todo="leave out what is far from the mask",
            )  # fmt: skip
        return row

    def _logs(self, rows: Sequence[Sequence[int]], gaps: Sequence[int]) -> Tensor:
        """The log-probability of every word (N, G, V) at some places of texts that are equally long."""
        some = pad_sequences([(row, self._segments(row)) for row in rows], self.tokenizer.pad).to(self.device)
        segments = None if last_segment(self.tokenizer) is None else some.segments
        return self._words(self._vectors(some.ids, segments)[:, list(gaps)])

    def _vectors(self, ids: Tensor, segments: Tensor | None) -> Tensor:
        """The last layer (N, T, D) of texts, in which masks are to be filled."""
        masks = (ids == self.tokenizer.mask).flatten().nonzero()[:, 0]
        found: Tensor = self._net.masked_vectors(ids, segments, None, masks)
        return found

    @torch.inference_mode()
    def hidden(self, row: Sequence[int], segments: Sequence[int], gaps: Sequence[int]) -> Tensor:
        """The log-probability of every word (G, V) at some places of a text or of a pair."""
        return self._words(self._pair(row, segments)[:, list(gaps)])[0]

    def _pair(self, row: Sequence[int], segments: Sequence[int]) -> Tensor:
        """The last layer (1, T, D) of a text or of a pair, special tokens included."""
        return self._vectors(*(torch.tensor([each], device=self.device) for each in (row, segments)))

    def _words(self, x: Tensor) -> Tensor:
        """The log-probability of every word (N, G, V) from the last layer (N, G, D) there."""
        logs = self._net.words(x.flatten(0, 1)).float()[:, : self.tokenizer.vocab].log_softmax(-1)  # (N * G, V)
        found: Tensor = logs.unflatten(0, x.shape[:2]).cpu()
        return found  # (N, G, V)

    def _joint(self, row: list[int], gaps: list[int], logs: Tensor, top: int) -> list[JointPrediction]:
        """The likeliest fillings by each of the three counts, by their likelihood ahead."""
        alone = best_alone(logs, top)
        ahead, back = (self._chained(row, order, top) for order in (gaps, gaps[::-1]))
        tried = dict.fromkeys([*alone, *ahead, *(words[::-1] for words in back)])
        found = []
        for words in tried:
            spelled = tuple(self.tokenizer.pieces(words))
            apart = sum(float(logs[gap, number]) for gap, number in enumerate(words))
            there = [self._chain(row, gaps, words), self._chain(row, gaps[::-1], words[::-1])]
            found.append(JointPrediction(spelled, apart, *there))
        return sorted(found, key=lambda filling: -filling.forward)

    def _chained(self, row: list[int], order: Sequence[int], top: int) -> list[tuple[int, ...]]:
        """The most probable tokens for all masks that a beam search finds, mask by mask, with `top` beams."""
        beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for place, gap in enumerate(order):
            logs = self._logs([filled(row, order[:place], words) for _, words in beams], [gap])[:, 0]  # (N, V)
            values, ids = logs.topk(top)  # (N, top)
            longer = [
                (score + value, (*words, number))
                for (score, words), those, some in zip(beams, values.tolist(), ids.tolist(), strict=True)
                for value, number in zip(those, some, strict=True)
            ]
            beams = sorted(longer, reverse=True)[:top]
        return [words for _, words in beams]

    def _chain(self, row: list[int], order: Sequence[int], words: Sequence[int]) -> float:
        """The log-probability of words that are filled in one after another."""
        rows = [filled(row, order[:place], words) for place in range(len(order))]
        logs = self._logs(rows, order)  # (G, G, V)
        return sum(float(logs[place, place, number]) for place, number in enumerate(words))

    # -------------------------------------------------------------- sentences
    @torch.inference_mode()
    def follows(self, a: str, b: str) -> float:
        """How likely the second text follows the first; of a model that learned their order, rather than before it."""
        if self._net.config.pairs is None:
            raise UserError(
                "this model has no head for next-sentence or sentence-order prediction",
                todo="name the folder of a model with its pre-training heads",
            )
        first, second = self.tokenizer.ids([a, b])
        kept = truncate_pair(first, second, self.room - count_special_tokens(self.tokenizer, 2))
        self._warn(sum(len(short) < len(whole) for short, whole in zip(kept, (first, second), strict=True)))
        return self.following(*self.tokenizer.pair(*kept))

    @torch.inference_mode()
    def following(self, row: Sequence[int], segments: Sequence[int]) -> float:
        """How likely the second text of a pair follows the first."""
        return float(self._net.follows(self._pair(row, segments)[:, 0]).float().softmax(-1)[0, 0])


def feature(name: str, layers: Sequence[Tensor]) -> Tensor:
    """What a name stands for of the embeddings and of what each block leaves."""
    if name not in FEATURES:
        raise UserError("there are no such layers", where="layers", found=shown(name), expected=", ".join(FEATURES))
    if name.endswith("last_four") and len(layers) < 5:
        raise UserError(
            "this model has no four blocks", where="layers", found=f"{name}, of {len(layers) - 1}",
            expected="last, second_to_last, sum_all or first",
        )  # fmt: skip
    return FEATURES[name](layers)


def mean(x: Tensor, real: Tensor | None) -> Tensor:
    """The mean (B, D) of vectors (B, T, D) over those places that are real."""
    if real is None:
        return x.mean(1)
    share = real / real.sum(1, keepdim=True)  # (B, T)
    return torch.einsum("bt,btd->bd", share, x)


def together(lengths: Sequence[int], budget: int, alike: bool = False) -> Iterator[list[int]]:
    """The places of texts that are read together: about as long, and no more tokens than this with their padding.

    Where they are to be alike, they are equally long.
    """
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and ((len(batch) + 1) * lengths[place] > budget or (alike and lengths[place] > lengths[batch[0]])):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def filled(row: Sequence[int], gaps: Sequence[int], words: Sequence[int]) -> list[int]:
    """A text with words in some of its gaps."""
    found = list(row)
    for gap, number in zip(gaps, words, strict=False):
        found[gap] = number
    return found


def best_alone(logs: Tensor, top: int) -> list[tuple[int, ...]]:
    """The likeliest words for all gaps, as if they did not depend on each other; logs (G, V)."""
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for values, ids in zip(*(part.tolist() for part in logs.topk(top)), strict=True):
        longer = product(beams, zip(values, ids, strict=True))
        beams = sorted(((score + value, (*words, number)) for (score, words), (value, number) in longer), reverse=True)
        beams = beams[:top]
    return [words for _, words in beams]


def cut_note(cut: int, room: int) -> str:
    """A warning about texts that are longer than the model reads."""
    return f"{cut:,} {'text is' if cut == 1 else 'texts are'} longer than {room:,} tokens, and truncated"
