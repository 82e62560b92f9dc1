"""Hints about a finished run: what went wrong as others often do, with the numbers that show it and what to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from heedful.data.tokenizers.base import EngineTokenizer
from heedful.data.tokenizers.tokenizer import Characters
from heedful.runs.events import Events
from heedful.tasks.base import AnyTask
from heedful.training.class_report import ClassReport

FEW_ITEMS, FEW_STEPS, FEW_EVALUATIONS = 20, 10, 3  # fewer show nothing
UNEVEN = 2  # the largest class, as a multiple of the smallest
WORSE = 1.05  # the validation loss, as a multiple of the lowest
FLAT = 0.98  # the training loss, as a multiple of the first
ROSE = 1.3  # the training loss, as a multiple of the lowest
LOST = 0.25  # of what the training loss has fallen
FEW_WORDS = 100
PIECES = 3.0  # tokens a word, from which a vocabulary splits too much
TEXTS = 300  # that are looked at
# Characters of scripts without spaces between words (Thai to Khmer, kana, Han), each of which counts as a word.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


def hints(task: AnyTask, folder: Path, events: Events, details: ClassReport | None, predictor: Any) -> Iterator[str]:
    """The hints about a run."""
    run = shlex.quote(str(folder))
    again = f"heedful train {run}/recipe.yaml --run OTHER"
    if details is not None:
        yield from _about_classes(details, task, again)
    yield from _about_validation(events, again)
    if task.words.loss.startswith("nats") and not task.players:
        yield from _about_rate(events, task.recipe.train.optimizer.lr, again)
    yield from _about_pieces(task, predictor, again)


def _about_classes(details: ClassReport, task: AnyTask, again: str) -> Iterator[str]:
    """A classifier that predicts one class only, or never some of them."""
    if details.count < FEW_ITEMS or not details.classes:
        return
    settings = dict(task.recipe.task)
    counts = [each.count for each in details.scored if each.count]
    uneven = details.none is not None or (len(counts) > 1 and max(counts) >= UNEVEN * min(counts))
    balance = [f"{again} task.class_weights=balanced"] if settings.get("class_weights", "") is None and uneven else []
    if (label := details.constant) is not None:
        there = next(each.count for each in details.classes if each.label == label)
        largest, share = label == details.none or there == max(counts), there / details.count
        commands = " or ".join(
            [*(balance if largest else []), f"{again} train.optimizer.lr=... (ten times as high, or a tenth)"]
        )
        what = (
            "F1 of every class is 0" if label == details.none else f"which {share:.0%} of them are: F1 of every other "
            "class is 0, and the accuracy is that of a constant"
        )  # fmt: skip
        yield f"All {details.count:,} {details.what} are predicted as {label!r}, {what}. Try {commands}"
        return
    missed = [each for each in details.scored if each.count >= FEW_ITEMS // 4 and each.recall == 0]
    if missed:
        names = ", ".join(f"{each.label!r} ({each.count:,} {details.what})" for each in missed[:5])
        more = f" and {len(missed) - 5} more" if len(missed) > 5 else ""
        commands = " or ".join([*balance, "more training examples of them, or a longer training"])
        yield f"Never right: {names}{more}. Try {commands}"


def _about_validation(events: Events, again: str) -> Iterator[str]:
    """A validation loss that gets worse while the training loss falls."""
    losses = [(event["step"], event["loss"]) for event in events.evaluated("valid") if _positive(event)]
    if len(losses) <= FEW_EVALUATIONS:
        return
    best = min(range(len(losses)), key=lambda place: losses[place][1])
    (step, low), (last, end) = losses[best], losses[-1]
    if len(losses) - 1 - best >= FEW_EVALUATIONS and end > WORSE * low:
        yield (
            f"The validation loss gets worse since step {step:,}: {low:.4f} there, {end:.4f} at step {last:,}, "
            f"{end / low - 1:.0%} more. Stop there ({again} train.patience=3), or use more dropout or data"
        )


def _about_rate(events: Events, rate: float, again: str) -> Iterator[str]:
    """A training loss that does not fall, or that rises."""
    steps = [event for event in events.steps() if _positive(event) and not event.get("parts")]
    if len(steps) < FEW_STEPS:
        return
    tenth = max(1, len(steps) // 10)
    means = [_mean(steps[start : start + tenth]) for start in range(0, len(steps) - tenth + 1, tenth)]
    first, last = means[0], _mean(steps[-tenth:])
    low = min(*means, last)
    span = f"the mean of the first {tenth} recorded steps is {first:.4f}, that of the last {last:.4f}"
    if last > ROSE * low and last - low > LOST * (first - low):
        yield (
            f"The training loss rises: {span}, the lowest {low:.4f}. The learning rate {rate:g} may be too high: "
            f"{again} train.optimizer.lr={rate / 3:.1g}"
        )
    elif last > FLAT * first:
        yield (
            f"The training loss hardly falls: {span}. The learning rate {rate:g} may be too low: "
            f"{again} train.optimizer.lr={rate * 10:.1g}, or search: heedful tune RECIPE "
            f"train.optimizer.lr={rate / 10:.1g}..{rate * 30:.1g}; or the model may not see what it needs"
        )


def _about_pieces(task: AnyTask, predictor: Any, again: str) -> Iterator[str]:
    """A vocabulary that splits words into many tokens."""
    tokenizer = predictor.tokenizer
    if not isinstance(tokenizer, EngineTokenizer) or isinstance(dict(task.recipe).get("tokenizer"), Characters):
        return
    texts = [example.text for example in islice(task.examples("valid"), TEXTS)]
    words = sum(len(UNSPACED.sub(" . ", text).split()) for text in texts)
    if words < FEW_WORDS:
        return
    tokens = sum(map(len, tokenizer.ids(texts)))
    if tokens > PIECES * words:
        wide = f"{again} tokenizer.vocab={4 * tokenizer.vocab}" if dict(task.recipe).get("tokenizer") else ""
        yield (
            f"The vocabulary of {tokenizer.vocab:,} tokens splits a word into {tokens / words:.1f} on average, in "
            f"{len(texts)} validation texts: texts become long, and tokens mean little. "
            f"{f'Try a larger one: {wide}' if wide else 'Start from an encoder for this language or kind of text'}"
        )


def _positive(event: dict[str, Any]) -> bool:
    loss = event.get("loss")
    return isinstance(loss, int | float) and loss > 0


def _mean(steps: Sequence[dict[str, Any]]) -> float:
    return float(sum(step["loss"] for step in steps) / len(steps))
