"""Rows C of the claim sheet: heads, dense layers, add & norm, blocks and stacks of the Transformer."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.attention import MultiHead, attend
from heedful.blocks.feedforward import FeedForward
from heedful.blocks.masks import causal, dense
from heedful.blocks.norms import PostNorm, PreNorm
from heedful.blocks.state import GrowingLayerCache
from heedful.blocks.taps import watch
from heedful.lectures.outline import outline, recurrent_of
from heedful.models.seq2seq.model import Seq2Seq
from heedful.models.transformer.config import SIZES, TransformerConfig
from heedful.models.transformer.model import DecoderBlock, Transformer, encoder_block
from heedful.plots.figures import heatmap, side_by_side
from tolerance import close

BASE = TransformerConfig()  # the published size: 6 + 6 blocks, 8 heads, width 512


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def tiny(**changes: object) -> TransformerConfig:
    sizes = {
        "vocab": 19,
        "width": 16,
        "heads": 2,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "hidden": 24,
        "context": 30,
    }
    return TransformerConfig.model_validate(sizes | changes)


@pytest.mark.claim("C1")
def test_one_head_has_three_weight_matrices() -> None:
    d = 16
    head = MultiHead(d, 1, output=False, bias=False)
    assert count(head) == 3 * d * d
    x = torch.randn(1, 5, d)
    w_k, w_v = head.kv.weight.chunk(2)
    q, k, v = (x[0] @ w.T for w in (head.q.weight, w_k, w_v))
    torch.testing.assert_close(head(x, head.keys_values(x))[0], (q @ k.T / d**0.5).softmax(-1) @ v)


@pytest.mark.claim("C2")
@pytest.mark.parametrize("heads", [2, 4])
def test_heads_have_own_weights_and_are_concatenated(heads: int) -> None:
    d, p = 16, 16 // heads
    block = MultiHead(d, heads, output=False, bias=False)
    matrices = [w for part in (block.q.weight, *block.kv.weight.chunk(2)) for w in part.split(p)]
    assert [tuple(w.shape) for w in matrices] == [(p, d)] * (3 * heads)
    assert sum(w.numel() for w in matrices) == count(block)
    assert not any(a.equal(b) for i, a in enumerate(matrices) for b in matrices[:i])
    x = torch.randn(1, 5, d)
    queries, keys, values = matrices[:heads], matrices[heads : 2 * heads], matrices[2 * heads :]
    outputs = []
    for w_q, w_k, w_v in zip(queries, keys, values, strict=True):
        outputs.append(attend(*((x @ w.T)[:, None] for w in (w_q, w_k, w_v)))[:, 0])
    joined = torch.cat(outputs, -1)
    assert joined.shape[-1] == heads * p
    torch.testing.assert_close(block(x, block.keys_values(x)), joined)


@pytest.mark.claim("C3")
@pytest.mark.claim("X6")
def test_output_projection_mixes_the_heads_and_is_optional() -> None:
    with_, without = MultiHead(16, 4), MultiHead(16, 4, output=False)
    without.load_state_dict({k: v for k, v in with_.state_dict().items() if not k.startswith("out")})
    assert count(with_) - count(without) == 16 * 16 + 16
    x = torch.randn(2, 5, 16)
    joined = without(x, without.keys_values(x))
    torch.testing.assert_close(with_(x, with_.keys_values(x)), joined @ with_.out.weight.T + with_.out.bias)
    memory = MultiHead(16, 4, memory_width=6)  # keys and values may come from another width
    assert memory.kv.weight.shape == (2 * 16, 6)


@pytest.mark.claim("C4")
def test_eight_heads_of_64_make_512() -> None:
    block = MultiHead(BASE.width, BASE.heads)
    x = torch.randn(1, 3, 512)
    memory = block.keys_values(x)
    assert memory.k.shape == memory.v.shape == (1, 8, 3, 64)
    with watch(block, "scores") as seen:
        block(x, memory)
    products = block.split(block.q(x)) @ memory.k.mT
    torch.testing.assert_close(seen["scores"], (products / 8).detach())


@pytest.mark.claim("C5")
def test_feed_forward_is_shared_by_all_positions() -> None:
    block, x, order = encoder_block(tiny()).eval(), torch.randn(1, 6, 16), torch.randperm(6)
    at = torch.arange(6)
    torch.testing.assert_close(block.mlp(x[:, order]), block.mlp(x)[:, order])
    torch.testing.assert_close(block.mlp(x)[0, 3], block.mlp(x[0, 3]))
    torch.testing.assert_close(block(x[:, order], None, None, at), block(x, None, None, at)[:, order])


@pytest.mark.claim("C6")
def test_feed_forward_is_two_convolutions_of_size_one() -> None:
    layer, x = FeedForward(8, 20), torch.randn(2, 5, 8)
    w1, b1, w2, b2 = layer.up.weight, layer.up.bias, layer.down.weight, layer.down.bias
    torch.testing.assert_close(layer(x), (x @ w1.T + b1).clamp(min=0) @ w2.T + b2)
    image = x.mT[:, :, :, None]
    twice = F.conv2d(F.conv2d(image, w1[:, :, None, None], b1).relu(), w2[:, :, None, None], b2)
    torch.testing.assert_close(layer(x), twice[..., 0].mT)
    torch.testing.assert_close(layer(x.reshape(-1, 8)).view(2, 5, 8), layer(x))


@pytest.mark.claim("C7")
def test_add_and_norm_normalizes_the_sum_over_the_last_axis() -> None:
    block, x = PostNorm(8, 0.0), torch.randn(4, 5, 8)
    y = block(x, torch.tanh)
    torch.testing.assert_close(y, F.layer_norm(x + x.tanh(), (8,), block.norm.weight, block.norm.bias))
    close(y.mean(-1), torch.zeros(4, 5), slack=16, of=y)
    batch = F.batch_norm((x + x.tanh()).mT, None, None, training=True).mT  # averages over batch and positions
    assert not torch.allclose(y, batch, atol=1e-2)
    torch.testing.assert_close(block(x[:1], torch.tanh), y[:1])  # other rows do not matter, unlike with batch norm


@pytest.mark.claim("C7")
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_each_sublayer_has_its_own_add_and_norm(norm: str) -> None:
    config, at, none = tiny(norm=norm), torch.arange(5), None
    encoder, decoder = encoder_block(config).eval(), DecoderBlock(config).eval()
    for weight in (*encoder.parameters(), *decoder.parameters()):
        weight.data += 0.1 * torch.randn_like(weight)

    def reference(add: PostNorm | PreNorm, x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        def normalized(y: Tensor) -> Tensor:
            centred = y - y.mean(-1, keepdim=True)
            size = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
            return centred / size * add.norm.weight + add.norm.bias

        return normalized(x + layer(x)) if norm == "post" else x + layer(normalized(x))

    x, source = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    y = reference(encoder.add1, x, lambda x: encoder.attention(x, encoder.attention.keys_values(x)))
    close(encoder(x, none, none, at), reference(encoder.add2, y, encoder.mlp))
    memory = decoder.cross.keys_values(source)
    y = reference(decoder.add1, x, lambda x: decoder.attention(x, decoder.attention.keys_values(x), causal()))
    y = reference(decoder.add2, y, lambda x: decoder.cross(x, memory))
    found = decoder(x, GrowingLayerCache(none), memory, causal(), none, none, at)
    close(found, reference(decoder.add3, y, decoder.mlp))


@pytest.mark.claim("C8")
def test_encoder_block_keeps_its_shape() -> None:
    block = encoder_block(BASE).eval()
    assert block.attention.heads == 8
    assert block.mlp.up.weight.shape == (2048, 512)
    for m in (1, 7):
        assert block(torch.randn(1, m, 512), None, None, torch.arange(m)).shape == (1, m, 512)


@pytest.mark.claim("C9")
def test_decoder_block_order() -> None:
    block, m, t = DecoderBlock(BASE).eval(), 7, 4
    calls: list[str] = []
    for name in ("attention", "cross", "mlp"):
        block.get_submodule(name).register_forward_hook(lambda *_, name=name: calls.append(name))
    memory = block.cross.keys_values(torch.randn(1, m, 512))
    with watch(block, "*weights") as seen:
        y = block(torch.randn(1, t, 512), GrowingLayerCache(None), memory, causal(), None, None, torch.arange(t))
    assert y.shape == (1, t, 512)
    assert calls == ["attention", "cross", "mlp"]
    assert seen["attention.weights"].shape == (1, 8, t, t)
    assert bool((seen["attention.weights"].triu(1) == 0).all())
    assert seen["cross.weights"].shape == (1, 8, t, m)


@pytest.mark.claim("C10")
def test_six_and_six_blocks_have_44_138_496_parameters() -> None:
    with torch.device("meta"):
        model = Transformer(BASE.model_copy(update={"vocab": 10}))
    assert (len(model.encoder), len(model.decoder)) == (6, 6)
    assert count(model.encoder) + count(model.decoder) == 44_138_496 == BASE.parameters(0)
    for stack in (model.encoder, model.decoder):
        assert len({tuple((n, p.shape) for n, p in block.named_parameters()) for block in stack}) == 1
        weights = [p for block in stack for p in block.parameters()]
        assert len({id(p) for p in weights}) == len(weights)
    assert model.tokens.weight.shape == (10, 512)
    embeddings = [name for name, p in model.named_parameters() if 10 in p.shape]
    assert embeddings == ["tokens.weight"]  # only below the first block
    assert len(Transformer(tiny(encoder_layers=3, decoder_layers=1)).encoder) == 3  # any number works
    assert SIZES["transformer-base"] == BASE


@pytest.mark.claim("C11")
def test_causal_mask_and_its_heatmap(tmp_path: Path) -> None:
    x = torch.randn(1, 1, 6, 4)
    mask = dense(causal(), x, x)
    rows, columns = torch.arange(6)[:, None], torch.arange(6)
    assert mask.expand(1, 1, 6, 6)[0, 0].equal(columns <= rows)
    (image,) = heatmap(mask.view(6, 6).float(), list("abcdef"), list("abcdef")).axes[0].images
    assert (np.ma.getdata(image.get_array()) == np.tri(6)).all()  # on and below the diagonal
    model = Transformer(tiny()).eval()
    source, target = torch.randint(0, 19, (1, 4)), torch.randint(0, 18, (1, 6))
    other = target.clone()
    other[0, 4:] += 1
    one, two = (model(t, model.start(source))[0] for t in (target, other))
    assert one[:, :4].equal(two[:, :4])
    assert not one[:, 4:].equal(two[:, 4:])


def weights(model: Transformer, source: Tensor, target: Tensor) -> dict[str, Tensor]:
    with watch(model, "*.weights") as seen:
        model(target, model.start(source))
    return seen


@pytest.mark.claim("C12")
def test_attention_is_used_in_three_places() -> None:
    model = Transformer(tiny()).eval()
    source, target = torch.randint(0, 19, (1, 7)), torch.randint(0, 19, (1, 4))
    seen = weights(model, source, target)
    kinds = {"encoder.0.attention": (7, 7), "decoder.0.attention": (4, 4), "decoder.0.cross": (4, 7)}
    assert {name: tuple(seen[f"{name}.weights"].shape[2:]) for name in kinds} == kinds
    assert bool((seen["encoder.0.attention.weights"] > 0).all())
    assert bool((seen["decoder.0.attention.weights"].triu(1) == 0).all())
    assert bool((seen["decoder.0.cross.weights"] > 0).all())
    changed = weights(model, source.flip(1), target)
    assert changed["decoder.0.attention.weights"].equal(seen["decoder.0.attention.weights"])
    assert not changed["decoder.0.cross.weights"].equal(seen["decoder.0.cross.weights"])
    assert not changed["encoder.0.attention.weights"].equal(seen["encoder.0.attention.weights"])


@pytest.mark.claim("C13")
def test_transformer_and_recurrent_seq2seq_differ_in_three_places() -> None:
    config = tiny(encoder_layers=3, width=12, hidden=20)
    stages = outline(config)
    assert [stage.part for stage in stages if stage.differs] == ["order of tokens", "layers", "reading it"]
    assert [(stage.part, stage.recurrent, stage.transformer) for stage in stages] == [
        ("embedding", "one vector of 12 for each token", "one vector of 12 for each token"),
        ("order of tokens", "the order of the steps", "positions: sinusoid"),
        (
            "layers",
            "3 + 2 recurrent layers of 12, step after step",
            "3 + 2 blocks of self-attention (2 heads) and a dense layer (20), all positions at once",
        ),
        ("memory", *["outputs of the last encoder layer, 12 values each"] * 2),
        ("reading it", "once a step, before the first decoder layer", "in each of 2 decoder blocks"),
        ("output", *["logits over the vocabulary of 19"] * 2),
    ]
    (table,) = side_by_side(stages, ("Recurrent", "Transformer")).axes[0].tables
    colours = [table[row, 1].get_facecolor() for row in range(1, 7)]
    assert [colour != colours[0] for colour in colours] == [stage.differs for stage in stages]


@pytest.mark.claim("C13")
def test_both_models_match_the_comparison_table() -> None:
    """The listed differences are real, and the listed common parts are equal."""
    config = tiny(encoder_layers=3, positions="none", dropout=0.0)
    transformer, recurrent = Transformer(config).eval(), Seq2Seq(recurrent_of(config)).eval()
    source, target, order = torch.arange(7)[None], torch.randint(0, 19, (1, 4)), torch.randperm(7)

    # Shared: one vector per token, a memory of the same length and width, logits for each token.
    memory = {}
    for name, model, last in (("new", transformer, "encoder.2.output"), ("old", recurrent, "encoder.output")):
        assert model.tokens(source).shape == (1, 7, 16)
        with watch(model, last) as seen:
            state = model.start(source)
        assert model(target, state)[0].shape == (1, 4, 19)
        with watch(model, last) as shuffled:
            model.start(source[:, order])
        memory[name] = seen[last], shuffled[last]
        assert seen[last].shape == (1, 7, 16)

    # Order: recurrent steps are ordered; attention without positions is permutation-equivariant.
    close(memory["new"][1], memory["new"][0][:, order])
    assert float((memory["old"][1] - memory["old"][0][:, order]).abs().max()) > 1e-2

    # Layers: a cell is called once per step, a block once for all positions.
    calls: list[nn.Module] = []
    with watch(recurrent, "encoder.*.cell.hidden") as steps:
        recurrent.start(source)
    assert [len(found) for found in steps.all.values()] == [7] * 2 * 3  # in both directions
    for block in transformer.encoder:
        block.register_forward_hook(lambda block, *_: calls.append(block))
    transformer.start(source)
    assert calls == list(transformer.encoder)

    # Reading the memory: once a step, or in every block for all positions at once.
    with watch(recurrent, recurrent.alignment) as attention:
        recurrent(target, recurrent.start(source))
    assert [tuple(one.shape[-2:]) for one in attention.all[recurrent.alignment]] == [(1, 7)] * 4
    with watch(transformer, transformer.alignment) as attention:
        transformer(target, transformer.start(source))
    assert [tuple(one.shape[-2:]) for found in attention.all.values() for one in found] == [(4, 7)] * 2


@pytest.mark.claim("C14")
def test_two_encoders_and_two_decoders() -> None:
    model = Transformer(tiny(encoder_layers=2, decoder_layers=2)).eval()
    with watch(model, "*.output") as seen:
        logits, _ = model(torch.randint(0, 19, (1, 4)), model.start(torch.randint(0, 19, (1, 7))))
    assert list(seen) == ["encoder.0.output", "encoder.1.output", "decoder.0.output", "decoder.1.output"]
    assert logits.shape == (1, 4, 19)


@pytest.mark.claim("C16")
@pytest.mark.parametrize("heads", [1, 2, 8])
def test_each_head_has_its_own_weights_in_the_view(heads: int) -> None:
    words = ["the", "animal", "didn't", "cross", "the", "street", "because", "it", "was", "too", "tired"]
    model = Transformer(tiny(heads=heads)).eval()
    source = torch.tensor([[words.index(word) for word in words]])
    with watch(model, "encoder.1.attention.weights") as seen:
        model.start(source)
    views = seen["encoder.1.attention.weights"][0, :, words.index("it")]
    assert views.shape == (heads, len(words))
    torch.testing.assert_close(views.sum(-1), torch.ones(heads))
    assert all(float((views[i] - views[j]).abs().max()) > 1e-3 for i in range(heads) for j in range(i))
    for head in range(heads):
        grid = seen["encoder.1.attention.weights"][0, head]
        (image,) = heatmap(grid, words, words, f"head {head}").axes[0].images
        close(torch.from_numpy(np.ma.getdata(image.get_array())).float(), grid)
