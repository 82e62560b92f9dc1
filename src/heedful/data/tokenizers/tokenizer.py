"""Text to ids and back: a thin layer over the `tokenizers` package, which is imported only where it is used."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from pydantic import Field

from heedful.config import Config
from heedful.errors import UserError, shown
from heedful.files.reading import open_file

if TYPE_CHECKING:
    import tokenizers

SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>")  # ids 0 to 3
MOST = 1_000_000  # pieces
LARGEST = 100 * 2**20  # bytes of a tokenizer file
LETTERS = 1000  # characters that word pieces are built from; rarer ones are unknown
LONE = re.compile("[\ud800-\udfff]")
# What a tokenizer file may be made of: no part with patterns of its own, which could run for ever.
FRAMES: tuple[tuple[str, str | None, str | None], ...] = (  # model, pre_tokenizer, decoder
    ("BPE", "ByteLevel", "ByteLevel"),
    ("WordPiece", "BertPreTokenizer", "WordPiece"),
    ("Unigram", "Sequence", "Metaspace"),
    ("BPE", None, "Fuse"),
    ("WordLevel", "WhitespaceSplit", None),
)
PARTS = (*(name for frame in FRAMES for name in frame if name), "BertNormalizer", "Lowercase", "NFC", "Punctuation")


class Bpe(Config):
    """Byte-level byte-pair encoding (Sennrich et al., 2016): every text can be written, and comes back unchanged."""

    kind: Literal["bpe"] = "bpe"
    vocab: int = Field(8000, ge=260, le=MOST, description="pieces in all: 4 special ones, 256 bytes, the rest learned")
    lowercase: bool = Field(False, description="make texts lower case first")


class WordPiece(Config):
    """Words cut into the longest known pieces (Schuster and Nakajima, 2012), `##` where a piece continues a word."""

    kind: Literal["wordpiece"] = "wordpiece"
    vocab: int = Field(8000, ge=32, le=MOST, description="pieces in all, the special ones included")
    lowercase: bool = Field(False, description="make texts lower case first")


class Unigram(Config):
    """The likeliest of all ways to cut a text under a unigram model (Kudo, 2018), `▁` where a word begins."""

    kind: Literal["unigram"] = "unigram"
    vocab: int = Field(8000, ge=32, le=MOST, description="pieces in all, the 4 special ones included")
    lowercase: bool = Field(False, description="make texts lower case first")


class Characters(Config):
    """Every character is a token."""

    kind: Literal["characters"] = "characters"
    vocab: int = Field(
        1000, ge=5, le=MOST, description="characters known at the most, and 4 special tokens; rarer ones are unknown"
    )
    lowercase: bool = Field(False, description="make texts lower case first")


class WholeWords(Config):
    """Every word is a token, words being what stands between spaces; `<unk>` in a text is an unknown word."""

    kind: Literal["words"] = "words"
    vocab: int = Field(
        50_000, ge=5, le=MOST, description="words known at the most, and 4 special tokens; rarer ones are unknown"
    )
    lowercase: bool = Field(False, description="make texts lower case first")


TokenizerConfig: TypeAlias = Bpe | WordPiece | Unigram | Characters | WholeWords


class Encoding(NamedTuple):
    """A text in pieces: ids, the characters of the text that each covers, and how each reads."""

    ids: list[int]
    offsets: list[tuple[int, int]]  # [start, end) in the text as it was given
    pieces: list[str]
    replaced: int  # lone surrogates, which no encoding of text can hold, read as U+FFFD


class Tokenizer:
    """A trained tokenizer; text that spells a special token, such as `<eos>`, is ordinary text to it."""

    pad, unk, bos, eos = range(4)

    def __init__(self, text: str, where: str) -> None:
        """Build it from the text of a tokenizer file; `where` is what errors name."""
        self._engine = checked(text, where)
        self.json: str = self._engine.to_str()
        self.vocab: int = self._engine.get_vocab_size()

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
        """Learn the pieces of some texts, the same ones each time."""
        corpus = [clean(text)[0] for text in texts]
        if not any(map(str.strip, corpus)):
            raise UserError("there is no text to train a tokenizer on", where="tokenizer", found=f"{len(corpus)} texts")
        if isinstance(config, Characters | WholeWords):
            return cls(listed(config, corpus).to_str(), "tokenizer")
        engine = untrained(config)
        try:
            with one_by_one() if isinstance(config, Unigram) else nullcontext():
                engine.train_from_iterator(corpus, trainer(config, engine, corpus))
        except Exception as error:  # the package raises nothing more special
            raise UserError(
                f"the tokenizer cannot be trained: {error}",
                where="tokenizer.vocab",
                found=str(config.vocab),
                todo="raise tokenizer.vocab, or give more text",
            ) from None
        return cls(settled(engine.to_str()), "tokenizer")

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a file that `save` wrote."""
        try:
            with open_file(path) as file:
                data = file.read(LARGEST + 1)
            if len(data) > LARGEST:
                raise damaged(str(path), f"over {LARGEST:,} bytes")
            return cls(data.decode(), str(path))
        except UnicodeDecodeError as error:
            raise damaged(f"{path}:byte {error.start}", "bytes that are not UTF-8") from None
        except OSError as error:
            raise UserError(f"this tokenizer cannot be read: {error.strerror}", where=str(path)) from None

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json whole or not at all."""
        write(self.json, path)

    @property
    def sha256(self) -> str:
        """What tells this tokenizer from any other."""
        return hashlib.sha256(self.json.encode()).hexdigest()

    def encode(self, text: str) -> Encoding:
        """The pieces of a text, without special tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """The pieces of each text."""
        cleaned = [clean(text) for text in texts]
        found = self._engine.encode_batch([text for text, _ in cleaned], add_special_tokens=False)
        return [
            Encoding(self._ordinary(one.ids), one.offsets, self.pieces(self._ordinary(one.ids)), replaced)
            for one, (_, replaced) in zip(found, cleaned, strict=True)
        ]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text alone, which is quicker than `encode_batch`."""
        found = self._engine.encode_batch_fast([clean(text)[0] for text in texts], add_special_tokens=False)
        return [self._ordinary(one.ids) for one in found]

    def _ordinary(self, ids: list[int]) -> list[int]:
        """Ids of a text, where a whole word that spells a special token is an unknown one; no other piece can."""
        if not self._whole:
            return ids
        return [number if number >= len(SPECIAL) else self.unk for number in ids]

    def decode(self, ids: Iterable[int]) -> str:
        """The text that ids stand for, special tokens left out."""
        return str(self._engine.decode([number for number in ids if number >= len(SPECIAL)]))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """How each id reads; bytes that are only a part of a character read as \\xe2."""
        return [self._pieces[number] for number in ids]

    @cached_property
    def _whole(self) -> bool:
        from tokenizers import models

        return isinstance(self._engine.model, models.WordLevel)

    @cached_property
    def _pieces(self) -> list[str]:
        from tokenizers import decoders

        names = [str(self._engine.id_to_token(number)) for number in range(self.vocab)]
        if not isinstance(self._engine.decoder, decoders.ByteLevel):
            return names
        letters = {letter: byte for byte, letter in enumerate(byte_letters())}
        return [bytes(letters[letter] for letter in name).decode(errors="backslashreplace") for name in names]


def write(text: str, path: str | Path) -> None:
    """Write the file of a tokenizer whole or not at all."""
    path = Path(path)
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=path.name + ".tmp-", delete=False
        ) as file:
            temporary = file.name
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise UserError(f"the tokenizer cannot be written: {error.strerror}", where=str(path)) from None


def several(texts: Sequence[str]) -> list[str]:
    """The texts as a list; a text alone is refused, which would be a list of its letters."""
    if isinstance(texts, str):
        raise TypeError("give a list of texts, as [text]; a text alone would be read letter by letter")
    return list(texts)


def clean(text: str) -> tuple[str, int]:
    """The text with U+FFFD for each lone surrogate, and how many there were."""
    return LONE.subn("\ufffd", text)


def byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level pieces: its own where it has a visible one."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = {byte: 256 + place for place, byte in enumerate(sorted(set(range(256)) - set(visible)))}
    return [chr(hidden.get(byte, byte)) for byte in range(256)]


def listed(config: Characters | WholeWords, corpus: list[str]) -> tokenizers.Tokenizer:
    """A tokenizer of the commonest characters or words of a text, the commonest first."""
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
        engine = Engine(models.BPE(vocab, [], unk_token=SPECIAL[Tokenizer.unk]))
        engine.decoder = decoders.Fuse()
    else:
        engine = Engine(models.WordLevel(vocab, unk_token=SPECIAL[Tokenizer.unk]))
        engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    engine.normalizer = lower
    engine.add_special_tokens(list(SPECIAL))
    return engine


def untrained(config: Bpe | WordPiece | Unigram) -> tokenizers.Tokenizer:
    """A tokenizer of a kind, with all but its pieces.

    Each kind cuts words at `<` and `>` before it looks for pieces, so that no piece can spell a special token.
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
        engine = Engine(models.WordPiece(unk_token=SPECIAL[Tokenizer.unk]))
        # Accents stay even in lower case: many languages, German among them, tell words apart by them.
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
    """What learns the pieces of a kind, without drawing a progress bar."""
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
        vocab_size=config.vocab, special_tokens=list(SPECIAL), unk_token=SPECIAL[Tokenizer.unk], show_progress=False
    )


