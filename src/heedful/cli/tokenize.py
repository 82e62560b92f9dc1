"""The verb `tokenize`: a recipe's text as token files, for texts that are larger than memory."""

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
from heedful.data.tokenizers.encoders import LEARNABLE, encoder_tokenizer
from heedful.data.tokenizers.lm_tokenization import ByteCodec, LanguageTokenizer
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.errors import UserError
from heedful.files.reading import exists
from heedful.hub.loading import no_tokenizer_error, pretrained
from heedful.runs.recipe import check_recipe, load_recipe
from heedful.tasks.language_model.recipe import LanguageModelRecipe
from heedful.tasks.pretraining.recipe import PretrainingRecipe

LEARNED = 200_000_000  # characters that a tokenizer is trained on, at most
Counts = dict[str, dict[str, int]]  # of each split, by what is counted
TELLS = 5.0  # seconds between two lines of progress


def tokenize_verb(
    name: str, overrides: Sequence[str], folder: Path, jobs: int | None = None, as_json: bool = False
) -> None:
    """Tokenize the text of a recipe, and say how to train on it."""
    recipe = load_recipe(name, overrides)
    data: Any = recipe.data
    if isinstance(data, TokenFiles | TokenizedText) or not isinstance(recipe, PretrainingRecipe | LanguageModelRecipe):
        raise UserError(
            "there is nothing to tokenize", where=name, found=f"task {recipe.task.kind}, data {data.kind}",
            expected="a recipe for pretraining or for a language model, on text",
        )  # fmt: skip
    check_recipe(recipe)
    splits: tuple[Split, ...] = SPLITS if data.test is not None else ("train", "valid")
    counts = (
        write_text(recipe, folder, splits, jobs)
        if isinstance(recipe, LanguageModelRecipe)
        else write_sentences(recipe, folder, splits)
    )
    rows = (", ".join(f"{count:,} {name}" for name, count in amounts.items()) for amounts in counts.values())
    given = shlex.quote(f"data={{kind: tokens, folder: {folder}}}")
    lines = [f"{split:<6} {row}" for split, row in zip(counts, rows, strict=True)]
    print_table(
        [*lines, f"wrote {folder}; train on it with {given} tokenizer=null"],
        [{"folder": str(folder), "splits": counts}],
        as_json,
    )


def write_sentences(recipe: PretrainingRecipe, folder: Path, splits: Sequence[Split]) -> Counts:
    """Write documents as sentences, for pre-training; returns what each split has."""
    data: Any = recipe.data
    assert recipe.tokenizer is not None, "text needs one"
    typer.echo(
        "training the tokenizer" if isinstance(recipe.tokenizer, LEARNABLE) else "reading the tokenizer", err=True
    )
    tokenizer = encoder_tokenizer(recipe.tokenizer, some(sentences(iter_documents(data, "train"))))
    parts = {split: tokenize_documents(iter_documents(data, split), tokenizer) for split in splits}
    manifest = write_tokens(folder, tokenizer, dict(parts), Telling())
    return {
        split: {"tokens": one.tokens, "sentences": one.sentences, "documents": one.documents}
        for split, one in manifest.splits.items()
    }


def write_text(recipe: LanguageModelRecipe, folder: Path, splits: Sequence[Split], jobs: int | None) -> Counts:
    """Write documents as running text, for language models; returns what each split has."""
    data: Any = recipe.data
    manifest = build_tokens(
        folder, plan_of(recipe), partial(learned, recipe), {split: partial(data.stream, split) for split in splits},
        jobs or cpu_cores(), Telling(), partial(typer.echo, err=True),
    )  # fmt: skip
    return {
        split: {"tokens": one.tokens, "bytes": one.bytes, "documents": one.documents}
        for split, one in manifest.splits.items()
    }


def plan_of(recipe: LanguageModelRecipe) -> dict[str, Any]:
    """What decides the tokens: settings, and the size and time of each file."""
    data, tokenizer = recipe.data, recipe.tokenizer
    paths = [path for split in SPLITS for path in data.paths(split)] if isinstance(data, TextFiles | Documents) else []
    if isinstance(tokenizer, Gpt2BpeFiles):
        paths += [Path(name) for name in (tokenizer.file, tokenizer.merges) if name is not None]
    files = {str(path): [path.stat().st_size, path.stat().st_mtime_ns] for path in paths if exists(path)}
    parts = {name: part.model_dump() if part is not None else None for name, part in recipe if name in DECIDING}
    return {**parts, "files": files}


DECIDING = frozenset(("data", "tokenizer", "start"))  # of a recipe's parts


def learned(recipe: LanguageModelRecipe) -> LanguageTokenizer:
    """The tokenizer that a recipe asks for."""
    config, data = recipe.tokenizer, recipe.data
    if recipe.start is not None:
        typer.echo("reading the tokenizer", err=True)
        folder = Path(recipe.start.folder)
        found = pretrained(folder, role="causal")
        if found.tokenizer is None:
            raise no_tokenizer_error(found, folder)
        return found.tokenizer
    assert config is not None, "text needs one"
    assert not isinstance(data, TokenizedText | OwnData), "there is text to read"
    typer.echo("reading the tokenizer" if isinstance(config, Gpt2BpeFiles) else "training the tokenizer", err=True)
    if isinstance(config, Gpt2Bpe | Gpt2BpeFiles):
        return gpt2_tokenizer(
            config, some(passage.text for passage in passages(data.stream("train"), ByteCodec.split_point))
        )
    return TrainedTokenizer.train(config, some(line for document in data.stream("train") for line in document))


def some(texts: Iterable[str]) -> Iterator[str]:
    """The first texts, as many as a tokenizer is trained on."""
    left = LEARNED
    for text in texts:
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
