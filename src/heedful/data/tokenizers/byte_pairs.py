"""GPT-2's byte-level BPE (Radford et al., 2019): every text can be encoded, and decodes unchanged.

An external file is not passed to the `tokenizers` package: its pieces and merges are parsed, checked, and rebuilt,
so that nothing else in it has an effect.
"""

from __future__ import annotations

import builtins
import json
import re
from abc import abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field

from heedful.config import Config
from heedful.data.tokenizers.base import (
    BareLayout,
    EngineTokenizer,
    TokenizerFile,
    parse_json,
    read_tokenizer_file,
    replace_surrogates,
    require_corpus,
    require_list,
    unsupported_tokenizer,
)
from heedful.data.tokenizers.tokenizer import MAX_VOCAB, byte_letters
from heedful.data.tokenizers.wordpiece import AddedTokenSpec, added_token
from heedful.errors import UserError, shown
from heedful.files.reading import is_file, is_folder

if TYPE_CHECKING:
    import numpy as np
    import tokenizers

END = "<|endoftext|>"  # ends a document and starts the next
VOCABS = ("vocab.json", "encoder.json")  # the vocabulary file of Hugging Face and of OpenAI
MERGES = ("merges.txt", "vocab.bpe")  # their files of merges
HEADER = "#version"  # start of an optional first line of merges.txt
PART = 1 << 15  # characters of a long text that one core encodes
GROUP = 1 << 21  # characters encoded at once, which bounds the memory
# A long text is split between a visible character and a space or line end. No token of GPT-2 spans that point, and
# none before it depends on what follows: only a run of spaces depends on what comes after it. Added tokens may span it.
CUT = re.compile(r"(?<=\S)[ \n]")

# The components of a GPT-2 tokenizer.json; others do not change ids.
FRAME: dict[str, str | None] = {
    "model": "BPE",
    "normalizer": None,
    "pre_tokenizer": "ByteLevel",
    "decoder": "ByteLevel",
}
UNSET = (None, "", False)
USUAL: dict[str, tuple[Any, ...]] = {
    "pre_tokenizer.add_prefix_space": (False,),
    "pre_tokenizer.use_regex": (None, True),
    **{
        f"model.{setting}": UNSET
        for setting in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
    },
}

Merge: TypeAlias = tuple[str, str]
Added: TypeAlias = Mapping[str, AddedTokenSpec]  # by their text


class Gpt2Bpe(Config):
    """Byte-level BPE trained on the text: 256 bytes, the most frequent merges, and `<|endoftext|>`."""

    kind: Literal["byte_pairs"] = "byte_pairs"
    vocab: int = Field(
        8192, ge=257, le=MAX_VOCAB, description="vocabulary size: 256 bytes, `<|endoftext|>`, the rest learned"
    )


class Gpt2BpeFiles(TokenizerFile):
    """An existing byte-level BPE tokenizer, such as GPT-2's own."""

    kind: Literal["byte_pair_files"] = "byte_pair_files"
    file: str = Field(
        min_length=1,
        description="a `tokenizer.json`; a `vocab.json` or `encoder.json` with `merges.txt` or `vocab.bpe` beside "
        "it; or their folder",
    )
    merges: str | None = Field(None, description="the merges file, if it is elsewhere")

    def read(self) -> Gpt2Tokenizer:
        """Read the files."""
        return Gpt2Tokenizer.read(self.file, self.merges)


class ByteTokenizer(EngineTokenizer):
    """Base of tokenizers whose tokens are bytes."""

    _vocab: dict[str, int]

    def bytes(self, ids: Iterable[int]) -> builtins.bytes:
        """The exact bytes of ids, without special tokens."""
        return b"".join([self._bytes[number] for number in ids])

    @property
    @abstractmethod
    def _bytes(self) -> list[builtins.bytes]:
        """The bytes of each id."""


