"""The verb `tokenize`: a recipe's documents as token files, for texts that are larger than memory."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import typer

from heedful.data.corpora import TokenFiles, write_tokens
from heedful.data.documents import Documents, documents_of
from heedful.data.embedded import LibraryProse
from heedful.data.pretraining import tokenized
from heedful.data.sources import SPLITS, Split
from heedful.data.wordpieces import pieces_of
from heedful.errors import UserError
from heedful.recipe import check_recipe, load_recipe
from heedful.recipe.pretraining import PretrainingRecipe

LEARNED = 200_000_000  # characters that a tokenizer is trained on at the most
TELLS = 5.0  # seconds between two lines of progress


def tokenize_verb(name: str, overrides: Sequence[str], folder: Path) -> None:
    """Tokenize the documents of a recipe, and say how to train on them."""
    recipe = load_recipe(name, overrides)
    if not isinstance(recipe, PretrainingRecipe) or isinstance(recipe.data, TokenFiles) or recipe.tokenizer is None:
        raise UserError(
            "there is nothing to tokenize", where=name, found=f"task {recipe.task.kind}, data {recipe.data.kind}",
            expected="a recipe for pretraining, on documents",
        )  # fmt: skip
    check_recipe(recipe)
    data = recipe.data
    typer.echo("reading the tokenizer" if recipe.tokenizer.kind == "pieces" else "training the tokenizer", err=True)
    tokenizer = pieces_of(recipe.tokenizer, some(data))
    splits: tuple[Split, ...] = SPLITS if data.test is not None else ("train", "valid")
    parts = {split: tokenized(documents_of(data, split), tokenizer) for split in splits}
    manifest = write_tokens(folder, tokenizer, dict(parts), Telling())
    for split, counts in manifest.splits.items():
        typer.echo(
            f"{split:<6} {counts.tokens:>14,} tokens, {counts.sentences:,} sentences, {counts.documents:,} documents"
        )
    told = shlex.quote(f"data={{kind: tokens, folder: {folder}}}")
    typer.echo(f"wrote {folder}; train on it with {told} tokenizer=null")


def some(data: Documents | LibraryProse) -> Iterator[str]:
    """The sentences of the training documents, as many as a tokenizer is trained on."""
    left = LEARNED
    for text in sentences(documents_of(data, "train")):
        left -= len(text)
        yield text
        if left < 0:
            return


def sentences(documents: Iterable[list[str]]) -> Iterator[str]:
    """Those of all documents, one after the other."""
    return (text for document in documents for text in document)


class Telling:
    """Says now and then how far it is."""

    def __init__(self) -> None:
        self.told = self.began = time.monotonic()

    def __call__(self, split: Split, tokens: int) -> None:
        now = time.monotonic()
        if now - self.told > TELLS:
            self.told = now
            typer.echo(f"{split}: {tokens:,} tokens after {now - self.began:,.0f} s", err=True)
