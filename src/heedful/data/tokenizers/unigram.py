"""SentencePiece unigram vocabularies (Kudo, 2018) with the special tokens of ALBERT, XLNet and XLM-R.

An external file is not passed to the `tokenizers` package: its pieces, scores and normalization table are parsed,
checked and rebuilt as `transformers` 5 builds them, so that nothing else in it has an effect.

In ALBERT's and XLNet's own programs, a piece that ends with a digit and a comma is split again. As in their published
tokenizer.json, such a piece has a score so low (100 less) that others are preferred.

Ids are those of `transformers`. They are SentencePiece's own too, except where a letter that normalization replaces is
followed by a combining mark or a joiner: the `tokenizers` package normalizes both together.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from heedful.config import Config
from heedful.data.tokenizers.base import (
    MAX_FILE,
    ClsSepLayout,
    DoubleSepLayout,
    EngineTokenizer,
    FolderTokenizer,
    SepClsLayout,
    TokenizerFile,
    require_corpus,
    train_engine,
)
from heedful.data.tokenizers.sentencepiece import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    Piece,
    parse_model,
    to_float32,
    write_model,
)
from heedful.data.tokenizers.tokenizer import MAX_VOCAB, sort_unigram
from heedful.data.tokenizers.unigram_parts import (
    SPACE,
    UnigramParts,
    invalid,
    number_pieces,
    order_added,
    parse_unigram_json,
    read_parts,
    require_same_rules,
)
from heedful.data.tokenizers.wordpiece import AddedTokenSpec
from heedful.errors import UserError, shown
from heedful.files.reading import is_file, is_folder, read_file

if TYPE_CHECKING:
    import tokenizers

NUMBER_COMMA = re.compile(r".*\d,", re.DOTALL)  # pieces that are not preferred
PENALTY = 100
VOCAB_FIELD = Field(8000, ge=32, le=MAX_VOCAB, description="vocabulary size, including special tokens")
FILE_FIELD = Field(min_length=1, description="a tokenizer.json, a SentencePiece model (.model), or their folder")


class AlbertUnigram(Config):
    """A unigram vocabulary with ALBERT's special tokens, trained on the text."""

    kind: Literal["albert_unigram"] = "albert_unigram"
    vocab: int = VOCAB_FIELD
    lowercase: bool = Field(True, description="lowercase texts")
    keep_accents: bool = Field(False, description="keep accents")


class XlnetUnigram(Config):
    """A unigram vocabulary with XLNet's special tokens, trained on the text."""

    kind: Literal["xlnet_unigram"] = "xlnet_unigram"
    vocab: int = VOCAB_FIELD
    lowercase: bool = Field(False, description="lowercase texts")


class XlmUnigram(Config):
    """A unigram vocabulary with XLM-R's special tokens, trained on the text."""

    kind: Literal["xlm_unigram"] = "xlm_unigram"
    vocab: int = VOCAB_FIELD


class BigBirdUnigram(Config):
    """A unigram vocabulary with BigBird's special tokens, trained on the text."""

    kind: Literal["bigbird_unigram"] = "bigbird_unigram"
    vocab: int = VOCAB_FIELD


class AlbertUnigramFile(TokenizerFile):
    """An existing ALBERT vocabulary."""

    kind: Literal["albert_files"] = "albert_files"
    file: str = FILE_FIELD
    lowercase: bool = Field(True, description="lowercase texts; a tokenizer.json has its own setting")
    keep_accents: bool = Field(False, description="keep accents; a tokenizer.json has its own setting")

    def read(self) -> AlbertTokenizer:
        """Read the file."""
        return AlbertTokenizer.read(self.file, self.lowercase, self.keep_accents)


class XlnetUnigramFile(TokenizerFile):
    """An existing XLNet vocabulary."""

    kind: Literal["xlnet_files"] = "xlnet_files"
    file: str = FILE_FIELD
    lowercase: bool = Field(False, description="lowercase texts; a tokenizer.json has its own setting")

    def read(self) -> XlnetTokenizer:
        """Read the file."""
        return XlnetTokenizer.read(self.file, self.lowercase)


