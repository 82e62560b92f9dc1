"""BERT tokenizers in external folders: tokenizer.json or vocab.txt, with their settings files.

Conflicts between files are resolved as in `transformers` 5. Its BertTokenizer takes the pieces and the added
tokens of a tokenizer.json, and everything else from tokenizer_config.json or, where a key is missing, its defaults.
Unsupported settings are refused, so that a text has the same ids as in `transformers`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.data.tokenizers.base import MAX_FILE, FolderTokenizer, require_fit
from heedful.data.tokenizers.wordpiece import (
    MAX_WORD_CHARS,
    NAMES,
    AddedTokenSpec,
    BertTokenizer,
    TokenizerParts,
    added_token,
    number_pieces,
    parse_wordpiece_json,
    read_parts,
    read_vocab,
    separate_special,
)
from heedful.errors import UserError, shown, wrong
from heedful.files.folders import has_file, path_inside, read_settings, read_text

CONFIG, MAP, ADDED, FILE, VOCAB = (
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.json", "vocab.txt",
)  # fmt: skip
ROLES = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), NAMES, strict=True))
BERT = ("BertTokenizer", "DistilBertTokenizer")  # read identically
BACKEND = ("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")  # use tokenizer.json unchanged
SWITCHES = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
DEFAULTS: dict[str, bool | None] = {
    "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True,
}  # fmt: skip
ALLOWED: dict[str, object] = {"truncation_side": "right", "split_special_tokens": False}
PUBLISHED = "use the folder of a BERT as it was published"
UNLIMITED = 1_000_000  # a model_max_length of this or more means no limit
# BERT's own templates in a tokenizer.json: [CLS] A [SEP] and [CLS] A [SEP] B [SEP].
TEMPLATE = (["[CLS]", "A", "[SEP]"], ["[CLS]", "A", "[SEP]", "B", "[SEP]"], [0, 0, 0, 1, 1])


def find_tokenizer(folder: Path, vocab: int) -> FolderTokenizer:
    """The tokenizer of a folder, if it has one; its vocabulary may not exceed the model's, `vocab`."""
    name = next((name for name in (FILE, VOCAB) if has_file(folder, name)), None)
    if name is None:
        return FolderTokenizer(None)
    settings = read_tokenizer_settings(folder)
    parts, notes = _parts(
        folder,
        settings,
        parse_wordpiece_json(read_text(folder, name, MAX_FILE), str(folder / name)) if name == FILE else None,
    )
    found = BertTokenizer.from_parts(parts, str(folder / name))
    require_fit(found, vocab, folder / name)
    return FolderTokenizer(found, max_length(settings, folder / CONFIG), notes)


def read_tokenizer_settings(folder: Path) -> dict[str, Any]:
    """The settings in tokenizer_config.json, and in special_tokens_map.json where that still applies."""
    found = read_settings(folder, CONFIG) if has_file(folder, CONFIG) else {}
    if "additional_special_tokens" in found and not found.get("extra_special_tokens"):
        found["extra_special_tokens"] = found.pop("additional_special_tokens")
    if "added_tokens_decoder" not in found and has_file(folder, MAP):
        found |= read_settings(folder, MAP)
    return found


def max_length(settings: dict[str, Any], where: Path) -> int | None:
    """The maximum number of tokens, special ones included, if the tokenizer has one."""
    found = settings.get("model_max_length", settings.get("max_len"))
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not found >= 3:
        raise wrong(where, "model_max_length", found, "a whole number from 3 on")
    return int(found) if found < UNLIMITED else None


