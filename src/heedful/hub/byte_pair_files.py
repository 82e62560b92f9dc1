"""Tokenizers of byte pairs in the folders of others: tokenizer.json, or the pieces with their merges beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from heedful.data.tokenizers.base import LARGEST
from heedful.data.tokenizers.byte_pairs import END, MERGES, VOCABS, BytePairs, plain_token
from heedful.data.tokenizers.gpt1_bpe import WordEnds
from heedful.data.tokenizers.wordpiece_files import (
    BACKEND,
    CONFIG,
    added_in,
    content,
    settings_in,
    template,
    with_roles,
)
from heedful.errors import AGAIN, UserError, shown
from heedful.files.folders import has, read_text

KINDS = ("GPT2Tokenizer", "OpenAIGPTTokenizer")
PUBLISHED = "name the folder of a GPT-2 as it was published"


def byte_pairs_in(folder: Path, vocab: int, usual: str) -> tuple[BytePairs | WordEnds | None, bool]:
    """The tokenizer of a folder whose model has so many token types, if it has one.

    The first GPT has its own kind, `word_ends`, unless there is a piece that ends documents. Besides, whether the
    tokenizer puts `<|endoftext|>` before each text.
    """
    name = next((name for name in ("tokenizer.json", *VOCABS) if has(folder, name)), None)
    if name is None:
        return None, False
    text = read_text(folder, name, LARGEST)
    settings, where = settings_in(folder), folder / CONFIG
    _refuse(folder, settings)
    kind: type[BytePairs | WordEnds] = WordEnds if usual == "word_ends" and json.dumps(END) not in text else BytePairs
    data: dict[str, Any] = {}
    if name == "tokenizer.json":
        found = kind(text, str(folder / name))
        data = json.loads(text)
    else:
        merges = next((name for name in MERGES if has(folder, name)), None)
        if merges is None:
            raise UserError(
                "the tokenizer lacks its merges", where=str(folder), found=f"{name} alone",
                expected=" or ".join(MERGES) + " beside it", todo=AGAIN,
            )  # fmt: skip
        found = kind.of_texts(text, read_text(folder, merges, LARGEST), str(folder / name), str(folder / merges))
    found = found.adding(_more(found, folder, settings, data), str(where))
    if found.vocab > vocab:
        raise UserError(
            "the model and its tokenizer do not belong together", where=str(folder / name),
            found=f"{found.vocab:,} pieces", expected=f"at most {vocab:,}, the vocabulary of the model",
            todo=AGAIN,
        )  # fmt: skip
    return found, isinstance(found, BytePairs) and _starts(settings, data, where)


def _more(found: BytePairs | WordEnds, folder: Path, settings: dict[str, Any], data: dict[str, Any]) -> dict[str, int]:
    """The special tokens that only the files beside a tokenizer name, by their ids."""
    vocab = {piece: number for number, piece in enumerate(found.pieces(range(found.vocab)))}
    special = set(found.pieces(found.special))
    more = with_roles(added_in(folder, settings, data), vocab, settings, folder / CONFIG)
    fresh = {number: token for number, token in more.items() if token.content not in special}
    if odd := next((token for token in fresh.values() if not plain_token(token._asdict())), None):
        raise UserError(
            "an added token of this kind is not supported", where=str(folder / CONFIG), found=shown(odd._asdict()),
            expected="a special token without spaces, found as it is written", todo=PUBLISHED,
        )  # fmt: skip
    return {token.content: number for number, token in sorted(fresh.items())}


def _starts(settings: dict[str, Any], data: dict[str, Any], where: Path) -> bool:
    """Whether a tokenizer puts `<|endoftext|>` before each text: a tokenizer.json says so itself."""
    layout = data.get("post_processor")
    kind = layout.get("type") if isinstance(layout, dict) else layout
    if kind == "TemplateProcessing":
        around = template(data["post_processor"].get("single"))[0]
    elif data:
        around = ["A"] if kind in (None, "ByteLevel") else [str(kind), "A"]
    else:
        bos, eos = (
            [content(settings.get(f"{name}_token", END), f"{name}_token", where) or END]
            if settings.get(f"add_{name}_token") is True else []
            for name in ("bos", "eos")
        )  # fmt: skip
        around = [*bos, "A", *eos]
    if around not in (["A"], [END, "A"]):
        raise UserError(
            "this tokenizer puts other tokens around texts", where=str(where), found=shown(around),
            expected=f"nothing, or {END} before each", todo=PUBLISHED,
        )  # fmt: skip
    return around[0] == END


def _refuse(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse what would give texts other ids than here."""
    where, kind = folder / CONFIG, str(settings.get("tokenizer_class") or KINDS[0]).removesuffix("Fast")
    if kind not in (*KINDS, *BACKEND):
        raise UserError(
            "tokenizers of this kind are not read", where=f"{where}: tokenizer_class",
            found=shown(settings["tokenizer_class"]), expected=" or ".join(KINDS), todo=PUBLISHED,
        )  # fmt: skip
    if settings.get("add_prefix_space") not in (False, None):
        raise UserError(
            "a space before each text is not supported", where=f"{where}: add_prefix_space",
            found=shown(settings["add_prefix_space"]), expected="false", todo=PUBLISHED,
        )  # fmt: skip
    if settings.get("split_special_tokens") not in (False, None):
        raise UserError(
            "split_special_tokens is not supported", where=f"{where}: split_special_tokens",
            found=shown(settings["split_special_tokens"]), expected="false", todo=PUBLISHED,
        )  # fmt: skip
