"""Texts from files, and windows of them: every token is predicted once, in an order that depends on the seed alone."""

from __future__ import annotations

import gzip
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from heedful.data.text.files import Text, TextFiles
from heedful.data.text.windows import TextBatches, encode_text
from heedful.data.tokenizers.lm_tokenization import codec_of
from heedful.data.tokenizers.tokenizer import Bpe, Characters, TrainedTokenizer, WholeWords
from heedful.data.workers import BatchIndex, load_batches
from heedful.errors import UserError

LINES = ["To be, or not to be:", "", "  that is the question", "Whether 'tis nobler", "in the mind to suffer"] * 7
LETTERS = TrainedTokenizer.train(Characters(vocab=60), LINES)


def files(folder: Path, **texts: str) -> TextFiles:
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return TextFiles(root=str(folder), **{name: f"{name}.txt" for name in texts})  # type: ignore[arg-type]


# ------------------------------------------------------------------ files
def test_text_keeps_blank_lines_and_spaces(tmp_path: Path) -> None:
    source = files(tmp_path, train="\n".join(LINES) + "\n", valid="x\r\ny")
    assert source.read("train") == Text(LINES, 0)
    assert source.read("valid").lines == ["x", "y"]
    assert source.read("valid").characters == 4
    (tmp_path / "train.txt").write_bytes(gzip.compress("\n".join(LINES).encode()))
    assert source.read("train").lines == LINES


def test_end_of_the_text_is_held_out_by_default(tmp_path: Path) -> None:
    source = files(tmp_path, train="\n".join(LINES))
    train, valid = source.read("train"), source.read("valid")
    assert [*train.lines, *valid.lines] == LINES
    whole = train.characters + valid.characters
    assert abs(valid.characters / whole - 0.1) < max(map(len, LINES)) / whole
    assert source.model_copy(update={"held_out": 0.999}).read("train").lines == LINES[:1]
    assert source.model_copy(update={"held_out": 0.001}).read("valid").lines == LINES[-1:]


def test_unreadable_text_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be split"):
        files(tmp_path, train="one line").read("train")
    with pytest.raises(UserError, match="no text to read"):
        files(tmp_path, train=" \n\n").read("train")
    with pytest.raises(UserError, match="no test data"):
        files(tmp_path, train="a\nb").read("test")
    gone = TextFiles(root=str(tmp_path), train="gone.txt", valid="train.txt", test="lost.txt")
    assert [problem.where for problem in gone.problems()] == [str(tmp_path / "gone.txt"), str(tmp_path / "lost.txt")]
    whole = TextFiles(root=str(tmp_path), train="gone.txt")  # its end is the validation set
    assert [problem.where for problem in whole.problems()] == [str(tmp_path / "gone.txt")]
    assert [problem.where for problem in whole.problems(["valid"])] == [str(tmp_path / "gone.txt")]
    assert gone.problems(["valid"]) == []
    assert [problem.where for problem in TextFiles(root="nowhere", train="x").problems()] == ["data.root"]


# ------------------------------------------------------------------ ids
@pytest.mark.parametrize("config", [Characters(vocab=60), Bpe(vocab=300)])
def test_ids_of_a_text_decode_to_the_text(config: Characters | Bpe) -> None:
    tokenizer = TrainedTokenizer.train(config, LINES)
    codec = codec_of(tokenizer)
    for text in ("\n".join(LINES), "a\n", "\n\n", "", "to <eos> be"):
        known = text.replace("<eos>", "eos") if isinstance(config, Characters) else text
        assert codec.decode(codec.encode(known)) == known
    encoded = encode_text(Text(LINES), tokenizer, 8)
    assert codec.decode(encoded.ids.tolist()) == "\n" + "\n".join(LINES) + "\n"
    assert encoded.amounts.characters == len("\n".join(LINES) + "\n")
    assert encoded.unknown == 0


def test_lines_end_with_an_eos_token() -> None:
    tokenizer = TrainedTokenizer.train(WholeWords(vocab=9), LINES)
    encoded = encode_text(Text(LINES), tokenizer, 8)
    assert len(encoded) == sum(len(line.split()) + 1 for line in LINES)
    assert int((encoded.ids == TrainedTokenizer.eos).sum()) == len(LINES) + 1  # one more before the first line
    assert 0 < encoded.unknown < len(encoded)


