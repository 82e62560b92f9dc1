"""GPT and GPT-2 in published files: those of Hugging Face, and the original release of GPT-2; does not import torch.

Only the settings below are read. Unsupported ones that would change the computation are refused by name; the others,
such as generation settings, do not concern the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heedful.errors import UserError, wrong
from heedful.models.exchange import (
    ACTIVATION_NAMES,
    PublishedConfig,
    Rule,
    Table,
    Twin,
    architecture_in,
    bool_setting,
    fill_in,
    float_setting,
    head_in,
    int_setting,
    label_settings,
    labels_in,
    output_of,
    published_head,
    refuse,
    refuse_attention,
    ties_in,
    unsupported,
    unwritable,
    validate_config,
    weight_and_bias,
)
from heedful.models.exchange import ACTIVATIONS as EVERY_ACTIVATION
from heedful.models.gpt.config import GptConfig
from heedful.models.sizes import Activation, AnyHeadScore

if TYPE_CHECKING:
    from torch import Tensor

TITLE = "GPT"
NAMES = "GPT-2 and GPT"
MODEL_TYPES = ("gpt2", "openai-gpt")
RELEASE = ("hparams.json", "model.ckpt.*")
PREFIX = ""  # models are always written with their output layer
Family = Literal["gpt2", "openai-gpt"]
FAMILIES: dict[str, Family] = {"gpt2": "gpt2", "openai-gpt": "openai-gpt"}
SIZES = {  # our key: their keys, minimum, maximum
    "vocab": (("vocab_size",), 2, 10_000_000),
    "width": (("n_embd", "hidden_size"), 1, 65_536),
    "layers": (("n_layer", "num_hidden_layers"), 1, 1000),
    "heads": (("n_head", "num_attention_heads"), 1, 1024),
    "context": (("n_positions", "max_position_embeddings"), 1, 1_048_576),
}
DEFAULTS: dict[Family, dict[str, int]] = {  # of transformers, for what a config.json leaves out
    "gpt2": {"vocab_size": 50_257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
    "openai-gpt": {"vocab_size": 40_478, "n_positions": 512, "n_embd": 768, "n_layer": 12, "n_head": 12},
}
# The activation names of each family. "gelu" in GPT is the tanh approximation.
ACTIVATIONS: dict[Family, dict[str, Activation]] = {
    "gpt2": EVERY_ACTIVATION,
    "openai-gpt": {"gelu": "gelu_tanh", "relu": "relu", "silu": "swish", "swish": "swish"},
}
ACTIVATIONS_WRITTEN: dict[Family, dict[Activation, str]] = {
    "gpt2": {**ACTIVATION_NAMES, "gelu_tanh": "gelu_new"},
    "openai-gpt": {"gelu_tanh": "gelu", "relu": "relu", "swish": "silu"},
}
ACTIVATION_KEYS: dict[Family, str] = {"gpt2": "activation_function", "openai-gpt": "afn"}
DEFAULT_ACTIVATIONS: dict[Family, str] = {"gpt2": "gelu_new", "openai-gpt": "gelu"}
ARCHITECTURES: dict[Family, dict[str, str | None]] = {  # the head of a task of each; first, with an output layer
    "gpt2": {
        "GPT2LMHeadModel": None,
        "GPT2Model": None,
        "GPT2ForSequenceClassification": "classifier",
        "GPT2ForTokenClassification": "tagger",
        "GPT2ForQuestionAnswering": "answerer",
    },
    "openai-gpt": {"OpenAIGPTLMHeadModel": None, "OpenAIGPTModel": None},
}
HEAD_LAYERS = {"classifier": "score", "tagger": "classifier", "answerer": "qa_outputs"}
# Settings that would change the computation, with their supported values.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False, None),
    "is_encoder_decoder": (False, None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "auto_map": (None,),
}
SCALES = ("scale_attn_weights", "scale_attn_by_inverse_layer_idx")
SCORES: dict[tuple[bool, bool], AnyHeadScore] = {
    (True, False): "scaled_dot",
    (True, True): "depth_scaled_dot",
    (False, False): "dot",
}
RELEASE_KEYS = {
    "n_vocab": "vocab_size",
    "n_ctx": "n_positions",
    "n_embd": "n_embd",
    "n_head": "n_head",
    "n_layer": "n_layer",
}
EMBEDDINGS = {"pre": ("wte", "wpe"), "post": ("tokens_embed", "positions_embed")}  # GPT-2 and GPT
DENSE = {  # of a block; matrices are transposed in both
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
NORMS = {"add1.norm": "ln_1", "add2.norm": "ln_2"}
BUFFERS = ("attn.bias", "attn.masked_bias")  # the causal mask, which is computed here
OPTIMIZER_STATE = re.compile(r".+/Adam(_1)?|global_step|beta[12]_power")


def release_config(settings: Mapping[str, Any], where: Path) -> PublishedConfig:
    """The settings of a checkpoint of the original release of GPT-2."""
    for key in RELEASE_KEYS:
        int_setting(settings, key, 1, 10_000_000, where)
    known = {theirs: settings[key] for key, theirs in RELEASE_KEYS.items()}
    return read_config({"model_type": "gpt2", **known}, where)


def read_config(settings: Mapping[str, Any], where: Path) -> PublishedConfig:
    """The settings of a config.json, checked; an error names the invalid one."""
    family = FAMILIES[str(settings.get("model_type"))]
    head = head_in(settings, _head(settings, family, where), where)
    found: dict[str, Any] = {}
    known = {keys[0]: settings[key] for keys, _, _ in SIZES.values() for key in reversed(keys) if key in settings}
    settings, left_out = fill_in({**settings, **known}, DEFAULTS[family])
    for ours, (keys, least, most) in SIZES.items():
        found[ours] = int_setting(settings, keys[0], least, most, where)
    if family == "gpt2" and settings.get("n_inner") is not None:
        found["hidden"] = int_setting(settings, "n_inner", 1, 1_048_576, where)
    found["dropout"] = float_setting(settings, "resid_pdrop", 0.1, where)
    found["attention_dropout"] = float_setting(settings, "attn_pdrop", 0.1, where)
    found["norm_eps"] = float_setting(settings, "layer_norm_epsilon", 1e-5, where)
    key, functions = ACTIVATION_KEYS[family], ACTIVATIONS[family]
    act = settings.get(key, DEFAULT_ACTIVATIONS[family])
    if not isinstance(act, str) or act not in functions:
        raise unsupported(where, key, act, functions)
    if found["width"] % found["heads"]:
        raise wrong(where, "n_head", found["heads"], f"a divisor of n_embd, {found['width']:,}")
    scaling = bool_setting(settings, SCALES[0], True, where), bool_setting(settings, SCALES[1], False, where)
    scaling = scaling if family == "gpt2" else (True, False)  # GPT has no such settings
    if scaling not in SCORES:
        raise UserError(
            "not supported: attention scores that are divided by the number of the layer alone",
            where=f"{where}: scale_attn_weights", found="false, with scale_attn_by_inverse_layer_idx true",
            expected="true", todo="choose the folder of another model",
        )  # fmt: skip
    ties = head is not None or ties_in(settings, where)
    found |= {"output": "tied" if ties else "untied", "score": SCORES[scaling]}
    found |= {"activation": functions[act], "norm": "pre" if family == "gpt2" else "post"}
    config = validate_config(GptConfig, found, {ours: keys[0] for ours, (keys, _, _) in SIZES.items()}, where)
    embedding_dropout = float_setting(settings, "embd_pdrop", 0.1, where)
    note = f"embd_pdrop {embedding_dropout} is taken as resid_pdrop, {config.dropout}: there is one dropout here"
    notes = (*left_out, *(() if embedding_dropout == config.dropout else (note,)))
    labels = () if head is None else labels_in(settings, where)
    return PublishedConfig(config, head, labels, ties=ties, notes=notes)


def _head(settings: Mapping[str, Any], family: Family, where: Path) -> str | None:
    """The head of the architecture; unsupported ones, and settings that would change the computation, are refused."""
    refuse(settings, HARMLESS, where, "choose the folder of a GPT or a GPT-2 as it was published")
    return ARCHITECTURES[family].get(architecture_in(settings, ARCHITECTURES[family], where) or "")


def config_json(
    config: GptConfig, head: str | None = None, labels: Sequence[str] = (), pad: int = 0, end: int | None = None
) -> dict[str, Any]:
    """The config.json of a model with this config; `end` is the id of `<|endoftext|>`."""
    family: Family = "gpt2" if config.norm == "pre" else "openai-gpt"
    scales = next((pair for pair, score in SCORES.items() if score == config.score), None)
    if scales is None or config.normalize != "softmax" or (family == "openai-gpt" and config.score != "scaled_dot"):
        refuse_attention(config, NAMES)
    if config.output not in ("tied", "untied"):
        raise unwritable(NAMES, "output", config.output, "tied or untied")
    if config.positions != "learned":
        raise unwritable(NAMES, "positions", config.positions, "learned")
    if config.window is not None:
        raise unwritable(NAMES, "window", f"{config.window:,}", "null: every earlier token")
    acts = ACTIVATIONS_WRITTEN[family]
    if config.activation not in acts:
        raise unwritable(NAMES, "activation", config.activation, " or ".join(acts))
    if family == "openai-gpt" and config.inner != 4 * config.width:
        raise unwritable(NAMES, "hidden", f"{config.inner:,}", f"{4 * config.width:,}, four times the width")
    known = {kind: name for name, kind in reversed(ARCHITECTURES[family].items())}  # of two names, the first
    if published_head(head) not in known:
        raise unwritable(NAMES, "kind", str(head), ", ".join(str(kind) for kind in known if kind))
    settings: dict[str, Any] = {"architectures": [known[published_head(head)]], "model_type": family}
    settings |= {keys[0]: getattr(config, ours) for ours, (keys, _, _) in SIZES.items()}
    if family == "gpt2":
        settings |= {"n_inner": config.hidden, **dict(zip(SCALES, scales or (), strict=True))}
    settings |= {
        ACTIVATION_KEYS[family]: acts[config.activation],
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "layer_norm_epsilon": config.norm_eps,
        "initializer_range": 0.02,
        "bos_token_id": end,
        "eos_token_id": end,
        "tie_word_embeddings": config.output == "tied",
        "dtype": "float32",
    }
    return settings | ({} if head is None else {"pad_token_id": pad, **label_settings(head, labels)})


def table(config: GptConfig, head: str | None = None) -> Table:
    """Hugging Face's tensor names; all but the output layer's start with `transformer.`."""
    tokens, positions = EMBEDDINGS[config.norm]
    tied = config.output == "tied"
    rules = [
        Rule("tokens.weight" if tied else "tokens.input", (f"transformer.{tokens}.weight",)),
        Rule("positions.table", (f"transformer.{positions}.weight",)),
    ]
    spare = ["transformer.position_ids"]
    for index in range(config.layers):
        ours, theirs = f"blocks.{index}", f"transformer.h.{index}"
        for own, other in DENSE.items():
            rules.append(Rule(f"{ours}.{own}.weight", (f"{theirs}.{other}.weight",), True))
            rules.append(Rule(f"{ours}.{own}.bias", (f"{theirs}.{other}.bias",)))
        for own, other in NORMS.items():
            rules += weight_and_bias(f"{ours}.{own}", f"{theirs}.{other}")
        spare += [f"{theirs}.{name}" for name in BUFFERS]
    if config.norm == "pre":
        rules += weight_and_bias("norm", "transformer.ln_f")
    if head is not None:
        layer = HEAD_LAYERS[str(published_head(head))]
        rules += weight_and_bias("head", layer)[: 1 if layer == "score" else 2]
    elif not tied:
        rules.append(Rule("tokens.weight", ("lm_head.weight",)))
    twins = (Twin("lm_head.weight", f"transformer.{tokens}.weight"),) if tied and head is None else ()
    return Table(tuple(rules), twins, tuple(spare))


def canonical(names: Iterable[str]) -> dict[str, str]:
    """The table's name of each name in a file; models without an output layer have no prefix `transformer.`."""
    given = list(names)
    bare = not any(name.startswith("transformer.") for name in given)
    tops = ("lm_head.", *(f"{layer}." for layer in HEAD_LAYERS.values()))
    return {name: f"transformer.{name}" if bare and not name.startswith(tops) else name for name in given}


