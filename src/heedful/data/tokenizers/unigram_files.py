"""Unigram tokenizers in external folders: tokenizer.json or a SentencePiece model, with their settings files.

Conflicts between files are resolved as in `transformers` 5: its classes take the pieces, the normalization table and
the added tokens of a tokenizer.json, and everything else from tokenizer_config.json or, where a key is missing,
their defaults. A SentencePiece model is read as SentencePiece reads it. There `transformers` 5 differs: it also splits
texts before and after user-defined pieces, such as ALBERT's `(`, and a note says so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from heedful.data.tokenizers.base import MAX_FILE, FolderTokenizer, require_fit
from heedful.data.tokenizers.sentencepiece import USER_DEFINED, parse_model
from heedful.data.tokenizers.unigram import UnigramTokenizer
from heedful.data.tokenizers.unigram_parts import parse_unigram_json, read_parts, require_same_rules
from heedful.data.tokenizers.wordpiece_files import (
    BACKEND,
    CONFIG,
    FILE,
    add_role_tokens,
    max_length,
    read_added_tokens,
    read_tokenizer_settings,
    require_class,
    require_settings,
    template,
)
from heedful.errors import UserError, shown, wrong
from heedful.files.folders import has_file, read_bytes, read_settings, read_text

PUBLISHED = "use the folder of a model as it was published"
ALLOWED = {
    "do_lower_case": False, "keep_accents": False, "remove_space": True,
    "add_prefix_space": True, "truncation_side": "right", "split_special_tokens": False,
}  # fmt: skip


def find_tokenizer(kind: type[UnigramTokenizer], folder: Path, vocab: int) -> FolderTokenizer:
    """The tokenizer of a folder, if it has one; its vocabulary may not exceed the model's, `vocab`."""
    name = next((name for name in (FILE, kind.model_file) if has_file(folder, name)), None)
    if name is None:
        return FolderTokenizer(None)
    settings, where = read_tokenizer_settings(folder), folder / CONFIG
    known = read_settings(folder, "config.json") if has_file(folder, "config.json") else {}
    given = settings.get("tokenizer_class") or known.get("tokenizer_class")
    reader = require_class(given, [kind.class_name], where, PUBLISHED)
    lower, accents = (
        _switch(settings, key, kind.switches.get(key, False), where) for key in ("do_lower_case", "keep_accents")
    )
    fixed = {key: value for key, value in ALLOWED.items() if key not in kind.switches}
    require_settings(settings, where, kind.roles, fixed, PUBLISHED)
    notes: tuple[str, ...] = ()
    if name == FILE:
        found = _from_json(kind, folder, settings, reader in BACKEND, lower, accents)
    else:
        data = read_bytes(folder, name, MAX_FILE)
        found = kind.from_model(data, str(folder / name), lower, accents)
        more = add_role_tokens(dict(found.parts.added), _vocab(found), settings, where, kind.names)
        found = kind.from_parts(found.parts._replace(added=more), str(folder / name))
        notes = _user_defined(data, name)
    require_fit(found, vocab, folder / name)
    return FolderTokenizer(found, max_length(settings, where), notes)


def _from_json(
    kind: type[UnigramTokenizer], folder: Path, settings: dict[str, Any], unchanged: bool, lower: bool, accents: bool
) -> UnigramTokenizer:
    """The tokenizer of a tokenizer.json, which is used `unchanged`, or with the settings of tokenizer_config.json."""
    where = str(folder / FILE)
    data = parse_unigram_json(read_text(folder, FILE, MAX_FILE), where)
    own = kind.names
    parts = read_parts(data, own, where)
    listed = read_added_tokens(folder, settings, data)
    listed = {number: token for number, token in listed.items() if token.content not in own}
    vocab = {piece: number for number, (piece, _) in enumerate(parts.pieces)}
    parts = parts._replace(added=add_role_tokens(listed, vocab, settings, folder / CONFIG, own))
    if not unchanged:
        return kind.from_parts(parts._replace(lowercase=lower, keep_accents=accents), where)
    found = kind.from_parts(parts, where)
    built = json.loads(found.json)
    require_same_rules(data, built, where)
    layouts = [_layout(one) for one in (data, built)]
    if layouts[0] != layouts[1]:
        raise UserError(
            "this tokenizer does not add the special tokens of its model", where=f"{where}: post_processor",
            found=shown(layouts[0]), expected=" and ".join(kind.template), todo=PUBLISHED,
        )  # fmt: skip
    return found


def _layout(data: dict[str, Any]) -> Any:
    processor = data.get("post_processor")
    if not isinstance(processor, dict):
        return processor
    return [template(processor.get(key)) for key in ("single", "pair")]


def _vocab(tokenizer: UnigramTokenizer) -> dict[str, int]:
    return {piece: number for number, (piece, _) in enumerate(tokenizer.parts.pieces)}


def _switch(settings: dict[str, Any], key: str, usual: bool, where: Path) -> bool:
    found = settings.get(key)
    if not isinstance(found, bool | None):
        raise wrong(where, key, found, "true or false")
    return usual if found is None else found


def _user_defined(data: bytes, name: str) -> tuple[str, ...]:
    """The note on user-defined pieces, which `transformers` reads in another way."""
    found = [piece.text for piece in parse_model(data, name).pieces if piece.kind == USER_DEFINED]
    if not found:
        return ()
    some = " ".join(found[:8])
    return (
        f"{name} has user-defined pieces ({some}): texts are tokenized as by SentencePiece, "
        "while `transformers` 5 begins a new word after each",
    )


def tokenizer_files(tokenizer: UnigramTokenizer, longest: int) -> dict[str, str | bytes]:
    """The equivalent Hugging Face tokenizer files, by name."""
    parts = tokenizer.parts
    settings: dict[str, Any] = {"tokenizer_class": tokenizer.class_name, "model_max_length": longest}
    switches = {"do_lower_case": parts.lowercase, "keep_accents": parts.keep_accents}
    settings |= {key: switches[key] for key in tokenizer.switches}
    settings |= {"padding_side": "left" if tokenizer.pads_left else "right", **tokenizer.roles}
    files: dict[str, str | bytes] = {
        "tokenizer.json": tokenizer.json, "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
    }  # fmt: skip
    if all(number < len(parts.pieces) for number in parts.added):
        files[tokenizer.model_file] = tokenizer.model
    return files
