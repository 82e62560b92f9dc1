"""The recipe: everything that decides a run, as one typed, frozen value; readable without torch."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, load_yaml, parse, schema
from heedful.data.embedded import NumberWords
from heedful.data.sources import Jsonl, ParallelFiles, Tsv
from heedful.data.tokenizers import Bpe, Unigram, WordPiece
from heedful.errors import UserError
from heedful.models.configs import TransformerConfig
from heedful.training.configs import TrainConfig

RECIPES = Path(__file__).parent / "recipes"

DataConfig = Annotated[ParallelFiles | Tsv | Jsonl | NumberWords, Field(discriminator="kind")]
TokenizerConfig = Annotated[Bpe | WordPiece | Unigram, Field(discriminator="kind")]


class TaskConfig(Config):
    """What is learned: the target sentence from the source sentence."""

    kind: Literal["translation"] = "translation"
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="share of probability spread over all tokens")


class DecodeConfig(Config):
    """How translations are searched for when the model is evaluated or used."""

    beams: int = Field(4, ge=1, le=1000, description="hypotheses kept at each step; 1: greedy search")
    length_penalty: float = Field(1.0, ge=-10, le=10, description="above 0, a long translation is punished less")
    max_length: int | None = Field(None, ge=1, description="longest translation in tokens; null: 2 x source + 16")


class Recipe(Config):
    """A whole experiment: task, data, tokenizer, model, training and decoding."""

    task: TaskConfig = TaskConfig()
    data: DataConfig
    tokenizer: TokenizerConfig
    model: TransformerConfig = TransformerConfig()
    train: TrainConfig
    decode: DecodeConfig = DecodeConfig()

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if self.model.vocab is not None and self.model.vocab < self.tokenizer.vocab:
            raise ValueError(
                f"model.vocab is {self.model.vocab}, but the tokenizer may have {self.tokenizer.vocab} tokens; "
                "leave model.vocab out to follow the tokenizer"
            )
        longest = self.decode.max_length
        if longest is not None and longest > self.model.context:
            raise ValueError(
                f"decode.max_length is {longest}, but the model's context is {self.model.context}; "
                f"write model.context: {longest}"
            )
        return self


def shipped() -> dict[str, Path]:
    """The recipes that come with Heedful, by name."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}


def find_recipe(name: str) -> Path:
    """The file that a recipe's path or shipped name stands for, a file of that name coming first."""
    if os.path.isfile(name):
        return Path(name)
    known = shipped()
    if name in known:
        return known[name]
    if os.path.exists(name):
        return Path(name)  # a directory, say: reading it gives the fitting message
    nearby = [str(file) for pattern in ("*.yaml", "*.yml") for file in Path().glob(pattern)]
    close = difflib.get_close_matches(name, [*known, *nearby], n=1, cutoff=0.6)
    raise UserError(
        "there is no such recipe",
        where=name,
        expected="the path of a YAML file, or one of " + ", ".join(known),
        todo=f"did you mean {close[0]}?" if close else "`heedful init translate` writes one to start from",
    )


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe by path or shipped name, with `key.path=value` overrides put in."""
    path = find_recipe(name)
    data, marks = load_yaml(path)
    return parse(Recipe, data, marks, overrides, path)


def summary(path: Path) -> str:
    """What a recipe says of itself in its first line."""
    with path.open(encoding="utf-8") as lines:
        return lines.readline().lstrip("# ").rstrip()


def check_recipe(recipe: Recipe) -> None:
    """Raise one error for all files that a recipe names and that are not there."""
    problems = recipe.data.missing()
    if problems:
        count = "a data file is" if len(problems) == 1 else f"{len(problems)} data files are"
        raise UserError(f"{count} not as the recipe says", problems=problems)


def schema_text() -> str:
    """The JSON Schema of recipes, as the text of a file."""
    return json.dumps(schema(Recipe), indent=2, ensure_ascii=False) + "\n"


def init_recipe(template: str, path: Path, *, force: bool = False) -> tuple[Path, Path]:
    """Write a commented recipe and the schema with which an editor completes it; return both paths."""
    known = {file.stem: file for file in sorted((RECIPES / "templates").glob("*.yaml"))}
    if template not in known:
        close = difflib.get_close_matches(template, known, n=1, cutoff=0.5)
        todo = f"did you mean {close[0]}?" if close else None
        raise UserError(f"there is no template named {template}", expected="one of " + ", ".join(known), todo=todo)
    recipe = path / f"{template}.yaml" if path.is_dir() else path
    editor = recipe.with_suffix(".schema.json")
    for file in (recipe, editor):
        if file.exists() and not force:
            raise UserError(
                "a file is in the way", where=str(file), todo="name another path, or write over it with --force"
            )
    text = known[template].read_text(encoding="utf-8")
    try:
        editor.write_text(schema_text(), encoding="utf-8")
        recipe.write_text(f"# yaml-language-server: $schema={editor.name}\n{text}", encoding="utf-8")
    except OSError as error:
        raise UserError(
            "cannot write the file",
            where=str(recipe),
            found=error.strerror,
            todo="name a path in a folder you can write",
        ) from error
    return recipe, editor
