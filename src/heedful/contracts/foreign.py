"""How a module that is not ours is called: found out from its signature and a first call, or declared.

B rows of a batch, T tokens, or other positions, of a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heedful.contracts.outputs import flat, keep, pick
from heedful.contracts.refusals import RefusedError
from heedful.contracts.settings import CallConfig
from heedful.contracts.signature import Arguments, arguments_of
from heedful.contracts.subject import Between, Side, Subject, distance
from heedful.errors import UserError

CAUSAL = re.compile(r"GPT|Causal|LMHead|LanguageModel", re.IGNORECASE)
SIZE = 32  # rows and columns of an image
LARGEST = 10_000_000  # numbers in a row


class Kind(NamedTuple):
    """A kind of rows to try: its name, a row of a length, and whether it has positions."""

    name: str
    row: Callable[[int, torch.Generator], Tensor]
    sequence: bool = True
    pad: int = 0


def foreign_subjects(
    module: nn.Module, settings: CallConfig, example: Mapping[str, Tensor]
) -> tuple[tuple[Subject, ...], tuple[str, ...]]:
    """What the checks vary, and how the module is called, in words."""
    whole = arguments_of(module, settings, example)
    errors = list[str]()
    masks = (whole,) if whole.integers or not whole.mask else (whole, replace(whole, integers=True))
    for kind, names in product(kinds(module, whole, settings), masks):
        subject = Subject(names.rows, module, kind.row, caller(names, settings), settings.length)
        subject = replace(subject, sequence=kind.sequence, pad=kind.pad, unpadded="it takes neither a mask nor lengths")
        try:
            fitted = fit(subject, names, settings)
        except RefusedError as error:
            errors.append(f"{kind.name}: {error}")
            continue
        called = f"{type(module).__name__}({names.described if kind.sequence else names.rows}) on {kind.name}"
        every = (fitted, *targets(fitted, names, settings))
        return every, (called,)
    unknown = "nothing says what it reads: it has no embedding, linear, recurrent or convolutional layer"
    raise UserError(
        "this module cannot be called",
        where=f"{type(module).__name__}.forward",
        found=f"forward{whole.signature}\n" + ("\n".join(dict.fromkeys(errors)) or unknown),
        expected="rows of tokens, numbers or images as the first argument, the others optional or known by their names",
        todo="declare how it is called, such as rows=x vocab=100, or shape=[3,32,32]; see docs/how-to/doctor.md",
    )


# ------------------------------------------------------------------ kinds of rows
def kinds(module: nn.Module, names: Arguments, settings: CallConfig) -> Iterator[Kind]:
    """The kinds of rows that the module may read, the likeliest first."""
    if settings.shape is not None and prod(settings.shape) > LARGEST:
        raise UserError(
            "such rows are too large", where="shape", found=f"{prod(settings.shape):,} numbers a row",
            expected=f"at most {LARGEST:,}",
        )  # fmt: skip
    if settings.shape is not None and settings.vocab is not None:  # such as the characters of each word
        yield tokens(settings.vocab, padding(module, settings), settings.shape[1:])
        return
    if settings.shape is not None:
        yield numbers(settings.shape, settings.sequence if settings.sequence is not None else len(settings.shape) == 2)
        return
    about = module_settings(module)
    size = about.get("image_size")
    if isinstance(size, int) and names.rows in ("pixel_values", "images", "image", "x"):
        yield numbers((int(about.get("num_channels", 3)), size, size), False)
    if (vocab := settings.vocab or vocabulary(module)) is not None:
        yield tokens(vocab, padding(module, settings))
    for layer in module.modules():
        match layer:
            case nn.Conv2d():
                yield numbers((layer.in_channels, SIZE, SIZE), False)
            case nn.RNNBase():
                yield numbers((settings.length, layer.input_size), True)
            case nn.MultiheadAttention():
                yield numbers((settings.length, layer.embed_dim), True)
            case nn.Linear():
                yield numbers((settings.length, layer.in_features), True)
                yield numbers((layer.in_features,), False)
            case nn.Conv1d():
                yield numbers((settings.length, layer.in_channels), True)
                yield numbers((layer.in_channels, settings.length), False)
            case _:
                continue
        return


def numbers(shape: tuple[int, ...], sequence: bool) -> Kind:
    """Rows of random numbers; of a sequence, the first size is that of the longest."""
    name = f"numbers ({', '.join(['B', *(['T'] if sequence else []), *map(str, shape[sequence:])])})"

    def row(length: int, random: torch.Generator) -> Tensor:
        return torch.randn(*((length, *shape[1:]) if sequence else shape), generator=random)

    return Kind(name, row, sequence)


def tokens(vocab: int, pad: int, more: tuple[int, ...] = ()) -> Kind:
    """Rows of random tokens, none of which is padding; with `more`, several at each position."""
    usual = [one for one in range(min(vocab, 50_000)) if one != pad and one > 0]
    known = torch.tensor(usual if len(usual) > 1 else range(vocab))

    def row(length: int, random: torch.Generator) -> Tensor:
        return known[torch.randint(len(known), (length, *more), generator=random)]

    return Kind(f"tokens ({', '.join(map(str, ('B', 'T', *more)))}) below {vocab}", row, True, pad)


def module_settings(module: nn.Module) -> dict[str, Any]:
    """The settings of a module of transformers, which has them as `config`; of others, nothing."""
    if not type(module).__module__.startswith("transformers."):
        return {}
    config: Any = module.config
    found: dict[str, Any] = config.to_dict()
    return found


def vocabulary(module: nn.Module) -> int | None:
    """The number of tokens: of the settings, or the rows of the first embedding."""
    size = module_settings(module).get("vocab_size")
    embeddings = [one.num_embeddings for one in module.modules() if isinstance(one, nn.Embedding | nn.EmbeddingBag)]
    return size if isinstance(size, int) else embeddings[0] if embeddings else None


def padding(module: nn.Module, settings: CallConfig) -> int:
    """The token of padding."""
    pads = [one.padding_idx for one in module.modules() if isinstance(one, nn.Embedding)]
    known = (settings.pad, module_settings(module).get("pad_token_id"), *pads[:1], 0)
    return next(int(one) for one in known if one is not None)


# ------------------------------------------------------------------ calls
def caller(
    names: Arguments, settings: CallConfig, numbered: bool = False, every: bool = False
) -> Callable[[nn.Module, Tensor, Tensor | None], Tensor]:
    """A call with what the signature asks for; `numbered`: with positions that count real tokens alone."""

    def call(module: nn.Module, inputs: Tensor, real: Tensor | None) -> Tensor:
        given = names.fill(module, inputs, real, numbered)
        output = module(**given)
        if every:
            return flat(output, len(inputs), names.batch_first)
        found = pick(output, settings.output)
        return found if names.batch_first or found.dim() < 2 else found.transpose(0, 1)

    return call


def fit(subject: Subject, names: Arguments, settings: CallConfig) -> Subject:
    """The subject with all that first calls say about it: how long rows may be, whether outputs have positions."""
    longest = settings.length
    for length in (
        (*(one for one in (settings.length, 8, 6, 4, 3, 2) if one <= settings.length),) if subject.sequence else (1,)
    ):
        try:
            wide = subject.read(*subject.batch(subject.rows([length])))
            longest = length
            break
        except RefusedError:
            if length == 2 or not subject.sequence:
                raise
    less = min(3, longest - 1)
    short = subject.read(*subject.batch(subject.rows([less]))) if subject.sequence else wide
    aligned = subject.sequence and wide.dim() > 1 and (wide.shape[1], short.shape[1]) == (longest, less)
    every = caller(names, settings, every=True)
    found = replace(subject, longest=longest, aligned=aligned, sides=sides(subject, names, settings), every=every)
    found = replace(found, unpadded="" if found.sides else subject.unpadded)
    found = replace(found, causal=causal(subject.module, names, settings))
    if names.positions and names.positions not in names.required:
        found = replace(found, with_positions=caller(names, settings, numbered=True))
    return with_steps(found, names, settings)


def sides(subject: Subject, names: Arguments, settings: CallConfig) -> tuple[Side, ...]:
    """The sides on which rows can be padded."""
    if not subject.sequence or not (names.mask or names.lengths):
        return ()
    published = type(subject.module).__module__.startswith("transformers.")
    right = (names.lengths and not names.mask) or (published and not causal(subject.module, names, settings))
    either: tuple[Side, ...] = ("right", "left")
    chosen: dict[str, tuple[Side, ...]] = {"right": ("right",), "left": ("left",), "both": either}
    return chosen[settings.padding] if settings.padding else chosen["right" if right else "both"]


def causal(module: nn.Module, names: Arguments, settings: CallConfig) -> bool | None:
    """Whether no position may see later ones, as far as the settings and names say so."""
    if settings.causal is not None:
        return settings.causal
    about = module_settings(module)
    if about.get("is_decoder") or CAUSAL.search(type(module).__name__):
        return True
    return False if names.targets or about else None


def with_steps(subject: Subject, names: Arguments, settings: CallConfig) -> Subject:
    """The subject with steps, if a call returns a cache that the next one takes."""
    if not (names.cache and subject.sequence and subject.aligned) or names.targets:
        return subject

    published = bool(module_settings(subject.module))
    masked = published or names.mask in names.required  # of all tokens so far; else a mask is left out

    def advance(module: nn.Module, chunk: Tensor, cache: object, done: int) -> tuple[Tensor, object]:
        real = torch.ones(len(chunk), done, dtype=torch.bool, device=chunk.device) if masked else None
        output = module(**names.fill(module, chunk, real), **names.with_cache(cache))
        found = pick(output, settings.output)
        return found if names.batch_first else found.transpose(0, 1), keep(output, str(names.cache))

    def step(module: nn.Module, inputs: Tensor, sizes: Sequence[int], between: Between) -> Tensor:
        cache: object = None
        parts, done = list[Tensor](), 0
        for chunk in inputs.split(list(sizes), 1):
            done += chunk.shape[1]
            found, cache = advance(module, chunk, cache, done)
            parts.append(found)
            between()
        return torch.cat(parts, 1)

    try:
        _, cache = advance(subject.module, subject.batch(subject.rows([3, 3]))[0].to(subject.device), None, 3)
    except Exception:  # any: it is the user's code, and may take no cache under this name
        return subject
    if cache is None:
        return replace(subject, uncached="it returns no cache")
    if both_ways(subject):
        return replace(subject, uncached="positions see later ones")
    return replace(subject, step=step, chunked=published if settings.chunks is None else settings.chunks)


def both_ways(subject: Subject) -> bool:
    """Whether the first output depends on the last position, in a model that is not declared to be causal."""
    if subject.causal is not None:
        return not subject.causal
    rows = subject.rows([4, 4])
    one, other = rows[0], torch.cat([rows[0][:3], rows[1][3:]])
    return float(distance([subject.outputs([other])[0][:1]], [subject.outputs([one])[0][:1]]).max()) > 1e-5


def targets(subject: Subject, names: Arguments, settings: CallConfig) -> Iterator[Subject]:
    """The target of an encoder-decoder, which is causal, while its source stays the same."""
    if not names.targets or names.targets in names.example or subject.row(1, torch.Generator()).is_floating_point():
        return
    source = subject.rows([4], seed=11)[0]

    def call(module: nn.Module, inputs: Tensor, real: Tensor | None) -> Tensor:
        batch = source.to(inputs.device).expand(len(inputs), -1)
        given = names.fill(module, batch, torch.ones_like(batch, dtype=torch.bool))
        return pick(module(**{**given, str(names.targets): inputs}), settings.output)

    yield replace(
        subject, name=str(names.targets), call=call, causal=True, aligned=True, sides=(), every=None,
        with_positions=None, unpadded="targets are not padded",
    )  # fmt: skip
