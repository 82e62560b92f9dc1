"""What a model says of an input, and how hard it found it: to be asked once more while a part of it is switched off.

Which of these a model can say is told by what it can do. T tokens, V vocabulary, M words, C classes, N losses.
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
from heedful.explore.capabilities import Answers, Classifies, Tags
from heedful.explore.inspect import Given, Reading, both_ways, encoder_in, pair_ids, translates, writes
from heedful.tasks.answering import predictor as answering
from heedful.tasks.classification.predictor import TextRegressor
from heedful.tasks.tagging import predictor as tagging

TOP = 5  # answers that are told


@dataclass(frozen=True)
class Answer:
    """One thing that a model says, and how likely it is to it; None, where it says no probability."""

    text: str
    chance: float | None = None


@dataclass(frozen=True)
class Saying:
    """What a model says of an input, as it is at the time of asking, and its losses (N,) and what each is of."""

    says: str
    measure: str  # what the mean of the losses is
    pieces: list[str]
    answers: Callable[[], list[Answer]]
    losses: Callable[[], Tensor]
    hidden: int | None = None  # the token that was hidden from it


def saying(predictor: Any, given: Given, reading: Reading, place: int | None = None) -> Saying:
    """What this model has to say; `place` is the token to be hidden, of a model that tells hidden words."""
    if translates(predictor):
        return translation(predictor, given, reading)
    if writes(predictor):
        return next_word(predictor, reading)
    for able, found in ((Classifies, label), (TextRegressor, number), (Tags, tags), (Answers, span)):
        if isinstance(predictor, able):
            return found(predictor, given)
    if encoder_in(predictor).masked_words is not None:
        return hidden_word(predictor, given, place)
    return vectors(reading)


def translation(predictor: Any, given: Given, reading: Reading) -> Saying:
    """The translation that it writes; the loss is that of the one given, or of the one that the whole model writes."""
    wanted = reading.sides["written"]

    def answers() -> list[Answer]:
        best = predictor.search([given.text])[0][0]
        return [Answer(best.text, math.exp(best.log_probability))]

    whose = "that the whole model writes" if given.other is None else "that is given"
    return Saying(
        "the translation", f"mean loss a token, in nats, of the translation {whose}",
        [token.piece for token in wanted], answers,
        lambda: cross_entropies(run(reading)[0], [token.id for token in wanted]),
    )  # fmt: skip


def next_word(predictor: Any, reading: Reading) -> Saying:
    """The likeliest tokens to go on with; the loss is that of the text's own tokens, each from those before it."""
    tokens, vocab = reading.sides["text"], predictor.tokenizer.vocab

    def logits() -> Tensor:
        return run(reading)[0, :, :vocab]

    return Saying(
        "the next token", "mean loss a token of the text, in nats", [token.piece for token in tokens[1:]],
        lambda: likeliest(predictor, logits()[-1]),
        lambda: cross_entropies(logits()[:-1], [token.id for token in tokens[1:]]),
    )  # fmt: skip


