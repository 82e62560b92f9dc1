"""The report of a run: one self-contained HTML page about everything in the run's folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.config import render
from heedful.files.json import read_json
from heedful.files.reading import read_file
from heedful.files.writing import disk_errors, write_text_atomic
from heedful.plots.figures import curves
from heedful.plots.style import Figure, Style
from heedful.runs.class_section import class_section
from heedful.runs.evaluate import read_back
from heedful.runs.events import part_curves, read_events
from heedful.runs.html import STYLE, escaped, figure, folded, html_table, section
from heedful.tasks.base import AnyTask, Evaluated
from heedful.tasks.image_classification.predictor import ImageClassifier
from heedful.tasks.recipe_parts import with_article
from heedful.tasks.reconstruction.predictor import ImageAutoencoder
from heedful.training.class_report import ClassReport

NAME = "report.html"
PICTURES = "pictures"  # the folder of the figures
MOST = 20  # samples in the table


def plot_loss(run: Path, unit: str, style: Style = "light") -> Figure | None:
    """The losses of training and validation by step, in their unit; None where nothing is recorded.

    A weighted sum of several losses is drawn with each of them, dotted.
    """
    events = read_events(run)
    recorded = {
        name: [event for event in some if isinstance(event.get("loss"), int | float)]
        for name, some in (("train", events.steps()), ("valid", events.evaluated("valid")))
    }
    lines = {
        name: ([event["step"] for event in some], [event["loss"] for event in some])
        for name, some in recorded.items()
        if some
    }
    parts = part_curves(events.steps())
    lines |= {name: (steps, values) for name, (steps, values) in parts.items() if name not in lines}
    return curves(lines, "Loss", "step", unit, formats=dict.fromkeys(parts, ":"), style=style) if lines else None


def last_valid(folder: Path) -> Evaluated | None:
    """The last recorded evaluation on the validation set."""
    seen = read_events(folder).evaluated("valid")
    return read_back(seen[-1]) if seen else None


def write_report(
    folder: Path,
    task: AnyTask,
    config: Any,
    predictor: Any,
    result: Evaluated | None,
    examples: int,
    used: str = "",
    details: ClassReport | None = None,
    hints: Sequence[str] = (),
) -> Path:
    """Draw the run's figures, if its task has any, and write the page; deterministic."""
    with disk_errors(folder, "write the report"):
        figures = "".join(_figures(folder, task, predictor))
        classes = class_section(folder, details) if details else ""
        path = folder / NAME
        shown = result or last_valid(folder)
        write_text_atomic(path, page(folder, task, config, predictor, shown, examples, figures, used, classes, hints))
    return path


def page(
    folder: Path,
    task: AnyTask,
    config: Any,
    predictor: Any,
    result: Evaluated | None,
    examples: int,
    figures: str = "",
    used: str = "",
    classes: str = "",
    hints: Sequence[str] = (),
) -> str:
    """The whole page as text."""
    name = folder.resolve().name
    setting = _read(folder / "env.json")
    size = sum(weight.numel() for weight in predictor.model.parameters())
    own = task.recipe.own_model
    lead = (
        f"{own or with_article(config.kind).capitalize()} of {size:,} parameters, trained on {examples:,} "
        f"{task.words.examples}{f' in {result.step:,} steps' if result else ''}, on {setting.get('device', 'cpu')}."
    )
    parts = [
        _scores(task, result),
        section("Hints", "".join(f"<p>{escaped(hint)}</p>\n" for hint in hints)),
        classes,
        section("Figures", figures),
        section("Loss", figure(folder, folder / "loss.png", "", f"The loss by step: {task.words.loss}.")),
        _samples(task, result),
        section("Model", _own_model(own, size) if own else _model(config, size)),
        section("Data", _data(task, examples, predictor.tokenizer.vocab)),
        section("Next steps", _commands(task, folder, result)),
        section("Made with", folded("Versions and machine", html_table((), _rows(setting))) + _recipe(task)),
    ]
    lead += f" The final model is {used}." if used else ""
    body = f"<h1>{escaped(name)}</h1>\n<p class=lead>{escaped(lead)}</p>\n" + "".join(parts)
    head = (
        f'<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n<title>{escaped(name)}</title>'
    )
    return f'<!doctype html>\n<html lang="en">\n{head}\n<style>{STYLE}</style>\n<main>\n{body}</main>\n</html>\n'


