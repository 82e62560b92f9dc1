"""Labelled texts from TSV, CSV and JSON lines, with errors by file, line and column."""

from __future__ import annotations

import gzip
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from heedful.data.embedded import NumberLanguages
from heedful.data.formats.tables import (
    CsvTable,
    Item,
    JsonlTable,
    TsvTable,
    class_numbers,
    collect_labels,
    label_values,
)
from heedful.errors import UserError

GLUE = Path(os.environ.get("HEEDFUL_DATA", "../shared/data"), "glue")
FILES: dict[str, Any] = {"train": "f", "valid": "f", "text": "text", "label": "label"}


def tsv(folder: Path, content: str, **changes: Any) -> TsvTable:
    (folder / "f").write_text(content, encoding="utf-8")
    return TsvTable(root=str(folder), **{**FILES, **changes})


def csv(folder: Path, content: str, **changes: Any) -> CsvTable:
    (folder / "f").write_text(content, encoding="utf-8")
    return CsvTable(root=str(folder), **{**FILES, **changes})


def jsonl(folder: Path, content: str, **changes: Any) -> JsonlTable:
    (folder / "f").write_text(content, encoding="utf-8")
    return JsonlTable(root=str(folder), **{**FILES, **changes})


def plain(items: list[Item]) -> list[tuple[str, str | None, str]]:
    return [item[:3] for item in items]


# ------------------------------------------------------------------ what is read
def test_columns_are_found_by_name_or_index(tmp_path: Path) -> None:
    content = '\ufefflabel\ttext\tmore\n1\tsays "this"\tx\n0\tand, that \t\n'
    right = [('says "this"', None, "1"), ("and, that ", None, "0")]
    assert plain(tsv(tmp_path, content).read("train").items) == right
    assert plain(tsv(tmp_path, content, text=1, label=0).read("train").items) == right
    bare = content.partition("\n")[2]
    assert plain(tsv(tmp_path, bare, text=1, label=0, header=False).read("valid").items) == right
    packed = tsv(tmp_path, content)
    (tmp_path / "f").write_bytes(gzip.compress(content.encode()))
    assert plain(packed.read("train").items) == right


def test_pairs_have_two_texts_and_blank_ones_are_counted(tmp_path: Path) -> None:
    content = "a\tb\tlabel\none\ttwo\ty\nthree\t \tn\n\tfour\tn\nfive\tsix\tn\n\n"
    read = tsv(tmp_path, content, text="a", pair="b").read("train")
    assert plain(read.items) == [("one", "two", "y"), ("five", "six", "n")]
    assert read.skipped == 2
    assert read.items[1].where == f"{tmp_path}/f:5:10"


def test_quotes_in_csv_protect_commas_quotes_and_line_ends(tmp_path: Path) -> None:
    content = 'text,label\n"a, b",1\n"two\nlines ""here""",0\nplain,1\n'
    read = csv(tmp_path, content).read("train")
    assert plain(read.items) == [("a, b", None, "1"), ('two\nlines "here"', None, "0"), ("plain", None, "1")]
    assert [item.where for item in read.items] == [f"{tmp_path}/f:{line}, column 2" for line in (2, 3, 5)]
    other = csv(tmp_path, content.replace(",", ";"), separator=";").read("train")
    assert plain(other.items)[0] == ("a; b", None, "1")


def test_json_labels_may_be_strings_numbers_or_booleans(tmp_path: Path) -> None:
    rows = ['{"text": "a", "label": 3}', "", '{"text": "b", "label": "x"}', '{"text": "c", "label": true}',
            '{"text": "d", "label": 2.5, "also": null}']  # fmt: skip
    assert [item.label for item in jsonl(tmp_path, "\n".join(rows)).read("train").items] == ["3", "x", "true", "2.5"]


def test_integer_labels_sort_by_value_and_others_alphabetically() -> None:
    def collect(*labels: str) -> tuple[str, ...]:
        return collect_labels([Item("t", None, label, "here") for label in labels], "here")

    assert collect("10", "9", "-1", "9") == ("-1", "9", "10")
    assert collect("b", "10", "9") == ("10", "9", "b")
    assert class_numbers([Item("t", None, "9", "here")], collect("10", "9", "-1")) == [1]


def test_number_words_in_several_languages_need_no_file() -> None:
    data = NumberLanguages(languages=("de", "en", "fr"), train=90, valid=9, test=9)
    read = {split: data.read(split).items for split in ("train", "valid", "test")}  # type: ignore[arg-type]
    assert Counter(item.label for item in read["train"]) == {"de": 30, "en": 30, "fr": 30}
    assert {len(items) for items in read.values()} == {90, 9}
    assert data.read("train") == NumberLanguages(languages=("de", "en", "fr"), train=90, valid=9, test=9).read("train")
    for wrong in (("de", "de"), ("de", "klingon")):
        with pytest.raises(ValidationError):
            NumberLanguages(languages=wrong)


