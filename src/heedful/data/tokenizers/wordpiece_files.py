"""Tokenizers of BERT in the folders of others: tokenizer.json or vocab.txt, and what stands beside them.

What several files say is settled as `transformers` 5 settles it. Its BertTokenizer takes the pieces and the added
tokens of a tokenizer.json, and all else from tokenizer_config.json or, where that is silent, from its own defaults.
What cannot be followed is refused: a text never gets other ids than there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heedful.data.tokenizers.base import LARGEST, InFolder
from heedful.data.tokenizers.wordpieces import (
    LONGEST_WORD,
    NAMES,
    Added,
    Parts,
    WordPieces,
    added_token,
    json_in,
    numbered,
    read_parts,
    read_vocab,
    split,
)
from heedful.errors import AGAIN, UserError, shown, wrong
from heedful.files.folders import has, inside, read_settings, read_text

CONFIG, MAP, ADDED, FILE, VOCAB = (
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.json", "vocab.txt",
)  # fmt: skip
ROLES = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), NAMES, strict=True))
BERT = ("BertTokenizer", "DistilBertTokenizer")  # which read alike
BACKEND = ("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")  # which take tokenizer.json as it is
SWITCHES = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
USUAL: dict[str, bool | None] = {
    "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True,
}  # fmt: skip
UNLIMITED = 1_000_000  # a model_max_length from which on it says nothing
# What a tokenizer.json says of its layout that is BERT's own: [CLS] A [SEP] and [CLS] A [SEP] B [SEP].
TEMPLATE = (["[CLS]", "A", "[SEP]"], ["[CLS]", "A", "[SEP]", "B", "[SEP]"], [0, 0, 0, 1, 1])


def tokenizer_in(folder: Path, vocab: int) -> InFolder:
    """The tokenizer of a folder whose model has so many token types, if it has one."""
    name = next((name for name in (FILE, VOCAB) if has(folder, name)), None)
    if name is None:
        return InFolder(None)
    settings = settings_in(folder)
    parts, notes = _parts(
        folder, settings, json_in(read_text(folder, name, LARGEST), str(folder / name)) if name == FILE else None
    )
    found = WordPieces.made(parts, str(folder / name))
    if found.vocab > vocab:
        raise UserError(
            "the model and its tokenizer do not belong together", where=str(folder / name),
            found=f"{found.vocab:,} pieces", expected=f"at most {vocab:,}, the vocab_size of the model", todo=AGAIN,
        )  # fmt: skip
    return InFolder(found, longest_of(settings, folder / CONFIG), notes)


def settings_in(folder: Path) -> dict[str, Any]:
    """What tokenizer_config.json says, and special_tokens_map.json where that is still asked."""
    found = read_settings(folder, CONFIG) if has(folder, CONFIG) else {}
    if "additional_special_tokens" in found and not found.get("extra_special_tokens"):
        found["extra_special_tokens"] = found.pop("additional_special_tokens")
    if "added_tokens_decoder" not in found and has(folder, MAP):
        found |= read_settings(folder, MAP)
    return found


def longest_of(settings: dict[str, Any], where: Path) -> int | None:
    """How many tokens of a text are read, special ones included, where the tokenizer says so."""
    found = settings.get("model_max_length", settings.get("max_len"))
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not found >= 3:
        raise wrong(where, "model_max_length", found, "a whole number from 3 on")
    return int(found) if found < UNLIMITED else None


def _parts(folder: Path, settings: dict[str, Any], data: dict[str, Any] | None) -> tuple[Parts, tuple[str, ...]]:
    """What the tokenizer is made of, by a tokenizer.json or by vocab.txt, and where the former is not followed."""
    where, kind = folder / CONFIG, _class(folder, settings)
    _refuse(settings, data, where)
    said = {ours: _switch(settings, key, where) for key, ours in SWITCHES.items() if settings.get(key) is not None}
    normalizer, longest, notes = USUAL | said, LONGEST_WORD, list[str]()
    if data is None:
        own = folder / VOCAB
        vocab = numbered(read_vocab(inside(folder, VOCAB)), str(own))
        cased = any(piece != piece.lower() for piece in vocab if not (piece.startswith("[") and piece.endswith("]")))
        if "lowercase" not in said and cased:
            normalizer["lowercase"] = has(folder, "config.json")  # the first release tells it by its vocabulary alone
            notes += [_note(f"{VOCAB} has capital letters", "do_lower_case", True)] if normalizer["lowercase"] else []
    else:
        own = folder / FILE
        vocab, there, letters, _ = read_parts(data, str(own))
        if kind in BACKEND:
            _require_layout(data.get("post_processor"), own)
            normalizer, longest = there, letters
        for key, ours in (*SWITCHES.items(), ("clean_text", "clean_text")):
            if there[ours] != normalizer[ours] and ours not in said:
                notes.append(_note(f"{FILE} has {ours} {json.dumps(there[ours])}", key, normalizer[ours]))
        if letters != longest:
            notes.append(_note(f"{FILE} has max_input_chars_per_word {letters}", "so", longest))
    added = with_roles(added_in(folder, settings, data), vocab, settings, where, NAMES)
    return split(vocab, normalizer, longest, added, str(own)), tuple(notes)


def _note(says: str, key: str, value: object) -> str:
    """What is told where a file is not followed."""
    return f"{says}, but {CONFIG} does not say {key}: {json.dumps(value)} is taken, as `transformers` does"


def _class(folder: Path, settings: dict[str, Any]) -> str:
    """Which of the library's tokenizers reads a folder."""
    known = read_settings(folder, "config.json") if has(folder, "config.json") else {}
    found = settings.get("tokenizer_class") or known.get("tokenizer_class") or BERT[0]
    name = str(found).removesuffix("Fast")
    if name not in (*BERT, *BACKEND):
        raise UserError(
            "tokenizers of this kind are not read", where=f"{folder / CONFIG}: tokenizer_class", found=shown(found),
            expected=f"{BERT[0]}, which cuts texts into word pieces",
            todo="name the folder of a BERT as it was published",
        )  # fmt: skip
    return name


