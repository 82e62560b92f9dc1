"""The table of encoder tokenizers: how each kind is recognized by its file, and its recipe settings."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union

from pydantic import Tag

from heedful.config import by_kind
from heedful.data.tokenizers.base import MAX_FILE, FolderTokenizer, MaskTokenizer, read_tokenizer_file
from heedful.data.tokenizers.byte_pairs import END, Gpt2Bpe, Gpt2BpeFiles, Gpt2Tokenizer
from heedful.data.tokenizers.roberta import RobertaBpe, RobertaBpeFiles, RobertaTokenizer
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.unigram import (
    AlbertTokenizer,
    AlbertUnigram,
    AlbertUnigramFile,
    BigBirdTokenizer,
    BigBirdUnigram,
    BigBirdUnigramFile,
    XlmRobertaTokenizer,
    XlmUnigram,
    XlmUnigramFile,
    XlnetTokenizer,
    XlnetUnigram,
    XlnetUnigramFile,
)
from heedful.data.tokenizers.wordpiece import BertTokenizer, WordPieceFile
from heedful.files.folders import has_file, read_text


class Kind(NamedTuple):
    """A tokenizer class, the settings that train it, and the settings that read its files."""

    tokenizer: Any
    trained: type[Any]
    files: type[Any]
    model: str  # the type of the model in its tokenizer.json
    special: tuple[str, ...]  # special tokens; the first kind with this model that has them reads the file
    masks: bool = True  # whether it has a mask token


KINDS = (
    Kind(BertTokenizer, WordPiece, WordPieceFile, "WordPiece", ("[CLS]",)),
    Kind(RobertaTokenizer, RobertaBpe, RobertaBpeFiles, "BPE", ("<s>",)),
    Kind(Gpt2Tokenizer, Gpt2Bpe, Gpt2BpeFiles, "BPE", (END,), masks=False),
    Kind(BigBirdTokenizer, BigBirdUnigram, BigBirdUnigramFile, "Unigram", ("[CLS]", "<s>")),
    Kind(AlbertTokenizer, AlbertUnigram, AlbertUnigramFile, "Unigram", ("[CLS]",)),
    Kind(XlnetTokenizer, XlnetUnigram, XlnetUnigramFile, "Unigram", ("<cls>",)),
    Kind(XlmRobertaTokenizer, XlmUnigram, XlmUnigramFile, "Unigram", ("<s>",)),
)
MASKING = tuple(kind for kind in KINDS if kind.masks)
CLS_LAST = tuple(cls for kind in KINDS if kind.tokenizer.cls_last for cls in (kind.trained, kind.files))
TRAINABLE = tuple(kind.trained for kind in MASKING)


def _any_of(members: tuple[type[Any], ...]) -> Any:
    """The union of these settings classes; `kind` defaults to the first."""
    if len(members) == 1:
        return members[0]
    kinds = [str(member.model_fields["kind"].default) for member in members]
    tagged: Any = tuple(Annotated[member, Tag(kind)] for member, kind in zip(members, kinds, strict=True))
    return Annotated[Union[tagged], by_kind(kinds[0])]  # noqa: UP007


if TYPE_CHECKING:
    TrainableTokenizer = Any
    AnyEncoderTokenizer = Any
else:
    TrainableTokenizer = _any_of(TRAINABLE)
    AnyEncoderTokenizer = _any_of((*TRAINABLE, *(kind.files for kind in MASKING)))


def tokenizer_class(kind: str) -> Any:
    """The tokenizer class for a kind, as in `usual_tokenizer` of an encoder's config."""
    return next(one.tokenizer for one in KINDS if one.trained.model_fields["kind"].default == kind)


def folder_tokenizer(folder: Path, usual: str, vocab: int) -> FolderTokenizer:
    """The tokenizer of a Hugging Face folder: of the usual kind, or of another, as of some ALBERTs and BigBirds."""
    own = next(one for one in KINDS if one.tokenizer is tokenizer_class(usual))
    if own.model == "Unigram" and not has_file(folder, "spiece.model"):
        if has_file(folder, "tokenizer.json"):
            model, special = _recognize(read_text(folder, "tokenizer.json", MAX_FILE))
            fits = model == own.model and special.issuperset(own.special)
            own = own if fits or model is None else _kind_of(model, special, own)
        elif has_file(folder, "vocab.txt"):
            own = KINDS[0]
    found: FolderTokenizer = own.tokenizer.from_folder(folder, vocab)
    return found


def _recognize(text: str) -> tuple[str | None, set[str]]:
    """The type of the model in a tokenizer.json, if it says so, and its special tokens."""
    try:
        data = json.loads(text)
        model = data["model"].get("type", "Unigram" if "unk_id" in data["model"] else "WordPiece")
        return model, {token["content"] for token in data["added_tokens"]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, set()


def _kind_of(model: str | None, special: set[str], otherwise: Kind) -> Kind:
    """The kind of tokenizer with this type of model and these special tokens."""
    same = [kind for kind in KINDS if kind.model == model] or [otherwise]
    usual = otherwise if otherwise in same else same[0]
    return next((kind for kind in same if special.issuperset(kind.special)), usual)


def open_encoder_tokenizer(text: str, where: str) -> MaskTokenizer:
    """Parse a tokenizer file; `where` is its name in errors."""
    found: MaskTokenizer = _kind_of(*_recognize(text), KINDS[0]).tokenizer(text, where)  # which reports an error
    return found


def load_encoder_tokenizer(path: Path) -> MaskTokenizer:
    """Read a tokenizer file."""
    return open_encoder_tokenizer(read_tokenizer_file(path, BertTokenizer.invalid_file), str(path))


def encoder_tokenizer(config: Any, texts: Iterable[str]) -> MaskTokenizer:
    """The tokenizer of a recipe: trained on the texts, or read from its files."""
    kind = next(kind for kind in KINDS if isinstance(config, kind.trained | kind.files))
    found: MaskTokenizer = config.read() if isinstance(config, kind.files) else kind.tokenizer.train(config, texts)
    return found
