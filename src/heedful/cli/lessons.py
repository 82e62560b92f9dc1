"""The command `lessons`: the lessons of the explorer, or the steps of one; needs no torch."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from heedful.cli.output import json_line, say
from heedful.explore.lessons.reading import find_lesson, shipped

WIDE = 120  # columns of a file or a pipe


def lessons_command(name: str | None, as_json: bool) -> None:
    """Print a line for each lesson, or the steps of one, which is checked."""
    found = list(shipped().values()) if name is None else [find_lesson(name)]
    if as_json:
        for lesson in found:
            say(json_line({**lesson.record(), "titles": [step.title for step in lesson.steps]}))
        return
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = WIDE
    table = Table(box=None, pad_edge=False, show_header=False)
    if name is None:
        for lesson in found:
            table.add_row(Text(lesson.name, "cyan"), Text(lesson.title), Text(f"{len(lesson.steps)} steps", "dim"))
        console.print(table)
        console.print(Text(f"\n`heedful lessons {found[0].name}` shows what to type for one", "dim"))
        return
    (lesson,) = found
    console.print(Text(lesson.title, "bold"))
    console.print(lesson.about)
    for label, text in (("for", lesson.model), ("type", lesson.command), ("topics", ", ".join(lesson.topics))):
        table.add_row(Text(label, "dim"), Text(text))
    for number, step in enumerate(lesson.steps, 1):
        table.add_row(Text(str(number), "dim"), Text(f"{step.title} ({step.view})"))
    console.print(table)
