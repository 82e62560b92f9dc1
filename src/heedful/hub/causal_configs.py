"""Settings of GPT and GPT-2 as others write them, and as ours; readable without torch.

Only the keys below are read. Those that would change what is computed are refused by name where they do; the rest, such
as how a text is to be generated, say nothing about the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from heedful.errors import UserError, shown
from heedful.files.reading import require_folder
from heedful.files.yaml import load_yaml
from heedful.hub.configs import checked, home, real, refuse, unknown, unsupported, whole
from heedful.hub.files import has, read_settings, wrong
from heedful.models.gpt.config import GptConfig

Family = Literal["gpt2", "openai-gpt"]
FAMILIES: dict[str, Family] = {"gpt2": "gpt2", "openai-gpt": "openai-gpt"}
SIZES = {  # their keys, ours, the least and the most
    "vocab": (("vocab_size",), 2, 10_000_000),
    "width": (("n_embd", "hidden_size"), 1, 65_536),
    "layers": (("n_layer", "num_hidden_layers"), 1, 1000),
    "heads": (("n_head", "num_attention_heads"), 1, 1024),
    "context": (("n_positions", "max_position_embeddings"), 1, 1_048_576),
}
# What each family calls an activation. GPT's "gelu" has always been the one with a tanh.
Activation = Literal["gelu_tanh", "gelu", "relu", "swish"]
ACTIVATIONS: dict[Family, dict[str, Activation]] = {
    "gpt2": {
        "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu", "silu": "swish",
        "swish": "swish",
    },
    "openai-gpt": {"gelu": "gelu_tanh", "relu": "relu", "silu": "swish", "swish": "swish"},
}  # fmt: skip
ACTIVATION_KEYS: dict[Family, str] = {"gpt2": "activation_function", "openai-gpt": "afn"}
USUAL: dict[Family, str] = {"gpt2": "gelu_new", "openai-gpt": "gelu"}
ARCHITECTURES: dict[Family, tuple[str, ...]] = {  # with an output, and without one of its own
    "gpt2": ("GPT2LMHeadModel", "GPT2Model"),
    "openai-gpt": ("OpenAIGPTLMHeadModel", "OpenAIGPTModel"),
}
# Settings that change what is computed, with the values under which they do not.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "scale_attn_weights": (True, None),
    "scale_attn_by_inverse_layer_idx": (False, None),
    "add_cross_attention": (False, None),
    "is_encoder_decoder": (False, None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "auto_map": (None,),
}
ORIGINAL = {
    "n_vocab": "vocab_size",
    "n_ctx": "n_positions",
    "n_embd": "n_embd",
    "n_head": "n_head",
    "n_layer": "n_layer",
}
HPARAMS = "hparams.json"  # what the first release of GPT-2 keeps its settings in


class Described(NamedTuple):
    """What a config file of others says: the model, whose family it is of, and what whoever loads it should know."""

    config: GptConfig
    family: Family
    ties: bool  # whether the output is the embedding; otherwise it must be shown to be the same
    notes: tuple[str, ...]


def causal(folder: Path) -> bool:
    """Whether a folder, ours or of others, holds a GPT; only its settings are looked at."""
    own = home(folder)
    if has(own, "config.json"):
        settings = read_settings(own, "config.json")
        return _is_ours(settings.get("model")) if "task" in settings else str(settings.get("model_type")) in FAMILIES
    if has(own, "recipe.yaml"):
        return _is_ours(load_yaml(own / "recipe.yaml")[0].get("model"))
    return has(own, HPARAMS)


def config_in(folder: Path) -> GptConfig:
    """The GPT in a folder, ours or of others, by its config files alone."""
    own = home(folder)
    require_folder(own, "a folder with a trained GPT in it")
    if has(own, "config.json"):
        settings = read_settings(own, "config.json")
        if "task" in settings:
            return _ours(settings.get("model"), own / "config.json")
        return described(settings, own / "config.json").config
    if has(own, "recipe.yaml"):
        return _ours(load_yaml(own / "recipe.yaml")[0].get("model"), own / "recipe.yaml")
    if has(own, HPARAMS):
        return original(read_settings(own, HPARAMS), own / HPARAMS)
    raise unknown(folder)


def _is_ours(model: Any) -> bool:
    return isinstance(model, dict) and model.get("kind") == "gpt"


def _ours(model: Any, where: Path) -> GptConfig:
    """A model's settings as a folder of ours has them."""
    from heedful.config import parse

    if not _is_ours(model):
        kind = model.get("kind") if isinstance(model, dict) else None
        raise UserError(
            "this model is no GPT", where=str(where), found=shown(kind), expected="a model of kind gpt",
            todo="name the folder of a GPT",
        )  # fmt: skip
    return parse(GptConfig, model, file=where)


