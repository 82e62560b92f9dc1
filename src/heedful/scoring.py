"""How good a trained model is: scores on a split, and what a run folder keeps of them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from heedful.data.sources import SPLITS, Split
from heedful.errors import UserError, shown
from heedful.jobs import Evaluated, Progress, job_of
from heedful.jsontext import read_json
from heedful.reading import exists, read_file
from heedful.recipe import Recipe
from heedful.training.metrics import Score

__all__ = ["Evaluated", "plain", "read_back", "results", "scored"]


def scored(
    speaker: Any,
    recipe: Recipe,
    split: Split,
    step: int = 0,
    beams: int | None = None,
    progress: Progress | None = None,
) -> Evaluated:
    """Scores of a trained model on one split of its recipe's data, with the recipe's beams if none are given."""
    job = job_of(recipe)
    read = job.read(split)
    encoded = job.encode(read, speaker.tokenizer)
    return job.evaluate(speaker, read, encoded, job.loss(speaker, encoded), step, split, beams, progress)


def results(run: Path) -> Evaluated | None:
    """The test scores of a run that is complete."""
    path = run / "results.json"
    if not exists(path):
        return None
    try:
        return read_back(read_json(read_file(path).decode(), constant=float))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            "the test scores cannot be read", where=str(path), found=repr(error),
            todo="delete the file, and train again with the same command: the model is scored anew",
        ) from error  # fmt: skip


def read_back(data: dict[str, Any]) -> Evaluated:
    """An evaluation from its JSON."""
    scores = tuple(
        Score(name, _number(score["value"]), _text(score["signature"])) for name, score in data["scores"].items()
    )
    samples = tuple((_text(given), _text(right), _text(found)) for given, right, found in data["samples"])
    (split,) = (split for split in SPLITS if split == data["split"])
    return Evaluated(_whole(data["step"]), split, _number(data["loss"]), scores, samples, _whole(data["unread"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} is no text")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{shown(value)} is no number")
    return float(value)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{shown(value)} is no whole number")
    return value


def plain(event: Evaluated) -> dict[str, Any]:
    """An evaluation as it is written to JSON."""
    scores = {score.name: {"value": score.value, "signature": score.signature} for score in event.scores}
    return {"kind": "evaluated", **asdict(event), "scores": scores}
