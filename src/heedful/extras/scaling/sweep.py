"""A sweep: one run for each size and budget, each in its own process and folder.

Every run is `heedful train` with a few overrides of the recipe, so a sweep that was stopped resumes each of its runs,
and a complete run is not trained again. This process does not import torch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from heedful.errors import UserError, shown
from heedful.extras.parallel import Parallel
from heedful.extras.scaling.fits import Run
from heedful.files.reading import is_file
from heedful.runs.events import read_events
from heedful.runs.recipe import find_recipe, load_recipe
from heedful.tasks.language_model.recipe import LanguageModelRecipe

HEAD_WIDTHS = (64, 32, 16)  # the first that gives MIN_HEADS is taken
MIN_HEADS = 4
MIN_STEPS = 30  # of a run that is worth fitting
PROCESS_BYTES = 600_000_000  # memory of a process before training


class Size(NamedTuple):
    """The size of a model: layers and width."""

    layers: int
    width: int

    def __str__(self) -> str:
        return f"{self.layers}x{self.width}"


class Outcome(NamedTuple):
    """The recorded results of a complete run."""

    tokens: int
    loss: float  # on the validation set, at the end
    initial_loss: float  # of the first training step
    epochs: int  # that were started


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: its overrides of the recipe, and its folder."""

    size: Size
    budget: int  # tokens
    overrides: tuple[str, ...]
    recipe: LanguageModelRecipe
    folder: Path
    held_out: bool  # predicted, not fitted

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    @property
    def parameters(self) -> int:
        """N: the number of parameters without token and position embeddings."""
        model = self.recipe.model
        longer = model.model_copy(update={"context": model.context + 1})
        return model.parameters(0) - model.context * (longer.parameters(0) - model.parameters(0))

    @property
    def steps(self) -> int:
        """The approximate number of steps."""
        return _steps(self.recipe, self.budget)

    @property
    def memory(self) -> int:
        """The approximate memory of its process in bytes: weights, gradients, moments and activations."""
        model, train = self.recipe.model, self.recipe.train
        vocab = (self.recipe.size - model.parameters(0)) // model.width
        activations = train.batch_tokens * (2 * vocab + 24 * model.layers * model.width)
        return PROCESS_BYTES + 16 * self.recipe.size + 4 * activations

    def outcome(self) -> Outcome | None:
        """Its results; None unless it is complete."""
        tested = self.recipe.data.test is None or is_file(self.folder / "results.json")
        if not (tested and is_file(self.folder / "model" / "model.safetensors")):
            return None
        events = read_events(self.folder)
        steps, valid = events.steps(), events.evaluated("valid")
        try:
            if not (steps[-1]["progress"] >= 1 and valid[-1]["step"] == steps[-1]["step"]):
                return None
            return Outcome(steps[-1]["tokens"], valid[-1]["loss"], steps[0]["loss"], steps[-1]["epoch"] + 1)
        except (IndexError, KeyError, TypeError):  # nothing was recorded, or the file is damaged
            return None


# ------------------------------------------------------------------ the plan of a sweep
def read_sizes(text: str, option: str = "--sizes") -> list[Size]:
    """The sizes of a list such as 2x64,3x96."""
    found = []
    for part in _parts(text, option, "2x64,3x96,4x128"):
        match = re.fullmatch(r"([1-9]\d{0,3})[xX]([1-9]\d{0,4})", part)
        if match is None:
            raise UserError(
                "invalid size", where=option, found=shown(part), expected="layers x width, as in 4x128",
                todo=f"{option} 2x64,3x96,4x128",
            )  # fmt: skip
        found.append(Size(int(match[1]), int(match[2])))
    return _require_distinct(found, option)


def read_tokens(text: str) -> list[int]:
    """The budgets of a list such as 1e6,2e6."""
    option = "--tokens"
    return _require_distinct([_count(part, option) for part in _parts(text, option, "1e6,2e6,4e6")], option)


def read_runs(text: str) -> list[tuple[Size, int]]:
    """The runs of a list such as 6x192:8e6."""
    found, option = [], "--predict"
    for part in _parts(text, option, "6x192:8e6"):
        size, colon, tokens = part.partition(":")
        if not colon:
            raise UserError(
                "invalid run to predict", where=option, found=shown(part),
                expected="a size and a number of tokens, as in 6x192:8e6",
            )  # fmt: skip
        found.append((read_sizes(size, option)[0], _count(tokens, option)))
    return _require_distinct(found, option)


