"""Beam search as a tree: what was looked at in each step, what was kept, and where it led.

C candidates of a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from pydantic import Field

from heedful.decode.search import Paths, Search
from heedful.errors import UserError
from heedful.explore.decoding import begun, end_of, goes_on, read, require_tokens, stated
from heedful.explore.inspect import source_ids, translates
from heedful.explore.packets import pack, unpack
from heedful.explore.views import Asked, Request

if TYPE_CHECKING:
    from heedful.explore.subjects import Explorer, Subject

TITLE = "Beam search"
ABOUT = "The search tree: in each step only the k best hypotheses are kept."

MOST_BEAMS, MOST_STEPS = 16, 200
BEAMS = 3  # at the least, where nobody asks for fewer: one alone is no tree
STEPS = 12  # of a language model, whose text has no end of its own
NEAR = 16  # tokens before a candidate that tell how it reads: whether it begins a word, say
PRUNED, KEPT, ENDED = range(3)


class Wanted(Asked):
    """A search: k hypotheses at a time, t paths returned, all of which begin with some tokens."""

    k: int | None = Field(None, ge=1, le=MOST_BEAMS)
    t: int | None = Field(None, ge=1, le=MOST_BEAMS)
    penalty: float | None = Field(None, ge=0, le=2)
    limit: int | None = Field(None, ge=1, le=MOST_STEPS)
    forced: tuple[Annotated[int, Field(ge=0, le=2**31 - 1)], ...] = Field((), max_length=MOST_STEPS)


@dataclass(frozen=True)
class Settled:
    """What a search is made with, after all."""

    k: int
    t: int
    penalty: float
    limit: int
    most: int  # the limit cannot be above it


@dataclass(frozen=True)
class Node:
    """One candidate: its token, the candidate that it goes on from, and what became of it."""

    token: int
    parent: int  # -1: the beginning
    step: int
    fate: int
    log: float
    score: float


def fits(subject: Subject) -> bool:
    return goes_on(subject)


def tree(explorer: Explorer, asked: Wanted) -> bytes:
    """All candidates of all steps, and the best paths."""
    subject = explorer.subject(asked.model)
    with subject.lock:
        how = settled(subject.predictor, asked)
        search = subject.predictor.steps(asked.text, how.k, how.t, how.penalty, how.limit, asked.forced)
        nodes, paths = grown(search, how.penalty)
        yours = judged(subject.predictor, asked, how.penalty)
    return pack(
        {
            "k": how.k, "t": how.t, "penalty": how.penalty, "limit": how.limit, "most": how.most,
            "forced": len(asked.forced), "forgotten": forgotten(subject.predictor, asked),
            "end": end_of(subject.predictor),
            "pieces": subject.predictor.tokenizer.pieces([one.token for one in nodes]),
            "texts": spelled(subject.predictor, asked, nodes), "paths": ranked(nodes, paths), "yours": yours,
        },
        **{name: np.array([getattr(one, name) for one in nodes], np.int32) for name in ("token", "parent", "step")},
        fate=np.array([one.fate for one in nodes], np.uint8),
        log=np.array([one.log for one in nodes], np.float32),
        score=np.array([one.score for one in nodes], np.float32),
    )  # fmt: skip


def wanted(explorer: Explorer, state: Mapping[str, Any]) -> Sequence[Request]:
    given = {name: state[name] for name in ("model", "text", "other") if state.get(name) is not None}
    asked = {**given, **stated(state, ("k", "t", "penalty", "limit"), ("forced",))}
    words, arrays = unpack(explorer.answer("beam", "tree", asked))
    searches = [asked, {**asked, "forced": []}]
    for k in range(1, 6):  # a reader moves a slider, or takes another way at one of the first forks
        searches.append({**asked, "k": k, **({"t": min(asked["t"], k)} if "t" in asked else {})})
    searches += [{**asked, "t": t} for t in range(1, words["k"] + 1)]
    nodes = [(int(token), int(parent)) for token, parent in zip(arrays["token"], arrays["parent"], strict=True)]
    first = [number for number, step in enumerate(arrays["step"]) if words["forced"] <= step < words["forced"] + 3]
    searches += [{**asked, "forced": [nodes[one][0] for one in path_to(nodes, number)]} for number in first[:24]]
    return [Request("beam", "tree", {name: value for name, value in one.items() if value != []}) for one in searches]


def settled(predictor: Any, asked: Wanted) -> Settled:
    """The settings of a search, the model's own where none are asked for."""
    require_tokens(predictor, asked.forced)
    if translates(predictor):
        source_ids(predictor, asked.text)
    most = min(predictor.room(asked.text), MOST_STEPS)
    limit = min(most, asked.limit or (most if translates(predictor) else STEPS))
    if len(asked.forced) > limit:
        raise UserError(
            "more tokens are given than may be written", where="forced", found=str(len(asked.forced)),
            expected=f"at most {limit}", todo="raise the limit, or go back",
        )  # fmt: skip
    if end_of(predictor) in asked.forced[:-1]:
        raise UserError("nothing follows the end of a text", where="forced", todo="go back")
    k = asked.k or min(max(BEAMS, predictor.settings.beams), MOST_BEAMS)
    t = asked.t or k
    if t > k:
        raise UserError("a search returns as many paths as it has beams at the most", found=str(t), expected=str(k))
    penalty = predictor.settings.length_penalty if asked.penalty is None else asked.penalty
    return Settled(k, t, penalty, limit, most)


