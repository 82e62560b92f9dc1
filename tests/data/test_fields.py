"""Tables with typed columns: values, missing ones, what is learned of each column, guesses, batches and files."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from heedful.data.batch import IGNORE_INDEX, Ragged
from heedful.data.fields.batches import EncodedRows, RowBatch, RowBatches, encode_rows
from heedful.data.fields.columns import (
    ClassColumn,
    ColumnType,
    ImageColumn,
    NumberColumn,
    NumbersColumn,
    Place,
    TextColumn,
    complete,
    guess,
)
from heedful.data.fields.learned import LearnedNumber, TableSpec, learn
from heedful.data.fields.parcels import Parcels
from heedful.data.fields.rows import CsvRows, ParquetRows, Rows, from_python, rows_in
from heedful.data.tokenizers.tokenizer import WholeWords
from heedful.data.workers import BatchIndex, load_batches
from heedful.errors import UserError
from tolerance import close

WORDS = TextColumn(tokenizer=WholeWords(vocab=100), longest=12)
HERE = Place("rows.csv:7", "weight")


def random_numbers(*shape: int) -> NDArray[np.float64]:
    return np.random.default_rng(0).normal(3.0, 700.0, shape)


# ------------------------------------------------------------------ numbers
@pytest.mark.claim("M6")
@pytest.mark.parametrize("scaling", ["standard", "min_max", "none"])
def test_normalization_equals_numpy(scaling: Any) -> None:
    table = random_numbers(501, 4)
    table[:, 2] = 0.1  # constant, whose computed deviation is not exactly 0
    learned = learn(NumbersColumn(scaling=scaling), [tuple(row) for row in table.tolist()], "x")
    found = learned.encode([tuple(row) for row in table.tolist()])
    if scaling == "standard":
        expected = (table - table.mean(0)) / np.where(table.std(0) > 1e-9, table.std(0), 1)
        np.testing.assert_allclose(found[:, [0, 1, 3]].mean(0), 0, atol=1e-12)
        np.testing.assert_allclose(found[:, [0, 1, 3]].std(0), 1, rtol=1e-12)
    elif scaling == "min_max":
        expected = (table - table.min(0)) / np.where(np.ptp(table, 0) > 0, np.ptp(table, 0), 1)
        assert found.min() == 0 and found.max() == 1
    else:
        expected = table
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert scaling == "none" or (found[:, 2] == 0).all()
    np.testing.assert_allclose(learned.restore(found), table, rtol=1e-9)


@pytest.mark.claim("M6")
def test_statistics_are_those_of_the_training_rows_and_stored_exactly() -> None:
    values = random_numbers(100).tolist()
    rows = from_python([{"x": value, "y": value * value} for value in values])
    spec = TableSpec.learn(rows, {"x": NumberColumn(), "y": NumberColumn()}, "y")
    again = TableSpec.parse(spec.json, "columns.json")
    assert again.json == spec.json and again.sha256 == spec.sha256
    number = again.inputs["x"]
    assert number.shift == (np.mean(values),) and number.scale == (np.std(values),)
    other = encode_rows(from_python([{"x": 1e6, "y": 0.0}]), again)
    assert other.values[0] == pytest.approx((1e6 - np.mean(values)) / np.std(values), rel=1e-12)
    assert other.batch(np.zeros(1, np.int64)).values[0].dtype == torch.float32


@pytest.mark.claim("M6")
def test_missing_numbers_are_refused_or_the_mean_with_a_mark() -> None:
    with pytest.raises(UserError, match="missing") as error:
        NumberColumn().read(" ", HERE)
    assert "rows.csv:7, column 'weight'" in str(error.value) and "missing: replace" in str(error.value)
    column = NumberColumn(missing="replace")
    values = [column.read(value, HERE) for value in ("1", None, 3, "", float("nan"))]
    assert values == [1.0, None, 3.0, None, None]
    learned = learn(column, values, "weight")
    assert isinstance(learned, LearnedNumber) and learned.shift == (2.0,) and learned.scale == (1.0,)
    assert learned.encode(values).tolist() == [[-1, 0], [0, 1], [1, 0], [0, 1], [0, 1]]
    assert learned.sizes == {"kind": "numbers", "size": 2}
    with pytest.raises(UserError, match="no value"):
        learn(column, [None, None], "weight")


@pytest.mark.parametrize("value", ["abc", "1_000", "inf", "-inf", 1e31, True, [1.0], "1,5", {"a": 1}])
def test_values_that_are_no_numbers_are_named(value: object) -> None:
    with pytest.raises(UserError, match="not a number") as error:
        NumberColumn().read(value, HERE)
    assert repr(value) in str(error.value) and "column 'weight'" in str(error.value)


def test_vectors_are_lists_json_or_numbers_in_a_row() -> None:
    column = NumbersColumn(size=3)
    for value in ("1 2.5 3", "1, 2.5, 3", "[1, 2.5, 3]", [1, 2.5, 3], (1.0, 2.5, 3.0)):
        assert column.read(value, HERE) == (1.0, 2.5, 3.0)
    for value in ("1 2", "[1, 2", "[1, null, 3]", "a b c", [1, 2, 3, 4]):
        with pytest.raises(UserError):
            column.read(value, HERE)


# ------------------------------------------------------------------ other types
def test_classes_are_sorted_and_unknown_ones_are_zero() -> None:
    column = ClassColumn(at_least=2, missing="replace")
    values = [column.read(value, HERE) for value in ("10", 9, " 10", 9.0, "7", None)]
    learned = learn(column, values, "zone")
    assert learned.names == ("9", "10")
    assert learned.encode([*values, "new"]).tolist() == [2, 1, 2, 1, 0, 0, 0]
    assert learned.sizes == {"kind": "class", "classes": 3}
    assert learn(ClassColumn(), ["b", "a", "10", "9"], "zone").names == ("10", "9", "a", "b")


def test_texts_are_ids_between_special_tokens_and_truncated() -> None:
    learned = learn(TextColumn(tokenizer=WholeWords(vocab=50), longest=5), ["a b", "a"], "note")
    found = learned.encode(["a b a b a b", "", "a"])
    assert found.lengths.tolist() == [5, 2, 3] and found[1].tolist() == [2, 3]
    assert found[0][0] == 2 and found[0][-1] == 3
    assert learned.unread("a b a b a b") == 3 and learned.unread("a") == 0


def test_images_are_read_from_files_or_given_and_normalized(tmp_path: Path) -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(6, 8) * 5
    Image.fromarray(pixels).save(tmp_path / "a.png")
    column = ImageColumn(channels=1, size=(6, 8))
    path = column.read("a.png", Place("x:1", "photo", tmp_path))
    files, arrays = learn(column, [path], "photo"), learn(column, [pixels], "photo")
    assert files.image == (1, 6, 8) and files.mean == arrays.mean
    rows = [Rows.of([{"photo": value, "y": 1.0}], ["x:1"], tmp_path) for value in ("a.png", pixels)]
    batches = []
    for one in rows:
        spec = TableSpec.learn(one, {"photo": column, "y": NumberColumn()}, "y")
        batches.append(encode_rows(one, spec).batch(np.zeros(1, np.int64)).values[0])
    close(batches[0], batches[1])
    scaled = pixels / 255.0
    close(batches[0][0, 0], torch.from_numpy((scaled - scaled.mean()) / scaled.std()).float(), 2**8)
    with pytest.raises(UserError, match="no such image") as error:
        column.read("b.png", Place("x:3", "photo", tmp_path))
    assert "x:3, column 'photo'" in str(error.value)
    with pytest.raises(UserError, match="not an image"):
        column.read(3, HERE)


def test_images_of_python_have_their_size() -> None:
    pixels = np.arange(72, dtype=np.uint8).reshape(4, 6, 3)
    picture = Image.fromarray(pixels)
    for value in (picture, pixels, torch.from_numpy(pixels), torch.from_numpy(pixels).permute(2, 0, 1)):
        learned = learn(ImageColumn(), [ImageColumn().read(value, HERE)], "photo")
        assert learned.image == (3, 4, 6)
        found = learned.encode([value])
        np.testing.assert_array_equal(np.asarray(found)[0], pixels.transpose(2, 0, 1))
    grey = learn(ImageColumn(channels=1), [pixels[..., 0]], "photo")
    assert grey.image == (1, 4, 6)


def test_images_of_different_sizes_name_the_setting(tmp_path: Path) -> None:
    for side in (4, 5):
        Image.new("RGB", (side, 4)).save(tmp_path / f"{side}.png")
    paths = [tmp_path / "4.png", tmp_path / "5.png"]
    with pytest.raises(UserError, match="different size") as error:
        learn(ImageColumn(), paths, "photo")
    assert "columns.photo.size=[4, 4]" in str(error.value)
    assert learn(ImageColumn(size=(6, 6)), paths, "photo").image == (3, 6, 6)


# ------------------------------------------------------------------ guesses
def test_types_are_guessed_from_values() -> None:
    notes = [f"a note of some length, number {n}" for n in range(30)]
    assert isinstance(guess(notes), TextColumn)
    assert guess(["3", "4.5", ""]) == NumberColumn(missing="replace")
    assert guess([*map(str, range(39)), "x"]) == NumberColumn(), "so that the mistake is found"
    assert guess([1, 2, 3] * 20) == NumberColumn() and guess([1, 2, 3] * 20, target=True) == ClassColumn()
    assert guess(["red", "blue"] * 20) == ClassColumn() and guess([True, False]) == ClassColumn()
    assert guess(["1 2", "3 4"]) == NumbersColumn(size=2) and guess([[1, 2], None]).kind == "numbers"
    assert guess(["a.png", "b.JPG"]) == ImageColumn()
    assert guess([np.zeros((4, 4), np.uint8)]) == ImageColumn(channels=1)
    kinds = {name: column.kind for name, column in complete({}, Parcels().read("valid").values, "carrier", ()).items()}
    assert kinds == {
        "note": "text", "weight": "number", "size": "numbers", "country": "class", "items": "image",
        "carrier": "class", "price": "number",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "target", "left_out", "message"),
    [
        ({"wieght": NumberColumn()}, "y", (), "did you mean weight"),
        ({}, "z", (), "there is no column 'z'"),
        ({}, "y", ("wait",), "there is no column 'wait'"),
        ({}, "y", ("y",), "is left out"),
        ({}, "y", ("weight",), "nothing to predict from"),
    ],
)
def test_columns_that_do_not_exist_are_named(
    given: dict[str, ColumnType], target: str, left_out: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        complete(given, {"weight": [1], "y": [2]}, target, left_out)


# ------------------------------------------------------------------ files
CSV = 'note,weight\n"one, two",1.5\n"a ""b""",2\n'
RECORDS = [{"note": "one, two", "weight": "1.5"}, {"note": 'a "b"', "weight": "2"}]


