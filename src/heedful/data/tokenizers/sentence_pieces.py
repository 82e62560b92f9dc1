"""Two SentencePiece models and one vocabulary, as Marian has them: a text is split by the model of its language.

The vocabulary has the pieces of both models in an order of its own, and maybe target languages such as `>>fra<<`,
which begin a text. A piece that is not in it is unknown, although the model has a number for it.
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
VOCAB, MODELS = "vocab.json", ("source.spm", "target.spm")
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
        pieces = found.get("pieces") if isinstance(found, dict) else None
        if (
            not isinstance(found, dict)
            or not isinstance(pieces, list)
            or not all(isinstance(one, str) for one in pieces)
        ):
            raise self.invalid_file(where, "a file without its pieces")
        try:
            models = [base64.b64decode(found[name], validate=True) for name in MODELS]
        except (KeyError, TypeError, ValueError):
            raise self.invalid_file(where, f"a file without {' and '.join(MODELS)} in base64") from None
        settings = found.get("settings")
        self._fill(models, pieces, settings if isinstance(settings, dict) else {}, where)

    @classmethod
    def of(cls, models: Sequence[bytes], pieces: Sequence[str], settings: dict[str, Any], where: str) -> Any:
        """The tokenizer of two model files, and the pieces after the special ones."""
        found = cls.__new__(cls)
        found._fill(models, pieces, settings, where)
        return found

    def _fill(self, models: Sequence[bytes], pieces: Sequence[str], settings: dict[str, Any], where: str) -> None:
        self.models, self.settings = tuple(models), settings
        self._names = [SPECIAL[self.pad], SPECIAL[self.unk], SPECIAL[self.bos], END, *pieces]
        self.vocab = len(self._names)
        self._numbers = {piece: number for number, piece in enumerate(self._names[4:], 4)}
        if len(self._numbers) < len(pieces) or any(replace_surrogates(piece)[1] for piece in pieces):
            raise self.invalid_file(where, "pieces that occur twice, or are not valid text")
        engines = (_engine(data, f"{where}: {name}") for data, name in zip(models, MODELS, strict=True))
        self._engine, self._target_engine = engines
        files = {name: base64.b64encode(data).decode() for name, data in zip(MODELS, models, strict=True)}
        self.json = json.dumps({"sentencepiece": {**files, "pieces": list(pieces), "settings": settings}})

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode each text, a language first if it begins with one."""
        return self._encode(self._engine, texts)

    def _encode(self, engine: tokenizers.Tokenizer, texts: Sequence[str]) -> list[Encoding]:
        """The encodings of texts, which an engine splits."""
        split = [_split_language(text) for text in require_list(texts)]
        cleaned = [replace_surrogates(rest) for _, rest in split]
        found = engine.encode_batch([rest for rest, _ in cleaned], add_special_tokens=False)
        encoded = []
        for (code, _), (_, replaced), one in zip(split, cleaned, found, strict=True):
            names = [*([code] if code else []), *one.tokens]
            first = [(0, len(code))] if code else []
            spans = [*first, *((start + len(code), end + len(code)) for start, end in one.offsets)]
            ids = [self._numbers.get(name, self.unk) for name in names]
            encoded.append(Encoding(ids, spans, self.pieces(ids), replaced))
        return encoded

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        return [one.ids for one in self.encode_batch(texts)]

    def target_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text in the language of the target, which its own model splits."""
        return [one.ids for one in self._encode(self._target_engine, texts)]

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text, without special tokens."""
        pieces = (self._names[number] for number in ids if number not in self.special)
        return "".join(pieces).replace(SPACE, " ").strip(" ")

    @property
    def token_names(self) -> list[str]:
        """The name of each token in Marian's vocabulary, after the special ones."""
        return self._names

    @cached_property
    def _pieces(self) -> list[str]:
        return self._names

    def files(self, longest: int) -> dict[str, str | bytes]:
        """The Hugging Face tokenizer files, by name."""
        names = [END, UNKNOWN, *self._names[4:], PAD]
        settings = {"tokenizer_class": "MarianTokenizer", "model_max_length": longest, **self.settings}
        settings |= {"eos_token": END, "unk_token": UNKNOWN, "pad_token": PAD, "separate_vocabs": False}
        vocab = {name: number for number, name in enumerate(names)}
        return {
            **dict(zip(MODELS, self.models, strict=True)),
            VOCAB: json.dumps(vocab, ensure_ascii=False, indent=2) + "\n",
            CONFIG: json.dumps(settings, ensure_ascii=False, indent=2) + "\n",
        }

    @classmethod
    def from_folder(cls, folder: Path, vocab: int) -> SentencePieceTokenizer | None:
        """The tokenizer of a Hugging Face folder, if it has one; `vocab` is the number of tokens with our `<bos>`."""
        if not has_file(folder, VOCAB):
            return None
        where, settings = folder / VOCAB, read_tokenizer_settings(folder)
        if settings.get("separate_vocabs"):
            raise UserError(
                "not supported: a vocabulary for each language, since source and target share one embedding here",
                where=f"{folder / CONFIG}: separate_vocabs", found="true", expected="false",
                todo="choose the folder of a model with one vocabulary",
            )  # fmt: skip
        for name in MODELS:
            if not has_file(folder, name):
                raise UserError("this file is missing", where=str(folder / name), todo=AGAIN)
        names = _in_order(read_json(folder, VOCAB), where)
        if len(names) + 1 != vocab:
            raise UserError(
                "the tokenizer does not match the model", where=str(where), found=f"{len(names):,} pieces",
                expected=f"{vocab - 1:,}, the vocab_size of the model", todo=AGAIN,
            )  # fmt: skip
        if [*names[:2], names[-1]] != [END, UNKNOWN, PAD]:
            raise UserError(
                "not supported: special tokens in other places", where=str(where),
                found=shown([*names[:2], names[-1]]), expected=f"{END} and {UNKNOWN} first, and {PAD} last",
                todo="choose the folder of an OPUS-MT model as it was published",
            )  # fmt: skip
        models = [read_bytes(folder, name, MAX_FILE) for name in MODELS]
        kept = {key: settings[key] for key in KEPT if isinstance(settings.get(key), str | int)}
        found: SentencePieceTokenizer = cls.of(models, names[2:-1], kept, str(folder))
        return found


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
