"""The style of all figures: light, dark or print, or a Matplotlib style sheet; figures as PNG, SVG and PDF files.

Lines and bars have the colours of Okabe and Ito (2008), classes those of Petroff (2021): both are safe for colour-blind
readers. `print` has greys, and lines that differ in their dashes. The lightness L* of the sequential map is linear in
the value. Matplotlib is imported when something is drawn, and neither its backend nor its settings change outside.
"""

from __future__ import annotations

import difflib
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heedful.errors import UserError, printable, short, shown
from heedful.files.reading import is_file, read_file
from heedful.files.writing import disk_errors, require_writable, write_atomic

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure as Figure
else:
    Figure = Any  # Matplotlib is imported only when something is drawn

Style = Literal["light", "dark", "print"]
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
    dashes: tuple[str, ...] = ("-",) * 8  # of the lines of each colour
    colormap: str | None = None  # Matplotlib's name of another sequential map

    @property
    def sequential(self) -> Colormap:
        import matplotlib
        from matplotlib.colors import LinearSegmentedColormap

        if self.colormap is not None:
            return matplotlib.colormaps[self.colormap].with_extremes(bad=self.missing)
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
    "print": Palette(
        paper="#ffffff", panel="#ffffff", ink="#000000", quiet="#3b3b3b", line="#d0d0d0", missing="#e9e9e9",
        series=("#000000", "#525252", "#848484", "#303030", "#a0a0a0", "#6a6a6a", "#1b1b1b", "#777777"),
        shades=((0.0, "#f6f6f6"), (0.25, "#b6b6b6"), (0.5, "#7a7a7a"), (0.75, "#434343"), (1.0, "#131313")),
        dashes=("-", "--", "-.", ":", "-", "--", "-.", ":"),
    ),
}  # fmt: skip
CLASSES = (
    "#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6", "#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd",
)  # fmt: skip


def settings(palette: Palette) -> dict[str, Any]:
    """Matplotlib's settings for a style; sizes of text are in points, or relative to `font.size`."""
    from matplotlib.rcsetup import cycler

    return {
        "figure.facecolor": palette.paper, "savefig.facecolor": palette.paper, "axes.facecolor": palette.paper,
        "text.color": palette.ink, "axes.labelcolor": palette.ink, "axes.titlecolor": palette.ink,
        "axes.edgecolor": palette.quiet, "xtick.color": palette.quiet, "ytick.color": palette.quiet,
        "grid.color": palette.line, "axes.prop_cycle": cycler(color=palette.series, linestyle=palette.dashes),
        "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "axes.axisbelow": True,
        "ytick.left": False, "axes.titlelocation": "left", "axes.formatter.useoffset": False,
        "font.family": [FONT], "font.size": 11.0, "axes.titlesize": "medium", "axes.labelsize": "medium",
        "xtick.labelsize": "small", "ytick.labelsize": "small", "legend.fontsize": "medium",
        "figure.titlesize": "large", "legend.frameon": False, "legend.borderaxespad": 0.0, "lines.linewidth": 1.8,
        "text.parse_math": False,
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
    sheet = SHEET.get()
    with matplotlib.style.context(["default", settings(PALETTES[style]), dict(sheet)]):
        palette = _changed(PALETTES[style], sheet)
        lines = textwrap.wrap(label(title, 400), max(30, int(10.5 * width)))
        figure = _notebook_figure()(figsize=(width, height + 0.21 * len(lines[1:])), layout="constrained")
        FigureCanvasAgg(figure)
        if lines:
            figure.suptitle("\n".join(lines), x=0.01, ha="left", ma="left")
        yield figure, palette
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


# ------------------------------------------------------------------ style sheets
SHEET: ContextVar[Mapping[str, Any]] = ContextVar("SHEET", default={})  # noqa: B039  # settings on top of a style's
PARTS = {"paper": "figure.facecolor", "ink": "text.color", "quiet": "xtick.color",
         "line": "grid.color", "colormap": "image.cmap"}  # fmt: skip  # colours of a palette as a sheet sets them


@contextmanager
def style_sheet(path: str | Path | None) -> Iterator[None]:
    """Draw all figures within by a Matplotlib style sheet, on top of the style; None: by the style alone."""
    before = SHEET.set({} if path is None else read_sheet(Path(path)))
    try:
        yield
    finally:
        SHEET.reset(before)


def read_sheet(path: Path) -> dict[str, Any]:
    """The settings of a style sheet, `key: value` lines; what Matplotlib does not know is refused."""
    import matplotlib

    found: dict[str, Any] = {}
    for number, line in enumerate(_lines(path), 1):
        key, colon, value = (part.strip() for part in _uncommented(line).partition(":"))
        if not key:
            continue
        where = f"{path}:{number}"
        if not colon or key not in matplotlib.rcParams:
            near = difflib.get_close_matches(key, matplotlib.rcParams, n=1)
            raise UserError(
                "this is no setting of Matplotlib", where=where, found=shown(key),
                expected="a line such as `font.size: 12`",
                todo=f"did you mean {near[0]}?" if near else "`heedful figure --write-style FILE` writes a whole sheet",
            )  # fmt: skip
        try:
            checked: Any = matplotlib.RcParams({key: value.strip('"')})
            found[key] = checked[key]
        except ValueError as error:
            raise UserError(f"invalid value for {key}", where=where, found=shown(value), expected=str(error)) from None
    return found


def _lines(path: Path) -> list[str]:
    if not is_file(path):
        raise UserError("there is no such style sheet", where=str(path), todo="write one: heedful figure --write-style")
    try:
        return read_file(path, most=1 << 20).decode().splitlines()
    except UnicodeDecodeError:
        raise UserError("a style sheet is text", where=str(path), expected="`key: value` lines in UTF-8") from None


def _uncommented(line: str) -> str:
    """A line of a sheet without its comment; a # within double quotes is a colour."""
    return re.match(r'(?:[^#"]|"[^"]*"?)*', line)[0]  # type: ignore[index]


def write_sheet(style: Style = "light") -> str:
    """A style as a Matplotlib style sheet, to be changed and given to `--style`."""
    lines = [
        f"# The {style} style of Heedful's figures. Change what you like: `heedful figure NAME --style FILE`.",
        "# Every setting of Matplotlib may stand here. Sizes such as small are relative to font.size.",
        "# image.cmap: viridis   # the colours of heat maps",
    ]
    for key, value in settings(PALETTES[style]).items():
        text = ", ".join(value) if isinstance(value, list) else str(value)
        lines.append(f"{key}: {text}".replace("#", ""))
    return "\n".join(lines) + "\n"


def _changed(palette: Palette, sheet: Mapping[str, Any]) -> Palette:
    """A palette with the colours that a sheet sets."""
    from matplotlib.colors import to_hex

    parts = {name: sheet[key] for name, key in PARTS.items() if key in sheet}
    changes: dict[str, Any] = {name: value if name == "colormap" else to_hex(value) for name, value in parts.items()}
    if "axes.prop_cycle" in sheet:
        colours = sheet["axes.prop_cycle"].by_key().get("color", palette.series)
        changes["series"] = tuple(to_hex(colours[number % len(colours)]) for number in range(len(palette.series)))
    return replace(palette, **changes)


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
    file = BytesIO()
    with matplotlib.rc_context({**fixed, "image.composite_image": False}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of layouts that have little room
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        figure.savefig(file, format=suffix[1:], dpi=dots, bbox_inches="tight", pad_inches=0.15, metadata=undated)
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