def records(rows: Rows) -> list[dict[str, object]]:
    return [row for row, _ in rows.one_by_one()]


def test_files_of_each_kind_give_the_same_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    (tmp_path / "a.tsv").write_text('note\tweight\none, two\t1.5\na "b"\t2\n')
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in RECORDS))
    for name in ("a.csv", "a.csv.gz", "a.tsv", "a.jsonl"):
        assert records(rows_in(tmp_path / name)) == RECORDS, name
    assert rows_in(tmp_path / "a.csv").places == [f"{tmp_path / 'a.csv'}:2", f"{tmp_path / 'a.csv'}:3"]
    assert rows_in(tmp_path / "a.jsonl").places == [f"{tmp_path / 'a.jsonl'}:1", f"{tmp_path / 'a.jsonl'}:3"]


def test_parquet_and_frames_give_the_same_rows(tmp_path: Path) -> None:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    rows: list[dict[str, object]] = [
        {"note": "a", "weight": 1.5, "size": [1.0, 2.0]}, {"note": None, "weight": float("nan"), "size": [3.0, 4.0]},
    ]  # fmt: skip
    expected = [rows[0], {"note": None, "weight": None, "size": [3.0, 4.0]}]
    frame = pandas.DataFrame(rows)
    assert records(from_python(frame)) == expected
    frame.to_parquet(tmp_path / "a.parquet")
    found = records(rows_in(tmp_path / "a.parquet"))
    assert found[0] == rows[0] and NumberColumn(missing="replace").read(found[1]["weight"], HERE) is None
    (tmp_path / "b.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(UserError, match="not a Parquet file"):
        rows_in(tmp_path / "b.parquet")
    assert pyarrow.__version__


def test_datasets_give_their_rows() -> None:
    datasets, pyarrow = pytest.importorskip("datasets"), pytest.importorskip("pyarrow")
    row = {"note": "a", "weight": 1.5, "size": [1.0, 2.0]}
    table = datasets.table.InMemoryTable(pyarrow.Table.from_pylist([row, row]))
    assert records(from_python(datasets.Dataset(table, fingerprint="rows"))) == [row, row]


def test_numbers_of_classes_are_their_names_in_datasets() -> None:
    datasets = pytest.importorskip("datasets")
    tags = datasets.ClassLabel(names=["O", "B-PER"])
    label = datasets.ClassLabel(names=["bad", "good"])
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "tags": datasets.List(tags),
                                  "label": label, "n": datasets.Value("int64")})  # fmt: skip
    columns = {"tokens": [["Ada", "runs"]] * 2, "tags": [[1, 0]] * 2, "label": [1, -1], "n": [1, 0]}
    table = datasets.Dataset.from_dict(columns, features=features)
    expected = [
        {"tokens": ["Ada", "runs"], "tags": ["B-PER", "O"], "label": label, "n": n}
        for label, n in (("good", 1), (None, 0))
    ]
    for found in (table, table.to_iterable_dataset(), table.with_format("numpy")):
        assert records(from_python(found)) == expected


