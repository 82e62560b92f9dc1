"""The tokenizer protocols, and the base class of tokenizers that use the `tokenizers` package."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

from heedful.config import Config
from heedful.errors import AGAIN, UserError
from heedful.files.reading import open_file
from heedful.files.writing import write_text_atomic

if TYPE_CHECKING:
    import tokenizers

MAX_FILE = 100 * 2**20  # bytes of a tokenizer file
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
InvalidFile = Callable[
    [str, str], UserError
]  # builds the error for an invalid file from its location and what was found


class Encoding(NamedTuple):
    """An encoded text: ids, the character span of each token, and how each token reads."""

    ids: list[int]
    offsets: list[tuple[int, int]]  # [start, end) in the text as it was given
    pieces: list[str]
    replaced: int  # lone surrogates, which UTF-8 cannot encode, replaced by U+FFFD


class FolderTokenizer(NamedTuple):
    """The tokenizer of a folder, its maximum length in tokens, and notes for the user."""

    tokenizer: MaskTokenizer | None
    longest: int | None = None
    notes: tuple[str, ...] = ()


class Tokenizer(Protocol):
    """Text to ids and back; text that spells a special token is ordinary text."""

    @property
    def json(self) -> str:
        """The text of the tokenizer file."""

    @property
    def sha256(self) -> str:
        """A hash that identifies this tokenizer."""

    @property
    def vocab(self) -> int:
        """The vocabulary size."""

    @property
    def special(self) -> frozenset[int]:
        """The ids of special tokens."""

    def encode(self, text: str) -> Encoding:
        """Encode a text, without special tokens."""

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode each text."""

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; faster than `encode_batch`."""

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text, without special tokens."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each token."""


class PairTokenizer(Tokenizer, Protocol):
    """A tokenizer of models that read one text or a pair, with special tokens around them."""

    @property
    def pad(self) -> int:
        """The padding token."""

    @property
    def unk(self) -> int:
        """The unknown token."""

    @property
    def cls_last(self) -> bool:
        """Whether the classification token is the last token of a text, not the first."""

    @property
    def pads_left(self) -> bool:
        """Whether padding comes before a text, as the model was published."""

    def pair(
        self, a: Sequence[int], b: Sequence[int] | None = None, *, last_sep: bool = True
    ) -> tuple[list[int], list[int]]:
        """Add special tokens to one text or a pair; returns ids and segments (0 and 1; 2 for a last `<cls>`)."""


@runtime_checkable
class HasMask(Protocol):
    """A tokenizer with a mask token."""

    @property
    def mask(self) -> int:
        """The mask token."""


