"""BERT's WordPiece tokenizer: its special tokens, and the layout of one text or a pair.

An external file is not passed to the `tokenizers` package: its pieces and settings are parsed, checked, and rebuilt,
so that nothing else in it has an effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from heedful.config import Config
from heedful.data.tokenizers import base
from heedful.data.tokenizers.base import (
    ClsSepLayout,
    EngineTokenizer,
    FoundTokenizer,
    replace_surrogates,
    require_corpus,
    train_engine,
)
from heedful.data.tokenizers.tokenizer import MOST, WordPiece, piece_trainer
from heedful.errors import UserError, shown

if TYPE_CHECKING:
    import tokenizers

NAMES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PREFIX = "##"  # of a piece that continues a word
LONGEST_WORD = 100  # characters; a longer word is unknown, as published
SETTINGS = ("clean_text", "handle_chinese_chars", "lowercase")  # of a normalizer, besides strip_accents
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")  # of an added token


class AddedTokenSpec(NamedTuple):
    """A token that is matched whole in a text, such as `[E1]`, and how."""

    content: str
    single_word: bool = False  # not within a word
    lstrip: bool = False  # with the spaces before it
    rstrip: bool = False  # with those after it
    normalized: bool = False  # in the text as the normalizer leaves it
    special: bool = True


class WordPieceFile(Config):
    """An existing WordPiece vocabulary."""

    kind: Literal["pieces"] = "pieces"
    file: str = Field(min_length=1, description="a vocab.txt, or a BERT tokenizer.json")
    lowercase: bool = Field(True, description="lowercase texts; ignored for a tokenizer.json")

    def read(self) -> BertTokenizer:
        """The pieces of the file."""
        if self.file.endswith(".json"):
            return BertTokenizer.load(self.file)
        return BertTokenizer.of(read_vocab(self.file), self.lowercase, self.file)

    @property
    def vocab(self) -> int:
        """How many there are."""
        return self.read().vocab


class Parts(NamedTuple):
    """The parts of a tokenizer file."""

    vocab: dict[str, int]
    normalizer: dict[str, bool | None]
    longest: int  # characters of a word; a longer one is unknown
    added: dict[int, AddedTokenSpec]  # by their ids; not the special tokens of every BERT


class BertTokenizer(ClsSepLayout, EngineTokenizer):
    """A BERT tokenizer; a text that contains a special token such as `[MASK]` is read as ordinary text.

    Added tokens are matched whole.
    """

    def __init__(self, text: str, where: str) -> None:
        """Build it from the text of a tokenizer file; `where` is what errors name."""
        self._begin(read_parts(parse_wordpiece_json(text, where), where), where)

    @classmethod
    def of(cls, pieces: Sequence[str], lowercase: bool, where: str) -> BertTokenizer:
        """A tokenizer of the lines of a vocab.txt, normalised as published: lower case takes accents off too."""
        normalizer = {"strip_accents": None, **dict.fromkeys(SETTINGS, True), "lowercase": lowercase}
        return cls.made(Parts(number_pieces(pieces, where), normalizer, LONGEST_WORD, {}), where)

    @classmethod
    def made(cls, parts: Parts, where: str) -> BertTokenizer:
        """A tokenizer of its parts."""
        found = cls.__new__(cls)
        found._begin(parts, where)
        return found

    @classmethod
    def train(cls, config: WordPiece, texts: Iterable[str]) -> BertTokenizer:
        """Train on some texts; deterministic."""
        corpus = require_corpus(texts)
        settings = {"strip_accents": None, **dict.fromkeys(SETTINGS, True), "lowercase": config.lowercase}
        engine = engine_of(list(NAMES), settings, LONGEST_WORD)
        train_engine(engine, corpus, piece_trainer(config, engine, corpus, NAMES), config.vocab)
        return cls.of([str(engine.id_to_token(number)) for number in range(engine.get_vocab_size())],
                      config.lowercase, "tokenizer")  # fmt: skip

    def _begin(self, parts: Parts, where: str) -> None:
        pieces, added = order_pieces(parts.vocab, where), order_added(parts, where)
        engine = engine_of(pieces, parts.normalizer, parts.longest, added)
        vocab = engine.get_vocab()
        self.json: str = engine.to_str()
        self.vocab: int = engine.get_vocab_size()
        self.pad, self.unk, self.cls, self.sep, self.mask = (vocab[name] for name in NAMES)
        self.special = frozenset(vocab[name] for name in (*NAMES, *(one.content for one in added if one.special)))
        if added:  # which are found in texts, as special tokens are not
            engine = engine_of(pieces, parts.normalizer, parts.longest, [one._replace(special=False) for one in added])
        self._engine = engine
        engine.encode_special_tokens = True  # the package means: encode their text as any other

    @property
    def mask_name(self) -> str:
        """`[MASK]`."""
        return NAMES[-1]

    def with_masks(self, text: str) -> list[int]:
        """The ids of a text in which `[MASK]` is the special token."""
        first, *rest = self.ids(text.split(self.mask_name))
        return [*first, *(number for part in rest for number in (self.mask, *part))]

    def readable(self, ids: Iterable[int]) -> str:
        """Ids as a text in which special tokens can be seen, words in one."""
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
        """The ids of each word; of a word that nothing is left of, the unknown one."""
        return [ids or [self.unk] for ids in self.ids(words)]

    @property
    def inner(self) -> list[bool]:
        """For each piece, whether it continues a word."""
        return [piece.startswith(PREFIX) for piece in self._pieces]

    expected: ClassVar = "tokenizer.json or vocab.txt"

    @staticmethod
    def found_in(folder: Path, vocab: int) -> FoundTokenizer:
        """The tokenizer of an external folder whose model has `vocab` token types, if there is one."""
        from heedful.data.tokenizers.wordpiece_files import find_tokenizer

        return find_tokenizer(folder, vocab)

    @staticmethod
    def damaged(where: str, found: str) -> UserError:
        """The error for a file that is not a BERT tokenizer."""
        return invalid(where, found)

    @cached_property
    def _pieces(self) -> list[str]:
        return [str(self._engine.id_to_token(number)) for number in range(self.vocab)]


def engine_of(
    pieces: Sequence[str], normalizer: dict[str, Any], longest: int, added: Sequence[AddedTokenSpec] = ()
) -> tokenizers.Tokenizer:
    """The package's tokenizer of some pieces in id order, with BERT's post-processor for other readers of its file.

    Words are split at brackets before they are looked up, so that no text can spell a special token.
    """
    from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers import Tokenizer as Engine

    vocab = {piece: number for number, piece in enumerate(pieces)}
    engine = Engine(
        models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=longest, continuing_subword_prefix=PREFIX)
    )
    engine.normalizer = normalizers.BertNormalizer(**normalizer)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece(prefix=PREFIX)
    engine.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, vocab[name]) for name in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    engine.add_special_tokens(list(NAMES))
    engine.add_tokens([AddedToken(one.content, **dict(zip(FLAGS, one[1:], strict=True))) for one in added])
    return engine


def number_pieces(pieces: Sequence[str], where: str) -> dict[str, int]:
    """The lines of a vocab.txt by id; duplicates are refused."""
    vocab = {piece: number for number, piece in enumerate(pieces)}
    if len(vocab) < len(pieces):
        twice = next(piece for number, piece in enumerate(pieces) if vocab[piece] != number)
        raise invalid(f"{where}:{vocab[twice] + 1}", f"the piece {shown(twice)} for the second time")
    return vocab


def order_added(parts: Parts, where: str) -> list[AddedTokenSpec]:
    """The added tokens in id order, if their ids are those of pieces or follow them."""
    end, seen = len(parts.vocab), set[str]()
    for number, token in sorted(parts.added.items()):
        here = parts.vocab.get(token.content, end)
        if number != here or not token.content or token.content in seen or replace_surrogates(token.content)[1]:
            raise invalid(where, f"the added token {shown(token.content)} with the id {number:,}, not {here:,}")
        end += here == end
        seen.add(token.content)
    return [parts.added[number] for number in sorted(parts.added)]


def order_pieces(vocab: dict[str, int], where: str) -> list[str]:
    """The pieces of a vocabulary in id order, if ids have no gaps and the special tokens are there."""
    if len(vocab) > MOST:
        raise invalid(where, f"{len(vocab):,} pieces")
    bad = next((piece for piece, number in vocab.items() if type(number) is not int), None)
    if bad is not None or sorted(vocab.values()) != list(range(len(vocab))):
        raise invalid(where, f"ids with gaps or doubles among {len(vocab):,} pieces")
    if lacking := [name for name in NAMES if name not in vocab]:
        raise invalid(where, f"{len(vocab):,} pieces, but none is {' or '.join(lacking)}")
    if lone := next((piece for piece in vocab if replace_surrogates(piece)[1]), None):
        raise invalid(where, f"the piece {shown(lone)}, which is not valid text")
    return sorted(vocab, key=vocab.__getitem__)


def read_parts(data: dict[str, Any], where: str) -> Parts:
    """Parse a tokenizer file, checking each part.

    Padding, truncation and post-processing of the file are ignored.
    """
    model, normalizer = data["model"], data["normalizer"]
    for part, wanted in (
        ("model", "WordPiece"),
        ("normalizer", "BertNormalizer"),
        ("pre_tokenizer", "BertPreTokenizer"),
    ):
        found = data[part].get("type") if isinstance(data.get(part), dict) else None
        if found != wanted and not (part == "model" and found is None and "continuing_subword_prefix" in model):
            raise invalid(where, f"{part} of type {shown(found)}")
    for setting, usual in (("unk_token", "[UNK]"), ("continuing_subword_prefix", PREFIX)):
        if model.get(setting, usual) != usual:
            raise invalid(where, f"a model with {setting} {shown(model[setting])}")
    longest = model.get("max_input_chars_per_word", LONGEST_WORD)
    if type(longest) is not int or not 1 <= longest <= 100_000:
        raise invalid(where, f"a model with max_input_chars_per_word {shown(longest)}")
    settings = {name: normalizer.get(name, True) for name in SETTINGS}
    accents = normalizer.get("strip_accents")
    if not all(isinstance(value, bool) for value in settings.values()) or not isinstance(accents, bool | None):
        raise invalid(where, f"a normalizer of {shown(normalizer)}")
    tokens = data.get("added_tokens") or []
    if not isinstance(tokens, list):
        raise invalid(where, f"added_tokens of {shown(tokens)}")
    added = dict(added_token(token, where) for token in tokens)
    return separate_special(model.get("vocab"), {**settings, "strip_accents": accents}, longest, added, where)


def parse_wordpiece_json(text: str, where: str) -> dict[str, Any]:
    """The object in a tokenizer file, if it has a model and a normalizer."""
    data = base.parse_json(text, where, invalid)
    if not isinstance(data, dict) or not all(isinstance(data.get(part), dict) for part in ("model", "normalizer")):
        raise invalid(where, "no object with a `model` and a `normalizer`")
    return data


def added_token(token: Any, where: str, number: Any = None) -> tuple[int, AddedTokenSpec]:
    """The id and settings of an added token; the id may be given separately."""
    if not isinstance(token, dict) or not isinstance(token.get("content"), str):
        raise invalid(where, f"an added token {shown(token)}")
    number, flags = token.get("id", number), {name: token[name] for name in FLAGS if name in token}
    if type(number) is not int or not 0 <= number < MOST or not all(type(flag) is bool for flag in flags.values()):
        raise invalid(where, f"an added token {shown(token)}")
    special = flags.get("special", False)
    return number, AddedTokenSpec(token["content"], **{"normalized": not special, "special": special, **flags})


def separate_special(
    vocab: Any, normalizer: dict[str, bool | None], longest: int, added: dict[int, AddedTokenSpec], where: str
) -> Parts:
    """The parts of a tokenizer: special tokens of every BERT that were added count as pieces."""
    if not isinstance(vocab, dict):
        raise invalid(where, "a model without its vocab")
    own = {token.content: number for number, token in added.items() if token.content in NAMES}
    if wrong := next((name for name, number in own.items() if vocab.get(name, number) != number), None):
        raise invalid(where, f"the added token {shown(wrong)} with another id than the piece")
    others = {number: token for number, token in added.items() if token.content not in NAMES}
    return Parts(vocab | own, normalizer, longest, others)


def read_vocab(path: str | Path) -> list[str]:
    """The lines of a vocab.txt, a piece each."""
    return [line.removesuffix("\r") for line in base.read_tokenizer_file(path, invalid).removesuffix("\n").split("\n")]


def invalid(where: str, found: str) -> UserError:
    """The error for a file that is not a BERT tokenizer."""
    return UserError(
        "this is not a BERT tokenizer, or it is damaged", where=where, found=found,
        expected="a tokenizer.json or vocab.txt of word pieces with " + " ".join(NAMES),
        todo="copy the file again, from the folder of the model that it belongs to",
    )  # fmt: skip
