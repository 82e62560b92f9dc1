"""A classifier on its own data: right and wrong texts by slices, and what in a text decides its class.

N texts, C classes, W words, M methods.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from heedful.data.batch import IGNORE_INDEX
from heedful.data.labelled.batches import encode_texts, truncate
from heedful.data.labelled.sequences import Sequences, pad_sequences
from heedful.explore import samples
from heedful.explore.head_settings import heads_of
from heedful.explore.labelled_sample import MOST, labelled_samples
from heedful.explore.packets import not_finite, pack
from heedful.explore.views import Call, HeadedRequest, InputRequest, ModelRequest, require_index
from heedful.extras.saliency import (
    attention_rollout,
    gradient_times_input,
    integrated_gradients,
    masked,
    methods_of,
)
from heedful.tasks.classification.predictor import TextClassifier, TextOrPair, outputs_of
from heedful.tasks.reading import layout_of

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Classifier"
ABOUT = "Where a classifier is right and wrong on its own data, and which words decide."

CHUNK = 50  # texts that are classified at a time
TOP = 12  # classes with their probabilities
STEPS = 32  # of integrated gradients
WORDS = 80  # that are left out one by one
UNITS = re.compile(r"\s*\S+")  # a word and the spaces before it


class RowsRequest(HeadedRequest):
    """The texts from one on, as many as are classified at a time."""

    start: int = Field(0, ge=0, le=MOST)


class LabelRequest(InputRequest):
    """A text, and the class that is explained: by default the most probable one."""

    label: int | None = Field(None, ge=0, le=100_000)


@dataclass(frozen=True)
class Rows:
    """The predictions (N, C) for some texts of the data, cached by the model."""

    probabilities: NDArray[np.float32]
    lengths: NDArray[np.int32]

    @property
    def size(self) -> int:
        return self.probabilities.nbytes + self.lengths.nbytes


@dataclass(frozen=True)
class Word:
    """A word of a text, its place in it, and the positions of its tokens."""

    text: str
    part: int  # 0: of the first text; 1: of the second
    span: tuple[int, int]  # with the spaces before it
    places: tuple[int, ...]


def fits(subject: Subject) -> bool:
    return subject.broken is None and isinstance(subject.predictor, TextClassifier)


# ------------------------------------------------------------------ the data
def begin(subject: Subject, request: ModelRequest) -> bytes:
    """The classes, how many texts of the data there are to show, and the methods of saliency."""
    found = labelled_samples.of(subject)
    about = {"split": found.split, "of": found.of, "count": len(found.examples), "chunk": CHUNK}
    return pack({"labels": list(subject.predictor.labels), **about, "methods": list(methods_of(subject.model))})


def rows(subject: Subject, request: RowsRequest) -> bytes:
    """Some texts with their class, the predicted one, and the probability of either."""
    some = labelled_samples.of(subject).examples[request.start : request.start + CHUNK]
    found, labels = scored(subject, request.start), list(subject.predictor.labels)
    right = np.array([labels.index(one.right) for one in some], np.int32)  # (N,)
    best = found.probabilities.argmax(-1).astype(np.int32)  # (N,)
    each = np.arange(len(some))
    return pack(
        {"texts": [one.text for one in some], "others": [one.other for one in some]},
        right=right, predicted=best, tokens=found.lengths,
        sure=found.probabilities[each, best], true=found.probabilities[each, right],
    )  # fmt: skip


def scored(subject: Subject, start: int) -> Rows:
    """The predictions for some texts of the data, cached."""

    def compute() -> Rows:
        some = [paired(one.text, one.other) for one in labelled_samples.of(subject).examples[start : start + CHUNK]]
        return classified(subject, some)

    return subject.cached(json.dumps(["classifier", start]), compute)


def classified(subject: Subject, texts: Sequence[TextOrPair]) -> Rows:
    """The probabilities of the classes of texts, and how many tokens each has."""
    predictor = subject.predictor
    if not texts:
        return Rows(np.zeros((0, len(predictor.labels)), np.float32), np.zeros(0, np.int32))
    pairs = [(one, None) if isinstance(one, str) else one for one in texts]
    encoded = encode_texts(pairs, np.full(len(pairs), IGNORE_INDEX), predictor.tokenizer, predictor.context)
    with subject.lock:
        logits = outputs_of(predictor.model, encoded, predictor.device)  # (N, C)
    if not bool(logits.isfinite().all()):
        raise not_finite()
    return Rows(logits.softmax(-1).numpy(), (encoded.lengths + encoded.lost).astype(np.int32))


def first(subject: Subject, request: ModelRequest) -> bytes:
    """The text to begin with, and why: the most confident mistake, or else the most doubtful text."""
    some = labelled_samples.of(subject).examples[:CHUNK]
    if not some:
        one = samples.default(subject.predictor)
        return pack(
            {"text": one.text, "other": one.other, "why": "This model has no data here: write a text of yours."}
        )
    shares, labels = scored(subject, 0).probabilities, list(subject.predictor.labels)
    best = shares.argmax(-1)
    wrong = [row for row, one in enumerate(some) if labels[best[row]] != one.right]
    row = max(wrong, key=lambda at: shares[at, best[at]]) if wrong else int(shares.max(-1).argmin())
    share = f"{shares[row, best[row]]:.0%}"
    where = f"the first {len(some)} texts of the {labelled_samples.of(subject).split} set"
    why = f"The most confident mistake among {where}: {labels[best[row]]} at {share}, and it is {some[row].right}."
    if not wrong:
        why = f"No mistake among {where}; of this one the model is least sure: {labels[best[row]]} at {share}."
    return pack({"text": some[row].text, "other": some[row].other, "why": why})


# ------------------------------------------------------------------ a text
def classes(subject: Subject, request: InputRequest) -> bytes:
    """The most probable classes of a text."""
    found = classified(subject, [paired(request.text, request.other)])
    best = np.argsort(-found.probabilities[0], kind="stable")[:TOP]
    context = subject.predictor.context
    cut = max(0, int(found.lengths[0]) - context) if context is not None else 0
    return pack(
        {"labels": [subject.predictor.labels[at] for at in best], "numbers": best.tolist(), "cut": cut},
        probabilities=found.probabilities[0, best],
    )


def saliency(subject: Subject, request: LabelRequest) -> bytes:
    """How much each word says for a class (M, W), and the sum over special tokens (M,), by each method.

    Integrated gradients begin at the text with all words masked, whose logit is `masked`.
    """
    text, found = read(subject, request)
    model, methods = subject.model, methods_of(subject.model)
    blank = masked(subject.predictor.tokenizer, text.ids)
    values = list[Tensor]()
    with subject.lock, torch.inference_mode(False):
        number, logits = explained(subject, text, request.label)
        for method in methods:
            if method == "gradient x input":
                values.append(gradient_times_input(model, text, number)[0])
            elif method == "integrated gradients":
                values.append(integrated_gradients(model, text, number, blank, STEPS)[0])
            else:
                values.append(attention_rollout(model, text)[0])
        start = Sequences(blank, text.segments, text.lengths, text.longest)
        before = logits_of(subject, start)[number]
    every = torch.stack(values).float().cpu()  # (M, T)
    sums = torch.stack([every[:, list(word.places)].sum(1) for word in found], 1) if found else every[:, :0]  # (M, W)
    if not bool(every.isfinite().all()):
        raise not_finite()
    return pack(
        {
            "label": number, "name": subject.predictor.labels[number], "methods": list(methods),
            "words": worded(request, found), "logit": float(logits[number]), "masked": float(before),
        },
        values=sums, special=every.sum(1) - sums.sum(1),
    )  # fmt: skip


def edits(subject: Subject, request: LabelRequest) -> bytes:
    """The probability of a class without each word (W,), and the class (W,) that is then predicted."""
    text, found = read(subject, request)
    with subject.lock:
        number, _ = explained(subject, text, request.label)
    some = found[:WORDS]
    whole = paired(request.text, request.other)
    shares = classified(subject, [whole, *(without(request, word) for word in some)]).probabilities
    return pack(
        {"label": number, "words": worded(request, found), "count": len(found)},
        whole=shares[:1, number], chances=shares[1:, number], predicted=shares[1:].argmax(-1).astype(np.int32),
    )  # fmt: skip


def read(subject: Subject, request: InputRequest) -> tuple[Sequences, list[Word]]:
    """The tokens of a text or a pair as the classifier reads them, and its words."""
    predictor, parts = subject.predictor, [request.text, *([] if request.other is None else [request.other])]
    encoded = [predictor.tokenizer.encode(part) for part in parts]
    ids = [one.ids for one in encoded]
    kept = truncate(ids[0], ids[1] if len(ids) > 1 else None, predictor.tokenizer, predictor.context)
    row, segments = predictor.tokenizer.pair(*kept)
    # The same with a mark for each token instead of its id, which shows where it stands.
    marks = [[-1 - 2 * at - part for at in range(len(kept[part] or ()))] for part in range(len(parts))]
    places = {mark: place for place, mark in enumerate(predictor.tokenizer.pair(*marks)[0]) if mark < 0}
    spans = [
        [(start, end, places[mark]) for mark, (start, end) in zip(marks[part], one.offsets, strict=False)]
        for part, one in enumerate(encoded)
    ]
    found = [
        Word(
            text[begin:end],
            part,
            (begin, end),
            tuple(at for first, last, at in spans[part] if first < end and begin < last),
        )
        for part, text in enumerate(parts)
        for begin, end in units(text, spans[part])
    ]
    return pad_sequences([(row, segments)], predictor.tokenizer.pad).to(predictor.device), found


def units(text: str, tokens: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """The words of a text with the spaces before them; of a single word, such as a Chinese sentence, its tokens."""
    found = [one.span() for one in UNITS.finditer(text)]
    return [(start, end) for start, end, _ in tokens if start < end] if len(found) == 1 and len(tokens) > 1 else found


def explained(subject: Subject, text: Sequences, label: int | None) -> tuple[int, Tensor]:
    """The class that is explained, and all logits (C,)."""
    logits = logits_of(subject, text)
    number = int(logits.argmax()) if label is None else label
    require_index("label", number, len(logits), "class")
    return number, logits


@torch.no_grad()
def logits_of(subject: Subject, text: Sequences) -> Tensor:
    """The logits (C,) of one text."""
    found: Tensor = subject.model(text.ids, text.segments, layout_of(text))[0].float().cpu()
    if not bool(found.isfinite().all()):
        raise not_finite()
    return found


def without(request: InputRequest, word: Word) -> TextOrPair:
    """The text without a word."""
    parts = [request.text, request.other]
    text = parts[word.part] or ""
    start, end = word.span
    parts[word.part] = text[:start] + text[end:] if start else text[end:].lstrip()
    return paired(str(parts[0]), parts[1])


def worded(request: InputRequest, words: Sequence[Word]) -> list[list[Any]]:
    """Each word with the spaces before it, the part that it is in, and the positions of the tokens that are read."""
    return [[word.text, word.part, word.places] for word in words]


def paired(text: str, other: str | None) -> TextOrPair:
    """One text or a pair, as classifiers take them."""
    return text if other is None else (text, other)


# ------------------------------------------------------------------ export
def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    """The data, and the text of a state, of which all is known."""
    model = {"model": subject.name}
    found = [Call("classifier", "begin", model), Call("classifier", "first", model)]
    found += [
        Call("classifier", "rows", {**model, **heads_of(state), "start": at})
        for at in range(0, len(labelled_samples.of(subject).examples), CHUNK)
    ]
    if state.get("text") is not None:
        given = {**model, **heads_of(state), "text": str(state["text"])}
        given |= {} if not state.get("other") else {"other": str(state["other"])}
        found += [Call("classifier", call, given) for call in ("classes", "saliency", "edits")]
    return found


CALLS = {
    "begin": (ModelRequest, begin), "rows": (RowsRequest, rows), "first": (ModelRequest, first),
    "classes": (InputRequest, classes), "saliency": (LabelRequest, saliency), "edits": (LabelRequest, edits),
}  # fmt: skip