class XlmUnigramFile(TokenizerFile):
    """An existing XLM-R vocabulary."""

    kind: Literal["xlm_files"] = "xlm_files"
    file: str = FILE_FIELD

    def read(self) -> XlmRobertaTokenizer:
        """Read the file."""
        return XlmRobertaTokenizer.read(self.file)


class BigBirdUnigramFile(TokenizerFile):
    """An existing BigBird vocabulary."""

    kind: Literal["bigbird_files"] = "bigbird_files"
    file: str = FILE_FIELD

    def read(self) -> BigBirdTokenizer:
        """Read the file."""
        return BigBirdTokenizer.read(self.file)


class UnigramTokenizer(EngineTokenizer):
    """A unigram tokenizer: special tokens in a text are ordinary text; other added tokens are never split."""

    names: ClassVar[tuple[str, ...]]  # its special tokens, in the order of their ids
    roles: ClassVar[dict[str, str]]  # the name of each one's role in tokenizer_config.json
    first_pieces: ClassVar[int]  # special tokens before the ordinary pieces; the rest follow them
    unknown: ClassVar[int | None]  # the id of the unknown token; None: any
    template: ClassVar[tuple[str, str]]  # of one text and of a pair
    switches: ClassVar[dict[str, bool]]  # its settings of normalization in tokenizer_config.json, with their defaults
    class_name: ClassVar[str]  # in `transformers`
    model_file: ClassVar[str]  # the name of its SentencePiece model
    expected: ClassVar[str]
    cls_last: ClassVar[bool]
    pads_left: ClassVar[bool]

    def __init__(self, text: str, where: str) -> None:
        """Parse a tokenizer.json; `where` is the file's name in errors."""
        data = parse_unigram_json(text, where)
        self._initialize(read_parts(data, self.names, where), where)
        require_same_rules(data, json.loads(self.json), where)

    @classmethod
    def from_parts(cls, parts: UnigramParts, where: str) -> Self:
        """Build it from its parts."""
        tokenizer = cls.__new__(cls)
        tokenizer._initialize(parts, where)
        return tokenizer

    @classmethod
    def from_model(cls, data: bytes, where: str, lowercase: bool = False, keep_accents: bool = False) -> Self:
        """Build it from the bytes of a SentencePiece model."""
        model = parse_model(data, where)
        pieces = cls.number(model.pieces, where)
        added = {
            number: AddedTokenSpec(piece.text)
            for number, piece in enumerate(pieces)
            if piece.kind == CONTROL and piece.text not in cls.names
        }
        scored = [(piece.text, cls.prefer(piece.text, piece.score)) for piece in pieces]
        return cls.from_parts(UnigramParts(scored, model.charsmap, lowercase, keep_accents, added), where)

    @classmethod
    def read(cls, file: str | Path, lowercase: bool = False, keep_accents: bool = False) -> Self:
        """Read a tokenizer.json, a SentencePiece model, or the folder of either."""
        path = Path(file)
        if is_folder(path):
            names = ("tokenizer.json", cls.model_file)
            path = next((path / name for name in names if is_file(path / name)), path / names[0])
        if path.suffix == ".json":
            return cls.load(path)
        try:
            data = read_file(path, MAX_FILE)
        except OSError as error:
            raise UserError(f"this tokenizer cannot be read: {error.strerror}", where=str(path)) from None
        return cls.from_model(data, str(path), lowercase, keep_accents)

    @classmethod
    def train_parts(cls, parts: UnigramParts, vocab: int, texts: Iterable[str]) -> Self:
        """Train a tokenizer on texts; the same texts always give the same tokenizer."""
        from tokenizers import trainers

        corpus, names = require_corpus(texts), list(cls.names)
        special = [(name, 0.0) for name in names]
        engine = cls._build(special, parts, "tokenizer")
        trainer = trainers.UnigramTrainer(
            vocab_size=vocab, special_tokens=names, unk_token=cls.roles["unk_token"], show_progress=False
        )
        train_engine(engine, corpus, trainer, vocab)
        learned = sort_unigram(json.loads(engine.to_str())["model"]["vocab"][len(names) :])
        scored = [(piece, cls.prefer(piece, to_float32(score))) for piece, score in learned if piece not in names]
        pieces = [*special[: cls.first_pieces], *scored, *special[cls.first_pieces :]]
        return cls.from_parts(parts._replace(pieces=pieces), "tokenizer")

    @classmethod
    def number(cls, pieces: Sequence[Piece], where: str) -> Sequence[Piece]:
        """The pieces of a SentencePiece model in the order of their ids."""
        return pieces

    @classmethod
    def unnumber(cls, pieces: list[Piece]) -> list[Piece]:
        """The inverse of `number`."""
        return pieces

    @classmethod
    def prefer(cls, piece: str, score: float) -> float:
        """The score of a piece of a SentencePiece model."""
        return score - PENALTY if NUMBER_COMMA.fullmatch(piece) else score

    @classmethod
    @abstractmethod
    def normalizers(cls, parts: UnigramParts) -> list[Any]:
        """The normalizers before SentencePiece's own table."""

    def _initialize(self, parts: UnigramParts, where: str) -> None:
        from tokenizers import processors

        lower, accents = (key in self.switches for key in ("do_lower_case", "keep_accents"))
        parts = parts._replace(lowercase=lower and parts.lowercase, keep_accents=accents and parts.keep_accents)
        vocab = number_pieces(parts.pieces, where)
        if missing := [name for name in self.names if name not in vocab]:
            raise self.invalid_file(where, f"{len(vocab):,} pieces, but none is {' or '.join(missing)}")
        if self.unknown is not None and vocab[self.roles["unk_token"]] != self.unknown:
            name = self.roles["unk_token"]
            raise self.invalid_file(where, f"{name} with the id {vocab[name]:,}, not {self.unknown}")
        added = order_added(parts, vocab, where)
        engine = self._build(parts.pieces, parts, where)
        engine.add_special_tokens(list(self.names))
        engine.add_tokens([one.to_engine() for one in added])
        ids = engine.get_vocab()
        used = [(name, ids[name]) for name in self.names if name in self.template[1].replace(":", " ").split()]
        single, pair = self.template
        engine.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=used)
        self.parts, self.json = parts, str(engine.to_str())
        self.vocab: int = engine.get_vocab_size()
        roles = (f"{role}_token" for role in ("pad", "unk", "cls", "sep", "mask"))
        self.pad, self.unk, self.cls, self.sep, self.mask = (ids[self.roles[role]] for role in roles)
        special = {*self.names, *(one.content for one in added if one.special)}
        self.special = frozenset(ids[name] for name in special)
        self._names = [str(engine.id_to_token(number)) for number in range(self.vocab)]
        # No text has a space once it is split into words, so that none matches the piece of a special token below.
        hidden = [(f"{piece} " if piece in special else piece, score) for piece, score in parts.pieces]
        self._engine = self._build(hidden, parts, where)
        matched = [one for one in added if not one.special or one.content not in vocab]
        self._engine.add_tokens([one._replace(special=False).to_engine() for one in matched])

    @classmethod
    def _build(cls, pieces: Sequence[tuple[str, float]], parts: UnigramParts, where: str) -> tokenizers.Tokenizer:
        """An engine with these pieces, and no added tokens."""
        from tokenizers import Tokenizer as Engine
        from tokenizers import decoders, models, normalizers, pre_tokenizers

        name = cls.roles["unk_token"]
        unknown = next((number for number, (piece, _) in enumerate(pieces) if piece.rstrip() == name), cls.unknown)
        engine = Engine(models.Unigram(list(pieces), unknown, False))
        steps = cls.normalizers(parts)
        try:
            steps += [normalizers.Precompiled(parts.charsmap)] if parts.charsmap else []
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic in the package's compiled part is not an Exception
            raise cls.invalid_file(where, "a normalization table that is damaged") from None
        if steps:
            engine.normalizer = normalizers.Sequence(steps)
        engine.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, "always")]
        )
        engine.decoder = decoders.Metaspace(SPACE, "always")
        return engine

    @property
    def _pieces(self) -> list[str]:
        return self._names

    @abstractmethod
    def pair(
        self, a: Sequence[int], b: Sequence[int] | None = None, *, last_sep: bool = True
    ) -> tuple[list[int], list[int]]:
        """Add special tokens to one text or a pair; returns ids and segments."""

    @property
    def mask_name(self) -> str:
        """The text of the mask token."""
        return self.roles["mask_token"]

    def encode_with_masks(self, text: str) -> list[int]:
        """Encode a text in which the mask's name, or `[MASK]`, is the special token."""
        first, *rest = self.ids(re.split(f"{re.escape(self.mask_name)}|\\[MASK\\]", text))
        return [*first, *(number for part in rest for number in (self.mask, *part))]

    def decode_with_special(self, ids: Iterable[int]) -> str:
        """Decode ids to text, special tokens included."""
        spaced = (f" {self._pieces[one]}" if one in self.special else self._pieces[one] for one in ids)
        return "".join(spaced).replace(SPACE, " ").strip()

    def words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word; the unknown token for a word that normalization deletes."""
        return [ids or [self.unk] for ids in self.ids(words)]

    @property
    def continues_word(self) -> list[bool]:
        """For each piece, whether it continues a word: it does not start with `▁`."""
        return [number not in self.special and piece[:1] != SPACE for number, piece in enumerate(self._pieces)]

    @cached_property
    def model(self) -> bytes:
        """The equivalent SentencePiece model."""
        pieces = [
            Piece(text, score + PENALTY if self.prefer(text, 0) else score, self._kind(number))
            for number, (text, score) in enumerate(self.parts.pieces)
        ]
        pieces = self.unnumber(pieces)
        unknown = next(number for number, piece in enumerate(pieces) if piece.kind == UNKNOWN)
        return write_model(pieces, self.parts.charsmap, unknown)

    def _kind(self, number: int) -> int:
        return UNKNOWN if number == self.unk else CONTROL if number in self.special else NORMAL

    def files(self, longest: int) -> dict[str, str | bytes]:
        """The equivalent Hugging Face files, by name."""
        from heedful.data.tokenizers.unigram_files import tokenizer_files

        return tokenizer_files(self, longest)

    @classmethod
    def from_folder(cls, folder: Path, vocab: int) -> FolderTokenizer:
        """The tokenizer of a Hugging Face folder, if it has one; its vocabulary may not exceed the model's, `vocab`."""
        from heedful.data.tokenizers.unigram_files import find_tokenizer

        return find_tokenizer(cls, folder, vocab)

    @staticmethod
    def invalid_file(where: str, found: str) -> UserError:
        """The error for a file that is not such a tokenizer."""
        return invalid(where, found)


