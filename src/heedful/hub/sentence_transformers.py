"""Settings of sentence-transformers folders: how token vectors become one of a text; imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from pydantic import Field

from heedful.config import Config
from heedful.errors import AGAIN, UserError, shown, wrong
from heedful.files.folders import has_file, path_inside, read_json, read_settings

ENCODER, WHOLE = "sentence_bert_config.json", "config_sentence_transformers.json"
LONGEST_PROMPT = 100_000  # characters
Pooling = Literal["mean", "first", "max", "weighted_mean", "mean_sqrt_length"]
Poolings: TypeAlias = Pooling | tuple[Pooling, ...]  # several: their vectors one after the other
MODES: dict[str, Pooling] = {
    "mean": "mean",
    "cls": "first",
    "max": "max",
    "weightedmean": "weighted_mean",
    "mean_sqrt_len_tokens": "mean_sqrt_length",
}
FLAGS = {  # of older files: the mode of each, in the order in which several are concatenated
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
DenseActivation = Literal["identity", "tanh", "relu", "gelu", "swish", "mish", "sigmoid"]
TORCH: dict[str, DenseActivation] = {  # the modules of torch
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "swish",
    "Mish": "mish",
    "Sigmoid": "sigmoid",
}
MOST_DENSE = 16  # layers
VECTOR = "sentence_embedding"  # what a module reads and writes: the vector of a text


class DenseConfig(Config):
    """A Dense layer on the pooled vector of a text."""

    width: int = Field(ge=1, le=65_536, description="the size of the new vector")
    bias: bool = Field(True, description="whether the linear map has a bias")
    activation: DenseActivation = Field("tanh", description="the function of its result")
    residual: bool = Field(
        False, description="whether the vector is added to the new one, by a linear map where their sizes differ"
    )


class SentenceConfig(Config):
    """How one vector per text is computed; also stored in Heedful's model folders."""

    pooling: Poolings | None = Field(
        None,
        description="the first token's vector, or of all the mean, the largest value of each feature, the mean with "
        "weights 1, 2, 3 ..., or the sum by the root of the length; several: concatenated; null: not specified",
    )
    dense: tuple[DenseConfig, ...] = Field(
        (), max_length=MOST_DENSE, exclude_if=lambda dense: not dense, description="Dense layers on the pooled vector"
    )
    normalize: bool = Field(False, description="whether vectors are normalized to length 1")
    longest: int | None = Field(None, ge=3, le=1_048_576, description="maximum tokens of a text; null: no limit")
    lowercase: bool = Field(False, description="whether texts are lowercased before tokenization")
    prompt: str = Field("", max_length=LONGEST_PROMPT, description="prompt put before each text")


class DenseFolder(NamedTuple):
    """The folder of a Dense layer, and the size of the vectors that it reads."""

    path: Path
    inputs: int


class SentenceFolder(NamedTuple):
    """The folder of the encoder itself, the settings of its sentence embeddings, and the folders of Dense layers."""

    encoder: Path
    settings: SentenceConfig
    dense: tuple[DenseFolder, ...]


def pooled_width(width: int, pooling: Poolings | None) -> int:
    """The size of a pooled vector of tokens of this width."""
    return width * (len(pooling) if isinstance(pooling, tuple) else 1)


def read_sentence_config(folder: Path) -> SentenceFolder | None:
    """The parts of a sentence-transformers folder; None for any other folder."""
    if not has_file(folder, "modules.json"):
        return None
    modules = read_json(folder, "modules.json")
    where = str(folder / "modules.json")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise UserError("this file lists no modules", where=where, found=shown(modules), todo=AGAIN)
    kinds = [str(module.get("type")).rsplit(".", 1)[-1] for module in modules]
    normalize, count = kinds[-1:] == ["Normalize"], kinds.count("Dense")
    supported = ["Transformer", "Pooling", *["Dense"] * min(count, MOST_DENSE), *["Normalize"] * normalize]
    if kinds != supported:
        raise UserError(
            "not supported: these modules", where=where, found=shown(kinds),
            expected="Transformer and Pooling, optionally Dense, optionally Normalize",
            todo="name the folder of the encoder itself",
        )  # fmt: skip
    paths = [str(module.get("path")) for module in modules]
    encoder = path_inside(folder, paths[0]) if paths[0] else folder
    settings = read_settings(path_inside(folder, paths[1]), "config.json")
    known = read_settings(encoder, ENCODER) if has_file(encoder, ENCODER) else {}
    longest, lowercase = known.get("max_seq_length"), known.get("do_lower_case") or False
    if longest is not None and (type(longest) is not int or not 3 <= longest <= 1_048_576):
        raise wrong(encoder / ENCODER, "max_seq_length", longest, "a whole number from 3")
    if not isinstance(lowercase, bool):
        raise wrong(encoder / ENCODER, "do_lower_case", lowercase, "true or false")
    prompt, file = _prompt(folder), folder / paths[1] / "config.json"
    if prompt and settings.get("include_prompt", True) is not True:
        raise UserError(
            "not supported: a prompt that is excluded from pooling", where=f"{file}: include_prompt",
            found=shown(settings["include_prompt"]), expected="true", todo="name the folder of another encoder",
        )  # fmt: skip
    folders = [path_inside(folder, path) for path in paths[2:]]
    if normalize and has_file(folders[-1], "config.json"):
        _require_vector(read_settings(folders[-1], "config.json"), folders[-1] / "config.json")
    dense = [_dense(path) for path in folders[:count]]
    config = SentenceConfig(
        pooling=_pooling(settings, file), dense=tuple(layer for layer, _ in dense), normalize=normalize,
        longest=longest, lowercase=lowercase, prompt=prompt,
    )  # fmt: skip
    return SentenceFolder(encoder, config, tuple(folder for _, folder in dense))


