"""RoBERTa's byte-level BPE (Liu et al., 2019): GPT-2's, with its own special tokens around one text or a pair.

An external file is not passed to the `tokenizers` package: its pieces and merges are parsed, checked, and rebuilt,
so that nothing else in it has an effect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from heedful.config import Config
from heedful.data.tokenizers import byte_pairs
from heedful.data.tokenizers.base import (
    MAX_FILE,
    DoubleSepLayout,
    FolderTokenizer,
    TokenizerFile,
    parse_json,
    read_tokenizer_file,
    require_fit,
)
from heedful.data.tokenizers.byte_pairs import Added, ByteLevelTokenizer, Gpt2Bpe, Gpt2Tokenizer, Merge
from heedful.data.tokenizers.tokenizer import MAX_VOCAB, byte_letters
from heedful.data.tokenizers.wordpiece import AddedTokenSpec
from heedful.data.tokenizers.wordpiece_files import (
    BACKEND,
    CONFIG,
    add_role_tokens,
    max_length,
    read_added_tokens,
    read_tokenizer_settings,
    require_class,
    require_settings,
)
from heedful.errors import AGAIN, UserError, shown
from heedful.files.folders import has_file, read_text

if TYPE_CHECKING:
    import tokenizers

NAMES = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3
MASK = "<mask>"
OWN = (*(AddedTokenSpec(name) for name in NAMES), AddedTokenSpec(MASK, lstrip=True))
MASK_PATTERN = re.compile(r"\s*(?:<mask>|\[MASK\])")  # the mask includes the spaces before it
ROLES = {
    "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>",
    "pad_token": "<pad>", "mask_token": MASK,
}  # fmt: skip
CLASS = "RobertaTokenizer"
PUBLISHED = "use the folder of a RoBERTa as it was published"
ALLOWED = {"trim_offsets": True, "truncation_side": "right", "split_special_tokens": False}
PREFIX = "pre_tokenizer.add_prefix_space"


class RobertaBpe(Config):
    """Byte-level BPE with RoBERTa's special tokens, trained on the text."""

    kind: Literal["roberta_pairs"] = "roberta_pairs"
    vocab: int = Field(
        8192, ge=261, le=MAX_VOCAB, description="vocabulary size: 5 special ones, 256 bytes, the rest learned"
    )


class RobertaBpeFiles(TokenizerFile):
    """An existing RoBERTa tokenizer."""

    kind: Literal["roberta_files"] = "roberta_files"
    file: str = Field(
        min_length=1, description="a tokenizer.json; a vocab.json with merges.txt beside it; or their folder"
    )

    def read(self) -> RobertaTokenizer:
        """Read the files."""
        path, other = byte_pairs.locate_files(self.file, None)
        if other is None:
            return RobertaTokenizer.load(path)
        vocab, merges = (read_tokenizer_file(each, RobertaTokenizer.invalid_file) for each in (path, other))
        return RobertaTokenizer.from_texts(vocab, merges, str(path), str(other))


