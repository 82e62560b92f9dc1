"""Text to ids and back: a thin layer over the `tokenizers` package, which is imported only where it is used."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import Field

from heedful.config import Config
from heedful.data.tokenizers.base import EngineTokenizer, parse_json, require_corpus, train_engine
from heedful.errors import UserError, shown

if TYPE_CHECKING:
    import tokenizers

SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>")  # ids 0 to 3
MAX_VOCAB = 1_000_000
MAX_LETTERS = 1000  # characters that WordPiece is built from; rarer ones are unknown
# Supported components of a tokenizer file: none with custom patterns, which could run forever.
FRAMES: tuple[tuple[str, str | None, str | None], ...] = (  # model, pre_tokenizer, decoder
    ("BPE", "ByteLevel", "ByteLevel"),
    ("WordPiece", "BertPreTokenizer", "WordPiece"),
    ("Unigram", "Sequence", "Metaspace"),
    ("BPE", None, "Fuse"),
    ("WordLevel", "WhitespaceSplit", None),
)
PARTS = (*(name for frame in FRAMES for name in frame if name), "BertNormalizer", "Lowercase", "NFC", "Punctuation")


class Bpe(Config):
    """Byte-level byte-pair encoding (Sennrich et al., 2016): every text can be encoded, and decodes unchanged."""

    kind: Literal["bpe"] = "bpe"
    vocab: int = Field(
        8000, ge=260, le=MAX_VOCAB, description="vocabulary size: 4 special ones, 256 bytes, the rest learned"
    )
    lowercase: bool = Field(False, description="lowercase texts")


class WordPiece(Config):
    """Words split into the longest known pieces (Schuster and Nakajima, 2012), `##` where a piece continues a word."""

    kind: Literal["wordpiece"] = "wordpiece"
    vocab: int = Field(8000, ge=32, le=MAX_VOCAB, description="vocabulary size, including special tokens")
    lowercase: bool = Field(False, description="lowercase texts")


class Unigram(Config):
    """The most likely segmentation under a unigram model (Kudo, 2018), `▁` where a word starts."""

    kind: Literal["unigram"] = "unigram"
    vocab: int = Field(8000, ge=32, le=MAX_VOCAB, description="vocabulary size, including 4 special tokens")
    lowercase: bool = Field(False, description="lowercase texts")


class Characters(Config):
    """Every character is a token."""

    kind: Literal["characters"] = "characters"
    vocab: int = Field(
        1000,
        ge=5,
        le=MAX_VOCAB,
        description="maximum vocabulary size, including 4 special tokens; rarer characters are unknown",
    )
    lowercase: bool = Field(False, description="lowercase texts")


class WholeWords(Config):
    """Every whitespace-separated word is a token; `<unk>` in a text is an unknown word."""

    kind: Literal["words"] = "words"
    vocab: int = Field(
        50_000,
        ge=5,
        le=MAX_VOCAB,
        description="maximum vocabulary size, including 4 special tokens; rarer words are unknown",
    )
    lowercase: bool = Field(False, description="lowercase texts")


TokenizerConfig: TypeAlias = Bpe | WordPiece | Unigram | Characters | WholeWords


class TrainedTokenizer(EngineTokenizer):
    """A tokenizer trained on texts: `<eos>` in a text is ordinary text, not the special token."""

    pad, unk, bos, eos = range(4)
    special = frozenset(range(4))
    suppressed: tuple[int, ...] = (pad, unk, bos)  # tokens that are never generated
    forces_end: bool = False  # whether a text that is cut at a maximum length has the end token there

    source_vocab: int | None = None  # where the source of a translation has ids of its own; `vocab` is of the target

    def target_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text as the target of a translation; by default, those of any text."""
        return self.ids(texts)

    def source_pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each token of a source; by default, that of any token."""
        return self.pieces(ids)

    @property
    def source_names(self) -> list[str]:
        """The name of each token of a source; by default, that of any token."""
        return self.token_names

    def __init__(self, text: str, where: str) -> None:
        """Parse a tokenizer.json; `where` is the file's name in errors."""
        self._engine = open_engine(text, where)
        self.json: str = self._engine.to_str()
        self.vocab: int = self._engine.get_vocab_size()

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> TrainedTokenizer:
        """Train a tokenizer on texts; the same texts always give the same tokenizer."""
        corpus = require_corpus(texts)
        if isinstance(config, Characters | WholeWords):
            return cls(build_from_counts(config, corpus).to_str(), "tokenizer")
        engine = new_engine(config)
        train_engine(engine, corpus, trainer(config, engine, corpus), config.vocab)
        return cls(make_deterministic(engine.to_str()), "tokenizer")

    def _ordinary(self, ids: list[int]) -> list[int]:
        """Replace special tokens by the unknown token: with whole words, a word may spell one."""
        if not self._whole:
            return ids
        return [number if number >= len(SPECIAL) else self.unk for number in ids]

    @staticmethod
    def invalid_file(where: str, found: str) -> UserError:
        """The error for a tokenizer file that is not as `save` wrote it."""
        return invalid(where, found)

    @cached_property
    def _whole(self) -> bool:
        from tokenizers import models

        return isinstance(self._engine.model, models.WordLevel)

    @cached_property
    def _pieces(self) -> list[str]:
        from tokenizers import decoders

        names = self.token_names
        if not isinstance(self._engine.decoder, decoders.ByteLevel):
            return names
        letters = {letter: byte for byte, letter in enumerate(byte_letters())}
        return [bytes(letters[letter] for letter in name).decode(errors="backslashreplace") for name in names]


