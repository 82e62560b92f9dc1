"""The part of a report about classes: confusion, scores of each class, calibration and mistakes, also as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from heedful.errors import short
from heedful.files.writing import ensure_folder, write_text_atomic
from heedful.plots.class_plots import figures_of
from heedful.plots.style import save
from heedful.runs.html import escaped, figure, folded, html_table, section
from heedful.training.class_report import ClassReport, ClassScores

NAME = "details.json"
LONGEST = 300  # characters of an input in the table; the file has all of it
NUMBERS = frozenset(range(1, 6))


def class_section(folder: Path, report: ClassReport) -> str:
    """Write the numbers and the figures into a run's folder, and return the section of its report."""
    write_text_atomic(folder / NAME, json.dumps(asdict(report), indent=1, ensure_ascii=False) + "\n")
    return section(f"Predictions of the {report.what}, in detail", "".join(_parts(folder, report)))


def _parts(folder: Path, report: ClassReport) -> Iterator[str]:
    wrong = report.count - report.right
    ece = f"expected calibration error {100 * report.ece:.2f} %"
    right = "are right" if report.exclusive else "have all labels right"
    yield f"<p>{report.right:,} of {report.count:,} {escaped(report.what)} {right}, {wrong:,} not; {ece}.</p>\n"
    pictures = folder / "pictures"
    for name, title, about, drawn in figures_of(report):
        ensure_folder(pictures)
        save(drawn, pictures / f"{name}.png")
        yield figure(folder, pictures / f"{name}.png", title, about)
    if report.classes:
        heads = ("class", report.what, "predicted", "precision", "recall", "F1")
        rows = [_row(each) for each in report.scored]
        yield f"<p>Scores of each class, in percent</p>\n{html_table(heads, rows, NUMBERS)}"
    if report.mistakes:
        mistakes = [
            (short(one.input, LONGEST), one.expected, short(one.predicted, LONGEST), f"{one.probability:.1%}")
            for one in report.mistakes
        ]
        table = html_table(("input", "true", "predicted", "probability"), mistakes, frozenset({3}))
        yield folded(f"Worst mistakes: the {len(mistakes)} most confident wrong predictions", table)
    yield f'<p class="quiet">All numbers: <a href="{NAME}">{NAME}</a></p>\n'


def _row(each: ClassScores) -> tuple[str, ...]:
    scores = (each.precision, each.recall, each.f1)
    return each.label, f"{each.count:,}", f"{each.predicted:,}", *(f"{value:.2f}" for value in scores)
