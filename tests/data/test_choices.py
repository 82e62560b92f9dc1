"""Multiple-choice questions such as SWAG's, and their batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heedful.data.labelled.batches import IGNORE_INDEX
from heedful.data.labelled.choice_batches import ChoiceBatches, encode_choices
from heedful.data.labelled.choices import ChoicesTable, Question
from heedful.data.tokenizers.wordpiece import NAMES, BertTokenizer
from heedful.errors import UserError

HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
ROW = '0,v1,34,"She opens, he",She opens the door.,He,gold,"walks in, slowly.",eats it.,flies.,is a lake.,{}\n'
TOKENIZER = BertTokenizer.from_vocab([*NAMES, *"abcdefgh"], True, "here")
QUESTIONS = [Question("a b", ("c", "d e", "f"), 1), Question("g", ("h", "a", "b c d e f"), 2)] * 3


def table(folder: Path, content: str, **settings: object) -> ChoicesTable:
    (folder / "train.csv").write_text(content)
    return ChoicesTable.model_validate({"root": str(folder), "train": "train.csv", "valid": "train.csv", **settings})


def test_swag_files_are_read(tmp_path: Path) -> None:
    (one, two), skipped = table(tmp_path, HEADER + ROW.format(0) + ROW.format(3)).read("train")
    endings = ("He walks in, slowly.", "He eats it.", "He flies.", "He is a lake.")
    assert one == Question("She opens the door.", endings, 0)
    assert (two.right, skipped) == (3, 0)


def test_column_names_are_settings(tmp_path: Path) -> None:
    text = "question,yes,no,answer\nis it?,it is,it is not,1\n"
    settings = {"text": "question", "begin": None, "choices": ("yes", "no"), "label": "answer"}
    assert table(tmp_path, text, **settings).read("train").items == [Question("is it?", ("it is", "it is not"), 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + ROW.format(4), "this is not the index of a choice"),
        (HEADER + ROW.format("gold"), "this is not the index of a choice"),
        (HEADER + ROW.format(""), "this is not the index of a choice"),
        (HEADER.replace("ending2", "end") + ROW.format(1), "there is no column 'ending2'"),
        (HEADER + "0,1,2\n", "different number of columns"),
        (HEADER, "there are no questions"),
        ("", "this file is empty"),
    ],
)
def test_file_errors_have_a_location(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        table(tmp_path, text).read("train")
    assert str(tmp_path / "train.csv") in str(error.value)


def test_choices_are_rows_and_each_question_comes_once_per_epoch() -> None:
    encoded = encode_choices(QUESTIONS, TOKENIZER, 12)
    assert (len(encoded), encoded.choices) == (6, 3)
    batch = encoded.batch(np.array([1, 0]))
    rows = [" ".join(TOKENIZER.pieces(row[:size])) for row, size in zip(batch.ids.tolist(), batch.lengths, strict=True)]
    assert rows == [
        "[CLS] g [SEP] h [SEP]", "[CLS] g [SEP] a [SEP]", "[CLS] g [SEP] b c d e f [SEP]",
        "[CLS] a b [SEP] c [SEP]", "[CLS] a b [SEP] d e [SEP]", "[CLS] a b [SEP] f [SEP]",
    ]  # fmt: skip
    assert (batch.targets.tolist(), batch.indices.tolist(), batch.tokens) == ([2, 1], [1, 0], 2)
    batches = ChoiceBatches(encoded, 0, 4096, 4)
    assert sorted(row for position in (0, 1) for row in batches.at(position).indices.tolist()) == list(range(6))
    assert (batches.tokens(0) + batches.tokens(1), batches.epoch_of(1), batches.epoch_of(2)) == (6, 0, 1)
    parts = [batches.at(0, part, 8) for part in range(8)]  # more processes than questions
    assert sorted(row for one in parts for row in one.indices.tolist() if row >= 0) == sorted(
        batches.at(0).indices.tolist()
    )
    assert all(one.targets.tolist() == [IGNORE_INDEX] for one in parts if not one.tokens)