def match_tensors(published: PublishedConfig, names: set[str], where: Path) -> PublishedConfig:
    """The config, unchanged; an output layer that is not tied to the embedding must be in the file."""
    output_of(published, published.head is None, names, "lm_head.weight", where)
    return published


def release_table(published: PublishedConfig, names: Iterable[str]) -> tuple[PublishedConfig, Table]:
    """The tensor names of a checkpoint of the original release of GPT-2; the optimizer state is skipped."""
    config: GptConfig = published.config
    rules = [Rule("tokens.weight", ("model/wte",)), Rule("positions.table", ("model/wpe",))]
    for index in range(config.layers):
        ours, theirs = f"blocks.{index}", f"model/h{index}"
        for own, other in DENSE.items():
            path = f"{theirs}/{other.replace('.', '/')}"
            rules += [Rule(f"{ours}.{own}.weight", (f"{path}/w",), True), Rule(f"{ours}.{own}.bias", (f"{path}/b",))]
        for own, other in NORMS.items():
            rules += _norm(f"{ours}.{own}", f"{theirs}/{other}")
    rules += _norm("norm", "model/ln_f")
    return published, Table(tuple(rules), spare=tuple(name for name in names if OPTIMIZER_STATE.fullmatch(name)))


def _norm(ours: str, theirs: str) -> list[Rule]:
    return [Rule(f"{ours}.weight", (f"{theirs}/g",)), Rule(f"{ours}.bias", (f"{theirs}/b",))]


def release_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of that release, whose matrices are stored as convolutions of width 1, (1, D, E)."""
    return {
        name: tensor[0] if name.endswith("/w") and tensor.dim() == 3 and len(tensor) == 1 else tensor
        for name, tensor in tensors.items()
    }
