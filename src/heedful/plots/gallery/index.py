"""All figures in a folder, with an index in Markdown and in HTML that has the command of each."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Mapping, Sequence
from html import escape
from pathlib import Path

from heedful.files.reading import is_folder
from heedful.files.writing import disk_errors, ensure_folder, require_writable, write_text_atomic
from heedful.lectures import Progress
from heedful.plots.gallery import EVERY, draw
from heedful.plots.style import PALETTES, Figure, Style, save

TITLE = "Figures of Heedful"
ABOUT = (
    "Each command draws its figure. Add --theme dark or print, --style FILE.mplstyle, and --out FILE.png, .svg or .pdf."
)

Settings = Mapping[str, Sequence[str]]


def write_gallery(
    folder: Path, theme: Style = "light", names: Sequence[str] = tuple(EVERY), settings: Settings | None = None
) -> Generator[Progress, None, Path]:
    """Draw figures into a folder, with README.md and index.html; a figure that needs a model is listed without one.

    `settings` are overrides by the names of figures.
    """
    changes = settings or {}
    if not is_folder(folder):
        require_writable(folder, "--gallery")
    with disk_errors(folder.parent, "write the gallery"):
        ensure_folder(folder)
    drawn = [name for name in names if name in changes or not EVERY[name].needs]
    for number, name in enumerate(drawn):
        figure = yield from _drawing(name, changes.get(name, ()), theme, number / len(drawn), 1 / len(drawn))
        save(figure, folder / f"{name}.png")
    pictures = {name: f"{name}.png" if name in drawn else None for name in names}
    with disk_errors(folder, "write the gallery"):
        write_text_atomic(folder / "README.md", markdown(pictures, changes, theme))
        write_text_atomic(folder / "index.html", page(pictures, changes, theme))
    return folder / "index.html"


def _drawing(
    name: str, overrides: Sequence[str], theme: Style, begin: float, part: float
) -> Generator[Progress, None, Figure]:
    steps = draw(name, overrides=overrides, theme=theme)
    while True:
        try:
            now = next(steps)
        except StopIteration as end:
            yield Progress(begin + part, name)
            figure: Figure = end.value.figure
            return figure
        yield Progress(begin + part * now.share, f"{name}: {now.doing}")


def command(name: str, overrides: Sequence[str], theme: Style) -> str:
    """The command that draws a figure."""
    words = [*overrides] or [*filter(None, [EVERY[name].needs])]
    return shlex.join(["heedful", "figure", name, *words, *(["--theme", theme] if theme != "light" else [])])


def markdown(pictures: Mapping[str, str | None], settings: Settings, theme: Style) -> str:
    """The index as Markdown."""
    lines = [f"# {TITLE}", "", ABOUT, ""]
    for name, picture in pictures.items():
        lines += [f"## {name}", "", f"{_sentence(name)}", ""]
        lines += ["```sh", command(name, settings.get(name, ()), theme), "```", ""]
        lines += [f"![{name}]({picture})", ""] if picture else []
    return "\n".join(lines)


def page(pictures: Mapping[str, str | None], settings: Settings, theme: Style) -> str:
    """The index as one HTML page beside its pictures."""
    palette, parts = PALETTES[theme], []
    for name, picture in pictures.items():
        line = command(name, settings.get(name, ()), theme)
        image = f'<a href="{picture}"><img src="{picture}" alt="{escape(name)}" loading="lazy"></a>' if picture else ""
        about = f"<p>{escape(_sentence(name))}</p><pre>{escape(line)}</pre>"
        parts.append(f'<figure id="{name}"><h2>{name}</h2>{about}{image}</figure>')
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{TITLE}</title>
<style>
body {{ margin: 2rem auto; max-width: 70rem; padding: 0 1rem; font: 17px/1.5 system-ui, sans-serif;
  background: {palette.paper}; color: {palette.ink}; }}
figure {{ margin: 3rem 0; }}
img {{ max-width: 100%; max-height: 42rem; }}
pre {{ padding: .6rem .8rem; background: {palette.line}; overflow-x: auto; }}
</style>
<h1>{TITLE}</h1>
<p>{escape(ABOUT)}</p>
{chr(10).join(parts)}
</html>
"""


def _sentence(name: str) -> str:
    about = EVERY[name].about
    return f"{about[0].upper()}{about[1:]}."
