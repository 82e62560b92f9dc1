"""The documents hold what they say: links lead somewhere, commands exist, snippets run, tables name every setting."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import runpy
import shutil
from collections.abc import Iterator
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import torch
import typer.main

import heedful
from heedful.cli.app import app
from heedful.config import Config
from heedful.contracts.settings import CallConfig
from heedful.data.formats.sources import FilePair
from heedful.data.tables.source import Table
from heedful.data.tables.texts import FieldTable
from heedful.explore.server.page import is_built
from heedful.models import MODELS, config_class
from heedful.models.autoencoder.config import SIZES as LECTURE
from heedful.models.bert.config import SIZES, BertConfig
from heedful.models.gpt.config import SIZES as GPT_SIZES
from heedful.runs.recipe import shipped
from heedful.tasks import TASKS, recipe_class

ROOT = Path(__file__).parents[1]
documented, filled = itemgetter("documented", "filled")(runpy.run_path(str(ROOT / "docs" / "settings.py")))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BERT = ROOT / "docs" / "models" / "bert.md"
AUTOENCODER = ROOT / "docs" / "models" / "autoencoder.md"
GPT = ROOT / "docs" / "models" / "gpt.md"
# Fragments that need a model or a program of the reader's.
NO_SESSIONS = ("CONTRIBUTING.md", "tutorials/fine-tune.md", "tutorials/embed.md", "design/mechanisms.md")
SESSIONS = [
    page
    for page in PAGES
    if re.search(r"^```python\n[^`]*import ", page.read_text(encoding="utf-8"), re.MULTILINE)
    and not page.as_posix().endswith(NO_SESSIONS)
]
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
def test_languages_of_blocks(page: Path) -> None:
    """`make docs-check` runs blocks of `sh`, and would pass by those of `bash`."""
    found = re.findall(r"^ *```(?=\S)(.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(found) <= {"python", "sh", "text", "yaml", "{eval-rst}"}


@cache
def verbs() -> dict[str, set[str]]:
    """The options of each command."""
    every: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return {name: {one for option in verb.params for one in option.opts} | {"--help"} for name, verb in every.items()}


@every_page
def test_commands_and_their_options_exist(page: Path) -> None:
    unknown = []
    for line in commands(page):
        for verb, rest in re.findall(r"\bheedful ([a-z][a-z0-9-]*)([^|#]*)", line):
            if verb not in verbs():
                unknown.append(f"heedful {verb}")
                continue
            named = re.findall(r"(?<!\S)--?[a-z][\w-]*", rest)
            unknown += [f"{verb} {name}" for name in named if name not in verbs()[verb]]
    assert unknown == []


@pytest.mark.parametrize("recipe", shipped())
def test_every_shipped_recipe_is_documented(recipe: str) -> None:
    text = (ROOT / "docs" / "reference" / "recipes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)
    assert rows.count(recipe) == 1, f"add a row for `{recipe}` to docs/reference/recipes.md"
    assert set(rows) <= set(shipped())


@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_of_model_has_a_table_under_its_name(kind: str) -> None:
    (page,) = (
        p for p in PAGES if re.search(rf"^#+ model, `kind: {kind}`$", p.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert config_class(kind) in documented(page.read_text(encoding="utf-8"))


@every_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {target for line in commands(page) for target in re.findall(r"^make ([a-z]\w*)\b", line.strip())}
    assert named - targets == set()


LONG_PAGES = ("encoders.md", "language-models.md", "scikit-learn.md")  # run by `make docs-check` and `make test-all`


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the demo's recipe, trained for three steps."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    list(heedful.train(heedful.load_recipe("numbers", TINY), folder))
    return folder


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page.name in LONG_PAGES else ()) for page in SESSIONS],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_snippets_run_and_print_the_shown_output(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if "heedful.show(" in page.read_text(encoding="utf-8") and not is_built() and not os.environ.get("CI"):
        pytest.skip("the explorer's page is not built: make web")
    monkeypatch.chdir(tmp_path)
    if any(block.trained for block in blocks(page)):
        shutil.copytree(request.getfixturevalue("trained"), "runs/demo")
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


def groups(annotation: Any) -> set[type[Config]]:
    """The classes of settings that an annotation names, and those inside them."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        inside = (groups(field.annotation) for field in annotation.model_fields.values())
        return {annotation}.union(*inside)
    return set().union(*map(groups, get_args(annotation)))