def hidden_word(predictor: Any, given: Given, place: int | None) -> Saying:
    """The likeliest tokens for one that is hidden; the loss is that of the one that stands there."""
    encoder, tokenizer = encoder_in(predictor), predictor.tokenizer
    row, segments = pair_ids(tokenizer, given, encoder.config.context)
    words = [at for at, one in enumerate(row) if one not in tokenizer.special]
    if not words:
        raise UserError("there is no word to hide", where="text", todo="give a text of a few words")
    at = words[len(words) // 2] if place is None else place
    if at not in words:
        raise UserError("there is no word to hide at this place", where="place", found=str(at + 1))
    gap = both_ways(predictor, [*row[:at], tokenizer.mask, *row[at + 1 :]], segments)

    def logits() -> Tensor:
        found: Tensor = encoder.words(run(gap)[0, at : at + 1])[:, : tokenizer.vocab]
        return found  # (1, V)

    return Saying(
        "the hidden token", "loss of the token that is hidden, in nats", tokenizer.pieces([row[at]]),
        lambda: likeliest(predictor, logits()[0]), lambda: cross_entropies(logits(), [row[at]]), at,
    )  # fmt: skip


def vectors(reading: Reading) -> Saying:
    """A vector for each token, of a model that says nothing else; the loss is how far each has turned."""
    whole = run(reading)[0].float()  # (T, D)

    def turned(now: Tensor, before: Tensor) -> Tensor:
        """1 - cosine, as half the squared distance of unit vectors: exactly 0 where nothing has changed."""
        return (normalize(now.double(), dim=-1) - normalize(before.double(), dim=-1)).square().sum(-1) / 2

    def answers() -> list[Answer]:
        away = float(turned(run(reading)[0].float().mean(0), whole.mean(0)))
        return [Answer(f"cosine {1 - away:.4f} with the whole model's", None)]

    return Saying(
        "the mean vector of the text",
        "mean of 1 − cosine of the tokens' vectors with the whole model's",
        [token.piece for token in reading.sides["text"]], answers, lambda: turned(run(reading)[0].float(), whole),
    )  # fmt: skip


def label(predictor: Any, given: Given) -> Saying:
    """The class; the loss is that of the class which the whole model says."""

    def labelled() -> Any:
        return predictor.classify([paired(given)])[0]

    whole = labelled().label

    def answers() -> list[Answer]:
        found = sorted(labelled().probabilities.items(), key=lambda one: -one[1])
        return [Answer(name, chance) for name, chance in found[:TOP]]

    def losses() -> Tensor:
        return -torch.tensor([labelled().probabilities[whole]], dtype=torch.float64).log()

    return Saying("the class", "loss of the class that the whole model says, in nats", [whole], answers, losses)


def number(predictor: Any, given: Given) -> Saying:
    """A number; the loss is the square of how far it is from that of the whole model."""

    def rated() -> float:
        return float(predictor.predict([paired(given)])[0].value)

    whole = rated()
    return Saying(
        "the number", "squared distance from the number of the whole model", [f"{whole:.4g}"],
        lambda: [Answer(f"{rated():.4g}")], lambda: torch.tensor([(rated() - whole) ** 2], dtype=torch.float64),
    )  # fmt: skip


def tags(predictor: Any, given: Given) -> Saying:
    """The tags of the words; the loss is that of the tags which the whole model says."""
    text, places = tagging.split(given.text)
    words = [text[start:end] for start, end in places]
    if not words:
        raise UserError("there is no word to tag", where="text", todo="give a text of a few words")
    encoded = encode_words([words], predictor.tokenizer, predictor.context)

    def logits() -> Tensor:
        found = torch.zeros(len(words), len(predictor.labels))  # (M, C)
        for batch, rows in encoded.in_order(tagging.BATCH_TOKENS):
            found[torch.from_numpy(rows)] = tagging.outputs(predictor.model, batch.to(predictor.device)).float().cpu()
        return found

    whole = logits().argmax(-1).tolist()

    def answers() -> list[Answer]:
        best = logits().softmax(-1).max(-1)
        told = zip(words, best.indices.tolist(), best.values.tolist(), strict=True)
        return [Answer(f"{word}: {predictor.labels[tag]}", chance) for word, tag, chance in told]

    return Saying(
        "the tags", "mean loss a word, in nats, of the tags that the whole model says", words, answers,
        lambda: cross_entropies(logits(), whole),
    )  # fmt: skip


def span(predictor: Any, given: Given) -> Saying:
    """The answer to a question; the loss is that of the answer which the whole model gives."""
    question = Question("", given.text, given.other or "", ())
    encoded = encode_questions([question], predictor.tokenizer, predictor.context, predictor.windows)

    def scores() -> Tensor:
        return torch.from_numpy(answering.passage_scores(predictor.model, encoded, predictor.device)[0])  # (T, 2)

    best = answering.best_spans(scores().numpy(), predictor.windows.longest, 1)
    if not best:
        raise UserError("there is nothing to find the answer in", where="other", todo="give a passage as second text")

    def answers() -> list[Answer]:
        found = predictor.answers([question.passage], encoded, TOP)[0]
        return [Answer(one.text, one.probability) for one in found]

    def losses() -> Tensor:
        return cross_entropies(scores().T, [best[0].start, best[0].end])

    measure = "mean loss of both ends of the answer that the whole model gives, in nats"
    return Saying("the answer", measure, ["beginning", "end"], answers, losses)


def run(reading: Reading) -> Tensor:
    """What the last pass of a reading gives."""
    return [each.run() for each in reading.passes][-1]


def cross_entropies(logits: Tensor, wanted: Sequence[int]) -> Tensor:
    """-log p of each of the ids (N,) that are wanted, by logits (N, V)."""
    ids = torch.tensor(wanted, dtype=torch.long, device=logits.device)
    return -logits.double().log_softmax(-1).gather(1, ids[:, None])[:, 0]


def likeliest(predictor: Any, logits: Tensor) -> list[Answer]:
    """The likeliest tokens by logits (V,)."""
    best = logits.float().softmax(-1).topk(min(TOP, len(logits)))
    pieces = predictor.tokenizer.pieces(best.indices.tolist())
    return [Answer(piece, chance) for piece, chance in zip(pieces, best.values.tolist(), strict=True)]


def paired(given: Given) -> str | tuple[str, str]:
    """One text or two, as the models that judge them take them."""
    return given.text if given.other is None else (given.text, given.other)
