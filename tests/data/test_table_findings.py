"""What `heedful check` finds in tables, with numbers and places; planted faults are found, clean tables have none."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heedful.cli.app import app
from heedful.data.tables import checking
from heedful.data.tables.checking import check_data
from heedful.data.tables.findings import distance_one, look_of
from heedful.data.tables.texts import LabelTable
from heedful.errors import UserError

CLEAN = [(f"text number {n}", "good" if n % 2 else "bad", str(n)) for n in range(100)]
Rows = list[tuple[str, str, str]]


def table(folder: Path, train: Rows, valid: Rows | None = None, **settings: Any) -> LabelTable:
    for name, rows in (("train.csv", train), ("valid.csv", valid)):
        if rows is not None:
            with (folder / name).open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([("text", "label", "id"), *rows])
    more: dict[str, Any] = {"valid": "valid.csv"} if valid is not None else {}
    return LabelTable(root=str(folder), train="train.csv", **more, **settings)


def found(data: LabelTable, context: int | None = 50, every: bool = False) -> dict[str, Any]:
    return {finding.name: finding for finding in check_data(data, context, True, every).findings}


def test_a_clean_table_has_no_findings_and_says_what_was_read(tmp_path: Path) -> None:
    checked = check_data(table(tmp_path, CLEAN, test=10), 50, True)
    assert checked.findings == []
    assert checked.lines[0].startswith("train: 100 rows of") and "separator ','" in checked.lines[0]
    assert checked.lines[1] == "held out: 80 train, 10 valid, 10 test"


FAULTS: dict[str, tuple[str, Rows, Rows, int, str]] = {  # name: level, added to train and to valid, count, place
    "blank": ("warning", [("  ", "good", "x")], [], 1, "train.csv:102"),
    "missing label": ("error", [("new", "", "x")], [], 1, "train.csv:102"),
    "unknown label": ("error", [], [("new", "goood", "x")], 1, "valid.csv:3"),
    "similar labels": ("warning", [("new", "Good", "x")], [], 1, "train.csv:102"),
    "uneven": ("warning", [("new", "other", "x")], [], 0, ""),
    "leak": ("warning", [], [("Text  NUMBER 5", "good", "x")], 1, "valid.csv:3"),
    "duplicates": ("warning", [CLEAN[3], ("TEXT number 4", "bad", "x")], [], 2, "train.csv:102"),
    "conflicts": ("warning", [("text number 4", "good", "x")], [], 1, "train.csv:102"),
    "long": ("warning", [("word " * 51, "good", "x")], [], 1, "train.csv:102"),
    "missing values": ("warning", [("new", "good", "")], [], 1, "train.csv:102"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found_with_their_place(name: str, tmp_path: Path) -> None:
    level, train, valid, count, place = FAULTS[name]
    other = [("other text", "good", "a"), *valid]
    findings = found(table(tmp_path, [*CLEAN, *train], other))
    assert findings[name].level == level and findings[name].count == count
    assert place in " ".join(findings[name].where)
    clean = found(table(tmp_path, CLEAN, [("other text", "good", "a")]))
    assert name not in clean


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": "id"}, "texts of the column 'id' are numbers; longer ones are in 'text': data.columns.text=text"),
        ({"text": "label"}, "have 2 different texts; longer ones are in 'text'"),
        (
            {"label": "id"},
            "200 of the 200 first rows have different labels in the column 'id'; few values are in 'label'",
        ),
    ],
)
def test_wrong_columns_are_found_with_those_that_may_be_meant(
    columns: dict[str, str], message: str, tmp_path: Path
) -> None:
    rows = [(f"a text of some length, number {n}", "good" if n % 2 else "bad", str(n)) for n in range(200)]
    assert message in found(table(tmp_path, rows, columns=columns))["wrong column"].message
    assert found(table(tmp_path, rows)) == {}


def test_one_class_and_constant_columns(tmp_path: Path) -> None:
    findings = found(table(tmp_path, [(text, "good", "1") for text, _, _ in CLEAN]))
    assert findings["one class"].level == "error" and "'id' are '1'" in findings["constant column"].message
    assert "close to 'good'" in found(table(tmp_path, CLEAN, [("x", "goood", "1")]))["unknown label"].message


def test_only_the_first_rows_are_read_unless_all_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "FIRST", 50)
    data = table(tmp_path, [*CLEAN, CLEAN[0]], [("new", "third", "1")])
    checked = check_data(data, 50, True)
    assert "the first 50 rows" in checked.lines[0] and "duplicates" not in {one.name for one in checked.findings}
    assert found(data)["unknown label"].level == "warning"  # rows that were not read may have it
    assert {"duplicates", "unknown label"} <= found(data, every=True).keys()
    assert found(data, every=True)["unknown label"].level == "error"


def test_other_encodings_are_reported_with_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_bytes("text,label\ncafé,good\nnaïve,bad\n".encode("cp1252"))
    with pytest.raises(UserError, match="not UTF-8") as error:
        check_data(LabelTable(root=str(tmp_path), train="train.csv"), 50, True)
    assert "data.encoding=cp1252" in str(error.value) and "café" in str(error.value)
    data = LabelTable(root=str(tmp_path), train="train.csv", encoding="cp1252")
    assert data.records("train")[0][0]["text"] in ("café", "naïve")


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [("good", "goood", True), ("good", "godo", True), ("good", "bad", False), ("class1", "class2", False),
     ("pos", "pas", False), ("positive", "positiv", True), ("positive", "negative", False),
     ("good", "good morning", False)],
)  # fmt: skip
def test_labels_one_letter_apart(one: str, other: str, near: bool) -> None:
    assert distance_one(one, other) == distance_one(other, one) == near


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [("cat", "c\u0430t", True), ("é", "e\u0301", True), ("a\u200b", "a", True), ("a b", "a\nb", True), ("A", "a", True),
     ("a", "b", False), ("é", "e", False), ("1", "2", False), ("да", "нет", False)],
)  # fmt: skip
def test_labels_that_look_alike_are_reported_by_their_letters(
    one: str, other: str, alike: bool, tmp_path: Path
) -> None:
    rows = [(f"text {n}", one if n % 3 else other, str(n)) for n in range(60)]
    findings = found(table(tmp_path, rows))
    assert ("similar labels" in findings) == alike and (look_of(one) == look_of(other)) == alike
    if alike and one.casefold() != other.casefold():
        message = findings["similar labels"].message
        assert f"the label {other!a} of" in message and f"may be {one!a}, as of" in message


RECIPE = """
task: {kind: classification}
data: {kind: table, root: ROOT, train: train.csv, valid: valid.csv}
model: {kind: conv_classifier}
train: {budget: {steps: 1}}
"""


def test_the_command_exits_with_an_error_only_for_errors(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(RECIPE.replace("ROOT", str(tmp_path)))
    table(tmp_path, CLEAN, [CLEAN[0]])
    result = CliRunner().invoke(app, ["check", str(recipe)])
    assert result.exit_code == 0 and "no mistakes" in result.output and "warning: 1 of 1 rows of valid" in result.output
    table(tmp_path, CLEAN, [("x", "third", "1")])
    result = CliRunner().invoke(app, ["check", str(recipe), "--json", "--all"])
    record = json.loads(result.output.splitlines()[0])
    assert result.exit_code == 2 and record["findings"][0]["name"] == "unknown label"
    old = "{kind: csv, train: train.csv, valid: valid.csv, text: text, label: label, root: " + str(tmp_path) + "}"
    result = CliRunner().invoke(app, ["check", str(recipe), f"data={old}"])
    assert result.exit_code == 2 and "no training row has: 'third'" in result.output


def test_checking_loads_no_torch(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE.replace("ROOT", str(tmp_path)))
    table(tmp_path, CLEAN, CLEAN)
    code = "import sys; from heedful.cli.app import app; app(['check', 'r.yaml'], standalone_mode=False); "
    code += "sys.exit(sum(name in sys.modules for name in ('torch', 'numpy', 'pyarrow', 'pandas', 'tokenizers')))"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