class ByteLevelTokenizer(ByteTokenizer):
    """Base of tokenizers with GPT-2's byte alphabet."""

    _merges: Sequence[Merge]
    _added: Added

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text, without special tokens; U+FFFD replaces incomplete characters."""
        return self.bytes(ids).decode(errors="replace")

    @cached_property
    def _bytes(self) -> list[builtins.bytes]:
        letters = {letter: byte for byte, letter in enumerate(byte_letters())}
        whole = self._added.keys() - letters.keys() - {a + b for a, b in self._merges}  # they stand for themselves
        return [
            b""
            if number in self.special
            else piece.encode()
            if piece in whole
            else bytes([letters[letter] for letter in piece])
            for piece, number in self._vocab.items()
        ]

    @cached_property
    def _pieces(self) -> list[str]:
        return [
            name if number in self.special else piece.decode(errors="backslashreplace")
            for (name, number), piece in zip(self._vocab.items(), self._bytes, strict=True)
        ]


class BpeTokenizer(ByteTokenizer):
    """Base of byte-pair-encoding tokenizers: pieces are merged pair by pair, in the order of the merges."""

    mark: ClassVar[str]  # the required special token
    _merges: Sequence[Merge]
    _added: Added  # without the mark

    def __init__(self, text: str, where: str) -> None:
        """Parse a tokenizer.json; `where` is the file's name in errors."""
        self._initialize(*self._read(text, where), where)

    @classmethod
    def from_vocab(cls, vocab: dict[str, int], merges: Sequence[Merge], where: str) -> Self:
        """Build it from the id of each piece, and the merges in order."""
        tokenizer = cls.__new__(cls)
        tokenizer._initialize(vocab, merges, {}, where)
        return tokenizer

    @classmethod
    def from_texts(cls, vocab: str, merges: str, where: str, merges_where: str) -> Self:
        """Build it from the texts of vocab.json and merges.txt; the other two are their names in errors."""
        pieces = cls._check_vocab(parse_json(vocab, where, invalid), {}, where)
        pairs, first = parse_merges(merges, merges_where)
        if wrong := invalid_merge(pieces.keys() - {cls.mark}, pairs):
            raise invalid(f"{merges_where}:{wrong[0] + first}", wrong[1])
        return cls.from_vocab(pieces, pairs, where)

    @classmethod
    def read(cls, file: str | Path, merges: str | Path | None = None) -> Self:
        """Read tokenizer files of any supported name: tokenizer.json, or vocab and merges, or their folder."""
        path, other = locate_files(file, merges)
        if other is None:
            return cls.load(path)
        return cls.from_texts(
            read_tokenizer_file(path, invalid), read_tokenizer_file(other, invalid), str(path), str(other)
        )

    @staticmethod
    @abstractmethod
    def _read(text: str, where: str) -> tuple[dict[str, int], Sequence[Merge], Added]:
        """The pieces, merges and added tokens of a tokenizer file."""

    @staticmethod
    @abstractmethod
    def _check_vocab(vocab: Any, added: Added, where: str) -> dict[str, int]:
        """The pieces in id order; an incomplete vocabulary is refused."""

    @staticmethod
    @abstractmethod
    def _build_engine(
        vocab: dict[str, int], merges: Sequence[Merge], added: Sequence[AddedTokenSpec]
    ) -> tokenizers.Tokenizer:
        """A `tokenizers.Tokenizer` with these pieces, merges and added tokens."""

    def _initialize(self, vocab: dict[str, int], merges: Sequence[Merge], added: Added, where: str) -> None:
        vocab, specials = self._check_vocab(vocab, added, where), {self.mark, *special_names(added)}
        if wrong := invalid_merge(vocab.keys() - specials, merges):
            raise invalid(where, f"as merge {wrong[0] + 1:,} of {len(merges):,}, {wrong[1]}")
        mark = AddedTokenSpec(self.mark)
        tokens = sorted((mark, *added.values()), key=lambda token: vocab[token.content])
        self._engine = self._build_engine(vocab, merges, tokens)
        self._vocab, self._merges, self._added = vocab, merges, added
        spaced = (name for name in added if re.search(r"\s", name) or added[name].rstrip)
        self._wide = [added[name] for name in spaced]  # they may span a space
        self.json: str = self._engine.to_str()
        self.vocab: int = len(vocab)
        self.special = frozenset(vocab[name] for name in specials)
        if added:  # these are matched in texts
            matched = [token if token is mark else token._replace(special=False) for token in tokens]
            self._engine = self._build_engine(vocab, merges, matched)
        self._engine.encode_special_tokens = True  # the text of a special token is encoded as ordinary text

    @property
    def names(self) -> list[str]:
        """Each token as its file spells it."""
        return list(self._vocab)

    def with_added(self, tokens: Mapping[int, AddedTokenSpec], where: str) -> Self:
        """A copy with these added tokens, by id, which are matched in texts."""
        ids = {token.content: number for number, token in tokens.items()}
        if wrong := next((name for name, number in ids.items() if self._vocab.get(name, number) != number), None):
            raise invalid(where, f"the added token {shown(wrong)} with the id {ids[wrong]}, not {self._vocab[wrong]}")
        tokenizer, added = type(self).__new__(type(self)), {token.content: token for token in tokens.values()}
        tokenizer._initialize(self._vocab | ids, self._merges, {**self._added, **added}, where)
        return tokenizer

    def can_split(self, text: str, place: int) -> bool:
        """Whether no added token spans this place in a text, which is between a visible character and a space."""
        before = text[max(0, place - self.reach) : place]
        around = before + text[place : place + self.reach]
        return not any(
            (token.rstrip and before.endswith(token.content))
            or 0 <= around.find(token.content, max(0, len(before) - len(token.content) + 1)) < len(before)
            for token in self._wide
        )

    @property
    def reach(self) -> int:
        """The most characters of an added token that may span a space; 0: there is none."""
        return max((len(token.content) for token in self._wide), default=0)

    def split_text(self, text: str) -> Iterator[str]:
        """Split a text into parts whose ids concatenate to those of the whole."""
        return split_text(text, self.can_split if self._wide else None)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; faster than `encode_batch`, and parallel even for one long text."""
        splits = [list(self.split_text(replace_surrogates(text)[0])) for text in require_list(texts)]
        found = encode_parts(self._engine, chain.from_iterable(splits))
        return [list(chain.from_iterable(next(found) for _ in parts)) for parts in splits]

    def ids_of(self, text: str) -> np.ndarray[Any, np.dtype[np.int32]]:
        """The ids of one text of any length, as a compact array."""
        import numpy as np

        parts = encode_parts(self._engine, self.split_text(replace_surrogates(text)[0]))
        return np.concatenate([np.array(ids, np.int32) for ids in parts])

    @staticmethod
    def invalid_file(where: str, found: str) -> UserError:
        """The error for files that are not a BPE tokenizer."""
        return invalid(where, found)


class Gpt2Tokenizer(BareLayout, ByteLevelTokenizer, BpeTokenizer):
    """A GPT-2 tokenizer: `<|endoftext|>` in a text is ordinary text, not the special token.

    Under the head of a task, a text is its tokens alone, and a pair those of both.
    """

    mark = END
    expected: ClassVar = "tokenizer.json, or vocab.json and merges.txt"

    @property
    def end(self) -> int:
        """The token that ends a document and starts the next."""
        return self._vocab[END]

    @property
    def pad(self) -> int:
        """The padding of texts under the head of a task, which is masked."""
        return self.end

    @property
    def unk(self) -> int:
        """As published, though no text has it: every byte is known."""
        return self.end

    def words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word with a space before it; `<|endoftext|>` for an empty word."""
        spaced = [word if word.startswith(" ") or not word else f" {word}" for word in words]
        return [ids or [self.end] for ids in self.ids(spaced)]

    @staticmethod
    def _read(text: str, where: str) -> tuple[dict[str, int], Sequence[Merge], Added]:
        return parse_bpe(text, FRAME, USUAL, {END}, where)

    @staticmethod
    def _check_vocab(vocab: Any, added: Added, where: str) -> dict[str, int]:
        return check_vocab(vocab, added, where)

    @staticmethod
    def _build_engine(
        vocab: dict[str, int], merges: Sequence[Merge], added: Sequence[AddedTokenSpec]
    ) -> tokenizers.Tokenizer:
        return build_engine(vocab, merges, added)

    @classmethod
    def train(cls, config: Gpt2Bpe, texts: Iterable[str]) -> Gpt2Tokenizer:
        """Train a tokenizer on texts; the same texts always give the same tokenizer."""
        from tokenizers import Tokenizer as Engine
        from tokenizers import models, pre_tokenizers, trainers

        corpus = require_corpus(part for text in texts for part in split_text(replace_surrogates(text)[0]))
        engine = Engine(models.BPE())
        engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=config.vocab - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        )
        engine.train_from_iterator(corpus, trainer)
        model = json.loads(engine.to_str())["model"]
        return cls.from_vocab(
            model["vocab"] | {END: len(model["vocab"])}, [(a, b) for a, b in model["merges"]], "tokenizer"
        )

    def encode_special(self, text: str) -> list[int]:
        """The ids of a text in which `<|endoftext|>` is parsed as the special token."""
        first, *rest = self.ids(text.split(END))
        return [*first, *chain.from_iterable([self.end, *ids] for ids in rest)]

    def files(self, context: int | None = None, starts: bool = False) -> dict[str, str]:
        """The equivalent files for Hugging Face's GPT2Tokenizer, by name; `context` is the model's.

        If `starts`, it puts `<|endoftext|>` before each text there.
        """
        names = {f"{name}_token": END for name in ("bos", "eos", "unk")}
        tokens = {END: AddedTokenSpec(END), **self._added}
        added = {str(number): tokens[name]._asdict() for name, number in self._vocab.items() if name in tokens}
        settings: dict[str, Any] = {
            "tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, "clean_up_tokenization_spaces": False,
            "errors": "replace", "added_tokens_decoder": added, **names,
        }  # fmt: skip
        if context is not None:
            settings["model_max_length"] = context
        text = self.json
        if starts:
            settings["add_bos_token"] = True
            text = json.dumps(json.loads(text) | {"post_processor": start_token_template(self.end)}, ensure_ascii=False)
        return {
            **vocab_and_merges(self._vocab, self._merges),
            "tokenizer.json": text,
            "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
            "special_tokens_map.json": json.dumps(names, indent=2) + "\n",
        }


