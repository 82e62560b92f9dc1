"""The documents hold what they say: links lead somewhere, commands exist, snippets run, tables name every setting."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import torch
import typer.main
from pydantic_core import PydanticUndefined

import heedful
from heedful.cli.app import app
from heedful.config import Config
from heedful.data.embedded import Digits, LibraryProse, NumberLanguages, NumberWords
from heedful.data.embedding_init import EmbeddingInit
from heedful.data.formats.conll import Conll, JsonTags
from heedful.data.formats.sources import FilePair, Jsonl, ParallelFiles, Tsv
from heedful.data.formats.squad import JsonQuestions, Squad, WindowsConfig
from heedful.data.formats.tables import CsvTable, JsonlTable, TsvTable
from heedful.data.images.sources import ArrayFile, ArrayImages, CsvImages, IdxImages, ImageFiles, ImageFolders
from heedful.data.labelled.choices import ChoicesTable
from heedful.data.own import OwnData
from heedful.data.text.documents import Documents, JsonDocuments, TextDocuments
from heedful.data.text.files import TextFiles
from heedful.data.text.token_documents import TokenFiles
from heedful.data.text.token_text import TokenizedText
from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2BpeFiles
from heedful.data.tokenizers.encoders import KINDS
from heedful.data.tokenizers.tokenizer import Bpe, Characters, Unigram, WholeWords, WordPiece
from heedful.data.tokenizers.wordpiece import WordPieceFile
from heedful.data.trees.treebank import SentimentTrees, WordsConfig
from heedful.decode.settings import DecodeConfig, WritingConfig
from heedful.explore.server.page import is_built
from heedful.models import MODELS, config_class
from heedful.models.autoencoder.config import SIZES as LECTURE
from heedful.models.autoencoder.layers import Conv, Dense, Flatten, MaxPool, Reshape, Upsample
from heedful.models.bert.config import SIZES, BertConfig
from heedful.models.gpt.config import SIZES as GPT_SIZES
from heedful.models.heads.config import (
    BiLSTMReader,
    DenseReader,
)
from heedful.models.seq2seq.config import (
    AttentionConfig,
    Global,
    Monotonic,
    Predictive,
    RecurrentEncoder,
    TransformerEncoder,
)
from heedful.runs.recipe import shipped
from heedful.tasks import TASKS, recipe_class
from heedful.tasks.answering.recipe import AnsweringTaskConfig
from heedful.tasks.classification.recipe import (
    CharactersConfig,
    ClassificationTaskConfig,
    RegressionTaskConfig,
    TextClassificationTaskConfig,
)
from heedful.tasks.finetuning.recipe import EncoderStart
from heedful.tasks.language_model.recipe import CausalStart, LanguageModelTaskConfig
from heedful.tasks.multiple_choice.recipe import MultipleChoiceTaskConfig
from heedful.tasks.pretraining.recipe import PretrainingTaskConfig
from heedful.tasks.recipe_parts import Start
from heedful.tasks.reconstruction.recipe import ReconstructionTaskConfig
from heedful.tasks.tagging.recipe import TaggingTaskConfig
from heedful.tasks.translation.recipe import TranslationTaskConfig
from heedful.tasks.tree_classification.recipe import TreeTaskConfig
from heedful.training.configs import Budget, TrainConfig
from heedful.training.optim import AdamW, Constant, Cosine, Linear, Noam, RMSprop

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SEQ2SEQ = ROOT / "docs" / "models" / "seq2seq.md"
BERT = ROOT / "docs" / "models" / "bert.md"
AUTOENCODER = ROOT / "docs" / "models" / "autoencoder.md"
GPT = ROOT / "docs" / "models" / "gpt.md"
DOCS = [
    ROOT / "docs" / name
    for name in ("python.md", "distributed.md", "autoencoders.md", "language-models.md", "explorer.md")
]
MODEL_PAGES = sorted((ROOT / "docs" / "models").glob("*.md"))
SESSIONS = [ROOT / "README.md", *DOCS, *(page for page in MODEL_PAGES if "import" in page.read_text(encoding="utf-8"))]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())

# The smallest run of the demo's recipe, for snippets that are marked as needing a trained model.
TINY = [
    "data.train=200", "data.valid=10", "data.test=10", "tokenizer.vocab=90", "model.width=16", "model.heads=2",
    "model.hidden=32", "train.budget.steps=3", "train.device=cpu",
]  # fmt: skip


class Block(NamedTuple):
    """A fenced block: its language, its text, the line it begins at, and whether it is about a trained model."""

    language: str
    text: str
    line: int
    trained: bool


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    pattern = re.compile(r"^(<!-- trained -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [
        Block(found[2], found[3], text.count("\n", 0, found.start(3)) + 1, bool(found[1]))
        for found in pattern.finditer(text)
    ]


def anchors(page: Path) -> set[str]:
    """The names that a page's headings can be linked by."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(page: Path) -> Iterator[str]:
    """Everything that a page writes as code and that is not Python: inline, or lines of a block."""
    for block in blocks(page):
        if block.language not in ("python", "yaml", "json"):
            yield from block.text.splitlines()
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`([^`\n]+)`", text)


@every_page
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"``.*?``", "", text)  # in code, brackets are no links
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if re.match(r"[a-z]+:", link):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


@every_page
def test_commands_and_their_options_exist(page: Path) -> None:
    verbs: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    unknown = []
    for line in commands(page):
        for verb, rest in re.findall(r"\bheedful ([a-z][a-z0-9-]*)([^|#]*)", line):
            if verb not in verbs:
                unknown.append(f"heedful {verb}")
                continue
            options = {name for option in verbs[verb].params for name in option.opts} | {"--help"}
            unknown += [f"{verb} {name}" for name in re.findall(r"(?<!\S)--?[a-z][\w-]*", rest) if name not in options]
    assert unknown == []


def test_every_shipped_recipe_is_documented() -> None:
    text = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    table = text.partition("These recipes come with Heedful")[2].partition("```")[0]
    named = set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE))
    pages = "".join(page.read_text(encoding="utf-8") for page in MODEL_PAGES)
    assert named <= set(shipped())
    assert {name for name in shipped() if name not in named and f"heedful train {name}" not in pages} == set()