class Classes:
    """As a `ClassLabel` of the package datasets."""

    names = ("bad", "good")

    def int2str(self, values: int) -> str:
        return self.names[values]


class Labelled(list[dict[str, Any]]):
    """As a `Dataset` of that package."""

    features: ClassVar = {"label": Classes(), "labels": [Classes()], "text": None}


def test_rows_with_classes_have_their_names_without_that_package() -> None:
    rows = Labelled([{"text": "a", "label": 1, "labels": [0, 1]}, {"text": "b", "label": -1, "labels": []}])
    assert records(from_python(rows)) == [
        {"text": "a", "label": "good", "labels": ["bad", "good"]}, {"text": "b", "label": None, "labels": []},
    ]  # fmt: skip


def test_two_columns_of_one_name_are_refused_in_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(UserError, match="two columns have one name"):
        from_python(pandas.DataFrame([["a", "b"]], columns=["text", "text"]))


def test_parquet_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match="pyarrow") as error:
        ParquetRows(root=str(tmp_path), train="a.parquet", valid="a.parquet").read("train")
    assert "heedful[parquet]" in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3\n", "different number of columns"),
        ("a,a\n1,2\n", "two columns have one name"),
        ("a,\n1,2\n", "a column has no name"),
        ("a,b\n", "there are no rows"),
        ('a,b\n"1,2\n', "not CSV"),
    ],
)
def test_damaged_tables_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        CsvRows(root=str(tmp_path), train="a.csv", valid="a.csv").read("train")
    assert "a.csv" in str(error.value)


