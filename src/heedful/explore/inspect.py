"""A model and an input, looked into: which tokens it reads, and what passes its taps while it reads them.

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

from heedful.blocks.taps import taps, watch
from heedful.config import Config
from heedful.data.tokenizers.base import MaskTokenizer
from heedful.data.tokenizers.lm_tokenization import codec_of
from heedful.errors import UserError
from heedful.explore.capabilities import Aligns, Encodes, Masks, Translates, Writes, part_of
from heedful.tasks.translation.predictor import TooLongError

WEIGHTS = "weights"  # of the tap that shows where an attention looks


class Given(Config):
    """What the page gives a model to read: one text, or two.

    The second is the other sentence of a pair, or a translation; where there is none, the model writes it itself.
    """

    text: str
    other: str | None = None


@dataclass(frozen=True)
class Token:
    """One token: how it reads, its id, and of which text it is: 0 or 1, or None where it is of neither."""

    piece: str
    id: int
    part: int | None = 0


@dataclass(frozen=True)
class Pass:
    """One go through the model: over the tokens of which side, looking at which other, and how."""

    asks: str
    sees: str  # where what it looks at is not its own past
    run: Callable[[], Tensor]
    ahead: bool = False  # whether a token sees none that follow it


@dataclass(frozen=True)
class Reading:
    """An input as a model reads it: the tokens of each side, and the passes that are made over them, in order."""

    sides: dict[str, list[Token]]
    passes: tuple[Pass, ...]


@dataclass(frozen=True)
class Look:
    """One kind of attention in a model: its taps from the first layer to the last, who asks and what is looked at."""

    name: str  # as the taps, with a star for the layer's number
    kind: str  # self, causal or cross
    asks: str  # a side of the reading
    sees: str
    taps: tuple[str, ...]
    heads: int

    def tap(self, layer: int) -> str:
        """The tap of a layer."""
        if layer >= len(self.taps):
            raise UserError(
                "there is no such layer", where="layer", found=str(layer + 1), expected=f"1 to {len(self.taps)}"
            )
        return self.taps[layer]

    @property
    def title(self) -> str:
        """What people call it."""
        where = self.name.split(".")[0] if self.name.startswith(("encoder", "decoder")) else ""
        return " ".join(part for part in (where, {"causal": "masked self"}.get(self.kind, self.kind)) if part)


@dataclass(frozen=True)
class Trace:
    """What was seen while a model read an input: every value at every tap, and what the last pass gave."""

    reading: Reading
    looks: tuple[Look, ...]
    values: dict[str, Tensor] = field(repr=False)  # by tap, the first row of the batch; steps of a decoder joined
    output: Tensor = field(repr=False)

    def weights(self, look: Look, layer: int) -> Tensor:
        """Where each head of a layer looks, (H, T, S), rows that sum to one."""
        return self.values[look.tap(layer)]

    @cached_property
    def size(self) -> int:
        """How many bytes it takes."""
        return sum(value.nbytes for value in self.values.values()) + self.output.nbytes


def attentions(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """The taps that show where a model looks, layer by layer, by a name with a star for the layer's number."""
    found: dict[str, list[str]] = {}
    every = taps(model)
    for name in every:
        above, _, last = name.rpartition(".")
        if last == WEIGHTS and f"{above}.scores" in every:
            found.setdefault(".".join("*" if part.isdecimal() else part for part in name.split(".")), []).append(name)
    return {name: tuple(each) for name, each in found.items()}


@torch.inference_mode()
def trace(model: nn.Module, reading: Reading, pattern: str = f"*.{WEIGHTS}") -> Trace:
    """Run a reading's passes, and keep what passes the taps that match."""
    values: dict[str, Tensor] = {}
    heard: dict[str, Pass] = {}
    output = torch.empty(0)
    for each in reading.passes:
        with watch(model, pattern) as seen:
            output = each.run()
        for name, parts in seen.all.items():
            # A recurrent decoder looks once a step, a Transformer's block once for all of them.
            values[name] = joined_steps(parts)
            heard[name] = each
    return Trace(reading, tuple(_looks(model, values, heard)), values, output)


def joined_steps(parts: Sequence[Tensor]) -> Tensor:
    """The first row of what passed a tap, its steps one after another along the last axis but one."""
    rows = [part[0] for part in parts]
    if rows[0].dim() == 1:  # what a cell carries from step to step
        return torch.stack(rows)
    return rows[0] if len(rows) == 1 else torch.cat(rows, -2)


def _looks(model: nn.Module, values: dict[str, Tensor], heard: dict[str, Pass]) -> Iterator[Look]:
    for name, each in attentions(model).items():
        shown = tuple(tap for tap in each if tap in values)
        if shown:
            weights, ran = values[shown[0]], heard[shown[0]]
            cross = ran.asks != ran.sees and isinstance(model, Aligns) and fnmatchcase(shown[0], model.alignment)
            kind = "cross" if cross else "causal" if ran.ahead else "self"
            sees = ran.sees if cross else ran.asks
            # The query that writes a word is named by that word where it looks at another side.
            asks = "written" if cross and ran.asks == "target" else ran.asks
            yield Look(name, kind, asks, sees, shown, weights.shape[0])


# ------------------------------------------------------------------ how each kind of model reads
def reading(predictor: Any, given: Given) -> Reading:
    """An input as this model reads it; what kind of model it is, is told by what it can do."""
    for able, read in READERS:
        if able(predictor):
            return read(predictor, given)
    raise UserError("this model reads no text that could be shown here")


def reads(predictor: Any) -> bool:
    """Whether texts can be shown to a model in this way."""
    return any(able(predictor) for able, _ in READERS)


def translates(predictor: Any) -> bool:
    """Whether a model reads one text and writes another."""
    return isinstance(predictor, Translates)


