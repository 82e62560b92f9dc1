"""Notebooks are valid files, name code that exists, and run: two here, all of them by Jupyter in slow tests."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

from heedful.cli import app as cli
from heedful.lectures.notebooks import cells, notebook, notebooks

ROOT = Path(__file__).parents[1]
NAMES = list(notebooks())
DECKS = {"han", "pilehvar", "smola", "xing", "yoon"}
FAMILIES = {"autoencoders", "bert", "convnet", "gpt", "recurrent", "seq2seq", "transformer"}


def test_there_is_one_for_each_deck_and_each_family() -> None:
    assert set(NAMES) == DECKS | FAMILIES


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_are_valid(name: str) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.reads(notebook(name), as_version=4))


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_name_code_and_pages_that_exist(name: str) -> None:
    text = "\n".join(cell.text for cell in cells(name) if cell.kind == "markdown")
    paths = re.findall(r"`((?:src|docs)/[\w./-]+)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert any(path.startswith("src") for path in paths)


def execute(name: str) -> list[object]:
    """Run the cells in this process; the values of those that end in an expression."""
    session: dict[str, object] = {"__name__": "__main__"}
    values = []
    for cell in cells(name):
        if cell.kind == "markdown":
            continue
        tree = ast.parse(cell.text)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(tree, name, "exec"), session)
            if isinstance(last, ast.Expr):
                values.append(eval(compile(ast.Expression(last.value), name, "eval"), session))  # noqa: S307
    return values


@pytest.mark.parametrize("name", ["smola", "pilehvar"])
def test_quick_notebooks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(execute(name)) > 4


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_notebooks_run_in_jupyter(name: str, tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    book = nbformat.reads(notebook(name), as_version=4)
    nbclient.NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)


def test_command_lists_and_writes_notebooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def heedful(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["heedful", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), "".join(capsys.readouterr())

    code, listed = heedful("notebook")
    assert code == 0 and all(name in listed for name in NAMES)
    code, wrote = heedful("notebook", "smola", "--out", tmp_path / "attention.ipynb")
    assert code == 0 and "attention.ipynb" in wrote
    assert (tmp_path / "attention.ipynb").read_text(encoding="utf-8") == notebook("smola")
    code, refused = heedful("notebook", "smola", "--out", tmp_path / "attention.ipynb")
    assert code == 2 and "this file exists" in refused
    code, unknown = heedful("notebook", "smolla")
    assert code == 2 and "did you mean smola?" in unknown
