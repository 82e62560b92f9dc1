"""BERT's WordPiece tokenizer.

An external tokenizer.json is not passed to the `tokenizers` package: its vocabulary and settings are parsed, checked
and rebuilt, so that nothing else in it has an effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from heedful.data.tokenizers import base
from heedful.data.tokenizers.base import (
    ClsSepLayout,
    EngineTokenizer,
    FolderTokenizer,
    TokenizerFile,
    replace_surrogates,
    require_corpus,
    train_engine,
)
from heedful.data.tokenizers.tokenizer import MAX_VOCAB, WordPiece, piece_trainer
from heedful.errors import UserError, shown

if TYPE_CHECKING:
    import tokenizers

NAMES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PREFIX = "##"  # marks a piece that continues a word
MAX_WORD_CHARS = 100  # a longer word is unknown, as in BERT
NORMALIZER_SETTINGS = ("clean_text", "handle_chinese_chars", "lowercase")  # and strip_accents
TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")  # of an added token


def invalid(where: str, found: str) -> UserError:
    """The error for a file that is not a BERT tokenizer."""
    return UserError(
        "this is not a BERT tokenizer, or it is damaged", where=where, found=found,
        expected="a tokenizer.json or vocab.txt of a WordPiece tokenizer with " + " ".join(NAMES),
        todo="copy the file again from its model's folder",
    )  # fmt: skip


class AddedTokenSpec(NamedTuple):
    """A token that is never split, such as `[E1]`; the fields are those of `tokenizers.AddedToken`."""

    content: str
    single_word: bool = False  # matches whole words only
    lstrip: bool = False  # also matches the spaces before it
    rstrip: bool = False  # also matches the spaces after it
    normalized: bool = False  # matches the normalized text
    special: bool = True

    def to_engine(self) -> tokenizers.AddedToken:
        """The same for the `tokenizers` package."""
        from tokenizers import AddedToken

        return AddedToken(self.content, **dict(zip(TOKEN_FLAGS, self[1:], strict=True)))


class WordPieceFile(TokenizerFile):
    """An existing WordPiece vocabulary."""

    kind: Literal["pieces"] = "pieces"
    file: str = Field(
        min_length=1, description="a `vocab.txt`, or a `tokenizer.json` of a BERT, relative to the working directory"
    )
    lowercase: bool = Field(
        True, description="lowercase texts; ignored for a `tokenizer.json`, which has its own setting"
    )

    def read(self) -> BertTokenizer:
        """Read the file."""
        if self.file.endswith(".json"):
            return BertTokenizer.load(self.file)
        return BertTokenizer.from_vocab(read_vocab(self.file), self.lowercase, self.file)


class TokenizerParts(NamedTuple):
    """What a tokenizer is built from."""

    vocab: dict[str, int]
    normalizer: dict[str, bool | None]
    max_word_chars: int
    added: dict[int, AddedTokenSpec]  # by id, without BERT's special tokens


class BertTokenizer(ClsSepLayout, EngineTokenizer):
    """A BERT tokenizer: `[MASK]` in a text is ordinary text, not the special token.

    Added tokens, which a published tokenizer may have, are never split.
    """

    def __init__(self, text: str, where: str) -> None:
        """Parse a tokenizer.json; `where` is the file's name in errors."""
        self._initialize(read_parts(parse_wordpiece_json(text, where), where), where)

    @classmethod
    def from_vocab(cls, pieces: Sequence[str], lowercase: bool, where: str) -> BertTokenizer:
        """Build it from the pieces of a vocab.txt in id order; lowercasing also strips accents, as in BERT."""
        normalizer = {"strip_accents": None, **dict.fromkeys(NORMALIZER_SETTINGS, True), "lowercase": lowercase}
        return cls.from_parts(TokenizerParts(number_pieces(pieces, where), normalizer, MAX_WORD_CHARS, {}), where)

    @classmethod
    def from_parts(cls, parts: TokenizerParts, where: str) -> BertTokenizer:
        """Build it from checked parts."""
        tokenizer = cls.__new__(cls)
        tokenizer._initialize(parts, where)
        return tokenizer

    @classmethod
    def train(cls, config: WordPiece, texts: Iterable[str]) -> BertTokenizer:
        """Train a tokenizer on texts; the same texts always give the same tokenizer."""
        corpus = require_corpus(texts)
        settings = {"strip_accents": None, **dict.fromkeys(NORMALIZER_SETTINGS, True), "lowercase": config.lowercase}
        engine = build_engine(list(NAMES), settings, MAX_WORD_CHARS)
        train_engine(engine, corpus, piece_trainer(config, engine, corpus, NAMES), config.vocab)
        return cls.from_vocab([str(engine.id_to_token(number)) for number in range(engine.get_vocab_size())],
                      config.lowercase, "tokenizer")  # fmt: skip

    def _initialize(self, parts: TokenizerParts, where: str) -> None:
        pieces, added = order_pieces(parts.vocab, where), order_added(parts, where)
        engine = build_engine(pieces, parts.normalizer, parts.max_word_chars, added)
        vocab = engine.get_vocab()
        self.json: str = engine.to_str()
        self.vocab: int = engine.get_vocab_size()
        self.pad, self.unk, self.cls, self.sep, self.mask = (vocab[name] for name in NAMES)
        self.special = frozenset(vocab[name] for name in (*NAMES, *(one.content for one in added if one.special)))
        if added:  # unlike special tokens, they are matched in texts
            engine = build_engine(
                pieces, parts.normalizer, parts.max_word_chars, [one._replace(special=False) for one in added]
            )
        self._engine = engine
        engine.encode_special_tokens = True  # the text of a special token is encoded as ordinary text

    @property
    def mask_name(self) -> str:
        """`[MASK]`."""
        return NAMES[-1]

    def encode_with_masks(self, text: str) -> list[int]:
        """Encode a text in which `[MASK]` is the special token."""
        first, *rest = self.ids(text.split(self.mask_name))
        return [*first, *(number for part in rest for number in (self.mask, *part))]

    def decode_with_special(self, ids: Iterable[int]) -> str:
        """Decode ids to text, special tokens included."""
        return " ".join(self.pieces(ids)).replace(f" {PREFIX}", "")

    def files(self, longest: int) -> dict[str, str]:
        """The equivalent files for Hugging Face's BertTokenizer, by name."""
        from heedful.data.tokenizers.wordpiece_files import tokenizer_files

        return tokenizer_files(self, longest)

    @property
    def lowercase(self) -> bool:
        """Whether texts are lowercased."""
        return bool(self._engine.normalizer.lowercase)

    def words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word; `[UNK]` for a word that normalization deletes."""
        return [ids or [self.unk] for ids in self.ids(words)]

    @property
    def continues_word(self) -> list[bool]:
        """For each piece of the vocabulary, whether it continues a word."""
        return [piece.startswith(PREFIX) for piece in self._pieces]

    expected: ClassVar = "tokenizer.json or vocab.txt"

    @staticmethod
    def from_folder(folder: Path, vocab: int) -> FolderTokenizer:
        """The tokenizer of a Hugging Face folder, if it has one; its vocabulary may not exceed the model's, `vocab`."""
        from heedful.data.tokenizers.wordpiece_files import find_tokenizer

        return find_tokenizer(folder, vocab)

    @staticmethod
    def invalid_file(where: str, found: str) -> UserError:
        """The error for a file that is not a BERT tokenizer."""
        return invalid(where, found)

    @cached_property
    def _pieces(self) -> list[str]:
        return [str(self._engine.id_to_token(number)) for number in range(self.vocab)]


