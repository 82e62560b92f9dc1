"""Predictor of pre-trained encoders: embeddings of texts and tokens, masked tokens, and next-sentence prediction.

N texts, T tokens of a text, D width, E width of a text's vector, L layers, B texts of a batch, G masks, V vocabulary.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

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
from heedful.hub.dense import DenseLayers, joined_tensors
from heedful.hub.pooling import pool
from heedful.hub.sentence_transformers import Poolings, SentenceConfig, pooled_width
from heedful.tasks.predictor import Evaluation, Predictor, Result
from heedful.tasks.pretraining.joint import best_joint, chain_log_prob
from heedful.tasks.pretraining.loss import evaluate_pretraining

BATCH_SIZES = {"cpu": 2048, "cuda": 65536}  # tokens; batches on a CPU fit into its caches
PADDING = {"cpu": 20, "cuda": 65536}  # tokens of padding that take as long as another batch
BATCH_TOKENS, MAX_LINE = 16384, 1_000_000  # of an evaluation: tokens of a batch, and characters of a line
SPECIAL = (0, 0)  # the offsets of a special token


@dataclass(frozen=True)
class TokenizedTexts:
    """Token ids of texts, special tokens included, and the number of texts that were truncated to the context."""

    rows: list[list[int]]
    cut: int


@dataclass(frozen=True, repr=False)
class Embedding(Result):
    """The vector (D,) of a text."""

    text: str
    vector: Tensor  # (D,)


@dataclass(frozen=True, repr=False)
class TokenEmbeddings(Result):
    """The tokens of a text, their character offsets, and their vectors (T, D) or (L + 1, T, D)."""

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
    """A pre-trained encoder: embeddings of texts and tokens, masked tokens, and next-sentence prediction.

    `pooling`, `normalize` and `longest` are the defaults of `embed`, which puts `prompt` before each text and converts
    both to lower case if `lowercase`. The `dense` layers follow the default pooling of the last layer; vectors of
    other layers, or pooled otherwise, go without them. An example to evaluate on is a text with one mask and the
    expected token.
    """

    task: ClassVar = "pretraining"

    model: nn.Module
    tokenizer: MaskTokenizer
    device: torch.device
    notes: tuple[str, ...] = ()
    pooling: Poolings | None = None
    normalize: bool = False
    longest: int | None = None  # maximum number of tokens of a text
    lowercase: bool = False
    prompt: str = ""
    dense: DenseLayers = field(default_factory=DenseLayers)  # on the pooled vector of a text

    _settings_key: ClassVar[str] = "sentences"

    @property
    def decode_settings(self) -> SentenceConfig | None:
        """The settings of `embed`, if they are not the defaults."""
        names = SentenceConfig.model_fields.keys() - {"dense"}
        found = SentenceConfig(dense=self.dense.config, **{name: getattr(self, name) for name in names})
        return None if found == SentenceConfig() else found

    def __post_init__(self) -> None:
        super().__post_init__()
        self.dense.to(self.device).eval()

    @property
    def saved_tensors(self) -> dict[str, Tensor]:
        """The tensors of a model folder, those of Dense layers included."""
        return joined_tensors(super().saved_tensors, self.dense.state_dict())

    def save(self, folder: str | Path) -> None:
        """Write a model folder, from which `heedful.load` makes the same predictor."""
        if any(isinstance(part, Int8Linear) for part in self.model.modules()):
            raise UserError(
                "an int8 model cannot be saved", todo="save the original model, and call int8() after loading"
            )
        super().save(folder)

    def predict(self, inputs: Sequence[str]) -> list[Embedding]:
        """The vector of each text; see `embed`."""
        return [Embedding(text, vector) for text, vector in zip(inputs, self.embed(inputs), strict=True)]

    @torch.inference_mode()
    def _evaluate(self, data: Path | Sequence[tuple[str, str]]) -> Evaluation:
        self._check_masked_lm()
        if isinstance(data, Path):
            documents = TextDocuments(files=[str(data)], between="blank_lines").documents(".", MAX_LINE)
            config = self._net.config
            rules = PairRules(
                unrelated=0.0 if config.pairs is None else 0.5,
                pairs=config.segment_types > 1,
                swapped=config.pairs == "sentence_order",
            )
            encoded = encode_documents(documents, self.tokenizer, self.room, rules)
            found = evaluate_pretraining(self.model, encoded, self.device, BATCH_TOKENS)
            return Evaluation.of(found.scores(rules.hidden, config.pairs), found.loss, found.hidden)
        right, total = 0, 0.0
        for text, word in data:
            row, ids = self._masked_ids(text), self.tokenizer.ids([word])[0]
            masks = [at for at, number in enumerate(row) if number == self.tokenizer.mask]
            if len(masks) != 1 or len(ids) != 1:
                raise UserError(
                    "an example must have one mask and one token for it",
                    found=f"{len(masks)} masks in {shown(text)}, {len(ids)} tokens in {shown(word)}",
                )
            number = ids[0]
            logs = self._mask_log_probs([row], masks)[0, 0]  # (V,)
            right, total = right + (int(logs.argmax()) == number), total - float(logs[number])
        return Evaluation({"masked_accuracy": 100 * right / len(data)}, total / len(data), len(data))

    @property
    def room(self) -> int:
        """The maximum number of tokens of a text, special tokens included."""
        context: int = self._net.config.context
        return min(self.longest or context, context)

    def bfloat16(self) -> Self:
        """Convert the weights to bfloat16, and return this predictor.

        It is two to three times as fast on a GPU, or on a CPU with instructions for it (AVX512-BF16, AMX).
        """
        self.model.to(torch.bfloat16)
        return self

    def int8(self) -> TextEncoder:
        """A copy with int8 weights on the CPU: about twice as fast there, and slightly less exact.

        A text has the same vector in any batch: only texts of the same length are batched, since padding would change
        the rounding of sums, and a value between two quantization levels could then be rounded to either.
        """
        return replace(self, model=int8(self.model), dense=deepcopy(self.dense), device=torch.device("cpu"))

    # -------------------------------------------------------------- vectors
    def embed(
        self,
        texts: Sequence[str],
        layers: str = "last",
        pooling: Poolings | None = None,
        normalize: bool | None = None,
    ) -> Tensor:
        """A vector for each text (N, E), pooled over its tokens, special ones included."""
        given = self.tokenize(texts)
        self._warn(given.cut)
        return self.embed_tokenized(given, layers, pooling, normalize)

    def tokenize(self, texts: Sequence[str]) -> TokenizedTexts:
        """The token ids of texts, with `prompt` and special tokens, truncated to `room`."""
        given = [self.prompt + text for text in require_list(texts)]
        rows, room = (
            self.tokenizer.ids([text.lower() for text in given] if self.lowercase else given),
            self.room - count_special_tokens(self.tokenizer, 1),
        )
        cut = sum(len(row) > room for row in rows)
        return TokenizedTexts([self.tokenizer.pair(row[:room])[0] for row in rows], cut)

    def embed_tokenized(
        self,
        texts: TokenizedTexts,
        layers: str = "last",
        pooling: Poolings | None = None,
        normalize: bool | None = None,
    ) -> Tensor:
        """A vector for each tokenized text (N, E)."""
        how = pooling or self.pooling or "mean"
        dense = self._dense(layers, pooling)
        found: Tensor | None = None
        for places, each, real in self._read(texts.rows):
            x = feature(layers, each).float()  # (B, T, D)
            with torch.inference_mode():
                x = dense(pool(x, real, how))  # (B, E)
            if found is None:
                found = x.new_empty(len(texts.rows), x.shape[1], device="cpu")
            found[torch.tensor(places)] = x.cpu()
        if found is None:
            return torch.empty(0, self.width(layers, pooling))
        return torch.nn.functional.normalize(found) if self._normalizes(normalize) else found

    def width(self, layers: str = "last", pooling: Poolings | None = None) -> int:
        """The size of a vector."""
        width = int(self._net.config.width) * (4 if layers == "concat_last_four" else 1)
        return self._dense(layers, pooling).width(pooled_width(width, pooling or self.pooling))

    def _dense(self, layers: str, pooling: Poolings | None) -> DenseLayers:
        """The Dense layers that follow this pooling of these layers."""
        return self.dense if layers == "last" and pooling in (None, self.pooling) else DenseLayers()

    def vectors(self, texts: Sequence[str], layers: str = "last") -> list[TokenEmbeddings]:
        """A vector for each token of each text, special ones included."""
        return [
            TokenEmbeddings(one.pieces, one.offsets, feature(layers, list(one.values)))
            for one in self.layers(texts)
        ]  # fmt: skip

    def layers(self, texts: Sequence[str]) -> list[TokenEmbeddings]:
        """The embeddings and the output of every block (L + 1, T, D) for each text."""
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
        """Batches of texts of similar lengths: indices, all layers (B, T, D), and which tokens are real (None: all)."""
        equal = any(isinstance(part, Int8Linear) for part in self.model.modules())
        padding = 0 if equal else PADDING[self.device.type]
        for places in length_batches([len(row) for row in rows], BATCH_SIZES[self.device.type], padding):
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
            warnings.warn(truncation_note(cut, self.room), stacklevel=3)

    # -------------------------------------------------------------- masks
    @torch.inference_mode()
    def fill(self, text: str, top: int = 5) -> MaskPredictions:
        """The most probable tokens for each mask of a text; for several masks, also joint predictions."""
        self._check_masked_lm()
        row = self._masked_ids(text)
        masks = [place for place, number in enumerate(row) if number == self.tokenizer.mask]
        logs = self._mask_log_probs([row], masks)[0]  # (G, V)
        top = min(top, logs.shape[1])
        values, ids = logs.topk(top)  # (G, top)
        predictions = [
            [
                TokenPrediction(piece, math.exp(value))
                for piece, value in zip(self.tokenizer.pieces(some), those, strict=True)
            ]
            for some, those in zip(ids.tolist(), values.tolist(), strict=True)
        ]
        return MaskPredictions(text, predictions, self._joint(row, masks, logs, top) if len(masks) > 1 else [])

    def _check_masked_lm(self) -> None:
        if self._net.masked_words is None:
            raise UserError(
                "this model has no head that predicts masked tokens",
                todo="use the folder of a model with its pre-training heads",
            )

    def _masked_ids(self, text: str) -> list[int]:
        """The token ids of a text that contains the mask token by name."""
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
                todo="shorten the text around the mask",
            )  # fmt: skip
        return row

    def _mask_log_probs(self, rows: Sequence[Sequence[int]], masks: Sequence[int]) -> Tensor:
        """The log-probabilities (N, G, V) of all tokens at the masks of texts of equal length."""
        some = pad_sequences([(row, self._segments(row)) for row in rows], self.tokenizer.pad).to(self.device)
        segments = None if last_segment(self.tokenizer) is None else some.segments
        return self._token_log_probs(self._vectors(some.ids, segments)[:, list(masks)])

    def _vectors(self, ids: Tensor, segments: Tensor | None) -> Tensor:
        """The last layer (N, T, D) of texts, from which masks are predicted."""
        masks = (ids == self.tokenizer.mask).flatten().nonzero()[:, 0]
        found: Tensor = self._net.masked_vectors(ids, segments, None, masks)
        return found

    @torch.inference_mode()
    def masked_log_probabilities(self, row: Sequence[int], segments: Sequence[int], masks: Sequence[int]) -> Tensor:
        """The log-probabilities (G, V) of all tokens at some positions of a text or a pair."""
        return self._token_log_probs(self._pair(row, segments)[:, list(masks)])[0]

    def _pair(self, row: Sequence[int], segments: Sequence[int]) -> Tensor:
        """The last layer (1, T, D) of a text or a pair, special tokens included."""
        return self._vectors(*(torch.tensor([each], device=self.device) for each in (row, segments)))

    def _token_log_probs(self, x: Tensor) -> Tensor:
        """The log-probabilities (N, G, V) of all tokens, from the last layer (N, G, D)."""
        logs = self._net.words(x.flatten(0, 1)).float()[:, : self.tokenizer.vocab].log_softmax(-1)  # (N * G, V)
        found: Tensor = logs.unflatten(0, x.shape[:2]).cpu()
        return found  # (N, G, V)

    def _joint(self, row: list[int], masks: list[int], logs: Tensor, top: int) -> list[JointPrediction]:
        """The best joint predictions by each of the three probabilities, sorted by the forward one."""
        found = []
        for words in best_joint(self._mask_log_probs, row, masks, logs, top):
            independent = sum(float(logs[mask, number]) for mask, number in enumerate(words))
            forward = chain_log_prob(self._mask_log_probs, row, masks, words)
            backward = chain_log_prob(self._mask_log_probs, row, masks[::-1], words[::-1])
            found.append(JointPrediction(tuple(self.tokenizer.pieces(words)), independent, forward, backward))
        return sorted(found, key=lambda filling: -filling.forward)

    # -------------------------------------------------------------- sentences
    @torch.inference_mode()
    def follows(self, a: str, b: str) -> float:
        """The probability that the second text follows the first (with sentence-order prediction: not precedes it)."""
        if self._net.config.pairs is None:
            raise UserError(
                "this model has no head for next-sentence or sentence-order prediction",
                todo="use the folder of a model with its pre-training heads",
            )
        first, second = self.tokenizer.ids([a, b])
        kept = truncate_pair(first, second, self.room - count_special_tokens(self.tokenizer, 2))
        self._warn(sum(len(short) < len(whole) for short, whole in zip(kept, (first, second), strict=True)))
        return self.next_sentence_probability(*self.tokenizer.pair(*kept))

    @torch.inference_mode()
    def next_sentence_probability(self, row: Sequence[int], segments: Sequence[int]) -> float:
        """How likely the second text of a pair follows the first."""
        return float(self._net.follows(self._pair(row, segments)[:, 0]).float().softmax(-1)[0, 0])


def feature(name: str, layers: Sequence[Tensor]) -> Tensor:
    """The vectors with this name, computed from the embeddings and the outputs of the blocks."""
    if name not in FEATURES:
        raise UserError("there are no such layers", where="layers", found=shown(name), expected=", ".join(FEATURES))
    if name.endswith("last_four") and len(layers) < 5:
        raise UserError(
            "this model has fewer than four blocks", where="layers", found=f"{name}, of {len(layers) - 1}",
            expected="last, second_to_last, sum_all or first",
        )  # fmt: skip
    return FEATURES[name](layers)


def length_batches(lengths: Sequence[int], budget: int, padding: int) -> Iterator[list[int]]:
    """Batches of indices of texts of similar lengths: at most `budget` tokens, at most `padding` of them padding."""
    batch, real = list[int](), 0
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        whole = (len(batch) + 1) * lengths[place]
        if batch and (whole > budget or whole - real - lengths[place] > padding):
            yield batch
            batch, real = [], 0
        batch.append(place)
        real += lengths[place]
    if batch:
        yield batch


def truncation_note(cut: int, room: int) -> str:
    """A warning about truncated texts."""
    return f"{cut:,} {'text is' if cut == 1 else 'texts are'} longer than {room:,} tokens, and truncated"
