"""Greedy, sampling and beam search: one loop over one contract, as generators of steps.

A decoder is anything with `logits, state = decoder(tokens, state)`, tokens (R, T) -> logits (R, T, V), for any T >= 1.
Each search yields a `Step` for every token, from which its tree can be drawn, and returns `Paths`; `drain` runs it to
its end.

B sentences, W hypotheses of one, R = B * W rows, C candidates of one, L longest path, V vocabulary, P paths returned.
"""

import math
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from heedful.blocks.state import cached_length, make_room, map_tensors, regroup, reserve
from heedful.decode.graphs import Graphs
from heedful.decode.rules import Generated, Rule


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
    kept: Tensor  # continues as a hypothesis; these, in this order, are the parents of the next step
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
class Prompt:
    """The tokens before the first choice, for the rules: of tokens (B, P), the last `known` (B,) of each row.

    The last `chosen` (B,) of these were chosen by searches before this one.
    """

    tokens: Tensor
    known: Tensor
    chosen: Tensor

    @classmethod
    def nothing(cls, rows: int) -> "Prompt":
        none = torch.zeros(rows, dtype=torch.long)
        return cls(torch.zeros(rows, 0, dtype=torch.long), none, none)


@dataclass(frozen=True)
class Settings:
    """How a search chooses and stops."""

    eos: int
    rules: tuple[Rule, ...] = ()


Search = Generator[Step, None, Paths]


class Strategy(Hashable, Protocol):
    """A search strategy: its first state, how it continues by one token, and the paths it has found."""

    def begin(self, limit: Tensor, uniform: Tensor, given: Prompt) -> Any: ...

    def settle(self, logits: Tensor, frontier: Any) -> tuple[Any, Tensor | None, Tensor, Step]:
        """The new frontier, the rows of the state that hypotheses continue if not each its own, the next tokens (R, 1),
        and the step.
        """

    def done(self, frontier: Any) -> Tensor: ...

    def paths(self, frontier: Any) -> Paths: ...


def greedy(
    decoder: Decoder,
    state: Any,
    prefix: Tensor,
    limit: Tensor,
    eos: int,
    rules: Sequence[Rule] = (),
    graphs: Graphs | None = None,
    given: Prompt | None = None,
) -> Search:
    """The most likely token, each time."""
    return _search(
        decoder, state, prefix, limit, None, SingleHypothesis(Settings(eos, tuple(rules)), likeliest), graphs, given
    )


