"""The loss of pretraining: packed = padded, parts = whole, masked positions only."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from heedful.data.batch import IGNORE_INDEX
from heedful.data.text.pretraining import PairRules, encode_documents
from heedful.data.text.pretraining_batches import PretrainingBatches, batches_in_order
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.models import build
from heedful.models.bert.config import BertConfig
from heedful.tasks.pretraining.documents import masked_words
from heedful.tasks.pretraining.loss import evaluate_pretraining, predict_masked, pretraining_loss
from tolerance import close

TEXT = "the a cat dog bird sat ran flew on under over mat log sky it was old new red"
WORDS = TEXT.split()
RNG = np.random.default_rng(0)
DOCUMENTS = [[" ".join(RNG.choice(WORDS, RNG.integers(3, 12))) for _ in range(RNG.integers(2, 9))] for _ in range(30)]
TOKENIZER = BertTokenizer.train(WordPiece(vocab=80), (text for document in DOCUMENTS for text in document))
ENCODED = encode_documents(DOCUMENTS, TOKENIZER, 24, PairRules())
CONFIG = BertConfig(vocab=TOKENIZER.vocab, width=16, heads=2, layers=2, hidden=32, context=24, dropout=0.0,
                    attention_dropout=0.0)  # fmt: skip
CPU = torch.device("cpu")


def build_model(**changes: Any) -> Any:
    torch.manual_seed(1)
    model: Any = build(CONFIG.model_copy(update=changes))
    for weight in model.parameters():
        weight.data.add_(0.2 * torch.randn_like(weight))  # so that no bias is zero
    return model


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


def test_packed_and_padded_batches_have_same_loss_and_gradients() -> None:
    model = build_model()
    packed = PretrainingBatches(ENCODED, 0, 96, packed=True)
    padded = PretrainingBatches(ENCODED, 0, 96)
    cells = packed._planned(0)[2]
    padded._planned(0)[0] = cells  # the same pairs, a row each
    one, other = pretraining_loss(model, packed.at(2)), pretraining_loss(model, padded.at(0))
    assert one.total.item() == pytest.approx(other.total.item(), rel=1e-5)
    assert int(one.count) == int(other.count) == packed.tokens(2)
    first, second = gradients(model, one.total), gradients(model, other.total)
    largest = [gradient.abs().max() for gradient in first.values()]  # some of the others are only rounding errors
    for name in first:
        close(first[name], second[name], of=torch.stack(largest), msg=name)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("parts", [2, 3, 7])
def test_losses_of_parts_add_up_to_the_batch(packed: bool, parts: int) -> None:
    model, batches = build_model(), PretrainingBatches(ENCODED, 0, 96, packed=packed)
    whole = pretraining_loss(model, batches.at(1))
    pieces = [pretraining_loss(model, batches.at(1, part, parts)) for part in range(parts)]
    assert sum(piece.total.item() for piece in pieces) == pytest.approx(whole.total.item(), rel=1e-5)
    assert sum(float(piece.plain) for piece in pieces) == pytest.approx(float(whole.plain), rel=1e-5)
    assert sum(int(piece.count) for piece in pieces) == int(whole.count) == batches.tokens(1)
    first = gradients(model, whole.total)
    pieces = [pretraining_loss(model, batches.at(1, part, parts)) for part in range(parts)]
    second = gradients(model, sum((piece.total for piece in pieces), torch.zeros(())))
    largest = [gradient.abs().max() for gradient in first.values()]  # some of the others are only rounding errors
    for name in first:
        close(first[name], second[name], of=torch.stack(largest), msg=name)


def test_loss_matches_its_definition() -> None:
    model, batch = build_model(), PretrainingBatches(ENCODED, 0, 96).at(0)
    x = model(batch.ids, batch.segments, None if (batch.lengths == batch.ids.shape[1]).all() else layout(batch))
    rows, columns = batch.places // batch.ids.shape[1], batch.places % batch.ids.shape[1]
    words = F.cross_entropy(model.words(x[rows, columns]), batch.targets, ignore_index=IGNORE_INDEX)
    pairs = F.cross_entropy(model.follows(x[:, 0]), batch.follows)
    loss = pretraining_loss(model, batch)
    assert float(loss.total / loss.count) == pytest.approx(float(words + pairs), rel=1e-5)
    assert float(loss.plain) == pytest.approx(float(loss.total), rel=1e-6)
    first, second = gradients(model, loss.total / loss.count), gradients(model, words + pairs)
    for name in first:
        close(first[name], second[name], slack=1024, msg=name)
        assert first[name].any(), name


def layout(batch: Any) -> Any:
    from heedful.blocks.layouts import Padded

    return Padded(batch.sequences.real)


def test_model_without_next_sentence_head_trains_on_masked_words() -> None:
    batch = PretrainingBatches(ENCODED, 0, 96).at(0)
    whole, alone = build_model(), build_model(next_sentence=False)
    alone.load_state_dict({name: weight for name, weight in whole.state_dict().items() if name in alone.state_dict()})
    both, words = pretraining_loss(whole, batch), pretraining_loss(alone, batch)
    pairs = F.cross_entropy(whole.follows(whole(batch.ids, batch.segments, layout(batch))[:, 0]), batch.follows)
    assert float((both.total - words.total) / batch.tokens) == pytest.approx(float(pairs), rel=1e-4)
    found = evaluate_pretraining(alone, ENCODED, CPU, 96)
    assert (found.pairs, found.related) == (0, 0.0)
    assert predict_masked(alone, batch)[1] is None


def test_accuracy_is_over_the_whole_set() -> None:
    model = build_model()
    found = evaluate_pretraining(model, ENCODED, CPU, 96)
    again = evaluate_pretraining(model, ENCODED, CPU, 24)  # batches of other sizes
    assert (found.hidden, found.correct, found.pairs, found.correct_pairs) == (
        again.hidden, again.correct, again.pairs, again.correct_pairs,
    )  # fmt: skip
    assert found.loss == pytest.approx(again.loss, rel=1e-5)
    assert found.loss == pytest.approx(found.words / found.hidden + found.related / found.pairs)
    assert found.related > 0
    assert found.pairs == ENCODED.cells
    assert found.perplexity == pytest.approx(math.exp(found.words / found.hidden))
    right = words = 0
    for batch in batches_in_order(ENCODED, 96):
        predicted, follows = predict_masked(model, batch)
        words += sum(one == other for one, other in zip(predicted, batch.targets.tolist(), strict=True))
        assert follows is not None
        right += sum(one == other for one, other in zip(follows, batch.follows.tolist(), strict=True))
    assert (words, right) == (found.correct, found.correct_pairs)


def test_logits_are_computed_at_masked_positions_only() -> None:
    """Other positions may have any logits: the vocabulary is projected at masked positions only."""
    model, batch = build_model(), PretrainingBatches(ENCODED, 0, 96).at(0)
    asked: list[int] = []
    model.masked_words.register_forward_hook(lambda module, args, out: asked.append(len(args[0])))
    pretraining_loss(model, batch)
    assert asked == [int((batch.targets != IGNORE_INDEX).sum())]


def test_suggested_text_is_from_the_samples_and_has_a_mask_of_the_tokenizer() -> None:
    one = "[CLS] a [MASK] [MASK] b [SEP] c d e f g h i j k [MASK] l m n o p q r s [SEP]"
    assert masked_words([one]) == "f g h i j k [MASK] l m n o p q"
    assert masked_words(["<s> twenty-<mask> </s>", "x <mask> y"]) == "twenty-<mask>"
    assert masked_words(["nothing masked"]).count("[MASK]") == 1
