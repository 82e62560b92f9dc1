"""How good a trained model is: scores on a split, and what a run folder keeps of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from heedful.data.sources import Split
from heedful.errors import UserError
from heedful.jobs import Evaluated, Progress, job_of
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
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return read_back(data)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            "the test scores cannot be read", where=str(path), found=repr(error),
            todo="delete the file, and train again with the same command: the model is scored anew",
        ) from error  # fmt: skip


def read_back(data: dict[str, Any]) -> Evaluated:
    """An evaluation from its JSON."""
    scores = tuple(Score(name, score["value"], score["signature"]) for name, score in data["scores"].items())
    samples = tuple((given, right, found) for given, right, found in data["samples"])
    return Evaluated(data["step"], data["split"], data["loss"], scores, samples, data["unread"])


def plain(event: Evaluated) -> dict[str, Any]:
    """An evaluation as it is written to JSON."""
    scores = {score.name: {"value": score.value, "signature": score.signature} for score in event.scores}
    return {"kind": "evaluated", **asdict(event), "scores": scores}
