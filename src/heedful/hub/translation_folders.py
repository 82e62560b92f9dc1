"""What a published translator's folder has beside its weights: generation settings; imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heedful.config import parse
from heedful.decode.settings import DecodeConfig
from heedful.errors import shown
from heedful.files.folders import has_file, read_settings

GENERATION = "generation_config.json"
USED = {
    "num_beams": "beams",
    "length_penalty": "length_penalty",
    "max_length": "max_length",
    "renormalize_logits": "renormalize",
}
USUAL = {"num_beams": 1, "length_penalty": 1.0}  # of transformers
# Settings that would change the search, with the values under which they do not.
NOT_FOLLOWED: dict[str, tuple[Any, ...]] = {
    "do_sample": (False, None),
    "early_stopping": (False, None),
    "no_repeat_ngram_size": (0, None),
    "repetition_penalty": (1.0, None),
    "min_length": (0, None),
    "num_beam_groups": (1, None),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "diversity_penalty": (0.0, None),
    "encoder_no_repeat_ngram_size": (0, None),
    "encoder_repetition_penalty": (1.0, None),
    "exponential_decay_length_penalty": (None,),
    "force_words_ids": (None, []),
    "forced_bos_token_id": (None,),
    "max_new_tokens": (None,),
    "min_new_tokens": (0, None),
    "sequence_bias": (None, [], {}),
}


def read_generation(folder: Path, context: int) -> tuple[DecodeConfig, tuple[str, ...]]:
    """The settings of the beam search, from generation_config.json, else from config.json, and notes for the user."""
    name = GENERATION if has_file(folder, GENERATION) else "config.json"
    settings = {**USUAL, **read_settings(folder, name)}
    found = {ours: settings[key] for key, ours in USED.items() if settings.get(key) is not None}
    if type(found.get("max_length")) is int:
        found["max_length"] = max(1, min(found["max_length"], context) - 1)  # theirs counts the start token
    usual = {**NOT_FOLLOWED, "bad_words_ids": (None, [], [[settings.get("pad_token_id")]])}
    notes = tuple(
        f"{name}: {key} {shown(settings[key])} is not followed"
        for key, values in usual.items()
        if settings.get(key) not in values
    )
    return parse(DecodeConfig, found, file=folder / name), notes


def generation_json(settings: Mapping[str, Any], decode: DecodeConfig, context: int) -> str:
    """The generation_config.json of a model with this config.json."""
    pad = settings["pad_token_id"]
    roles = ("decoder_start_token_id", "eos_token_id", "forced_eos_token_id", "pad_token_id")
    values = {
        "bad_words_ids": [[pad]],
        **{key: settings[key] for key in roles},
        "max_length": context if decode.max_length is None else decode.max_length + 1,
        "num_beams": decode.beams,
        "length_penalty": decode.length_penalty,
        "renormalize_logits": decode.renormalize,
    }
    return json.dumps(values, indent=2) + "\n"
