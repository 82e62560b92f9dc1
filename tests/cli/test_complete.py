"""Shell completion, through the environment variables that the installed scripts set."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from heedful.cli.app import app
from patience import LONG

Ask = Callable[..., str]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> Ask:
    """The output of the program in an environment."""
    monkeypatch.chdir(folder)

    def call(*words: str, **environment: str) -> str:
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit):
                app(words, prog_name="heedful")
        return capsys.readouterr().out

    return call


def bash(*words: str) -> dict[str, str]:
    """The environment in which bash completes the last word."""
    line = {"COMP_WORDS": " ".join(["heedful", *words]), "COMP_CWORD": str(len(words))}
    return {**line, "_HEEDFUL_COMPLETE": "complete_bash"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.yaml").write_text("{}")
    for name in ("one", "other"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "recipe.yaml").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("tra",), {"train", "transfer", "translate"}),
        (("classify-",), {"classify-tree"}),
        (("jud",), set()),
        (("train", "numbers-"), {"numbers-reward", "numbers-rnn", "numbers-three"}),
        (("train", "mi"), {"mine.yaml"}),
        (("train", "--fol"), {"--folder"}),
        (("train", "numbers", "train.budget.st"), {"train.budget.steps=", "train.budget.steps=700"}),
        (("train", "numbers", "train.seed=9", "train.se"), {"train.seed=", "train.seed=9"}),
        (("train", "numbers", "train.sc"), {"train.schedule.", "train.schedule.kind"}),
        (("train", "numbers", "train.comp"), {"train.compile=true", "train.compile=false"}),
        (("show", "numbers", "train.schedule.kind", "=", "co"), {"constant", "cosine"}),
        (("check", "no-such-recipe", "train."), set()),
        (("translate", "runs/"), {"runs/one", "runs/other"}),
        (("explore", "runs/one", "runs/ot"), {"runs/other"}),
        (("eval", "runs/one", "--checkpoint", "b"), {"best"}),
        (("generate", "runs/one", "--min"), {"--min-length"}),
        (("init", "cl"), {"classify", "classification"}),
        (("figure", "grad"), {"gradient-distance"}),
    ],
)  # fmt: skip
def test_bash(words: tuple[str, ...], found: set[str], ask: Ask) -> None:
    assert set(ask(**bash(*words)).split()) == found


@pytest.mark.parametrize("words", [("",), ("train", "numbers", "train.budget."), ("translate", "runs/")])
def test_completion_loads_no_heavy_package(words: tuple[str, ...], folder: Path) -> None:
    program = "import sys, atexit; atexit.register(lambda: print({'torch', 'numpy'} & set(sys.modules))); "
    program += "from heedful.cli.app import app; app([], prog_name='heedful')"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=folder, timeout=LONG,
        env={**os.environ, **bash(*words)},
    )  # fmt: skip
    *found, heavy = ran.stdout.splitlines()
    assert found and heavy == "set()", ran


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("heedful classify-", {"classify-tree"}),
        (
            "heedful train numbers train.schedule.kind=co",
            {"train.schedule.kind=constant", "train.schedule.kind=cosine"},
        ),
        ("heedful eval runs/on", {"runs/one"}),
    ],
)
def test_zsh_and_fish(line: str, found: set[str], ask: Ask) -> None:
    zsh = ask(_TYPER_COMPLETE_ARGS=line, _HEEDFUL_COMPLETE="complete_zsh")
    assert set(re.findall(r'"([^"]+)"(?::"[^"]*")?', zsh)) == found
    fish = {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_HEEDFUL_COMPLETE": "complete_fish"}
    assert {word.split("\t")[0] for word in ask(_TYPER_COMPLETE_ARGS=line, **fish).splitlines()} == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed_and_installed(shell: str, ask: Ask, tmp_path: Path) -> None:
    home = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path), "XDG_CONFIG_HOME": ""}
    script = ask("--show-completion", shell, **home)
    assert f"_HEEDFUL_COMPLETE=complete_{shell}" in script
    assert "Completion will take effect" in ask("--install-completion", shell, **home)
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(f"complete_{shell}" in text for text in written)