def test_rows_with_missing_keys_have_missing_values(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 2, "b": "x"}\n')
    rows = rows_in(tmp_path / "a.jsonl")
    assert rows.values == {"a": [1, 2], "b": [None, "x"]}
    with pytest.raises(UserError, match=r"a\.jsonl:1, column 'b': a value is missing"):
        rows.read("b", ClassColumn())
    assert rows.read("b", ClassColumn(missing="replace")) == [None, "x"]


def test_all_invalid_values_are_listed(tmp_path: Path) -> None:
    rows = from_python([{"a": "x", "b": 1}, {"a": 2, "b": "y"}, {"a": "z", "b": 3}], "data.train")
    problems = rows.problems({"a": NumberColumn(), "b": NumberColumn()})
    assert len(problems) == 2
    assert "2 of 3" in str(problems[0]) and "data.train[0]" in str(problems[0]) and "data.train[2]" in str(problems[0])
    assert "data.train[1], column 'b'" in str(problems[1])


def test_python_rows_are_plain() -> None:
    rows = from_python([{"a": np.float32(0.5), "b": np.int64(3), "c": np.arange(2), "d": np.str_("x")}])
    assert records(rows) == [{"a": 0.5, "b": 3, "c": [0, 1], "d": "x"}]
    with pytest.raises(UserError, match="not a row") as error:
        from_python([{"a": 1}, ["b"]])  # type: ignore[list-item]
    assert "row[1]" in str(error.value)


