"""The arguments of a module's `forward`, by what they take.

B rows of a batch, T tokens, or other positions, of a row.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.contracts.settings import CallConfig
from heedful.errors import UserError

ROWS = (
    "input_ids", "tokens", "token_ids", "ids", "pixel_values", "images", "image", "src", "source", "x", "input",
    "inputs", "text", "idx",
)  # fmt: skip
MASKS = ("attention_mask", "src_key_padding_mask", "key_padding_mask", "padding_mask", "pad_mask", "mask", "real")
MEMORY_MASK = "memory_key_padding_mask"  # of torch's Transformer, which needs the mask of the source twice
LENGTHS = ("lengths", "length", "lens", "seq_lens", "input_lengths", "seq_lengths")
POSITIONS = ("position_ids", "positions", "pos")
CACHES = ("past_key_values", "cache", "past", "state", "hidden", "hx")
TARGETS = ("decoder_input_ids", "tgt", "target", "targets")
TRIPLES = ("query", "key", "value")  # of attention, which all take the rows
POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


@dataclass(frozen=True)
class Arguments:
    """The names of the arguments, by what they take."""

    signature: str
    rows: str
    same: tuple[str, ...]  # others that take the rows as well
    mask: str | None
    memory_mask: bool
    padding_is_true: bool
    integers: bool  # whether the mask is of 0 and 1, not of bools
    lengths: str | None
    positions: str | None
    cache: str | None
    targets: str | None
    required: tuple[str, ...]
    use_cache: bool
    batch_first: bool
    example: Mapping[str, Tensor]

    @property
    def described(self) -> str:
        """The arguments that are given, with what they are."""
        masks = f"{self.mask}={'padding' if self.padding_is_true else 'real'}" if self.mask else None
        given = (self.rows, *self.same, masks, self.lengths, self.targets, *self.example)
        needed = self.positions if self.positions in self.required else None
        return ", ".join(one for one in (*given, needed) if one)

    def fill(self, module: nn.Module, inputs: Tensor, real: Tensor | None, numbered: bool = False) -> dict[str, Tensor]:
        """The arguments for rows (B, T, ...) and which of them are real (B, T)."""
        moved, given = inputs if self.batch_first else inputs.transpose(0, 1), dict[str, Tensor]()
        weight = next(module.parameters(), inputs)
        for name, value in self.example.items():
            one = value.to(inputs.device, weight.dtype) if value.is_floating_point() else value.to(inputs.device)
            given[name] = one[:1].expand(len(inputs), *value.shape[1:])
        given |= dict.fromkeys((self.rows, *self.same), moved)
        if real is not None and self.mask:
            mask = ~real if self.padding_is_true else real
            given[self.mask] = mask.long() if self.integers else mask
            if self.memory_mask:
                given[MEMORY_MASK] = given[self.mask]
        if real is not None and self.lengths:
            given[self.lengths] = real.sum(1)
        if self.positions and real is not None and (numbered or self.positions in self.required):
            given[self.positions] = (real.cumsum(1) - 1).clamp(min=0)[:, -inputs.shape[1] :]
        if self.targets and self.targets not in given:
            given[self.targets] = target(inputs)
        return given

    def with_cache(self, cache: object) -> dict[str, object]:
        """The arguments for a cache, which is None before the first step."""
        given: dict[str, object] = {str(self.cache): cache}
        return given | ({"use_cache": True} if self.use_cache else {})


def target(inputs: Tensor) -> Tensor:
    """A short target (B, 3, ...) for an encoder-decoder, the same for all rows."""
    if inputs.is_floating_point():
        some = torch.linspace(-1, 1, 3 * inputs.shape[2], dtype=inputs.dtype, device=inputs.device)
        return some.view(1, 3, -1).expand(len(inputs), -1, -1)
    return torch.arange(1, 4, device=inputs.device).expand(len(inputs), -1)


def arguments_of(module: nn.Module, settings: CallConfig, example: Mapping[str, Tensor]) -> Arguments:
    """What the arguments of `forward` take, by the settings, else by their names."""
    signature = inspect.signature(module.forward)
    parameters = {name: one for name, one in signature.parameters.items() if one.kind in POSITIONAL}
    published = type(module).__module__.startswith("transformers.")
    named = {
        "rows": settings.rows, "mask": settings.mask, "lengths": settings.lengths, "positions": settings.positions,
        "cache": settings.cache,
    }  # fmt: skip
    for key, name in {**named, **{f"example {name}": name for name in example}}.items():
        if name is not None and name not in parameters:
            raise UserError(
                f"{type(module).__name__}.forward has no argument {name}", where=key,
                found=f"forward{signature}", expected=f"one of {', '.join(parameters)}",
            )  # fmt: skip
    if not parameters:
        raise UserError(
            "forward names no argument", where=type(module).__name__, found=f"forward{signature}",
            todo="wrap it in a module whose forward names what it takes: forward(self, input_ids, attention_mask)",
        )  # fmt: skip

    def find(known: tuple[str, ...], declared: str | None = None) -> str | None:
        return declared or next((one for one in known if one in parameters and one not in example), None)

    same = TRIPLES if settings.rows is None and all(name in parameters for name in TRIPLES) else ()
    rows = find((*(("query",) if same else ()), *ROWS), settings.rows) or next(iter(parameters))
    mask = find(MASKS, settings.mask)
    found = {
        "mask": mask if mask != rows else None, "lengths": find(LENGTHS, settings.lengths),
        "positions": find(POSITIONS, settings.positions), "cache": find(CACHES, settings.cache),
        "targets": find(TARGETS),
    }  # fmt: skip
    required = tuple(name for name, one in parameters.items() if one.default is inspect.Parameter.empty)
    known = {rows, *same, *example, *(name for name in found.values() if name)}
    if missing := [name for name in required if name not in known]:
        raise UserError(
            f"it is not known what the argument {missing[0]} takes", where=f"{type(module).__name__}.forward",
            found=f"forward{signature}", expected="arguments with defaults, or known names",
            todo=f"give an example: doctor(model, example={{'{missing[0]}': tensor}}), or --example FILE.safetensors",
        )  # fmt: skip
    means = settings.mask_means or ("padding" if "padding" in str(mask) or "pad" in str(mask) else "real")
    return Arguments(
        str(signature), rows, tuple(name for name in same if name != rows), found["mask"],
        MEMORY_MASK in parameters, means == "padding",
        published, found["lengths"], found["positions"], found["cache"], found["targets"], required,
        "use_cache" in parameters, rows_first(module, settings), example,
    )  # fmt: skip


def rows_first(module: nn.Module, settings: CallConfig) -> bool:
    """Whether rows come before positions; of torch's own layers, as they were built."""
    if settings.batch_first is not None:
        return settings.batch_first
    if not type(module).__module__.startswith("torch.nn."):
        return True
    return all(one.batch_first for one in module.modules() if isinstance(one, nn.MultiheadAttention | nn.RNNBase))
