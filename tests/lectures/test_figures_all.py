"""Every figure: progress rises, values have names, a plot is drawn, and results are reproducible."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from PIL import Image

from generators import drain_generator
from heedful import load_recipe, train
from heedful.config import parse
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.errors import UserError
from heedful.hub.model_folder import write_model
from heedful.lectures import FIGURES, Found, Progress, Study, Table, find
from heedful.models import build
from heedful.models.bert.config import BertConfig
from heedful.plots.style import save

# The smallest settings of each figure, and the number of rows in its table.
TINY: dict[str, tuple[list[str], int]] = {
    "gradient-distance": (["distance=4", "hidden=3", "singular=[0.5, 2.0]"], 4),
    "cell-gradient": (["distance=4", "hidden=3", "biases=[0.0, 2.0]"], 4),
    "recall": (["distances=[1, 3]", "width=4", "steps=2"], 2),
    "length": (["longest=3", "beyond=4", "width=4", "steps=2"], 4),
    "alignment": (["longest=3", "shown=3", "width=4", "steps=2"], 3),
    "nopos": (["width=8", "layers=2", "context=4", "steps=2"], 7),
    "contexts": (["model={model}", "word=cat", 'sentences=["a cat", "the old Cat"]'], 4),
    "occurrences": (["model={model}", "word=cat", 'sentences=["a cat", "the Cat", "cat cat"]', "maps=2"], 3),
    "cost": (["chips=4"], 5),
    "maps": (["model={run}", "beside={flat}", "points=40", "neighbours=3"], 3),
    "linear-probes": (["layers=2", "width=4", "steps=2", "probed=100"], 3),
    "long": (["lengths=[768, 1024, 1280]", "width=4", "slots=4", "window=8", "repeats=1", "device=cpu"], 6),
    "pooling": (["size=2"], 3),
}
Drawn = Callable[[str], tuple[list[Progress], Found]]
every_figure = pytest.mark.parametrize("name", TINY)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """The settings of each figure, with a randomly initialized encoder or autoencoder runs where needed."""
    folder = tmp_path_factory.mktemp("encoder") / "model"
    runs = tmp_path_factory.mktemp("runs")
    for name, width in (("run", 3), ("flat", 2)):
        layers = f"model.encoder=[{{kind: dense, width: {width}, activation: linear}}]"
        list(train(load_recipe("digits", [layers, "train.budget={steps: 1}"]), runs / name))
    tokenizer = BertTokenizer.train(WordPiece(vocab=60, lowercase=True), ["the old cat sat on a mat"] * 3)
    config = BertConfig(vocab=tokenizer.vocab, width=8, heads=2, layers=2, hidden=12, context=16)
    torch.manual_seed(0)
    settings = {"task": "pretraining", "model": config.model_dump()}
    write_model(folder, json.dumps(settings), build(config).state_dict(), {"tokenizer.json": tokenizer.json}, {})
    paths = {"model": folder, "run": runs / "run", "flat": runs / "flat"}
    return lambda name: [re.sub(r"\{(model|run|flat)\}", lambda m: str(paths[m[1]]), text) for text in TINY[name][0]]


def run_study(study: Study, overrides: list[str]) -> tuple[list[Progress], Found]:
    """All progress events of a figure, and its result."""
    return drain_generator(study.study(parse(study.Settings, {}, overrides=overrides)))


@pytest.fixture(scope="module")
def drawn(tiny: Callable[[str], list[str]]) -> Drawn:
    """Progress and result of each figure, computed once."""
    return cache(lambda name: run_study(find(name), tiny(name)))


def test_every_figure_is_tested() -> None:
    assert list(TINY) == list(FIGURES)


@every_figure
def test_progress_rises_from_0_to_1(name: str, drawn: Drawn) -> None:
    progress, _ = drawn(name)
    shares = [now.share for now in progress]
    assert shares == sorted(shares)
    assert 0 <= shares[0] < 0.5 <= shares[-1] <= 1 + 1e-9
    assert all(now.doing for now in progress)


@every_figure
def test_figure_has_named_values_and_is_plotted(name: str, tmp_path: Path, drawn: Drawn) -> None:
    study, (_, found) = find(name), drawn(name)
    table = found.table()
    assert len(table.rows) == TINY[name][1]
    assert all(len(row) == len(table.columns) for row in table.rows)
    save(study.plot(found, "dark"), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "PNG"


def without_seconds(table: Table) -> list[dict[str, float | str]]:
    """The values of a table without measured times."""
    rows = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    return [{name: value for name, value in row.items() if not name.startswith(("seconds", "time"))} for row in rows]


@every_figure
def test_same_seed_gives_the_same_figure(name: str, tiny: Callable[[str], list[str]], drawn: Drawn) -> None:
    _, first = drawn(name)
    _, again = run_study(find(name), tiny(name))
    assert without_seconds(first.table()) == without_seconds(again.table())


@pytest.mark.parametrize(("name", "todo"), [("recal", "did you mean recall"), ("xyz", "heedful figure")])
def test_unknown_figure_suggests_the_nearest_name(name: str, todo: str) -> None:
    with pytest.raises(UserError) as error:
        find(name)
    assert error.value.todo is not None and todo in error.value.todo


@pytest.mark.parametrize("name", ["contexts", "occurrences"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model=null", "needs a trained encoder"),
        ("model=nowhere", "there is no such folder"),
        ("word=dog", "the word is not in this sentence"),
    ],
)
def test_word_figures_report_missing_inputs(
    name: str, change: str, message: str, tiny: Callable[[str], list[str]]
) -> None:
    key = change.split("=")[0]
    settings = [text for text in tiny(name) if not text.startswith(f"{key}=")]
    with pytest.raises(UserError, match=message):
        run_study(find(name), [*settings, change])


def test_table_vector_is_the_same_in_every_sentence(tiny: Callable[[str], list[str]]) -> None:
    _, found = run_study(find("contexts"), tiny("contexts"))
    table, embedded, *blocks = found.table().rows
    assert (table[0], embedded[0]) == ("table", "embedded")
    assert table[1:] == pytest.approx((1.0, 1.0))
    assert all(float(row[1]) == pytest.approx(1.0) and float(row[2]) < 0.9999 for row in blocks)
