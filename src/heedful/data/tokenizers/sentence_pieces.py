"""Two SentencePiece models with a vocabulary, as Marian has them: a text is split by the model of its language.

The vocabulary has the pieces of both models in an order of its own, and maybe target languages such as `>>fra<<`,
which begin a text; or each model has a vocabulary of its own. A piece that is not in it is unknown, although the model
has a number for it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.data.tokenizers.base import MAX_FILE, Encoding, parse_json, replace_surrogates, require_list
from heedful.data.tokenizers.sentencepiece import NORMAL, USER_DEFINED, parse_model
from heedful.data.tokenizers.sentencepiece import UNKNOWN as UNKNOWN_PIECE
from heedful.data.tokenizers.tokenizer import MAX_VOCAB, SPECIAL, TrainedTokenizer
from heedful.data.tokenizers.unigram_parts import SPACE
from heedful.data.tokenizers.wordpiece_files import CONFIG, read_tokenizer_settings
from heedful.errors import AGAIN, UserError, shown
from heedful.files.folders import has_file, read_bytes, read_json

if TYPE_CHECKING:
    import tokenizers

LANGUAGE = re.compile(r">>.*?<<", re.DOTALL)
VOCAB, TARGET_VOCAB, MODELS = "vocab.json", "target_vocab.json", ("source.spm", "target.spm")
SEPARATE = "separate_vocabs"
END, UNKNOWN, PAD = "</s>", "<unk>", "<pad>"  # their names; their ids are 0, 1 and the last one
KEPT = ("source_lang", "target_lang", "model_max_length")  # settings that are written as they were read


class SentencePieceTokenizer(TrainedTokenizer):
    """Marian's tokenizer, with our ids: `<pad> <unk> <bos> </s>`, then the others in their order."""

    suppressed = (TrainedTokenizer.pad, TrainedTokenizer.bos)
    forces_end = True

    def __init__(self, text: str, where: str) -> None:
        """Parse a file; `where` is its name in errors."""
        data = parse_json(text, where, self.invalid_file)
        found = data.get("sentencepiece") if isinstance(data, dict) else None
        if not isinstance(found, dict) or not _are_pieces(found.get("pieces")):
            raise self.invalid_file(where, "a file without its pieces")
        if "source_pieces" in found and not _are_pieces(found["source_pieces"]):
            raise self.invalid_file(where, "a file without the pieces of the source")
        try:
            models = [base64.b64decode(found[name], validate=True) for name in MODELS]
        except (KeyError, TypeError, ValueError):
            raise self.invalid_file(where, f"a file without {' and '.join(MODELS)} in base64") from None
        settings = found.get("settings")
        settings = settings if isinstance(settings, dict) else {}
        self._fill(models, found["pieces"], found.get("source_pieces"), settings, where)

    @classmethod
    def of(
        cls,
        models: Sequence[bytes],
        pieces: Sequence[str],
        source_pieces: Sequence[str] | None,
        settings: dict[str, Any],
        where: str,
    ) -> Any:
        """The tokenizer of two model files, and the pieces after the special ones; the source may have its own."""
        found = cls.__new__(cls)
        found._fill(models, pieces, source_pieces, settings, where)
        return found

    def _fill(
        self,
        models: Sequence[bytes],
        pieces: Sequence[str],
        source_pieces: Sequence[str] | None,
        settings: dict[str, Any],
        where: str,
    ) -> None:
        self.models, self.settings = tuple(models), settings
        self._names, self._numbers = self._vocabulary(pieces, where)
        self._source_names, self._source_numbers = self._names, self._numbers
        self.vocab, own = len(self._names), {}
        if source_pieces is not None:
            self._source_names, self._source_numbers = self._vocabulary(source_pieces, where)
            self.source_vocab, own = len(self._source_names), {"source_pieces": list(source_pieces)}
        engines = (_engine(data, f"{where}: {name}") for data, name in zip(models, MODELS, strict=True))
        self._engine, self._target_engine = engines
        files = {name: base64.b64encode(data).decode() for name, data in zip(MODELS, models, strict=True)}
        self.json = json.dumps({"sentencepiece": {**files, "pieces": list(pieces), **own, "settings": settings}})

    def _vocabulary(self, pieces: Sequence[str], where: str) -> tuple[list[str], dict[str, int]]:
        """The names of all tokens, and the ids of the pieces after the special ones."""
        numbers = {piece: number for number, piece in enumerate(pieces, len(SPECIAL))}
        if len(numbers) < len(pieces) or any(replace_surrogates(piece)[1] for piece in pieces):
            raise self.invalid_file(where, "pieces that occur twice, or are not valid text")
        return [SPECIAL[self.pad], SPECIAL[self.unk], SPECIAL[self.bos], END, *pieces], numbers

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode each text as a source, a language first if it begins with one."""
        return self._encode(self._engine, self._source_names, self._source_numbers, texts)

    def _encode(
        self, engine: tokenizers.Tokenizer, known: Sequence[str], numbers: dict[str, int], texts: Sequence[str]
    ) -> list[Encoding]:
        """The encodings of texts, which an engine splits into pieces of a vocabulary."""
        split = [_split_language(text) for text in require_list(texts)]
        cleaned = [replace_surrogates(rest) for _, rest in split]
        found = engine.encode_batch([rest for rest, _ in cleaned], add_special_tokens=False)
        encoded = []
        for (code, _), (_, replaced), one in zip(split, cleaned, found, strict=True):
            names = [*([code] if code else []), *one.tokens]
            first = [(0, len(code))] if code else []
            spans = [*first, *((start + len(code), end + len(code)) for start, end in one.offsets)]
            ids = [numbers.get(name, self.unk) for name in names]
            encoded.append(Encoding(ids, spans, [known[number] for number in ids], replaced))
        return encoded

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        return [one.ids for one in self.encode_batch(texts)]

    def target_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text in the language of the target, which its own model splits."""
        return [one.ids for one in self._encode(self._target_engine, self._names, self._numbers, texts)]

    def source_pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces of ids of a source."""
        return [self._source_names[number] for number in ids]

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text, without special tokens."""
        pieces = (self._names[number] for number in ids if number not in self.special)
        return "".join(pieces).replace(SPACE, " ").strip(" ")

    @property
    def token_names(self) -> list[str]:
        """The name of each token in Marian's vocabulary, after the special ones."""
        return self._names

    @property
    def source_names(self) -> list[str]:
        """The name of each token of a source, after the special ones."""
        return self._source_names

    @cached_property
    def _pieces(self) -> list[str]:
        return self._names

    def files(self, longest: int) -> dict[str, str | bytes]:
        """The Hugging Face tokenizer files, by name."""
        separate = self.source_vocab is not None
        settings = {"tokenizer_class": "MarianTokenizer", "model_max_length": longest, **self.settings}
        settings |= {"eos_token": END, "unk_token": UNKNOWN, "pad_token": PAD, SEPARATE: separate}
        vocabularies = {VOCAB: self._source_names, **({TARGET_VOCAB: self._names} if separate else {})}
        contents: dict[str, Any] = {CONFIG: settings}
        for file, names in vocabularies.items():
            contents[file] = {name: number for number, name in enumerate([END, UNKNOWN, *names[4:], PAD])}
        texts = {file: json.dumps(value, ensure_ascii=False, indent=2) + "\n" for file, value in contents.items()}
        return {**dict(zip(MODELS, self.models, strict=True)), **texts}

    @classmethod
    def from_folder(cls, folder: Path, vocab: int, source_vocab: int | None) -> SentencePieceTokenizer | None:
        """The tokenizer of a Hugging Face folder, if it has one.

        The sizes of the vocabularies are those of the model, with our `<bos>`; None: it has one for both sides.
        """
        if not has_file(folder, VOCAB):
            return None
        settings, separate = read_tokenizer_settings(folder), source_vocab is not None
        if bool(settings.get(SEPARATE)) != separate:
            raise UserError(
                "not supported: a vocabulary for each language without an embedding for each, or the other way around",
                where=f"{folder / CONFIG}: {SEPARATE}", found=str(not separate).lower(),
                expected=f"{str(separate).lower()}, as share_encoder_decoder_embeddings in config.json says",
                todo=AGAIN,
            )  # fmt: skip
        sizes = {VOCAB: vocab} if source_vocab is None else {VOCAB: source_vocab, TARGET_VOCAB: vocab}
        for name in (*MODELS, *sizes):
            if not has_file(folder, name):
                raise UserError("this file is missing", where=str(folder / name), todo=AGAIN)
        pieces = [_pieces_in(folder, name, size) for name, size in sizes.items()]
        models = [read_bytes(folder, name, MAX_FILE) for name in MODELS]
        kept = {key: settings[key] for key in KEPT if isinstance(settings.get(key), str | int)}
        source = pieces[0] if separate else None
        found: SentencePieceTokenizer = cls.of(models, pieces[-1], source, kept, str(folder))
        return found


