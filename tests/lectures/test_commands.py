"""Every command of the decks runs, with trainings shortened to two steps; slow, apart from what test_decks.py runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heedful.cli.app import app
from heedful.explore.server.page import is_built
from heedful.lectures.decks import Command, commands

pytestmark = pytest.mark.slow

STEPS = ["train.budget={steps: 2}"]
DATA = {"numbers": ["data.train=400", "data.valid=10", "data.test=10"]}
DATA["numbers-rnn"] = DATA["numbers"]
DATA["number-languages"] = DATA["number-languages-conv"] = ["data.train=100", "data.valid=20", "data.test=20"]
for prose in ("gpt-prose", "bert-prose", "roberta-prose", "prose"):
    DATA[prose] = ["data.valid=1", "data.test=1"]
FIGURES = {
    "recall": ["distances=[1, 3]", "width=4", "steps=2"],
    "length": ["longest=3", "beyond=4", "width=4", "steps=2"],
    "alignment": ["longest=3", "shown=3", "width=4", "steps=2"],
    "nopos": ["width=8", "layers=2", "context=4", "steps=2"],
    "linear-probes": ["steps=2", "probed=100"],
    "maps": ["points=40", "neighbours=3"],
}
LONG = ("demo", "scaling")  # which have tests of their own
TEXT = "a text of your own, with words that occur more than once, such as the words of a text\n" * 40


def shortened(words: list[str]) -> list[str]:
    """A command that is done in seconds: few steps and examples, and a file instead of the explorer's server."""
    verb, *rest = words
    if verb == "train":
        name, *more = rest
        at = next((index for index, word in enumerate(more) if word.startswith("--")), len(more))
        return [verb, name, *more[:at], *STEPS, *DATA.get(name, []), *more[at:]]
    if verb == "figure":
        return [*words, *FIGURES.get(rest[0], [])]
    return [*words, "--out", "view.html"] if verb == "explore" else words


def run(words: list[str]) -> None:
    done = CliRunner().invoke(app, shortened(words))
    assert done.exit_code == 0, f"{done.output}\n{done.exception}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all runs that the commands read."""
    place = tmp_path_factory.mktemp("commands")
    (place / "text.txt").write_text(TEXT)
    trained = [one for one in commands() if one.words[1] == "train"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for one in trained:
            run(list(one.words[1:]))
        run(["train", "numbers", "--run", "runs/demo"])
    return place


EVERY = [one for one in commands() if one.words[0] == "heedful" and one.words[1] not in (*LONG, "train", "convert")]


@pytest.mark.parametrize("command", EVERY, ids=lambda one: one.text[:80])
def test_command_runs(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    if command.words[1] == "explore" and not is_built():
        pytest.skip("the explorer's page is not built: make web")
    if command.words[1] == "init":
        command = command._replace(words=[*command.words, "--force"])
    if out := re.search(r"--out (\S+)", command.text):
        (folder / out[1]).unlink(missing_ok=True) if not (folder / out[1]).is_dir() else None
    run(list(command.words[1:]))
