"""The base of fine-tuning tasks: tokenizer and weights of the folder that a run starts from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from heedful.config import Config
from heedful.data.formats.sources import Split
from heedful.data.tokenizers.encoders import (
    encoder_tokenizer,
    load_encoder_tokenizer,
    open_encoder_tokenizer,
    tokenizer_class,
)
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.data.tokenizers.words import WordTokenizer
from heedful.errors import UserError
from heedful.hub import pretrained
from heedful.models.roles import BELOW_HEADS, BelowHeadConfig
from heedful.tasks.base import Codec, E, P, R, Source, Task, V


class FinetuningTask(Task[R, V, E, P]):
    """A task that adds one layer on top of an encoder."""

    artifacts: ClassVar = {"tokenizer.json": Codec(open_encoder_tokenizer, load_encoder_tokenizer)}
    decoding: ClassVar[type[Config] | None] = None
    searches: ClassVar = False
    recipe: Any

    @abstractmethod
    def texts(self, read: R) -> Sequence[str]:
        """All texts of a split, to train a tokenizer on."""

    def read(self, split: Split) -> R:
        """The examples of a split."""
        found: R = self.recipe.data.read(split)
        return found

    def learn(self, read: R) -> V:
        """A tokenizer trained on the texts."""
        found: Any = encoder_tokenizer(self.recipe.tokenizer, self.texts(read))
        tokenizer: V = found
        return tokenizer

    def elsewhere(self, folder: Path) -> Source | None:
        """The encoder of any model, with its tokenizer."""
        found = pretrained(folder, role=BELOW_HEADS)
        if found.tokenizer is None:
            raise UserError(
                "there is no tokenizer in this folder", where=self.recipe.start.folder,
                expected=f"{tokenizer_class(found.config.usual_tokenizer).expected} beside the weights",
                todo="add the tokenizer file that the encoder was trained with",
            )  # fmt: skip
        if self.recipe.model.encoder is not None:
            self._require_settled(found.config, self.recipe.model.encoder)
        if isinstance(found.tokenizer, TrainedTokenizer | WordTokenizer):
            raise UserError(
                "not supported: a head on a language model of lines", where=self.recipe.start.folder,
                found=f"a tokenizer of kind {type(found.tokenizer).__name__}", expected="byte-level BPE, as GPT-2 has",
                todo="start from a model with `tokenizer: {kind: byte_pairs}`, or from an encoder",
            )  # fmt: skip
        return Source(found.tokenizer, found.below_head, folder, "encoder")

    def _require_settled(self, there: BelowHeadConfig, here: BelowHeadConfig) -> None:
        """Refuse to change a setting that the encoder was trained with, and that no weight shows."""
        was, now = there.model_dump(), here.model_dump()
        for name in there.settled if there.kind == here.kind else ():
            if was[name] != now[name]:
                raise UserError(
                    f"the encoder of this folder was trained with another {name}", where=f"model.encoder.{name}",
                    found=str(now[name]), expected=f"{was[name]}, as in {self.recipe.start.folder}",
                    todo="leave out model.encoder, to use the encoder of the folder",
                )  # fmt: skip
