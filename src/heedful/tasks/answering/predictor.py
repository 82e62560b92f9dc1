"""Extractive question answering: the loss, the search for the best span, and the predictor.

N windows, P tokens of a passage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from heedful.blocks.losses import Loss
from heedful.data.batch import IGNORE_INDEX
from heedful.data.formats.squad import JsonQuestions, Question, Squad, WindowsConfig
from heedful.data.labelled.answering import AnswerBatch, EncodedQuestions, best_windows, encode_questions
from heedful.data.tokenizers.base import MaskTokenizer
from heedful.tasks.predictor import Evaluation, Predictor, Result
from heedful.tasks.reading import layout_of
from heedful.training.span_metrics import answer_scores

BATCH_TOKENS = 16384  # tokens of a batch
CHUNK = 1024  # questions that are tokenized at a time

Floats = NDArray[np.float64]


def outputs(model: Any, batch: AnswerBatch) -> Tensor:
    """The start and end logits (N, P, 2) of each token of the passages."""
    layout = layout_of(batch.sequences)
    found: Tensor = model(batch.ids, batch.segments, layout, batch.begins, batch.sizes, batch.most)
    return found


def answer_loss(model: Any, batch: AnswerBatch) -> Loss:
    """The mean of the cross-entropies of the start and the end token, over the tokens of the passage."""
    start, end = outputs(model, batch).unbind(-1)
    sides = ((start, batch.starts), (end, batch.ends))
    losses = [F.cross_entropy(scores, at, ignore_index=IGNORE_INDEX, reduction="sum") for scores, at in sides]
    total = (losses[0] + losses[1]) / 2
    return Loss(total, total.detach(), (batch.starts != IGNORE_INDEX).sum())


@torch.inference_mode()
def mean_loss(model: Any, encoded: EncodedQuestions, device: torch.device) -> float:
    """The mean loss per answer over a set, of the answers that lie in one window."""
    batches = encoded.in_order(encoded.with_targets, BATCH_TOKENS)
    total = sum(answer_loss(model, batch.to(device)).plain.item() for batch, _ in batches)
    return total / max(1, len(encoded.with_targets))


@torch.inference_mode()
def passage_scores(model: Any, encoded: EncodedQuestions, device: torch.device) -> list[Floats]:
    """The start and end logits (P, 2) for each question, each token's from the window where it has most context."""
    windows: list[Floats] = [np.zeros((0, 2))] * len(encoded.firsts)
    for batch, rows in encoded.in_order(np.arange(len(encoded.firsts)), BATCH_TOKENS):
        scores = outputs(model, batch.to(device)).double().cpu().numpy()
        for row, found in zip(rows.tolist(), scores, strict=True):
            windows[row] = found[: encoded.sizes[row]]
    return [
        merge_windows(windows[begin:end], encoded.firsts[begin:end])
        for begin, end in zip(encoded.windows[:-1].tolist(), encoded.windows[1:].tolist(), strict=True)
    ]


def merge_windows(scores: Sequence[Floats], firsts: NDArray[np.int64]) -> Floats:
    """The logits (P, 2) of a passage from those of its windows, which start at the tokens `firsts`."""
    if len(scores) == 1:
        return scores[0]
    sizes = [len(each) for each in scores]
    token = np.arange(int(firsts[-1]) + sizes[-1])
    best = best_windows(list(zip(firsts.tolist(), sizes, strict=True)), len(token))
    return np.stack([scores[window][at] for window, at in zip(best, token - firsts[best], strict=True)])


class Span(NamedTuple):
    """Tokens from `start` to `end`, both included, and their probability among all possible answers."""

    start: int
    end: int
    probability: float


def best_spans(scores: Floats, longest: int, top: int) -> list[Span]:
    """The `top` most probable spans of a passage with logits (P, 2), best first, of at most `longest` tokens.

    The score of a span is the sum of its start and end logits; ties are broken by the first start, then by the length.
    """
    count = len(scores)
    sums = np.full((count, min(longest, count)), -np.inf)  # (P, tokens of the answer, less one)
    for extra in range(sums.shape[1]):
        sums[: count - extra, extra] = scores[: count - extra, 0] + scores[extra:, 1]
    flat = sums.ravel()
    if not flat.size:
        return []
    norm = flat.max() + np.log(np.exp(flat - flat.max()).sum())
    order = np.argsort(-flat, kind="stable")[:top]
    best = order[np.isfinite(flat[order])]
    starts, extra = np.divmod(best, sums.shape[1])
    probabilities = np.exp(flat[best] - norm)
    return [
        Span(*found) for found in zip(starts.tolist(), (starts + extra).tolist(), probabilities.tolist(), strict=True)
    ]


@dataclass(frozen=True, repr=False)
class Answer(Result):
    """A span of the passage as an answer, and its probability among all spans."""

    text: str
    start: int  # character
    end: int  # one past the last character
    probability: float


@dataclass
class QuestionAnswerer(Predictor[tuple[str, str], Answer | None, tuple[tuple[str, str], str | Sequence[str]]]):
    """Answers questions by a span of a passage; an input is (question, passage)."""

    task: ClassVar = "answering"

    model: nn.Module
    tokenizer: MaskTokenizer
    device: torch.device
    windows: WindowsConfig
    context: int
    notes: tuple[str, ...] = ()

    @property
    def decode_settings(self) -> WindowsConfig:
        """The windows over long passages, and the maximum length of an answer."""
        return self.windows

    def predict(self, inputs: Sequence[tuple[str, str]]) -> list[Answer | None]:
        """The best answer to each (question, passage); None if the passage is empty."""
        return [found[0] if found else None for found in self.answer(inputs)]

    def _evaluate(self, data: Path | Sequence[tuple[tuple[str, str], str | Sequence[str]]]) -> Evaluation:
        if isinstance(data, Path):
            kind = JsonQuestions if data.name.removesuffix(".gz").endswith(".jsonl") else Squad
            questions = kind(train=str(data), valid=str(data)).read("valid").questions
            inputs = [(one.question, one.passage) for one in questions]
            expected = [[answer.text for answer in one.answers] for one in questions]
        else:
            inputs = [example[0] for example in data]
            expected = [[answers] if isinstance(answers, str) else list(answers) for _, answers in data]
        found = ["" if best is None else best.text for best in self.predict(inputs)]
        return Evaluation.of(answer_scores(found, expected), None, len(inputs))

    def answer(self, questions: Sequence[tuple[str, str]], top: int = 1) -> list[list[Answer]]:
        """The `top` most probable answers to each (question, passage); none if the passage is empty."""
        if isinstance(questions, str) or any(isinstance(each, str) for each in questions):
            raise TypeError("pass a list of questions with their passages, as [(question, passage)]")
        found = []
        for start in range(0, len(questions), CHUNK):
            chunk = [Question("", question, passage, ()) for question, passage in questions[start : start + CHUNK]]
            encoded = encode_questions(chunk, self.tokenizer, self.context, self.windows)
            found += self.answers([question.passage for question in chunk], encoded, top)
        return found

    def answers(self, passages: Sequence[str], encoded: EncodedQuestions, top: int = 1) -> list[list[Answer]]:
        """The `top` most probable answers to each question of an encoded set."""
        all_scores = passage_scores(self.model, encoded, self.device)
        return [
            [
                Answer(
                    passage[(first := int(offsets[start, 0])) : (last := int(offsets[end, 1]))],
                    first,
                    last,
                    probability,
                )
                for start, end, probability in best_spans(scores, self.windows.longest, top)
            ]
            for passage, offsets, scores in zip(passages, encoded.offsets, all_scores, strict=True)
        ]