def _dense(folder: Path) -> tuple[DenseConfig, DenseFolder]:
    """The settings of a Dense layer, where what is left out has the defaults of sentence-transformers."""
    settings, where = read_settings(folder, "config.json"), folder / "config.json"
    _require_vector(settings, where)
    for key in ("in_features", "out_features"):
        if type(settings.get(key)) is not int or not 1 <= settings[key] <= 65_536:
            raise wrong(where, key, settings.get(key), "a whole number from 1 to 65,536")
    bias, residual = settings.get("bias", True), settings.get("use_residual", False)
    for key, value in {"bias": bias, "use_residual": residual}.items():
        if not isinstance(value, bool):
            raise wrong(where, key, value, "true or false")
    name = settings.get("activation_function", "torch.nn.Tanh")
    activation = TORCH.get(name.rsplit(".", 1)[-1]) if isinstance(name, str) and name.startswith("torch.nn.") else None
    if activation is None:
        raise UserError(
            "not supported: this activation of a Dense layer", where=f"{where}: activation_function",
            found=shown(name), expected=f"of torch.nn, one of {', '.join(TORCH)}",
            todo="name the folder of another encoder",
        )  # fmt: skip
    config = DenseConfig(width=settings["out_features"], bias=bias, activation=activation, residual=residual)
    return config, DenseFolder(folder, settings["in_features"])


def _require_vector(settings: dict[str, Any], where: Path) -> None:
    """Refuse a module that does not read the vector of a text and replace it."""
    for key in ("module_input_name", "module_output_name"):
        if settings.get(key, VECTOR) not in (VECTOR, None):
            raise UserError(
                "not supported: a module for anything but the vector of a text", where=f"{where}: {key}",
                found=shown(settings[key]), expected=VECTOR, todo="name the folder of another encoder",
            )  # fmt: skip


def _prompt(folder: Path) -> str:
    """The default prompt, which is put before each text."""
    settings = read_settings(folder, WHOLE) if has_file(folder, WHOLE) else {}
    name, prompts = settings.get("default_prompt_name"), settings.get("prompts") or {}
    if name is None:
        return ""
    found = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    if not isinstance(found, str) or len(found) > LONGEST_PROMPT:
        raise wrong(folder / WHOLE, "default_prompt_name", name, "the name of one of the prompts")
    return found


def _pooling(settings: dict[str, Any], where: Path) -> Poolings:
    """The pooling modes, by name or by flags; without any, the mean."""
    flags = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
    modes: Any = [FLAGS[key] for key in FLAGS if key in flags] + [key for key in flags if key not in FLAGS]
    found = settings.get("pooling_mode", modes or ["mean"])
    modes = [found] if isinstance(found, str) else found
    if isinstance(modes, list) and 1 <= len(modes) <= len(MODES) and all(mode in MODES for mode in map(str, modes)):
        several = tuple(MODES[mode] for mode in modes)
        return several if len(several) > 1 else several[0]
    raise UserError(
        "not supported: this pooling", where=str(where), found=shown(found), expected=f"one of {', '.join(MODES)}",
        todo="name the folder of another encoder",
    )  # fmt: skip


def sentence_files(width: int, config: SentenceConfig, longest: int) -> dict[str, str]:
    """The sentence-transformers files of a folder, by name, but for weights; `longest` is the default maximum."""
    kinds = ["Transformer", "Pooling", *["Dense"] * len(config.dense), *["Normalize"] * config.normalize]
    modules = [
        {"idx": index, "name": str(index), "path": f"{index}_{kind}" if index else "",
         "type": f"sentence_transformers.models.{kind}"}
        for index, kind in enumerate(kinds)
    ]  # fmt: skip
    names = {ours: theirs for theirs, ours in MODES.items()}
    pooling: dict[str, Any] = (
        {"pooling_mode": [names[one] for one in config.pooling]}
        if isinstance(config.pooling, tuple)
        else {flag: MODES[mode] == config.pooling for flag, mode in FLAGS.items()}
    )
    inputs = [pooled_width(width, config.pooling), *(layer.width for layer in config.dense)]
    prompts = {WHOLE: _text({"prompts": {"default": config.prompt}, "default_prompt_name": "default"})}
    return {
        "modules.json": _text(modules),
        "1_Pooling/config.json": _text({"word_embedding_dimension": width, **pooling}),
        **{
            f"{dense_folder(index)}/config.json": _text(_dense_json(layer, inputs[index]))
            for index, layer in enumerate(config.dense)
        },
        ENCODER: _text({"max_seq_length": config.longest or longest, "do_lower_case": config.lowercase}),
        **(prompts if config.prompt else {}),
    }


def dense_folder(index: int) -> str:
    """The folder of a Dense layer in a folder that is written."""
    return f"{index + 2}_Dense"


def _dense_json(layer: DenseConfig, inputs: int) -> dict[str, Any]:
    """The settings of a Dense layer, as sentence-transformers writes them."""
    name = next(theirs for theirs, ours in TORCH.items() if ours == layer.activation)
    module = "linear" if layer.activation == "identity" else "activation"
    return {
        "in_features": inputs, "out_features": layer.width, "bias": layer.bias,
        "activation_function": f"torch.nn.modules.{module}.{name}",
        **({"use_residual": True} if layer.residual else {}),
    }  # fmt: skip


def _text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