def sample(
    decoder: Decoder,
    state: Any,
    prefix: Tensor,
    limit: Tensor,
    eos: int,
    seeds: Sequence[int],
    rules: Sequence[Rule] = (),
    graphs: Graphs | None = None,
    given: Prompt | None = None,
) -> Search:
    """A token sampled from the model's distribution after the rules; a seed a row, so that the batch does not matter.

    The random numbers of a row continue where the searches before this one left off.
    """
    given = given or Prompt.nothing(len(seeds))
    room = int(limit.max())
    rows = [
        torch.rand(used + room, generator=torch.Generator().manual_seed(seed))[used:]
        for seed, used in zip(seeds, given.chosen.tolist(), strict=True)
    ]
    strategy = SingleHypothesis(Settings(eos, tuple(rules)), sampled)
    return _search(decoder, state, prefix, limit, torch.stack(rows), strategy, graphs, given)


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
    given: Prompt | None = None,
) -> Search:
    """Beam search: `beams` hypotheses at a time, the `top` best paths returned.

    A path's score is log p / length^penalty, its log-probability as the rules leave it. A sentence is done when as many
    paths as beams are finished and no open hypothesis beats the worst of them at its present length; with `exact`, at
    any length it could still reach.
    """
    if not 1 <= top <= beams:
        raise ValueError(f"top must lie between 1 and the number of beams, {beams}; got {top}")
    strategy = BeamSearch(Settings(eos, tuple(rules)), beams, top, penalty, exact)
    return _search(decoder, state, prefix, limit, None, strategy, graphs, given)


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
    uniform: Tensor | None,
    strategy: Strategy,
    graphs: Graphs | None,
    given: Prompt | None,
) -> Search:
    device, room = prefix.device, int(limit.max())
    uniform = torch.zeros(len(limit), 1) if uniform is None else uniform
    given = map_tensors(given or Prompt.nothing(len(limit)), lambda x: x.to(device))
    frontier = strategy.begin(limit.to(device), uniform.to(device), given)

    def advance(tokens: Tensor, state: Any, frontier: Any) -> tuple[Tensor, Any, Any, Step]:
        logits, state = decoder(tokens, state)
        frontier, rows, tokens, step = strategy.settle(logits[:, -1], frontier)
        return tokens, state if rows is None else regroup(state, rows), frontier, step

    first, past = (prefix, state, frontier), cached_length(state)
    if graphs is None or past:  # the first step of a continuation has too many shapes to capture
        tokens, state, frontier, step = advance(*first)
    else:
        tokens, state, frontier, step = graphs.run(strategy, advance, first)
    yield step
    done, have, begun = 1, 0, past + prefix.shape[1]
    while done < room:
        if graphs is not None and (used := begun + done) > have:
            have = max(2 * have, min(-(-(begun + room) // 32) * 32, 128), -(-used // 32) * 32)
            state = reserve(state, have)
            tokens, state, frontier = graphs.load(strategy, advance, (tokens, state, frontier))
        if graphs is None:
            if bool(strategy.done(frontier).all()):
                break
            tokens, state, frontier, step = advance(tokens, make_room(state, 1), frontier)
        else:
            if done % 8 == 0 and bool(
                strategy.done(frontier).all()
            ):  # checking synchronizes the device, so it is done seldom
                break
            step = graphs.replay()
        done += 1
        yield step
    return strategy.paths(frontier)


def _so_far(tokens: Tensor, chosen: Tensor, given: Prompt) -> Generated:
    """The tokens so far, for the rules: the prompt and the chosen tokens (R, L) of each row."""
    rows, count = len(tokens), given.tokens.shape[1]
    each = rows // len(given.tokens)
    before, known, earlier = (
        x if each == 1 else x.repeat_interleave(each, 0) for x in (given.tokens, given.known, given.chosen)
    )
    whole = torch.cat([before, tokens], 1) if count else tokens  # (R, P + L)
    return Generated(whole, (count - known)[:, None], count + chosen, (earlier + chosen)[:, None])


# ------------------------------------------------------------------ one hypothesis
@dataclass(frozen=True)
class Line:
    """The state of a search of one hypothesis."""

    tokens: Tensor  # (B, L) written in place
    logs: Tensor  # (B, 1)
    lengths: Tensor  # (B, 1)
    open: Tensor  # (B, 1)
    limit: Tensor  # (B, 1) tokens allowed
    uniform: Tensor  # (B, L) a number in [0, 1) for every token that is sampled
    chosen: Tensor  # () tokens chosen so far
    given: Prompt
    parents: Tensor  # (B, 1) zeros

    def ruled(self, logits: Tensor, rules: Sequence[Rule]) -> Tensor:
        """The logits (B, V) after the rules; the input is not changed."""
        if not rules:
            return logits.float()
        ruled, so_far = logits.to(torch.float32, copy=True), _so_far(self.tokens, self.chosen, self.given)
        for rule in rules:
            ruled = rule(ruled, so_far)
        return ruled


Choice = Callable[[Tensor, Line], Tensor]


def likeliest_at_once(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The token (B, 1) with the largest logit and its log-probability, in one pass over them."""
    from heedful.blocks.kernels import choices  # needs Triton, which comes with torch's GPU builds only

    return choices.likeliest(logits.float())  # (B, 1)


def likeliest(ruled: Tensor, line: Line) -> Tensor:
    """The token (B, 1) with the largest logit."""
    return ruled.argmax(-1, keepdim=True)


def sampled(ruled: Tensor, line: Line) -> Tensor:
    """The token (B, 1) sampled by inverting the cumulative distribution at the row's next uniform number."""
    mass = ruled.double().softmax(-1).cumsum(-1)  # (B, V)
    point = line.uniform.index_select(1, line.chosen[None]).double() * mass[:, -1:]  # (B, 1)
    return torch.searchsorted(mass, point, right=True).clamp(max=ruled.shape[1] - 1)


@dataclass(frozen=True)
class SingleHypothesis:
    """A single hypothesis, in few operations: what `BeamSearch` with one beam does."""

    settings: Settings
    choose: Choice

    def begin(self, limit: Tensor, uniform: Tensor, given: Prompt) -> Line:
        batch, room = len(limit), int(limit.max())
        tokens = torch.zeros(batch, room, dtype=torch.long, device=limit.device)  # (B, L)
        none, logs = tokens.new_zeros(batch, 1), torch.zeros(batch, 1, device=limit.device)
        start = torch.zeros((), dtype=torch.long, device=limit.device)
        return Line(tokens, logs, none, none == 0, limit[:, None], uniform, start, given, none.clone())

    def settle(self, logits: Tensor, line: Line) -> tuple[Line, None, Tensor, Step]:
        token, gain = self.chosen(logits, line)  # (B, 1)
        log, length = line.logs + gain, line.chosen + 1
        alive = line.open & (log > -math.inf)  # (B, 1)
        last = (token == self.settings.eos) | (length >= line.limit)  # (B, 1)
        ended, kept = alive & last, alive & ~last  # (B, 1)
        line.tokens.index_copy_(1, line.chosen[None], token * alive)
        step = Step(token, line.parents, log, kept, ended, ~line.open[:, 0])
        logs, lengths = torch.where(line.open, log, line.logs), line.lengths + alive  # (B, 1)
        after = Line(
            line.tokens, logs, lengths, kept, line.limit, line.uniform, length, line.given, line.parents
        )  # fmt: skip
        return after, None, token, step

    def chosen(self, logits: Tensor, line: Line) -> tuple[Tensor, Tensor]:
        """The token (B, 1) that comes next, and its log-probability; where rules leave nothing, nothing is chosen."""
        rules = self.settings.rules
        if logits.is_cuda and self.choose is likeliest and not rules:
            return likeliest_at_once(logits)
        ruled = line.ruled(logits, rules)  # (B, V)
        token = self.choose(ruled, line)  # (B, 1)
        wide = logits.float()  # (B, V)
        gain = wide.gather(-1, token) - wide.logsumexp(-1, keepdim=True)  # (B, 1)
        if rules:
            gain = gain.masked_fill(ruled.gather(-1, token) == -math.inf, -math.inf)
        return token, gain

    def done(self, line: Line) -> Tensor:
        return ~line.open

    def paths(self, line: Line) -> Paths:
        return Paths(line.tokens[:, None].clone(), line.lengths.clone(), line.logs.clone(), line.logs / line.lengths)


# ------------------------------------------------------------------ many hypotheses
@dataclass(frozen=True)
class Frontier:
    """The state of a beam search."""

    tokens: Tensor  # (B, W, L) of the open hypotheses
    logs: Tensor  # (B, W)
    pool: Paths  # the best finished paths, (B, W, L)
    over: Tensor  # (B,)
    limit: Tensor  # (B,) tokens allowed
    chosen: Tensor  # () tokens chosen so far
    given: Prompt


@dataclass(frozen=True)
class BeamSearch:
    """Beam search."""

    settings: Settings
    width: int
    top: int
    penalty: float
    exact: bool

    def begin(self, limit: Tensor, uniform: Tensor, given: Prompt) -> Frontier:
        batch, device = len(limit), limit.device
        tokens = torch.zeros(batch, self.width, int(limit.max()), dtype=torch.long, device=device)  # (B, W, L)
        logs = torch.full((batch, self.width), -math.inf, device=device)  # (B, W)
        pool = Paths(tokens.clone(), torch.zeros_like(logs, dtype=torch.long), logs.clone(), logs.clone())
        logs = logs.clone()
        logs[:, 0] = 0.0
        over, start = torch.zeros_like(limit, dtype=torch.bool), torch.zeros((), dtype=torch.long, device=device)
        return Frontier(tokens, logs, pool, over, limit, start, given)

    def settle(self, logits: Tensor, f: Frontier) -> tuple[Frontier, Tensor, Tensor, Step]:
        """Choose candidates, move finished ones to the pool and continue the best others."""
        batch, width, room = f.tokens.shape
        tokens, parents, logs = self.candidates(logits, f)  # (B, C)
        length = f.chosen + 1
        paths = f.tokens.gather(1, parents[:, :, None].expand(-1, -1, room))  # (B, C, L)
        paths = torch.where(torch.arange(room, device=logits.device) == f.chosen, tokens[:, :, None], paths)

        eos = tokens == self.settings.eos
        rank = torch.arange(tokens.shape[1], device=logits.device)
        open_logs = logs.masked_fill(eos, -math.inf)  # (B, C)
        if open_logs.shape[1] < width:
            open_logs = torch.cat([open_logs, open_logs.new_full((batch, width - open_logs.shape[1]), -math.inf)], 1)
        next_logs, place = (x[:, :width] for x in open_logs.sort(dim=1, descending=True, stable=True))  # (B, W)
        place = place.clamp(max=tokens.shape[1] - 1)
        kept = torch.zeros_like(eos).scatter(1, place, next_logs > -math.inf)  # (B, C)

        over = length >= f.limit  # (B,)
        ended = (eos & (rank < width) & (logs > -math.inf)) | (over[:, None] & kept)
        scores = (logs / length.float() ** self.penalty).masked_fill(~ended | f.over[:, None], -math.inf)  # (B, C)
        scores, best = torch.cat([f.pool.scores, scores], 1).topk(width, 1)  # (B, W)
        pool = Paths(
            torch.cat([f.pool.tokens, paths], 1).gather(1, best[:, :, None].expand(-1, -1, room)),
            torch.cat([f.pool.lengths, length.expand_as(tokens)], 1).gather(1, best),
            torch.cat([f.pool.logs, logs], 1).gather(1, best),
            scores,
        )
        reach = f.limit if self.exact else length  # the length at which an open hypothesis is compared
        hope = next_logs[:, 0] / reach.float() ** self.penalty  # (B,)
        done = f.over | over | (scores[:, -1] >= hope)

        # A captured step overwrites the state of the search.
        step = Step(tokens, parents, logs, kept & ~over[:, None], ended & ~f.over[:, None], f.over.clone())
        next_tokens = tokens.gather(1, place)  # (B, W)
        before = f.logs.shape[1] if logits.shape[0] == batch * width else 1
        rows = torch.arange(batch, device=logits.device)[:, None] * before + parents.gather(1, place)  # (B, W)
        frontier = Frontier(
            paths.gather(1, place[:, :, None].expand(-1, -1, room)), next_logs, pool, done, f.limit, length, f.given
        )
        return frontier, rows.flatten(), next_tokens.flatten()[:, None], step

    def candidates(self, logits: Tensor, f: Frontier) -> tuple[Tensor, Tensor, Tensor]:
        """The 2 W best continuations of all hypotheses together: W of them are sure not to end."""
        batch, vocab = f.tokens.shape[0], logits.shape[1]
        count, rules = min(2 * self.width, vocab), self.settings.rules
        ruled = logits.float().log_softmax(-1)  # (R, V)
        if rules:
            so_far = _so_far(f.tokens.flatten(0, 1)[:: f.tokens.shape[1] * batch // len(logits)], f.chosen, f.given)
            for rule in rules:
                ruled = rule(ruled, so_far)
        values, tokens = largest(ruled, count)  # (R, C)
        before = f.logs[:, : logits.shape[0] // batch]  # only one hypothesis at the first step
        logs = (values.unflatten(0, (batch, -1)) + before[:, :, None]).flatten(1)  # (B, W * C)
        logs, place = logs.topk(min(2 * self.width, logs.shape[1]), 1)  # (B, C)
        return tokens.unflatten(0, (batch, -1)).flatten(1).gather(1, place), place // count, logs

    def done(self, f: Frontier) -> Tensor:
        return f.over

    def paths(self, f: Frontier) -> Paths:
        return Paths(*(x[:, : self.top].clone() for x in (f.pool.tokens, f.pool.lengths, f.pool.logs, f.pool.scores)))


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
