"""The report of a run: one self-contained HTML page about everything in the run's folder."""

from __future__ import annotations

import json
import shlex
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from heedful.config import render
from heedful.errors import printable
from heedful.files.json import read_json
from heedful.files.reading import is_file, read_file
from heedful.files.writing import disk_errors, write_text_atomic
from heedful.plots.figures import curves
from heedful.plots.style import Figure, Style
from heedful.runs.evaluate import read_back
from heedful.runs.events import part_curves, read_events
from heedful.tasks.base import AnyTask, Evaluated
from heedful.tasks.image_classification.predictor import ImageClassifier
from heedful.tasks.recipe_parts import with_article
from heedful.tasks.reconstruction.predictor import ImageAutoencoder

NAME = "report.html"
MOST = 20  # samples in the table
STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #f3f5f8; color: #262c36; font: 16px/1.5 system-ui, Helvetica, Arial, sans-serif; }
main { max-width: 58rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { margin: 0; font-size: 1.9rem; font-weight: 650; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { margin: 0 0 .8rem; font-size: 1.1rem; font-weight: 650; }
p { margin: .4rem 0; }
.lead, figcaption, .quiet { color: #5d6673; }
section { background: #fff; border: 1px solid #e1e5ea; border-radius: 10px; margin-top: 1rem; padding: 1.2rem 1.5rem; }
table { border-collapse: collapse; width: 100%; font-size: .94rem; }
th { text-align: left; font-weight: 600; color: #5d6673; }
th, td { padding: .4rem .8rem .4rem 0; border-bottom: 1px solid #eceff3; vertical-align: top; overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.large { font-size: 1.5rem; font-weight: 650; font-variant-numeric: tabular-nums; }
figure { margin: 0 0 1.6rem; }
figure:last-child { margin-bottom: 0; }
figure > p { margin: 0 0 .5rem; font-weight: 600; }
img { display: block; max-width: 100%; height: auto; }
img.tall { max-height: 46rem; width: auto; }
figcaption { font-size: .92rem; margin-top: .4rem; }
code, pre { font: .88rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { background: #f6f8fa; border-radius: 6px; padding: .8rem 1rem; margin: .6rem 0 0; overflow-x: auto; }
summary { cursor: pointer; font-weight: 600; }
@media print { body { background: #fff; } section { border: 0; padding: 0; break-inside: avoid; } }
"""


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
    folder: Path, task: AnyTask, config: Any, predictor: Any, result: Evaluated | None, examples: int, used: str = ""
) -> Path:
    """Draw the run's figures, if its task has any, and write the page; deterministic."""
    with disk_errors(folder, "write the report"):
        figures = "".join(_figures(folder, task, predictor))
        path = folder / NAME
        shown = result or last_valid(folder)
        write_text_atomic(path, page(folder, task, config, predictor, shown, examples, figures, used))
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
        _section("Figures", figures),
        _section("Loss", _figure(folder, folder / "loss.png", "", f"The loss by step: {task.words.loss}.")),
        _samples(task, result),
        _section("Model", _table((), [("class", own), ("parameters", f"{size:,}")]) if own else _model(config, size)),
        _section("Data", _data(task, examples, predictor.tokenizer.vocab)),
        _section("Next steps", _commands(task, folder, result)),
        _section("Made with", _folded("Versions and machine", _table((), _rows(setting))) + _recipe(task)),
    ]
    lead += f" The final model is {used}." if used else ""
    body = f"<h1>{_text(name)}</h1>\n<p class=lead>{_text(lead)}</p>\n" + "".join(parts)
    head = f'<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n<title>{_text(name)}</title>'
    return f'<!doctype html>\n<html lang="en">\n{head}\n<style>{STYLE}</style>\n<main>\n{body}</main>\n</html>\n'


def _figures(folder: Path, task: AnyTask, predictor: Any) -> Iterator[str]:
    """The figures of an autoencoder or an image classifier."""
    if isinstance(predictor, ImageClassifier):
        yield from _classifier_figures(folder, task, predictor)
    if not isinstance(predictor, ImageAutoencoder):
        return
    from heedful.plots.autoencoder_plots import save_figures

    for one, file in save_figures(predictor, task.recipe.data, folder / "pictures"):
        yield _figure(folder, file, one.title, one.about)
    command = f"heedful figure maps model={shlex.quote(str(folder))}"
    note = "A map by t-SNE takes longer, and keeps neighbours together:"
    yield f'<p class="quiet">{note} <code>{_text(command)}</code></p>\n'


def _classifier_figures(folder: Path, task: AnyTask, classifier: ImageClassifier) -> Iterator[str]:
    """Confusion matrix, worst mistakes, and the scores of each class."""
    from heedful.plots.classifier_plots import class_table, evaluated, save_figures

    encoded, probabilities = evaluated(classifier, task.recipe.data)
    for one, file in save_figures(classifier, encoded, probabilities, folder / "pictures"):
        yield _figure(folder, file, one.title, one.about)
    heads = ("class", "images", "precision", "recall", "F1")
    rows = class_table(encoded.labels, probabilities, classifier.labels)
    yield f"<p>Scores of each class, in percent</p>\n{_table(heads, rows, frozenset(range(1, 5)))}"


# ------------------------------------------------------------------ parts of the page
def _scores(task: AnyTask, result: Evaluated | None) -> str:
    """The model's scores, with the signatures that make them comparable."""
    if result is None:
        return ""
    split = {"test": "test set", "valid": "validation set"}.get(result.split, result.split)
    rows = [(score.name, f"{score.value:.2f}", score.signature) for score in result.scores]
    remarks = "".join(f'<p class="quiet">{_text(remark)}</p>\n' for remark in task.remarks(result))
    note = f"<p class=large>{_text(task.in_words(result.loss))}</p>\n"
    return _section(
        f"On the {split}", note + _table(("score", "", "how it was computed"), rows, frozenset({1})) + remarks
    )


def _samples(task: AnyTask, result: Evaluated | None) -> str:
    """Sample inputs, references and predictions."""
    samples = result.samples[:MOST] if result is not None else ()
    return _section("Samples", _table(task.words.sample, samples)) if samples else ""


def _model(config: Any, size: int) -> str:
    """The layers of an autoencoder, or the settings of any other model."""
    if config.role != "autoencoder":
        return _table((), [("parameters", f"{size:,}"), *_rows(config.model_dump(mode="json"))])
    rows = [
        (f"{row.name} ({row.kind})", " x ".join(map(str, row.shape)), f"{row.parameters:,}") for row in config.summary()
    ]
    heads = ("layer", "channels x rows x columns" if len(config.input) == 3 else "values", "parameters")
    code = " x ".join(map(str, config.code))
    note = f"<p>The code of an image has {code} values.</p>\n"
    return _table(heads, [*rows, ("all", "", f"{size:,}")], frozenset({2})) + note


def _data(task: AnyTask, examples: int, vocab: int) -> str:
    counts = [(f"{task.words.examples} in training", f"{examples:,}"), (task.words.tokens, f"{vocab:,}")]
    return _table((), [*counts, *_rows(task.recipe.data.model_dump(mode="json"))])


def _commands(task: AnyTask, folder: Path, result: Evaluated | None) -> str:
    own = task.recipe.own_model
    lines = [f'in Python: heedful.load("{folder}", model={own})'] if own else task.next(folder, result)
    return f"<pre>{_text(chr(10).join(lines))}</pre>\n"


def _recipe(task: AnyTask) -> str:
    return _folded("Recipe", f"<pre>{_text(render(task.recipe))}</pre>\n")


# ------------------------------------------------------------------ pieces of HTML
def _text(text: str) -> str:
    """Text, escaped."""
    return escape(printable(text))


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{_text(title)}</h2>\n{body}</section>\n" if body else ""


def _folded(title: str, body: str) -> str:
    return f"<details>\n<summary>{_text(title)}</summary>\n{body}</details>\n"


def _figure(folder: Path, file: Path, title: str, about: str) -> str:
    """A figure, embedded in the page and linked to its file."""
    if not is_file(file):
        return ""
    data = b64encode(read_file(file)).decode()
    head = f"<p>{_text(title)}</p>\n" if title else ""
    link = _text(file.relative_to(folder).as_posix())
    image = f'<img class="tall" alt="{_text(title or about)}" src="data:image/png;base64,{data}">'
    return f'<figure>\n{head}<a href="{link}">{image}</a>\n<figcaption>{_text(about)}</figcaption>\n</figure>\n'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: frozenset[int] = frozenset()) -> str:
    """A table, some columns of which are numeric."""
    kinds = [' class="number"' if column in numbers else "" for column in range(len(rows[0]) if rows else 0)]
    head = "".join(f"<th{kind}>{_text(text)}</th>" for kind, text in zip(kinds, heads, strict=False))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{_text(text)}</td>" for kind, text in zip(kinds, row, strict=True)) + "</tr>\n"
        for row in rows
    )
    return f"<table>\n{f'<tr>{head}</tr>{chr(10)}' if heads else ''}{body}</table>\n"


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
