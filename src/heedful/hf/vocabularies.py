"""Tokenizers of BERT in the folders of others: tokenizer.json, or vocab.txt with its settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from heedful.data.tokenizers import LARGEST
from heedful.data.wordpieces import WordPieces, read_vocab
from heedful.errors import UserError, shown
from heedful.hf.files import AGAIN, has, inside, read_settings, read_text

SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def tokenizer_in(folder: Path, vocab: int) -> WordPieces | None:
    """The tokenizer of a folder whose model has so many token types, if it has one."""
    if has(folder, "tokenizer.json"):
        name = "tokenizer.json"
        found = WordPieces(read_text(folder, name, LARGEST), str(folder / name))
    elif has(folder, "vocab.txt"):
        name = "vocab.txt"
        found = _listed(folder)
    else:
        return None
    if found.vocab > vocab:
        raise UserError(
            "the model and its tokenizer do not belong together", where=str(folder / name),
            found=f"{found.vocab:,} pieces", expected=f"at most {vocab:,}, the vocab_size of the model", todo=AGAIN,
        )  # fmt: skip
    return found


def _listed(folder: Path) -> WordPieces:
    """The tokenizer of a vocab.txt and of what tokenizer_config.json says about it."""
    pieces = read_vocab(inside(folder, "vocab.txt"))
    settings: dict[str, Any] = (
        read_settings(folder, "tokenizer_config.json") if has(folder, "tokenizer_config.json") else {}
    )
    where = folder / "tokenizer_config.json"
    # Where nothing is said, a vocabulary without a capital letter is one of lower case.
    lower = all(piece == piece.lower() for piece in pieces if not (piece.startswith("[") and piece.endswith("]")))
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": _switch(settings, "tokenize_chinese_chars", True, where),
        "strip_accents": _switch(settings, "strip_accents", None, where),
        "lowercase": _switch(settings, "do_lower_case", lower, where),
    }
    if len(set(pieces)) < len(pieces):
        return WordPieces.of(pieces, lower, str(folder / "vocab.txt"))  # which says which piece is there twice
    made = {
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece", "vocab": {piece: number for number, piece in enumerate(pieces)}},
    }
    return WordPieces(json.dumps(made), str(folder / "vocab.txt"))


def _switch(settings: dict[str, Any], key: str, usual: bool | None, where: Path) -> bool | None:
    found = settings.get(key)
    if found is not None and not isinstance(found, bool):
        raise UserError(
            f"{key} is not right", where=f"{where}: {key}", found=shown(found), expected="true or false", todo=AGAIN
        )
    return usual if found is None else found


def tokenizer_files(tokenizer: WordPieces, context: int) -> dict[str, str]:
    """The files that say the same of a tokenizer, by name."""
    normalizer = json.loads(tokenizer.json)["normalizer"]
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": normalizer["lowercase"],
        "strip_accents": normalizer["strip_accents"],
        "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
        "model_max_length": context,
        **{f"{name}_token": token for name, token in SPECIAL.items()},
    }
    return {
        "vocab.txt": "".join(f"{piece}\n" for piece in tokenizer.pieces(range(tokenizer.vocab))),
        "tokenizer.json": tokenizer.json,
        "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
    }
