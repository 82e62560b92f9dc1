"""Beam search as a tree: the candidates of each step, those that were kept, and the hypotheses.

C candidates of a step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from pydantic import Field

from heedful.decode.search import Paths, Search
from heedful.errors import UserError
from heedful.explore import subjects
from heedful.explore.decoding import end_token, is_generator, next_logits, numbers_of, prefix_of, require_tokens
from heedful.explore.inspect import TextInput, is_translator, source_ids
from heedful.explore.openings import Highlight, on_text, quoted
from heedful.explore.packets import pack, unpack
from heedful.explore.views import Call, InputRequest, input_of

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Beam search"
ABOUT = "The search tree: in each step only the k best hypotheses are kept."

MOST_BEAMS, MOST_STEPS = 16, 200
EXAMPLES = 3  # to choose the first picture from
BEAMS = 3  # at least, by default: a single beam is no tree
STEPS = 12  # of a language model, by default
NEAR = 16  # tokens of context by which a candidate is decoded: whether it starts a word, for example
PRUNED, KEPT, ENDED = range(3)


class SearchRequest(InputRequest):
    """A search with k beams that returns t hypotheses, all of which start with the forced tokens."""

    k: int | None = Field(None, ge=1, le=MOST_BEAMS)
    t: int | None = Field(None, ge=1, le=MOST_BEAMS)
    penalty: float | None = Field(None, ge=0, le=2)
    limit: int | None = Field(None, ge=1, le=MOST_STEPS)
    forced: tuple[Annotated[int, Field(ge=0, le=2**31 - 1)], ...] = Field((), max_length=MOST_STEPS)


@dataclass(frozen=True)
class Settings:
    """The settings of a search with the defaults filled in."""

    k: int
    t: int
    penalty: float
    limit: int
    most: int  # the largest possible limit


@dataclass(frozen=True)
class Node:
    """One candidate: its token, its parent, and whether it was pruned, kept or finished."""

    token: int
    parent: int  # -1: the root
    step: int
    fate: int
    log: float
    score: float


fits = is_generator


def tree(subject: Subject, request: SearchRequest) -> bytes:
    """All candidates of all steps, and the best hypotheses."""
    predictor = subject.predictor
    with subject.lock:
        how = settings_of(predictor, request)
        search = predictor.steps(request.text, how.k, how.t, how.penalty, how.limit, request.forced)
        nodes, paths = build_tree(search, how.penalty)
        yours = score(predictor, request, how.penalty)
    return pack(
        {
            "k": how.k, "t": how.t, "penalty": how.penalty, "limit": how.limit, "most": how.most,
            "forced": len(request.forced),
            "forgotten": 0 if is_translator(predictor) else prefix_of(predictor, request, ()).dropped,
            "end": end_token(predictor), "pieces": predictor.tokenizer.pieces([one.token for one in nodes]),
            "texts": texts_of(predictor, request, nodes), "paths": ranked(nodes, paths), "yours": yours,
        },
        **{name: np.array([getattr(one, name) for one in nodes], np.int32) for name in ("token", "parent", "step")},
        fate=np.array([one.fate for one in nodes], np.uint8),
        log=np.array([one.log for one in nodes], np.float32),
        score=np.array([one.score for one in nodes], np.float32),
    )  # fmt: skip


def highlight(subject: Subject, given: TextInput) -> Highlight | None:
    """Where the best hypothesis leaves the path of a greedy search, which takes the most probable token."""
    predictor = subject.predictor
    request = SearchRequest(model=subject.name, text=given.text)
    with subject.lock:
        how = settings_of(predictor, request)
        nodes, paths = build_tree(predictor.steps(request.text, how.k, how.t, how.penalty, how.limit, ()), how.penalty)
    hypotheses = ranked(nodes, paths)
    if not hypotheses:
        return None
    best = [nodes[one] for one in path_to([(one.token, one.parent) for one in nodes], hypotheses[0]["node"])]
    likeliest = {one.parent: one for one in sorted(nodes, key=lambda one: one.log)}
    leaves = [(likeliest[one.parent], one) for one in best if likeliest[one.parent].log > one.log]
    if leaves:
        greedy, taken = max(leaves, key=lambda pair: pair[0].log - pair[1].log)
        names = predictor.tokenizer.pieces([greedy.token, taken.token])
        before = nodes[taken.parent].log if taken.parent >= 0 else 0.0
        each = [
            f"{quoted(name)} ({math.exp(one.log - before):.2f})"
            for name, one in zip(names, (greedy, taken), strict=True)
        ]
        why = (
            f"Because a greedy search would miss the best hypothesis: in step {taken.step + 1} it takes {each[0]}, "
            f"not {each[1]}."
        )
        return Highlight(1 + greedy.log - taken.log, why)
    if len(hypotheses) == 1:
        return None
    gap = hypotheses[0]["score"] - hypotheses[1]["score"]
    why = (
        f"Because the two best hypotheses are close: their scores differ by {gap:.2f}. "
        "A greedy search would find the best one, too."
    )
    return Highlight(1 / (1 + gap), why)


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    """The search of a state, those of other k and t, and those that force one of the first candidates."""
    given = {name: value for name, value in input_of(state).items() if value is not None}
    settings = {**given, **numbers_of(state, ("k", "t", "penalty", "limit"), ("forced",))}
    request = subjects.parse_request(SearchRequest, json.dumps(settings).encode())
    header, arrays = unpack(tree(subject, request))
    searches = [settings, {**settings, "forced": []}]
    for k in range(1, 6):
        searches.append({**settings, "k": k, **({"t": min(settings["t"], k)} if "t" in settings else {})})
    searches += [{**settings, "t": t} for t in range(1, header["k"] + 1)]
    nodes = [(int(token), int(parent)) for token, parent in zip(arrays["token"], arrays["parent"], strict=True)]
    first = [number for number, step in enumerate(arrays["step"]) if header["forced"] <= step < header["forced"] + 3]
    searches += [{**settings, "forced": [nodes[one][0] for one in path_to(nodes, number)]} for number in first[:24]]
    return [Call("beam", "tree", {name: value for name, value in one.items() if value != []}) for one in searches]


def settings_of(predictor: Any, request: SearchRequest) -> Settings:
    """The settings of a search, by default the predictor's own."""
    require_tokens(predictor, request.forced)
    if is_translator(predictor):
        source_ids(predictor, request.text)
    most = min(predictor.room(request.text), MOST_STEPS)
    limit = min(most, request.limit or (most if is_translator(predictor) else STEPS))
    if len(request.forced) > limit:
        raise UserError(
            "there are more forced tokens than the limit allows", where="forced", found=str(len(request.forced)),
            expected=f"at most {limit}", todo="raise the limit, or remove some",
        )  # fmt: skip
    if end_token(predictor) in request.forced[:-1]:
        raise UserError("no token can follow the end token", where="forced", todo="remove those after it")
    k = request.k or min(max(BEAMS, predictor.settings.beams), MOST_BEAMS)
    t = request.t or k
    if t > k:
        raise UserError("a search returns at most k hypotheses", where="t", found=str(t), expected=f"at most {k}")
    penalty = predictor.settings.length_penalty if request.penalty is None else request.penalty
    return Settings(k, t, penalty, limit, most)