def _are_pieces(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(one, str) for one in found)


def _pieces_in(folder: Path, name: str, size: int) -> list[str]:
    """The pieces of a vocabulary file without the special ones; `size` is that of the model's vocabulary."""
    where = folder / name
    names = _in_order(read_json(folder, name), where)
    if len(names) + 1 != size:
        key = "decoder_vocab_size" if name == TARGET_VOCAB else "vocab_size"
        raise UserError(
            "the tokenizer does not match the model", where=str(where), found=f"{len(names):,} pieces",
            expected=f"{size - 1:,}, the {key} of the model", todo=AGAIN,
        )  # fmt: skip
    if [*names[:2], names[-1]] != [END, UNKNOWN, PAD]:
        raise UserError(
            "not supported: special tokens in other places", where=str(where),
            found=shown([*names[:2], names[-1]]), expected=f"{END} and {UNKNOWN} first, and {PAD} last",
            todo="choose the folder of an OPUS-MT model as it was published",
        )  # fmt: skip
    return names[2:-1]


def _split_language(text: str) -> tuple[str, str]:
    """The language that a text begins with, if it does, and the rest."""
    found = LANGUAGE.match(text)
    return (found[0], text[found.end() :]) if found else ("", text)


def _in_order(vocab: Any, where: Path) -> list[str]:
    """The pieces of a vocab.json by their ids, which have no gaps."""
    fine = isinstance(vocab, dict) and 3 < len(vocab) <= MAX_VOCAB
    if not fine or not all(type(number) is int for number in vocab.values()):
        raise UserError("this file is no vocabulary", where=str(where), expected="an id for each piece", todo=AGAIN)
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise UserError("the ids of this vocabulary have gaps, or occur twice", where=str(where), todo=AGAIN)
    return sorted(vocab, key=vocab.__getitem__)