# ------------------------------------------------------------------ batches
def mixed(count: int = 60) -> Rows:
    """Rows whose values all tell their number: words, a number, a vector, a class and an image."""
    rows = [
        {
            "words": " ".join([f"w{n}"] * (1 + n % 9)), "number": float(n), "vector": [n, -n], "class": f"c{n:03}",
            "image": np.full((3, 4), n, np.uint8), "target": f"t{n % 3}",
        }
        for n in range(count)
    ]  # fmt: skip
    return from_python(rows)


TYPES: dict[str, ColumnType] = {
    "words": WORDS, "number": NumberColumn(scaling="none"), "vector": NumbersColumn(scaling="none"),
    "class": ClassColumn(), "image": ImageColumn(channels=1), "target": ClassColumn(),
}  # fmt: skip


def encoded(rows: Rows) -> EncodedRows:
    return encode_rows(rows, TableSpec.learn(rows, TYPES, "target"))


def check_aligned(batch: RowBatch, spec: TableSpec) -> None:
    """Each column of each row of a batch is that of the row's number."""
    words, numbers, vectors, classes, images = batch.values
    for place, row in enumerate(batch.indices.tolist()):
        texts = spec.inputs["words"].words.decode(words[place][words[place] != 0].tolist())
        assert set(texts.split()) == {f"w{row}"} and len(texts.split()) == 1 + row % 9
        assert numbers[place].tolist() == [row] and vectors[place].tolist() == [row, -row]
        assert spec.inputs["class"].names[classes[place] - 1] == f"c{row:03}"
        image = spec.inputs["image"]
        close(images[place] * image.std[0] + image.mean[0], torch.full((1, 3, 4), row / 255), 2**6)
        assert spec.target.names[batch.targets[place]] == f"t{row % 3}"


