"""The decks: every row of the claim sheet has a topic, commands are valid, pages are up to date."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import heedful
from heedful.cli.app import app
from heedful.errors import UserError
from heedful.explore.views import VIEWS
from heedful.lectures.claims import OPEN, SECTIONS, sheet
from heedful.lectures.decks import Command, Deck, Topic, commands, decks, find, matching, runs, topics
from heedful.lectures.pages import pages
from heedful.plots.gallery import EVERY as FIGURES
from heedful.runs.recipe import load_recipe

ROOT = Path(__file__).parents[2]
SOURCE = Path(heedful.__file__).parent
EVERY = [f"{section.letter}{number}" for section in SECTIONS for number in range(1, section.rows + 1)]
COMMANDS = list(commands())


def test_every_row_is_proven_or_open_by_name() -> None:
    proven = [claim.id for claim in sheet()]
    assert sorted([*proven, *OPEN]) == sorted(EVERY)


def test_every_row_has_a_topic_and_every_topic_a_deck() -> None:
    covered = {row for topic in topics().values() for row in topic.ids}
    assert [row for row in EVERY if row not in covered] == [], "rows without a topic in decks.toml"
    assert covered <= set(EVERY)
    listed = {name for deck in decks() for name in deck.topics}
    assert listed == set(topics())
    assert all(len(set(deck.topics)) == len(deck.topics) for deck in decks())


def test_topic_runs_or_is_open() -> None:
    silent = [name for name, topic in topics().items() if not topic.run and not topic.open]
    assert silent == []
    assert all(topic.shows and topic.code for topic in topics().values() if topic.run)
    assert all(topic.claims or topic.open for topic in topics().values())


def test_files_of_the_code_exist() -> None:
    missing = [file for topic in topics().values() for file in topic.code if not (SOURCE / file).exists()]
    assert missing == []


def test_names_of_decks_topics_and_views_are_apart() -> None:
    assert not {deck.name for deck in decks()} & set(topics())
    assert {topic.view for topic in topics().values()} <= {*VIEWS, None}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one.text[:70])
def test_every_command_of_a_topic_is_accepted(command: Command) -> None:
    program, *rest = command.words
    if program == "python":
        flag, code = rest
        assert flag == "-c"
        compile(code, command.topic, "exec")
        return
    assert program == "heedful"
    verb, *words = rest
    found: Any = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    given = found.make_context(verb, list(words)).params
    if "recipe" in given:
        load_recipe(given["recipe"], given.get("overrides") or [])
    if verb == "figure":
        assert given["name"] in FIGURES
    if verb == "lectures":
        find(" ".join(given["words"]))
    trained = [runs()[name].train for name in runs()]
    for name in re.findall(r"\bruns/([\w-]+)", command.text):
        made = name in runs() or f"--run runs/{name}" in command.text or name in ("demo", "sweep")
        made = made or any(f"--run runs/{name}" in one for one in topics()[command.topic].run)
        assert made, f"{command.text} reads runs/{name}, which nothing trains ({trained})"


def quick(command: Command) -> bool:
    """Whether a command takes a second or two and needs neither a run nor a file of the user's."""
    heavy = ("train", "explore", "demo", "figure", "scaling", "tokenize")
    return not command.needs and "runs/" not in command.text and command.words[1] not in heavy