@contextmanager
def one_by_one() -> Iterator[None]:
    """Let `tokenizers` use one thread: several add up a unigram model's counts in the order in which they are done."""
    name = "TOKENIZERS_PARALLELISM"
    former = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if former is None:
            del os.environ[name]
        else:
            os.environ[name] = former


def piece_trainer(
    config: WordPiece, engine: tokenizers.Tokenizer, corpus: list[str], special: Sequence[str]
) -> tokenizers.trainers.WordPieceTrainer:
    """What learns word pieces, the same ones each time; the special tokens come first."""
    from tokenizers import trainers

    # Left alone, the trainer numbers letters in the order of a hash table, another one in each process, and breaks ties
    # by number. Given as special tokens (which `settled` makes ordinary again), they are numbered as listed.
    counts = Counter[str]()
    for text in corpus:
        counts.update(engine.normalizer.normalize_str(text))
    common = sorted((letter for letter in counts if not letter.isspace()), key=lambda letter: (-counts[letter], letter))
    letters = sorted(common[: min(LETTERS, (config.vocab - len(special)) // 2)])
    inner = [letter for letter in letters if len(engine.pre_tokenizer.pre_tokenize_str(f"a{letter}a")) == 1]
    return trainers.WordPieceTrainer(
        vocab_size=config.vocab,
        special_tokens=[*special, *(f"##{letter}" for letter in inner)],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )


def settled(text: str) -> str:
    """A freshly trained tokenizer file with what hash tables left to chance put in order."""
    data = json.loads(text)
    data["added_tokens"] = data["added_tokens"][: len(SPECIAL)]
    if data["model"]["type"] == "Unigram":
        # Scores are sums whose last digits depend on the order of adding. Letters that are in no learned piece get
        # the lowest score plus a small step each, in any order: here by letter.
        learned = {piece: round(score, 9) for piece, score in data["model"]["vocab"][len(SPECIAL) :]}
        rare_below = min(learned.values(), default=0.0) + 1e-4 * len(learned)
        rare = sorted(piece for piece, score in learned.items() if len(piece) == 1 and score < rare_below)
        learned |= dict(zip(rare, sorted((learned[piece] for piece in rare), reverse=True), strict=True))
        ordered = sorted(learned.items(), key=lambda item: (-item[1], item[0]))
        data["model"]["vocab"] = [*data["model"]["vocab"][: len(SPECIAL)], *ordered]
    return json.dumps(data, ensure_ascii=False)


def checked(text: str, where: str) -> tokenizers.Tokenizer:
    """The tokenizer that a file's text describes, if it is of a kind that is made here."""
    from tokenizers import Tokenizer as Engine

    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise damaged(f"{where}:{error.lineno}:{error.colno}", f"text that is not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise damaged(where, f"JSON that cannot be read: {error}") from None
    if (found := foreign(data)) is not None:
        raise damaged(where, found)
    try:
        engine = Engine.from_str(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in the package's compiled part is no Exception
        raise damaged(where, f"what the tokenizers package refuses: {error}") from None
    vocab = engine.get_vocab()
    special = [(number, token.content) for number, token in sorted(engine.get_added_tokens_decoder().items())]
    if special != list(enumerate(SPECIAL)):
        raise damaged(where, f"special tokens {shown(special)}")
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise damaged(where, f"ids with gaps or doubles among {len(vocab):,} pieces")
    if data["model"]["type"] == "BPE" and data["pre_tokenizer"] and not vocab.keys() >= set(byte_letters()):
        raise damaged(where, "no piece for some bytes")
    engine.encode_special_tokens = True  # the package means: encode their text as any other
    return engine


def foreign(data: Any) -> str | None:
    """What a tokenizer file holds that none made here does, before the package acts on it."""
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
            return f"a setting for {part}, which would change texts unasked"
    for setting in ("dropout", "end_of_word_suffix", *(("continuing_subword_prefix",) if frame[0] == "BPE" else ())):
        if model.get(setting) is not None:
            return f"a model with {setting} {shown(model[setting])}"
    names: dict[str | None, int | None] = {"ByteLevel": None, "Metaspace": Tokenizer.unk}  # bytes are all known
    unknown = names[frame[2]] if frame[2] in names else SPECIAL[Tokenizer.unk]
    if model.get("unk_id" if frame[0] == "Unigram" else "unk_token") != unknown:
        return "another unknown token than <unk>"
    pieces, merges = model.get("vocab"), model.get("merges", [])
    if not isinstance(pieces, list if frame[0] == "Unigram" else dict) or not isinstance(merges, list):
        return "a model without its vocab or merges"
    for merge in merges:
        # The package panics, with a trace on stderr, at a merge into a piece that is not there.
        if not isinstance(merge, list) or "".join(map(str, merge)) not in pieces:
            return f"a merge into no known piece, {shown(merge)}"
    if merges and frame[1] is None:
        return "characters that are merged"
    return None


def types_in(part: Any) -> Iterator[Any]:
    """Each `type` that a part of a tokenizer file names, its own first."""
    if isinstance(part, dict):
        if "type" in part:
            yield part["type"]
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from types_in(inner)


def damaged(where: str, found: str) -> UserError:
    """The error for a tokenizer file that is not as `save` wrote it."""
    return UserError(
        "this tokenizer file is damaged or of another make",
        where=where,
        found=found,
        expected="a tokenizer.json written by Heedful",
        todo="take it from the run that trained it, or train again",
    )