def writes(predictor: Any) -> bool:
    """Whether a model goes on with texts."""
    return isinstance(predictor, Writes)


def encoder_in(predictor: Any) -> Any:
    """The encoder of a model that reads texts both ways; None, where there is none."""
    below = part_of(predictor.model, "encoder")
    model = predictor.model if below is None else below
    return model if isinstance(predictor.tokenizer, Masks) and isinstance(model, Encodes) else None


def listens(predictor: Any) -> bool:
    """Whether a model reads texts both ways without a pair of sentences: a recurrent one."""
    return bool(predictor.model.config.role == "bidirectional")


def room(predictor: Any) -> int | None:
    """How many tokens a model that reads texts can read; None where there is no end to it."""
    encoder = None if translates(predictor) or writes(predictor) else encoder_in(predictor)
    found: int | None = predictor.context if encoder is None else encoder.config.context
    return found


def read_pair(predictor: Any, given: Given) -> Reading:
    """A text and its translation, which the model writes where none is given."""
    source = source_ids(predictor, given.text)
    if given.other is None:
        written = predictor.search([given.text])[0][0].ids
    else:
        written = [*predictor.tokenizer.ids([given.other])[0], predictor.tokenizer.eos]
    if len(written) > predictor.context:
        raise too_long(len(written), predictor.context)
    target = [predictor.tokenizer.bos, *written[:-1]]
    place = predictor.device
    state: list[Any] = []

    def read_source() -> Tensor:
        state[:] = [predictor.start(torch.tensor([source], device=place))[0]]
        return torch.empty(0)

    def write() -> Tensor:
        logits: Tensor = predictor.model(torch.tensor([target], device=place), state[0])[0]
        return logits

    sides = {
        name: named(ids, predictor.tokenizer.pieces(ids), part)
        for name, ids, part in (("source", source, 0), ("target", target, 1), ("written", written, 1))
    }
    return Reading(sides, (Pass("source", "source", read_source), Pass("target", "source", write, ahead=True)))


def source_ids(predictor: Any, text: str) -> list[int]:
    """The tokens of a text that is to be translated."""
    try:
        ids: list[int] = predictor.source_ids([text])[0]
    except TooLongError as error:
        raise too_long(error.tokens, error.context) from None
    return ids


def read_ahead(predictor: Any, given: Given) -> Reading:
    """A text from its beginning, each token seeing those before it."""
    return ahead(predictor, predictor.read_ids(given.text))


def ahead(predictor: Any, ids: list[int]) -> Reading:
    """The same of ids, which may begin with the start token."""
    if predictor.context is not None and len(ids) > predictor.context:
        raise too_long(len(ids), predictor.context)

    def read() -> Tensor:
        logits: Tensor = predictor.model(
            torch.tensor([ids], device=predictor.device), predictor.model.start(1, predictor.device)
        )[0]
        return logits

    first, *rest = named(ids, predictor.tokenizer.pieces(ids), 0)
    tokens = [replace(first, part=None) if ids[0] == predictor.codec.start_id else first, *rest]
    return Reading({"text": tokens}, (Pass("text", "text", read, ahead=True),))


def read_both_ways(predictor: Any, given: Given) -> Reading:
    """A text or a pair of them between special tokens, every token seeing every other; the mask is a hidden word."""
    row, segments = pair_ids(predictor.tokenizer, given, encoder_in(predictor).config.context)
    return both_ways(predictor, row, segments)


def both_ways(predictor: Any, row: list[int], segments: list[int]) -> Reading:
    """The same of ids and of the text that each is of."""
    encoder = encoder_in(predictor)

    def read() -> Tensor:
        given = (torch.tensor([each], device=predictor.device) for each in (row, segments))
        found: Tensor = encoder(*given)
        return found

    special = predictor.tokenizer.special - {predictor.tokenizer.mask, predictor.tokenizer.unk}
    tokens = [
        Token(piece, number, None if number in special else part)
        for piece, number, part in zip(predictor.tokenizer.pieces(row), row, segments, strict=True)
    ]
    return Reading({"text": tokens}, (Pass("text", "text", read),))


def pair_ids(tokenizer: MaskTokenizer, given: Given, room: int) -> tuple[list[int], list[int]]:
    """The ids of one text or two, special tokens included, and the text that each is of."""

    row, parts = tokenizer.pair(*(tokenizer.with_masks(text) for text in (given.text, given.other) if text is not None))
    if len(row) > room:
        raise too_long(len(row), room)
    return row, parts


def read_recurrent(predictor: Any, given: Given) -> Reading:
    """A text by a model that reads it ahead and back, without attention."""
    codec = codec_of(predictor.tokenizer)
    row = [codec.start_id, *codec.encode(given.text), codec.start_id]

    def read() -> Tensor:
        logits: Tensor = predictor.model(torch.tensor([row], device=predictor.device))[0]
        return logits

    return Reading({"text": named(row, predictor.tokenizer.pieces(row), 0)}, (Pass("text", "text", read),))


def named(ids: Sequence[int], pieces: Sequence[str], part: int | None) -> list[Token]:
    return [Token(piece, number, part) for piece, number in zip(pieces, ids, strict=True)]


def too_long(count: int, room: int) -> UserError:
    """The error of a text that does not fit into a model."""
    return UserError(
        "this text is too long for the model", where="text", found=f"{count:,} tokens", expected=f"at most {room:,}",
        todo="give a shorter one",
    )  # fmt: skip


READERS: tuple[tuple[Callable[[Any], Any], Callable[[Any, Given], Reading]], ...] = (
    (translates, read_pair),
    (writes, read_ahead),
    (lambda predictor: encoder_in(predictor) is not None, read_both_ways),
    (listens, read_recurrent),
)