class AlbertTokenizer(ClsSepLayout, UnigramTokenizer):
    """ALBERT's tokenizer: `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`."""

    names: ClassVar = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
    roles: ClassVar = {
        "pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
        "bos_token": "[CLS]", "eos_token": "[SEP]",
    }  # fmt: skip
    first_pieces: ClassVar = 5
    unknown: ClassVar = 1
    template: ClassVar = ("[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1")
    switches: ClassVar = {"do_lower_case": True, "keep_accents": False}
    class_name: ClassVar = "AlbertTokenizer"
    model_file: ClassVar = "spiece.model"
    expected: ClassVar = "tokenizer.json or spiece.model"

    @classmethod
    def train(cls, config: AlbertUnigram, texts: Iterable[str]) -> AlbertTokenizer:
        """Train a tokenizer on texts."""
        parts = UnigramParts((), None, config.lowercase, config.keep_accents)
        return cls.train_parts(parts, config.vocab, texts)

    @classmethod
    def normalizers(cls, parts: UnigramParts) -> list[Any]:
        return quotes_and_accents(parts)


class XlnetTokenizer(SepClsLayout, UnigramTokenizer):
    """XLNet's tokenizer: `A <sep> <cls>` or `A <sep> B <sep> <cls>`, padded on the left."""

    names: ClassVar = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
    roles: ClassVar = {
        "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "cls_token": "<cls>", "sep_token": "<sep>",
        "pad_token": "<pad>", "mask_token": "<mask>",
    }  # fmt: skip
    first_pieces: ClassVar = 9
    unknown: ClassVar = 0
    template: ClassVar = ("$A:0 <sep>:0 <cls>:2", "$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2")
    switches: ClassVar = {"do_lower_case": False}
    class_name: ClassVar = "XLNetTokenizer"
    model_file: ClassVar = "spiece.model"
    expected: ClassVar = "tokenizer.json or spiece.model"

    @classmethod
    def train(cls, config: XlnetUnigram, texts: Iterable[str]) -> XlnetTokenizer:
        """Train a tokenizer on texts."""
        return cls.train_parts(UnigramParts((), None, config.lowercase), config.vocab, texts)

    @classmethod
    def normalizers(cls, parts: UnigramParts) -> list[Any]:
        return quotes_and_accents(parts)


