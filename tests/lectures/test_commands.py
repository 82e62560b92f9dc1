"""Commands of the decks that read runs of digits or number words, on runs of two steps; slow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heedful.cli.app import app
from heedful.lectures.decks import Command, commands

pytestmark = pytest.mark.slow

STEPS = "train.budget={steps: 2}"
RUNS = {
    "numbers": ["numbers", "data.train=400", "data.valid=10", "data.test=10", STEPS],
    "digits": ["digits", STEPS],
    "digits-denoising": ["digits-denoising", STEPS],
    "flat": [
        "digits",
        "model.encoder=[{kind: dense, width: 48}, {kind: dense, width: 2, activation: linear}]",
        STEPS,
        "--run",
        "runs/flat",
    ],
}
COMMANDS = ("translate", "reconstruct", "denoise", "encode", "word2vec", "lookup")
TEXT = "a text of your own, with words that occur more than once, such as the words of a text\n" * 40


def run(words: list[str]) -> None:
    """Run a command of `heedful`."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, f"{done.output}\n{done.exception}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs that the commands read."""
    place = tmp_path_factory.mktemp("commands")
    (place / "text.txt").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for words in RUNS.values():
            run(["train", *words])
    return place


def reads_these(command: Command) -> bool:
    """Whether a command reads no other runs."""
    runs = set(re.findall(r"\bruns/([\w-]+)", command.text))
    return command.words[0] == "heedful" and command.words[1] in COMMANDS and runs <= RUNS.keys()


@pytest.mark.parametrize("command", [one for one in commands() if reads_these(one)], ids=lambda one: one.text[:80])
def test_command_runs(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    run(list(command.words[1:]))
