"""The one style of all figures, light and dark, and how a figure becomes a PNG, SVG or PDF file.

Lines and bars have the colours of Okabe and Ito (2008), classes those of Petroff (2021): both are safe for colour-blind
readers. The lightness L* of the sequential map is linear in the value. Matplotlib is imported when something is drawn,
and neither its backend nor its settings change outside.
"""

from __future__ import annotations

import re
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heedful.errors import UserError, printable, short
from heedful.files.writing import disk_errors, require_writable, write_atomic

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure as Figure
else:
    Figure = Any  # Matplotlib is imported only when something is drawn

Style = Literal["light", "dark"]
SUFFIXES = (".png", ".svg", ".pdf")
DOTS = 200  # per inch, in a PNG file
FONT = "DejaVu Sans"  # comes with Matplotlib


@dataclass(frozen=True)
class Palette:
    """The colours of a style."""

    paper: str
    panel: str  # behind points
    ink: str
    quiet: str  # labels of second rank
    line: str  # grid lines
    missing: str  # where a value is not finite
    series: tuple[str, ...]  # "C0", "C1" ... of Matplotlib; the last one, "C7", is quiet
    shades: tuple[tuple[float, str], ...]  # the sequential map: lightness falls or rises evenly

    @property
    def sequential(self) -> Colormap:
        from matplotlib.colors import LinearSegmentedColormap

        return LinearSegmentedColormap.from_list("heedful", list(self.shades)).with_extremes(bad=self.missing)


BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
ORANGE, SKY, YELLOW = "#e69f00", "#56b4e9", "#f0e442"
PALETTES: dict[Style, Palette] = {
    "light": Palette(
        paper="#ffffff", panel="#f5f8fb", ink="#262c36", quiet="#6c7480", line="#e4e7ec", missing="#ece6de",
        series=(BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, "#8c6d1f", "#6c7480"),
        shades=((0.0, "#f5f8fb"), (0.15, "#c1d9e9"), (0.399, "#69a6cc"), (0.7, "#24659b"), (1.0, "#0a2a54")),
    ),
    "dark": Palette(
        paper="#14181f", panel="#1c222b", ink="#e6eaf0", quiet="#9aa3b0", line="#323a46", missing="#4a4238",
        series=(SKY, ORANGE, GREEN, PURPLE, YELLOW, VERMILION, "#b8c4d6", "#9aa3b0"),
        shades=((0.0, "#1c222b"), (0.193, "#184678"), (0.443, "#327db4"), (0.722, "#78bee1"), (1.0, "#f0f8fc")),
    ),
}  # fmt: skip
CLASSES = (
    "#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6", "#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd",
)  # fmt: skip


def settings(palette: Palette) -> dict[Any, Any]:
    """Matplotlib's settings for a style."""
    from matplotlib.rcsetup import cycler

    return {
        "figure.facecolor": palette.paper, "savefig.facecolor": palette.paper, "axes.facecolor": palette.paper,
        "text.color": palette.ink, "axes.labelcolor": palette.ink, "axes.titlecolor": palette.ink,
        "axes.edgecolor": palette.quiet, "xtick.color": palette.quiet, "ytick.color": palette.quiet,
        "grid.color": palette.line, "axes.prop_cycle": cycler(color=palette.series),
        "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "axes.axisbelow": True,
        "ytick.left": False, "axes.titlelocation": "left", "axes.formatter.useoffset": False,
        "font.family": [FONT], "font.size": 10.0, "axes.titlesize": 10.0, "axes.labelsize": 10.0,
        "xtick.labelsize": 8.5, "ytick.labelsize": 8.5, "legend.fontsize": 9.5, "figure.titlesize": 12.5,
        "legend.frameon": False, "legend.borderaxespad": 0.0, "lines.linewidth": 1.8, "text.parse_math": False,
        "figure.constrained_layout.h_pad": 0.08, "figure.constrained_layout.w_pad": 0.08,
    }  # fmt: skip


