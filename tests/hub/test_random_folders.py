"""Random small folders of every published model that `transformers` has: read, written, and read there again.

Heads, activations, sizes, types of weights, shards and left-out defaults vary. The model that `transformers` reads from
our folder has the bits of the first one, the same outputs, and no tensor is missing.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from heedful.hub import pretrained, write
from heedful.hub.folder import exchanges
from heedful.hub.image_folders import image_exchanges
from heedful.models.exchange import ACTIVATIONS

EXCHANGES: dict[str, Any] = {
    name: one for one in (*exchanges().values(), *image_exchanges().values()) for name in one.MODEL_TYPES
}
GONE = {"transfo-xl"}  # of which version 5 has no model
UNUSED = re.compile(r"((bert|vit|deit)\.)?pooler\..*")  # where no head reads it: it is not kept
OWN_BIAS = re.compile(r"(cls\.predictions|predictions|lm_head)\.bias")  # not used where the output is untied
WITHOUT_OUTPUT = {"GPT2Model": "GPT2LMHeadModel", "OpenAIGPTModel": "OpenAIGPTLMHeadModel"}  # written as one with it
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed > 2 else []) for seed in range(24)]
RELATIVE = 1e-5  # of the largest value: names of one activation stand for programs that round differently


def architectures(model_type: str) -> list[str]:
    """The names of the models of a type."""
    known = vars(EXCHANGES[model_type])
    names = known.get("PARTS") or known.get("CLASSIFIES") or known.get("ARCHITECTURES") or [known["ARCHITECTURE"]]
    names = names.get(model_type, names) if isinstance(names, dict) else names
    return [name for name in names if getattr(transformers, name).config_class.model_type == model_type]


def sizes(model_type: str, rng: random.Random) -> dict[str, Any]:
    """Small random settings by their names in `transformers`."""
    heads, layers, inner, act = rng.randint(1, 3), rng.randint(1, 3), rng.randint(3, 40), rng.choice(list(ACTIVATIONS))
    width, eps, ties = heads * 2 * rng.randint(2, 6), rng.choice([1e-12, 1e-5, 1e-3]), rng.random() < 0.6
    if model_type == "resnet":
        widths = [4 * rng.randint(1, 3) for _ in range(rng.randint(1, 3))]
        return {
            "hidden_sizes": widths, "depths": [rng.randint(1, 2) for _ in widths], "embedding_size": rng.randint(2, 6),
            "num_channels": 2, "layer_type": rng.choice(["basic", "bottleneck"]),
        }  # fmt: skip
    usual = {
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": inner,
        "hidden_act": act, "layer_norm_eps": eps,
    }  # fmt: skip
    if model_type in ("vit", "deit"):
        return usual | {"image_size": rng.choice([12, [12, 8]]), "patch_size": 4, "num_channels": 2}
    text = {"vocab_size": 40, "tie_word_embeddings": ties}
    context = {"max_position_embeddings": rng.randint(12, 40)}
    gpt = {
        "n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": 30, "layer_norm_epsilon": eps,
        "bos_token_id": 3, "eos_token_id": 3,
    }  # fmt: skip
    inverse = rng.random() < 0.5
    special: dict[str, dict[str, Any]] = {
        "bert": usual | context | {"type_vocab_size": rng.randint(1, 3)},
        "roberta": usual | context | {"type_vocab_size": rng.randint(1, 2), "pad_token_id": 1},
        "xlm-roberta": usual | context | {"type_vocab_size": rng.randint(1, 2), "pad_token_id": 1},
        "albert": usual | context | {"embedding_size": rng.randint(2, 20), "num_hidden_groups": rng.randint(1, layers)},
        "big_bird": usual | context | {
            "attention_type": rng.choice(["original_full", "block_sparse"]), "block_size": 2,
        },
        "distilbert": context | {
            "dim": width, "n_layers": layers, "n_heads": heads, "hidden_dim": inner, "activation": act,
        },
        "xlnet": {
            "d_model": width, "n_layer": layers, "n_head": heads, "d_inner": inner, "ff_activation": act,
            "clamp_len": rng.choice([-1, 4]), "layer_norm_eps": eps,
        },
        "gpt2": gpt | {
            "n_inner": rng.choice([None, inner]), "activation_function": act, "pad_token_id": 3,
            "scale_attn_by_inverse_layer_idx": inverse, "scale_attn_weights": inverse or rng.random() < 0.7,
        },
        "openai-gpt": gpt | {"afn": rng.choice(["gelu", "relu", "silu", "swish"])},
        "marian": {
            "d_model": width, "encoder_layers": layers, "decoder_layers": rng.randint(1, 3), "encoder_ffn_dim": inner,
            "decoder_ffn_dim": inner, "encoder_attention_heads": heads, "decoder_attention_heads": heads,
            "activation_function": act, "pad_token_id": 39, "decoder_start_token_id": 39, "eos_token_id": 0,
            "scale_embedding": rng.random() < 0.5, "share_encoder_decoder_embeddings": ties, **context,
        },
    }  # fmt: skip
    return text | special[model_type]


def outputs_of_head(name: str, rng: random.Random) -> dict[str, Any]:
    """The number of labels with or without names, and sometimes what they are for."""
    if "Classification" not in name:
        return {}
    single = "Sequence" in name
    count = rng.choice([1, 2, 3]) if single else rng.randint(2, 4)
    problems = ["regression", "multi_label_classification", *(["single_label_classification"] if count > 1 else [])]
    settings: dict[str, Any] = {"problem_type": rng.choice([None, *problems])} if single else {}
    if rng.random() < 0.5 or count == 1:
        return settings | {"num_labels": count}
    return settings | {"id2label": {at: f"l{at} ü" for at in range(count)}}


def random_model(model_type: str, seed: int) -> Any:
    """A model of `transformers` in which no weight and no running statistic is trivial."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    name, settings = rng.choice(architectures(model_type)), sizes(model_type, rng)
    if name in WITHOUT_OUTPUT:  # an output of its own would be missing
        settings["tie_word_embeddings"] = True
    make = transformers.CONFIG_MAPPING[model_type]
    model = getattr(transformers, name)(make(**settings, **outputs_of_head(name, rng)))
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if tensor.is_floating_point() and "embed_positions" not in key:
                tensor.add_(torch.rand_like(tensor) if key.endswith("running_var") else torch.randn_like(tensor) * 0.2)
    wide = [torch.float32, torch.float64]  # of a Marian alone: its sinusoids would be rounded, too
    return model.to(rng.choice(wide if model_type == "marian" else [*wide, torch.float16, torch.bfloat16])).eval()


