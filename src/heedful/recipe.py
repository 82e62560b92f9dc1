"""The recipe: everything that decides a run, as one typed, frozen value; readable without torch.

There is a class of recipes for each task, and `task.kind` says which one reads a file.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import ConfigDict, Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator
from pydantic.json_schema import models_json_schema

from heedful.config import Config, FieldError, load_yaml, override, parse
from heedful.data.embedded import LibraryProse, NumberWords
from heedful.data.sources import SPLITS, Jsonl, ParallelFiles, Split, Tsv
from heedful.data.text import TextFiles
from heedful.data.tokenizers import Bpe, Characters, Unigram, WholeWords, WordPiece
from heedful.data.trees import SentimentTrees, WordsConfig
from heedful.errors import UserError
from heedful.models.configs import ElmoConfig, RnnLMConfig, Seq2SeqConfig, TransformerConfig, TreeLSTMConfig
from heedful.training.configs import TrainConfig

RECIPES = Path(__file__).parent / "recipes"


def _by_kind(usual: str) -> Discriminator:
    """What tells the members of a union apart: their `kind`, which may be left out where the usual one is meant."""

    def choose(value: Any) -> str:
        kind = value.get("kind", usual) if isinstance(value, dict) else getattr(value, "kind", usual)
        return str(kind)

    return Discriminator(choose)


PairsConfig = Annotated[ParallelFiles | Tsv | Jsonl | NumberWords, Field(discriminator="kind")]
TextConfig = Annotated[TextFiles | LibraryProse, Field(discriminator="kind")]
TokenizerConfig = Annotated[Bpe | WordPiece | Unigram | Characters | WholeWords, Field(discriminator="kind")]
TranslatorConfig = Annotated[
    Annotated[TransformerConfig, Tag("transformer")] | Annotated[Seq2SeqConfig, Tag("seq2seq")],
    _by_kind("transformer"),
]


LanguageModelConfig = Annotated[
    Annotated[RnnLMConfig, Tag("rnn_lm")] | Annotated[ElmoConfig, Tag("elmo")], _by_kind("rnn_lm")
]


class TranslationTask(Config):
    """What is learned: the target sentence from the source sentence."""

    kind: Literal["translation"] = "translation"
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="share of probability spread over all tokens")


class TreeTask(Config):
    """What is learned: the class of every node of a tree, from the words below it."""

    kind: Literal["tree_classification"] = "tree_classification"
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of probability spread over all classes")


class LanguageModelTask(Config):
    """What is learned: each token of a text from those before it, or from those around it."""

    kind: Literal["language_model"] = "language_model"


class DecodeConfig(Config):
    """How translations are searched for when the model is evaluated or used."""

    beams: int = Field(4, ge=1, le=1000, description="hypotheses kept at each step; 1: greedy search")
    length_penalty: float = Field(1.0, ge=-10, le=10, description="above 0, a long translation is punished less")
    max_length: int | None = Field(None, ge=1, description="longest translation in tokens; null: 2 x source + 16")


class WritingConfig(Config):
    """How a language model goes on with a text: each token is drawn by chance."""

    length: int = Field(200, ge=1, le=1_000_000, description="tokens that are written")
    temperature: float = Field(1.0, gt=0, le=100, description="over 1 more daring, under 1 less")
    top_k: int | None = Field(None, ge=1, description="draw from the k likeliest tokens; null: from all")
    top_p: float | None = Field(None, gt=0, le=1, description="draw from this share of likelihood; null: from all")


class TranslationRecipe(Config):
    """A whole experiment: task, data, tokenizer, model, training and decoding."""

    task: TranslationTask = TranslationTask()
    data: PairsConfig = Field(description="texts and their translations")
    tokenizer: TokenizerConfig = Field(description="how texts are cut into tokens")
    model: TranslatorConfig = Field(TransformerConfig(), description="what is trained")
    train: TrainConfig = Field(description="how it is trained")
    decode: DecodeConfig = DecodeConfig()

    @field_validator("train")
    @classmethod
    def _batches_can_be_read(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        model = info.data.get("model")
        if train.compile and isinstance(model, Seq2SeqConfig) and model.hard:
            raise FieldError("a model that draws where to look is not compiled; write compile: false", "compile")
        if train.compile and isinstance(model, Seq2SeqConfig) and model.attention and model.attention.feed == "input":
            raise FieldError(
                "a decoder that looks before each step is a loop, compiled anew for each length of a target; "
                "write compile: false, or model.attention.feed: output",
                "compile",
            )
        return _packs(train, model)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        _require_room(self.model.vocab, self.tokenizer.vocab)
        longest = self.decode.max_length
        if longest is not None and longest > self.model.context:
            raise ValueError(
                f"decode.max_length is {longest}, but the model's context is {self.model.context}; "
                f"write model.context: {longest}"
            )
        return self

    @property
    def size(self) -> int:
        """How many numbers are trained, as far as it can be known before the data are read."""
        return self.model.parameters(self.model.vocab or self.tokenizer.vocab)


class TreeRecipe(Config):
    """The same for trees of words, of which every node gets a class; there is nothing to decode."""

    task: TreeTask = TreeTask()
    data: SentimentTrees = Field(description="files of labelled trees, and word vectors")
    tokenizer: WordsConfig = Field(WordsConfig(), description="which words are known")
    model: TreeLSTMConfig = Field(TreeLSTMConfig(), description="what is trained")
    train: TrainConfig = Field(description="how it is trained")

    @field_validator("train")
    @classmethod
    def _batches_can_be_read(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        if train.compile:
            raise FieldError("batches of trees have too many shapes to be compiled; write compile: false", "compile")
        return _packs(train, info.data.get("model"))

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if self.model.classes != self.data.classes:
            raise ValueError(
                f"model.classes is {self.model.classes}, but data.classes is {self.data.classes}; "
                f"write model.classes: {self.data.classes}"
            )
        return self

    @property
    def size(self) -> int:
        """How many numbers are trained, as far as it can be known before the data are read."""
        return self.model.parameters(self.model.vocab or 0)


class LanguageModelRecipe(Config):
    """The same for a language model: a text instead of pairs, and writing instead of a search."""

    task: LanguageModelTask = LanguageModelTask()
    data: TextConfig = Field(description="running text")
    tokenizer: TokenizerConfig = Field(description="how texts are cut into tokens")
    model: LanguageModelConfig = Field(RnnLMConfig(), description="what is trained")
    train: TrainConfig = Field(description="how it is trained")
    decode: WritingConfig = WritingConfig()

    @field_validator("train")
    @classmethod
    def _batches_can_be_read(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        return _packs(train, info.data.get("model"))

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        _require_room(self.model.vocab, self.tokenizer.vocab)
        return self

    @property
    def size(self) -> int:
        """How many numbers are trained, as far as it can be known before the data are read."""
        return self.model.parameters(self.model.vocab or self.tokenizer.vocab)


def _packs(train: TrainConfig, model: Any) -> TrainConfig:
    """Refuse packed batches for a model that cannot read them; there is none to ask where it has mistakes itself."""
    if train.batching == "packed" and model is not None and not model.packs:
        raise FieldError(
            f"{with_article(model.kind)} cannot read texts that lie end to end in one row; write batching: padded",
            "batching",
        )
    return train


def with_article(kind: str) -> str:
    """A kind of model as a sentence names it, by how it is said aloud."""
    return f"{'an' if kind.startswith(('a', 'e', 'i', 'o', 'rnn', 'x')) else 'a'} {kind}"


def _require_room(given: int | None, tokens: int) -> None:
    """Refuse a vocabulary that the tokenizer may not fit into."""
    if given is not None and given < tokens:
        raise ValueError(
            f"model.vocab is {given}, but the tokenizer may have {tokens} tokens; "
            "leave model.vocab out to follow the tokenizer"
        )


Recipe: TypeAlias = TranslationRecipe | LanguageModelRecipe | TreeRecipe
KINDS: dict[str, type[Recipe]] = {
    "translation": TranslationRecipe,
    "language_model": LanguageModelRecipe,
    "tree_classification": TreeRecipe,
}
USUAL = "translation"  # the task of a recipe that names none


class _Tasked(Config):
    """A recipe of which only the task is looked at."""

    model_config = ConfigDict(extra="ignore")

    task: Annotated[TranslationTask | LanguageModelTask | TreeTask, Field(discriminator="kind")]


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
    return recipe_in(find_recipe(name), overrides)


def recipe_in(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe's file by the class that its task asks for."""
    data, marks = load_yaml(path)
    kind = _task_kind(data, overrides)
    if kind not in KINDS:
        parse(_Tasked, data, marks, overrides, path)  # which says what is wrong with it
    recipe: Any = parse(KINDS[kind], data, marks, overrides, path)
    return recipe


