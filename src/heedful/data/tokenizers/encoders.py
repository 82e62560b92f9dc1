"""The table of encoder tokenizers: how each kind is recognized by its file, and its recipe settings."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union

from pydantic import Tag

from heedful.config import by_kind
from heedful.data.tokenizers.base import MaskTokenizer, read_tokenizer_file
from heedful.data.tokenizers.roberta import RobertaBpe, RobertaBpeFiles, RobertaTokenizer
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer, WordPieceFile


class Kind(NamedTuple):
    """A tokenizer class, the settings that train it, and the settings that read its files."""

    tokenizer: Any
    trained: type[Any]
    files: type[Any]


KINDS = {  # by the type of the model in a tokenizer.json
    "WordPiece": Kind(BertTokenizer, WordPiece, WordPieceFile),
    "BPE": Kind(RobertaTokenizer, RobertaBpe, RobertaBpeFiles),
}
TRAINABLE = tuple(kind.trained for kind in KINDS.values())


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
    AnyEncoderTokenizer = _any_of((*TRAINABLE, *(kind.files for kind in KINDS.values())))


def tokenizer_class(kind: str) -> Any:
    """The tokenizer class for a kind, as in `usual_tokenizer` of an encoder's config."""
    return next(one.tokenizer for one in KINDS.values() if one.trained.model_fields["kind"].default == kind)


def open_encoder_tokenizer(text: str, where: str) -> MaskTokenizer:
    """Parse a tokenizer file; `where` is its name in errors."""
    try:
        kind = json.loads(text)["model"]["type"]
    except (ValueError, KeyError, TypeError, RecursionError):
        kind = None  # the parser reports the error
    found: MaskTokenizer = KINDS.get(kind, KINDS["WordPiece"]).tokenizer(text, where)
    return found


def load_encoder_tokenizer(path: Path) -> MaskTokenizer:
    """Read a tokenizer file."""
    return open_encoder_tokenizer(read_tokenizer_file(path, BertTokenizer.invalid_file), str(path))


def encoder_tokenizer(config: Any, texts: Iterable[str]) -> MaskTokenizer:
    """The tokenizer of a recipe: trained on the texts, or read from its files."""
    kind = next(kind for kind in KINDS.values() if isinstance(config, kind.trained | kind.files))
    found: MaskTokenizer = config.read() if isinstance(config, kind.files) else kind.tokenizer.train(config, texts)
    return found