@pytest.mark.claim("M7")
def test_fields_stay_in_their_rows_under_shuffling_and_buckets() -> None:
    found = encoded(mixed())
    batches = RowBatches(found, 5, 64)
    orders = []
    for epoch in range(2):
        seen = list[int]()
        position = sum(map(len, orders))
        order = []
        while batches.epoch_of(position) == epoch:
            batch = batches.at(position)
            check_aligned(batch, found.spec)
            lengths = found.lengths[batch.indices.numpy()]
            assert -(-lengths.max() // 8) * 8 * len(lengths) <= 64 or len(lengths) == 1, "more than the budget"
            seen += batch.indices.tolist()
            order.append(batch.indices.tolist())
            position += 1
        assert sorted(seen) == list(range(60)) and seen != list(range(60))
        orders.append(order)
    assert orders[0] != orders[1], "every epoch has its own order"


@pytest.mark.claim("M7")
def test_any_position_gives_the_same_rows_again() -> None:
    """So a run resumes with the batches that it would have had."""
    found = encoded(mixed())
    first = [RowBatches(found, 5, 64).at(position).indices.tolist() for position in range(12)]
    again = encoded(mixed())
    assert again.sha256 == found.sha256
    assert [RowBatches(again, 5, 64).at(position).indices.tolist() for position in reversed(range(12))] == first[::-1]
    assert RowBatches(found, 6, 64).at(0).indices.tolist() != first[0]
    parts = [RowBatches(found, 5, 64).at(3, part, 2).indices.tolist() for part in range(2)]
    assert Counter([*parts[0], *parts[1]]) == Counter(first[3])
    changed = mixed()
    changed.values["number"][7] = 7.5
    assert encoded(changed).sha256 != found.sha256


def test_workers_give_the_same_batches() -> None:
    found = encoded(mixed(24))
    batches = RowBatches(found, 5, 64)
    order = [BatchIndex(position) for position in range(4)]
    direct, sent = (list(load_batches(batches, lambda: iter(order), count)) for count in (0, 2))
    for one, other in zip(direct, sent, strict=True):
        check_aligned(other, found.spec)
        assert all(torch.equal(a, b) for a, b in zip(one.values, other.values, strict=True))


def test_empty_shards_have_no_targets() -> None:
    found = encoded(mixed(6))
    batch = found.batch(np.zeros(0, np.int64))
    assert batch.tokens == 0 and batch.indices.tolist() == [-1] and batch.targets.tolist() == [IGNORE_INDEX]
    assert batch.to("cpu").values[0].shape[0] == 1


def test_unknown_target_classes_are_named() -> None:
    found = encoded(mixed(6))
    rows = mixed(6)
    rows.values["target"][4] = "t9"
    with pytest.raises(UserError, match="no training row has this class") as error:
        encode_rows(rows, found.spec)
    assert "row[4], column 'target'" in str(error.value) and "'t0', 't1', 't2'" in str(error.value)
    del rows.values["number"]
    with pytest.raises(UserError, match="the column 'number' is missing"):
        encode_rows(rows, found.spec)


def test_damaged_files_of_columns_are_refused() -> None:
    text = encoded(mixed(6)).spec.json
    with pytest.raises(UserError, match="JSON"):
        TableSpec.parse(text[:-5], "columns.json")
    broken = json.loads(text)
    broken["inputs"]["number"]["scale"] = [0.0]
    with pytest.raises(UserError, match="scale"):
        TableSpec.parse(json.dumps(broken), "columns.json")


# ------------------------------------------------------------------ parcels
def test_parcels_follow_their_rules() -> None:
    table = Parcels(train=300)
    rows = table.read("train")
    assert rows.values["note"] == table.read("train").values["note"]
    assert rows.values["note"] != Parcels(train=300, seed=1).read("train").values["note"]
    assert set(rows.values["carrier"]) == {"air", "express", "freight", "letter", "parcel"}
    for row in records(rows):
        note, size = str(row["note"]), row["size"]
        assert isinstance(size, list)
        calm = any(word in note for word in ("no hurry", "not urgent", "take your time", "next week", "later is fine"))
        if not calm:
            assert row["carrier"] in ("air", "express")
        elif max(size) > 80:
            assert row["carrier"] == "freight"
    images = {
        split: {np.asarray(one).tobytes() for one in table.read(split).values["items"]} for split in ("train", "test")
    }  # type: ignore[arg-type]
    assert not images["train"] & images["test"], "other handwriting"


def test_lengths_are_those_of_all_texts() -> None:
    rows = from_python([{"a": "x y", "b": "z", "y": 1.0}, {"a": "x", "b": "", "y": 2.0}])
    types = {"a": WORDS, "b": WORDS.model_copy(update={"missing": "replace"}), "y": NumberColumn()}
    found = encode_rows(rows, TableSpec.learn(rows, types, "y"))
    assert found.lengths.tolist() == [7, 5]
    assert isinstance(found.values[0], Ragged) and found.truncated == 0
