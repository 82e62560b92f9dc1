"""Documents as one row of ids, and windows of it: every token once, and each in its own document."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch

from heedful.data.text.documents import Documents, JsonDocuments, TextDocuments
from heedful.data.text.files import Text, TextFiles, collect
from heedful.data.text.text_stream import PASSAGE, encode_passages, passages, shards
from heedful.data.text.windows import EncodedText, TextBatches, encode_text
from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2Tokenizer
from heedful.data.tokenizers.lm_tokenization import LanguageTokenizer, LineCodec, codec_of, open_tokenizer
from heedful.data.tokenizers.tokenizer import Bpe, Characters, TrainedTokenizer, WholeWords
from heedful.data.workers import BatchIndex, load_batches
from heedful.errors import UserError

DOCUMENTS = [
    ["To be, or not to be:", "", "  that is the question"],
    ["!"],
    ["Whether 'tis nobler", "in the mind to suffer  ", " ", "the slings!"] * 3,
    ["漢字 \ud800 é", "x"],
]
TEXT = collect(iter(DOCUMENTS))
LETTERS = TrainedTokenizer.train(Characters(vocab=60), TEXT.lines[:-2])
PAIRS = Gpt2Tokenizer.train(Gpt2Bpe(vocab=300), ["\n".join(document) for document in DOCUMENTS])
TOKENIZERS: list[LanguageTokenizer] = [LETTERS, PAIRS]


# ------------------------------------------------------------------ files
def test_files_of_a_list_or_folder_are_documents(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name, text in (("a.txt", "one\ntwo\n"), ("b/c.txt", "three\n\nfour"), ("b/d.txt", " \n\n"), ("b/e.bin", "no")):
        (tmp_path / name).write_text(text)
    source = TextFiles(root=str(tmp_path), train=["a.txt", "b"], valid="a.txt")
    assert source.read("train") == Text(["one", "two", "three", "", "four"], 0, (0, 2))
    assert list(map(list, source.read("train").documents)) == [["one", "two"], ["three", "", "four"]]
    assert source.read("valid") == Text(["one", "two"])
    whole = TextFiles(root=str(tmp_path), train=["a.txt", "b"], held_out=0.5)
    assert whole.read("train").lines + whole.read("valid").lines == ["one", "two", "three", "", "four", " ", ""][:5]
    (tmp_path / "empty").mkdir()
    problems = TextFiles(root=str(tmp_path), train=["a.txt", "gone.txt", "empty"]).problems()
    assert [problem.where for problem in problems] == [str(tmp_path / "gone.txt"), str(tmp_path / "empty")]


def test_end_of_several_files_is_held_out(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("".join(f"{name}{number}\n" for number in range(10)))
    source = TextFiles(root=str(tmp_path), train=".", held_out=0.5)
    train, valid = source.read("train"), source.read("valid")
    assert [*train.lines, *valid.lines] == [f"{name}{number}" for name, number in product("abc", range(10))]
    assert train.starts == (0, 10)
    assert valid.lines[0].startswith("b")
    assert valid.starts == (0, len(valid.lines) - 10)


def test_documents_are_split_at_headings_and_keep_them(tmp_path: Path) -> None:
    wiki = [" ", " = Title = ", "", " = = Section = = ", "  text .", " = Next = ", "more"]
    (tmp_path / "wiki.txt").write_text("\n".join(wiki))
    (tmp_path / "some.jsonl").write_text('{"text": "a\\n b "}\n\n{"text": " "}\n{"text": "c"}\n')
    parts = [TextDocuments(files=["wiki.txt"], between="headings"), JsonDocuments(files=["some.jsonl"])]
    data = Documents(root=str(tmp_path), train=parts, valid=[TextDocuments(files=["wiki.txt"], between="blank_lines")])
    assert [list(one) for one in data.stream("train")] == [wiki[:5], wiki[5:], ["a", " b "], ["c"]]
    assert [list(one) for one in data.stream("valid")] == [wiki[1:2], wiki[3:]]
    held = Documents(root=str(tmp_path), train=parts, held_out=0.25)
    assert [list(one) for one in held.stream("valid")] == [["c"]]
    assert [list(one) for one in held.stream("train")] == [wiki[:5], wiki[5:], ["a", " b "]]


@pytest.mark.parametrize(
    ("data", "message"), [(b"a\nb\x00c\n", "a NUL byte, byte 2"), (b"a\nb\xffc\n", "byte 0xff, byte 2")]
)
def test_invalid_text_is_located(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    with pytest.raises(UserError, match=message) as error:
        TextFiles(root=str(tmp_path), train="a.txt", valid="a.txt").read("train")
    assert "a.txt:2:2" in str(error.value)


# ------------------------------------------------------------------ ids
@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["lines", "bytes"])
def test_each_document_follows_a_start_token(tokenizer: LanguageTokenizer) -> None:
    codec, encoded = codec_of(tokenizer), encode_text(TEXT, tokenizer, 8)
    assert len(encoded.starts) == len(DOCUMENTS)
    assert encoded.ids[encoded.starts].tolist() == [codec.start_id] * len(DOCUMENTS)
    assert encoded.ids[-1] == codec.start_id
    for document, (start, end) in zip(DOCUMENTS, pairwise([*encoded.starts, len(encoded)]), strict=True):
        ids = encoded.ids[start + 1 : end].tolist()
        text = "\n".join(document).replace("\ud800", "\ufffd")
        assert ids == codec.encode(text)
        assert codec.decode(ids) == text or (tokenizer is LETTERS and document is DOCUMENTS[-1])
    counts = encoded.amounts
    whole = "".join("\n".join(document) + "\n" for document in DOCUMENTS)
    assert (counts.tokens, counts.documents, counts.lines) == (len(encoded), 4, len(TEXT.lines))
    assert (counts.characters, counts.words) == (len(whole), len(whole.split()))
    assert counts.bytes == len(whole.replace("\ud800", "\ufffd").encode())
    assert counts.replaced == 1
    assert (counts.unknown > 0) == (tokenizer is LETTERS)


def test_open_tokenizer_detects_the_kind() -> None:
    word = TrainedTokenizer.train(WholeWords(vocab=20), ["<|endoftext|> is a word here"])
    for tokenizer in (*TOKENIZERS, word):
        found = open_tokenizer(tokenizer.json, "tokenizer.json")
        assert type(found) is type(tokenizer)
        assert found.sha256 == tokenizer.sha256
    assert isinstance(codec_of(word), LineCodec)
    with pytest.raises(UserError, match=r"tokenizer.json"):
        open_tokenizer('{"added_tokens": 3}', "tokenizer.json")
    assert codec_of(PAIRS).end_id == codec_of(PAIRS).start_id == PAIRS.end
    assert PAIRS.end not in codec_of(PAIRS).suppressed


@pytest.mark.parametrize(
    "tokenizer", [*TOKENIZERS, TrainedTokenizer.train(Bpe(vocab=300), TEXT.lines)], ids=["c", "b", "bpe"]
)
def test_passages_and_shards_have_the_ids_of_the_whole_text(tokenizer: LanguageTokenizer) -> None:
    codec, whole = codec_of(tokenizer), encode_text(TEXT, tokenizer, 8)
    for most in (1, 10, 40, PASSAGE):
        cut = list(passages(DOCUMENTS, codec.split_point, most))
        assert len(cut) > len(DOCUMENTS) or most > 30
        assert "".join(passage.text for passage in cut) == "".join("\n".join(document) for document in DOCUMENTS)
        for size in (1, 30, 1000):
            found = [encode_passages(some, codec) for some in shards(cut, size)]
            assert np.concatenate([shard.ids for shard in found]).tolist() == whole.ids[:-1].tolist()
            assert sum(shard.amounts.words for shard in found) == whole.amounts.words
            assert sum(len(shard.starts) for shard in found) == 4


# ------------------------------------------------------------------ windows
def brute(encoded: EncodedText) -> list[int]:
    """The document of each token, by a plain loop."""
    return [sum(start <= place for start in encoded.starts) - 1 for place in range(len(encoded))]


@pytest.mark.parametrize("context", [1, 3, 8, 50, 1000])
@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["lines", "bytes"])
def test_every_token_is_predicted_once_and_in_its_document(tokenizer: LanguageTokenizer, context: int) -> None:
    encoded = encode_text(TEXT, tokenizer, context)
    batches, seen, number = TextBatches(encoded, 3, 64), set(), brute(encoded)
    for position in range(batches.count):
        parts = [batches.at(position, part, 2) for part in range(2)]
        assert sum(part.tokens for part in parts) == batches.tokens(position) == batches.at(position).tokens
        for batch in parts:
            assert batch.documents is not None
            assert batch.documents.shape == batch.ids[:, 1:].shape
            for row, length in enumerate(batch.lengths.tolist()):
                for place in range(length - 1):
                    at = int(batch.indices[row]) * context + place
                    assert at not in seen
                    seen.add(at)
                    assert batch.ids[row, place : place + 2].tolist() == encoded.ids[at : at + 2].tolist()
                    assert batch.documents[row, place] == number[at] - number[at - place]
    assert seen == set(range(len(encoded)))


def test_single_document_has_no_boundaries() -> None:
    encoded = encode_text(Text(TEXT.lines), LETTERS, 8)
    assert all(batch.documents is None for batch in encoded.in_order(32))
    assert TextBatches(encoded, 0, 32).at(0, 7, 9).documents is None
    assert encoded.ids.tolist() == encode_text(TEXT, LETTERS, 8).ids.tolist()  # a line end is one token either way
    assert encoded.sha256 != encode_text(TEXT, LETTERS, 8).sha256


def test_workers_load_document_boundaries() -> None:
    batches = TextBatches(encode_text(TEXT, PAIRS, 8), 0, 32)
    places = [BatchIndex(position, part, 2) for position in range(5) for part in range(2)]
    for found, place in zip(load_batches(batches, lambda: iter(places), workers=2), places, strict=True):
        same = batches.at(*place)
        assert found.documents is not None
        assert same.documents is not None
        assert torch.equal(found.documents, same.documents)
        assert torch.equal(found.ids, same.ids)
        assert torch.equal(found.to("cpu").documents, same.documents)


@pytest.mark.parametrize(("context", "stride"), [(8, 8), (8, 3), (8, 1), (50, 7), (1000, 500), (1, 1)])
def test_sliding_windows_predict_each_token_once_with_context(context: int, stride: int) -> None:
    encoded = encode_text(TEXT, PAIRS, context)
    seen, number = [], brute(encoded)
    for batch, new in encoded.sliding(stride, 3 * context):
        assert new.shape == batch.ids[:, 1:].shape
        for row, place in new.nonzero().tolist():
            at = int(batch.indices[row]) * stride + place
            seen.append(at)
            assert batch.ids[row, place + 1] == encoded.ids[at + 1]
            assert place >= min(context - stride, at)
            assert batch.documents is not None
            assert batch.documents[row, place] == number[at] - number[at - place]
    assert seen == list(range(len(encoded)))
