"""The protocol of all tokenizers: ids with offsets, decoding, pairs, and a file that loads equal."""

from __future__ import annotations

import pytest

from heedful.data.tokenizers.base import MaskTokenizer, PairTokenizer, Tokenizer, count_special_tokens
from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2Tokenizer
from heedful.data.tokenizers.gpt1_bpe import UNKNOWN, Gpt1Tokenizer
from heedful.data.tokenizers.roberta import RobertaBpe, RobertaTokenizer
from heedful.data.tokenizers.tokenizer import Bpe, Characters, TrainedTokenizer, Unigram, WholeWords, WordPiece
from heedful.data.tokenizers.unigram import (
    AlbertTokenizer,
    AlbertUnigram,
    XlmRobertaTokenizer,
    XlmUnigram,
    XlnetTokenizer,
    XlnetUnigram,
)
from heedful.data.tokenizers.vocabulary import TextVocab
from heedful.data.tokenizers.wordpiece import BertTokenizer

TEXTS = ["the cat sat on the mat", "a dog sat , and the cat ran", "İt is not so bad"]
ENDS = ["t</w>", "h", "e</w>", "c", "a", "at</w>", "cat</w>"]
WORD_ENDS = {piece: number for number, piece in enumerate([UNKNOWN, *ENDS])}
MASKS: dict[str, MaskTokenizer] = {
    "wordpieces": BertTokenizer.train(WordPiece(vocab=80), TEXTS),
    "roberta pairs": RobertaTokenizer.train(RobertaBpe(vocab=290), TEXTS),
    "albert unigram": AlbertTokenizer.train(AlbertUnigram(vocab=60), TEXTS),
    "xlnet unigram": XlnetTokenizer.train(XlnetUnigram(vocab=60), TEXTS),
    "xlm unigram": XlmRobertaTokenizer.train(XlmUnigram(vocab=60), TEXTS),
}
PAIRS: dict[str, PairTokenizer] = {
    **MASKS,
    "text words": TextVocab.learn(TEXTS, ("a", "b"), "words", True, 1),
    "text characters": TextVocab.learn(TEXTS, ("a", "b"), "characters", True, 1),
}
TOKENIZERS: dict[str, Tokenizer] = {
    **PAIRS,
    **{
        config.kind: TrainedTokenizer.train(config, TEXTS)
        for config in (Bpe(vocab=300), WordPiece(vocab=80), Unigram(vocab=60), Characters(), WholeWords())
    },
    "byte pairs": Gpt2Tokenizer.train(Gpt2Bpe(vocab=280), TEXTS),
    "word ends": Gpt1Tokenizer.from_vocab(WORD_ENDS, [("a", "t</w>"), ("c", "at</w>")], "test"),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_ids_have_offsets_and_decode_back(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    for text, ids, encoding in zip(TEXTS, tokenizer.ids(TEXTS), tokenizer.encode_batch(TEXTS), strict=True):
        assert ids == encoding.ids and tokenizer.encode(text) == encoding
        assert len(ids) == len(encoding.offsets) == len(encoding.pieces)
        assert all(0 <= start <= end <= len(text) for start, end in encoding.offsets)
        assert encoding.pieces == tokenizer.pieces(ids)
        assert 0 <= min(ids) <= max(ids) < tokenizer.vocab
    (ids,) = tokenizer.ids(["the cat"])
    assert tokenizer.decode([*tokenizer.special, *ids]) == tokenizer.decode(ids)
    if kind != "word ends":
        assert tokenizer.decode(ids) == "the cat"
    assert len(tokenizer.sha256) == 64 and tokenizer.json


@pytest.mark.parametrize("kind", PAIRS)
def test_pair_is_put_between_special_tokens(kind: str) -> None:
    tokenizer = PAIRS[kind]
    a, b = tokenizer.ids(["the cat", "sat"])
    one, two = tokenizer.pair(a), tokenizer.pair(a, b)
    assert len(one[0]) == len(a) + count_special_tokens(tokenizer, 1) and set(one[1]) <= {0, 2}
    assert len(two[0]) == len(a) + len(b) + count_special_tokens(tokenizer, 2) and len(two[1]) == len(two[0])
    assert [number for number in two[0] if number not in tokenizer.special] == [*a, *b]
    if kind in MASKS:
        assert two[0][-1 if tokenizer.cls_last else 0] == one[0][-1 if tokenizer.cls_last else 0] == MASKS[kind].cls
        assert tokenizer.pads_left == tokenizer.cls_last == (2 in one[1])


def test_lowercasing_keeps_offsets_into_the_original_text() -> None:
    tokenizer = PAIRS["text words"]
    text = "İt is"  # the first letter becomes two in lower case
    assert [text[start:end] for start, end in tokenizer.encode(text).offsets][-1] == "is"


@pytest.mark.parametrize("kind", MASKS)
def test_mask_is_special_and_continuation_pieces_are_known(kind: str) -> None:
    tokenizer = MASKS[kind]
    assert {tokenizer.mask, tokenizer.cls, tokenizer.sep, tokenizer.pad, tokenizer.unk} <= tokenizer.special
    assert len(tokenizer.continues_word) == tokenizer.vocab and any(tokenizer.continues_word)
    cat, nothing = tokenizer.words(["cat", ""])
    assert tokenizer.decode(cat).strip() == "cat" and nothing == [tokenizer.unk]
