"""`--json` of every command that prints a table: one object per line, with the same content."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

from heedful.cli.app import COMMANDS, app
from heedful.data.text.token_text import TokenizedText
from heedful.lectures.claims import sheet
from heedful.plots.gallery import EVERY
from heedful.runs.recipe import load_recipe, shipped

Run = Callable[..., tuple[int, str, str]]

# Commands that print no table: documents, files, servers, and the live display of training.
WITHOUT = {"demo", "init", "show", "schema", "train", "encode", "embed", "predict", "explore", "serve", "word2vec"}


def records(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_every_command_that_prints_a_table_has_json() -> None:
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert {name for name in COMMANDS if not any("--json" in one.opts for one in commands[name].params)} == WITHOUT


def test_recipes_and_figures(heedful: Run) -> None:
    assert [one["recipe"] for one in records(heedful("recipes", "--json")[1])] == list(shipped())
    assert [one["figure"] for one in records(heedful("figure", "--json")[1])] == list(EVERY)


def test_check(heedful: Run) -> None:
    (found,) = records(heedful("check", "numbers", "model.width=32", "--json")[1])
    assert Path(found.pop("recipe")).name == "numbers.yaml"
    size = load_recipe("numbers", ["model.width=32"]).size
    assert found == {"task": "translation", "model": "transformer", "parameters": size}


def test_claims(heedful: Run) -> None:
    assert [one["id"] for one in records(heedful("claims", "--json")[1])] == [claim.id for claim in sheet()]


def test_runs(heedful: Run, tmp_path: Path) -> None:
    assert heedful("runs", "--json") == (0, "", "")
    run = tmp_path / "runs" / "mine"
    (run / "checkpoints" / "step-00000020").mkdir(parents=True)
    (run / "recipe.yaml").write_text("task: {kind: translation}\nmodel: {kind: gru}\ndata: {kind: tsv}\n")
    events = [
        {"kind": "step", "step": 20, "progress": 0.5},
        {"kind": "evaluated", "step": 20, "split": "valid", "scores": {"bleu": {"value": 31.25, "signature": ""}}},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (found,) = records(heedful("runs", "--json")[1])
    assert found.pop("changed").endswith("Z")
    assert found == {
        "run": "runs/mine", "kind": "translation gru tsv", "step": 20, "progress": 0.5, "valid": {"bleu": 31.25},
        "test": None,
    }  # fmt: skip


def test_tokenize(heedful: Run, tmp_path: Path) -> None:
    text = "".join(f"line {number} of a text\n" for number in range(300))
    for name in ("train.txt", "valid.txt"):
        (tmp_path / name).write_text(text)
    data = "data={kind: text, train: train.txt, valid: valid.txt}"
    words = ("tokenize", "gpt-prose", "-o", "tokens", data, "tokenizer.vocab=300", "--jobs", "1", "--json")
    (found,) = records(heedful(*words)[1])
    assert found["folder"] == "tokens"
    assert list(found["splits"]) == ["train", "valid"]
    for split in ("train", "valid"):
        tokens = len(TokenizedText(folder=str(tmp_path / "tokens")).read(split).ids) - 1  # with a last start token
        assert found["splits"][split] == {"tokens": tokens, "bytes": len(text), "documents": 1}


@pytest.mark.parametrize("words", [("recipes",), ("claims",), ("figure",)])
def test_without_json_tables_are_plain_text(heedful: Run, words: tuple[str, ...]) -> None:
    with pytest.raises(json.JSONDecodeError):
        records(heedful(*words)[1])