def build_engine(
    pieces: Sequence[str], normalizer: dict[str, Any], max_word_chars: int, added: Sequence[AddedTokenSpec] = ()
) -> tokenizers.Tokenizer:
    """A `tokenizers.Tokenizer` with these pieces in id order, and BERT's post-processor for other readers of its file.

    The pre-tokenizer splits words at brackets, so that no text can spell a special token.
    """
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    vocab = {piece: number for number, piece in enumerate(pieces)}
    engine = Engine(
        models.WordPiece(
            vocab, unk_token="[UNK]", max_input_chars_per_word=max_word_chars, continuing_subword_prefix=PREFIX
        )
    )
    engine.normalizer = normalizers.BertNormalizer(**normalizer)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece(prefix=PREFIX)
    engine.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, vocab[name]) for name in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    engine.add_special_tokens(list(NAMES))
    engine.add_tokens([one.to_engine() for one in added])
    return engine


def number_pieces(pieces: Sequence[str], where: str) -> dict[str, int]:
    """The id of each piece of a vocab.txt; duplicates are refused."""
    vocab = {piece: number for number, piece in enumerate(pieces)}
    if len(vocab) < len(pieces):
        duplicate = next(piece for number, piece in enumerate(pieces) if vocab[piece] != number)
        raise invalid(f"{where}:{vocab[duplicate] + 1}", f"the piece {shown(duplicate)} for the second time")
    return vocab


def order_added(parts: TokenizerParts, where: str) -> list[AddedTokenSpec]:
    """The added tokens in id order; each id must be that of the same piece, or follow the vocabulary without a gap."""
    end, seen = len(parts.vocab), set[str]()
    for number, token in sorted(parts.added.items()):
        here = parts.vocab.get(token.content, end)
        if number != here or not token.content or token.content in seen or replace_surrogates(token.content)[1]:
            raise invalid(where, f"the added token {shown(token.content)} with the id {number:,}, not {here:,}")
        end += here == end
        seen.add(token.content)
    return [parts.added[number] for number in sorted(parts.added)]


def order_pieces(vocab: dict[str, int], where: str) -> list[str]:
    """The pieces in id order; ids must have no gaps, and the special tokens must be there."""
    if len(vocab) > MAX_VOCAB:
        raise invalid(where, f"{len(vocab):,} pieces")
    bad = next((piece for piece, number in vocab.items() if type(number) is not int), None)
    if bad is not None or sorted(vocab.values()) != list(range(len(vocab))):
        raise invalid(where, f"missing or duplicate ids among {len(vocab):,} pieces")
    if missing := [name for name in NAMES if name not in vocab]:
        raise invalid(where, f"{len(vocab):,} pieces, but none is {' or '.join(missing)}")
    if lone := next((piece for piece in vocab if replace_surrogates(piece)[1]), None):
        raise invalid(where, f"the piece {shown(lone)}, which is not valid text")
    return sorted(vocab, key=vocab.__getitem__)