def original(settings: Mapping[str, Any], where: Path) -> GptConfig:
    """The settings beside the checkpoint of GPT-2's first release."""
    for key in ORIGINAL:
        whole(settings, key, 1, 10_000_000, where)
    known = {theirs: settings[key] for key, theirs in ORIGINAL.items()}
    return described({"model_type": "gpt2", **known}, where).config


def described(settings: Mapping[str, Any], where: Path) -> Described:
    """The settings of a config file of others, each checked and named if it is not right."""
    family = FAMILIES.get(str(settings.get("model_type")))
    if family is None:
        raise UserError(
            "models of this kind are not read as a GPT", where=str(where),
            found=f"model_type {shown(settings.get('model_type'))}", expected="model_type 'gpt2' or 'openai-gpt'",
            todo="name the folder of a GPT or a GPT-2",
        )  # fmt: skip
    _refuse(settings, family, where)
    found: dict[str, Any] = {}
    for ours, (keys, least, most) in SIZES.items():
        key = next((key for key in keys if key in settings), keys[0])
        found[ours] = whole(settings, key, least, most, where)
    if family == "gpt2" and settings.get("n_inner") is not None:
        found["hidden"] = whole(settings, "n_inner", 1, 1_048_576, where)
    found["dropout"] = real(settings, "resid_pdrop", 0.1, where)
    found["attention_dropout"] = real(settings, "attn_pdrop", 0.1, where)
    found["norm_eps"] = real(settings, "layer_norm_epsilon", 1e-5, where)
    key, known = ACTIVATION_KEYS[family], ACTIVATIONS[family]
    act = settings.get(key, USUAL[family])
    if not isinstance(act, str) or act not in known:
        raise unsupported(where, key, act, known)
    if found["width"] % found["heads"]:
        raise wrong(where, "n_head", found["heads"], f"a divisor of n_embd, {found['width']:,}")
    found |= {"activation": known[act], "norm": "pre" if family == "gpt2" else "post"}
    config = checked(GptConfig, found, {ours: keys[0] for ours, (keys, _, _) in SIZES.items()}, where)
    below = real(settings, "embd_pdrop", 0.1, where)
    told = f"embd_pdrop {below} is taken as resid_pdrop, {config.dropout}: there is one dropout here"
    notes = () if below == config.dropout else (told,)
    return Described(config, family, settings.get("tie_word_embeddings", True) is not False, notes)


def _refuse(settings: Mapping[str, Any], family: Family, where: Path) -> None:
    """Refuse settings that would make it compute something else, and models with more on top."""
    refuse(settings, HARMLESS, where, "name the folder of a GPT or a GPT-2 as it was published")
    named = settings.get("architectures") or [ARCHITECTURES[family][0]]
    if not isinstance(named, list) or len(named) != 1 or named[0] not in ARCHITECTURES[family]:
        raise wrong(where, "architectures", named, "one of " + ", ".join(ARCHITECTURES[family]))


def config_text(config: GptConfig, end: int | None) -> str:
    """The text of a config.json of Hugging Face's that says the same; `end` is the id of `<|endoftext|>`."""
    family: Family = "gpt2" if config.norm == "pre" else "openai-gpt"
    if config.positions != "learned":
        raise _unwritable("positions", config.positions, "learned")
    acts = {ours: theirs for theirs, ours in reversed(ACTIVATIONS[family].items())}
    if config.activation not in acts:
        raise _unwritable("activation", config.activation, " or ".join(acts))
    if family == "openai-gpt" and config.inner != 4 * config.width:
        raise _unwritable("hidden", f"{config.inner:,}", f"{4 * config.width:,}, four times the width")
    settings: dict[str, Any] = {"architectures": [ARCHITECTURES[family][0]], "model_type": family}
    settings |= {keys[0]: getattr(config, ours) for ours, (keys, _, _) in SIZES.items()}
    if family == "gpt2":
        settings["n_inner"] = config.hidden
    settings |= {
        ACTIVATION_KEYS[family]: acts[config.activation],
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "layer_norm_epsilon": config.norm_eps,
        "initializer_range": 0.02,
        "bos_token_id": end,
        "eos_token_id": end,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }
    return json.dumps(settings, indent=2) + "\n"


def _unwritable(name: str, found: str, expected: str) -> UserError:
    return UserError(
        "Hugging Face's GPT-2 and GPT have no place for this", where=f"model.{name}", found=found, expected=expected,
        todo="keep this model as it is: `heedful.load` reads it",
    )  # fmt: skip