def grown(search: Search, penalty: float) -> tuple[list[Node], Paths]:
    """The candidates of a search, step by step, and what it found."""
    nodes: list[Node] = []
    parents, number = [-1], 0
    while True:
        try:
            step = next(search)
        except StopIteration as end:
            paths: Paths = end.value
            return nodes, paths
        if bool(step.done[0]):
            continue
        scores = step.logs / torch.tensor(number + 1.0) ** penalty  # (1, C)
        parts = (step.tokens, step.parents, step.kept, step.ended, step.logs, scores)
        kept = []
        for token, parent, goes, ends, log, score in zip(*(part[0].tolist() for part in parts), strict=True):
            if log > -math.inf:  # what the rules forbid was never a candidate
                kept += [len(nodes)] if goes else []
                nodes.append(
                    Node(token, parents[parent], number, KEPT if goes else ENDED if ends else PRUNED, log, score)
                )
        parents, number = kept, number + 1


def path_to(nodes: Sequence[tuple[int, int]], number: int) -> list[int]:
    """The candidates from the first step to one of them, each given by its token and its parent."""
    path: list[int] = []
    while number >= 0:
        path.insert(0, number)
        number = nodes[number][1]
    return path


def spelled(predictor: Any, asked: Wanted, nodes: Sequence[Node]) -> list[str]:
    """The text that each candidate ends, from its first token on."""
    pairs = [(one.token, one.parent) for one in nodes]
    paths = [[nodes[one].token for one in path_to(pairs, number)] for number in range(len(nodes))]
    if translates(predictor):
        return [predictor.tokenizer.decode(ids) for ids in paths]
    before = begun(predictor, asked, ()).ids[1:][-NEAR:]
    return [predictor.text_after(before, ids) for ids in paths]


def ranked(nodes: Sequence[Node], paths: Paths) -> list[dict[str, Any]]:
    """The paths that a search returns, best first: the candidate each ends with, log p and score."""
    places = {(one.parent, one.token): number for number, one in enumerate(nodes)}
    found = []
    parts = (paths.tokens, paths.lengths, paths.logs, paths.scores)
    for tokens, length, log, score in zip(*(part[0].tolist() for part in parts), strict=True):
        if score > -math.inf:
            place = -1
            for token in tokens[:length]:
                place = places[place, token]
            found.append({"node": place, "log": log, "score": score})
    return found


def judged(predictor: Any, asked: Wanted, penalty: float) -> dict[str, Any] | None:
    """How likely a model finds the translation that a reader gives, where one is given."""
    if not translates(predictor) or not asked.other:
        return None
    with torch.inference_mode():
        _, logs = read(predictor, begun(predictor, asked, (predictor.tokenizer.eos,)))
    log = float(logs.sum())
    return {"tokens": len(logs), "log": log, "score": log / len(logs) ** penalty}


def forgotten(predictor: Any, asked: Wanted) -> int:
    """How many tokens of a text the model no longer sees."""
    return 0 if translates(predictor) else begun(predictor, asked, ()).forgotten


CALLS = {"tree": (Wanted, tree)}