def byte_letters() -> list[str]:
    """The character that represents each byte in byte-level BPE: its own if it is visible."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = {byte: 256 + place for place, byte in enumerate(sorted(set(range(256)) - set(visible)))}
    return [chr(hidden.get(byte, byte)) for byte in range(256)]


def build_from_counts(config: Characters | WholeWords, corpus: list[str]) -> tokenizers.Tokenizer:
    """A tokenizer of the most frequent characters or words of a corpus."""
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    lower = normalizers.Lowercase() if config.lowercase else None
    counts = Counter[str]()
    for text in (lower.normalize_str(text) for text in corpus) if lower else corpus:
        counts.update(text if isinstance(config, Characters) else text.split())
    for name in SPECIAL:
        counts.pop(name, None)
    common = sorted(counts, key=lambda piece: (-counts[piece], piece))[: config.vocab - len(SPECIAL)]
    vocab = {piece: number for number, piece in enumerate([*SPECIAL, *common])}
    if isinstance(config, Characters):
        engine = Engine(models.BPE(vocab, [], unk_token=SPECIAL[TrainedTokenizer.unk]))
        engine.decoder = decoders.Fuse()
    else:
        engine = Engine(models.WordLevel(vocab, unk_token=SPECIAL[TrainedTokenizer.unk]))
        engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    engine.normalizer = lower
    engine.add_special_tokens(list(SPECIAL))
    return engine


def new_engine(config: Bpe | WordPiece | Unigram) -> tokenizers.Tokenizer:
    """An untrained tokenizer of each kind.

    Every pre-tokenizer splits words at `<` and `>`, so that no piece can spell a special token.
    """
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    lowercase = [normalizers.Lowercase()] if config.lowercase else []
    if isinstance(config, Bpe):
        engine = Engine(models.BPE())
        engine.normalizer = normalizers.Sequence(lowercase)
        engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        engine.decoder = decoders.ByteLevel()
    elif isinstance(config, WordPiece):
        engine = Engine(models.WordPiece(unk_token=SPECIAL[TrainedTokenizer.unk]))
        # Accents are kept even in lower case: many languages, German among them, distinguish words by them.
        engine.normalizer = normalizers.BertNormalizer(strip_accents=False, lowercase=config.lowercase)
        engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        engine.decoder = decoders.WordPiece()
    else:
        engine = Engine(models.Unigram())
        engine.normalizer = normalizers.Sequence([normalizers.NFC(), *lowercase])
        engine.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation("isolated")]
        )
        engine.decoder = decoders.Metaspace()
    return engine


def trainer(config: Bpe | WordPiece | Unigram, engine: tokenizers.Tokenizer, corpus: list[str]) -> Any:
    """The trainer for each kind of tokenizer."""
    from tokenizers import pre_tokenizers, trainers

    if isinstance(config, WordPiece):
        return piece_trainer(config, engine, corpus, SPECIAL)
    if isinstance(config, Bpe):
        return trainers.BpeTrainer(
            vocab_size=config.vocab,
            special_tokens=list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    return trainers.UnigramTrainer(
        vocab_size=config.vocab,
        special_tokens=list(SPECIAL),
        unk_token=SPECIAL[TrainedTokenizer.unk],
        show_progress=False,
    )


def piece_trainer(
    config: WordPiece, engine: tokenizers.Tokenizer, corpus: list[str], special: Sequence[str]
) -> tokenizers.trainers.WordPieceTrainer:
    """A deterministic WordPiece trainer; special tokens come first."""
    from tokenizers import trainers

    # By default, the trainer numbers letters in hash-table order, which differs between processes, and breaks ties
    # by number. Given as special tokens (which `make_deterministic` makes ordinary again), they are numbered as listed.
    counts = Counter[str]()
    for text in corpus:
        counts.update(engine.normalizer.normalize_str(text))
    common = sorted((letter for letter in counts if not letter.isspace()), key=lambda letter: (-counts[letter], letter))
    letters = sorted(common[: min(MAX_LETTERS, (config.vocab - len(special)) // 2)])
    inner = [letter for letter in letters if len(engine.pre_tokenizer.pre_tokenize_str(f"a{letter}a")) == 1]
    return trainers.WordPieceTrainer(
        vocab_size=config.vocab,
        special_tokens=[*special, *(f"##{letter}" for letter in inner)],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )


def make_deterministic(text: str) -> str:
    """Sort what depends on hash-table order in a freshly trained tokenizer file."""
    data = json.loads(text)
    data["added_tokens"] = data["added_tokens"][: len(SPECIAL)]
    if data["model"]["type"] == "Unigram":
        vocab = data["model"]["vocab"]
        data["model"]["vocab"] = [*vocab[: len(SPECIAL)], *sort_unigram(vocab[len(SPECIAL) :])]
    return json.dumps(data, ensure_ascii=False)


def sort_unigram(vocab: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """The ordinary pieces of a freshly trained unigram model with their scores, independent of hash-table order."""
    # Scores are sums whose last digits, up to 1e-10, depend on the order of adding, another one in each process:
    # six digits are kept. Letters that are in no learned piece get the lowest score plus a small step each, in any
    # order: here by letter.
    learned = {piece: round(score, 6) for piece, score in vocab}
    rare_below = min(learned.values(), default=0.0) + 1e-4 * len(learned)
    rare = sorted(piece for piece, score in learned.items() if len(piece) == 1 and score < rare_below)
    learned |= dict(zip(rare, sorted((learned[piece] for piece in rare), reverse=True), strict=True))
    return sorted(learned.items(), key=lambda item: (-item[1], item[0]))


def open_engine(text: str, where: str) -> tokenizers.Tokenizer:
    """Parse a tokenizer file of a kind that Heedful trains."""
    from tokenizers import Tokenizer as Engine

    data = parse_json(text, where, invalid)
    if (found := unsupported_part(data)) is not None:
        raise invalid(where, found)
    try:
        engine = Engine.from_str(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in the package's compiled part is not an Exception
        raise invalid(where, f"the tokenizers package refuses it: {error}") from None
    vocab = engine.get_vocab()
    special = [(number, token.content) for number, token in sorted(engine.get_added_tokens_decoder().items())]
    if special != list(enumerate(SPECIAL)):
        raise invalid(where, f"special tokens {shown(special)}")
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise invalid(where, f"missing or duplicate ids among {len(vocab):,} pieces")
    if data["model"]["type"] == "BPE" and data["pre_tokenizer"] and not vocab.keys() >= set(byte_letters()):
        raise invalid(where, "no piece for some bytes")
    engine.encode_special_tokens = True  # the text of a special token is encoded as ordinary text
    return engine


def unsupported_part(data: Any) -> str | None:
    """A component of a tokenizer file that Heedful never writes, or None; checked before the package parses it."""
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        return "no object with a `model`"
    model = data["model"]
    frame = tuple(next(types_in(data.get(part)), None) for part in ("model", "pre_tokenizer", "decoder"))
    if frame not in FRAMES:
        return f"model, pre_tokenizer and decoder of types {shown(frame)}"
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        for name in types_in(data.get(part)):
            if name not in PARTS:
                return f"{part} of type {shown(name)}"
    for part in ("truncation", "padding", "post_processor"):
        if data.get(part) is not None:
            return f"a setting for {part}, which would change texts"
    for setting in ("dropout", "end_of_word_suffix", *(("continuing_subword_prefix",) if frame[0] == "BPE" else ())):
        if model.get(setting) is not None:
            return f"a model with {setting} {shown(model[setting])}"
    names: dict[str | None, int | None] = {
        "ByteLevel": None,
        "Metaspace": TrainedTokenizer.unk,
    }  # byte-level BPE has no unknown token
    unknown = names[frame[2]] if frame[2] in names else SPECIAL[TrainedTokenizer.unk]
    if model.get("unk_id" if frame[0] == "Unigram" else "unk_token") != unknown:
        return "an unknown token other than <unk>"
    pieces, merges = model.get("vocab"), model.get("merges", [])
    if not isinstance(pieces, list if frame[0] == "Unigram" else dict) or not isinstance(merges, list):
        return "a model without its vocab or merges"
    for merge in merges:
        # The package panics, with a backtrace on stderr, at a merge into an unknown piece.
        if not isinstance(merge, list) or "".join(map(str, merge)) not in pieces:
            return f"a merge into an unknown piece, {shown(merge)}"
    if merges and frame[1] is None:
        return "merges of characters"
    return None


def types_in(part: Any) -> Iterator[Any]:
    """All `type` values in a part of a tokenizer file, its own first."""
    if isinstance(part, dict):
        if "type" in part:
            yield part["type"]
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from types_in(inner)


def invalid(where: str, found: str) -> UserError:
    """The error for a tokenizer file that is not as `save` wrote it."""
    return UserError(
        "this tokenizer file is damaged or was not written by Heedful", where=where, found=found,
        expected="a tokenizer.json written by Heedful", todo="copy it from the run that trained it, or train again",
    )  # fmt: skip
