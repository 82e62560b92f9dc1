"""Tables for every task: CSV, TSV, JSON lines and Parquet, plain and gzip, and rows from Python read alike."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from heedful.config import config_classes, parse
from heedful.data.fields.rows import from_python
from heedful.data.formats.sources import SPLITS
from heedful.data.formats.tables import sort_labels
from heedful.data.tables.checking import check_data
from heedful.data.tables.findings import Finding
from heedful.data.tables.reading import same_text
from heedful.data.tables.source import ColumnTable, Table
from heedful.errors import UserError
from heedful.runs.recipe import check_rows
from heedful.tasks import TASKS, recipe_class

WITHOUT = {"control"}  # an environment has no rows
BOXES = {"boxes": [[0, 0, 2, 2], [1, 1, 3, 4]], "phrases": ["a dog", "a cat"]}
# Rows of each task, with the columns that its table reads where the recipe names none.
ROWS: dict[str, list[dict[str, Any]]] = {
    "translation": [{"source": f"a house, {n}", "target": f'ein "Haus" {n}'} for n in range(20)],
    "language_model": [{"text": f"Text {n}, one line. And more; with |"} for n in range(20)],
    "pretraining": [{"text": f"Text {n} is here. It ends, there."} for n in range(20)],
    "permutation_lm": [{"text": f"Text {n} is here. It ends, there."} for n in range(20)],
    "classification": [{"text": f"text {n}, with a comma", "label": "ab"[n % 2]} for n in range(20)],
    "text_classification": [{"text": f'say "{n}"', "label": str(n % 2)} for n in range(20)],
    "multi_label": [{"text": f"text {n}", "label": ["cat, dog", "dog", ""][n % 3]} for n in range(20)],
    "regression": [{"text": f"text\t{n}", "label": n / 4} for n in range(20)],
    "style_transfer": [{"text": f"hello {n}", "style": ["formal", "casual"][n % 2]} for n in range(20)],
    "multiple_choice": [{"text": f"He {n}", "choices": ["runs", "sleeps, then"], "label": n % 2} for n in range(20)],
    "tagging": [{"tokens": ["Ada", "runs", str(n)], "tags": ["B-PER", "O", "O"]} for n in range(20)],
    "answering": [{"question": f"Who {n}?", "passage": f"Ada, {n}, runs", "answer": "Ada"} for n in range(20)],
    "story_answering": [
        {"story": f"Ada is at {n}. Bob, too.", "question": "Where is Ada?", "answer": f"place{n % 3}"}
        for n in range(20)
    ],
    "dialogue": [{"dialogue": n // 2, "text": f"hello, {n}"} for n in range(40)],
    "tree_classification": [{"tree": f"(3 (2 word{n}) (1 bad))"} for n in range(20)],
    "text_autoencoding": [{"text": f"a sentence, {n}"} for n in range(20)],
    "tabular": [{"weight": n / 2, "text": f"a, b {n}", "zone": "xy"[n % 2]} for n in range(20)],
    "image_classification": [{"image": f"{n}.png", "label": "ab"[n % 2]} for n in range(20)],
    "reconstruction": [{"image": f"{n}.png"} for n in range(20)],
    "captioning": [{"image": f"{n // 2}.png", "caption": f"a dog, {n}"} for n in range(20)],
    "paragraphs": [{"image": f"{n}.png", **BOXES, "paragraph": f"A dog, {n}. A cat."} for n in range(20)],
}
CASES = sorted(TASKS.keys() - WITHOUT)
# Other columns of some tasks, and what is read of the first rows.
OTHERS: dict[str, tuple[str, Any, list[dict[str, Any]], list[str]]] = {
    "several numbers in columns": (
        "regression", ["width", "height"],
        [{"text": f"box {n}", "width": n + 0.5, "height": -n, "id": n} for n in range(20)], ["0.5, 0", "1.5, -1"],
    ),
    "several numbers in a list": (
        "regression", "sizes", [{"text": f"box {n}", "sizes": [n / 4, 2.0]} for n in range(20)], ["0, 2", "0.25, 2"],
    ),
    "labels in a list": (
        "multi_label", "animals", [{"text": f"text {n}", "animals": ["cat", "big dog"][: n % 3]} for n in range(20)],
        ["", "cat", "cat, big dog"],
    ),
    "labels in columns": (
        "multi_label", ["cat", "big dog"],
        [{"text": f"text {n}", "cat": n % 2, "big dog": bool(n % 3)} for n in range(20)],
        ["", "cat, big dog", "big dog"],
    ),
}  # fmt: skip
# A row that no example can be read from, by task, and what is said of it.
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "regression": ({"label": "much"}, "this is not a number"),
    "multiple_choice": ({"label": 2}, "this is not the index of a choice"),
    "tagging": ({"tags": ["O"]}, "the numbers of tags and words differ"),
    "answering": ({"answer": "Bob"}, "the answer is not at one place"),
    "story_answering": ({"question": " "}, "there is no question"),
    "dialogue": ({"dialogue": ""}, "an utterance belongs to no dialogue"),
    "tree_classification": ({"tree": "(3 (2 word)"}, "this bracket is not closed"),
    "image_classification": ({"image": "none.png"}, "there is no such image"),
    "reconstruction": ({"image": "none.png"}, "there is no such image"),
    "captioning": ({"caption": " "}, "a caption is missing"),
    "paragraphs": ({"image": "none.png"}, "there is no such image"),
}
WAYS = ["csv", "csv.gz", "semicolon.csv", "bom.csv", "crlf.csv", "tsv", "tsv.gz", "jsonl", "jsonl.gz", "parquet"]


def table_class(task: str) -> Any:
    """The table of a task, of which each has one."""
    field = recipe_class(task).model_fields["data"]
    (found,) = {cls for cls in config_classes(field.annotation) if issubclass(cls, Table)}
    return found


def write_rows(path: Path, rows: list[dict[str, Any]], way: str) -> Path:
    """Rows in a file of some format."""
    file = path / f"rows.{way}"
    kind = way.removesuffix(".gz").split(".")[-1]
    if kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
        return file
    cells = [
        {key: json.dumps(value) if isinstance(value, list) else value for key, value in row.items()} for row in rows
    ]
    text = io.StringIO()
    if kind == "jsonl":
        text.writelines(json.dumps(row) + "\n" for row in rows)
    else:
        mark = "\t" if kind == "tsv" else ";" if "semicolon" in way else ","
        end = "\r\n" if "crlf" in way else "\n"
        writer = csv.DictWriter(text, list(rows[0]), delimiter=mark, lineterminator=end)
        writer.writeheader()
        writer.writerows(cells)
    data = text.getvalue().encode("utf-8-sig" if "bom" in way else "utf-8")
    file.write_bytes(gzip.compress(data) if way.endswith(".gz") else data)
    return file


def plain(value: Any) -> Any:
    """What was read, to compare: without the places in files, arrays as bytes, and 3.0 as 3."""
    if isinstance(value, str):
        return same_text(value) if value.replace(".", "").isdigit() else value
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    if isinstance(value, list | tuple):
        fields = getattr(value, "_fields", None)
        return [plain(one) for name, one in zip(fields or value, value, strict=True) if name != "where"]
    if hasattr(value, "values") and hasattr(value, "places"):
        return {name: list(map(same_text, some)) for name, some in value.values.items()}
    return [plain(one) for one in vars(value).values()] if hasattr(value, "__dataclass_fields__") and hasattr(
        value, "__dict__") else value  # fmt: skip


def read(data: Any, split: Any) -> Any:
    """The examples of a split; documents as their sentences."""
    return plain(list(data.documents(split)) if hasattr(data, "documents") else data.read(split))


def errors(data: Any) -> list[Finding]:
    """What is wrong with the rows of some data, duplicates and the like aside."""
    return [one for one in check_data(data, None, False).findings if one.level == "error"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for number in range(20):
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(folder / f"{number}.png")
    return folder


def test_each_task_with_rows_has_a_table() -> None:
    assert set(CASES) <= set(ROWS), "give a new task rows here"
    for task in CASES:
        assert issubclass(table_class(task), Table)


@pytest.mark.parametrize("task", CASES)
def test_every_format_gives_the_same_examples(task: str, images: Path) -> None:
    cls, rows = table_class(task), ROWS[task]
    settings: dict[str, Any] = {"root": str(images), "valid": 0.2, "test": 3}
    from_python = cls(**settings).with_rows({"train": [(row, f"row {n}") for n, row in enumerate(rows)]})
    expected = {split: read(from_python, split) for split in SPLITS}
    for way in WAYS:
        file = write_rows(images, rows, way)
        data = cls(**settings, train=file.name)
        assert data.problems() == [], way
        for split in SPLITS:
            assert read(data, split) == expected[split], (way, split)


@pytest.mark.parametrize("case", OTHERS)
def test_several_columns_and_lists_are_read_alike_in_every_format(case: str, tmp_path: Path) -> None:
    task, label, rows, expected = OTHERS[case]
    for way in WAYS:
        file = write_rows(tmp_path, rows, way)
        settings = {"root": str(tmp_path), "train": file.name, "valid": file.name, "columns": {"label": label}}
        data: Any = parse(table_class(task), settings)
        assert data.problems() == [] and not errors(data), way
        assert [item.label for item in data.read("train").items[: len(expected)]] == expected, way


@pytest.mark.parametrize(
    ("task", "label", "changed", "message"),
    [
        ("regression", ["width", "height"], {"height": "3,5"}, "write a point in place of the comma"),
        ("regression", ["width", "height"], {"height": [1, 2]}, "column 'height': this is not a number"),
        ("regression", ["width", "height"], {"width": ""}, "column 'width': a number is missing"),
        ("regression", ["width"], {"width": True}, "column 'width': this is not a number"),
        ("regression", "width", {"width": [1, "x"]}, "column 'width': this is not a number"),
        ("multi_label", ["width", "height"], {"height": 3}, "column 'height': this does not say whether"),
        ("multi_label", "width", {"width": ["a, b"]}, "this label has a comma"),
    ],
)
def test_wrong_values_of_several_columns_are_explained(
    task: str, label: Any, changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    rows = [{"text": f"box {n}", "width": 0, "height": 1} for n in range(9)]
    file = write_rows(tmp_path, [*rows, {**rows[0], **changed}], "jsonl")
    settings = {"root": str(tmp_path), "train": file.name, "columns": {"label": label}, "valid": file.name}
    data: Any = parse(table_class(task), settings)
    with pytest.raises(UserError) as error:
        data.read("train")
    assert message in str(error.value) and "rows.jsonl:10" in str(error.value)
    with pytest.raises(UserError, match="the column 'width' stands here twice"):
        parse(table_class(task), {**settings, "columns": {"label": ["width", "width"]}})
    misspelled: Any = parse(table_class(task), {**settings, "columns": {"label": ["width", "hight"]}})
    (problem,) = misspelled.problems()
    assert "there is no column 'hight'" in str(problem) and "did you mean height?" in str(problem)


@pytest.mark.parametrize("task", CASES)
def test_checking_finds_the_rows_that_training_refuses(task: str, images: Path) -> None:
    changed, message = BROKEN.get(task, ({}, ""))
    rows = [dict(row) for row in ROWS[task]]
    settings: dict[str, Any] = {"root": str(images), "valid": 0.2}
    file = write_rows(images, rows, "jsonl")
    data = table_class(task)(**settings, train=file.name)
    assert not errors(data)
    if changed:
        file = write_rows(images, [*rows[:7], {**rows[7], **changed}, *rows[8:]], "jsonl")
        (found,) = errors(data)
        assert message in found.message and found.count == 1
        assert "rows.jsonl:8" in found.where[0]
        whole = data.model_copy(update={"valid": file.name})
        with pytest.raises(UserError, match=re.escape(message)) as error:
            whole.read("train")
        assert "rows.jsonl:8" in str(error.value)


# What makes the last of many rows of a rare class, by task; other tasks have no classes.
RARE: dict[str, dict[str, Any]] = {
    "classification": {"label": "rare"},
    "text_classification": {"label": "7"},
    "multi_label": {"label": "dog, rare"},
    "style_transfer": {"style": "rare"},
    "tagging": {"tags": ["B-PER", "O", "B-RARE"]},
    "story_answering": {"answer": "rare"},
    "tree_classification": {"tree": "(0 (2 word) (1 bad))"},
    "tabular": {"zone": "rare"},
    "image_classification": {"label": "rare"},
}
RECIPES: dict[str, Any] = {"tabular": {"predict": "zone", "metric": "accuracy"}}  # more settings of their tasks


@pytest.mark.parametrize("task", CASES)
def test_classes_of_very_different_size_are_reported_with_their_numbers(task: str, images: Path) -> None:
    """Of every task with classes, and of no other one."""
    rows = [dict(row, id=n) for n, row in enumerate(2 * ROWS[task])]
    for changed, expected in (({}, False), (RARE.get(task, {}), task in RARE)):
        file = write_rows(images, [*rows, {**rows[0], **changed}], "jsonl")
        data = {"root": str(images), "train": file.name, "valid": file.name}
        kind: Any = recipe_class(task)
        settings = kind.model_fields["task"].annotation(**RECIPES.get(task, {}))
        recipe = kind.model_construct(data=table_class(task)(**data), task=settings, columns={}, model={})
        found = [one.message for one in check_rows(recipe).findings if one.name == "uneven"]
        assert len(found) == expected, found
        if expected:
            assert re.search(r"classes are uneven: \d\d are '.+', 1 are '(rare|7|B-RARE|0)'", found[0]), found


@pytest.mark.parametrize("task", CASES)
def test_a_column_of_another_name_is_suggested(task: str, images: Path) -> None:
    cls = table_class(task)
    if not issubclass(cls, ColumnTable):
        return
    rows = ROWS[task]
    key = next(iter(cls(train="x.csv").needed.values()))
    renamed = [
        {(f"{key}s_of_row"[: len(key) + 2] if name == key else name): value for name, value in row.items()}
        for row in rows
    ]
    file = write_rows(images, renamed, "jsonl")
    (problem,) = cls(root=str(images), train=file.name).problems()
    assert f"there is no column {key!r}" in str(problem) and f"={key}s_" in str(problem)
    with pytest.raises(UserError, match="there is no column"):
        cls(root=str(images), train=file.name).read("train")


def frame(package: str, rows: list[dict[str, Any]]) -> Any:
    """Rows as a table of a package."""
    module = pytest.importorskip(package)
    return module.Dataset.from_list(rows) if package == "datasets" else module.DataFrame(rows)


@pytest.mark.parametrize("package", ["pandas", "polars", "datasets"])
@pytest.mark.parametrize("case", [*CASES, *OTHERS])
def test_tables_of_other_packages_are_read_as_lists_of_rows(case: str, package: str, images: Path) -> None:
    task, label, rows = (case, None, ROWS[case]) if case in ROWS else OTHERS[case][:3]
    columns = {} if label is None else {"columns": {"label": label}}
    data: Any = parse(table_class(task), {"root": str(images), "valid": 0.2, "test": 3, **columns})
    tables = (data.with_rows({"train": from_python(some, "data.train").one_by_one()})
              for some in (rows, frame(package, rows)))  # fmt: skip
    plain, framed = ({split: read(table, split) for split in SPLITS} for table in tables)
    assert framed == plain


STORED: dict[str, Callable[[Any], Iterable[str]]] = {  # texts that a run's recipe or vocabulary has, by task
    "tagging": lambda found: [tag for one in found.sentences for tag in one.tags],
    "story_answering": lambda found: [question.answer for story in found.stories for question in story.questions],
    "tree_classification": lambda found: [word for tree in found.trees for word in tree.words if word],
    "image_classification": lambda found: found.names,
} | dict.fromkeys(
    ("classification", "text_classification", "multi_label", "style_transfer"),
    lambda found: [item.label for item in found.items],
)  # fmt: skip


@pytest.mark.parametrize("task", STORED)
def test_lone_surrogates_of_json_are_replaced_in_what_a_run_stores(task: str, images: Path) -> None:
    def spoiled(value: Any) -> Any:
        if isinstance(value, list):
            return [spoiled(one) for one in value]
        if not isinstance(value, str) or value.endswith(".png"):
            return value
        return value.replace("bad", "bad\ud800") if value.startswith("(") else f"{value}\ud800"

    rows = [{name: spoiled(value) for name, value in row.items()} for row in ROWS[task]]
    data = table_class(task)(root=str(images), train=write_rows(images, rows, "jsonl").name)
    stored = "".join(STORED[task](data.read("train")))
    assert "\ufffd" in stored and stored.encode()


def test_a_label_that_no_model_folder_could_have_is_refused() -> None:
    with pytest.raises(UserError, match="a label is too long") as error:
        sort_labels({"x" * 1001, "y"})
    assert "1,001 characters" in str(error.value)
    assert sort_labels({"x" * 1000, "y"}) == ("x" * 1000, "y")


@pytest.mark.parametrize("task", CASES)
def test_one_row_is_held_out_where_the_recipe_says_one(task: str, images: Path) -> None:
    file = write_rows(images, ROWS[task], "jsonl")
    data: Any = parse(table_class(task), {"root": str(images), "train": file.name, "valid": 1})
    units = {data.unit(row, place) for row, place in data.source("train")}
    assert data.shares == {"valid": 1} and data.problems() == []
    held = {data.unit(row, place) for row, place in data.records("valid")}
    assert len(held) == 1 and held < units
