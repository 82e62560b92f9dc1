"""Tagged sentences: CoNLL columns, JSON lines, and tagging schemes."""

import gzip
import json
import os
from itertools import product
from pathlib import Path

import pytest

from heedful.data.formats.conll import Chunk, Conll, JsonTags, chunks, collect_labels, iob2
from heedful.errors import UserError

CONLL = Path(os.environ.get("HEEDFUL_DATA", "../shared/data"), "conll2003")
TEXT = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
Ann NNP I-NP B-PER
"""


def source(tmp_path: Path, text: str, **settings: int) -> Conll:
    (tmp_path / "train.txt").write_text(text)
    return Conll(root=str(tmp_path), train="train.txt", valid="train.txt", **settings)


def problem(tmp_path: Path, text: str, **settings: int) -> UserError:
    with pytest.raises(UserError) as error:
        source(tmp_path, text, **settings).read("train")
    return error.value


# ------------------------------------------------------------------ the ways of writing
IOB1 = ["I-PER", "I-PER", "B-PER", "O", "I-LOC", "I-PER", "B-PER", "I-PER"]
IOB2 = ["B-PER", "I-PER", "B-PER", "O", "B-LOC", "B-PER", "B-PER", "I-PER"]
IOBES = ["B-PER", "E-PER", "S-PER", "O", "S-LOC", "S-PER", "B-PER", "E-PER"]
BILOU = ["B-PER", "L-PER", "U-PER", "O", "U-LOC", "U-PER", "B-PER", "L-PER"]


@pytest.mark.parametrize("tags", [IOB1, IOB2, IOBES, BILOU], ids=["IOB1", "IOB2", "IOBES", "BILOU"])
def test_all_tagging_schemes_give_the_same_chunks(tags: list[str]) -> None:
    assert chunks(tags) == [
        Chunk(0, 2, "PER"), Chunk(2, 3, "PER"), Chunk(4, 5, "LOC"), Chunk(5, 6, "PER"), Chunk(6, 8, "PER"),
    ]  # fmt: skip
    assert list(iob2(tags)) == IOB2


def test_iob2_preserves_chunks_of_any_tags() -> None:
    for tags in product(["O", "B-A", "I-A", "E-A", "S-A", "I-B"], repeat=4):
        written = iob2(tags)
        assert chunks(written) == chunks(tags)
        assert iob2(written) == written
        assert all(tag[0] in "OBI" for tag in written)
        inside = {place for start, end, _ in chunks(tags) for place in range(start, end)}
        assert inside == {place for place, tag in enumerate(tags) if tag != "O"}


def test_chunk_types_may_contain_hyphens() -> None:
    assert chunks(["B-work-of-art", "I-work-of-art", "I-work"]) == [Chunk(0, 2, "work-of-art"), Chunk(2, 3, "work")]


# ------------------------------------------------------------------ files
def test_sentences_are_read_and_document_marks_skipped(tmp_path: Path) -> None:
    read = source(tmp_path, TEXT).read("train")
    assert [sentence.words for sentence in read.sentences] == [
        ("EU", "rejects", "German"),
        ("Peter", "Blackburn", "Ann"),
    ]
    assert [sentence.tags for sentence in read.sentences] == [("B-ORG", "O", "B-MISC"), ("B-PER", "I-PER", "B-PER")]
    assert [sentence.where for sentence in read.sentences] == [f"{tmp_path}/train.txt:{line}" for line in (3, 7)]
    assert collect_labels(read.sentences) == ("O", "B-MISC", "I-MISC", "B-ORG", "I-ORG", "B-PER", "I-PER")


def test_tag_column_is_a_setting(tmp_path: Path) -> None:
    (read,) = source(tmp_path, "EU NNP I-NP O\nrejects VBZ I-VP O\n", tag_column=2).read("train").sentences
    assert read.tags == ("B-NP", "B-VP")


def test_tab_separated_columns_may_contain_odd_spaces(tmp_path: Path) -> None:
    (read,) = source(tmp_path, "New York\tB-LOC\r\n8\xa01/2\tO\r\n").read("train").sentences
    assert read.words == ("New York", "8\xa01/2")


def test_gzip_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.gz").write_bytes(gzip.compress(TEXT.encode()))
    files = Conll(root=str(tmp_path), train="train.gz", valid="train.gz")
    assert files.read("valid") == files.read("train")
    assert len(files.read("train").sentences) == 2


def test_different_number_of_columns_is_reported_by_line(tmp_path: Path) -> None:
    error = problem(tmp_path, "EU NNP I-NP I-ORG\nrejects VBZ O\n")
    assert error.where == f"{tmp_path}/train.txt:2"
    assert error.found == "3 columns in 'rejects VBZ O'"
    assert error.expected == "4 columns, as in the first line"


def test_word_without_a_tag_is_reported(tmp_path: Path) -> None:
    error = problem(tmp_path, "EU\nrejects\n")
    assert (error.where, error.found) == (f"{tmp_path}/train.txt:1", "1 column in 'EU'")


@pytest.mark.parametrize("settings", [{"tag_column": 4}, {"tag_column": -5}, {"tag_column": 0}, {"word_column": 9}])
def test_missing_column_is_reported(tmp_path: Path, settings: dict[str, int]) -> None:
    error = problem(tmp_path, "EU NNP I-NP I-ORG\n", **settings)
    assert error.where == f"{tmp_path}/train.txt:1" and "tag_column" in str(error.todo)


@pytest.mark.parametrize("tag", ["NNP", "B", "B-", "X-PER", "o"])
def test_invalid_chunk_tag_is_reported(tmp_path: Path, tag: str) -> None:
    error = problem(tmp_path, f"EU I-ORG\nrejects {tag}\n")
    assert (error.message, error.where, error.found) == (
        "this is not a chunk tag",
        f"{tmp_path}/train.txt:2",
        repr(tag),
    )


def test_other_tags_are_unchanged(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("A DET\ndog NOUN\n\nB-side B_X\nx i-per\n")
    found = Conll(root=str(tmp_path), train="train.txt", valid="train.txt").read("train").sentences
    assert [sentence.tags for sentence in found] == [("DET", "NOUN"), ("B_X", "i-per")]
    assert collect_labels(found) == ("B_X", "DET", "NOUN", "i-per")
    assert [sentence.where for sentence in found] == [f"{tmp_path}/train.txt:1", f"{tmp_path}/train.txt:4"]


@pytest.mark.parametrize(("chunks", "tags"), [(None, None), (True, None), (False, ("I-ORG", "NNP"))])
def test_chunk_detection_can_be_overridden(tmp_path: Path, chunks: bool | None, tags: tuple[str, ...] | None) -> None:
    (tmp_path / "train.txt").write_text("EU I-ORG\nrejects NNP\n")
    data = Conll(root=str(tmp_path), train="train.txt", valid="train.txt", chunks=chunks)
    if tags is None:
        with pytest.raises(UserError, match=r"train\.txt:2: this is not a chunk tag") as error:
            data.read("train")
        assert "data.chunks: false" in str(error.value.todo)
    else:
        assert data.read("train").sentences[0].tags == tags


@pytest.mark.parametrize("tag", [" ", "x" * 1001])
def test_blank_tags_are_rejected(tmp_path: Path, tag: str) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps({"tokens": ["a"], "tags": [tag]}) + "\n")
    with pytest.raises(UserError, match=r"train\.jsonl:1: this is not a tag"):
        JsonTags(root=str(tmp_path), train="train.jsonl", valid="train.jsonl").read("train")


def test_files_without_words_are_rejected(tmp_path: Path) -> None:
    assert problem(tmp_path, "-DOCSTART- O\n\n\n").message == "there are no sentences"


# ------------------------------------------------------------------ JSON lines
def test_json_lines_are_read(tmp_path: Path) -> None:
    rows = [{"tokens": ["EU", "rejects"], "tags": ["I-ORG", "O"]}, {"tokens": [], "tags": []}]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    read = JsonTags(root=str(tmp_path), train="train.jsonl", valid="train.jsonl").read("train")
    assert read.sentences == [(("EU", "rejects"), ("B-ORG", "O"), f"{tmp_path}/train.jsonl:1")]
    assert read.skipped == 2


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"tokens": ["EU"], "tags": ["O", "O"]}, "1 under 'tokens', 2 under 'tags'"),
        ({"tokens": ["EU"]}, "'tokens'"),
        ({"tokens": "EU", "tags": ["O"]}, "'EU'"),
        ({"tokens": ["EU"], "tags": [1]}, "[1]"),
    ],
)
def test_invalid_json_rows_are_reported(tmp_path: Path, row: dict[str, object], found: str) -> None:
    (tmp_path / "train.jsonl").write_text('{"tokens": [], "tags": []}\n' + json.dumps(row) + "\n")
    with pytest.raises(UserError) as error:
        JsonTags(root=str(tmp_path), train="train.jsonl", valid="train.jsonl").read("train")
    assert (error.value.where, error.value.found) == (f"{tmp_path}/train.jsonl:2", found)


# ------------------------------------------------------------------ the published files
@pytest.mark.skipif(not CONLL.is_dir(), reason=f"no files of CoNLL-2003 in {CONLL}; set HEEDFUL_DATA")
def test_published_files_have_the_published_counts() -> None:
    files = Conll(root=str(CONLL), train="eng.train.gz", valid="eng.testa.gz", test="eng.testb.gz")
    counts = {"valid": (3250, 51362, 5942), "test": (3453, 46435, 5648)}  # sentences, words, names
    for split in ("valid", "test"):
        found = files.read(split).sentences
        names = sum(len(chunks(sentence.tags)) for sentence in found)
        assert (len(found), sum(len(sentence.words) for sentence in found), names) == counts[split]
        assert {kind for one in found for _, _, kind in chunks(one.tags)} == {"LOC", "MISC", "ORG", "PER"}
