"""Dialogues: sources, batches (B, U, T), their order and budget, and the same replies with joined sources."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heedful.data.dialogues.batches import DialogueBatches, EncodedDialogues, encode_dialogues
from heedful.data.dialogues.sources import (
    CsvDialogues,
    DailyDialog,
    Dialogue,
    JsonlDialogues,
    TsvDialogues,
    collect_dialogues,
    number_speakers,
    utterance,
)
from heedful.data.dialogues.trips import FACTS, Trips
from heedful.data.own import dialogues
from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WholeWords
from heedful.errors import UserError

REAL = Path(os.environ.get("HEEDFUL_DATA", Path(__file__).parents[3] / "shared" / "data")) / "dailydialog"


def trips(count: int = 60) -> list[Dialogue]:
    return Trips(train=count, valid=1, test=1).read("train").dialogues


def tokenizer_of(rows: list[Dialogue]) -> TrainedTokenizer:
    return TrainedTokenizer.train(WholeWords(vocab=200), (text for row in rows for text in row.utterances))


def encoded(rows: list[Dialogue] | None = None, longest: int = 30, utterances: int = 32) -> EncodedDialogues:
    rows = trips() if rows is None else rows
    return encode_dialogues(rows, tokenizer_of(rows), longest, utterances)


def path_of(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


# ------------------------------------------------------------------ sources
def test_dailydialog_lines_with_labels_and_blank_utterances(tmp_path: Path) -> None:
    text = (
        "Hi ! __eou__ Hello , you . __eou__ Bye . __eou__\t1\t2 1 1\t0 0 0\n"
        "\n"
        "Alone . __eou__\n"
        "One __eou__  __eou__ Two\n"
    )
    path = path_of(tmp_path, "a.txt", text)
    read = DailyDialog(train=path, valid=path).read("train")
    assert read.dialogues == [
        Dialogue(("Hi !", "Hello , you .", "Bye ."), (0, 1, 0)),
        Dialogue(("One", "Two"), (0, 1)),
    ]
    assert (read.skipped, read.blank) == (1, 1)


def test_gzip_file_reads_as_the_plain_one(tmp_path: Path) -> None:
    plain = path_of(tmp_path, "a.txt", "One __eou__ Two __eou__\n")
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write("One __eou__ Two __eou__\n")
    same = DailyDialog(train=plain, valid=str(tmp_path / "a.txt.gz"))
    assert same.read("train") == same.read("valid")


@pytest.mark.skipif(not REAL.exists(), reason="needs DailyDialog's files in $HEEDFUL_DATA/dailydialog")
def test_real_files_have_their_dialogues() -> None:
    data = DailyDialog(root=str(REAL), train="dialogues_1k_en.txt.gz", valid="en_dev_human.txt.gz")
    train, valid = data.read("train"), data.read("valid")
    assert len(train.dialogues) + train.skipped == 1000 and len(valid.dialogues) + valid.skipped == 995
    assert sum(len(one.utterances) for one in valid.dialogues) + valid.blank + valid.skipped == 8025
    assert all("__eou__" not in text for one in train.dialogues for text in one.utterances)


def test_jsonl_has_texts_or_objects_with_speakers(tmp_path: Path) -> None:
    rows = [
        {"utterances": ["a b", "c"]},
        {"utterances": [{"text": "x", "speaker": "Ann"}, {"text": "y", "speaker": 7}, {"text": "z", "speaker": "Ann"}]},
    ]
    path = path_of(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    read = JsonlDialogues(train=path, valid=path).read("train")
    assert read.dialogues == [Dialogue(("a b", "c"), (0, 1)), Dialogue(("x", "y", "z"), (0, 1, 0))]


def test_tables_join_the_rows_of_a_dialogue(tmp_path: Path) -> None:
    table = 'dialogue,who,text\n1,A,hi\n2,A,you?\n1,B,"hello, you"\n2,A,you!\n2,B,yes\n'
    path = path_of(tmp_path, "a.csv", table)
    read = CsvDialogues(train=path, valid=path, speaker="who").read("train")
    assert read.dialogues == [Dialogue(("hi", "hello, you"), (0, 1)), Dialogue(("you?", "you!", "yes"), (0, 0, 1))]
    path = path_of(tmp_path, "a.tsv", "7\thi\n7\tho\n")
    assert TsvDialogues(train=path, valid=path, header=False, dialogue=0, text=1).read("train").dialogues == [
        Dialogue(("hi", "ho"), (0, 1))
    ]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (JsonlDialogues, '{"turns": ["a"]}\n', "'utterances' is missing"),
        (JsonlDialogues, '{"utterances": "a"}\n', "is not a list"),
        (JsonlDialogues, '{"utterances": ["a", 3]}\n', "this is no utterance"),
        (JsonlDialogues, '{"utterances": [{"speaker": "A"}]}\n', "'text' is missing"),
        (JsonlDialogues, '{"utterances": [{"text": "a", "speaker": []}]}\n', "a speaker is a name or a number"),
        (JsonlDialogues, '["a", "b"]\n', "this line is not a JSON object"),
        (JsonlDialogues, '{"utterances": ["a"]}\n', "there are no dialogues"),
        (DailyDialog, "a text without marks\nanother\n", "no dialogues in DailyDialog's format"),
        (CsvDialogues, "dialogue,said\n1,hi\n", "there is no column 'text'"),
        (CsvDialogues, "dialogue,text\n,hi\n", "an utterance belongs to no dialogue"),
        (CsvDialogues, "dialogue,text\n1,hi,ho\n", "different number of columns"),
    ],
)
def test_what_is_no_dialogue_is_named(tmp_path: Path, kind: Any, text: str, message: str) -> None:
    path = path_of(tmp_path, "a.txt", text)
    with pytest.raises(UserError, match=message) as error:
        kind(train=path, valid=path).read("train")
    assert "a.txt" in str(error.value)


def test_own_examples_and_what_is_none_of_them() -> None:
    found = dialogues([["a", "b"], [("Ann", "x"), ("Bob", "y")], ["alone"], ["a", " ", "b"]], "train")
    assert found.dialogues == [Dialogue(("a", "b"), (0, 1)), Dialogue(("x", "y"), (0, 1)), Dialogue(("a", "b"), (0, 1))]
    assert (found.skipped, found.blank) == (1, 1)
    for bad in ("a text", 3, [1, 2], [("a", "b", "c"), "d"]):
        with pytest.raises(UserError, match=r"data\.train"):
            dialogues([bad], "train")
    with pytest.raises(UserError, match="there are no dialogues"):
        dialogues([["a"]], "train")
    assert utterance("a", "") == ("a", None)


def test_speakers_are_numbered_as_they_come() -> None:
    assert number_speakers(["B", "A", "B", "C"]) == (0, 1, 0, 2)
    assert number_speakers([None, None, None]) == (0, 1, 0)
    assert number_speakers(["A", None, "A"]) == (0, 1, 0)  # not all are named, so two take turns


def test_generated_dialogues_are_disjoint_and_ask_for_what_was_said_before() -> None:
    data = Trips(train=300, valid=40, test=40)
    splits = {split: data.read(split).dialogues for split in ("train", "valid", "test")}
    assert [len(rows) for rows in splits.values()] == [300, 40, 40]
    assert len({row for rows in splits.values() for row in rows}) == 380
    assert data.read("valid") == data.read("valid") and Trips(seed=1).read("valid") != data.read("valid")
    for dialogue in splits["test"]:
        *before, question, answer = dialogue.utterances
        (fact,) = (one for one in FACTS if one.asked == question)
        value = answer.removesuffix(" .")
        stated = [turn for turn, text in enumerate(before) if text in [form.format(value) for form in fact.stated]]
        assert value in fact.values and stated and max(stated) <= len(before) - 2  # two turns or more before the answer
        assert value not in question


# ------------------------------------------------------------------ batches
@pytest.mark.claim("M5")
def test_batch_is_dialogues_by_utterances_by_tokens_with_counts() -> None:
    rows = [
        Dialogue(("a b c", "d"), (0, 1)),
        Dialogue(("d", "c b", "a", "a b c d"), (0, 1, 1, 2)),
        Dialogue(("b", "a a", "c"), (0, 1, 0)),
    ]
    tokenizer = tokenizer_of(rows)
    batch = encode_dialogues(rows, tokenizer, 10, 8).batch(np.arange(3))
    assert batch.utterances.shape == (3, 4, 8)  # (B, utterances, tokens), tokens in a multiple of eight
    assert batch.counts.tolist() == [2, 4, 3]
    assert batch.lengths.tolist() == [[5, 3, 0, 0], [3, 4, 3, 6], [3, 4, 3, 0]]  # with begin and end tokens
    assert batch.speakers.tolist() == [[0, 1, 0, 0], [0, 1, 1, 2], [0, 1, 0, 0]]
    assert batch.indices.tolist() == [0, 1, 2]
    assert torch.equal(batch.real.sum(2), batch.lengths)
    assert bool((batch.utterances[~batch.real] == tokenizer.pad).all())
    for dialogue, ids, lengths in zip(rows, batch.utterances, batch.lengths, strict=True):
        for text, one, length in zip(dialogue.utterances, ids, lengths, strict=False):
            assert one[0] == tokenizer.bos and one[length - 1] == tokenizer.eos
            assert tokenizer.decode(one[1 : length - 1].tolist()) == text
    assert batch.tokens == sum(len(text.split()) + 1 for row in rows for text in row.utterances[1:])


def test_every_dialogue_comes_once_in_an_epoch_within_the_budget() -> None:
    data = encoded()
    batches = DialogueBatches(data, seed=3, batch_tokens=600)
    seen, position = list[int](), 0
    while batches.epoch_of(position) == 0:
        batch = batches.at(position)
        assert batch.utterances.numel() <= 600 or len(batch.counts) == 1
        assert batch.tokens == batches.tokens(position)
        seen += batch.indices.tolist()
        position += 1
    assert sorted(seen) == list(range(60)) and position > 3
    again = DialogueBatches(data, seed=3, batch_tokens=600)
    assert torch.equal(
        again.at(position + 2).utterances, batches.at(position + 2).utterances
    )  # a function of the position
    other = DialogueBatches(data, seed=4, batch_tokens=600)
    assert not torch.equal(other.at(0).indices, batches.at(0).indices)


def test_parts_of_a_batch_make_it_up_and_may_be_empty() -> None:
    batches = DialogueBatches(encoded(), seed=0, batch_tokens=2000)
    place = next(place for place in range(5) if len(batches.at(place).indices) > 2)  # not a single one, left over
    whole = batches.at(place)
    parts = [batches.at(place, part, 3) for part in range(3)]
    assert sorted(torch.cat([part.indices for part in parts]).tolist()) == sorted(whole.indices.tolist())
    assert sum(part.tokens for part in parts) == whole.tokens
    empty = batches.at(0, 500, 501)
    assert empty.tokens == 0 and empty.indices.tolist() == [-1] and empty.utterances.shape == (1, 2, 8)


def test_evaluation_sees_every_dialogue_once() -> None:
    data = encoded()
    found = [index for batch in data.in_order(500) for index in batch.indices.tolist()]
    assert sorted(found) == list(range(60))


def test_long_dialogues_are_split_and_lose_no_reply() -> None:
    rows = [
        Dialogue(tuple("abcdefg"), (0, 1) * 3 + (0,)),
        Dialogue(("a", "b"), (0, 1)),
        Dialogue(tuple("abcd"), (0, 1, 0, 1)),
    ]
    data = encoded(rows, utterances=3)
    assert (data.split, len(data)) == (2, 6)
    assert data.indices.tolist() == [0, 0, 0, 1, 2, 2]
    replies = [
        data.tokens[row].tolist()
        for begin, end in zip(data.begins, data.ends, strict=True)
        for row in range(begin + 1, end)
    ]
    whole = encoded(rows)
    expected = [
        whole.tokens[row].tolist()
        for begin, end in zip(whole.begins, whole.ends, strict=True)
        for row in range(begin + 1, end)
    ]
    assert replies == expected and len(replies) == 10
    assert data.sizes[:, 0].tolist() == [3, 3, 3, 2, 3, 2]


def test_dialogues_with_a_long_utterance_are_left_out_and_counted() -> None:
    rows = [Dialogue(("a", "b " * 9), (0, 1)), Dialogue(("a", "b"), (0, 1))]
    data = encoded(rows, longest=5)
    assert data.dropped == 1 and data.indices.tolist() == [1]
    with pytest.raises(UserError, match="no dialogue is left"):
        encoded(rows[:1], longest=5)


def test_more_speakers_than_a_model_distinguishes_are_counted() -> None:
    data = encoded([Dialogue(("a", "b", "c"), (0, 1, 2)), Dialogue(("a", "b"), (0, 1))])
    assert [data.more_speakers(count) for count in (1, 2, 3)] == [2, 1, 0]


def test_joined_sources_have_the_same_replies_with_the_latest_utterances() -> None:
    rows = [Dialogue(("a b", "c", "d e f", "g"), (0, 1, 0, 1)), Dialogue(("h", "i j"), (0, 1))]
    tokenizer, data = tokenizer_of(rows), encoded(rows)
    eos = tokenizer.eos

    def ids(*texts: str) -> list[int]:
        return [number for text in texts for number in (*tokenizer.ids([text])[0], eos)]

    pairs = data.joined(100)
    assert [pairs.source[row].tolist() for row in range(4)] == [
        ids("a b"), ids("a b", "c"), ids("a b", "c", "d e f"), ids("h"),
    ]  # fmt: skip
    assert [pairs.target[row].tolist() for row in range(4)] == [
        [tokenizer.bos, *ids(text)] for text in ("c", "d e f", "g", "i j")
    ]
    short = data.joined(6)
    assert [short.source[row].tolist() for row in range(4)] == [
        ids("a b"),
        ids("a b", "c"),
        ids("c", "d e f"),
        ids("h"),
    ]
    assert (data.shortened(100), data.shortened(6)) == (0, 1)


def test_both_ways_predict_equally_many_tokens() -> None:
    data = encoded()
    flat = sum(batch.tokens for batch in data.joined(500).in_order(1000))
    assert flat == sum(batch.tokens for batch in data.in_order(1000))


def test_fingerprint_depends_on_ids_speakers_and_parts() -> None:
    rows = [Dialogue(("a", "b", "c"), (0, 1, 0))]
    hashes = {
        encoded(rows).sha256,
        encoded([Dialogue(("a", "b", "c"), (0, 1, 1))]).sha256,
        encoded([Dialogue(("a", "c", "b"), (0, 1, 0))]).sha256,
        encoded(rows, utterances=2).sha256,
    }
    assert len(hashes) == 4 and encoded(rows).sha256 in hashes


def test_no_dialogues_at_all_is_an_error() -> None:
    with pytest.raises(UserError, match="there are no dialogues"):
        collect_dialogues([], "here")