def _parts(text: str, option: str, example: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UserError("this list is empty", where=option, found=shown(text), todo=f"{option} {example}")
    return parts


def _count(text: str, option: str) -> int:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (1 <= number <= 1e15 and number.is_integer()):
        raise UserError(
            "invalid number of tokens", where=option, found=shown(text),
            expected="a whole number, as in 1e6 or 2500000",
        )  # fmt: skip
    return int(number)


def _require_distinct(found: list[Any], option: str) -> list[Any]:
    twice = next((str(one) for index, one in enumerate(found) if one in found[:index]), None)
    if twice is not None:
        raise UserError("this value is given twice", where=option, found=twice, todo="remove one of them")
    return found


def plan(
    name: str,
    overrides: Sequence[str],
    sizes: Sequence[Size],
    budgets: Sequence[int],
    held_out: Sequence[tuple[Size, int]],
    folder: Path,
) -> list[Cell]:
    """The runs of every size with every budget, and the held-out runs."""
    base = load_recipe(name, overrides)
    if not isinstance(base, LanguageModelRecipe):
        raise UserError(
            "scaling laws need a language model", where=name, found=f"a recipe of {base.task.kind}",
            expected="task.kind: language_model", todo="`heedful recipes` lists them",
        )  # fmt: skip
    if base.start is not None:
        raise UserError(
            "a pretrained model has a fixed size", where="start", found=base.start.folder,
            todo="remove start: the runs of a sweep start from random weights",
        )  # fmt: skip
    _require_decay(base)
    requested = [(size, tokens, False) for size in sizes for tokens in budgets]
    for size, tokens in held_out:
        if (size, tokens, False) in requested:
            raise UserError(
                "a run to predict cannot be one of those that are fitted", where="--predict",
                found=f"{size}:{short(tokens)}", todo="predict a larger one",
            )  # fmt: skip
        requested.append((size, tokens, True))
    cells = []
    for size, tokens, is_held_out in requested:
        changed = (*overrides, *_changes(base, size, tokens))
        recipe: Any = load_recipe(name, changed)
        cells.append(Cell(size, tokens, changed, recipe, folder / f"{size}-{short(tokens)}", is_held_out))
    return cells


def _require_decay(recipe: LanguageModelRecipe) -> None:
    """Raise an error unless the learning rate decays until the end of each run, without which no law holds."""
    schedule = recipe.train.schedule
    if schedule.kind not in ("cosine", "linear"):
        raise UserError(
            "the learning rate of every run must decay to the end of its own budget",
            where="train.schedule",
            found=schedule.kind,
            expected="cosine or linear",
            todo=f"train.schedule='{{kind: cosine, warmup: {schedule.warmup}}}'",
        )


def _changes(base: LanguageModelRecipe, size: Size, tokens: int) -> Iterator[str]:
    """The overrides for a size and a budget; the hidden width stays in proportion to the width."""
    yield f"model.layers={size.layers}"
    yield f"model.width={size.width}"
    if "heads" in type(base.model).model_fields:
        yield f"model.heads={heads_for(size.width)}"
    if base.model.hidden is not None:
        yield f"model.hidden={max(1, round(base.model.hidden * size.width / base.model.width))}"
    yield f"train.budget={{tokens: {tokens}}}"
    schedule = base.train.schedule.model_dump(mode="json")
    warmup = min(schedule["warmup"], _steps(base, tokens) // 10)
    yield f"train.schedule={json.dumps({**schedule, 'warmup': warmup})}"


def heads_for(width: int) -> int:
    """The number of heads for a width: heads of 64, 32 or 16, and at least four of them where possible."""
    fitting = [head for head in HEAD_WIDTHS if width % head == 0]
    enough = [head for head in fitting if width // head >= MIN_HEADS]
    other = [head for head in range(16, 65) if width % head == 0 and head % 2 == 0]
    if width < HEAD_WIDTHS[-1]:
        return 1
    if not (fitting or other):
        raise UserError(
            "this width cannot be split into heads", where="--sizes", found=f"width {width}",
            expected="a multiple of 16, or of another even number up to 64", todo=f"use width {-(-width // 16) * 16}",
        )  # fmt: skip
    return width // (enough or fitting[-1:] or other)[0]


def _steps(recipe: LanguageModelRecipe, tokens: int) -> int:
    return -(-tokens // (recipe.train.batch_tokens * recipe.train.accumulate))


def short(count: int) -> str:
    """A number of tokens in its shortest exact form: 1e6, 2.5e6, 1234567."""
    digits = str(count).rstrip("0")
    power = len(str(count)) - 1
    brief = f"{digits[0]}{'.' * (len(digits) > 1)}{digits[1:]}e{power}"
    return brief if len(brief) < len(str(count)) else str(count)


# ------------------------------------------------------------------ running the sweep
class Sweep(Parallel[Cell]):
    """Trains runs in parallel, the largest first, until all have ended or were stopped."""

    def __init__(
        self, recipe: str, cells: Sequence[Cell], jobs: int, threads: int, gpus: int, lock: int | None = None
    ) -> None:
        super().__init__(jobs, threads, gpus, lock)
        self.recipe = str(find_recipe(recipe))
        self.waiting = sorted(cells, key=lambda cell: -cell.parameters * cell.budget)

    def take(self) -> Cell | None:
        """The largest run that is left."""
        return self.waiting.pop(0) if self.waiting else None

    def file(self, job: Cell) -> str:
        """The recipe of the sweep."""
        return self.recipe


def parallel_runs(cells: Sequence[Cell], cores: int, memory: int | None) -> int:
    """The number of runs that fit on these cores and in four fifths of this memory in bytes."""
    largest = max((cell.memory for cell in cells), default=1)
    fitting = len(cells) if memory is None else int(0.8 * memory / largest)
    return max(1, min(len(cells), cores, fitting))


# ------------------------------------------------------------------ results
def completed_runs(cells: Sequence[Cell]) -> tuple[dict[str, Run], dict[str, str]]:
    """The runs that can be fitted, and the reasons why others cannot, both by name."""
    runs: dict[str, Run] = {}
    excluded: dict[str, str] = {}
    for cell in cells:
        outcome = cell.outcome()
        if outcome is None:
            excluded[cell.name] = "not complete"
        elif not math.isfinite(outcome.loss) or outcome.loss >= outcome.initial_loss:
            excluded[cell.name] = (
                f"diverged: loss {outcome.loss:.4g} at the end, {outcome.initial_loss:.4g} at the first step"
            )
        else:
            runs[cell.name] = Run(cell.name, str(cell.size), cell.parameters, outcome.tokens, outcome.loss)
    return runs, excluded