class MaskTokenizer(PairTokenizer, Protocol):
    """A tokenizer of masked language models."""

    @property
    def cls(self) -> int:
        """The classification token, before a text, or after it (`cls_last`)."""

    @property
    def sep(self) -> int:
        """The separator, after each text."""

    @property
    def mask(self) -> int:
        """The mask token."""

    @property
    def mask_name(self) -> str:
        """The text of the mask token, such as `[MASK]`."""

    @property
    def continues_word(self) -> list[bool]:
        """For each token, whether it continues a word."""

    def encode_with_masks(self, text: str) -> list[int]:
        """Encode a text in which `mask_name` is the special token."""

    def decode_with_special(self, ids: Iterable[int]) -> str:
        """Decode ids to text, special tokens included."""

    def files(self, longest: int) -> Mapping[str, str | bytes]:
        """The equivalent Hugging Face tokenizer files, by name, with this maximum length."""

    def words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word; the unknown token for a word that normalization deletes."""


class PairLayout:
    """The base of layouts: where special tokens stand around one text or a pair, whatever they are called."""

    cls_last: ClassVar[bool] = False
    pads_left: ClassVar[bool] = False
    between: ClassVar[int] = 1  # separators between the texts of a pair
    cls: int
    sep: int

    def pair(
        self, a: Sequence[int], b: Sequence[int] | None = None, *, last_sep: bool = True
    ) -> tuple[list[int], list[int]]:
        """Add special tokens to one text or a pair; returns ids and segments: 0 for A, 1 for B, 2 for a last `<cls>`.

        Without `last_sep`, there is no separator after B.
        """
        first = [*a, self.sep]
        second = [] if b is None else [*[self.sep] * (self.between - 1), *b, *[self.sep] * last_sep]
        ids, segments = [*first, *second], [0] * len(first) + [1] * len(second)
        return ([*ids, self.cls], [*segments, 2]) if self.cls_last else ([self.cls, *ids], [0, *segments])


class ClsSepLayout(PairLayout):
    """`[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, as in BERT."""


class DoubleSepLayout(PairLayout):
    """`<s> A </s>` or `<s> A </s></s> B </s>`, as in RoBERTa, which ignores segments."""

    between: ClassVar = 2


class SepClsLayout(PairLayout):
    """`A <sep> <cls>` or `A <sep> B <sep> <cls>`, as in XLNet, with padding on the left."""

    cls_last: ClassVar = True
    pads_left: ClassVar = True


class BareLayout:
    """`A` or `A B`, without special tokens, as GPT-2's tokenizer in `transformers`."""

    cls_last: ClassVar[bool] = False
    pads_left: ClassVar[bool] = False

    def pair(
        self, a: Sequence[int], b: Sequence[int] | None = None, *, last_sep: bool = True
    ) -> tuple[list[int], list[int]]:
        """The tokens of one text or a pair, and their segments: 0 for A, 1 for B."""
        second = () if b is None else b
        return [*a, *second], [0] * len(a) + [1] * len(second)


def count_special_tokens(tokenizer: PairTokenizer, texts: int) -> int:
    """The number of special tokens added to one text, or to a pair."""
    return len(tokenizer.pair((), () if texts == 2 else None)[0])


def count_around(tokenizer: PairTokenizer, texts: int = 1) -> tuple[int, int]:
    """The number of special tokens before the last text, beyond those of a first one, and after it."""
    row, _ = tokenizer.pair((), (-1,)) if texts == 2 else tokenizer.pair((-1,))
    return row.index(-1), len(row) - row.index(-1) - 1


def last_segment(tokenizer: PairTokenizer) -> int | None:
    """The segment of the last token, where that is the classification token; None: it is another one."""
    return tokenizer.pair(())[1][-1] if tokenizer.cls_last else None


def truncate_pair(a: Sequence[int], b: Sequence[int], room: int) -> tuple[Sequence[int], Sequence[int]]:
    """Truncate two texts to `room` tokens in total, as the `tokenizers` package does ("longest first").

    The longer one is truncated to the length of the other, then both equally; if one token is left over, the longer one
    keeps it, or the second of two that are equally long.
    """
    if len(a) + len(b) <= room:
        return a, b
    shorter = min(len(a), len(b), room // 2)
    longer = room - shorter
    return (a[:longer], b[:shorter]) if len(a) > len(b) else (a[:shorter], b[:longer])


class TokenizerFile(Config):
    """The base of settings that read an existing tokenizer."""

    @abstractmethod
    def read(self) -> Tokenizer:
        """Read the file."""

    @property
    def vocab(self) -> int:
        """The vocabulary size."""
        return self.read().vocab


class EngineTokenizer(ABC):
    """Base of tokenizers that use the `tokenizers` package."""

    json: str
    vocab: int
    special: frozenset[int]
    _engine: tokenizers.Tokenizer

    @abstractmethod
    def __init__(self, text: str, where: str) -> None:
        """Parse a tokenizer.json; `where` is the file's name in errors."""

    @staticmethod
    @abstractmethod
    def invalid_file(where: str, found: str) -> UserError:
        """The error for a file that is not such a tokenizer."""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a tokenizer.json."""
        return cls(read_tokenizer_file(path, cls.invalid_file), str(path))

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json atomically."""
        write_text_atomic(Path(path), self.json)

    @cached_property
    def sha256(self) -> str:
        """A hash that identifies this tokenizer."""
        return hashlib.sha256(self.json.encode()).hexdigest()

    def encode(self, text: str) -> Encoding:
        """Encode a text, without special tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode each text."""
        cleaned = [replace_surrogates(text) for text in require_list(texts)]
        found = self._engine.encode_batch([text for text, _ in cleaned], add_special_tokens=False)
        return [
            Encoding(ids, one.offsets, self.pieces(ids), replaced)
            for one, (_, replaced) in zip(found, cleaned, strict=True)
            for ids in [self._ordinary(one.ids)]
        ]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; faster than `encode_batch`."""
        cleaned = [replace_surrogates(text)[0] for text in require_list(texts)]
        found = self._engine.encode_batch_fast(cleaned, add_special_tokens=False)
        return [self._ordinary(one.ids) for one in found]

    def _ordinary(self, ids: list[int]) -> list[int]:
        """Replace special tokens in the ids of a text, where the engine may produce them."""
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text, without special tokens."""
        return str(self._engine.decode([number for number in ids if number not in self.special]))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each token; bytes that are part of a character are shown as \\xe2."""
        return [self._pieces[number] for number in ids]

    @property
    def token_names(self) -> list[str]:
        """The name of each token in the tokenizer's file, which is a string of its own."""
        return [str(self._engine.id_to_token(number)) for number in range(self.vocab)]

    @property
    def _pieces(self) -> list[str]:
        raise NotImplementedError


def require_corpus(texts: Iterable[str]) -> list[str]:
    """The texts as a list; an error if all are blank."""
    corpus = [replace_surrogates(text)[0] for text in texts]
    if not any(map(str.strip, corpus)):
        raise UserError("there is no text to train a tokenizer on", where="tokenizer", found=f"{len(corpus)} texts")
    return corpus


def train_engine(engine: tokenizers.Tokenizer, corpus: Iterable[str], trainer: Any, vocab: int) -> None:
    """Train the engine on a corpus."""
    try:
        engine.train_from_iterator(corpus, trainer)
    except Exception as error:  # the package raises plain Exceptions
        raise UserError(
            f"the tokenizer cannot be trained: {error}", where="tokenizer.vocab", found=str(vocab),
            todo="raise tokenizer.vocab, or use more text",
        ) from None  # fmt: skip


def read_tokenizer_file(path: str | Path, invalid: InvalidFile) -> str:
    """Read the text of a tokenizer file."""
    try:
        with open_file(path) as file:
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise invalid(str(path), f"over {MAX_FILE:,} bytes")
        return data.decode()
    except UnicodeDecodeError as error:
        raise invalid(f"{path}:byte {error.start}", "bytes that are not UTF-8") from None
    except OSError as error:
        raise UserError(f"this tokenizer cannot be read: {error.strerror}", where=str(path)) from None


def parse_json(text: str, where: str, invalid: InvalidFile) -> Any:
    """Parse JSON; errors are built by `invalid`."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise invalid(f"{where}:{error.lineno}:{error.colno}", f"text that is not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise invalid(where, f"JSON that cannot be read: {error}") from None


def unsupported_tokenizer(invalid: UserError) -> UserError:
    """The error for a file with a part that would give texts other ids, from the one for a damaged file."""
    return UserError(
        "not supported: a tokenizer with this part", where=invalid.where, found=invalid.found,
        expected=invalid.expected, todo="choose the folder of a model with the tokenizer that was published for it",
    )  # fmt: skip


def require_fit(tokenizer: Tokenizer, vocab: int, where: Path) -> None:
    """Refuse a tokenizer with more tokens than its model has embeddings."""
    if tokenizer.vocab > vocab:
        raise UserError(
            "the tokenizer does not match the model", where=str(where), found=f"{tokenizer.vocab:,} pieces",
            expected=f"at most {vocab:,}, the vocab_size of the model", todo=AGAIN,
        )  # fmt: skip


def require_list(texts: Sequence[str]) -> list[str]:
    """The texts as a list; a single string is refused, since it would be read as a list of characters."""
    if isinstance(texts, str):
        raise TypeError("give a list of texts, as [text]; a single string would be read character by character")
    return list(texts)


def replace_surrogates(text: str) -> tuple[str, int]:
    """Replace lone surrogates by U+FFFD, and count them."""
    return LONE_SURROGATE.subn("\ufffd", text)