class RobertaTokenizer(DoubleSepLayout, ByteLevelTokenizer):
    """A RoBERTa tokenizer: `<s> A </s>` or `<s> A </s></s> B </s>`; special tokens in a text are ordinary text.

    With `prefix`, a space is added before each text.
    """

    expected: ClassVar = "tokenizer.json, or vocab.json and merges.txt"
    cls, pad, sep, unk = range(4)

    def __init__(self, text: str, where: str) -> None:
        """Parse a tokenizer.json; `where` is the file's name in errors."""
        usual = byte_pairs.USUAL | {PREFIX: (False, True)}
        vocab, merges, added = byte_pairs.parse_bpe(text, byte_pairs.FRAME, usual, {*NAMES, MASK}, where)
        self._initialize(vocab, merges, added, json.loads(text)["pre_tokenizer"]["add_prefix_space"], where)

    @classmethod
    def from_vocab(
        cls,
        vocab: dict[str, int],
        merges: Sequence[Merge],
        prefix: bool,
        where: str,
        added: Added = MappingProxyType({}),
    ) -> RobertaTokenizer:
        """Build it from the id of each piece, the merges in order, and the added tokens."""
        tokenizer = cls.__new__(cls)
        tokenizer._initialize(vocab, merges, added, prefix, where)
        return tokenizer

    @classmethod
    def from_texts(
        cls, vocab: str, merges: str, where: str, merges_where: str, prefix: bool = False
    ) -> RobertaTokenizer:
        """Build it from the texts of vocab.json and merges.txt; the other two are their names in errors."""
        pieces = parse_json(vocab, where, invalid)
        return cls.from_vocab(pieces, byte_pairs.parse_merges(merges, merges_where)[0], prefix, where)

    @classmethod
    def train(cls, config: RobertaBpe, texts: Iterable[str]) -> RobertaTokenizer:
        """Train a tokenizer on texts; the same texts always give the same tokenizer."""
        model = json.loads(Gpt2Tokenizer.train(Gpt2Bpe(vocab=config.vocab - len(NAMES)), texts).json)["model"]
        pieces = [piece for piece in model["vocab"] if piece != byte_pairs.END]
        vocab = {piece: number for number, piece in enumerate([*NAMES, *pieces, MASK])}
        return cls.from_vocab(vocab, [(a, b) for a, b in model["merges"]], False, "tokenizer")

    def _initialize(self, vocab: Any, merges: Sequence[Merge], added: Added, prefix: bool, where: str) -> None:
        vocab = byte_pairs.sort_by_id(vocab, where)
        if tuple(vocab)[: len(NAMES)] != NAMES or MASK not in vocab:
            raise invalid(where, f"pieces that begin with {shown(list(vocab)[: len(NAMES)])}")
        specials, letters = {*NAMES, MASK, *byte_pairs.special_names(added)}, set(byte_letters())
        ordinary = vocab.keys() - specials
        pieces = ordinary - added.keys()
        if not letters <= ordinary or not all(piece and letters.issuperset(piece) for piece in pieces):
            raise invalid(where, "pieces that are not made of all 256 bytes")
        if wrong := byte_pairs.invalid_merge(ordinary, merges):
            raise invalid(where, f"as merge {wrong[0] + 1:,} of {len(merges):,}, {wrong[1]}")
        tokens = sorted((*OWN, *added.values()), key=lambda token: vocab[token.content])
        self._engine = build_engine(vocab, merges, tokens, prefix)
        self._vocab, self._merges, self._added, self.prefix = vocab, merges, added, prefix
        self.json: str = self._engine.to_str()
        self.vocab: int = len(vocab)
        self.mask: int = vocab[MASK]
        self.special = frozenset(vocab[name] for name in specials)
        if added:  # these are matched in texts
            matched = [token if token in OWN else token._replace(special=False) for token in tokens]
            self._engine = build_engine(vocab, merges, matched, prefix)
        self._engine.encode_special_tokens = True  # the text of a special token is encoded as ordinary text

    @property
    def mask_name(self) -> str:
        """`<mask>`."""
        return MASK

    def encode_with_masks(self, text: str) -> list[int]:
        """Encode a text in which `<mask>` or `[MASK]`, with the spaces before it, is the special token."""
        first, *rest = self.ids(MASK_PATTERN.split(text))
        return [*first, *(number for part in rest for number in (self.mask, *part))]

    def words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word with a space before it; the unknown token for an empty word."""
        spaced = [word if word.startswith(" ") or not word else f" {word}" for word in words]
        return [ids or [self.unk] for ids in self.ids(spaced)]

    @property
    def continues_word(self) -> list[bool]:
        """For each piece, whether it continues a word: it does not start with a space."""
        return [number not in self.special and not piece[:1].isspace() for number, piece in enumerate(self._bytes)]

    def decode_with_special(self, ids: Iterable[int]) -> str:
        """Decode ids to text, special tokens included."""
        return "".join(self.pieces(ids))

    def files(self, longest: int) -> dict[str, str]:
        """The equivalent files for Hugging Face's RobertaTokenizer, by name."""
        settings = {
            "tokenizer_class": CLASS, "add_prefix_space": self.prefix, "trim_offsets": True, "errors": "replace",
            "model_max_length": longest,
            "added_tokens_decoder": {
                str(self._vocab[token.content]): token._asdict() for token in (*OWN, *self._added.values())
            }, **ROLES,
        }  # fmt: skip
        return {
            **byte_pairs.vocab_and_merges(self._vocab, self._merges),
            "tokenizer.json": self.json,
            "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
        }

    @classmethod
    def from_folder(cls, folder: Path, vocab: int) -> FolderTokenizer:
        """The tokenizer of a Hugging Face folder, if it has one; its vocabulary may not exceed the model's, `vocab`."""
        name = next((name for name in ("tokenizer.json", "vocab.json") if has_file(folder, name)), None)
        if name is None:
            return FolderTokenizer(None)
        settings, where = read_tokenizer_settings(folder), folder / CONFIG
        text = read_text(folder, name, MAX_FILE)
        kind = require_class(settings.get("tokenizer_class"), [CLASS], where, PUBLISHED)
        prefix = settings.get("add_prefix_space") is True
        require_settings(settings, where, ROLES, ALLOWED | {"add_prefix_space": prefix}, PUBLISHED)
        if name == "tokenizer.json":
            found = cls(text, str(folder / name))
            found = found._with_added(folder, settings, json.loads(text))
            if kind in BACKEND:
                _require_layout(json.loads(text).get("post_processor"), folder / name)
            elif found.prefix != prefix:  # as `transformers` does
                found = cls.from_vocab(found._vocab, found._merges, prefix, str(folder / name), found._added)
        else:
            if not has_file(folder, "merges.txt"):
                raise UserError(
                    "the tokenizer has no merges", where=str(folder), found=f"{name} alone",
                    expected="merges.txt beside it", todo=AGAIN,
                )  # fmt: skip
            merges = read_text(folder, "merges.txt", MAX_FILE)
            found = cls.from_texts(text, merges, str(folder / name), str(folder / "merges.txt"), prefix)
            found = found._with_added(folder, settings, {})
        require_fit(found, vocab, folder / name)
        return FolderTokenizer(found, max_length(settings, where))

    def _with_added(self, folder: Path, settings: dict[str, Any], data: dict[str, Any]) -> RobertaTokenizer:
        """The same with the added tokens of a folder."""
        where, own = folder / CONFIG, (*NAMES, MASK)
        tokens = add_role_tokens(read_added_tokens(folder, settings, data), self._vocab, settings, where, own)
        more = {token.content: (number, token) for number, token in tokens.items() if token.content not in own}
        ids = {name: number for name, (number, _) in more.items()}
        if wrong := next((name for name, number in ids.items() if self._vocab.get(name, number) != number), None):
            raise invalid(str(where), f"the added token {shown(wrong)} with the id {ids[wrong]}")
        added = {name: token for name, (_, token) in more.items()}
        return self.from_vocab(self._vocab | ids, self._merges, self.prefix, str(where), added)

    @staticmethod
    def invalid_file(where: str, found: str) -> UserError:
        """The error for a file that is not a RoBERTa tokenizer."""
        return invalid(where, found)


