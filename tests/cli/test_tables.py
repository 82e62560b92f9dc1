"""The commands on tables, and translation into several languages."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import heedful as library

Run = Callable[..., tuple[int, str, str]]
RECIPE = """
task: {kind: tabular, predict: price, leave_out: [number]}
data: {kind: csv, train: train.csv, valid: valid.csv, test: valid.csv}
model: {kind: tabular, text: {kind: mean, width: 8}, width: 8, hidden: [16]}
train:
  {budget: {steps: 3}, schedule: {kind: constant}, batch_examples: 32, evaluate_every: 3, save_every: 3, threads: 1}
"""
THREE = """
task: {kind: translation}
data: {kind: parallel_numbers, train: 60, valid: 4, test: 4, below: 200}
tokenizer: {kind: characters}
model: {kind: transformer, width: 8, heads: 2, encoder_layers: 1, decoder_layers: 1, hidden: 16, context: 64}
train: {budget: {steps: 2}, schedule: {kind: constant}, batch_tokens: 128, evaluate_every: 2, save_every: 2, threads: 1}
decode: {beams: 1, max_length: 6}
"""


def rows(count: int, seed: int) -> str:
    rng = random.Random(seed)
    lines = ["number,title,pages,color,price"]
    for number in range(count):
        pages, color = rng.randint(40, 900), rng.choice(["red", "blue"])
        lines.append(f'{number},"a long title, number {number} of all",{pages},{color},{pages / 50:.2f}')
    return "\n".join(lines) + "\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "train.csv").write_text(rows(60, 0))
    (tmp_path / "valid.csv").write_text(rows(10, 1))
    (tmp_path / "table.yaml").write_text(RECIPE)
    return tmp_path


def test_a_table_is_checked_trained_on_evaluated_and_predicted(heedful: Run, files: Path, no_loss_curve: None) -> None:
    code, out, err = heedful("check", "table.yaml")
    assert code == 0, err
    assert "title: text, pages: number, color: class, price: number" in out
    assert json.loads(heedful("check", "table.yaml", "--json")[1])["notes"]
    assert heedful("train", "table.yaml", "--run", "run")[0] == 0
    code, out, _ = heedful("eval", "run", "--split", "valid", "--json")
    assert code == 0 and "r2" in json.loads(out)["scores"]
    code, _, err = heedful("predict", "run", "valid.csv", "--out", "found.jsonl")
    found = [json.loads(line) for line in (files / "found.jsonl").read_text().splitlines()]
    assert code == 0 and "wrote 10 predictions" in err
    predictor = library.load(files / "run", library.TablePredictor)
    expected = predictor.predict([{key: row[key] for key in ("title", "pages", "color")} for row in found])
    assert [row["prediction"] for row in found] == pytest.approx([one.value for one in expected], abs=1e-5)
    assert [row["pages"] for row in found] == [line.split(",")[3] for line in rows(10, 1).splitlines()[1:]]
    code, _, err = heedful("classify", "run", "a text")
    assert code == 2 and "heedful predict RUN rows.csv" in err


def test_rows_that_a_model_was_trained_on_are_not_held_out_for_its_score(
    heedful: Run, files: Path, no_loss_curve: None
) -> None:
    held = RECIPE.replace("kind: csv", "kind: table").replace(
        "valid: valid.csv, test: valid.csv", "valid: 0.2, test: 9"
    )
    (files / "held.yaml").write_text(held)
    assert heedful("train", "held.yaml", "--run", "run")[0] == 0
    same = heedful("eval", "run", "--json")[1]
    assert heedful("eval", "run", "data.test=9", "--json")[1] == same
    assert heedful("eval", "run", "data.test=valid.csv", "data.valid=0.5")[0] == 0  # a file, whatever valid is
    for change, found, expected in (
        ("data.test=0.5", "0.5", "9"),
        ("data.valid=0.3", "0.3", "0.2"),
        ("data.held_out.seed=3", '"seed": 3', '"seed": 0'),
    ):
        code, out, err = heedful("eval", "run", change)
        assert code == 2 and not out and "the model was trained on some" in err
        assert found in err and f"{expected}" in err.split("expected:")[1] and "data.test=FILE" in err


def test_invalid_rows_are_listed_and_nothing_is_written(heedful: Run, files: Path, no_loss_curve: None) -> None:
    lines = (files / "train.csv").read_text().splitlines()
    lines[7] = lines[7].rsplit(",", 3)[0] + ",many,red,3"
    lines[9] = lines[9].rsplit(",", 1)[0] + ",cheap"
    (files / "train.csv").write_text("\n".join(lines) + "\n")
    for command in (("check", "table.yaml"), ("train", "table.yaml", "--run", "run")):
        code, _, err = heedful(*command)
        assert code == 2 and "many" in err, command
    assert "train.csv:10, column 'price'" in heedful("check", "table.yaml")[2]
    (files / "train.csv").write_text(rows(60, 0))
    assert heedful("train", "table.yaml", "--run", "run")[0] == 0
    (files / "new.csv").write_text("title,pages,color\na,1,red\nb,two,red\n")
    code, _, err = heedful("predict", "run", "new.csv", "--out", "found.jsonl")
    assert code == 2 and "new.csv:3, column 'pages'" in err and not (files / "found.jsonl").exists()
    (files / "new.csv").write_text("title,pages\na,1\n")
    code, out, err = heedful("predict", "run", "new.csv")
    assert code == 2 and "the column 'color' is missing" in err and out == ""
    (files / "table.txt").write_text("a\n")
    assert "this is no table" in heedful("predict", "run", "table.txt")[2]


@pytest.mark.claim("M8")
def test_texts_are_translated_into_the_language_that_is_named(
    heedful: Run, tmp_path: Path, no_loss_curve: None
) -> None:
    (tmp_path / "three.yaml").write_text(THREE)
    code, out, err = heedful("train", "three.yaml", "--run", "run")
    assert code == 0, err
    assert all(f"exact_match_{language}" in out for language in ("en", "de", "fr"))
    translator = library.load(tmp_path / "run", library.Translator)
    assert translator.languages == ("en", "de", "fr")
    for language in translator.languages:
        code, out, _ = heedful("translate", "run", "twenty-one", "--to", language)
        assert code == 0 and out.strip("\n") == translator.translate(["twenty-one"], to=language)[0]
        assert translator.predict([f"<2{language}> twenty-one"])[0].text == out.strip("\n")
    code, _, err = heedful("translate", "run", "twenty-one", "--to", "fra")
    assert code == 2 and "did you mean fr?" in err
    code, _, err = heedful("translate", "run", "twenty-one")
    assert code == 2 and "--to en" in err
    record = json.loads(heedful("translate", "run", "one", "--to", "de", "--json", "--align")[1])
    assert record["source"] == "one" and record["alignment"]["source"][0] == "<2de>"
    translator.save(tmp_path / "saved")
    again = library.load(tmp_path / "saved", library.Translator)
    assert again.translate(["two"], to="fr") == translator.translate(["two"], to="fr")