@pytest.mark.parametrize("command", [one for one in COMMANDS if quick(one)], ids=lambda one: one.text[:70])
def test_quick_commands_run(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if command.words[0] == "python":
        exec(command.words[2], {"__name__": "__main__"})
    else:
        done = CliRunner().invoke(app, list(command.words[1:]))
        assert done.exit_code == 0 and done.exception is None, done.output
        assert done.output


def test_entry_lists_claims_errata_and_open_points() -> None:
    heads = topics()["multi-head"]
    assert [claim.id for claim in heads.claims] == ["C2", "C3", "C4"]
    assert [claim.id for claim in heads.errata] == ["X6"]
    assert heads.record()["claims"][0]["tests"] == ["tests/claims/test_transformer.py"]
    assert heads.decks == ["han", "smola", "pilehvar", "yoon"]
    commands = [step.command for step in heads.steps]
    assert commands == [heads.run[0], "heedful train numbers", heads.run[1]]  # the figure needs no training
    assert [step.minutes is None for step in heads.steps] == [True, False, True]
    walk = topics()["translation-walk"]
    assert [step.command for step in walk.steps] == list(walk.run)  # it trains what it reads
    assert topics()["xlnet"].view == "positions"
    assert all(set(topic.open) == {OPEN[row] for row in topic.ids if row in OPEN} for topic in topics().values())


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("Beam Search", ["beam-search", "animated-steps"]),
        ("C7", ["add-and-norm"]),
        ("c1", ["single-head"]),
        ("linformer", ["linformer"]),
        ("models/elmo", ["elmo"]),
        ("heedful figure pooling", ["pooling"]),
        ("MLM", ["masked-words"]),
        ("GPT vs. BERT vs. XLNet?", ["three-masks"]),
        ("what is wrong with BERT", ["bert-limits"]),
        ("postional encodings", ["sinusoids", "position-waves", "no-positions"]),  # a word that no topic has
    ],
)
def test_search_finds_titles_ids_commands_and_files(query: str, expected: list[str]) -> None:
    found = find(query)
    assert isinstance(found, list)
    assert [topic.name for topic in found] == expected


def test_closest_title_comes_first() -> None:
    assert [topic.name for topic in matching("self attention")][:2] == ["self-attention", "worked-self-attention"]
    assert matching("Self-Attention")[0].name == "self-attention"
    assert matching("masked language models")[0].name == "masked-words"
    assert matching("the of") == matching("") == []


def test_deck_lookup_and_suggestion() -> None:
    assert isinstance(find("Yoon"), Deck)
    found = find("bert")
    assert isinstance(found, list) and len(found) > 10
    titled = ["bert" in f"{topic.name} {topic.title} {topic.also}".lower() for topic in found]
    assert titled == sorted(titled, reverse=True)
    with pytest.raises(UserError, match="did you mean bigbird"):
        find("bigbrid")
    with pytest.raises(UserError, match="lists the decks"):
        find("zzz")


@pytest.mark.parametrize("name", pages())
def test_pages_are_up_to_date(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert text == pages()[name], "write them: python -m heedful.lectures.pages docs"


def test_lectures_command_prints_decks_topics_and_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_command(*words: str) -> str:
        done = CliRunner().invoke(app, ["lectures", *words])
        assert done.exit_code == 0, done.output
        return done.output

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("heedful.cli.lectures.WIDE", 300)  # no path is broken
    assert all(deck.title in run_command() for deck in decks())
    assert "Multi-head attention" in run_command("han")
    with pytest.MonkeyPatch.context() as patch:  # as it was before the last row was proven
        patch.setattr(Topic, "open", ["Dialog data"])
        assert "open:" in run_command("xing") and re.search(r"open +Dialog data", run_command("texar-data"))
    assert "see also  " in run_command("self-attention") and "worked-self-attention" in run_command("self-attention")
    assert "see also" not in run_command("C7")
    shown = run_command("multi-head")
    for part in (
        "heedful train numbers",
        "--view grid",
        str(SOURCE / "blocks/attention.py"),
        "python -m pytest tests/claims/test_transformer.py --claim C2,C3,C4",
        "erratum X6",
    ):
        assert part in shown
    records = [json.loads(line) for line in run_command("bert", "--json").splitlines()]
    assert len(records) > 10 and all(record["decks"] for record in records)
    assert [json.loads(line)["name"] for line in run_command("--json").splitlines()] == [deck.name for deck in decks()]


def test_names_are_completed() -> None:
    from heedful.cli.complete import lecture_names

    assert ("han", "Transformer, BERT, autoencoder") in lecture_names("h")
    assert [name for name, _ in lecture_names("multi")] == ["multi-head"]