def read_parts(data: dict[str, Any], where: str) -> TokenizerParts:
    """Parse a tokenizer file, checking each part.

    Padding, truncation and post-processing of the file are ignored.
    """
    model, normalizer = data["model"], _one_normalizer(data["normalizer"])
    data = {**data, "normalizer": normalizer}
    for part, expected in (
        ("model", "WordPiece"),
        ("normalizer", "BertNormalizer"),
        ("pre_tokenizer", "BertPreTokenizer"),
    ):
        found = data[part].get("type") if isinstance(data.get(part), dict) else None
        if found != expected and not (part == "model" and found is None and "continuing_subword_prefix" in model):
            raise base.unsupported_tokenizer(invalid(where, f"{part} of type {shown(found)}"))
    for setting, usual in (("unk_token", "[UNK]"), ("continuing_subword_prefix", PREFIX)):
        if model.get(setting, usual) != usual:
            raise base.unsupported_tokenizer(invalid(where, f"a model with {setting} {shown(model[setting])}"))
    longest = model.get("max_input_chars_per_word", MAX_WORD_CHARS)
    if type(longest) is not int or not 1 <= longest <= 100_000:
        raise invalid(where, f"a model with max_input_chars_per_word {shown(longest)}")
    settings = {name: normalizer.get(name, True) for name in NORMALIZER_SETTINGS}
    accents = normalizer.get("strip_accents")
    if not all(isinstance(value, bool) for value in settings.values()) or not isinstance(accents, bool | None):
        raise invalid(where, f"a normalizer of {shown(normalizer)}")
    tokens = data.get("added_tokens") or []
    if not isinstance(tokens, list):
        raise invalid(where, f"added_tokens of {shown(tokens)}")
    added = dict(added_token(token, where) for token in tokens)
    return separate_special(model.get("vocab"), {**settings, "strip_accents": accents}, longest, added, where)


def _one_normalizer(given: dict[str, Any]) -> dict[str, Any]:
    """The normalizer; sentence-transformers puts a lowercasing one before BERT's, which can do the same itself."""
    parts = given.get("normalizers") if given.get("type") == "Sequence" else None
    if not isinstance(parts, list) or [part.get("type") for part in parts if isinstance(part, dict)] != [
        "Lowercase",
        "BertNormalizer",
    ]:
        return given
    bert: dict[str, Any] = parts[-1]
    keeps = bert.get("lowercase") is False  # and the accents, too, unless it says that it strips them
    return {**bert, "lowercase": True, "strip_accents": False} if keeps and bert.get("strip_accents") is None else {
        **bert, "lowercase": True
    }  # fmt: skip


def parse_wordpiece_json(text: str, where: str) -> dict[str, Any]:
    """Parse a tokenizer.json, which must have a model and a normalizer."""
    data = base.parse_json(text, where, invalid)
    if not isinstance(data, dict) or not all(isinstance(data.get(part), dict) for part in ("model", "normalizer")):
        raise invalid(where, "no object with a `model` and a `normalizer`")
    return data


def added_token(
    token: Any, where: str, number: Any = None, invalid: base.InvalidFile = invalid
) -> tuple[int, AddedTokenSpec]:
    """Parse an added token: its id, which may be given separately as `number`, and its settings."""
    if not isinstance(token, dict) or not isinstance(token.get("content"), str):
        raise invalid(where, f"an added token {shown(token)}")
    number, flags = token.get("id", number), {name: token[name] for name in TOKEN_FLAGS if name in token}
    if type(number) is not int or not 0 <= number < MAX_VOCAB or not all(type(flag) is bool for flag in flags.values()):
        raise invalid(where, f"an added token {shown(token)}")
    special = flags.get("special", False)
    return number, AddedTokenSpec(token["content"], **{"normalized": not special, "special": special, **flags})


def separate_special(
    vocab: Any, normalizer: dict[str, bool | None], longest: int, added: dict[int, AddedTokenSpec], where: str
) -> TokenizerParts:
    """The parts of a tokenizer; those of BERT's special tokens that are listed as added tokens become pieces."""
    if not isinstance(vocab, dict):
        raise invalid(where, "a model without its vocab")
    own = {token.content: number for number, token in added.items() if token.content in NAMES}
    if wrong := next((name for name, number in own.items() if vocab.get(name, number) != number), None):
        raise invalid(where, f"the added token {shown(wrong)} with another id than the piece")
    others = {number: token for number, token in added.items() if token.content not in NAMES}
    return TokenizerParts(vocab | own, normalizer, longest, others)


def read_vocab(path: str | Path) -> list[str]:
    """The pieces of a vocab.txt, one per line."""
    return [line.removesuffix("\r") for line in base.read_tokenizer_file(path, invalid).removesuffix("\n").split("\n")]