class XlmRobertaTokenizer(DoubleSepLayout, UnigramTokenizer):
    """XLM-R's tokenizer: `<s> A </s>` or `<s> A </s></s> B </s>`.

    Its ids are those of fairseq: `<s> <pad> </s> <unk>` come first, and `<mask>` last.
    """

    names: ClassVar = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    roles: ClassVar = {
        "bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>",
        "cls_token": "<s>", "sep_token": "</s>",
    }  # fmt: skip
    first_pieces: ClassVar = 4
    unknown: ClassVar = 3
    template: ClassVar = ("<s> $A </s>", "<s> $A </s> </s> $B </s>")
    switches: ClassVar = {}
    class_name: ClassVar = "XLMRobertaTokenizer"
    model_file: ClassVar = "sentencepiece.bpe.model"
    expected: ClassVar = "tokenizer.json or sentencepiece.bpe.model"
    FILE_FIRST: ClassVar = ("<unk>", "<s>", "</s>")  # the first pieces of its SentencePiece model

    @classmethod
    def train(cls, config: XlmUnigram, texts: Iterable[str]) -> XlmRobertaTokenizer:
        """Train a tokenizer on texts."""
        return cls.train_parts(UnigramParts(()), config.vocab, texts)

    @classmethod
    def number(cls, pieces: Sequence[Piece], where: str) -> Sequence[Piece]:
        first = tuple(piece.text for piece in pieces[:3])
        if first != cls.FILE_FIRST:
            raise invalid(where, f"first pieces {shown(first)}, not {' '.join(cls.FILE_FIRST)}")
        own = [Piece(name, 0.0, CONTROL) for name in cls.names]
        return [*own[: cls.first_pieces], *pieces[3:], *own[cls.first_pieces :]]

    @classmethod
    def unnumber(cls, pieces: list[Piece]) -> list[Piece]:
        by_name = {piece.text: piece for piece in pieces}
        return [*(by_name[name] for name in cls.FILE_FIRST), *pieces[cls.first_pieces : -1]]

    @classmethod
    def prefer(cls, piece: str, score: float) -> float:
        return score

    @classmethod
    def normalizers(cls, parts: UnigramParts) -> list[Any]:
        return []


