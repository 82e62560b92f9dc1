"""The activations of a model for an input: the tokens it reads, and the values at its taps.

T queries, S keys, H heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from heedful.blocks.block_values import BlockValues
from heedful.blocks.sparse import DENSE
from heedful.blocks.taps import taps, watch
from heedful.config import Config
from heedful.data.tokenizers.base import HasMask, MaskTokenizer
from heedful.data.tokenizers.lm_tokenization import codec_of
from heedful.errors import UserError
from heedful.explore.capabilities import Aligns, Encodes, HasBlocks, HasHeads, HasUnknown, part_of
from heedful.explore.packets import not_finite
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.translation.predictor import TooLongError, Translator

SLOTS = "slots"  # the side of keys that are not tokens
WEIGHTS = "weights"  # last part of the path of an attention weights tap


class TextInput(Config):
    """The input of a model: one text or two.

    The second is the other sentence of a pair, or a translation; without it, the model translates.
    """

    text: str
    other: str | None = None


@dataclass(frozen=True)
class Token:
    """A token: its text, its id, and the index of the input text it belongs to (None for special tokens)."""

    piece: str
    id: int
    part: int | None = 0

    def to_json(self) -> dict[str, Any]:
        return {"piece": self.piece, "id": self.id, "part": self.part}


@dataclass(frozen=True)
class Pass:
    """One forward pass: the sequences of its queries and of its cross-attention keys, and the function that runs it."""

    queries: str
    keys: str
    run: Callable[[], Tensor]
    causal: bool = False


@dataclass(frozen=True)
class Reading:
    """A tokenized input: the tokens of each sequence (`text`, `source`, `target` ...), and the forward passes."""

    sides: dict[str, list[Token]]
    passes: tuple[Pass, ...]


@dataclass(frozen=True)
class Attention:
    """One kind of attention in a model, such as the decoder's cross-attention: its taps, layer by layer."""

    name: str  # path of the taps, with * for the layer number
    kind: str  # self, causal or cross
    queries: str  # a key of `Reading.sides`, as `keys` is
    keys: str
    taps: tuple[str, ...]
    heads: int

    def tap(self, layer: int) -> str:
        """The path of a layer's tap."""
        if layer >= len(self.taps):
            expected = f"1 to {len(self.taps)}"
            raise UserError("the model has no such layer", where="layer", found=str(layer + 1), expected=expected)
        return self.taps[layer]

    @property
    def title(self) -> str:
        """Its name in the explorer, such as "decoder masked self"."""
        where = self.name.split(".")[0] if self.name.startswith(("encoder", "decoder")) else ""
        return " ".join(part for part in (where, {"causal": "masked self"}.get(self.kind, self.kind)) if part)


@dataclass(frozen=True)
class Trace:
    """The activations of a model for an input: the value at every tap, and the output of the last pass."""

    reading: Reading
    attentions: tuple[Attention, ...]
    values: dict[str, Tensor] = field(
        repr=False
    )  # by tap: the first row of the batch, with a decoder's steps concatenated
    output: Tensor = field(repr=False)
    blocks: dict[str, BlockValues] = field(default_factory=dict, repr=False)  # those that are in blocks

    def weights(self, attention: Attention, layer: int) -> Tensor:
        """The attention weights of a layer, (H, T, S); rows sum to one."""
        return self.values[attention.tap(layer)]

    def attention(self, name: str | None) -> Attention:
        """The attention of this name; the first one, if there is none."""
        return next((one for one in self.attentions if one.name == name), self.attentions[0])

    @cached_property
    def size(self) -> int:
        """Its size in bytes."""
        whole = sum(value.nbytes for value in self.values.values()) + self.output.nbytes
        return whole + sum(value.nbytes for value in self.blocks.values())