def saved(model: Any, folder: Path, rng: random.Random) -> Path:
    """A folder, maybe with shards, maybe without some settings that are the defaults."""
    model.save_pretrained(folder, **({"max_shard_size": "6KB"} if rng.random() < 0.3 else {}))
    settings, usual = json.loads((folder / "config.json").read_text()), type(model.config)().to_dict()
    for key in [key for key, value in settings.items() if key != "model_type" and usual.get(key, model) == value]:
        if rng.random() < 0.4:
            del settings[key]
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def results(model: Any) -> dict[str, Tensor]:
    """Everything that a model computes for a batch."""
    torch.manual_seed(0)
    name, ids = type(model).__name__, torch.randint(5, 35, (2, 9))
    given: dict[str, Any] = {"input_ids": ids[:, None] if "MultipleChoice" in name else ids}
    if name.startswith("Marian"):
        given["decoder_input_ids"] = torch.randint(5, 35, (2, 6))
    if model.config.model_type in ("vit", "deit", "resnet"):
        side = getattr(model.config, "image_size", 17)
        given = {"pixel_values": torch.randn(2, 2, *(side if isinstance(side, list | tuple) else (side, side)))}
    with torch.no_grad():
        found = model.float()(**given)
    return {key: value for key, value in found.items() if isinstance(value, Tensor) and not key.startswith("pooler")}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("model_type", [name for name in EXCHANGES if name not in GONE])
def test_a_folder_read_and_written_is_the_same_model_in_transformers(
    model_type: str, seed: int, tmp_path: Path
) -> None:
    model = random_model(model_type, seed)
    name, ties = type(model).__name__, getattr(model.config, "tie_word_embeddings", True)
    found = pretrained(saved(model, tmp_path / "theirs", random.Random(seed)))
    write(tmp_path / "back", found)
    again, report = getattr(transformers, name).from_pretrained(tmp_path / "back", output_loading_info=True)
    missing = report.pop("missing_keys")
    assert not any(report.values()) and not [key for key in missing if not UNUSED.fullmatch(key)]
    written = json.loads((tmp_path / "back" / "config.json").read_text())["architectures"]
    assert written == [WITHOUT_OUTPUT.get(name, name)]
    if "Classification" in name:
        assert again.config.num_labels == model.config.num_labels
        assert model.config.num_labels == 1 or again.config.id2label == model.config.id2label
        assert model.config.problem_type in (None, "single_label_classification", again.config.problem_type)
    right, before = results(model), model.state_dict()
    for key, value in results(again.eval()).items():
        torch.testing.assert_close(value, right[key], rtol=0, atol=RELATIVE * float(right[key].abs().max()))
    for key, value in again.state_dict().items():
        skipped = UNUSED.fullmatch(key) or "embed_positions" in key or (not ties and OWN_BIAS.fullmatch(key))
        assert skipped or torch.equal(value, before[key]), key
    assert pretrained(tmp_path / "back").config == found.config
