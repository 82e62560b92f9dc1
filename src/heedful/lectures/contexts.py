"""The same word in several sentences: one vector in a table of words, and another in every sentence after each block.

L layers, N sentences, D width.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity

from heedful.config import Config
from heedful.errors import UserError, shown
from heedful.lectures import Progress, Table
from heedful.plots.figures import curves
from heedful.plots.style import Figure, Style
from heedful.runs.load import load
from heedful.tasks.pretraining.predictor import TextEncoder, TokenEmbeddings

WORD = "mouse"
SENTENCES = (
    "I ordered a wireless mouse from my laptop",
    "Click the left button of the mouse to open the file",
    "The cable of my computer mouse is broken",
    "Mouse has a high breeding rate",
    "The cat caught a mouse in the barn",
    "A mouse ate the cheese during the night",
)


class Settings(Config):
    """What is compared."""

    model: str | None = Field(None, description="a folder with a trained encoder, ours or of Hugging Face's make")
    word: str = Field(WORD, min_length=1, max_length=100, description="the word")
    sentences: tuple[str, ...] = Field(SENTENCES, min_length=2, max_length=100, description="where it stands")


@dataclass(frozen=True)
class Contexts:
    """The cosine of the word in each sentence with that in the first one, by layer (L + 2, N)."""

    word: str
    sentences: tuple[str, ...]
    cosines: Tensor  # the first row is that of the table of words, the second of the embeddings

    @property
    def layers(self) -> tuple[str, ...]:
        """What each row is of."""
        return ("table", "embedded", *map(str, range(1, len(self.cosines) - 1)))

    def table(self) -> Table:
        columns = ("layer", *(f"sentence {number}" for number in range(1, len(self.sentences) + 1)))
        rows = zip(self.layers, self.cosines.tolist(), strict=True)
        return Table(columns, tuple((layer, *row) for layer, row in rows))


def reader_in(folder: str | None) -> TextEncoder:
    """The trained encoder of a folder; no figure of words in sentences can do without one."""
    if folder is None:
        raise UserError(
            "this figure needs a trained encoder", where="model", found="none",
            expected="the folder of a run of `heedful train bert-prose`, or of a BERT of Hugging Face's make",
            todo="name it: model=FOLDER",
        )  # fmt: skip
    reader = load(folder)
    if not isinstance(reader, TextEncoder):
        raise UserError(
            "this model is no encoder alone", where="model", found=folder, todo="name the one it began with"
        )
    return reader


def place_of(word: str, sentence: str) -> tuple[int, int]:
    """Where a word first stands in a sentence, whatever the case of its letters."""
    found = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", sentence, re.IGNORECASE)
    if found is None:
        raise UserError(
            "the word is not in this sentence", where="sentences", found=shown(sentence), expected=shown(word),
            todo="change word=..., or give sentences that have it",
        )  # fmt: skip
    return found.span()


def tokens_of(word: str, sentence: str, tokens: TokenEmbeddings) -> list[int]:
    """Which tokens a word is made of."""
    begin, end = place_of(word, sentence)
    return [at for at, (a, b) in enumerate(tokens.offsets) if a < b and begin <= a and b <= end]


def word_vectors(reader: TextEncoder, word: str, sentences: tuple[str, ...]) -> Tensor:
    """The word in each sentence (N, L + 2, D): in the table of words, then in each layer; of pieces, their mean."""
    for sentence in sentences:
        place_of(word, sentence)
    model: Any = reader.model
    found = []
    for sentence, tokens in zip(sentences, reader.layers(sentences), strict=True):
        places = tokens_of(word, sentence, tokens)
        if not places:
            raise UserError("the word is beyond what the model reads", where="sentences", found=shown(sentence))
        begin, end = place_of(word, sentence)
        ids = torch.tensor(reader.tokenizer.ids([sentence[begin:end]])[0], device=reader.device)
        static = model.tokens.weight.detach()[ids].float().mean(0).cpu()  # (D,)
        found.append(torch.cat([static[None], tokens.values[:, places].mean(1)]))  # (L + 2, D)
    return torch.stack(found)


def study(settings: Settings) -> Generator[Progress, None, Contexts]:
    """Read the sentences, and compare."""
    reader = reader_in(settings.model)
    yield Progress(0.0, "reading the sentences")
    vectors = word_vectors(reader, settings.word, settings.sentences)  # (N, L + 2, D)
    yield Progress(1.0, "comparing")
    return Contexts(settings.word, settings.sentences, cosine_similarity(vectors, vectors[:1], dim=-1).mT)


def plot(found: Contexts, style: Style = "light") -> Figure:
    """A line for each sentence over the layers, from the table of words on."""
    layers = range(-1, len(found.cosines) - 1)
    return curves(
        {
            f"{number + 1}: {sentence}": (layers, found.cosines[:, number].tolist())
            for number, sentence in enumerate(found.sentences)
            if number  # that of the first is 1 everywhere
        },
        f"“{found.word}” in other sentences, compared with “{found.sentences[0]}”",
        "layer: -1 the table of words, 0 embedded, then the blocks",
        "cosine",
        style=style,
    )
