"""Linformer against loops in float64, and against BERT: identity projections make it full attention."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from heedful.blocks.layouts import Padded
from heedful.blocks.taps import watch
from heedful.models import build
from heedful.models.bert.config import BertConfig
from heedful.models.linformer.config import LinformerConfig, Sharing
from tolerance import close

every_sharing = pytest.mark.parametrize("sharing", get_args(Sharing))


def tiny(**settings: Any) -> LinformerConfig:
    return LinformerConfig.model_validate(LinformerConfig.tiny().model_dump() | settings)


def batch(rows: int, width: int, padded: bool) -> tuple[Tensor, Padded | None]:
    ids = torch.randint(1, 23, (rows, width))
    return ids, Padded(torch.rand(rows, width) < 0.6) if padded else None


@pytest.mark.claim("H2")
@every_sharing
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("width", [16, 9])
def test_identity_projections_with_as_many_slots_as_tokens_are_full_attention(
    sharing: Sharing, padded: bool, width: int
) -> None:
    config = tiny(slots=16, sharing=sharing)
    linformer = build(config).eval()
    with torch.no_grad():
        for projection in linformer.projections:
            projection.weight.copy_(torch.eye(16).expand_as(projection.weight))
    bert = build(BertConfig.tiny()).eval()
    bert.load_state_dict({name: x for name, x in linformer.state_dict().items() if "projections" not in name})
    ids, layout = batch(5, width, padded)
    real = torch.ones_like(ids, dtype=torch.bool) if layout is None else layout.real
    close(linformer(ids, None, layout)[real], bert(ids, None, layout)[real])


@every_sharing
def test_block_equals_loops_in_float64(sharing: Sharing) -> None:
    model = build(tiny(sharing=sharing)).eval().double()
    ids, layout = batch(3, 11, padded=True)
    assert layout is not None
    with watch(model, "blocks.*") as seen:
        model(ids, None, layout)
    block, (e, f) = model.blocks[1], (model.projections[-1].weight[part] for part in (0, -1))
    for row in range(3):
        tokens = seen["blocks.0.output"][row][layout.real[row]]
        q, k, v = (x.chunk(2, -1) for x in block.attention.qkv(tokens).chunk(3, -1))
        outputs = []
        for t, place in enumerate(layout.real[row].nonzero()[:, 0].tolist()):
            heads = []
            for head in range(2):
                own = min(head, len(e) - 1)
                keys = [sum(e[own, slot, s] * k[head][s] for s in range(len(tokens))) for slot in range(6)]
                values = [sum(f[own, slot, s] * v[head][s] for s in range(len(tokens))) for slot in range(6)]
                weights = torch.stack([q[head][t] @ key / math.sqrt(8) for key in keys]).softmax(0)
                close(seen["blocks.1.attention.weights"][row, head, place], weights)
                heads.append(weights @ torch.stack(values))
            outputs.append(block.attention.out(torch.cat(heads)))
        x = block.add1.norm(tokens + torch.stack(outputs))
        close(seen["blocks.1.output"][row][layout.real[row]], block.add2.norm(x + block.mlp(x)))


def test_values_have_projections_of_their_own() -> None:
    """The second matrix of a set is that of the values: with zeros there, attention gives nothing but its bias."""
    model = build(tiny(sharing="headwise")).eval()
    with torch.no_grad():
        for projection in model.projections:
            projection.weight[1] = 0.0
    ids, _ = batch(2, 7, padded=False)
    with watch(model, "*.values") as seen:
        model(ids)
    assert not seen["blocks.0.attention.values"].any()


@pytest.mark.parametrize(("sharing", "shapes"), [
    ("none", [(2, 2, 6, 16)] * 2), ("headwise", [(2, 1, 6, 16)] * 2), ("key_value", [(1, 1, 6, 16)] * 2),
    ("layerwise", [(1, 1, 6, 16)]),
])  # fmt: skip
def test_sharing(sharing: Sharing, shapes: list[tuple[int, ...]]) -> None:
    config = tiny(sharing=sharing)
    model = build(config)
    assert [tuple(one.weight.shape) for one in model.projections] == shapes
    more = config.parameters(23) - BertConfig.tiny().parameters(23)
    assert more == sum(math.prod(shape) for shape in shapes)
    assert config.parameters(23) == sum(p.numel() for p in model.parameters())


def test_weights_are_of_slots() -> None:
    """T x k weights, not T x T."""
    model, (ids, _) = build(tiny()).eval(), batch(2, 13, padded=False)
    with watch(model, "*.weights") as seen:
        model(ids)
    assert {tuple(weights.shape) for weights in seen.values()} == {(2, 2, 13, 6)}


def test_slots_that_no_token_reaches_are_masked() -> None:
    model = build(tiny(sharing="layerwise")).eval()
    with torch.no_grad():
        model.projections[0].weight[..., 3:, :9] = 0.0  # three slots get something only from the tenth token on
    for length, slots in ((9, 3), (10, 6)):
        with watch(model, "*.weights") as seen:
            model(torch.randint(1, 23, (1, length)))
        assert (seen["blocks.0.attention.weights"] > 0).sum(-1).unique().tolist() == [slots]


def test_more_slots_than_positions_are_rejected() -> None:
    with pytest.raises(ValidationError, match="a context of 16 has no 17 slots; write slots: 16 or fewer"):
        tiny(slots=17)
