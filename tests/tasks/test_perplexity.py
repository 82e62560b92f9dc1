"""Perplexity: independent documents and overlapping windows, against plain loops."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.data.text.files import Text, collect
from heedful.data.text.windows import EncodedText, TextBatches, encode_text
from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2Tokenizer
from heedful.data.tokenizers.lm_tokenization import LanguageTokenizer
from heedful.data.tokenizers.tokenizer import Characters, TrainedTokenizer
from heedful.models import build
from heedful.models.gpt.config import GptConfig
from heedful.tasks.language_model.perplexity import (
    bits_per_byte,
    bits_per_character,
    document_loss,
    perplexity,
    sliding_loss,
    windows_loss,
    word_perplexity,
)

CPU = torch.device("cpu")
DOCUMENTS = [["a rose is a rose!", "", "is a rose"], ["!"], ["as a nose is a nose"] * 4, ["über", "a"]]
TEXT = collect(iter(DOCUMENTS))
PAIRS = Gpt2Tokenizer.train(Gpt2Bpe(vocab=280), TEXT.lines)
LETTERS = TrainedTokenizer.train(Characters(vocab=40), TEXT.lines)
TOKENIZERS: list[LanguageTokenizer] = [PAIRS, LETTERS]


def gpt(context: int, vocab: int = PAIRS.vocab, positions: str = "learned") -> Any:
    torch.manual_seed(0)
    config = GptConfig(
        vocab=vocab, width=16, heads=2, layers=2, context=context, dropout=0.0, attention_dropout=0.0,
        positions=positions,  # type: ignore[arg-type]
    )  # fmt: skip
    model: Any = build(config).double().eval()
    for weight in model.parameters():  # so that every weight matters
        torch.nn.init.normal_(weight, std=0.3)
    return model


def logs(model: Any, ids: list[int]) -> Tensor:
    """log p of each next token of a single text."""
    logits, _ = model(torch.tensor([ids]), model.start(1, CPU))
    found: Tensor = logits[0].log_softmax(-1)
    return found


def alone(model: Any, encoded: EncodedText, context: int) -> float:
    """The sum of the losses in windows over documents, where each part of a document is read separately."""
    total, ids = 0.0, encoded.ids.tolist()
    for begin in range(0, len(encoded), context):
        end = min(begin + context, len(encoded))
        cuts = [begin, *(int(start) for start in encoded.starts if begin < start < end), end]
        for one, other in pairwise(cuts):
            found = logs(model, ids[one:other])
            total -= sum(float(found[place, ids[one + place + 1]]) for place in range(other - one))
    return total


# ------------------------------------------------------------------ documents
@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi", "none"])
@pytest.mark.parametrize("context", [3, 8, 200])
@torch.no_grad()
def test_packed_documents_have_the_losses_of_single_documents(context: int, positions: str) -> None:
    model, encoded = gpt(context, positions=positions), encode_text(TEXT, PAIRS, context)
    found = [document_loss(model, batch) for batch in encoded.in_order(4 * context)]
    assert sum(int(loss.count) for loss in found) == len(encoded)
    assert sum(float(loss.plain) for loss in found) == pytest.approx(alone(model, encoded, context), rel=1e-12)


@torch.no_grad()
def test_loss_of_one_window_is_the_sum_over_documents() -> None:
    model, encoded = gpt(200), encode_text(TEXT, PAIRS, 200)
    each = [encode_text(Text(document), PAIRS, 200) for document in DOCUMENTS]
    assert [len(one.starts) for one in each] == [1] * 4
    total = sum(windows_loss(document_loss, model, one, CPU, 200) * len(one) for one in each)
    assert windows_loss(document_loss, model, encoded, CPU, 200) * len(encoded) == pytest.approx(total, rel=1e-12)


@torch.no_grad()
def test_change_in_one_document_changes_no_bit_of_others() -> None:
    model, encoded = gpt(200).float(), encode_text(TEXT, PAIRS, 200)
    (batch,) = encoded.in_order(200)
    assert batch.documents is not None
    before = model.read(batch.ids[:, :-1], batch.documents)
    for document, (begin, end) in enumerate(pairwise([*encoded.starts.tolist(), len(encoded)])):
        ids = batch.ids[:, :-1].clone()
        ids[:, begin:end] = (ids[:, begin:end] + 7) % PAIRS.vocab
        other = (before != model.read(ids, batch.documents)).any(-1)[0]
        assert other[begin:end].all()
        assert not other[batch.documents[0] != document].any()


def test_padding_is_ignored_even_with_a_real_token() -> None:
    model, encoded = gpt(50), encode_text(TEXT, PAIRS, 50)
    batches = TextBatches(encoded, 0, 10_000)
    assert (encoded.ids == 0).sum() == 2  # a real "!", which is also the padding token
    loss = document_loss(model, batches.at(0))
    assert int(loss.count) == len(encoded)
    empty = document_loss(model, batches.at(0, 50, 51))
    assert (int(empty.count), float(empty.plain)) == (0, 0.0)
    empty.total.backward()
    assert all(weight.grad is None or not weight.grad.any() for weight in model.parameters())


# ------------------------------------------------------------------ overlapping windows
@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["bytes", "lines"])
@pytest.mark.parametrize(("context", "stride"), [(8, 8), (8, 4), (8, 1), (9, 5), (200, 100)])
@torch.no_grad()
def test_sliding_windows_match_rereading_for_each_token(
    tokenizer: LanguageTokenizer, context: int, stride: int
) -> None:
    model, encoded = gpt(context, tokenizer.vocab), encode_text(TEXT, tokenizer, context)
    total, ids = 0.0, encoded.ids.tolist()
    for place in range(len(encoded)):
        window = max(0, -(-(place + 1 - context) // stride)) * stride  # the first one that reaches it
        begin = max(window, max(int(start) for start in encoded.starts if start <= place))
        assert place - begin >= min(context - stride, place - max(s for s in encoded.starts if s <= place))
        total -= float(logs(model, ids[begin : place + 1])[-1, ids[place + 1]])
    found = [sliding_loss(model, encoded, CPU, stride, tokens) for tokens in (1, 3 * context, 10_000)]
    assert found == pytest.approx([total / len(encoded)] * 3, rel=1e-12)
    if stride == context:
        assert windows_loss(document_loss, model, encoded, CPU, 64) == pytest.approx(found[0], rel=1e-12)


# ------------------------------------------------------------------ units
def test_loss_per_token_word_byte_and_character() -> None:
    encoded = encode_text(collect(iter([["is this it ?", "", "yes"], ["über all"]])), PAIRS, 8)
    counts = encoded.amounts
    assert (counts.words, counts.lines, counts.characters, counts.bytes) == (7, 4, 27, 28)
    nats = 0.5 * len(encoded)
    assert word_perplexity(0.5, encoded) == pytest.approx(math.exp(nats / 11))
    assert bits_per_byte(0.5, encoded) == pytest.approx(nats / math.log(2) / 28)
    assert bits_per_character(0.5, encoded) == pytest.approx(nats / math.log(2) / 27)
    assert perplexity(0.5) == math.exp(0.5)
    assert perplexity(1e9) == math.exp(700)