def start_token_template(end: int) -> dict[str, Any]:
    """The post-processor of a tokenizer.json that puts `<|endoftext|>`, of this id, before each text."""
    first, last = {"SpecialToken": {"id": END, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [first, last],
        "pair": [first, last, {"SpecialToken": {"id": END, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {END: {"id": END, "ids": [end], "tokens": [END]}},
    }


def gpt2_tokenizer(config: Gpt2Bpe | Gpt2BpeFiles, texts: Iterable[str]) -> Gpt2Tokenizer:
    """The tokenizer of a recipe: trained on the texts, or read from its files."""
    return config.read() if isinstance(config, Gpt2BpeFiles) else Gpt2Tokenizer.train(config, texts)


def locate_files(file: str | Path, merges: str | Path | None) -> tuple[Path, Path | None]:
    """The path of tokenizer.json, or the paths of the vocabulary and the merges, for a file or folder."""
    path = Path(file)
    if is_folder(path):
        here = next((path / name for name in ("tokenizer.json", *VOCABS) if is_file(path / name)), None)
        if here is None:
            raise invalid(str(path), "a folder without tokenizer.json, vocab.json or encoder.json")
        path = here
    if merges is not None or path.name not in VOCABS:
        return path, None if merges is None else Path(merges)
    beside = [path.parent / name for name in MERGES]
    return path, next((other for other in beside if is_file(other)), beside[0])


def split_text(text: str, allowed: Callable[[str, int], bool] | None = None) -> Iterator[str]:
    """Split a text where that is `allowed`, into parts whose ids concatenate to those of the whole."""
    start, place = 0, PART
    while len(text) > place and (found := CUT.search(text, place)):
        place = found.start()
        if allowed is None or allowed(text, place):
            yield text[start:place]
            start, place = place, place + PART
        else:
            place += 1
    yield text[start:]


def group_parts(parts: Iterable[str]) -> Iterator[list[str]]:
    """Group parts into lists that are large enough for all cores and small enough for memory."""
    group: list[str] = []
    size = 0
    for part in parts:
        group.append(part)
        size += len(part)
        if size >= GROUP:
            yield group
            group, size = [], 0
    if group:
        yield group


def encode_parts(engine: tokenizers.Tokenizer, parts: Iterable[str]) -> Iterator[list[int]]:
    """The ids of each part, in groups that all cores share."""
    for group in group_parts(parts):
        for one in engine.encode_batch_fast(group, add_special_tokens=False):
            yield one.ids


def build_engine(
    vocab: dict[str, int], merges: Sequence[Merge], added: Sequence[AddedTokenSpec]
) -> tokenizers.Tokenizer:
    """A `tokenizers.Tokenizer` with these pieces, merges and added tokens.

    Texts are split by GPT-2's pattern before merging, so that no text can spell `<|endoftext|>`.
    """
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, models, pre_tokenizers, processors

    engine = Engine(models.BPE(vocab, list(merges)))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.post_processor = processors.ByteLevel(trim_offsets=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_tokens([token.to_engine() for token in added])
    return engine


def sort_by_id(vocab: Any, where: str) -> dict[str, int]:
    """A vocabulary in id order; missing or duplicate ids are refused."""
    if not isinstance(vocab, dict) or len(vocab) > MAX_VOCAB:
        raise invalid(where, f"{len(vocab):,} pieces" if isinstance(vocab, dict) else "pieces that are no object")
    if (bad := next((piece for piece, number in vocab.items() if type(number) is not int), None)) is not None:
        raise invalid(where, f"the piece {shown(bad)} with the id {shown(vocab[bad])}")
    if lone := next((piece for piece in vocab if replace_surrogates(piece)[1]), None):
        raise invalid(where, f"the piece {shown(lone)}, which is not valid text")
    ordered: dict[str, int] = dict(sorted(vocab.items(), key=lambda item: item[1]))
    for place, (piece, number) in enumerate(ordered.items()):
        if number != place:
            what = "a second time" if number < place else f"but none has {place}"
            raise invalid(where, f"the piece {shown(piece)} with the id {number}, {what}")
    return ordered


def special_names(added: Added) -> set[str]:
    """Those of the added tokens that are special."""
    return {name for name, token in added.items() if token.special}


def check_vocab(vocab: Any, added: Added, where: str) -> dict[str, int]:
    """A vocabulary of GPT-2's kind in id order: all 256 bytes, `<|endoftext|>`, and pieces made of bytes."""
    ordered = sort_by_id(vocab, where)
    letters = set(byte_letters())
    if missing := sorted(letters - (ordered.keys() - special_names(added))):
        raise invalid(where, f"no piece for {len(missing)} of the 256 bytes, {shown(missing[0])} for one")
    if END not in ordered:
        raise invalid(where, f"{len(ordered):,} pieces, but none is {END}")
    pieces = ordered.keys() - {END, *added}
    odd = next((piece for piece in ordered if piece in pieces and not (piece and letters.issuperset(piece))), None)
    if odd is not None:
        raise invalid(where, f"the piece {shown(odd)}, which does not stand for bytes")
    return ordered


def invalid_merge(pieces: Container[str], merges: Sequence[Merge]) -> tuple[int, str] | None:
    """The index of the first invalid merge, and what is wrong with it."""
    seen: set[Merge] = set()
    for number, pair in enumerate(merges):
        a, b = pair
        if unknown := next((piece for piece in (a, b) if piece not in pieces), None):
            return number, f"a merge of {shown(unknown)}, which is not in the vocabulary"
        if a + b not in pieces:
            return number, f"a merge into no known piece, {shown(a + b)}"
        if pair in seen:
            return number, f"the merge {shown(f'{a} {b}')} for the second time"
        seen.add(pair)
    return None


def parse_merges(text: str, where: str) -> tuple[list[Merge], int]:
    """The merges in the text of a merges.txt, and the line of the first one."""
    lines = text.removesuffix("\n").split("\n")
    first = 2 if lines[0].startswith(HEADER) else 1
    found: list[Merge] = []
    for number, line in enumerate(lines[first - 1 :], first):
        pair = line.removesuffix("\r").split(" ")
        if len(pair) != 2 or not all(pair):
            raise invalid(f"{where}:{number}", f"the line {shown(' '.join(pair))}, not two pieces with a space between")
        found.append((pair[0], pair[1]))
    return found, first


def vocab_and_merges(vocab: dict[str, int], merges: Sequence[Merge]) -> dict[str, str]:
    """The texts of vocab.json and merges.txt, byte for byte as published."""
    lines = [f"{HEADER}: 0.2\n", *(f"{a} {b}\n" for a, b in merges)]
    return {"vocab.json": json.dumps(vocab), "merges.txt": "".join(lines)}


def parse_bpe(
    text: str, frame: dict[str, str | None], usual: dict[str, tuple[Any, ...]], own: set[str], where: str
) -> tuple[dict[str, int], list[Merge], dict[str, AddedTokenSpec]]:
    """Parse the tokenizer.json of a BPE model with these components, settings and special tokens of its `own`.

    Returns its pieces, merges, and other added tokens.
    """
    data = parse_json(text, where, invalid)
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise invalid(where, "no object with a `model`")
    if (found := unsupported_part(data, frame, usual)) is not None:
        raise unsupported_tokenizer(invalid(where, found))
    model = data["model"]
    vocab, merges = model.get("vocab"), model.get("merges")
    if not isinstance(vocab, dict) or not isinstance(merges, list):
        raise invalid(where, "a model without its vocab or merges")
    tokens = data.get("added_tokens") or []
    if not isinstance(tokens, list):
        raise invalid(where, f"added_tokens of {shown(tokens)}")
    vocab, added = dict(vocab), dict[str, AddedTokenSpec]()
    for token in tokens:
        number, spec = added_token(token, where, invalid=invalid)
        name = spec.content
        if not name or name in added or vocab.get(name, number) != number:
            raise invalid(where, f"an added token {shown(token)}")
        vocab[name] = number
        if name not in own:
            added[name] = spec
    pairs: list[Merge] = []
    for number, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(piece, str) and piece for piece in pair):
            raise invalid(f"{where}: model.merges[{number}]", f"{shown(merge)}, not two pieces")
        pairs.append((pair[0], pair[1]))
    return vocab, pairs, added


def unsupported_part(
    data: dict[str, Any], frame: dict[str, str | None], usual: dict[str, tuple[Any, ...]]
) -> str | None:
    """A component of a tokenizer file that differs from these types and settings, described for an error."""
    for part, expected in frame.items():
        found = data[part].get("type") if isinstance(data.get(part), dict) else data.get(part)
        if found != expected and not (part == "model" and found is None and "merges" in data["model"]):
            return f"{part} of type {shown(found)}"
    for name, values in usual.items():
        part, setting = name.split(".")
        if data[part].get(setting) not in values:
            return f"{part} with {setting} {shown(data[part].get(setting))}"
    return None


def invalid(where: str, found: str) -> UserError:
    """The error for files that are not a BPE tokenizer of the expected kind."""
    return UserError(
        "this tokenizer is damaged", where=where, found=found,
        expected="a tokenizer.json, or vocab.json and merges.txt, as GPT or GPT-2 has them",
        todo="copy the files again from their model's folder",
    )  # fmt: skip
