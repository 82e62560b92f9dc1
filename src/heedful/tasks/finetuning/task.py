"""What the tasks of fine-tuned models share: tokenizer and weights of the folder that a run starts from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from heedful.config import Config
from heedful.data.tokenizers.base import MaskTokenizer
from heedful.data.tokenizers.wordpieces import WordPieces
from heedful.errors import UserError
from heedful.hub import pretrained
from heedful.tasks.base import Codec, E, P, R, Source, Task


class FinetuningTask(Task[R, MaskTokenizer, E, P]):
    """One added layer over an encoder: what each of those tasks does."""

    artifacts: ClassVar = {"tokenizer.json": Codec(WordPieces, WordPieces.load)}
    decoding: ClassVar[type[Config] | None] = None
    searches: ClassVar = False
    recipe: Any

    @abstractmethod
    def texts(self, read: R) -> Sequence[str]:
        """All texts of a split, which a tokenizer is learned from."""

    def learn(self, read: R) -> MaskTokenizer:
        """The tokenizer that is learned from the texts."""
        return WordPieces.train(self.recipe.tokenizer, self.texts(read))

    def elsewhere(self, folder: Path) -> Source:
        """The encoder of any model, with its tokenizer."""
        found = pretrained(folder, role="encoder")
        if found.tokenizer is None:
            raise UserError(
                "there is no tokenizer in this folder", where=self.recipe.start.folder,
                expected="tokenizer.json or vocab.txt beside the weights",
                todo="put the file there that the encoder was trained with",
            )  # fmt: skip
        return Source(found.tokenizer, found.tensors, folder, "encoder")