def attention_taps(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """The attention weights taps of a model, layer by layer, by their path with * for the layer number."""
    found: dict[str, list[str]] = {}
    every = taps(model)
    for name in every:
        above, _, last = name.rpartition(".")
        if last == WEIGHTS and f"{above}.scores" in every:
            found.setdefault(".".join("*" if part.isdecimal() else part for part in name.split(".")), []).append(name)
    return {name: tuple(each) for name, each in found.items()}


def attentions_in(model: nn.Module) -> Iterator[Attention]:
    """The kinds of attention of a model that reads no text, whose queries and keys are no tokens of one."""
    for name, each in attention_taps(model).items():
        path = each[0].rpartition(".")[0]
        cross = isinstance(model, Aligns) and fnmatchcase(path, model.alignment.rpartition(".")[0])
        kind = "cross" if cross else "causal" if name.startswith("decoder") else "self"
        module = model.get_submodule(path)
        yield Attention(name, kind, "", "", each, module.heads if isinstance(module, HasHeads) else 1)


def require_whole(model: nn.Module, reading: Reading) -> None:
    """Refuse a text whose weights would be in blocks."""
    longest = max(map(len, reading.sides.values()))
    if longest > DENSE and any(isinstance(module, HasBlocks) for module in model.modules()):
        raise UserError(
            "the text is too long for this view", found=f"{longest:,} tokens", expected=f"at most {DENSE:,}",
            todo="shorten it, or open the view Blocks",
        )  # fmt: skip


@torch.inference_mode()
def trace(model: nn.Module, reading: Reading, pattern: str = f"*.{WEIGHTS}") -> Trace:
    """Run the passes of a reading, and record the values at the taps that match."""
    values: dict[str, Tensor] = {}
    blocks: dict[str, BlockValues] = {}
    passes: dict[str, Pass] = {}
    output = torch.empty(0)
    for each in reading.passes:
        with watch(model, pattern) as seen:
            output = each.run()
        for name, parts in seen.all.items():
            # A recurrent decoder attends once per step, a Transformer's block once for all of them.
            values[name] = concatenate_steps(parts)
            passes[name] = each
        for name, some in seen.blocks.items():
            blocks[name], passes[name] = some.of_row(0), each
    heads = {name: value.shape[0] for name, value in values.items()}
    heads |= {name: value.shape[1] for name, value in blocks.items()}
    attentions = tuple(_attentions(model, heads, passes))
    # Where keys are projected along the length, a query attends to a few slots in place of tokens.
    slots = {one.name: values[one.taps[0]].shape[-1] for one in attentions if one.taps[0] in values}
    if any(slots.get(one.name, len(reading.sides[one.keys])) != len(reading.sides[one.keys]) for one in attentions):
        keys = [Token(f"slot {number + 1}", number) for number in range(max(slots.values()))]
        reading = replace(reading, sides={**reading.sides, SLOTS: keys})
        attentions = tuple(replace(one, keys=SLOTS) for one in attentions)
    return Trace(reading, attentions, values, output, blocks)


def concatenate_steps(parts: Sequence[Tensor]) -> Tensor:
    """The first row of the values at a tap, with its steps concatenated along the last axis but one."""
    rows = [part[0] for part in parts]
    if rows[0].dim() == 1:  # the state of a recurrent cell
        return torch.stack(rows)
    return rows[0] if len(rows) == 1 else torch.cat(rows, -2)


def _attentions(model: nn.Module, heads: dict[str, int], passes: dict[str, Pass]) -> Iterator[Attention]:
    for name, each in attention_taps(model).items():
        found = tuple(tap for tap in each if tap in heads)
        if found:
            ran = passes[found[0]]
            cross = ran.queries != ran.keys and isinstance(model, Aligns) and fnmatchcase(found[0], model.alignment)
            kind = "cross" if cross else "causal" if ran.causal else "self"
            # In cross-attention, a query is named by the token that it generates.
            queries = "written" if cross and ran.queries == "target" else ran.queries
            keys = ran.keys if cross else ran.queries
            yield Attention(name, kind, queries, keys, found, heads[found[0]])


# ------------------------------------------------------------------ readings by kind of model
def reading(predictor: Any, given: TextInput) -> Reading:
    """The input as this predictor's model reads it."""
    for fits, read in READERS:
        if fits(predictor):
            return read(predictor, given)
    raise UserError("this model does not read text")


def reads_text(predictor: Any) -> bool:
    """Whether a model reads text."""
    return any(fits(predictor) for fits, _ in READERS)


def is_translator(predictor: Any) -> bool:
    """Whether a model translates."""
    return isinstance(predictor, Translator)


def is_language_model(predictor: Any) -> bool:
    """Whether a model continues texts."""
    return isinstance(predictor, TextGenerator)


def encoder_of(predictor: Any) -> Any:
    """The bidirectional encoder of a model, or None."""
    below = part_of(predictor.model, "encoder")
    model = predictor.model if below is None else below
    return model if isinstance(predictor.tokenizer, HasMask) and isinstance(model, Encodes) else None


def is_bidirectional_rnn(predictor: Any) -> bool:
    """Whether a model is a bidirectional recurrent language model."""
    return bool(predictor.model.config.role == "bidirectional")


def context_of(predictor: Any) -> int | None:
    """The number of tokens that a model can read; None: unlimited."""
    encoder = None if is_translator(predictor) or is_language_model(predictor) else encoder_of(predictor)
    found: int | None = predictor.context if encoder is None else encoder.config.context
    return found


def read_translation(predictor: Any, given: TextInput) -> Reading:
    """A source and its translation, which the model generates if it is not given."""
    source = source_ids(predictor, given.text)
    if given.other is None:
        written = predictor.search([given.text])[0][0].ids
        if not written:  # no token was more probable than another: all scores are NaN
            raise not_finite()
    else:
        written = [*predictor.tokenizer.target_ids([given.other])[0], predictor.tokenizer.eos]
    if len(written) > predictor.context:
        raise too_long(len(written), predictor.context)
    target = [predictor.tokenizer.bos, *written[:-1]]
    state: list[Any] = []

    def encode() -> Tensor:
        state[:] = [predictor.start(torch.tensor([source], device=predictor.device))[0]]
        return torch.empty(0)

    def decode() -> Tensor:
        logits: Tensor = predictor.model(torch.tensor([target], device=predictor.device), state[0])[0]
        return logits

    sides = {
        "source": tokens_of(predictor, source, 0, predictor.tokenizer.source_pieces(source)),
        "target": tokens_of(predictor, target, 1),
        "written": tokens_of(predictor, written, 1),
    }
    return Reading(sides, (Pass("source", "source", encode), Pass("target", "source", decode, causal=True)))


def source_ids(predictor: Any, text: str) -> list[int]:
    """The ids of a text to be translated."""
    try:
        ids: list[int] = predictor.source_ids([text])[0]
    except TooLongError as error:
        raise too_long(error.tokens, error.context) from None
    return ids


def read_causal(predictor: Any, given: TextInput) -> Reading:
    """A text as a language model reads it: each token attends to those before it."""
    ids = predictor.prompt_ids(given.text)
    if predictor.context is not None and len(ids) > predictor.context:
        raise too_long(len(ids), predictor.context)

    def run() -> Tensor:
        logits: Tensor = predictor.model(torch.tensor([ids], device=predictor.device), predictor.start(1))[0]
        return logits

    first, *rest = tokens_of(predictor, ids)
    tokens = [replace(first, part=None) if ids[0] == predictor.codec.start_id else first, *rest]
    return Reading({"text": tokens}, (Pass("text", "text", run, causal=True),))


def read_bidirectional(predictor: Any, given: TextInput) -> Reading:
    """A text or a pair of them with special tokens, where every token attends to every other."""
    row, segments = pair_ids(predictor.tokenizer, given, encoder_of(predictor).config.context)
    return bidirectional_reading(predictor, row, segments)


def bidirectional_reading(predictor: Any, row: list[int], segments: list[int]) -> Reading:
    """A reading from token ids and their segments."""
    encoder = encoder_of(predictor)

    def run() -> Tensor:
        ids, parts = (torch.tensor([each], device=predictor.device) for each in (row, segments))
        masks = (ids[0] == predictor.tokenizer.mask).nonzero()[:, 0]
        vectors: Tensor = encoder.masked_vectors(ids, parts, None, masks)
        return vectors

    special = predictor.tokenizer.special - {predictor.tokenizer.mask, predictor.tokenizer.unk}
    tokens = [
        Token(piece, number, None if number in special else part)
        for piece, number, part in zip(predictor.tokenizer.pieces(row), row, segments, strict=True)
    ]
    return Reading({"text": tokens}, (Pass("text", "text", run),))


def pair_ids(tokenizer: MaskTokenizer, given: TextInput, context: int) -> tuple[list[int], list[int]]:
    """The ids of one text or two with special tokens, and their segments."""
    row, parts = tokenizer.pair(
        *(tokenizer.encode_with_masks(text) for text in (given.text, given.other) if text is not None)
    )
    if len(row) > context:
        raise too_long(len(row), context)
    return row, parts


def read_recurrent(predictor: Any, given: TextInput) -> Reading:
    """A text as a bidirectional recurrent language model reads it, between two start tokens."""
    codec = codec_of(predictor.tokenizer)
    row = [codec.start_id, *codec.encode(given.text), codec.start_id]

    def run() -> Tensor:
        logits: Tensor = predictor.model(torch.tensor([row], device=predictor.device))[0]
        return logits

    return Reading({"text": tokens_of(predictor, row)}, (Pass("text", "text", run),))


def vocabulary_of(predictor: Any) -> list[str]:
    """The pieces that a model reads: of a translator, those of the source."""
    tokenizer = predictor.tokenizer
    if is_translator(predictor):
        return list(tokenizer.source_pieces(range(tokenizer.source_vocab or tokenizer.vocab)))
    return list(tokenizer.pieces(range(tokenizer.vocab)))


def tokens_of(predictor: Any, ids: Sequence[int], part: int = 0, pieces: Sequence[str] | None = None) -> list[Token]:
    """The tokens of one text, from its ids; pieces of a source may be those of another vocabulary."""
    tokenizer = predictor.tokenizer
    special = tokenizer.special - ({tokenizer.unk} if isinstance(tokenizer, HasUnknown) else set())
    named = zip(tokenizer.pieces(ids) if pieces is None else pieces, ids, strict=True)
    return [Token(piece, one, None if one in special else part) for piece, one in named]


def too_long(count: int, context: int) -> UserError:
    """The error for a text that exceeds the model's context."""
    return UserError(
        "this text is too long for the model", where="text", found=f"{count:,} tokens",
        expected=f"at most {context:,}", todo="shorten the text",
    )  # fmt: skip


READERS: tuple[tuple[Callable[[Any], Any], Callable[[Any, TextInput], Reading]], ...] = (
    (is_translator, read_translation),
    (is_language_model, read_causal),
    (lambda predictor: encoder_of(predictor) is not None, read_bidirectional),
    (is_bidirectional_rnn, read_recurrent),
)