def _refuse(settings: dict[str, Any], data: dict[str, Any] | None, where: Path) -> None:
    """Refuse what would give texts other ids than here."""
    cut = (data or {}).get("truncation")
    if isinstance(cut, dict):
        settings = {"truncation_side": str(cut.get("direction", "right")).lower(), **settings}
    for role, usual in ROLES.items():
        if role in settings and content(settings[role], role, where) not in (usual, None):
            raise UserError(
                "special tokens of other names are not supported", where=f"{where}: {role}",
                found=shown(content(settings[role], role, where)), expected=usual,
                todo="name the folder of a BERT with the special tokens that were published",
            )  # fmt: skip
    allowed: dict[str, object] = {"truncation_side": "right", "split_special_tokens": False}
    for key, value in allowed.items():
        if settings.get(key, value) not in (value, None):
            raise UserError(
                f"{key} is not supported", where=f"{where}: {key}", found=shown(settings[key]), expected=shown(value),
                todo="name the folder of a BERT as it was published",
            )  # fmt: skip


def content(token: Any, key: str, where: Path) -> str | None:
    """How a special token reads that is given as a text or with its settings."""
    found = token.get("content") if isinstance(token, dict) else token
    if not isinstance(found, str | None):
        raise wrong(where, key, token, "the text of a token")
    return found


def added_in(folder: Path, settings: dict[str, Any], data: dict[str, Any] | None) -> dict[int, Added]:
    """The added tokens by their ids: of tokenizer_config.json, else of added_tokens.json and of tokenizer.json."""
    where = folder / CONFIG
    if "added_tokens_decoder" in settings:
        group = settings["added_tokens_decoder"]
        if not isinstance(group, dict) or not all(key.isdecimal() and key.isascii() for key in group):
            raise wrong(where, "added_tokens_decoder", group, "added tokens by their ids")
        return dict(added_token(token, str(where), int(key[:9])) for key, token in group.items())
    found: dict[int, Added] = {}
    if has(folder, ADDED):
        extra = settings.get("extra_special_tokens")
        special = [settings[role] for role in (*ROLES, "bos_token", "eos_token") if role in settings]
        special = [
            content(token, "special tokens", where) for token in (*special, *(extra if isinstance(extra, list) else ()))
        ]
        for name, number in read_settings(folder, ADDED).items():
            found |= [added_token({"content": name, "special": name in special}, str(folder / ADDED), number)]
    return found | dict(added_token(token, str(folder / FILE)) for token in (data or {}).get("added_tokens") or [])


def _extra(settings: dict[str, Any], where: Path) -> list[Added]:
    """The special tokens with roles that a BERT does not know, and those that have none."""
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
        if not content(token, key, where):
            raise wrong(where, key, token, "the text of a token")
        group = token if isinstance(token, dict) else {"content": token}
        found.append(added_token({**group, "special": True}, str(where), 0)[1])
    return found


def with_roles(
    added: dict[int, Added], vocab: dict[str, int], settings: dict[str, Any], where: Path, own: Sequence[str] = ()
) -> dict[int, Added]:
    """The added tokens with the special ones that are not among them, which go on where the others end.

    The tokenizer's own special tokens are there already.
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
    """Refuse a tokenizer.json that puts other tokens around texts than BERT's own."""
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
            "this tokenizer does not put BERT's special tokens around texts", where=f"{where}: post_processor",
            found=shown(found), expected="[CLS] A [SEP], and [CLS] A [SEP] B [SEP]",
            todo="name the folder of a BERT as it was published",
        )  # fmt: skip


def template(parts: Any) -> tuple[list[str], list[int]]:
    """What a template puts where, and the segment of each."""
    inner = [next(iter(part.values())) for part in parts or [] if isinstance(part, dict) and part]
    groups = [part for part in inner if isinstance(part, dict)]
    return [str(part.get("id")) for part in groups], [part.get("type_id", 0) for part in groups]


def _switch(settings: dict[str, Any], key: str, where: Path) -> bool:
    found = settings[key]
    if not isinstance(found, bool):
        raise wrong(where, key, found, "true or false")
    return found


def tokenizer_files(tokenizer: WordPieces, longest: int) -> dict[str, str]:
    """The files that say the same of a tokenizer, by name."""
    data = json.loads(tokenizer.json)
    normalizer = data["normalizer"]
    plain = normalizer["clean_text"] and data["model"]["max_input_chars_per_word"] == LONGEST_WORD
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
