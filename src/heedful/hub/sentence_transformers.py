"""Settings of sentence-transformers folders: how token vectors are pooled into one; imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypeAlias

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


class SentenceConfig(Config):
    """How one vector per text is computed; also stored in Heedful's model folders."""

    pooling: Poolings | None = Field(
        None,
        description="the first token's vector, or of all the mean, the largest value of each feature, the mean with "
        "weights 1, 2, 3 ..., or the sum by the root of the length; several: concatenated; null: not specified",
    )
    normalize: bool = Field(False, description="whether vectors are normalized to length 1")
    longest: int | None = Field(None, ge=3, le=1_048_576, description="maximum tokens of a text; null: no limit")
    lowercase: bool = Field(False, description="whether texts are lowercased before tokenization")
    prompt: str = Field("", max_length=LONGEST_PROMPT, description="prompt put before each text")


def read_sentence_config(folder: Path) -> tuple[Path, SentenceConfig] | None:
    """The folder of the encoder itself, and the settings of its sentence embeddings, if the folder has any."""
    if not has_file(folder, "modules.json"):
        return None
    modules = read_json(folder, "modules.json")
    where = str(folder / "modules.json")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise UserError("this file lists no modules", where=where, found=shown(modules), todo=AGAIN)
    kinds = [str(module.get("type")).rsplit(".", 1)[-1] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UserError(
            "these modules are not supported", where=where, found=shown(kinds),
            expected="Transformer and Pooling, optionally Normalize", todo="name the folder of the encoder itself",
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
            "a prompt that is excluded from pooling is not supported", where=f"{file}: include_prompt",
            found=shown(settings["include_prompt"]), expected="true", todo="name the folder of another encoder",
        )  # fmt: skip
    return encoder, SentenceConfig(
        pooling=_pooling(settings, file), normalize=len(kinds) == 3, longest=longest, lowercase=lowercase,
        prompt=prompt,
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
    """The pooling modes, by name or by flags."""
    flags = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
    modes: Any = [FLAGS[key] for key in FLAGS if key in flags] + [key for key in flags if key not in FLAGS]
    found = settings.get("pooling_mode", modes)
    modes = [found] if isinstance(found, str) else found
    if isinstance(modes, list) and 1 <= len(modes) <= len(MODES) and all(mode in MODES for mode in map(str, modes)):
        several = tuple(MODES[mode] for mode in modes)
        return several if len(several) > 1 else several[0]
    raise UserError(
        "not supported: this pooling", where=str(where), found=shown(found), expected=f"one of {', '.join(MODES)}",
        todo="name the folder of another encoder",
    )  # fmt: skip


def sentence_files(width: int, config: SentenceConfig, longest: int) -> dict[str, str]:
    """The sentence-transformers files of a folder, by name; `longest` is the default maximum length."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if config.normalize else [])]
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
    prompts = {WHOLE: _text({"prompts": {"default": config.prompt}, "default_prompt_name": "default"})}
    return {
        "modules.json": _text(modules),
        "1_Pooling/config.json": _text({"word_embedding_dimension": width, **pooling}),
        ENCODER: _text({"max_seq_length": config.longest or longest, "do_lower_case": config.lowercase}),
        **(prompts if config.prompt else {}),
    }


def _text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