def _engine(data: bytes, where: str) -> tokenizers.Tokenizer:
    """The unigram model of a file, which splits texts as SentencePiece does; its special pieces match no text."""
    from tokenizers import Tokenizer as Engine
    from tokenizers import models, normalizers, pre_tokenizers

    model = parse_model(data, where)
    if odd := next((piece.text for piece in model.pieces if piece.kind == USER_DEFINED), None):
        raise UserError(
            "not supported: user-defined pieces, which SentencePiece matches before all others", where=where,
            found=shown(odd), todo="choose the folder of a model without such pieces",
        )  # fmt: skip
    pieces = [(piece.text if piece.kind == NORMAL else f"{piece.text} ", piece.score) for piece in model.pieces]
    unknown = next((number for number, piece in enumerate(model.pieces) if piece.kind == UNKNOWN_PIECE), None)
    if unknown is None or len({piece for piece, _ in pieces}) < len(pieces):
        raise SentencePieceTokenizer.invalid_file(where, "a model without an unknown piece, or with a piece twice")
    engine = Engine(models.Unigram(pieces, unknown, False))
    try:
        if model.charsmap:
            engine.normalizer = normalizers.Precompiled(model.charsmap)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a panic in the package's compiled part is not an Exception
        raise SentencePieceTokenizer.invalid_file(where, "a normalization table that is damaged") from None
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Metaspace(SPACE, "always")]
    )
    return engine
