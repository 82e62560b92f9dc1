"""What the tasks of fine-tuned models share: tokenizer and weights of the folder that a run starts from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpieces import WordPieces
from heedful.errors import UserError
from heedful.hub import Pretrained, pretrained
from heedful.tasks.base import Task
from heedful.tasks.finetuning.recipe import EncoderStart

MOST_NAMED = 4  # weights that a note lists


class FinetuningTask(Task):
    """A task of one added layer. Each one has its own task, and is one of these."""

    starts_elsewhere: ClassVar = True

    def __init__(self, recipe: Any) -> None:
        self.recipe = recipe
        self.decode: Any = None
        self.began: list[str] = []  # what whoever starts the run should know of its beginning
        self._found: Pretrained | None = None

    @abstractmethod
    def texts(self, read: Any) -> Sequence[str]:
        """All texts of a split, which a tokenizer is learned from."""

    def learn(self, read: Any) -> WordPieces:
        """The tokenizer of the folder that the run starts from, else one that is learned from the texts."""
        if self.recipe.start is None:
            config: WordPiece = self.recipe.tokenizer
            return WordPieces.train(config, self.texts(read))
        found = self._pretrained().tokenizer
        if found is None:
            raise UserError(
                "there is no tokenizer in this folder", where=self.recipe.start.folder,
                expected="tokenizer.json or vocab.txt beside the weights",
                todo="put the file there that the encoder was trained with",
            )  # fmt: skip
        return found

    @staticmethod
    def load(path: Path) -> WordPieces:
        """The tokenizer of a file."""
        return WordPieces.load(path)

    @staticmethod
    def open(text: str, where: str) -> WordPieces:
        """The tokenizer of a file's text."""
        return WordPieces(text, where)

    def begin(self, model: Any, vocabulary: WordPieces) -> None:
        """Put in the weights of the folder that the run starts from."""
        if self.recipe.start is not None:
            self.began = begin_from(model.encoder, self._pretrained().tensors, self.recipe.start)
            self._found = None  # its weights are in the model now

    def _pretrained(self) -> Pretrained:
        start: EncoderStart = self.recipe.start
        self._found = self._found or pretrained(start.path, role="encoder")
        return self._found


def begin_from(encoder: Any, tensors: dict[str, Tensor], start: EncoderStart) -> list[str]:
    """Give an encoder the weights of a folder, and say which it has no use for, and which are drawn by chance."""
    needed = encoder.state_dict()
    lacking = [name for name in needed if name not in tensors]
    chance = [name for name in lacking if name.startswith("pooler.")]
    wrong = [f"{name}: not in the folder" for name in lacking if name not in chance]
    wrong += [
        f"{name}: {tuple(tensors[name].shape)} in the folder, {tuple(value.shape)} in the model"
        for name, value in needed.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    if wrong:
        more = f"\nand {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise UserError(
            "the encoder of this folder is not the one that the recipe describes", where=start.folder,
            found="\n".join(sorted(wrong)[:10]) + more,
            todo="leave model.encoder out, so that it is as in the folder",
        )  # fmt: skip
    with torch.no_grad():
        for name, value in needed.items():
            if name in tensors:
                value.copy_(tensors[name])
    notes = []
    if unused := [name for name in tensors if name not in needed]:
        notes.append(f"not needed from {start.folder}: {named(unused)}")
    if chance:
        notes.append(f"{start.folder} has no pooler: {named(chance)} are drawn by chance")
    return notes


def named(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
