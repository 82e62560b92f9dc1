"""BPE tokenizers in external folders: tokenizer.json, or vocab.json with merges.txt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from heedful.data.tokenizers.base import MAX_FILE, require_fit
from heedful.data.tokenizers.byte_pairs import END, MERGES, VOCABS, Gpt2Tokenizer
from heedful.data.tokenizers.gpt1_bpe import Gpt1Tokenizer
from heedful.data.tokenizers.wordpiece import AddedTokenSpec
from heedful.data.tokenizers.wordpiece_files import (
    CONFIG,
    add_role_tokens,
    read_added_tokens,
    read_tokenizer_settings,
    require_class,
    require_settings,
    template,
    token_text,
)
from heedful.errors import AGAIN, UserError, shown
from heedful.files.folders import has_file, read_text

KINDS = ("GPT2Tokenizer", "OpenAIGPTTokenizer")
PUBLISHED = "use the folder of a GPT-2 as it was published"


def find_tokenizer(folder: Path, vocab: int, published: str) -> tuple[Gpt2Tokenizer | Gpt1Tokenizer | None, bool]:
    """The tokenizer of a folder, if it has one; its vocabulary may not exceed the model's, `vocab`.

    GPT-1's tokenizer (`published` is `word_ends`) has no end-of-document token. Also returns whether the
    tokenizer puts `<|endoftext|>` before each text.
    """
    name = next((name for name in ("tokenizer.json", *VOCABS) if has_file(folder, name)), None)
    if name is None:
        return None, False
    text = read_text(folder, name, MAX_FILE)
    settings, where = read_tokenizer_settings(folder), folder / CONFIG
    require_class(settings.get("tokenizer_class"), KINDS, where, PUBLISHED)
    require_settings(settings, where, {}, {"add_prefix_space": False, "split_special_tokens": False}, PUBLISHED)
    kind: type[Gpt2Tokenizer | Gpt1Tokenizer] = (
        Gpt1Tokenizer if published == "word_ends" and json.dumps(END) not in text else Gpt2Tokenizer
    )
    data: dict[str, Any] = {}
    if name == "tokenizer.json":
        found = kind(text, str(folder / name))
        data = json.loads(text)
    else:
        merges = next((name for name in MERGES if has_file(folder, name)), None)
        if merges is None:
            raise UserError(
                "the tokenizer has no merges", where=str(folder), found=f"{name} alone",
                expected=" or ".join(MERGES) + " beside it", todo=AGAIN,
            )  # fmt: skip
        found = kind.from_texts(text, read_text(folder, merges, MAX_FILE), str(folder / name), str(folder / merges))
    found = found.with_added(_added_tokens(found, folder, settings, data), str(where))
    require_fit(found, vocab, folder / name)
    return found, isinstance(found, Gpt2Tokenizer) and _adds_start_token(settings, data, where)


def _added_tokens(
    found: Gpt2Tokenizer | Gpt1Tokenizer, folder: Path, settings: dict[str, Any], data: dict[str, Any]
) -> dict[int, AddedTokenSpec]:
    """The added tokens, by id, also those that only the settings files list."""
    vocab = {piece: number for number, piece in enumerate(found.names)}
    more = add_role_tokens(read_added_tokens(folder, settings, data), vocab, settings, folder / CONFIG)
    return {number: token for number, token in sorted(more.items()) if token.content != found.mark}


def _adds_start_token(settings: dict[str, Any], data: dict[str, Any], where: Path) -> bool:
    """Whether the tokenizer puts `<|endoftext|>` before each text, by its tokenizer.json, else by its settings."""
    layout = data.get("post_processor")
    kind = layout.get("type") if isinstance(layout, dict) else layout
    if kind == "TemplateProcessing":
        around = template(data["post_processor"].get("single"))[0]
    elif data:
        around = ["A"] if kind in (None, "ByteLevel") else [str(kind), "A"]
    else:
        bos, eos = (
            [token_text(settings.get(f"{name}_token", END), f"{name}_token", where) or END]
            if settings.get(f"add_{name}_token") is True else []
            for name in ("bos", "eos")
        )  # fmt: skip
        around = [*bos, "A", *eos]
    if around not in (["A"], [END, "A"]):
        raise UserError(
            "not supported: the special tokens that this tokenizer adds", where=str(where), found=shown(around),
            expected=f"nothing, or {END} before each", todo=PUBLISHED,
        )  # fmt: skip
    return around[0] == END