@contextmanager
def drawing(style: Style, width: float, height: float, title: str = "") -> Iterator[tuple[Figure, Palette]]:
    """A new figure of a size in inches, with a title, and its colours; what is drawn within has its style."""
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if style not in PALETTES:
        raise UserError(
            "there is no such style", where="style", found=repr(style), expected=" or ".join(map(repr, PALETTES))
        )
    with matplotlib.style.context(["default", settings(PALETTES[style])]):
        lines = textwrap.wrap(label(title, 400), max(30, int(10.5 * width)))
        figure = _notebook_figure()(figsize=(width, height + 0.21 * len(lines[1:])), layout="constrained")
        FigureCanvasAgg(figure)
        if lines:
            figure.suptitle("\n".join(lines), x=0.01, ha="left", ma="left")
        yield figure, PALETTES[style]
        _use_fonts(figure)


@cache
def _notebook_figure() -> type[Figure]:
    """A figure that notebooks show, also where pyplot was never imported."""
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            return encode(self, ".png", dots=100)

    NotebookFigure.__name__ = NotebookFigure.__qualname__ = "Figure"
    return NotebookFigure


# ------------------------------------------------------------------ files
def require_figure(path: Path, where: str) -> None:
    """Refuse a file name at which no figure can be written, before anything is computed for it."""
    require_writable(path, where)
    require_suffix(path, where)


def require_suffix(path: Path, where: str) -> None:
    """Refuse a file name whose suffix is not that of a format in which figures are written."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            "the file name does not say which format to write", where=where, found=str(path),
            expected="a name that ends in .png, .svg or .pdf",
        )  # fmt: skip


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG, SVG or PDF, by the suffix; the same figure gives the same bytes."""
    path = Path(path)
    require_suffix(path, "the name of the figure's file")
    with disk_errors(path.parent, f"write {path.name}"):
        write_atomic(path, encode(figure, path.suffix.lower()))


def encode(figure: Figure, suffix: str, dots: int = DOTS) -> bytes:
    """A figure as the bytes of a file, without dates or random names.

    Its parts find their places when it is first written, and keep them: laying out again could move them by a dot.
    """
    import matplotlib

    fixed: dict[Any, Any] = {"svg.hashsalt": "heedful", "svg.fonttype": "none", "pdf.fonttype": 42}
    undated: dict[str, None] = {{".png": "Software", ".svg": "Date", ".pdf": "CreationDate"}[suffix]: None}
    smaller: dict[str, Any] = {"pil_kwargs": {"optimize": True}} if suffix == ".png" else {}
    file = BytesIO()
    with matplotlib.rc_context({**fixed, "image.composite_image": False}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of layouts that have little room
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        figure.savefig(
            file, format=suffix[1:], dpi=dots, bbox_inches="tight", pad_inches=0.15, metadata=undated, **smaller
        )
    return file.getvalue()


# ------------------------------------------------------------------ text in any script
def one_line(text: str, longest: int) -> str:
    """A text on one line, without control characters, and cut where it is too long."""
    return short(printable(text.replace("\n", "\\n")), longest)


def label(text: str, longest: int = 24) -> str:
    """A text as a figure shows it: on one line, with a question mark for what no installed font has."""
    line = one_line(text, longest)
    return line if line.isascii() else "".join(c if c.isspace() or _font_for(c) else "?" for c in line)


def _use_fonts(figure: Figure) -> None:
    """Give each text of a figure the fonts that its characters need."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        written = text.get_text() if isinstance(text, Text) else ""
        if not written.isascii():
            fonts = [_font_for(character) for character in written if not character.isspace()]
            text.set(fontfamily=[*dict.fromkeys([FONT, *filter(None, fonts)])])


@cache
def _font_for(character: str) -> str | None:
    """The first installed font family that has a character: our own, else a plain sans serif one, else any."""
    from matplotlib.font_manager import fontManager, get_font

    plain = {font.name: font for font in fontManager.ttflist if font.style == "normal" and font.weight == 400}
    names = sorted(
        plain.keys() - {FONT}, key=lambda name: ("Sans" not in name, re.search("Mono|Serif", name) is not None, name)
    )
    for name in [FONT, *names]:
        if "Last Resort" not in name and name in plain and ord(character) in get_font(plain[name].fname).get_charmap():
            return name
    return None