def _task_kind(data: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """The task that a recipe names once the overrides are put in; overrides that cannot be are told of later."""
    for text in overrides:
        with suppress(UserError):
            data = override(data, [text])
    task = data.get("task")
    return str(task.get("kind", USUAL)) if isinstance(task, dict) else USUAL


def summary(path: Path) -> str:
    """What a recipe says of itself in its first line."""
    with path.open(encoding="utf-8") as lines:
        return lines.readline().lstrip("# ").rstrip()


def check_recipe(recipe: Recipe, splits: Sequence[Split] = SPLITS) -> None:
    """Raise one error for all files that a recipe names for some splits and that are not there."""
    problems = recipe.data.missing(splits)
    if problems:
        count = "a data file is" if len(problems) == 1 else f"{len(problems)} data files are"
        raise UserError(f"{count} not as the recipe says", problems=problems)


def told_size(recipe: Recipe) -> str:
    """How large the model is, as far as it can be known before the data are read."""
    words = isinstance(recipe, TreeRecipe) and recipe.model.vocab is None
    more = f", and {recipe.model.width:,} for each word" if words else ""
    return f"about {recipe.size / 1e6:,.1f} million parameters{more}"


def schema_text() -> str:
    """The JSON Schema of recipes, as the text of a file: a class of recipes for each task."""
    parts, together = models_json_schema([(cls, "validation") for cls in KINDS.values()])
    whole: dict[str, Any] = parts[(KINDS[USUAL], "validation")]
    for kind, cls in KINDS.items():
        named = {"properties": {"kind": {"const": kind}}, "required": ["kind"]}
        asks = {"properties": {"task": named}, "required": ["task"]}
        whole = whole if kind == USUAL else {"if": asks, "then": parts[(cls, "validation")], "else": whole}
    return json.dumps({**whole, "title": "Recipe", **together}, indent=2, ensure_ascii=False) + "\n"


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
