"""The check of a tokenizer: texts survive a round trip, and odd ones raise nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from heedful.contracts.comparison import Loaded
from heedful.contracts.report import Finding
from heedful.errors import shown

TEXTS = (
    "", " ", "a", "The cat sat on the mat.", "Two  spaces,\ttabs\nand lines.", "don't stop", "3.14 or 1,000?",
    "Straße, naïve, Ørsted", "e\u0301 and \u00e9", "日本語のテキスト", "👩‍👩‍👧 🇫🇷 👍🏽", "العربية",
    "\u200b\ufeff", "\x00\x07", "[MASK] <s> </s> <|endoftext|>",
    "https://example.org/a?b=c", "x" * 300,
)  # fmt: skip


class Codec(NamedTuple):
    """A tokenizer as two functions, and its size."""

    encode: Callable[[str], Sequence[int]]
    decode: Callable[[Sequence[int]], str]
    vocab: int


@runtime_checkable
class Encoded(Protocol):
    """An encoded text of our tokenizers."""

    @property
    def ids(self) -> list[int]:
        """Its ids."""


@runtime_checkable
class TextTokenizer(Protocol):
    """A tokenizer of ours, unlike what predictors of images keep in its place."""

    @property
    def vocab(self) -> int:
        """The vocabulary size."""

    def encode(self, text: str) -> Encoded:
        """Encode a text."""

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids."""


@runtime_checkable
class PairTokenizer(TextTokenizer, Protocol):
    """A tokenizer of sources and targets, which may have ids of their own."""

    def target_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text as a target."""


def codec_of(tokenizer: object) -> Codec | None:
    """A tokenizer of ours as two functions, if it is one of texts."""
    if not isinstance(tokenizer, TextTokenizer):
        return None
    found = tokenizer
    if isinstance(found, PairTokenizer):  # what is decoded is a target
        return Codec(lambda text: found.target_ids([text])[0], found.decode, found.vocab)
    return Codec(lambda text: found.encode(text).ids, found.decode, found.vocab)


def check_tokenizer(name: str, loaded: Loaded) -> Finding:
    """Ids in range, no error, and a decoded text that encodes to the same text again, up to the width of spaces."""
    about = "texts survive encoding and decoding, and odd ones raise nothing"
    codec = loaded.tokenizer
    if not isinstance(codec, Codec):
        return Finding(name, about, "not applicable", "there is no tokenizer of texts")
    for text in TEXTS:
        if (problem := trouble(codec, text)) is not None:
            smallest = shortest(codec, text)
            return Finding(
                name, about, "failed", trouble(codec, smallest) or problem, smallest=shown(smallest),
                cause="decoding is not the inverse of encoding, up to normalization, or an odd character is refused",
                advice="compare the pre-tokenizer with the decoder, and the vocabulary with the ids",
            )  # fmt: skip
    exact = sum(codec.decode(codec.encode(text)) == text for text in TEXTS)
    return Finding(f"{name}", f"{about}; {exact} of {len(TEXTS)} come back unchanged", "passed")


def trouble(codec: Codec, text: str) -> str | None:
    """What goes wrong with a text, if anything does."""
    try:
        ids = list(codec.encode(text))
        again = codec.decode(ids)
        twice = codec.decode(codec.encode(again))
    except Exception as error:  # any: a tokenizer may be the user's own
        return f"raised {type(error).__name__}: {str(error).strip()[:100]}"
    if ids and not 0 <= min(ids) <= max(ids) < codec.vocab:
        return f"the id {max(ids)} is outside of the vocabulary of {codec.vocab}"
    return (
        None
        if twice.split() == again.split()
        else f"decoded as {shown(again)}, which encodes and decodes as {shown(twice)}"
    )


def shortest(codec: Codec, text: str) -> str:
    """A text with as many characters left out as possible that still goes wrong."""
    shorter = True
    while shorter and len(text) > 1:
        shorter = False
        for size in (len(text) // 2, 1):
            for begin in range(0, len(text), max(1, size)):
                candidate = text[:begin] + text[begin + size :]
                if size and trouble(codec, candidate) is not None:
                    text, shorter = candidate, True
                    break
            if shorter:
                break
    return text
