"""Documents and sentences from text files, JSON lines and Python's standard library."""

from __future__ import annotations

import gzip
import json
import os
import pydoc_data.topics
from pathlib import Path

import pytest

from heedful.data.embedded import LibraryProse
from heedful.data.text.documents import (
    Documents,
    JsonDocuments,
    TextDocuments,
    iter_documents,
    library_documents,
    read_documents,
    sentences,
)
from heedful.errors import UserError

DATA = Path(os.environ.get("HEEDFUL_DATA", "../shared/data"))


@pytest.mark.parametrize(
    "expected",
    [
        ["Mr. Smith went to Washington D.C.", "He paid $3.50 for it.", '"Why?" he asked.', '"Stop!"', "She ran."],
        [
            "J. R. R. Tolkien wrote it.",
            "It was I.",
            "He left...",
            "And then?",
            '"Oh, no..." he said.',
            "See e.g. Fig. 3.",
        ],
        [
            "The U.S. Army came.",
            "The cat ( on the mat ) sat .",
            'The dog , " too . "',
            "He left .",
            "<unk> was there .",
        ],
        ["He lived in the U.S.", "He died in 1900.", "12 men came.", "It was at 5 p.m.", "Then we left."],
        ["“Yes.”", "“No.”", "(Really.)", "Ümit kam.", "Who?!", "Me."],
        ["“Good!” said Dr. Livesey.", "St. Paul's is at No. 10.", "Version 3.2.1 is out, i.e. Now."],
        ["Wait... what did he say?", "George I. Smith came on Jan. 5."],
        ["no end here"],
    ],
)
def test_paragraphs_are_split_into_sentences(expected: list[str]) -> None:
    assert sentences("  ".join(expected)) == expected


def test_sentences_of_other_scripts_and_empty_texts() -> None:
    assert sentences("今日は晴れ。明日は雨！") == ["今日は晴れ。", "明日は雨！"]
    assert sentences(" \t ") == []
    assert sentences("...") == ["..."]


def test_sentence_splitting_loses_no_character() -> None:
    text = " ".join(pydoc_data.topics.topics.values())
    assert " ".join(sentences(text)) == " ".join(text.split())


def test_sentence_splitting_takes_linear_time() -> None:
    for text in (
        "a. " * 200_000,
        "A. " * 100_000,
        "Dr. " * 100_000,
        "A." * 100_000,
        '."' * 100_000,
        ". " * 200_000,
        '"' * 200_000,
    ):
        sentences(text)


def write(folder: Path, **files: str) -> str:
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return str(folder)


def test_document_boundaries_are_files_blank_lines_or_titles(tmp_path: Path) -> None:
    root = write(tmp_path, a="One. Two.\n\nThree.\n", b="Four.\n")
    found = lambda **how: list(TextDocuments(**how).documents(root, 1000))  # noqa: E731
    assert found(files=["a.txt", "b.txt"]) == [["One.", "Two.", "Three."], ["Four."]]
    assert found(files=["."]) == [["One.", "Two.", "Three."], ["Four."]]
    assert found(files=["a.txt"], between="blank_lines") == [["One.", "Two."], ["Three."]]
    assert found(files=["a.txt"], between="blank_lines", sentences="lines") == [["One. Two."], ["Three."]]
    write(
        tmp_path, w=" = Cats = \n A cat . It sat . \n = = Diet = = \n Mice . \n = Dogs = \n\n A dog . \n = X = \n Y .\n"
    )
    assert found(files=["w.txt"], between="headings") == [["A cat .", "It sat .", "Mice ."], ["A dog ."], ["Y ."]]


def test_json_lines_are_documents(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "r.jsonl.gz", "wt") as file:
        file.write(json.dumps({"text": "Good. Bad.<br /><br />Ugly"}) + "\n\n" + json.dumps({"text": " "}) + "\n")
    part = JsonDocuments(files=["r.jsonl.gz"])
    assert list(part.documents(str(tmp_path), 1000)) == [["Good.", "Bad.", "Ugly"]]
    with pytest.raises(UserError, match=r"r.jsonl.gz:1: the key 'body' is missing"):
        list(JsonDocuments(files=["r.jsonl.gz"], field="body").documents(str(tmp_path), 1000))


def test_documents_are_held_out_by_share_without_overlap(tmp_path: Path) -> None:
    write(tmp_path, a="\n\n".join(f"Document {number}. It ends." for number in range(40)))
    part = TextDocuments(files=["a.txt"], between="blank_lines")
    data = Documents(root=str(tmp_path), train=[part], held_out=0.1)
    train, valid = (read_documents(data, split).documents for split in ("train", "valid"))
    assert (len(train), len(valid)) == (36, 4)
    assert sorted(map(str, train + valid)) == sorted(map(str, part.documents(str(tmp_path), 1000)))
    with pytest.raises(UserError, match="there is no test data"):
        iter_documents(data, "test")
    few = Documents(root=str(tmp_path), train=[part], held_out=0.01)
    with pytest.raises(UserError, match="no document for valid"):
        read_documents(few, "valid")


def test_missing_or_empty_files_are_reported_before_reading(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    data = Documents(root=str(tmp_path), train=[TextDocuments(files=["no.txt", "empty"])])
    assert [error.message for error in data.problems()] == ["there is no such file", "there is no text in this folder"]
    with pytest.raises(UserError, match="there is no text in this folder"):
        list(TextDocuments(files=["empty"]).documents(str(tmp_path), 10))


def test_modules_are_documents_without_code() -> None:
    found = list(library_documents(LibraryProse(), "test"))
    assert 20 <= len(found) <= 30
    assert not any(one.startswith(">>>") for document in found for one in document)
    train = {tuple(document) for document in library_documents(LibraryProse(), "train")}
    assert not train & set(map(tuple, found))


@pytest.mark.skipif(not (DATA / "novels").is_dir(), reason=f"no novels in {DATA}; set HEEDFUL_DATA")
def test_sentence_counts_of_a_novel_and_wikipedia_are_plausible() -> None:
    (hound,) = TextDocuments(files=["novels/Doyle_Hound_1902.txt.gz"]).documents(str(DATA), 10**6)
    words = sum(len(one.split()) for one in hound)
    assert words == 59_639
    assert 13 < words / len(hound) < 18
    assert sum(one[0].islower() for one in hound) / len(hound) < 0.03  # some lines of the file start in lower case
    wiki = list(
        TextDocuments(files=["wikitext-2/wiki.valid.tokens.gz"], between="headings").documents(str(DATA), 10**6)
    )
    assert 60 <= len(wiki) <= 65
    count = sum(map(len, wiki))
    assert 20 < sum(len(one.split()) for document in wiki for one in document) / count < 30