def _parts(
    folder: Path, settings: dict[str, Any], data: dict[str, Any] | None
) -> tuple[TokenizerParts, tuple[str, ...]]:
    """The parts of the tokenizer, from tokenizer.json or vocab.txt, and notes where tokenizer.json is overridden."""
    where, known = folder / CONFIG, read_settings(folder, "config.json") if has_file(folder, "config.json") else {}
    kind = require_class(settings.get("tokenizer_class") or known.get("tokenizer_class"), BERT, where)
    truncation = (data or {}).get("truncation")
    side = truncation.get("direction", "right") if isinstance(truncation, dict) else "right"
    require_settings({"truncation_side": str(side).lower(), **settings}, where, ROLES, ALLOWED)
    explicit = {ours: _switch(settings, key, where) for key, ours in SWITCHES.items() if settings.get(key) is not None}
    normalizer, longest, notes = DEFAULTS | explicit, MAX_WORD_CHARS, list[str]()
    if data is None:
        own = folder / VOCAB
        vocab = number_pieces(read_vocab(path_inside(folder, VOCAB)), str(own))
        cased = any(piece != piece.lower() for piece in vocab if not (piece.startswith("[") and piece.endswith("]")))
        if "lowercase" not in explicit and cased:
            normalizer["lowercase"] = has_file(
                folder, "config.json"
            )  # in the first release, the vocabulary alone decides
            notes += [_note(f"{VOCAB} has capital letters", "do_lower_case", True)] if normalizer["lowercase"] else []
    else:
        own = folder / FILE
        vocab, there, letters, _ = read_parts(data, str(own))
        if kind in BACKEND:
            _require_layout(data.get("post_processor"), own)
            normalizer, longest = there, letters
        for key, ours in (*SWITCHES.items(), ("clean_text", "clean_text")):
            if there[ours] != normalizer[ours] and ours not in explicit:
                notes.append(_note(f"{FILE} has {ours} {json.dumps(there[ours])}", key, normalizer[ours]))
        if letters != longest:
            notes.append(_note(f"{FILE} has max_input_chars_per_word {letters}", "it", longest))
    added = add_role_tokens(read_added_tokens(folder, settings, data), vocab, settings, where, NAMES)
    return separate_special(vocab, normalizer, longest, added, str(own)), tuple(notes)


def _note(found: str, key: str, value: object) -> str:
    """The note for a setting that is overridden."""
    return f"{found}, but {CONFIG} does not set {key}: {json.dumps(value)} is used, as in `transformers`"


def require_class(found: object, known: Sequence[str], where: Path, todo: str = PUBLISHED) -> str:
    """The `transformers` class that reads a folder, if it is a known one."""
    name = str(found or known[0]).removesuffix("Fast")
    if name not in (*known, *BACKEND):
        raise UserError(
            "not supported: tokenizers of this kind", where=f"{where}: tokenizer_class", found=shown(found),
            expected=" or ".join(known), todo=todo,
        )  # fmt: skip
    return name


def require_settings(
    settings: dict[str, Any],
    where: Path,
    roles: Mapping[str, str],
    allowed: Mapping[str, object],
    todo: str = PUBLISHED,
) -> None:
    """Refuse special tokens and settings that would change the ids of texts."""
    for role, usual in roles.items():
        if role in settings and (found := token_text(settings[role], role, where)) not in (usual, None):
            raise UserError(
                "not supported: special tokens with other names", where=f"{where}: {role}", found=shown(found),
                expected=usual, todo=todo,
            )  # fmt: skip
    for key, value in allowed.items():
        if settings.get(key, value) not in (value, None):
            raise UserError(
                f"not supported: another {key}, which gives texts other ids", where=f"{where}: {key}",
                found=shown(settings[key]), expected=shown(value), todo=todo,
            )  # fmt: skip


def token_text(token: Any, key: str, where: Path) -> str | None:
    """The text of a special token given as a string or as an object."""
    found = token.get("content") if isinstance(token, dict) else token
    if not isinstance(found, str | None):
        raise wrong(where, key, token, "the text of a token")
    return found


def read_added_tokens(folder: Path, settings: dict[str, Any], data: dict[str, Any] | None) -> dict[int, AddedTokenSpec]:
    """The added tokens by id: from tokenizer_config.json, else from added_tokens.json and tokenizer.json."""
    where = folder / CONFIG
    if "added_tokens_decoder" in settings:
        group = settings["added_tokens_decoder"]
        if not isinstance(group, dict) or not all(key.isdecimal() and key.isascii() for key in group):
            raise wrong(where, "added_tokens_decoder", group, "added tokens by their ids")
        return dict(added_token(token, str(where), int(key[:9])) for key, token in group.items())
    found: dict[int, AddedTokenSpec] = {}
    if has_file(folder, ADDED):
        extra = settings.get("extra_special_tokens")
        special = [settings[role] for role in (*ROLES, "bos_token", "eos_token") if role in settings]
        special = [
            token_text(token, "special tokens", where)
            for token in (*special, *(extra if isinstance(extra, list) else ()))
        ]
        for name, number in read_settings(folder, ADDED).items():
            found |= [added_token({"content": name, "special": name in special}, str(folder / ADDED), number)]
    return found | dict(added_token(token, str(folder / FILE)) for token in (data or {}).get("added_tokens") or [])


