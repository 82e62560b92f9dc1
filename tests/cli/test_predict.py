"""`heedful predict` for every task, on the recorded runs of `tests/golden`: formats, resuming, and bad input."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import heedful as library
from golden.library import RUNS, TEXTS, WORDS
from heedful.cli.row_progress import Rate
from heedful.data.tables.reading import read_records, text_of
from heedful.data.tables.writing import common_type, output_format, table_writer, type_of
from heedful.errors import UserError
from heedful.files import writing as files
from heedful.runs.journal import Journal
from heedful.runs.result_columns import COLUMNS, result_columns
from heedful.runs.rows import FIELDS, row_choices
from heedful.tasks import TASKS
from heedful.tasks.classification.predictor import TextClassifier
from patience import until
from tolerance import near

Run = Callable[..., tuple[int, str, str]]
Row = dict[str, Any]
Given = list[tuple[Row, Any]]  # rows, and the input that the predictor gets for each
CLASSIFIER = RUNS / "classification-classifier"
LONG = f"{TEXTS[0]} {TEXTS[1]}"


def texts(key: str, *found: str) -> Given:
    return [({key: text}, text) for text in found]


def pictures(folder: Path, side: int, channels: int) -> list[Path]:
    pixels = np.arange(3 * side * side * 3).reshape(3, side, side, 3) % 11 * 23
    paths = [folder / f"{number}.png" for number in range(3)]
    for path, image in zip(paths, pixels.astype(np.uint8), strict=True):
        Image.fromarray(image if channels == 3 else image[..., 0]).save(path)
    return paths


def images(predictor: Any, folder: Path) -> Given:
    channels, side, _ = predictor.canvas.image
    found = pictures(folder, side, channels)
    if predictor.task == "reconstruction":
        return [({"image": str(path)}, np.asarray(Image.open(path))[None]) for path in found]
    return [({"image": path.name}, path) for path in found]


def regions(predictor: Any, folder: Path) -> Given:
    boxes = [[1, 2, 9, 8], [6, 7, 16, 16]]
    return [({**row, "boxes": boxes}, (path, boxes)) for row, path in images(predictor, folder)]


def stories() -> Given:
    story = ["Mary moved to the garden.", "Mary took the milk there.", "John went to the office."]
    asked = [(story, "Where is the milk?"), (story * 2, "Where is John?"), (story[:1], "Where is Mary?")]
    return [({"story": one, "question": question}, (one, question)) for one, question in asked]


def table(folder: Path) -> Given:
    rows: Given = []
    for path, text in zip(pictures(folder, 6, 1), (*TEXTS, LONG), strict=True):
        row = {"text": text, "weight": 2.5, "place": "hill", "size": [1, -2], "photo": path.name}
        rows.append((row, {**row, "photo": str(path)}))
    return rows


def choices() -> Given:
    given = [(TEXTS[0], ["the cat is red .", "the dog is big ."]), (TEXTS[1], ["a stone is old .", "a dog", LONG])]
    return [({"text": text, "choices": found}, (text, found)) for text, found in given]


GIVEN: dict[str, Callable[[Any, Path], Given]] = {
    "translation": lambda model, folder: texts("source", *WORDS),
    "dialogue": lambda model, folder: [
        ({"utterances": ["one cat", "two"]}, ["one cat", "two"]),
        ({"utterances": [{"speaker": "a", "text": "red"}]}, [("a", "red")]),
    ],
    "language_model": lambda model, folder: texts("prompt", TEXTS[0], LONG, "the red"),
    "tree_classification": lambda model, folder: texts("tree", "(1 (1 not) (1 (1 very) (1 bad)))", "(1 (1 the) (1 a))"),
    "regression": lambda model, folder: [({"text": a, "pair": b}, (a, b)) for a, b in (TEXTS, TEXTS[::-1])],
    "multiple_choice": lambda model, folder: choices(),
    "style_transfer": lambda model, folder: [
        ({"text": text, "style": style}, (text, style)) for style in model.styles for text in ("the old king", "a cat")
    ],
    "tabular": lambda model, folder: table(folder),
    "reconstruction": images,
    "image_classification": images,
    "captioning": images,
    "paragraphs": regions,
    "control": lambda model, folder: [
        ({"observation": row.tolist()}, row) for row in np.eye(len(model.environment.observations), dtype=np.float32)
    ],
    "story_answering": lambda model, folder: stories(),
    "answering": lambda model, folder: [
        ({"question": question, "passage": passage}, (question, passage))
        for question, passage in (("what does the cat see ?", LONG), ("who takes the stone ?", TEXTS[1]))
    ],
}
for task in (
    "pretraining",
    "permutation_lm",
    "classification",
    "text_classification",
    "multi_label",
    "tagging",
    "text_autoencoding",
):
    GIVEN[task] = lambda model, folder: texts("text", *TEXTS, "a dog")


def recorded(task: str) -> list[Path]:
    """The recorded runs of a task."""
    return sorted(path for path in RUNS.iterdir() if path.name.partition("-")[0] == task)


def one_by_one(predictor: Any, inputs: list[Any]) -> list[list[object]]:
    """The columns of the results of inputs, each predicted alone."""
    found = []
    for number, given in enumerate(inputs):
        alone = predictor.predict([given])[0]
        if isinstance(predictor, library.TextGenerator):
            alone = predictor.generate([given], samples=1, first=number)[0]
        found.append([column.value(alone) for column in result_columns(predictor)])
    return found


def same(found: object, expected: object) -> bool:
    """Equal values, and numbers that are nearly so."""
    if isinstance(expected, list | tuple):
        assert isinstance(found, list) and len(found) == len(expected)
        return all(map(same, found, expected))
    if isinstance(expected, dict):
        assert isinstance(found, dict) and found.keys() == expected.keys()
        return all(same(found[key], expected[key]) for key in expected)
    return found == near(expected, 1e3) if isinstance(expected, float) else found == expected


def write_rows(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ------------------------------------------------------------------ every task
def test_every_predictor_has_fields_and_columns() -> None:
    assert FIELDS.keys() == COLUMNS.keys() and GIVEN.keys() == TASKS.keys()


@pytest.mark.parametrize("task", TASKS)
def test_each_task_is_predicted_as_one_by_one(heedful: Run, task: str, tmp_path: Path) -> None:
    runs = recorded(task)
    assert runs, "a task without a recorded run"
    for number, run in enumerate(runs[-1:]):
        predictor: Any = library.load(run, device="cpu")
        folder = tmp_path / str(number)
        folder.mkdir()
        given = GIVEN[task](predictor, folder)
        rows = [{"id": place, **row} for place, (row, _) in enumerate(given)]
        source, out = write_rows(folder / "in.jsonl", rows), folder / "out.jsonl"
        words = ("--field", "text", "--field", "pair") if task == "regression" else ()
        code, _, err = heedful("predict", run, source, "-o", out, "--batch", 2, *words)
        assert code == 0 and f"wrote {len(rows)} predictions" in err, err
        names = [column.name for column in result_columns(predictor)]
        found = read_rows(out)
        assert [{key: row[key] for key in row if key not in names} for row in found] == rows
        expected = one_by_one(predictor, [one for _, one in given])
        assert same([[row[name] for name in names] for row in found], json.loads(json.dumps(expected)))
        assert all(row["prediction"] is not None for row in found)
        out = folder / "out.parquet"
        assert heedful("predict", run, source, "-o", out, *words)[0] == 0
        assert heedful("predict", run, out, "-o", folder / "again.csv", *words)[0] == 2  # "prediction" is taken


# ------------------------------------------------------------------ formats
def test_formats_keep_the_columns_and_texts_with_line_breaks(heedful: Run, tmp_path: Path) -> None:
    text = (
        'the red cat,\n"sees"\ta ball\r\nof\r\n\r\nthe\rand'  # a carriage return alone ends a line for readers of CSV
    )
    rows = [{"text": text, "id": "1"}, {"text": "", "id": "2"}, {"text": "a dog", "id": "3"}]
    source = write_rows(tmp_path / "in.jsonl", rows)
    assert heedful("predict", CLASSIFIER, source, "-o", tmp_path / "right.jsonl", "--probabilities")[0] == 0
    right = read_rows(tmp_path / "right.jsonl")
    assert right[1]["prediction"] is None and right[0]["probability"] == max(
        value for key, value in right[0].items() if key.startswith("probability_")
    )
    names = ("a.csv", "b.tsv", "c.jsonl", "d.parquet", "e.csv.gz", "f.tsv.gz", "g.jsonl.gz")
    source_ = source
    for name in names:  # each file is the source of the next, without what was added
        out, bare = tmp_path / f"out-{name}", tmp_path / f"bare-{name}"
        assert heedful("predict", CLASSIFIER, source_, "-o", out, "--probabilities")[0] == 0
        found = [row for row, _ in read_records(out)]
        assert [{key: row[key] for key in ("text", "id")} for row in found] == rows, name
        for row, expected in zip(found, right, strict=True):
            shown = {key: "" if value is None else str(value) for key, value in expected.items()}
            assert {key: "" if value is None else str(value) for key, value in row.items()} == shown, name
        with table_writer(bare, output_format(bare), {"text": "text", "id": "text"}) as write:
            write(rows)
        source_ = bare
    assert heedful("predict", CLASSIFIER, source, "-o", tmp_path / "out.txt")[0] == 0
    assert (tmp_path / "out.txt").read_text().split("\n") == [row["prediction"] or "" for row in right] + [""]


NOT_TEXTS = {"image", "boxes", "tree", "choices", "story", "utterances", "observation", "style"}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("end", ["jsonl", "parquet"])
def test_a_number_or_a_list_is_the_text_that_tables_train_on(heedful: Run, task: str, end: str, tmp_path: Path) -> None:
    run = recorded(task)[-1]
    predictor: Any = library.load(run, device="cpu")
    row = GIVEN[task](predictor, tmp_path)[0][0]
    fields = [name for name in FIELDS[type(predictor)] if name not in NOT_TEXTS]
    if not fields:
        pytest.skip("its input has no text")
    numbers: list[Any] = [3, 4.0, 2.5, *([True, ["the", "cat", 2]] if end == "jsonl" else [])]
    found = []
    for name, values in (("numbers", numbers), ("texts", [text_of(number) for number in numbers])):
        rows = [{**row, **dict.fromkeys(fields, value)} for value in values]
        source, out = tmp_path / f"{name}.{end}", tmp_path / f"{name}-out.jsonl"
        types = {key: type_of(rows[0][key]) for key in row} | dict.fromkeys(fields, type_of(values[-1]))
        with table_writer(source, output_format(source), types) as write:
            write(rows)
        words = ("--field", "text", "--field", "pair") if task == "regression" else ()
        code, _, err = heedful("predict", run, source, "-o", out, *words)
        assert code == 0, err
        found.append(read_rows(out))
    assert [[one[name] for name in fields] for one in found[0]] == [[number] * len(fields) for number in numbers]
    results = [column.name for column in result_columns(predictor)]
    assert [[one[name] for name in results] for one in found[0]] == [
        [one[name] for name in results] for one in found[1]
    ]


def test_choices_may_be_numbers() -> None:
    assert row_choices({"choices": [1, 2.0, "c"]}, "row 1") == ["1", "2", "c"]
    for wrong in ("a", ["a"], ["a", None], ["a", {}]):
        with pytest.raises(UserError, match="a list of choices"):
            row_choices({"choices": wrong}, "row 1")


def test_a_folder_and_a_zip_file_have_a_row_for_each_image(heedful: Run, tmp_path: Path) -> None:
    run = RUNS / "image_classification-lenet"
    folder = tmp_path / "images"
    folder.mkdir()
    paths = pictures(folder, 6, 1)
    (folder / "bad.png").write_bytes(b"\x89PNG and no more")
    expected = library.load(run, library.ImageClassifier, device="cpu").predict(list(paths))
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
    for source in (folder, tmp_path / "images.zip"):
        out = tmp_path / f"{source.name}.jsonl"
        code, _, err = heedful("predict", run, source, "-o", out, "--probabilities")
        assert code == 0 and "wrote 3 predictions" in err and "bad.png" in err, err
        found = {row["image"]: row for row in read_rows(out)}
        assert found.pop("bad.png")["prediction"] is None
        assert [found[path.name]["prediction"] for path in paths] == [one.label for one in expected]
        assert sum(value for key, value in found["0.png"].items() if key.startswith("probability_")) == near(1.0)


def test_arrow_types_of_parquet_columns_are_kept(heedful: Run, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    when = datetime(2020, 1, 2)
    types = {"text": arrow.string(), "when": arrow.timestamp("us"), "small": arrow.int8()}
    rows = [{"text": "a dog", "when": when, "small": 3}, {"text": None, "when": None, "small": None}]
    parquet.write_table(arrow.Table.from_pylist(rows, arrow.schema(types)), tmp_path / "in.parquet")
    assert heedful("predict", CLASSIFIER, "in.parquet", "-o", "out.parquet")[0] == 0
    found = parquet.read_table(tmp_path / "out.parquet")
    assert {name: found.schema.field(name).type for name in types} == types
    assert [{key: row[key] for key in types} for row in found.to_pylist()] == rows
    assert found["prediction"].to_pylist()[1] is None and found["prediction"].to_pylist()[0]


def test_types_of_columns() -> None:
    values: list[tuple[object, str | None]] = [
        (None, None), ([], None), (True, "boolean"), (3, "integer"), (2**70, "json"), (0.5, "number"), ("a", "text"),
        (["a"], "texts"), ([1, 0.5], "numbers"), ([True], "json"), ({"a": 1}, "json"),
    ]  # fmt: skip
    for value, kind in values:
        assert type_of(value) == kind
    assert common_type("integer", "number") == "number" and common_type(None, "text") == "text"
    assert common_type("text", "integer") == "json"


# ------------------------------------------------------------------ resuming
def test_a_stopped_command_continues_and_writes_the_same_bytes(
    heedful: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": f"{TEXTS[number % 2]} {'cat ' * (number % 5)}", "id": number} for number in range(20)]
    source = write_rows(tmp_path / "in.jsonl", rows)
    words = ("predict", CLASSIFIER, source, "--batch", 4)
    assert heedful(*words, "-o", "whole.csv")[0] == 0
    calls, predict = list[int](), TextClassifier.predict

    def interrupted(self: Any, inputs: Any) -> Any:
        calls.append(len(inputs))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return predict(self, inputs)

    monkeypatch.setattr(TextClassifier, "predict", interrupted)
    code, _, err = heedful(*words, "-o", "out.csv")
    assert code == 130 and "stopped after 12 of 20 rows; the same command continues" in err
    journal = tmp_path / "out.csv.partial"
    assert journal.exists() and not (tmp_path / "out.csv").exists()
    kept = journal.read_bytes()
    code, _, err = heedful("predict", CLASSIFIER, source, "--batch", 5, "-o", "out.csv")
    assert code == 2 and "begun with another model or other settings" in err and "window" in err
    assert journal.read_bytes() == kept
    journal.write_bytes(kept[:-9])  # torn: the last window is computed again
    (tmp_path / "out.csv.tmp-0123456789abcdef").write_text("left by a crash")
    assert heedful(*words, "-o", "out.csv")[0] == 0
    assert calls == [4] * 7  # four of the first command; two were kept, and three remained
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out.csv", "whole.csv"}


def test_a_changed_row_is_computed_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with suppress(KeyboardInterrupt), Journal(path, {"model": "a"}) as journal:
        for name in ("one", "two", "three"):
            journal.add(name, [name, 0.1])
        raise KeyboardInterrupt
    with suppress(KeyboardInterrupt), Journal(path, {"model": "a"}) as journal:
        assert journal.next("one") == ["one", 0.1] and journal.next("other") is None
        assert journal.next("three") is None  # what follows a change is not used
        with pytest.raises(UserError, match="another process"), Journal(path, {"model": "a"}):
            pass
        raise KeyboardInterrupt
    with pytest.raises(UserError, match="another model"), Journal(path, {"model": "b"}):
        pass
    with Journal(path, {"model": "b"}, again=True) as journal:
        assert journal.next("one") is None
    assert not path.exists()


@pytest.mark.slow
def test_a_killed_command_continues(tmp_path: Path) -> None:
    rows = [{"text": f"{TEXTS[number % 2]}", "id": number} for number in range(500)]
    source, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    words = [sys.executable, "-m", "heedful", "predict", str(CLASSIFIER), str(source), "--batch", "1"]
    with subprocess.Popen([*words, "-o", str(out)], stderr=subprocess.DEVNULL) as process:
        until(lambda: (tmp_path / "out.jsonl.partial").exists() and len(kept_lines(tmp_path)) > 20)
        process.send_signal(signal.SIGKILL)
    assert not out.exists() and len(kept_lines(tmp_path)) < 500
    subprocess.run([*words, "-o", str(out)], check=True, stderr=subprocess.DEVNULL)
    subprocess.run([*words, "-o", str(tmp_path / "whole.jsonl")], check=True, stderr=subprocess.DEVNULL)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out.jsonl", "whole.jsonl"}


def kept_lines(folder: Path) -> list[bytes]:
    return (folder / "out.jsonl.partial").read_bytes().splitlines()


# ------------------------------------------------------------------ bad input
@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("in.csv", b"txet,id\na,1\n", "did you mean 'txet'?"),
        ("in.csv", b"", "this file is empty"),
        ("in.csv", b"text\n", "there are no rows"),
        ("in.csv", b"text,id\na\n", "different number of columns"),
        ("in.csv", b"text,prediction\na,b\n", "a result would overwrite a column"),
        ("in.jsonl", b'{"text": "a"}\n{"text"', "in.jsonl:2"),
        ("in.jsonl", b'{"text": {"a": 3}}\n', "is not a string"),
        ("in.parquet", b"PAR1 or not", "this is not a Parquet file"),
        ("in.csv.gz", gzip.compress(b"text\na\n" * 99, mtime=0)[:-12], "in.csv.gz"),
        ("in.zip", b"PK and no more", "this zip file cannot be read"),
    ],
)
def test_what_cannot_be_read_is_explained_before_anything_is_written(
    heedful: Run, tmp_path: Path, name: str, contents: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(contents)
    code, out, err = heedful("predict", CLASSIFIER, name, "-o", "out.csv")
    assert code == 2 and message in err and out == "", err
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_of_images_for_a_model_of_texts_is_explained(heedful: Run, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "images" / "a.png")
    shutil.make_archive(str(tmp_path / "images"), "zip", tmp_path / "images")
    for source in (tmp_path / "images", tmp_path / "images.zip"):
        code, _, error = heedful("predict", CLASSIFIER, source)
        assert code == 2 and "this model reads no images" in error and "text file with text" in error


def test_options_that_do_not_fit_are_explained(heedful: Run, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text,id\na,1\n")
    (tmp_path / "images.csv").write_text("image\nnowhere.png\n")
    images = RUNS / "image_classification-lenet"
    for words, message in (
        ((CLASSIFIER, "none.csv"), "there is no such file"),
        ((CLASSIFIER, "in.csv", "-o", "out.xlsx"), "no format to write"),
        ((CLASSIFIER, "in.csv", "-o", "out.parquet.gz"), "leave out .gz"),
        ((CLASSIFIER, "in.csv", "-o", "in.csv", "--force"), "would overwrite its source"),
        ((CLASSIFIER, "in.csv", "--field", "a", "--field", "b", "--field", "c"), "this model reads other fields"),
        ((CLASSIFIER, "in.csv", "--field", "txet"), "did you mean 'text'?"),
        ((RUNS / "tagging-tagger", "in.csv", "--probabilities"), "predicts no classes"),
        ((images, "images.csv"), "there is no such image"),
    ):
        code, _, err = heedful("predict", *words)
        assert code == 2 and message in err, err


def test_a_full_disk_is_explained_and_the_command_continues(
    heedful: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": TEXTS[number % 2]} for number in range(6)]
    source = write_rows(tmp_path / "in.jsonl", rows)
    words, write, calls = ("predict", CLASSIFIER, source, "-o", "out.csv", "--batch", 2), files.write, list[int]()

    def full(descriptor: int, data: bytes | memoryview) -> None:
        calls.append(len(data))
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(descriptor, data)

    monkeypatch.setattr(files, "write", full)
    code, _, err = heedful(*words)
    assert code == 74 and "No space left on device" in err and "run the same command again" in err
    assert not (tmp_path / "out.csv").exists()
    code, _, err = heedful(*words)
    assert code == 0 and "wrote 6 predictions" in err


def test_the_rate_counts_what_was_computed() -> None:
    now = [0.0]
    rate = Rate(100, lambda: now[0])
    rate.advance(50, True)
    assert rate.text == "50 of 100 rows"
    now[0] = 2.0
    rate.advance(10, False)
    assert rate.text == "60 of 100 rows  5.0 rows/s  0:08 left"


def test_eval_reads_a_file_of_this_folder(heedful: Run, tmp_path: Path) -> None:
    """The recipe's files are in its `data.root`; one that is named is here."""
    data = RUNS / "classification-classifier" / "data"
    (test,) = data.glob("test.*")
    (tmp_path / "mine.tsv").write_bytes(test.read_bytes())
    root = f"data.root={data}"
    scores = [
        json.loads(heedful("eval", CLASSIFIER, root, *words, "--json")[1])["scores"]
        for words in ((), ("data.test=mine.tsv",))
    ]
    assert scores[0] == scores[1]
    code, _, err = heedful("eval", CLASSIFIER, root, "data.test=nowhere.tsv")
    assert code == 2 and "there is no such file" in err
