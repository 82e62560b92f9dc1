"""Transformer-XL against the published formulas in loops, and what its memory promises."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.blocks.adaptive import AdaptiveEmbedding
from heedful.blocks.losses import cross_entropy
from heedful.blocks.normalizers import NORMALIZERS
from heedful.blocks.state import reserve, select, tensors
from heedful.blocks.taps import watch
from heedful.data.text.lanes import Lanes
from heedful.data.text.text_stream import TextCounts
from heedful.data.text.windows import EncodedText
from heedful.errors import UserError
from heedful.models import build
from heedful.models.transformer_xl.config import SIZES, TransformerXLConfig
from heedful.models.transformer_xl.model import TransformerXL
from heedful.tasks.language_model.perplexity import document_loss, lanes_loss, stateful_loss, text_loss
from tolerance import close

VOCAB, CPU = 23, torch.device("cpu")
KINDS: dict[str, dict[str, Any]] = {
    "post": {},
    "pre": {"norm": "pre"},
    "clamp": {"clamp": 4, "share_biases": True},
    "growing": {"same_length": False},
    "clusters": {"cutoffs": (5, 14), "divisor": 2, "head_width": 6},
    "sparsemax": {"normalize": "sparsemax"},
    "entmax15": {"normalize": "entmax15"},
}


def made(**changes: Any) -> Any:
    """A model in float64 whose weights are all large enough to matter."""
    torch.manual_seed(0)
    usual = TransformerXLConfig.tiny().model_dump() | {"memory": 7, "dropout": 0.0}
    model: Any = TransformerXL(TransformerXLConfig(**(usual | changes))).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return model


def sinusoid(distance: int, width: int) -> Tensor:
    angles = [distance / 10000 ** (2 * j / width) for j in range(width // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)


def loops(model: Any, tokens: Tensor, past: int = 0) -> Tensor:
    """The last layer (B, T, D) of whole texts by the paper's formulas, one score at a time.

    What entered a layer for the first `past` tokens passes no gradient to the later ones.
    """
    c, h = model.config, model.tokens(tokens)
    heads, k, length = c.heads, c.inner // c.heads, tokens.shape[1]
    for n, block in enumerate(model.blocks):
        bias = model.biases[0 if c.share_biases else n]
        w_q, w_k, w_v = block.attention.qkv.weight.chunk(3)
        norm = block.add1.norm

        def attended(
            h: Tensor, block: Any = block, norm: Any = norm, w: Any = (w_q, w_k, w_v), bias: Any = bias
        ) -> Tensor:
            x = norm(h) if c.norm == "pre" else h
            stopped = torch.cat([h[:, :past].detach(), h[:, past:]], 1)
            stopped = norm(stopped) if c.norm == "pre" else stopped
            rows = []
            for b in range(len(tokens)):
                for i in range(length):
                    seen = stopped if i >= past else x
                    first = max(0, i - c.memory + 1) if c.same_length else 0
                    parts = []
                    for head in range(heads):
                        part = slice(head * k, (head + 1) * k)
                        q = w[0][part] @ x[b, i]
                        scores = []
                        for j in range(first, i + 1):
                            distance = min(i - j, c.clamp or i)
                            r = block.attention.distance.weight[part] @ sinusoid(distance, c.width)
                            key = w[1][part] @ seen[b, j]
                            scores.append(((q + bias.u[head]) @ key + (q + bias.v[head]) @ r) / math.sqrt(k))
                        a = NORMALIZERS[c.normalize](torch.stack(scores), None)
                        parts.append(sum(a[j - first] * (w[2][part] @ seen[b, j]) for j in range(first, i + 1)))
                    rows.append(block.attention.out.weight @ torch.cat(parts))
            return torch.stack(rows).view_as(h)

        def fed(h: Tensor, block: Any = block) -> Tensor:
            return F.relu(h @ block.mlp.up.weight.T + block.mlp.up.bias) @ block.mlp.down.weight.T + block.mlp.down.bias

        if c.norm == "pre":
            h = h + attended(h)
            h = h + fed(block.add2.norm(h))
        else:
            h = norm(h + attended(h))
            h = block.add2.norm(h + fed(h))
    return h


def in_parts(model: Any, tokens: Tensor, cuts: list[int]) -> tuple[Tensor, Any]:
    """The last layer of whole texts that are read in segments of these lengths, and the state after them."""
    state, parts = model.start(len(tokens), CPU), []
    for part in tokens.split(cuts, 1):
        x, state = model.features(part, state)
        parts.append(x)
    return torch.cat(parts, 1), state


@pytest.mark.parametrize("kind", KINDS)
def test_model_matches_the_published_formulas(kind: str) -> None:
    model, tokens = made(**KINDS[kind]), torch.randint(0, VOCAB, (2, 10))
    close(model.features(tokens, model.start(2, CPU))[0], loops(model, tokens))


@pytest.mark.claim("G4")
@pytest.mark.parametrize("kind", ["post", "pre", "clamp", "sparsemax", "entmax15"])
def test_memory_equals_full_attention_over_the_segments_with_gradients(kind: str) -> None:
    model, tokens = made(memory=11, **KINDS[kind]), torch.randint(0, VOCAB, (2, 11))
    (_, state), weights = in_parts(model, tokens[:, :5], [3, 2]), list(model.parameters())
    found, _ = model.features(tokens[:, 5:], state)
    expected = loops(model, tokens, past=5)[:, 5:]
    close(found, expected)
    weigh = torch.randn_like(found)
    grads = [
        torch.autograd.grad((x * weigh).sum(), weights, allow_unused=True, materialize_grads=True)
        for x in (found, expected)
    ]
    for one, other, whole in zip(*grads, weights, strict=True):
        close(one, other, of=torch.cat([other.flatten(), whole.flatten()]).detach())
    assert not any(x.requires_grad for x in tensors(state))  # the gradient stops


@pytest.mark.claim("G4")
@pytest.mark.parametrize("kind", ["post", "pre", "clamp", "clusters", "sparsemax"])
def test_segments_of_any_cut_give_the_same_logits(kind: str) -> None:
    model, tokens = made(**KINDS[kind]), torch.randint(0, VOCAB, (2, 23))
    whole, after = in_parts(model, tokens, [23])
    for cuts in ([1] * 23, [7, 7, 7, 2], [1, 13, 9], [20, 3], [2, 2, 19]):
        parts, state = in_parts(model, tokens, cuts)
        close(parts, whole)
        close(state.layers, after.layers)
        assert state.seen.equal(after.seen)
        close(model(tokens[:, :4], state)[0], model(tokens[:, :4], reserve(state, 0))[0])


def test_token_sees_the_memory_and_its_segment() -> None:
    model, tokens = made(same_length=False, memory=4), torch.randint(0, VOCAB, (1, 9))
    _, state = in_parts(model, tokens[:, :6], [3, 3])
    with watch(model, "blocks.0.attention.weights") as seen:
        model.features(tokens[:, 6:], state)
    weights = seen["blocks.0.attention.weights"]  # (B, H, T, S)
    assert (weights > 0).sum(-1)[0, 0].tolist() == [5, 6, 7]
    assert not in_parts(model, tokens, [9])[0].allclose(in_parts(model, tokens, [5, 4])[0])


def test_each_token_sees_as_many_tokens_as_the_memory_has() -> None:
    model, tokens = made(memory=4), torch.randint(0, VOCAB, (1, 9))
    _, state = in_parts(model, tokens[:, :2], [2])
    with watch(model, "blocks.1.attention.weights") as seen:
        model.features(tokens[:, 2:], state)
    assert (seen["blocks.1.attention.weights"] > 0).sum(-1)[0, 1].tolist() == [3, 4, 4, 4, 4, 4, 4]


def test_padding_between_memory_and_tokens_adds_no_distance() -> None:
    model, tokens = made(), torch.randint(0, VOCAB, (2, 12))
    _, state = in_parts(model, tokens[:, :5], [5])
    real = torch.tensor([[True, False, True, True, False], [False, True, True, False, False]])
    x, padded = model.features(tokens[:, 5:10], state, real)
    for row in range(2):
        own = tokens[row, 5:10][real[row]][None]
        alone, after = model.features(own, select(state, torch.tensor([row])))
        close(x[row][real[row]], alone[0])
        more = tokens[row : row + 1, 10:]
        close(model(more, select(padded, torch.tensor([row])))[0], model(more, after)[0])


# ------------------------------------------------------------------ documents
def text(lengths: list[int], context: int) -> EncodedText:
    ids = np.random.default_rng(0).integers(1, VOCAB, sum(lengths) + 1)
    return EncodedText(ids, np.cumsum([0, *lengths[:-1]]), context, TextCounts())


@pytest.mark.parametrize("stride", [3, 5, 64])
def test_documents_do_not_see_each_other(stride: int) -> None:
    model, whole = made(), text([9, 1, 4, 15, 8], 5)
    edges = [*whole.starts.tolist(), len(whole)]
    alone = 0.0
    with torch.no_grad():
        for begin, end in pairwise(edges):
            ids = torch.from_numpy(whole.ids[begin : end + 1])
            logits, _ = model(ids[None, :-1], model.start(1, CPU))
            alone += float(F.cross_entropy(logits[0], ids[1:], reduction="sum"))
    assert text_loss(model, whole, CPU, model.start(1, CPU), stride) == pytest.approx(alone / len(whole), rel=1e-12)
    blind = EncodedText(whole.ids, np.zeros(1, np.int64), 5, TextCounts())
    assert text_loss(model, blind, CPU, model.start(1, CPU), stride) != pytest.approx(alone / len(whole), rel=1e-6)
    assert lanes_loss(model, whole, CPU, 5) == pytest.approx(alone / len(whole), rel=1e-12)  # one lane


def test_loss_in_lanes_equals_each_lane_read_at_once() -> None:
    model, whole = made(cutoffs=(5, 14), divisor=2), text([40, 21], 5)
    lanes, total = Lanes(whole, 0, 15), 0.0
    carry = reserve(model.start(lanes.lanes, CPU), 0)
    for position in range(lanes.count):
        loss, carry = stateful_loss(model, lanes.at(position), carry)
        total += float(loss.plain)
    alone = 0.0
    for begin, end in pairwise(lanes.edges):
        ids = torch.from_numpy(whole.ids[begin : end + 1])[None]
        own = np.searchsorted(whole.starts, np.arange(begin, end), side="right")
        x = model.read(ids[:, :-1], torch.from_numpy(own - own[0])[None])
        alone += float(model.tokens.loss(x[0], ids[0, 1:]).plain)
    assert total == pytest.approx(alone, rel=1e-12)
    assert float(document_loss(model, whole.batch(np.arange(2))).plain) > 0


# ------------------------------------------------------------------ adaptive softmax
@pytest.mark.parametrize(("divisor", "embed"), [(1, 16), (1, 12), (2, 16), (2, 12)])
def test_adaptive_loss_equals_the_cross_entropy_of_its_logits(divisor: int, embed: int) -> None:
    torch.manual_seed(0)
    tokens = AdaptiveEmbedding(VOCAB, 16, embed, (5, 14), divisor).double()
    x, targets = torch.randn(50, 16, dtype=torch.float64, requires_grad=True), torch.randint(0, VOCAB, (50,))
    targets[::7] = -100
    logits = tokens.logits(x)
    close(logits.exp().sum(-1), torch.ones(50, dtype=torch.float64))
    found, expected = tokens.loss(x, targets), cross_entropy(logits, targets)
    close(found.total, expected.total)
    assert found.count == expected.count == 42
    leaves = [x, *tokens.parameters()]
    used = [
        torch.autograd.grad(one.total, leaves, allow_unused=True, materialize_grads=True) for one in (found, expected)
    ]
    close(*used)


def test_token_is_embedded_by_the_table_and_projection_of_its_cluster() -> None:
    torch.manual_seed(0)
    tokens = AdaptiveEmbedding(VOCAB, 16, 16, (5, 14), 4)
    assert [tuple(table.shape) for table in tokens.tables] == [(5, 16), (9, 4), (9, 1)]
    for token, cluster, place in ((0, 0, 0), (4, 0, 4), (5, 1, 0), (13, 1, 8), (14, 2, 0), (22, 2, 8)):
        expected = 4 * tokens.projections[cluster] @ tokens.tables[cluster][place]
        close(tokens(torch.tensor([[token]]))[0, 0], expected)


def test_cutoffs_beyond_the_vocabulary_are_dropped() -> None:
    assert AdaptiveEmbedding(VOCAB, 16, 16, (5, 40), 4).edges == (0, 5, 23)


# ------------------------------------------------------------------ sizes and limits
@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("transformer-xl-wt103", 151_107_538),
        ("transformer-xl-wt103-large", 285_205_322),
        ("transformer-xl-enwik8", 41_055_436),
        ("transformer-xl-enwik8-large", 277_231_820),
        ("transformer-xl-text8", 40_964_635),
        ("transformer-xl-text8-large", 277_050_395),
        ("transformer-xl-lm1b", 357_502_834),
        ("transformer-xl-lm1b-large", 840_817_262),
    ],
)
def test_published_sizes(name: str, exact: int) -> None:
    config = SIZES[name]
    with torch.device("meta"):
        count = sum(weight.numel() for weight in build(config).parameters())
    assert config.parameters(config.vocab or 0) == count == exact


def test_memory_beyond_the_known_distances_needs_a_clamp() -> None:
    with pytest.raises(UserError, match="longer distances than the model has learned") as error:
        made().start(1, CPU, 8)
    assert "at most 7" in str(error.value) and "model.clamp=7" in str(error.value)
    assert made().start(1, CPU, 7).limit == made().start(1, CPU).limit == 7
    assert made(clamp=6).start(1, CPU, 99).limit == 99


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 15}, "even width; write width: 16"),
        ({"cutoffs": (5, 5)}, "positive and increasing"),
        ({"cutoffs": (0, 5)}, "positive and increasing"),
        ({"width": 16, "heads": 2, "cutoffs": (5, 9), "divisor": 8}, "narrower than one"),
        ({"width": 16, "heads": 3, "head_width": None}, "cannot be shared by 3 heads; write head_width: 5"),
    ],
)
def test_mismatched_settings_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformerXLConfig(**changes)
