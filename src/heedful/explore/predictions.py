"""The prediction of a model for an input and its losses, which can be computed again while heads are ablated.

T tokens, V vocabulary, M words, C classes, N losses, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from heedful.data.formats.squad import Question
from heedful.data.labelled.answering import encode_questions
from heedful.data.labelled.tagging import encode_words
from heedful.errors import UserError
from heedful.explore.inspect import (
    Reading,
    TextInput,
    bidirectional_reading,
    encoder_of,
    is_language_model,
    is_translator,
    pair_ids,
)
from heedful.tasks.answering import predictor as answering
from heedful.tasks.classification.numbers import MultiRegressor
from heedful.tasks.classification.predictor import TextClassifier, TextRegressor
from heedful.tasks.multi_label.predictor import MultiLabelClassifier
from heedful.tasks.tagging import predictor as tagging

TOP = 5  # candidates


@dataclass(frozen=True)
class Candidate:
    """One predicted text and its probability, if it has one."""

    text: str
    probability: float | None = None


@dataclass(frozen=True)
class Prediction:
    """What a model predicts for an input: functions that compute its candidates and its losses (N,) again."""

    what: str
    measure: str  # what the mean of the losses is
    pieces: list[str]  # the text of each loss
    candidates: Callable[[], list[Candidate]]
    losses: Callable[[], Tensor]
    masked: int | None = None  # the position of the masked token


def prediction_of(predictor: Any, given: TextInput, reading: Reading, place: int | None = None) -> Prediction:
    """The prediction of a model; `place` is the position to be masked for a masked language model."""
    if is_translator(predictor):
        return translation(predictor, given, reading)
    if is_language_model(predictor):
        return next_token(predictor, reading)
    for kind, predict in by_kind():
        if isinstance(predictor, kind):
            return predict(predictor, given)
    if encoder_of(predictor).masked_words is not None:
        return masked_token(predictor, given, place)
    return vectors(reading)


def by_kind() -> tuple[tuple[type, Callable[[Any, TextInput], Prediction]], ...]:
    """The predictions of models with a head, by the class of their predictor."""
    return (
        (TextClassifier, label), (TextRegressor, value), (MultiRegressor, values), (MultiLabelClassifier, labels),
        (tagging.TokenTagger, tags), (answering.QuestionAnswerer, span),
    )  # fmt: skip


def predicts(predictor: Any) -> bool:
    """Whether a model predicts something other than vectors."""
    if is_translator(predictor) or is_language_model(predictor):
        return True
    encoder = encoder_of(predictor)
    headed = any(isinstance(predictor, kind) for kind, _ in by_kind())
    return headed or (encoder is not None and encoder.masked_words is not None)


def translation(predictor: Any, given: TextInput, reading: Reading) -> Prediction:
    """The best translation; the loss is that of the given one, or of the full model's own."""
    target = reading.sides["written"]

    def candidates() -> list[Candidate]:
        best = predictor.search([given.text])[0][0]
        return [Candidate(best.text, math.exp(best.log_probability))]

    whose = "the full model's own translation" if given.other is None else "the given translation"
    return Prediction(
        "the translation", f"mean loss per token of {whose}, in nats", [token.piece for token in target], candidates,
        lambda: cross_entropies(run(reading)[0], [token.id for token in target]),
    )  # fmt: skip


def next_token(predictor: Any, reading: Reading) -> Prediction:
    """The most probable next tokens; the loss is that of the text's own tokens, each given those before it."""
    tokens, vocab = reading.sides["text"], predictor.tokenizer.vocab

    def logits() -> Tensor:
        return run(reading)[0, :, :vocab]

    return Prediction(
        "the next token", "mean loss per token of the text, in nats", [token.piece for token in tokens[1:]],
        lambda: most_probable(predictor, logits()[-1]),
        lambda: cross_entropies(logits()[:-1], [token.id for token in tokens[1:]]),
    )  # fmt: skip