def test_every_group_of_settings_has_one_table() -> None:
    recipes = [recipe_class(kind) for kind in TASKS]
    found = set().union(*map(groups, recipes)) - {*recipes, FilePair}  # a sentence explains FilePair
    found = {config for config in found if not issubclass(config, Table) or config is FieldTable}  # of which all are
    found.add(CallConfig)  # of no recipe: how `heedful doctor` calls a module
    listed = [config for page in PAGES for config in documented(page.read_text(encoding="utf-8"))]
    assert len(listed) == len(set(listed))
    assert set(listed) == found


@every_page
def test_tables_of_settings_are_those_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert filled(text) == text, "python docs/settings.py"


def test_bert_page_parameter_counts() -> None:
    rows = re.findall(r"^\| `((?:pars)?bert[\w-]*)` \|(.*)\|$", BERT.read_text(encoding="utf-8"), re.MULTILINE)
    documented = {name: [int(cell.replace(",", "")) for cell in cells.split("|")] for name, cells in rows}
    bare = {"masked_words": False, "next_sentence": False}
    expected = {
        name: [c.layers, c.width, c.heads, c.hidden, c.model_copy(update=bare).parameters(v), c.parameters(v)]
        for name, c in SIZES.items()
        for v in [c.vocab or 30522]
        if isinstance(c, BertConfig)
    }
    assert documented == expected


def test_gpt_page_parameter_counts() -> None:
    rows = re.findall(r"^\| `(gpt[\w-]*)` \|(.*)\|$", GPT.read_text(encoding="utf-8"), re.MULTILINE)
    documented = {name: [int(cell.replace(",", "")) for cell in cells.split("|")] for name, cells in rows}
    expected = {
        name: [c.layers, c.width, c.heads, c.context, c.vocab, c.parameters(c.vocab or 0)]
        for name, c in GPT_SIZES.items()
    }
    assert documented == expected


def test_autoencoder_page_parameter_counts() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\dx ]+) \| ([\dx ]+) \| ([\d,]+) \|$", AUTOENCODER.read_text(), re.MULTILINE)
    shapes = {name: (" x ".join(map(str, net.input)), " x ".join(map(str, net.code))) for name, net in LECTURE.items()}
    expected = [(name, *shapes[name], f"{net.parameters():,}") for name, net in LECTURE.items()]
    assert rows == expected


def test_sidebar_lists_existing_pages() -> None:
    sidebar = runpy.run_path(str(ROOT / "docs" / "conf.py"))["SIDEBAR"]
    listed = [name for names in sidebar.values() for name in names.split()]
    assert len(listed) > 60
    assert [name for name in listed if not (ROOT / "docs" / f"{name}.md").is_file()] == []
    models = {f"models/{page.stem}" for page in (ROOT / "docs" / "models").glob("*.md")}
    assert models - {*listed} == set(), "add these pages to SIDEBAR of docs/conf.py"


def test_formulas_become_mathml() -> None:
    pytest.importorskip("latex2mathml", reason="the formulas need the extra `docs`")
    write_math = runpy.run_path(str(ROOT / "docs" / "conf.py"))["write_math"]
    assert write_math("Costs $5, $x_1$ and `$y$`").count("<math") == 1
    with pytest.raises(ValueError, match=r"\\arg in the formula"):
        write_math(r"$$\arg\max_s p(s)$$")
    for page in (ROOT / "docs").rglob("*.md"):
        write_math(page.read_text(encoding="utf-8"))


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_architecture_page_names_existing_code() -> None:
    page = (ROOT / "docs" / "design" / "architecture.md").read_text(encoding="utf-8")
    walks = page.partition("## Four walks")[2].partition("\n## ")[0]
    names = [name for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)*\.\w+)`", walks) if not name.endswith(".py")]
    assert len(names) > 25
    for name in names:
        module, _, own = name.rpartition(".")
        assert hasattr(importlib.import_module(f"heedful.{module}"), own), name