# ------------------------------------------------------------------ what is refused
@pytest.mark.parametrize(
    ("content", "changes", "where", "message"),
    [
        ("text\tlabel\na\t1\nb\t1\t2\n", {}, ":3", "different number of columns"),
        ("sentence\tlabel\na\t1\n", {}, ":1:1", "no column 'text'"),
        ("text\tlabel\na\t1\n", {"label": 2}, ":1:1", "no column 2"),
        ("text;label\na;1\n", {}, ":1:1", "set data.kind=csv and data.separator='\";\"'"),
        ("text\tlabel\n \t1\n", {}, "", "there are no texts"),
        ("\n\n", {}, "", "there are no texts"),
    ],
)
def test_table_errors_are_located(
    content: str, changes: dict[str, Any], where: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message) as error:
        tsv(tmp_path, content, **changes).read("train")
    assert error.value.where == f"{tmp_path}/f{where}"


def test_a_missing_column_is_seen_before_anything_is_read(tmp_path: Path) -> None:
    assert tsv(tmp_path, "text\tlabel\na\t1\n").problems(["train"]) == []
    (problem,) = tsv(tmp_path, "sentence\tlabel\na\t1\n").problems(["train"])
    assert "there is no column 'text'" in str(problem) and "'sentence', 'label'" in str(problem)


def test_missing_labels_are_counted(tmp_path: Path) -> None:
    items = tsv(tmp_path, "text\tlabel\na\t1\nb\t\nc\t0\nd\t \n").read("train").items
    with pytest.raises(UserError, match="2 of 4 texts have no label") as error:
        collect_labels(items, "f")
    assert error.value.where == f"{tmp_path}/f:3:3"


def test_unclosed_quote_is_reported_where_it_opens(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="this is not CSV") as error:
        csv(tmp_path, 'text,label\na,1\n"b,0\nc,1\n').read("train")
    assert error.value.where == f"{tmp_path}/f:3"


@pytest.mark.parametrize("label", ["null", "[1]", '{"a": 1}'])
def test_invalid_json_labels_are_rejected(label: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a string") as error:
        jsonl(tmp_path, f'{{"text": "a", "label": {label}}}\n').read("train")
    assert error.value.where == f"{tmp_path}/f:1"


def test_unknown_label_is_located_with_the_known_ones(tmp_path: Path) -> None:
    read = tsv(tmp_path, "text\tlabel\na\tyes\nb\tmaybe\n").read("train")
    with pytest.raises(UserError, match="unknown label") as error:
        class_numbers(read.items, ("no", "yes"))
    assert error.value.where == f"{tmp_path}/f:3:3"
    assert (error.value.found, error.value.expected) == ("'maybe'", "one of 'no', 'yes'")


@pytest.mark.parametrize(
    ("label", "found"), [("much", "'much'"), ("", "nothing"), ("nan", "'nan'"), ("1e99", "'1e99'")]
)
def test_regression_labels_must_be_numbers(label: str, found: str, tmp_path: Path) -> None:
    read = tsv(tmp_path, f"text\tlabel\na\t1.5\nb\t{label}\n").read("train")
    with pytest.raises(UserError, match="this is not a number") as error:
        label_values(read.items)
    assert (error.value.where, error.value.found) == (f"{tmp_path}/f:3:3", found)


@pytest.mark.parametrize(
    ("labels", "message"),
    [(["a", "a"], "only one class"), (["a", ""], "label is missing"),
     ([f"{n}" for n in range(150)], "different label")],
)  # fmt: skip
def test_useless_label_sets_are_rejected(labels: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        collect_labels([Item("t", None, label, "f:1") for label in labels], "f")


def test_column_names_need_a_header() -> None:
    with pytest.raises(ValidationError, match="without a header, columns have no names"):
        TsvTable(train="f", valid="f", text="text", label=0, header=False)


# ------------------------------------------------------------------ GLUE as it was released
@pytest.mark.skipif(not GLUE.is_dir(), reason=f"no GLUE files in {GLUE}; set HEEDFUL_DATA")
@pytest.mark.parametrize(
    ("task", "columns", "count", "labels"),
    [
        ("SST-2", {"text": "sentence"}, 67_349, {"1": 37_569, "0": 29_780}),
        ("CoLA", {"text": 3, "label": 1, "header": False}, 8_551, {"1": 6_023, "0": 2_528}),
        ("MRPC", {"text": "#1 String", "pair": "#2 String", "label": "Quality"}, 3_668, {"1": 2_474, "0": 1_194}),
        ("STS-B", {"text": "sentence1", "pair": "sentence2", "label": "score"}, 5_749, None),
    ],
)
def test_glue_is_read_as_released(
    task: str, columns: dict[str, Any], count: int, labels: dict[str, int] | None
) -> None:
    files = {"train": "train.tsv.gz", "valid": "dev.tsv.gz", "label": "label"}
    read = TsvTable(root=str(GLUE / task), **{**files, **columns}).read("train")
    assert len(read.items) == count and read.skipped == 0
    assert all((item.pair is not None) == ("pair" in columns) for item in read.items)
    if labels is None:
        assert min(label_values(read.items)) >= 0 and max(label_values(read.items)) == 5
    else:
        assert Counter(item.label for item in read.items) == labels
