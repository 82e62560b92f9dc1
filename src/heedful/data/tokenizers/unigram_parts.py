"""What a unigram tokenizer is built from, and its tokenizer.json: parsed, and refused where it has other rules."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from heedful.data.tokenizers.base import parse_json, replace_surrogates, unsupported_tokenizer
from heedful.data.tokenizers.tokenizer import MAX_VOCAB
from heedful.data.tokenizers.wordpiece import AddedTokenSpec, added_token
from heedful.errors import UserError, shown

SPACE = "▁"  # starts a word


class UnigramParts(NamedTuple):
    """What a tokenizer is built from."""

    pieces: Sequence[tuple[str, float]]  # with their scores, in id order
    charsmap: bytes | None = None  # SentencePiece's normalization table
    lowercase: bool = False
    keep_accents: bool = False
    added: Mapping[int, AddedTokenSpec] = {}  # by id, without the tokenizer's own special tokens


def number_pieces(pieces: Sequence[tuple[str, float]], where: str) -> dict[str, int]:
    """The id of each piece; duplicates, and pieces that are not valid text, are refused."""
    vocab = {piece: number for number, (piece, _) in enumerate(pieces)}
    if len(vocab) < len(pieces):
        twice = next(piece for number, (piece, _) in enumerate(pieces) if vocab[piece] != number)
        raise invalid(where, f"the piece {shown(twice)} for the second time")
    if lone := next((piece for piece in vocab if replace_surrogates(piece)[1]), None):
        raise invalid(where, f"the piece {shown(lone)}, which is not valid text")
    return vocab


def order_added(parts: UnigramParts, vocab: dict[str, int], where: str) -> list[AddedTokenSpec]:
    """The added tokens in id order; each id must be that of the same piece, or follow the vocabulary without a gap."""
    end, found = len(vocab), dict[str, AddedTokenSpec]()
    for number, token in sorted(parts.added.items()):
        here = vocab.get(token.content, end)
        if number != here or not token.content or token.content in found or replace_surrogates(token.content)[1]:
            raise invalid(where, f"the added token {shown(token.content)} with the id {number:,}, not {here:,}")
        end += here == end
        found[token.content] = token
    return list(found.values())


def parse_unigram_json(text: str, where: str) -> dict[str, Any]:
    """Parse a tokenizer.json, which must have a unigram model."""
    data = parse_json(text, where, invalid)
    model = data.get("model") if isinstance(data, dict) else None
    if not isinstance(model, dict):
        raise invalid(where, "no object with a `model`")
    if model.get("type", "Unigram" if "unk_id" in model else None) != "Unigram":
        raise unsupported_tokenizer(invalid(where, f"model of type {shown(model.get('type'))}"))
    if model.get("byte_fallback"):
        raise unsupported_tokenizer(invalid(where, "a model with byte_fallback, which none of these models has"))
    vocab = model.get("vocab")
    if not isinstance(vocab, list) or not 0 < len(vocab) <= MAX_VOCAB:
        raise invalid(where, "a model without its vocab")
    for one in vocab:
        if not (
            isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) and one[0]
            and isinstance(one[1], int | float) and abs(one[1]) < 1e9
        ):  # fmt: skip
            raise invalid(where, f"the piece {shown(one)}")
    if not isinstance(data.get("added_tokens") or [], list):
        raise invalid(where, f"added_tokens of {shown(data['added_tokens'])}")
    found: dict[str, Any] = data
    return found


def read_parts(data: dict[str, Any], own: Iterable[str], where: str) -> UnigramParts:
    """The parts of a tokenizer file."""
    steps = normalizer_steps(data.get("normalizer"))
    kinds = [step.get("type") for step in steps]
    maps = [step.get("precompiled_charsmap") for step in steps if step.get("type") == "Precompiled"]
    try:
        charsmap = base64.b64decode(maps[0], validate=True) if maps and maps[0] else None
    except (ValueError, TypeError):
        raise invalid(where, "a precompiled_charsmap that is not base64") from None
    added = dict(added_token(token, where) for token in data.get("added_tokens") or [])
    vocab = {piece: number for number, (piece, _) in enumerate(data["model"]["vocab"])}
    for number, token in added.items():
        if token.content in own and vocab.get(token.content, number) != number:
            raise invalid(where, f"the added token {shown(token.content)} with another id than the piece")
    return UnigramParts(
        [(piece, float(score)) for piece, score in data["model"]["vocab"]],
        charsmap,
        "Lowercase" in kinds,
        "StripAccents" not in kinds,
        {number: token for number, token in added.items() if token.content not in own},
    )


def normalizer_steps(normalizer: Any) -> list[dict[str, Any]]:
    """The normalizers of a tokenizer file in order; those of a sequence one by one."""
    if isinstance(normalizer, dict) and normalizer.get("type") == "Sequence":
        inner = normalizer.get("normalizers")
        return [step for one in (inner if isinstance(inner, list) else []) for step in normalizer_steps(one)]
    return [normalizer] if isinstance(normalizer, dict) else []


def require_same_rules(data: dict[str, Any], built: dict[str, Any], where: str) -> None:
    """Refuse a tokenizer file whose texts are split by other rules than those of the tokenizer built from it."""
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}  # no effect: words are split at spaces
    steps = [step for step in normalizer_steps(data.get("normalizer")) if step != spaces]
    if steps != normalizer_steps(built["normalizer"]):
        raise invalid(where, f"normalizers {shown([step.get('type') for step in steps])}")
    found = data.get("pre_tokenizer")
    inner = found.get("pretokenizers") if isinstance(found, dict) else None
    splits = inner if isinstance(inner, list) else []
    kinds = [one.get("type") if isinstance(one, dict) else None for one in splits]
    usual = {"replacement": SPACE, "add_prefix_space": True, "prepend_scheme": "always", "split": True}
    if kinds != ["WhitespaceSplit", "Metaspace"] or {**usual, **splits[1], "type": None} != {**usual, "type": None}:
        raise invalid(where, f"a pre_tokenizer of {shown(found)}")


def invalid(where: str, found: str) -> UserError:
    """The error for a file that is not a unigram tokenizer of these models."""
    return UserError(
        "this is not a unigram tokenizer of this model, or it is damaged", where=where, found=found,
        expected="a tokenizer.json or SentencePiece model with the model's special tokens",
        todo="copy the file again from its model's folder",
    )  # fmt: skip
