"""Greedy, sampling and beam search: one loop over one contract, as generators of steps.

A decoder is anything with `logits, state = decoder(tokens, state)`, tokens (R, T) -> logits (R, T, V), for any T >= 1.
Each search yields a `Step` for every token, for whoever wants to draw the tree, and returns `Paths`; `drain` runs it to
its end.

B sentences, W hypotheses of one, R = B * W rows, C candidates of one, L longest path, V vocabulary, P paths returned.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from heedful.blocks.state import ahead, regroup, reserve
from heedful.decode.graphs import Graphs
from heedful.decode.rules import Rule


class Decoder(Protocol):
    """tokens (R, T) and a state -> logits (R, T, V) and the state after them."""

    def __call__(self, tokens: Tensor, state: Any, /) -> tuple[Tensor, Any]: ...


@dataclass(frozen=True)
class Step:
    """The candidates of one step, best first, each (B, C): token, hypothesis it continues, summed log-probability.

    On a GPU these are buffers that the next step overwrites: copy what you keep.
    """

    tokens: Tensor
    parents: Tensor
    logs: Tensor
    kept: Tensor  # goes on as a hypothesis; the kept ones, in this order, are the parents of the next step
    ended: Tensor  # became a finished path
    done: Tensor  # (B,): this sentence's search was over before the step


@dataclass(frozen=True)
class Paths:
    """The best paths of each sentence, best first."""

    tokens: Tensor  # (B, P, L), without the prefix; ends with eos unless the limit cut it
    lengths: Tensor  # (B, P)
    logs: Tensor  # (B, P) log p(path)
    scores: Tensor  # (B, P) the same after the length penalty


@dataclass(frozen=True)
class Frontier:
    """Where a search stands."""

    tokens: Tensor  # (B, W, L) of the open hypotheses
    logs: Tensor  # (B, W)
    pool: Paths  # the best finished paths, (B, W, L)
    done: Tensor  # (B,)
    limit: Tensor  # (B,) tokens allowed
    luck: Tensor  # (B, L) one number in [0, 1) for every choice by chance
    chosen: Tensor  # () tokens chosen so far


@dataclass(frozen=True)
class Settings:
    """How a search chooses and stops."""

    eos: int
    width: int = 1
    penalty: float = 1.0
    exact: bool = False
    rules: tuple[Rule, ...] = ()


Choice = Callable[[Tensor, Frontier, Settings], tuple[Tensor, Tensor, Tensor]]
Search = Generator[Step, None, Paths]


def greedy(
    decoder: Decoder,
    state: Any,
    prefix: Tensor,
    limit: Tensor,
    eos: int,
    rules: Sequence[Rule] = (),
    graphs: Graphs | None = None,
) -> Search:
    """The most likely token, each time."""
    return _search(decoder, state, prefix, limit, None, _likeliest, Settings(eos, rules=tuple(rules)), 1, graphs)


def sample(
    decoder: Decoder,
    state: Any,
    prefix: Tensor,
    limit: Tensor,
    eos: int,
    seeds: Sequence[int],
    rules: Sequence[Rule] = (),
    graphs: Graphs | None = None,
) -> Search:
    """A token drawn from the model's distribution after the rules; a seed a row, so that the batch does not matter."""
    room = int(limit.max())
    luck = torch.stack([torch.rand(room, generator=torch.Generator().manual_seed(seed)) for seed in seeds])  # (B, L)
    return _search(decoder, state, prefix, limit, luck, _by_luck, Settings(eos, rules=tuple(rules)), 1, graphs)


def beam(
    decoder: Decoder,
    state: Any,
    prefix: Tensor,
    limit: Tensor,
    eos: int,
    beams: int = 4,
    top: int = 1,
    penalty: float = 1.0,
    exact: bool = False,
    rules: Sequence[Rule] = (),
    graphs: Graphs | None = None,
) -> Search:
    """Beam search: `beams` hypotheses at a time, the `top` best paths returned.

    A path's score is log p / length^penalty. A sentence is done when as many paths as beams are finished and no open
    hypothesis beats the worst of them at its present length; with `exact`, at any length it could still reach.
    """
    if not 1 <= top <= beams:
        raise ValueError(f"top must lie between 1 and the number of beams, {beams}; got {top}")
    return _search(
        decoder, state, prefix, limit, None, _best, Settings(eos, beams, penalty, exact, tuple(rules)), top, graphs
    )


