"""Transformer-XL in Hugging Face's files: names, settings, safetensors and pickles, and what is refused.

`transformers` 5 has no Transformer-XL any more: the names and shapes here are those of its version 4. The folders in
`transfo_xl` have random weights, and what the code of version 4.30.2 computes with them in segments of four tokens.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from heedful.errors import UserError
from heedful.hub import pretrained, write
from heedful.hub.loading import Pretrained
from heedful.hub.unpickling import read_any_weights
from heedful.models import build
from heedful.models.transformer_xl.config import TransformerXLConfig
from heedful.models.transformer_xl.weights import read_config
from tolerance import close

TINY = TransformerXLConfig.tiny().model_dump()
KINDS: dict[str, dict[str, Any]] = {
    "one-table": {"cutoffs": (5, 14), "share_biases": True, "clamp": 9},
    "narrow": {"cutoffs": (5, 14), "embed": 12},
    "clusters": {"cutoffs": (5, 14), "divisor": 2, "norm": "pre", "same_length": False, "head_width": 6},
}


def model_of(**changes: Any) -> Any:
    torch.manual_seed(0)
    return build(TransformerXLConfig(**(TINY | changes))).eval()


def written(folder: Path, **changes: Any) -> Any:
    model = model_of(**changes)
    write(folder, Pretrained(model.config, None, model.state_dict(), ()))
    return model


def change(folder: Path, **settings: Any) -> None:
    there = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(there | settings))


@pytest.mark.parametrize("kind", ["same_length", "growing"])
def test_log_probabilities_are_those_of_transformers_4(kind: str) -> None:
    folder = Path(__file__).parent / "transfo_xl" / kind
    found, expected = pretrained(folder), load_file(folder / "expected.safetensors")
    model: Any = build(found.config).eval()
    model.load_state_dict(found.tensors)
    state = model.start(2, torch.device("cpu")).fill()
    state = replace(state, seen=torch.ones_like(state.seen))  # there, a first memory of zeros is attended to
    logs = []
    with torch.no_grad():
        for tokens in expected["tokens"].split(4, 1):
            logits, state = model(tokens, state)
            logs.append(logits.log_softmax(-1))
    close(torch.cat(logs, 1), expected["log_probabilities"])


@pytest.mark.parametrize("kind", KINDS)
def test_weights_round_trip_bit_for_bit(kind: str, tmp_path: Path) -> None:
    model = written(tmp_path / "theirs", **KINDS[kind])
    again = pretrained(tmp_path / "theirs", role="causal")
    assert again.config == model.config
    assert again.tensors.keys() == model.state_dict().keys()
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in model.state_dict().items())


def test_published_names_and_shapes(tmp_path: Path) -> None:
    written(tmp_path / "theirs", **KINDS["clusters"])
    shapes = {name: tuple(x.shape) for name, x in load_file(tmp_path / "theirs" / "model.safetensors").items()}
    layer, expected = "transformer.layers.1", {}
    for cluster, (tokens, width) in enumerate([(5, 16), (9, 8), (9, 4)]):
        expected[f"transformer.word_emb.emb_layers.{cluster}.weight"] = (tokens, width)
        expected[f"transformer.word_emb.emb_projs.{cluster}"] = (16, width)
        expected[f"crit.out_layers.{cluster}.bias"] = (tokens,)
    expected |= {"crit.out_projs.0": (16, 16), "crit.cluster_weight": (2, 16), "crit.cluster_bias": (2,)}
    expected |= {
        f"{layer}.dec_attn.qkv_net.weight": (36, 16), f"{layer}.dec_attn.r_net.weight": (12, 16),
        f"{layer}.dec_attn.o_net.weight": (16, 12), f"{layer}.dec_attn.r_w_bias": (2, 6),
        f"{layer}.dec_attn.r_r_bias": (2, 6), f"{layer}.dec_attn.layer_norm.weight": (16,),
        f"{layer}.pos_ff.CoreNet.0.weight": (20, 16), f"{layer}.pos_ff.CoreNet.3.bias": (16,),
        f"{layer}.pos_ff.layer_norm.bias": (16,),
    }  # fmt: skip
    assert {name: shapes.get(name) for name in expected} == expected


def test_settings_that_are_left_out_are_the_defaults_of_transformers_4(tmp_path: Path) -> None:
    found = read_config({"model_type": "transfo-xl", "d_embed": 512}, tmp_path / "config.json")
    config, given = found.config, ("vocab", "width", "layers", "heads", "embed", "divisor", "memory", "clamp")
    assert tuple(getattr(config, name) for name in given) == (267_735, 1024, 18, 16, 512, 4, 1600, 1000)
    assert (config.cutoffs, config.same_length, config.norm) == ((20_000, 40_000, 200_000), True, "post")
    assert "same_length True" in found.notes[0] and "d_embed" not in found.notes[0]
    written(tmp_path / "theirs", **KINDS["one-table"])
    whole = pretrained(tmp_path / "theirs", role="causal")
    settings = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert settings.pop("same_length") is True
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(settings))
    assert pretrained(tmp_path / "theirs", role="causal").config == whole.config


@pytest.mark.parametrize("kind", KINDS)
def test_pickle_with_all_tied_tensors_is_read(kind: str, tmp_path: Path) -> None:
    """As `save_pretrained` of version 4 wrote them: tied tensors under each of their names, and the buffer."""
    model = written(tmp_path / "theirs", **KINDS[kind])
    folder = tmp_path / "theirs"
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for name in [name for name in tensors if "emb_layers" in name]:
        tensors[name.replace("transformer.word_emb.emb_layers", "crit.out_layers")] = tensors[name]
    for cluster in (1, 2):
        of = f"transformer.word_emb.emb_projs.{cluster if model.config.divisor > 1 else 0}"
        if of in tensors:
            tensors[f"crit.out_projs.{cluster}"] = tensors[of]
    if model.config.share_biases:
        for name in ("r_w_bias", "r_r_bias"):
            tensors |= {f"transformer.layers.{n}.dec_attn.{name}": tensors[f"transformer.{name}"] for n in range(2)}
    tensors["transformer.pos_emb.inv_freq"] = torch.ones(8)
    torch.save(tensors, folder / "pytorch_model.bin")
    again = pretrained(folder, read_any_weights, role="causal")
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in model.state_dict().items())


def test_untied_output_layer_is_rejected(tmp_path: Path) -> None:
    written(tmp_path / "theirs")
    tensors = load_file(tmp_path / "theirs" / "model.safetensors")
    tensors["crit.out_layers.0.weight"] = tensors["transformer.word_emb.emb_layers.0.weight"] + 1
    save_file(tensors, tmp_path / "theirs" / "model.safetensors")
    with pytest.raises(UserError, match=r"not supported: crit.out_layers.0.weight of its own"):
        pretrained(tmp_path / "theirs")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attn_type": 1}, "attn_type: not supported"),
        ({"proj_share_all_but_first": False}, "proj_share_all_but_first: not supported"),
        ({"sample_softmax": 100}, "sample_softmax: not supported"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings: not supported"),
        ({"architectures": ["TransfoXLForSequenceClassification"]}, "architectures"),
        ({"untie_r": "yes"}, "untie_r"),
        ({"clamp_len": 1.5}, "clamp_len"),
        ({"cutoffs": [9, 5]}, "cutoffs"),
        ({"cutoffs": "many"}, "cutoffs"),
        ({"mem_len": 0}, "mem_len"),
        ({"d_model": 15}, "d_model"),
    ],
)
def test_settings_that_are_not_supported_are_named(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    written(tmp_path / "theirs")
    change(tmp_path / "theirs", **settings)
    with pytest.raises(UserError, match=message):
        pretrained(tmp_path / "theirs")
