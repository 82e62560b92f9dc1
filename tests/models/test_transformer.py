"""The Transformer against an independent implementation: Marian, whose random weights are mapped to ours."""

from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.blocks.layouts import Padded
from heedful.decode.search import Paths, beam, drain, greedy
from heedful.models.transformer.config import TransformerConfig
from heedful.models.transformer.model import Transformer
from tolerance import close

VOCAB, PAD, EOS = 31, 30, 0


@pytest.fixture(scope="module")
def marian() -> Any:
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(3)
    config = MarianConfig(  # type: ignore[call-arg]
        vocab_size=VOCAB,
        d_model=16,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_position_embeddings=40,
        activation_function="swish",
        static_position_embeddings=True,
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
        init_std=0.4,
    )
    model: Any = MarianMTModel(config)
    model.eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:  # positions are a fixed table
                weight += 0.05 * torch.randn_like(weight)
        end = model.get_input_embeddings().weight[EOS]
        model.model.decoder.layers[-1].final_layer_norm.bias += 2.0 * end  # so that sentences end, some early
    return model


@pytest.fixture(scope="module")
def ours(marian: Any) -> Transformer:
    config = TransformerConfig(
        vocab=VOCAB,
        width=16,
        heads=4,
        encoder_layers=2,
        decoder_layers=3,
        hidden=24,
        context=40,
        positions="sinusoid_halves",
        activation="swish",
    )
    model = Transformer(config).eval()
    model.load_state_dict(map_weights(marian.state_dict(), config))
    return model


def map_weights(theirs: dict[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """Their weights under our names; queries are separate, keys and values in one matrix."""
    names = {"tokens.weight": theirs["model.shared.weight"]}
    parts = {"self_attn": "attention", "encoder_attn": "cross", "fc1": "mlp.up", "fc2": "mlp.down"}
    norms = {
        "encoder": {"self_attn_layer_norm": "add1.norm", "final_layer_norm": "add2.norm"},
        "decoder": {
            "self_attn_layer_norm": "add1.norm",
            "encoder_attn_layer_norm": "add2.norm",
            "final_layer_norm": "add3.norm",
        },
    }
    for side, count in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for i in range(count):
            for kind in ("weight", "bias"):
                for foreign, own in (parts | norms[side]).items():
                    key = f"model.{side}.layers.{i}.{foreign}"
                    if f"{key}.q_proj.{kind}" in theirs:
                        pair = [theirs[f"{key}.{p}_proj.{kind}"] for p in "kv"]
                        names[f"{side}.{i}.{own}.q.{kind}"] = theirs[f"{key}.q_proj.{kind}"]
                        names[f"{side}.{i}.{own}.kv.{kind}"] = torch.cat(pair)
                        names[f"{side}.{i}.{own}.out.{kind}"] = theirs[f"{key}.out_proj.{kind}"]
                    elif f"{key}.{kind}" in theirs:
                        names[f"{side}.{i}.{own}.{kind}"] = theirs[f"{key}.{kind}"]
    return names


@pytest.fixture(scope="module")
def source() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(8)
    tokens = torch.randint(1, PAD, (12, 9), generator=generator)
    real = torch.arange(9) < torch.randint(1, 10, (12, 1), generator=generator)
    return torch.where(real, tokens, PAD), real


def test_logits_match_marian(marian: Any, ours: Transformer, source: tuple[Tensor, Tensor]) -> None:
    tokens, real = source
    target = torch.randint(1, PAD, (12, 7))
    with torch.no_grad():
        theirs = marian(input_ids=tokens, attention_mask=real.long(), decoder_input_ids=target).logits
        mine, _ = ours(target, ours.start(tokens, Padded(real)))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))
    assert mine.argmax(-1).equal(theirs.argmax(-1))


def search(ours: Transformer, source: tuple[Tensor, Tensor], beams: int, top: int, limit: int) -> Paths:
    tokens, real = source
    state, prefix = ours.start(tokens, Padded(real)), torch.full((len(tokens), 1), PAD)
    limits = torch.full((len(tokens),), limit)
    if beams == 1:
        return drain(greedy(ours, state, prefix, limits, EOS))
    return drain(beam(ours, state, prefix, limits, EOS, beams=beams, top=top))


@pytest.mark.parametrize(("beams", "top"), [(1, 1), (2, 2), (4, 1), (4, 4)])
def test_decoded_tokens_match_marian(
    marian: Any, ours: Transformer, source: tuple[Tensor, Tensor], beams: int, top: int
) -> None:
    tokens, real = source
    theirs = marian.generate(
        input_ids=tokens,
        attention_mask=real.long(),
        num_beams=beams,
        num_return_sequences=top,
        max_new_tokens=12,
        do_sample=False,
        early_stopping=False,
        length_penalty=1.0,
        bad_words_ids=None,
        output_scores=True,
        return_dict_in_generate=True,
    )
    paths = search(ours, source, beams, top, 12)
    lengths = set()
    for row in range(len(tokens)):
        for rank in range(top):
            mine = paths.tokens[row, rank, : int(paths.lengths[row, rank])].tolist()
            reply = theirs.sequences[row * top + rank, 1:].tolist()
            assert mine == reply[: len(mine)]
            assert all(token == PAD for token in reply[len(mine) :])
            lengths.add(len(mine))
    assert len(lengths) > 2
    if beams > 1:
        close(paths.scores.flatten(), theirs.sequences_scores, slack=1024)