@every_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {target for line in commands(page) for target in re.findall(r"^make ([a-z]\w*)\b", line.strip())}
    assert named - targets == set()


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.name)
def test_snippets_run_and_print_the_shown_output(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "heedful.show(" in page.read_text(encoding="utf-8") and not is_built() and not os.environ.get("CI"):
        pytest.skip("the explorer's page is not built: make web")
    monkeypatch.chdir(tmp_path)
    if any(block.trained for block in blocks(page)):
        list(heedful.train(heedful.load_recipe("numbers", TINY), "runs/demo"))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # outputs are those of a CPU
    session: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    before = ""
    for block in blocks(page):
        if block.language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), session)
            printed = out.getvalue()
        elif block.language == "text" and before == "python" and not block.trained:
            assert printed == block.text, f"{page.name}:{block.line}"
        before = block.language


SETTINGS: dict[str, type[Config]] = {
    "task, `kind: translation`": TranslationTaskConfig,
    "task, `kind: language_model`": LanguageModelTaskConfig,
    "data, `kind: parallel`": ParallelFiles,
    "data, `kind: tsv`": Tsv,
    "data, `kind: jsonl`": Jsonl,
    "data, `kind: number_words`": NumberWords,
    "data, `kind: text`": TextFiles,
    "data, `kind: library_prose`": LibraryProse,
    "data, `kind: trees`": SentimentTrees,
    "task, `kind: tree_classification`": TreeTaskConfig,
    "tokenizer, `kind: words`, of trees": WordsConfig,
    "tokenizer, `kind: bpe`": Bpe,
    "tokenizer, `kind: wordpiece`": WordPiece,
    "tokenizer, `kind: unigram`": Unigram,
    "tokenizer, `kind: characters`": Characters,
    "tokenizer, `kind: words`": WholeWords,
    "train": TrainConfig,
    "train.budget": Budget,
    "train.optimizer, `kind: adamw`": AdamW,
    "train.schedule, `kind: noam`": Noam,
    "train.schedule, `kind: cosine`": Cosine,
    "train.schedule, `kind: linear`": Linear,
    "train.schedule, `kind: constant`": Constant,
    "decode, of a translation": DecodeConfig,
    "decode, of a language model": WritingConfig,
    "task, `kind: pretraining`": PretrainingTaskConfig,
    "task, `kind: classification`": ClassificationTaskConfig,
    "task, `kind: regression`": RegressionTaskConfig,
    "task, `kind: multiple_choice`": MultipleChoiceTaskConfig,
    "task, `kind: tagging`": TaggingTaskConfig,
    "task, `kind: answering`": AnsweringTaskConfig,
    "start": Start,
    "start, of a fine-tuned encoder": EncoderStart,
    "data, `kind: documents`": Documents,
    "data.train, `kind: text`": TextDocuments,
    "data.train, `kind: jsonl`": JsonDocuments,
    "data, `kind: tokens`": TokenFiles,
    "data, `kind: tsv`, of texts with labels": TsvTable,
    "data, `kind: csv`, of texts with labels": CsvTable,
    "data, `kind: jsonl`, of texts with labels": JsonlTable,
    "data, `kind: number_languages`": NumberLanguages,
    "data, `kind: choices`": ChoicesTable,
    "data, `kind: conll`": Conll,
    "data, `kind: jsonl`, of words with tags": JsonTags,
    "data, `kind: squad`": Squad,
    "data, `kind: jsonl`, of questions": JsonQuestions,
    "tokenizer, `kind: pieces`": WordPieceFile,
    "model.reader, `kind: linear`": DenseReader,
    "model.reader, `kind: bilstm`": BiLSTMReader,
    "decode, of questions": WindowsConfig,
    "task, `kind: reconstruction`": ReconstructionTaskConfig,
    "data, `kind: idx`": IdxImages,
    "data.train, of `kind: idx`": ImageFiles,
    "data, `kind: image_folder`": ImageFolders,
    "data, `kind: array`": ArrayImages,
    "data.train, of `kind: array`": ArrayFile,
    "data, `kind: csv`, of images": CsvImages,
    "data, `kind: digits`": Digits,
    "data, `kind: own`": OwnData,
    "a layer, `kind: dense`": Dense,
    "a layer, `kind: conv`": Conv,
    "a layer, `kind: max_pool`": MaxPool,
    "a layer, `kind: upsample`": Upsample,
    "a layer, `kind: flatten`": Flatten,
    "a layer, `kind: reshape`": Reshape,
    "train.optimizer, `kind: rmsprop`": RMSprop,
    "start, of a language model": CausalStart,
    "data, `kind: tokens`, of a language model": TokenizedText,
    "tokenizer, `kind: byte_pairs`": Gpt2Bpe,
    "tokenizer, `kind: byte_pair_files`": Gpt2BpeFiles,
    "task, `kind: text_classification`": TextClassificationTaskConfig,
    "tokenizer, `kind: characters`, of texts with labels": CharactersConfig,
    "embedding_init": EmbeddingInit,
}


