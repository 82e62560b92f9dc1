"""Token files of text: a large text is tokenized once, and then memory-mapped.

A folder has the tokenizer and two arrays per split: all ids, and the positions where documents start.
The manifest has the size and SHA-256 of each file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from heedful.config import Config
from heedful.data.formats.sources import SPLITS, Split
from heedful.data.text.text_stream import TextCounts
from heedful.data.text.token_documents import (
    FileEntry,
    TokenFolder,
    invalid_files,
    read_manifest,
    require_split,
    split_hash,
)
from heedful.data.tokenizers.lm_tokenization import LanguageTokenizer, codec_of, open_tokenizer
from heedful.files.reading import read_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PARTS = ("ids", "documents")  # of each split
STARTS = "<i8"  # dtype of document starts
NAMES = frozenset(("tokenizer.json", *(f"{split}.{part}" for split in SPLITS for part in PARTS)))


class TextManifest(Config):
    """The manifest of a folder of tokenized text."""

    format: Literal[1]
    kind: Literal["text"]
    vocab: int = Field(ge=2)
    numbers: Literal["<u2", "<u4"]  # the type of ids
    splits: dict[Split, TextCounts]
    files: dict[str, FileEntry]


class TokenizedText(TokenFolder):
    """A folder written by `heedful tokenize`, with its own tokenizer."""

    def manifest(self) -> TextManifest:
        return read_manifest(Path(self.folder), TextManifest, NAMES)

    def read(self, split: Split) -> TextTokens:
        """Memory-map the tokens of a split, after checking them."""
        manifest = self.manifest()
        require_split(Path(self.folder), manifest, split, PARTS)
        return TextTokens.open(Path(self.folder), split, manifest)


@dataclass(frozen=True)
class TextTokens:
    """The memory-mapped tokens of a split."""

    tokenizer: LanguageTokenizer
    ids: NDArray[Any]
    starts: NDArray[np.int64]
    amounts: TextCounts
    sha256: str
    skipped: int = 0

    @classmethod
    def open(cls, folder: Path, split: Split, manifest: TextManifest) -> TextTokens:
        """Memory-map the files of a split, and check that they are consistent."""
        import numpy as np

        amounts = manifest.splits[split]
        where = folder / "tokenizer.json"
        tokenizer = open_tokenizer(read_file(where).decode(), str(where))
        begins = codec_of(tokenizer).start_id
        ids = np.memmap(folder / f"{split}.ids", dtype=manifest.numbers, mode="r")
        starts = np.memmap(folder / f"{split}.documents", dtype=STARTS, mode="r")
        fits = (
            (len(ids), len(starts), tokenizer.vocab) == (amounts.tokens + 1, amounts.documents, manifest.vocab)
            and starts[0] == 0
            and (np.diff(starts) > 0).all()
            and starts[-1] < len(ids) - 1
            and int(ids.max()) < manifest.vocab
            and int(ids[-1]) == begins
            and (ids[starts] == begins).all()
        )
        if not fits:
            raise invalid_files(folder, f"files of {split} that do not fit together")
        return cls(tokenizer, ids, starts, amounts, split_hash(manifest, split, PARTS))