def build_tree(search: Search, penalty: float) -> tuple[list[Node], Paths]:
    """The candidates of a search, step by step, and its hypotheses."""
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
            if log > -math.inf:  # the rules exclude the others
                kept += [len(nodes)] if goes else []
                nodes.append(
                    Node(token, parents[parent], number, KEPT if goes else ENDED if ends else PRUNED, log, score)
                )
        parents, number = kept, number + 1


def path_to(nodes: Sequence[tuple[int, int]], number: int) -> list[int]:
    """The indices from the first step to a candidate; each is given by its token and its parent."""
    path: list[int] = []
    while number >= 0:
        path.insert(0, number)
        number = nodes[number][1]
    return path


def texts_of(predictor: Any, request: SearchRequest, nodes: Sequence[Node]) -> list[str]:
    """The text of each candidate's hypothesis so far."""
    pairs = [(one.token, one.parent) for one in nodes]
    paths = [[nodes[one].token for one in path_to(pairs, number)] for number in range(len(nodes))]
    if is_translator(predictor):
        return [predictor.tokenizer.decode(ids) for ids in paths]
    before = prefix_of(predictor, request, ()).ids[1:][-NEAR:]
    return [predictor.text_after(before, ids) for ids in paths]


def ranked(nodes: Sequence[Node], paths: Paths) -> list[dict[str, Any]]:
    """The hypotheses that a search returns, best first: the last candidate, log p and score of each."""
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


def score(predictor: Any, request: SearchRequest, penalty: float) -> dict[str, Any] | None:
    """The log-probability and score of the user's own translation, if there is one."""
    if not is_translator(predictor) or not request.other:
        return None
    _, logs = next_logits(predictor, prefix_of(predictor, request, (predictor.tokenizer.eos,)))
    log = float(logs.sum())
    return {"tokens": len(logs), "log": log, "score": log / len(logs) ** penalty}


CALLS = {"tree": (SearchRequest, tree), "opening": on_text(highlight, EXAMPLES)}