def test_different_texts_have_different_hashes() -> None:
    names = {encode_text(Text(lines), LETTERS, 8).sha256 for lines in (LINES, LINES[:-1], LINES[::-1])}
    assert len(names) == 3
    assert encode_text(Text(["a\ud800b"]), LETTERS, 8).amounts.replaced == 1


# ------------------------------------------------------------------ windows
@pytest.mark.parametrize(("context", "batch_tokens"), [(8, 32), (7, 21), (5, 3), (10_000, 100)])
def test_every_token_is_predicted_once_per_epoch_from_the_tokens_before_it(context: int, batch_tokens: int) -> None:
    encoded = encode_text(Text(LINES), LETTERS, context)
    batches = TextBatches(encoded, 3, batch_tokens)
    cuts = set()
    for epoch in range(6):
        times = np.zeros(len(encoded), dtype=int)
        first = min(batches._epoch(epoch)[0], len(encoded))
        cuts.add(first)
        starts = [0, *range(first, len(encoded), context)]
        for position in range(epoch * batches.count, (epoch + 1) * batches.count):
            batch = batches.at(position)
            assert batches.epoch_of(position) == epoch
            assert batches.tokens(position) == batch.tokens == int(batch.real[:, 1:].sum())
            assert batch.ids.shape[0] <= max(1, batch_tokens // context)
            for row, length, window in zip(batch.ids, batch.lengths.tolist(), batch.indices.tolist(), strict=True):
                start = starts[window]
                assert row[:length].tolist() == encoded.ids[start : start + length].tolist()
                assert (row[length:] == TrainedTokenizer.pad).all()
                times[start : start + length - 1] += 1
        assert (times == 1).all()
    # Window boundaries shift each time, unless all windows are full, or there is only one.
    full = len(encoded) % context == 0 and encoded.windows % batches.size == 0
    assert (len(cuts) > 1) == (not full and context < len(encoded))


def test_order_of_windows_depends_on_seed_and_position_only() -> None:
    encoded = encode_text(Text(LINES), LETTERS, 8)

    def order(seed: int, positions: range) -> list[list[int]]:
        batches = TextBatches(encoded, seed, 32)
        return [batches.at(position).indices.tolist() for position in positions]

    count = TextBatches(encoded, 0, 32).count
    whole = order(0, range(3 * count))
    assert order(0, range(2 * count, 3 * count)) == whole[2 * count :]
    assert order(0, range(3 * count - 1, -1, -1)) == whole[::-1]
    assert order(1, range(count)) != whole[:count]
    assert whole[:count] != whole[count : 2 * count]


def test_shards_of_windows_make_up_the_batch_and_may_be_empty() -> None:
    batches = TextBatches(encode_text(Text(LINES), LETTERS, 8), 0, 32)
    whole = batches.at(0)
    parts = [batches.at(0, part, 6) for part in range(6)]
    assert sum(part.tokens for part in parts) == whole.tokens
    assert sorted(index for part in parts for index in part.indices.tolist() if index >= 0) == sorted(
        whole.indices.tolist()
    )
    assert parts[5].tokens == 0
    assert (parts[5].ids[:, 1:] == TrainedTokenizer.pad).all()


def test_workers_load_the_same_windows() -> None:
    batches = TextBatches(encode_text(Text(LINES), LETTERS, 8), 0, 32)
    one, two = (
        list(islice(load_batches(batches, lambda: (BatchIndex(position) for position in range(9)), workers), 9))
        for workers in (0, 2)
    )
    for ours, theirs in zip(one, two, strict=True):
        assert torch.equal(ours.ids, theirs.ids)
        assert torch.equal(ours.indices, theirs.indices)


def test_windows_in_order_are_the_text() -> None:
    encoded = encode_text(Text(LINES), LETTERS, 8)
    rows = [
        row[1:length] for batch in encoded.in_order(24) for row, length in zip(batch.ids, batch.lengths, strict=True)
    ]
    assert torch.cat(rows).tolist() == encoded.ids[1:].tolist()
