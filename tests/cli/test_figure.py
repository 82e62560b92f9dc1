"""The command `figure`: list, output, pictures and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure
from PIL import Image

from heedful.cli import figure as verb
from heedful.config import Config
from heedful.lectures import Progress, Table
from heedful.plots.gallery import EVERY
from heedful.plots.gallery.index import write_gallery

SMALL = ("gradient-distance", "distance=30", "hidden=3", "singular=[0.5, 2.0]")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def figure(heedful: Run) -> Run:
    """Run the command `figure`."""
    return partial(heedful, "figure")


def test_without_a_name_every_figure_is_listed(figure: Run) -> None:
    code, out, err = figure()
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == list(EVERY)
    assert all(entry.about in out for entry in EVERY.values())


def test_figure_prints_numbers_and_writes_a_picture(figure: Run) -> None:
    code, out, err = figure(*SMALL)
    assert (code, err) == (0, "")
    head, first, *_, last = (line.split() for line in out.split("\n\n")[0].splitlines()[:-1])
    assert head[0] == "distance"
    assert first[:2] == ["1", "0.5"]
    assert last[0] == "30" and float(last[1]) == pytest.approx(0.5**30, rel=1e-3)
    assert "rows of 30; --json writes all" in out
    *_, picture, settings = out.splitlines()
    assert picture == "picture  gradient-distance.png"
    assert settings == "settings singular=[0.5, 2.0]  distance=30  hidden=3  seed=0"
    with Image.open("gradient-distance.png") as picture:
        assert picture.format == "PNG"


def test_json_has_every_row_with_the_settings(figure: Run, tmp_path: Path) -> None:
    code, out, _ = figure(*SMALL, "--json", "--out", tmp_path / "other.png")
    printed = json.loads(out)
    assert code == 0
    assert printed["figure"] == "gradient-distance"
    assert printed["settings"] == {"singular": [0.5, 2.0], "distance": 30, "hidden": 3, "seed": 0}
    assert [row[0] for row in printed["rows"]] == list(range(1, 31))
    assert {len(row) for row in printed["rows"]} == {len(printed["columns"])}
    assert Path(printed["picture"]) == tmp_path / "other.png"
    assert (tmp_path / "other.png").exists()


def test_nan_is_null_in_json(figure: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def study(settings: object):  # type: ignore[no-untyped-def]
        yield Progress(0.0, "working")
        return SimpleNamespace(table=lambda: Table(("n", "x"), ((1, float("nan")), (2, float("inf")), (3, "word"))))

    odd = SimpleNamespace(Settings=Config, study=study, plot=lambda found, style: Figure())
    monkeypatch.setattr("heedful.plots.gallery.find", lambda name: odd)
    code, out, _ = figure("recall", "--json")
    assert code == 0
    assert json.loads(out)["rows"] == [[1, None], [2, None], [3, "word"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("recal",), "did you mean recall?"),
        (("recall", "distence=3"), "distence is an unknown key"),
        (("recall", "distances=[0]"), "error: override distances: invalid value for distances.0"),
        (("recall", "steps"), "this is not an override"),
        (("length", "width=7"), "multiple of 2"),
        (("recall", "--out", "nowhere/a.png"), "there is no such folder"),
        (("recall", "--out", "nowhere/a.png"), "create it: mkdir -p nowhere"),
        (("beam-tree", "wide=3"), "one of beams, limit, model, penalty, text, texts, top"),
        (("recall", "--out", "."), "this is a folder"),
        (("recall", "--out", "a.gif"), "a name that ends in .png, .svg or .pdf"),
        (("recall", "--out", "a"), "a name that ends in .png, .svg or .pdf"),
    ],
)
def test_invalid_arguments_are_reported_before_training(
    figure: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr(verb, "watched", lambda study: pytest.fail("it went on"))
    code, out, err = figure(*words)
    assert (code, out) == (2, "")
    assert message in err


def test_unwritable_picture_has_no_traceback(figure: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *pieces: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("heedful.plots.style.write_atomic", full)
    code, _, err = figure(*SMALL)
    assert code != 0
    assert "gradient-distance.png" in err


def test_long_computations_are_logged(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter(range(0, 100, 3))
    monkeypatch.setattr("heedful.cli.figure.time.monotonic", lambda: float(next(clock)))

    def study():  # type: ignore[no-untyped-def]
        for tenth in range(10):
            yield Progress(tenth / 10, "working")
        return 7

    assert verb.watched(study()) == 7
    lines = capsys.readouterr().err.splitlines()
    assert 0 < len(lines) < 10
    assert all(line.endswith("%  working") for line in lines)


def test_terminal_shows_a_progress_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")

    def study():  # type: ignore[no-untyped-def]
        yield Progress(0.5, "working")
        return 7

    assert verb.watched(study()) == 7
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "working" in captured.err and "50%" in captured.err


def test_long_table_is_shortened_in_the_middle() -> None:
    lines = list(verb.table_lines(Table(("n", "square"), tuple((n, n * n) for n in range(100)))))
    assert len(lines) <= verb.ROWS + 2
    assert lines[0].split() == ["n", "square"]
    assert (lines[1].split(), lines[-2].split()) == (["0", "0"], ["99", "9801"])
    assert lines[-1].endswith("of 100; --json writes all)")
    assert len({len(line) for line in lines[:-1]}) == 1
    short = list(verb.table_lines(Table(("n", "name"), ((1, "one"),))))
    assert [line.split() for line in short] == [["n", "name"], ["1", "one"]]


def test_theme_and_a_style_sheet_are_used(figure: Run, tmp_path: Path) -> None:
    sheet = tmp_path / "mine.mplstyle"
    code, out, _ = figure("--write-style", sheet, "--theme", "dark")
    assert code == 0 and out == f"style    {sheet}\n" and "font.size" in sheet.read_text()
    sheet.write_text("figure.facecolor: ff0000\n")
    code, _, err = figure("--write-style", sheet)
    assert code == 2 and "--force" in err and sheet.read_text() == "figure.facecolor: ff0000\n"
    assert figure("masks", "length=3", "--style", sheet, "--output", tmp_path / "a.png")[0] == 0
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.convert("RGB").getpixel((0, 0)) == (255, 0, 0)
    assert figure("masks", "length=3", "--theme", "dark", "--out", tmp_path / "a.png", "--json")[0] == 0
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.convert("RGB").getpixel((0, 0)) == (0x14, 0x18, 0x1F)


def test_gallery_is_written_by_one_command(figure: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.cli.figure.write_gallery", partial(write_gallery, names=["masks", "contexts"]))
    code, out, _ = figure("--gallery", tmp_path / "all")
    assert (code, out) == (0, f"gallery  {tmp_path / 'all' / 'index.html'}\n")
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["README.md", "index.html", "masks.png"]


def test_the_diagram_of_a_recipe_with_other_sizes(figure: Run, tmp_path: Path) -> None:
    code, out, _ = figure("architecture", "numbers", "model.width=64", "depth=2", "model.heads=2", "-o", "a.svg")
    assert code == 0
    assert 'overrides=["model.width=64", "model.heads=2"]  depth=2' in out
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "(None, 10, 64)" in text and "numbers: " in text


def test_long_settings_are_cut_and_wrapped() -> None:
    class Long(Config):
        first: str = "a word " * 20
        second: tuple[int, ...] = tuple(range(40))
        third: str | None = None

    lines = list(verb.settings_lines(Long()))
    assert [line[:9] for line in lines] == ["settings ", " " * 9]
    assert all(len(line) <= verb.WIDE for line in lines) and lines[-1].endswith("third=null")