def drain(search: Search) -> Paths:
    """Run a search to its end."""
    while True:
        try:
            next(search)
        except StopIteration as end:
            paths: Paths = end.value
            return paths


# ------------------------------------------------------------------ the loop
@torch.inference_mode()
def _search(
    decoder: Decoder,
    state: Any,
    prefix: Tensor,
    limit: Tensor,
    luck: Tensor | None,
    choose: Choice,
    settings: Settings,
    top: int,
    graphs: Graphs | None,
) -> Search:
    device, room = prefix.device, int(limit.max())
    frontier = _begin(limit.to(device), luck, settings.width, room)

    def advance(tokens: Tensor, state: Any, frontier: Frontier) -> tuple[Tensor, Any, Frontier, Step]:
        logits, state = decoder(tokens, state)
        frontier, rows, tokens, step = _settle(logits[:, -1], frontier, choose, settings)
        return tokens, regroup(state, rows), frontier, step

    name = (choose, settings)
    first = (prefix, state, frontier)
    tokens, state, frontier, step = advance(*first) if graphs is None else graphs.run(name, advance, first)
    yield step
    done, have = 1, 0
    while done < room:
        if graphs is not None and (used := prefix.shape[1] + done) > have:
            have = max(2 * have, min(-(-(prefix.shape[1] + room) // 32) * 32, 128), -(-used // 32) * 32)
            state = reserve(state, have)
            tokens, state, frontier = graphs.load(name, advance, (tokens, state, frontier))
        if graphs is None:
            if bool(frontier.done.all()):
                break
            tokens, state, frontier, step = advance(tokens, ahead(state, 1), frontier)
        else:
            if done % 8 == 0 and bool(frontier.done.all()):  # asking stops the device, so ask seldom
                break
            step = graphs.replay()
        done += 1
        yield step
    pool = frontier.pool
    return Paths(*(x[:, :top].clone() for x in (pool.tokens, pool.lengths, pool.logs, pool.scores)))


def _begin(limit: Tensor, luck: Tensor | None, width: int, room: int) -> Frontier:
    batch, device = limit.shape[0], limit.device
    tokens = torch.zeros(batch, width, room, dtype=torch.long, device=device)  # (B, W, L)
    logs = torch.full((batch, width), -math.inf, device=device)  # (B, W)
    pool = Paths(tokens.clone(), torch.zeros_like(logs, dtype=torch.long), logs.clone(), logs.clone())
    logs = logs.clone()
    logs[:, 0] = 0.0
    luck = torch.zeros(batch, 1, device=device) if luck is None else luck.to(device)
    done, chosen = torch.zeros(batch, dtype=torch.bool, device=device), torch.zeros((), dtype=torch.long, device=device)
    return Frontier(tokens, logs, pool, done, limit, luck, chosen)


def _settle(logits: Tensor, f: Frontier, choose: Choice, s: Settings) -> tuple[Frontier, Tensor, Tensor, Step]:
    """Choose candidates, move finished ones to the pool and go on with the best others."""
    batch, width, room = f.tokens.shape
    tokens, parents, logs = choose(logits, f, s)  # (B, C)
    length = f.chosen + 1
    paths = f.tokens.gather(1, parents[:, :, None].expand(-1, -1, room))  # (B, C, L)
    paths = torch.where(torch.arange(room, device=logits.device) == f.chosen, tokens[:, :, None], paths)

    eos = tokens == s.eos
    rank = torch.arange(tokens.shape[1], device=logits.device)
    open_logs = logs.masked_fill(eos, -math.inf)  # (B, C)
    if open_logs.shape[1] < width:
        open_logs = torch.cat([open_logs, open_logs.new_full((batch, width - open_logs.shape[1]), -math.inf)], 1)
    next_logs, place = (x[:, :width] for x in open_logs.sort(dim=1, descending=True, stable=True))  # (B, W)
    place = place.clamp(max=tokens.shape[1] - 1)
    kept = torch.zeros_like(eos).scatter(1, place, next_logs > -math.inf)  # (B, C)

    over = length >= f.limit  # (B,)
    ended = (eos & (rank < width) & (logs > -math.inf)) | (over[:, None] & kept)
    scores = (logs / length.float() ** s.penalty).masked_fill(~ended | f.done[:, None], -math.inf)  # (B, C)
    scores, best = torch.cat([f.pool.scores, scores], 1).topk(width, 1)  # (B, W)
    pool = Paths(
        torch.cat([f.pool.tokens, paths], 1).gather(1, best[:, :, None].expand(-1, -1, room)),
        torch.cat([f.pool.lengths, length.expand_as(tokens)], 1).gather(1, best),
        torch.cat([f.pool.logs, logs], 1).gather(1, best),
        scores,
    )
    reach = f.limit if s.exact else length  # the length at which an open hypothesis is compared
    hope = next_logs[:, 0] / reach.float() ** s.penalty  # (B,)
    done = f.done | over | (scores[:, -1] >= hope)

    step = Step(tokens, parents, logs, kept & ~over[:, None], ended & ~f.done[:, None], f.done)
    next_tokens = tokens.gather(1, place)  # (B, W)
    before = f.logs.shape[1] if logits.shape[0] == batch * width else 1
    rows = (torch.arange(batch, device=logits.device)[:, None] * before + parents.gather(1, place)).flatten()  # (R,)
    frontier = Frontier(
        paths.gather(1, place[:, :, None].expand(-1, -1, room)), next_logs, pool, done, f.limit, f.luck, length
    )
    return frontier, rows, next_tokens.flatten()[:, None], step


# ------------------------------------------------------------------ choices: (R, V) logits -> (B, C) candidates
def _ruled(logits: Tensor, f: Frontier, s: Settings) -> tuple[Tensor, Tensor]:
    """The model's log-probabilities, and what the rules make of them; these may write -inf into both."""
    logs = ruled = logits.float().log_softmax(-1)  # (R, V)
    history = f.tokens.flatten(0, 1) if logs.shape[0] == f.tokens.shape[0] * f.tokens.shape[1] else f.tokens[:, 0]
    for rule in s.rules:
        ruled = rule(ruled, history, f.chosen)
    return logs, ruled


def _likeliest(logits: Tensor, f: Frontier, s: Settings) -> tuple[Tensor, Tensor, Tensor]:
    logs, ruled = _ruled(logits, f, s)
    token = ruled.argmax(-1, keepdim=True)  # (B, 1)
    return token, torch.zeros_like(token), f.logs + logs.gather(-1, token)


def _by_luck(logits: Tensor, f: Frontier, s: Settings) -> tuple[Tensor, Tensor, Tensor]:
    logs, ruled = _ruled(logits, f, s)
    mass = ruled.double().softmax(-1).cumsum(-1)  # (B, V)
    point = f.luck.index_select(1, f.chosen[None]).double() * mass[:, -1:]  # (B, 1)
    token = torch.searchsorted(mass, point, right=True).clamp(max=logits.shape[1] - 1)  # (B, 1)
    return token, torch.zeros_like(token), f.logs + logs.gather(-1, token)


def _best(logits: Tensor, f: Frontier, s: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """The 2 W best continuations of all hypotheses together: W of them are sure not to end."""
    batch, vocab = f.tokens.shape[0], logits.shape[1]
    count = min(2 * s.width, vocab)
    own, ruled = _ruled(logits, f, s)
    values, tokens = largest(ruled, count)  # (R, C)
    values = own.gather(1, tokens).masked_fill(values == -math.inf, -math.inf)  # rules choose; the model scores
    before = f.logs[:, : logits.shape[0] // batch]  # only one hypothesis at the first step
    logs = (values.unflatten(0, (batch, -1)) + before[:, :, None]).flatten(1)  # (B, W * C)
    logs, place = logs.topk(min(2 * s.width, logs.shape[1]), 1)  # (B, C)
    return tokens.unflatten(0, (batch, -1)).flatten(1).gather(1, place), place // count, logs


def largest(x: Tensor, count: int, group: int = 128) -> tuple[Tensor, Tensor]:
    """`x.topk(count)` for long rows: the count largest lie in the count groups with the largest maxima."""
    rows, length = x.shape
    groups = length // group
    if groups < 4 * count:
        return tuple(x.topk(count, 1))  # type: ignore[return-value]
    body = x[:, : groups * group].unflatten(1, (groups, group))  # (R, groups, group)
    best = body.amax(-1).topk(count, 1).indices  # (R, count)
    rest = torch.arange(groups * group, length, device=x.device).expand(rows, -1)
    places = (best[:, :, None] * group + torch.arange(group, device=x.device)).flatten(1)
    places = torch.cat([places, rest], 1)  # (R, count * group + rest)
    values, at = x.gather(1, places).topk(count, 1)
    return values, places.gather(1, at)
