"""The command `tokenize`: write a recipe's text as token files, for texts that are larger than memory."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from heedful.cli.output import print_table
from heedful.data.formats.sources import SPLITS, Split
from heedful.data.own import OwnData
from heedful.data.text.documents import Documents, iter_documents
from heedful.data.text.files import TextFiles
from heedful.data.text.pretraining import tokenize_documents
from heedful.data.text.text_stream import passages
from heedful.data.text.token_building import build_tokens, cpu_cores
from heedful.data.text.token_documents import TokenFiles, write_tokens
from heedful.data.text.token_text import TokenizedText
from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2BpeFiles, gpt2_tokenizer
from heedful.data.tokenizers.encoders import TRAINABLE, encoder_tokenizer
from heedful.data.tokenizers.lm_tokenization import LanguageTokenizer, last_split
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.errors import UserError
from heedful.files.reading import exists
from heedful.hub.loading import no_tokenizer_error, pretrained
from heedful.runs.recipe import check_recipe, load_recipe
from heedful.tasks.language_model.recipe import LanguageModelRecipe
from heedful.tasks.pretraining.recipe import PretrainingRecipe

MAX_TRAINING_CHARACTERS = 200_000_000  # of the text that a tokenizer is trained on
Counts = dict[str, dict[str, int]]  # by split, then by unit: tokens, documents, ...
PROGRESS_INTERVAL = 5.0  # seconds


def tokenize_command(
    name: str, overrides: Sequence[str], folder: Path, jobs: int | None = None, as_json: bool = False
) -> None:
    """Tokenize the text of a recipe, and print how to train on the result."""
    recipe = load_recipe(name, overrides)
    data: Any = recipe.data
    if isinstance(data, TokenFiles | TokenizedText) or not isinstance(recipe, PretrainingRecipe | LanguageModelRecipe):
        raise UserError(
            "this recipe has no text to tokenize", where=name, found=f"task {recipe.task.kind}, data {data.kind}",
            expected="a recipe for pretraining or a language model, with text as data",
        )  # fmt: skip
    check_recipe(recipe)
    splits: tuple[Split, ...] = SPLITS if data.test is not None else ("train", "valid")
    counts = (
        write_text(recipe, folder, splits, jobs)
        if isinstance(recipe, LanguageModelRecipe)
        else write_sentences(recipe, folder, splits)
    )
    rows = (", ".join(f"{count:,} {name}" for name, count in amounts.items()) for amounts in counts.values())
    override = shlex.quote(f"data={{kind: tokens, folder: {folder}}}")
    lines = [f"{split:<6} {row}" for split, row in zip(counts, rows, strict=True)]
    print_table(
        [*lines, f"wrote {folder}; train on it with {override} tokenizer=null"],
        [{"folder": str(folder), "splits": counts}],
        as_json,
    )


def write_sentences(recipe: PretrainingRecipe, folder: Path, splits: Sequence[Split]) -> Counts:
    """Write documents as sentences, for pre-training; returns the counts of each split."""
    data: Any = recipe.data
    assert recipe.tokenizer is not None, "text needs a tokenizer"
    typer.echo(
        "training the tokenizer" if isinstance(recipe.tokenizer, TRAINABLE) else "reading the tokenizer", err=True
    )
    tokenizer = encoder_tokenizer(
        recipe.tokenizer, limit_text(text for document in iter_documents(data, "train") for text in document)
    )
    parts = {split: tokenize_documents(iter_documents(data, split), tokenizer) for split in splits}
    manifest = write_tokens(folder, tokenizer, dict(parts), ProgressPrinter())
    return {
        split: {"tokens": one.tokens, "sentences": one.sentences, "documents": one.documents}
        for split, one in manifest.splits.items()
    }


def write_text(recipe: LanguageModelRecipe, folder: Path, splits: Sequence[Split], jobs: int | None) -> Counts:
    """Write documents as running text, for language models; returns the counts of each split."""
    data: Any = recipe.data
    manifest = build_tokens(
        folder, fingerprint(recipe), partial(recipe_tokenizer, recipe),
        {split: partial(data.stream, split) for split in splits},
        jobs or cpu_cores(), ProgressPrinter(), partial(typer.echo, err=True),
    )  # fmt: skip
    return {
        split: {"tokens": one.tokens, "bytes": one.bytes, "documents": one.documents}
        for split, one in manifest.splits.items()
    }


def fingerprint(recipe: LanguageModelRecipe) -> dict[str, Any]:
    """What determines the tokens: the settings, and the size and modification time of each file."""
    data, tokenizer = recipe.data, recipe.tokenizer
    paths = [path for split in SPLITS for path in data.paths(split)] if isinstance(data, TextFiles | Documents) else []
    if isinstance(tokenizer, Gpt2BpeFiles):
        paths += [Path(name) for name in (tokenizer.file, tokenizer.merges) if name is not None]
    files = {str(path): [path.stat().st_size, path.stat().st_mtime_ns] for path in paths if exists(path)}
    parts = {name: part.model_dump() if part is not None else None for name, part in recipe if name in TOKEN_SETTINGS}
    return {**parts, "files": files}


TOKEN_SETTINGS = frozenset(("data", "tokenizer", "start"))  # the parts of a recipe that determine the tokens


def recipe_tokenizer(recipe: LanguageModelRecipe) -> LanguageTokenizer:
    """Read or train the tokenizer of a recipe."""
    config, data = recipe.tokenizer, recipe.data
    if recipe.start is not None:
        typer.echo("reading the tokenizer", err=True)
        folder = Path(recipe.start.folder)
        model = pretrained(folder, role="causal")
        if model.tokenizer is None:
            raise no_tokenizer_error(model, folder)
        return model.tokenizer
    assert config is not None, "text needs a tokenizer"
    assert not isinstance(data, TokenizedText | OwnData), "there is text to read"
    typer.echo("reading the tokenizer" if isinstance(config, Gpt2BpeFiles) else "training the tokenizer", err=True)
    if isinstance(config, Gpt2Bpe | Gpt2BpeFiles):
        return gpt2_tokenizer(
            config, limit_text(passage.text for passage in passages(data.stream("train"), last_split))
        )
    return TrainedTokenizer.train(config, limit_text(line for document in data.stream("train") for line in document))


def limit_text(texts: Iterable[str]) -> Iterator[str]:
    """The first texts, up to the maximum that a tokenizer is trained on."""
    left = MAX_TRAINING_CHARACTERS
    for text in texts:
        left -= len(text)
        yield text
        if left < 0:
            return


class ProgressPrinter:
    """Prints the number of tokens every few seconds."""

    def __init__(self) -> None:
        self.printed = self.started = time.monotonic()

    def __call__(self, split: Split, tokens: int) -> None:
        now = time.monotonic()
        if now - self.printed > PROGRESS_INTERVAL:
            self.printed = now
            typer.echo(f"{split}: {tokens:,} tokens after {now - self.started:,.0f} s", err=True)