class BigBirdTokenizer(ClsSepLayout, UnigramTokenizer):
    """BigBird's tokenizer: `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`; the published pieces are those of GPT-2.

    All of them have the score 0: of several ways to divide a word, the one whose last piece is longest is taken, then
    the one whose last piece but one is, as in SentencePiece.
    """

    names: ClassVar = ("<pad>", "</s>", "<s>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
    roles: ClassVar = {
        "pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>", "cls_token": "[CLS]",
        "sep_token": "[SEP]", "mask_token": "[MASK]",
    }  # fmt: skip
    first_pieces: ClassVar = 7
    unknown: ClassVar = None  # 100 as published
    template: ClassVar = ("[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1")
    switches: ClassVar = {}
    class_name: ClassVar = "BigBirdTokenizer"
    model_file: ClassVar = "spiece.model"
    expected: ClassVar = "tokenizer.json or spiece.model"

    @classmethod
    def train(cls, config: BigBirdUnigram, texts: Iterable[str]) -> BigBirdTokenizer:
        """Train a tokenizer on texts."""
        return cls.train_parts(UnigramParts(()), config.vocab, texts)

    @classmethod
    def prefer(cls, piece: str, score: float) -> float:
        return score

    @classmethod
    def normalizers(cls, parts: UnigramParts) -> list[Any]:
        return []


def quotes_and_accents(parts: UnigramParts) -> list[Any]:
    """ALBERT's and XLNet's normalization: one kind of double quotes, no accents, and lower case."""
    from tokenizers import normalizers

    found: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    found += [] if parts.keep_accents else [normalizers.NFKD(), normalizers.StripAccents()]
    return [*found, normalizers.Lowercase()] if parts.lowercase else found
