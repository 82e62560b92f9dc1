"""Evaluating a trained model on a split, and the stored test results of a run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from heedful.data.formats.conll import Sentence
from heedful.data.formats.sources import SPLITS, Split
from heedful.data.formats.tables import Item
from heedful.errors import UserError, shown
from heedful.files.json import read_json
from heedful.files.reading import exists, read_file
from heedful.files.writing import write_text_atomic
from heedful.tasks import task_of
from heedful.tasks.base import Evaluated, HeldOut, Progress
from heedful.tasks.recipe_parts import Recipe
from heedful.training.checkpoint.choice import Use
from heedful.training.checkpoint.manifest import DamageError, read_manifest
from heedful.training.checkpoint.ties import name_in
from heedful.training.metrics import Score

__all__ = ["Evaluated", "plain", "read_back", "results", "scored"]


def scored(
    predictor: Any,
    recipe: Recipe,
    split: Split,
    step: int = 0,
    beams: int | None = None,
    progress: Progress | None = None,
) -> Evaluated:
    """Evaluate a trained model on a split of its recipe's data; `beams` defaults to the recipe's."""
    task = task_of(recipe)
    read = task.read(split)
    encoded = task.encode(read, predictor.tokenizer)
    loss = task.loss(predictor, encoded)
    return task.evaluate(predictor, HeldOut(read, encoded, loss, step, split, beams, progress))


@dataclass(frozen=True)
class Used:
    """The checkpoints that a final model is from, the length of the run, and the score of the best."""

    use: Use
    steps: tuple[int, ...]
    of: int
    metric: str
    score: float | None  # on the validation set, if known

    @property
    def text(self) -> str:
        """A description, for the report."""
        if self.use == "average":
            return f"the mean of the checkpoints of steps {', '.join(f'{step:,}' for step in self.steps)}"
        score = "" if self.score is None else f", {self.metric} {self.score:.4f} on the validation set"
        return f"the {self.use} checkpoint, step {self.steps[0]:,} of {self.of:,}{score}"


def used(run: Path) -> Used | None:
    """The checkpoints that the final model of a run is from, if recorded."""
    try:
        about = read_manifest(run / "model").about["checkpoint"]
        return Used(about["use"], tuple(about["steps"]), about["of"], about["metric"], about["score"])
    except (DamageError, KeyError, TypeError):
        return None


def digest(read: Any, encoded: Any) -> str:
    """The SHA-256 of a split: its texts, and their encoded form.

    The names of the example classes and their fields are hashed too: renaming them would break old runs.
    """
    rows = next((part for part in read if isinstance(part, list)), []) if isinstance(read, tuple) else []
    texts = (
        row._replace(where="") if isinstance(row, Item | Sentence) else row for row in rows
    )  # independent of the files' paths
    return hashlib.sha256(repr([encoded.sha256, *texts]).encode(errors="surrogatepass")).hexdigest()


def made_from(run: Path, recipe: Recipe, test: str | None) -> dict[str, Any]:
    """What the test scores of a run depend on: the model's files, the test data, and decoding settings."""
    settings = recipe.model_dump(mode="json")
    shown = {"task": settings["task"], "decode": settings.get("decode"), "samples": recipe.train.samples}
    files = {name: entry.sha256 for name, entry in read_manifest(run / "model").files.items()}
    return {"model": files, "data": test, "settings": _sha256(shown)}


def write_results(run: Path, result: Evaluated, of: dict[str, Any]) -> None:
    """Store the test scores of a run, with what they depend on and a digest."""
    data = {**plain(result), "of": of}
    text = json.dumps({**data, "digest": _sha256(data)}, indent=2, ensure_ascii=False) + "\n"
    write_text_atomic(run / "results.json", text)


def _sha256(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def results(run: Path, of: dict[str, Any] | None = None) -> Evaluated | None:
    """The stored test scores of a complete run; with `of`, only if they depend on exactly that."""
    path = run / "results.json"
    if not exists(path):
        return None
    try:
        data = read_json(read_file(path).decode(), constant=float)
        found, basis = read_back(data), data.get("of")
        if of is None and basis is None:
            return found  # written by an older version
        sealed = data.pop("digest", None) == _sha256(data)
        made = basis == json.loads(json.dumps(of)) if of is not None else _of_model(run, basis)
        return found if sealed and made else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if of is not None:
            return None
        raise UserError(
            "the test scores cannot be read", where=str(path), found=repr(error),
            todo="delete the file, and train again with the same command: the model is evaluated again",
        ) from error  # fmt: skip


def _of_model(run: Path, basis: Any) -> bool:
    """Whether scores are those of the model in the folder, made by the folder's own run."""
    try:
        manifest = read_manifest(run / "model")
    except DamageError:
        return False
    name = name_in(run)
    own = name is None or manifest.about.get("run", name) == name
    return own and {file: entry.sha256 for file, entry in manifest.files.items()} == basis.get("model")


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
        raise TypeError(f"{shown(value)} is not a text")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{shown(value)} is not a number")
    return float(value)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{shown(value)} is not an integer")
    return value


def plain(event: Evaluated) -> dict[str, Any]:
    """An evaluation as it is written to JSON."""
    scores = {score.name: {"value": score.value, "signature": score.signature} for score in event.scores}
    return {"kind": "evaluated", **asdict(event), "scores": scores}