def build_engine(
    vocab: dict[str, int], merges: Sequence[Merge], added: Sequence[AddedTokenSpec], prefix: bool
) -> tokenizers.Tokenizer:
    """A `tokenizers.Tokenizer` with these pieces, merges and added tokens; `prefix`: a space before each text."""
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, models, pre_tokenizers, processors

    engine = Engine(models.BPE(vocab, list(merges)))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    engine.decoder = decoders.ByteLevel()
    cls, sep = ((name, vocab[name]) for name in ("<s>", "</s>"))
    engine.post_processor = processors.RobertaProcessing(sep, cls, True, prefix)
    engine.add_tokens([token.to_engine() for token in added])
    return engine


def _require_layout(processor: Any, where: Path) -> None:
    """Refuse a tokenizer.json that adds other special tokens than RoBERTa's."""
    found = (processor.get("type"), processor.get("cls"), processor.get("sep")) if isinstance(processor, dict) else None
    if found != ("RobertaProcessing", ["<s>", 0], ["</s>", 2]):
        raise UserError(
            "this tokenizer does not add RoBERTa's special tokens", where=f"{where}: post_processor",
            found=shown(found), expected="<s> A </s>, and <s> A </s></s> B </s>", todo=PUBLISHED,
        )  # fmt: skip


def invalid(where: str, found: str) -> UserError:
    """The error for files that are not a RoBERTa tokenizer."""
    return UserError(
        "this is not a RoBERTa tokenizer, or it is damaged", where=where, found=found,
        expected="a tokenizer.json, or vocab.json and merges.txt, whose first pieces are " + " ".join(NAMES),
        todo="copy the files again from their model's folder",
    )  # fmt: skip