def told(default: Any) -> str:
    """A default as the guide writes it."""
    if default is PydanticUndefined:
        return "required"
    return "see below" if isinstance(default, Config) else f"`{json.dumps(default)}`".replace('"', "")


MODEL_SETTINGS: dict[str, type[Config]] = {f"model, `kind: {kind}`": config_class(kind) for kind in MODELS}
TOKENIZER_SETTINGS: dict[str, type[Config]] = {
    f"tokenizer, `kind: {config.model_fields['kind'].default}`": config
    for kind in KINDS.values()
    for config in (kind.trained, kind.files)
}
SEQ2SEQ_SETTINGS: dict[str, type[Config]] = {
    "model.encoder, `kind: recurrent`": RecurrentEncoder,
    "model.encoder, `kind: transformer`": TransformerEncoder,
    "model.attention": AttentionConfig,
    "model.attention.span, `kind: global`": Global,
    "model.attention.span, `kind: monotonic`": Monotonic,
    "model.attention.span, `kind: predictive`": Predictive,
}


def groups(annotation: Any) -> set[type[Config]]:
    """The classes of settings that an annotation names, and those inside them."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        inside = (groups(field.annotation) for field in annotation.model_fields.values())
        return {annotation}.union(*inside)
    return set().union(*map(groups, get_args(annotation)))


def test_every_group_of_settings_has_a_table() -> None:
    recipes = [recipe_class(kind) for kind in TASKS]
    found = set().union(*map(groups, recipes)) - set(recipes)
    told_elsewhere = {FilePair}  # {source: FILE, target: FILE}, in the sentence above its table
    told = {*SETTINGS.values(), *MODEL_SETTINGS.values(), *SEQ2SEQ_SETTINGS.values()}
    assert found - told_elsewhere == told | set(TOKENIZER_SETTINGS.values())


def test_bert_page_parameter_counts() -> None:
    rows = re.findall(r"^\| `(bert-[\w-]+)` \|(.*)\|$", BERT.read_text(encoding="utf-8"), re.MULTILINE)
    told_sizes = {name: [int(cell.replace(",", "")) for cell in cells.split("|")] for name, cells in rows}
    bare = {"masked_words": False, "next_sentence": False}
    expected = {
        name: [c.layers, c.width, c.heads, c.hidden, c.model_copy(update=bare).parameters(30522), c.parameters(30522)]
        for name, c in SIZES.items()
        if isinstance(c, BertConfig)
    }
    assert told_sizes == expected


def test_gpt_page_parameter_counts() -> None:
    rows = re.findall(r"^\| `(gpt[\w-]*)` \|(.*)\|$", GPT.read_text(encoding="utf-8"), re.MULTILINE)
    told_sizes = {name: [int(cell.replace(",", "")) for cell in cells.split("|")] for name, cells in rows}
    expected = {
        name: [c.layers, c.width, c.heads, c.context, c.vocab, c.parameters(c.vocab or 0)]
        for name, c in GPT_SIZES.items()
    }
    assert told_sizes == expected


def test_autoencoder_page_parameter_counts() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\dx ]+) \| ([\dx ]+) \| ([\d,]+) \|$", AUTOENCODER.read_text(), re.MULTILINE)
    shapes = {name: (" x ".join(map(str, net.input)), " x ".join(map(str, net.code))) for name, net in LECTURE.items()}
    expected = [(name, *shapes[name], f"{net.parameters():,}") for name, net in LECTURE.items()]
    assert rows == expected


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_setting_is_documented(kind: str) -> None:
    title, own = f"model, `kind: {kind}`", ROOT / "docs" / "models" / f"{kind}.md"
    there = own.exists() and f"#### {title}\n" in own.read_text(encoding="utf-8")
    names_every_setting(own if there else ROOT / "docs" / "guide.md", title, config_class(kind))


@pytest.mark.parametrize("title", TOKENIZER_SETTINGS)
def test_every_encoder_tokenizer_setting_is_documented(title: str) -> None:
    pages = (ROOT / "docs" / "guide.md", *MODEL_PAGES)
    (page,) = (page for page in pages if f"#### {title}\n" in page.read_text(encoding="utf-8"))
    names_every_setting(page, title, TOKENIZER_SETTINGS[title])


@pytest.mark.parametrize("title", SEQ2SEQ_SETTINGS)
def test_model_page_names_every_setting_with_its_default(title: str) -> None:
    names_every_setting(SEQ2SEQ, title, SEQ2SEQ_SETTINGS[title])


@pytest.mark.parametrize("title", SETTINGS)
def test_guide_names_every_setting_with_its_default(title: str) -> None:
    names_every_setting(ROOT / "docs" / "guide.md", title, SETTINGS[title])


def names_every_setting(page: Path, title: str, config: type[Config]) -> None:
    text = page.read_text(encoding="utf-8")
    (section,) = re.findall(rf"^#### {re.escape(title)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE))
    assert rows == {name: told(field.default) for name, field in config.model_fields.items() if name != "kind"}


def test_architecture_page_names_existing_code() -> None:
    page = (ROOT / "docs" / "design" / "architecture.md").read_text(encoding="utf-8")
    walks = page.partition("## Four walks")[2].partition("\n## ")[0]
    names = [name for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)*\.\w+)`", walks) if not name.endswith(".py")]
    assert len(names) > 25
    for name in names:
        place, _, own = name.rpartition(".")
        assert hasattr(importlib.import_module(f"heedful.{place}"), own), name