def masked_token(predictor: Any, given: TextInput, place: int | None) -> Prediction:
    """The most probable tokens for a masked one, by default in the middle; the loss is that of the original token."""
    encoder, tokenizer = encoder_of(predictor), predictor.tokenizer
    row, segments = pair_ids(tokenizer, given, encoder.config.context)
    maskable = [at for at, one in enumerate(row) if one not in tokenizer.special]
    if not maskable:
        raise UserError("there is no token to mask", where="text", todo="write a few words")
    at = maskable[len(maskable) // 2] if place is None else place
    if at not in maskable:
        raise UserError("there is no token to mask at this position", where="place", found=str(at + 1))
    masked = bidirectional_reading(predictor, [*row[:at], tokenizer.mask, *row[at + 1 :]], segments)

    def logits() -> Tensor:
        found: Tensor = encoder.words(run(masked)[0, at : at + 1])[:, : tokenizer.vocab]
        return found  # (1, V)

    return Prediction(
        "the masked token", "loss of the masked token, in nats", tokenizer.pieces([row[at]]),
        lambda: most_probable(predictor, logits()[0]), lambda: cross_entropies(logits(), [row[at]]), at,
    )  # fmt: skip


def vectors(reading: Reading) -> Prediction:
    """The vectors of an encoder without a head; the loss is 1 - cosine of each with the full model's."""
    full = run(reading)[0].float()  # (T, D)

    def distance(now: Tensor, before: Tensor) -> Tensor:
        """1 - cosine, as half the squared distance of unit vectors: exactly 0 where nothing has changed."""
        return (normalize(now.double(), dim=-1) - normalize(before.double(), dim=-1)).square().sum(-1) / 2

    def candidates() -> list[Candidate]:
        away = float(distance(run(reading)[0].float().mean(0), full.mean(0)))
        return [Candidate(f"cosine {1 - away:.4f} with the full model's")]

    return Prediction(
        "the mean vector of the text", "mean of 1 − cosine of the tokens' vectors with the full model's",
        [token.piece for token in reading.sides["text"]], candidates, lambda: distance(run(reading)[0].float(), full),
    )  # fmt: skip


def label(predictor: Any, given: TextInput) -> Prediction:
    """The class; the loss is that of the class that the full model predicts."""

    def probabilities() -> dict[str, float]:
        found: dict[str, float] = predictor.classify([paired(given)])[0].probabilities
        return found

    full = predictor.classify([paired(given)])[0].label

    def candidates() -> list[Candidate]:
        return [Candidate(*one) for one in sorted(probabilities().items(), key=lambda one: -one[1])[:TOP]]

    def losses() -> Tensor:
        return -torch.tensor([probabilities()[full]], dtype=torch.float64).log()

    return Prediction("the class", "loss of the class predicted by the full model, in nats", [full], candidates, losses)


def labels(predictor: Any, given: TextInput) -> Prediction:
    """The labels; the loss is that of each decision of the full model, whether the text has a label."""

    def probabilities() -> dict[str, float]:
        found: dict[str, float] = predictor.predict([paired(given)])[0].probabilities
        return found

    full = predictor.predict([paired(given)])[0].labels

    def candidates() -> list[Candidate]:
        return [Candidate(*one) for one in sorted(probabilities().items(), key=lambda one: -one[1])[:TOP]]

    def losses() -> Tensor:
        each = [share if name in full else 1 - share for name, share in probabilities().items()]
        return -torch.tensor(each, dtype=torch.float64).log()

    return Prediction(
        "the labels", "mean loss of the full model's decision about each label, in nats", list(predictor.labels),
        candidates, losses,
    )  # fmt: skip


def value(predictor: Any, given: TextInput) -> Prediction:
    """A number; the loss is its squared difference from the full model's."""

    def predicted() -> float:
        return float(predictor.predict([paired(given)])[0].value)

    full = predicted()
    return Prediction(
        "the value", "squared difference from the full model's value", [f"{full:.4g}"],
        lambda: [Candidate(f"{predicted():.4g}")],
        lambda: torch.tensor([(predicted() - full) ** 2], dtype=torch.float64),
    )  # fmt: skip


def values(predictor: Any, given: TextInput) -> Prediction:
    """Several numbers; the losses are their squared differences from the full model's."""

    def predicted() -> dict[str, float]:
        found: dict[str, float] = predictor.predict([paired(given)])[0].values
        return found

    full = predicted()
    return Prediction(
        "the values", "mean squared difference from the full model's values", list(full),
        lambda: [Candidate(f"{name}: {value:.4g}") for name, value in predicted().items()],
        lambda: torch.tensor([(value - full[name]) ** 2 for name, value in predicted().items()], dtype=torch.float64),
    )  # fmt: skip


def tags(predictor: Any, given: TextInput) -> Prediction:
    """The tags of the words; the loss is that of the tags that the full model predicts."""
    text, spans = tagging.split(given.text)
    words = [text[start:end] for start, end in spans]
    if not words:
        raise UserError("there is no word to tag", where="text", todo="write a few words")
    encoded = encode_words([words], predictor.tokenizer, predictor.context)

    def logits() -> Tensor:
        found = torch.zeros(len(words), len(predictor.labels))  # (M, C)
        for batch, rows in encoded.in_order(tagging.BATCH_TOKENS):
            found[torch.from_numpy(rows)] = tagging.outputs(predictor.model, batch.to(predictor.device)).float().cpu()
        return found

    full = logits().argmax(-1).tolist()

    def candidates() -> list[Candidate]:
        best = logits().softmax(-1).max(-1)
        found = zip(words, best.indices.tolist(), best.values.tolist(), strict=True)
        return [Candidate(f"{word}: {predictor.labels[tag]}", p) for word, tag, p in found]

    return Prediction(
        "the tags", "mean loss per word of the tags predicted by the full model, in nats", words, candidates,
        lambda: cross_entropies(logits(), full),
    )  # fmt: skip


def span(predictor: Any, given: TextInput) -> Prediction:
    """The answer to a question; the loss is that of the full model's answer."""
    question = Question("", given.text, given.other or "", ())
    encoded = encode_questions([question], predictor.tokenizer, predictor.context, predictor.windows)

    def scores() -> Tensor:
        return torch.from_numpy(answering.passage_scores(predictor.model, encoded, predictor.device)[0])  # (T, 2)

    best = answering.best_spans(scores().numpy(), predictor.windows.longest, 1)
    if not best:
        raise UserError("there is no passage to find the answer in", where="other", todo="write it as the second text")

    def candidates() -> list[Candidate]:
        found = predictor.answers([question.passage], encoded, TOP)[0]
        return [Candidate(one.text, one.probability) for one in found]

    def losses() -> Tensor:
        return cross_entropies(scores().T, [best[0].start, best[0].end])

    measure = "mean loss of the start and the end of the full model's answer, in nats"
    return Prediction("the answer", measure, ["start", "end"], candidates, losses)


def run(reading: Reading) -> Tensor:
    """The output of the last pass of a reading."""
    return [each.run() for each in reading.passes][-1]


def cross_entropies(logits: Tensor, targets: Sequence[int]) -> Tensor:
    """-log p of each target (N,) under logits (N, V)."""
    ids = torch.tensor(targets, dtype=torch.long, device=logits.device)
    return -logits.double().log_softmax(-1).gather(1, ids[:, None])[:, 0]


def most_probable(predictor: Any, logits: Tensor) -> list[Candidate]:
    """The most probable tokens under logits (V,)."""
    best = logits.float().softmax(-1).topk(min(TOP, len(logits)))
    pieces = predictor.tokenizer.pieces(best.indices.tolist())
    return [Candidate(piece, p) for piece, p in zip(pieces, best.values.tolist(), strict=True)]


def paired(given: TextInput) -> str | tuple[str, str]:
    """One text or a pair, as classifiers take them."""
    return given.text if given.other is None else (given.text, given.other)