def _figures(folder: Path, task: AnyTask, predictor: Any) -> Iterator[str]:
    """The figures of an autoencoder, and the mistakes of an image classifier."""
    if isinstance(predictor, ImageClassifier):
        from heedful.plots.classifier_plots import save_mistakes

        for one, file in save_mistakes(predictor, task.recipe.data, folder / PICTURES):
            yield figure(folder, file, one.title, one.about)
    if not isinstance(predictor, ImageAutoencoder):
        return
    from heedful.plots.autoencoder_plots import save_figures

    for one, file in save_figures(predictor, task.recipe.data, folder / PICTURES):
        yield figure(folder, file, one.title, one.about)
    command = f"heedful figure maps model={shlex.quote(str(folder))}"
    note = "A map by t-SNE takes longer, and keeps neighbours together:"
    yield f'<p class="quiet">{note} <code>{escaped(command)}</code></p>\n'


# ------------------------------------------------------------------ parts of the page
def _scores(task: AnyTask, result: Evaluated | None) -> str:
    """The model's scores, with the signatures that make them comparable."""
    if result is None:
        return ""
    split = {"test": "test set", "valid": "validation set"}.get(result.split, result.split)
    rows = [(score.name, f"{score.value:.2f}", score.signature) for score in result.scores]
    remarks = "".join(f'<p class="quiet">{escaped(remark)}</p>\n' for remark in task.remarks(result))
    note = f"<p class=large>{escaped(task.in_words(result.loss))}</p>\n"
    return section(
        f"On the {split}", note + html_table(("score", "", "how it was computed"), rows, frozenset({1})) + remarks
    )


def _samples(task: AnyTask, result: Evaluated | None) -> str:
    """Sample inputs, references and predictions."""
    samples = result.samples[:MOST] if result is not None else ()
    return section("Samples", html_table(task.words.sample, samples)) if samples else ""


def _own_model(name: str, size: int) -> str:
    return html_table((), [("class", name), ("parameters", f"{size:,}")])


def _model(config: Any, size: int) -> str:
    """The layers of an autoencoder, or the settings of any other model."""
    if config.role != "autoencoder":
        return html_table((), [("parameters", f"{size:,}"), *_rows(config.model_dump(mode="json"))])
    rows = [
        (f"{row.name} ({row.kind})", " x ".join(map(str, row.shape)), f"{row.parameters:,}") for row in config.summary()
    ]
    heads = ("layer", "channels x rows x columns" if len(config.input) == 3 else "values", "parameters")
    code = " x ".join(map(str, config.code))
    note = f"<p>The code of an image has {code} values.</p>\n"
    return html_table(heads, [*rows, ("all", "", f"{size:,}")], frozenset({2})) + note


def _data(task: AnyTask, examples: int, vocab: int) -> str:
    counts = [(f"{task.words.examples} in training", f"{examples:,}"), (task.words.tokens, f"{vocab:,}")]
    return html_table((), [*counts, *_rows(task.recipe.data.model_dump(mode="json"))])


def _commands(task: AnyTask, folder: Path, result: Evaluated | None) -> str:
    own = task.recipe.own_model
    lines = [f'in Python: heedful.load("{folder}", model={own})'] if own else task.next(folder, result)
    return f"<pre>{escaped(chr(10).join(lines))}</pre>\n"


def _recipe(task: AnyTask) -> str:
    return folded("Recipe", f"<pre>{escaped(render(task.recipe))}</pre>\n")


# ------------------------------------------------------------------ settings
def _rows(settings: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """Settings by their dotted names, without those that are not set."""
    rows: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            rows += _rows(value, f"{above}{name}.")
        elif value is not None:
            rows.append((above + name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))
    return rows


def _read(path: Path) -> dict[str, Any]:
    """The settings in a JSON file; empty where it cannot be read."""
    try:
        found = read_json(read_file(path).decode())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
