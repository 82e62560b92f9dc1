"""One style for all figures: three formats with the same bytes each time, light and dark, and text in any script."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.text import Text
from PIL import Image

from heedful.errors import UserError
from heedful.plots import style
from heedful.plots.figures import curves, heatmap
from heedful.plots.style import CLASSES, DOTS, PALETTES, drawing, encode, label, require_suffix, save

MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def small(style_name: style.Style = "light", title: str = "A title") -> Figure:
    return heatmap([[0.25, 1.0]], ["ein"], ["a", "dog"], title, style=style_name)


@pytest.mark.parametrize("suffix", style.SUFFIXES)
def test_suffix_sets_the_format_and_files_are_reproducible(suffix: str, tmp_path: Path) -> None:
    first, again = (tmp_path / f"{name}{suffix}" for name in ("first", "again"))
    figure = small()
    save(figure, first)
    save(figure, again.with_suffix(suffix.upper()))
    save(small(), again)
    assert first.read_bytes().startswith(MAGIC[suffix])
    assert first.read_bytes() == again.read_bytes() == again.with_suffix(suffix.upper()).read_bytes()


@pytest.mark.parametrize("name", ["a.gif", "a", "a.png.txt"])
def test_unknown_suffix_is_rejected_and_writes_nothing(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="which format") as error:
        save(small(), tmp_path / name)
    assert error.value.expected is not None and ".png, .svg or .pdf" in error.value.expected
    with pytest.raises(UserError, match="which format"):
        require_suffix(Path(name), "--out")
    assert not list(tmp_path.iterdir())


def test_unwritable_folder_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"write a\.png"):
        save(small(), tmp_path / "nowhere" / "a.png")


def test_svg_text_is_text(tmp_path: Path) -> None:
    save(small(title="a <b> & c"), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "a &lt;b&gt; &amp; c" in text and ">dog<" in text and ">.25<" in text


def test_light_and_dark_differ_in_background_and_text() -> None:
    for style_name, palette in PALETTES.items():
        figure = small(style_name)
        assert to_rgb(figure.get_facecolor()) == to_rgb(palette.paper)
        assert figure._suptitle.get_color() == palette.ink  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="no such style"):
        small("grey")  # type: ignore[arg-type]


def lightness(colour: object) -> float:
    """CIE L*, from 0 to 100."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]  # type: ignore[arg-type]
    y = float(np.dot(linear, [0.2126, 0.7152, 0.0722]))
    return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y


@pytest.mark.parametrize("palette", PALETTES.values(), ids=list(PALETTES))
def test_sequential_colormap_is_linear_in_lightness(palette: style.Palette) -> None:
    shares = np.linspace(0, 1, 101)
    found = np.array([lightness(palette.sequential(share)) for share in shares])
    straight = np.linspace(found[0], found[-1], 101)
    assert np.abs(found - straight).max() < 2.5
    assert abs(found[-1] - found[0]) > 75


@pytest.mark.parametrize("palette", PALETTES.values(), ids=list(PALETTES))
def test_colours_have_contrast(palette: style.Palette) -> None:
    def luminance(colour: str) -> float:
        return ((lightness(colour) + 16) / 116) ** 3

    paper = luminance(palette.paper)
    for colour in palette.series:
        assert (max(paper, luminance(colour)) + 0.05) / (min(paper, luminance(colour)) + 0.05) > 2.2, colour
    assert len(set(palette.series)) == 8 and len(set(CLASSES)) == 10


def test_user_rcparams_are_kept_and_not_used() -> None:
    before = dict(matplotlib.rcParams)
    plain = encode(small(), ".png")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.dpi": 10}):
        assert encode(small(), ".png") == plain
        assert matplotlib.rcParams["font.size"] == 30
    assert dict(matplotlib.rcParams) == before


def test_figures_display_in_notebooks_without_pyplot(tmp_path: Path) -> None:
    script = (
        "import sys, heedful, heedful.plots.figures as plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        "figure = plots.curves({'a': ([1, 2], [3, 4])})\n"
        "assert figure._repr_png_().startswith(bytes([137]) + b'PNG')\n"
        "assert type(figure).__name__ == 'Figure'\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_long_titles_wrap_and_dollars_are_literal(tmp_path: Path) -> None:
    with drawing("light", 4, 2, "costs $5 and $6 " * 20) as (figure, _):
        figure.subplots()
    lines = figure._suptitle.get_text().split("\n")  # type: ignore[attr-defined]
    assert len(lines) > 3 and max(map(len, lines)) < 45
    save(figure, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.width < 6 * DOTS


def texts(figure: Figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]


@pytest.fixture
def fonts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Pretend that only these fonts are installed."""

    def installed(*names: str) -> None:
        only = [font for font in fontManager.ttflist if font.name in names]
        monkeypatch.setattr(fontManager, "ttflist", only)
        style._font_for.cache_clear()

    yield installed
    style._font_for.cache_clear()


def test_missing_glyphs_become_question_marks(fonts: Callable[..., None]) -> None:
    fonts("DejaVu Sans")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = heatmap([[1.0]], ["中文ab"], ["привет"], "γειά 中")
        figure.draw_without_rendering()
    assert {"??ab", "привет", "γειά ?"} <= {text.get_text() for text in texts(figure)}


def test_font_with_the_script_is_used(fonts: Callable[..., None]) -> None:
    fonts("DejaVu Sans", "STIXGeneral")
    figure = heatmap([[1.0]], ["a\U0001d4d0"], ["b"])  # a script capital A, which is in STIX and not in DejaVu Sans
    found = [text.get_fontfamily() for text in texts(figure) if text.get_text() == "a\U0001d4d0"]
    assert found and all(families == ["DejaVu Sans", "STIXGeneral"] for families in found)


def test_labels_are_one_short_line_without_control_characters() -> None:
    assert label("a\nb\x1b[31m") == "a\\nb\\x1b[31m"
    assert label("x" * 30, 10) == "xxxxxxx..."


def test_curve_names_in_any_script() -> None:
    figure = curves({"Größe": ([1], [2])}, "Überschrift", "x → y", "µ")
    assert {"Größe", "Überschrift", "x → y", "µ"} <= {text.get_text() for text in texts(figure)}