def _extra(settings: dict[str, Any], where: Path) -> list[AddedTokenSpec]:
    """Special tokens with roles that BERT does not have, and those without a role."""
    named = {key: value for key, value in settings.items() if key.endswith("_token") and isinstance(value, str | dict)}
    more = settings.get("extra_special_tokens")
    if isinstance(more, dict):
        named, more = named | more, None
    more = settings.get("additional_special_tokens") if more is None else more
    if not isinstance(more, list | None):
        raise wrong(where, "extra_special_tokens", more, "a list of tokens")
    first = sorted(named.items(), key=lambda one: one[0] not in ("bos_token", "eos_token"))
    found = []
    for key, token in (*first, *(("extra_special_tokens", token) for token in more or [])):
        if not token_text(token, key, where):
            raise wrong(where, key, token, "the text of a token")
        group = token if isinstance(token, dict) else {"content": token}
        found.append(added_token({**group, "special": True}, str(where), 0)[1])
    return found


def add_role_tokens(
    added: dict[int, AddedTokenSpec],
    vocab: dict[str, int],
    settings: dict[str, Any],
    where: Path,
    own: Sequence[str] = (),
) -> dict[int, AddedTokenSpec]:
    """Append special tokens that are not among the added tokens, with the next free ids.

    The tokenizer's own special tokens are already in the vocabulary.
    """
    known = {token.content for token in added.values()} | set(own)
    end = max([len(vocab), *(number + 1 for number in added)])
    for token in _extra(settings, where):
        if token.content not in known:
            number = vocab.get(token.content, end)
            added, end = added | {number: token}, max(end, number + 1)
            known.add(token.content)
    return added


def _require_layout(processor: Any, where: Path) -> None:
    """Refuse a tokenizer.json that adds other special tokens than BERT's."""
    if isinstance(processor, dict) and processor.get("type") == "BertProcessing":
        found: Any = (processor.get("cls"), processor.get("sep"))
        right = [str(one[0]) for one in found if isinstance(one, list) and one] == ["[CLS]", "[SEP]"]
    elif isinstance(processor, dict) and processor.get("type") == "TemplateProcessing":
        found = [template(processor.get(key)) for key in ("single", "pair")]
        right = (found[0][0], *found[1]) == TEMPLATE
    else:
        found, right = processor, False
    if not right:
        raise UserError(
            "this tokenizer does not add BERT's special tokens", where=f"{where}: post_processor",
            found=shown(found), expected="[CLS] A [SEP], and [CLS] A [SEP] B [SEP]",
            todo=PUBLISHED,
        )  # fmt: skip


def template(parts: Any) -> tuple[list[str], list[int]]:
    """The token names of a template, and their segments."""
    inner = [next(iter(part.values())) for part in parts or [] if isinstance(part, dict) and part]
    groups = [part for part in inner if isinstance(part, dict)]
    return [str(part.get("id")) for part in groups], [part.get("type_id", 0) for part in groups]


def _switch(settings: dict[str, Any], key: str, where: Path) -> bool:
    found = settings[key]
    if not isinstance(found, bool):
        raise wrong(where, key, found, "true or false")
    return found


def tokenizer_files(tokenizer: BertTokenizer, longest: int) -> dict[str, str]:
    """The equivalent Hugging Face tokenizer files, by name."""
    data = json.loads(tokenizer.json)
    normalizer = data["normalizer"]
    plain = normalizer["clean_text"] and data["model"]["max_input_chars_per_word"] == MAX_WORD_CHARS
    settings = {
        "tokenizer_class": BERT[0] if plain else f"{BACKEND[0]}Fast",
        **{theirs: normalizer[ours] for theirs, ours in SWITCHES.items()},
        "model_max_length": longest,
        **ROLES,
    }
    return {
        "vocab.txt": "".join(f"{piece}\n" for piece in sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)),
        "tokenizer.json": tokenizer.json,
        "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
    }
