"""Swaps: one key of a recipe selects another part, which trains, and nothing else changes; misfits are said before."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from pydoc_data.topics import topics

import pytest

import heedful
from heedful.catalogue.swaps import READ, Swap, Swappable, changed_keys, reason
from heedful.config import override
from heedful.errors import UserError
from heedful.runs.recipe import load_recipe
from heedful.runs.train import Finished, train
from heedful.training.loop import Step

STEPS = 20
# For speed alone, in the recipe and in all its swaps.
RUN = [
    f"train.budget={{steps: {STEPS}}}", f"train.evaluate_every={STEPS}", f"train.save_every={STEPS}",
    "train.log_every=1", "train.samples=1", "train.device=cpu", "train.threads=1",
]  # fmt: skip
TOKENS = [*RUN, "train.batch_tokens=256"]
IMAGES = [*RUN, "train.batch_examples=8"]
SPLITS = ["data.train=64", "data.valid=8", "data.test=8"]
PROSE = [*TOKENS, "data.valid=2", "data.test=2", "tokenizer.vocab=300", "model.context=32", "model.width=16"]
BLOCKS = ["model.layers=1", "model.heads=2"]
ENCODER = [*PROSE, *BLOCKS, "model.hidden=32"]
CLASSES = [*RUN, *SPLITS, "train.batch_examples=8"]
SCENES = [*IMAGES, *SPLITS, "data.valid=2", "data.test=2", "tokenizer.vocab=80"]
SMALL = ["model.width=16", "model.hidden=16"]
RECIPES: dict[str, list[str]] = {
    "numbers": [*TOKENS, *SPLITS, "tokenizer.vocab=90", "model.width=16", "model.hidden=32", "model.heads=2"],
    "numbers-rnn": [*TOKENS, *SPLITS, *SMALL, "tokenizer.vocab=90", "model.encoder.hidden=16"],
    "gpt-prose": [*PROSE, *BLOCKS],
    "prose": [*TOKENS, *SMALL, "data.valid=2", "data.test=2", "model.context=16"],
    "elmo": ["data={kind: library_prose}", *PROSE, *SMALL],
    "xl-prose": [*PROSE, *BLOCKS, "model.hidden=32"],
    "bert-prose": ENCODER,
    "albert-prose": ENCODER,
    "roberta-prose": ENCODER,
    "linformer-prose": [*ENCODER, "model.slots=8"],
    "bigbird-prose": [*ENCODER, "model.block=8"],
    "xlnet-prose": ENCODER,
    "number-languages": [
        *CLASSES, "tokenizer.vocab=100", "model.encoder.width=16", "model.encoder.hidden=32", "model.encoder.layers=1"
    ],
    "number-languages-conv": [*CLASSES, "model.filters=4"],
    "number-languages-transformer": [*CLASSES, "model.width=16", "model.layers=1"],
    "digits-lenet": [*IMAGES, *SPLITS],
    "digits-resnet": [*IMAGES, *SPLITS, "model.widths=[4, 8, 8]", "model.stem_width=4"],
    "digits-vit": [*IMAGES, *SPLITS, "model.width=16", "model.hidden=32", "model.layers=1"],
    "digits": [*IMAGES, *SPLITS],
    "captions": [*SCENES, "model.encoder.filters=[4, 4, 8]", "model.decoder.width=16", "model.decoder.hidden=16"],
    "captions-transformer": [*SCENES, "model.decoder.width=16", "model.decoder.heads=2", "model.decoder.layers=1"],
}  # fmt: skip
LARGEST = 3_000_000  # parameters of a model that is trained here: sizes that a recipe leaves out are the published ones


@pytest.fixture(autouse=True)
def few_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of Python's own help instead of all its docstrings, which take seconds to collect."""
    pages = [[topics[topic][:1500]] for topic in sorted(topics)[:16]]
    monkeypatch.setattr("heedful.data.embedded.library", lambda: pages)


def fitting(name: str) -> list[Swap]:
    """The swaps of a recipe that its classes accept, but those that only another machine or other data need."""
    found = Swappable(name, RECIPES[name]).swaps()
    return [swap for swap in found if swap.fits and (swap.parameters or 0) <= LARGEST]


def losses(name: str, swap: Swap, run: Path) -> list[float]:
    """The loss of each step of a swapped recipe; its last event must be the end of a whole run."""
    recipe = load_recipe(name, [*RECIPES[name], swap.override])
    events = list(train(recipe, run))
    assert isinstance(events[-1], Finished)
    return [event.loss for event in events if isinstance(event, Step)]


def files() -> str:
    """The contents of the package's files and of the shipped recipes."""
    root = Path(heedful.__file__).parent
    paths = (path for path in sorted(root.rglob("*")) if path.suffix in (".py", ".yaml", ".toml"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def check_one_key(swappable: Swappable, swap: Swap) -> None:
    """The override names one key; what is written differs there alone, but for what leaves with the old part."""
    after = override(swappable.settings, [swap.override])
    group = swap.key.removesuffix(".kind")
    read = {
        f"{group}.{name}" for name in READ if group.startswith("model")
    }  # by default, which may be another one for the new part
    changed = {key for key in changed_keys(swappable.settings, after) if key not in read}
    selected = group if swap.new == "null" else swap.key
    assert swap.override.partition("=")[0] in (swap.key, group)
    if any(word.isdigit() for word in group.split(".")):  # a list is compared as a whole
        assert len(changed) == 1 and group.startswith(changed.pop())
    else:
        gone = {f"{group}.{name}" for name in swap.left}
        assert {next((one for one in gone if f"{key}.".startswith(f"{one}.")), key) for key in changed} == {
            selected,
            *gone,
        }


@pytest.mark.claim("M2")
@pytest.mark.parametrize("name", RECIPES)
def test_each_part_has_swaps_of_one_key_that_fit(name: str) -> None:
    swappable = Swappable(name, RECIPES[name])
    found = list(swappable.swaps())
    assert {part.slot.kind_of(part.option) for part in swappable.parts} >= {"optimizer", "schedule"}
    for swap in found:
        if swap.fits:
            check_one_key(swappable, swap)
            assert load_recipe(name, [*RECIPES[name], swap.override]) == swappable.load(swap)
        elif swap.key != "data.kind":  # whose files are looked for
            with pytest.raises(UserError):
                load_recipe(name, [*RECIPES[name], swap.override])
    assert sum(swap.fits for swap in found) >= 8


@pytest.mark.claim("M2")
def test_what_the_new_part_does_not_have_leaves_with_the_old_one() -> None:
    swap = Swappable("numbers-rnn").swap("model.encoder.kind", "transformer")
    assert swap.fits and swap.left == ("cell",) and swap.kind == "encoder"
    assert swap.override == "model.encoder={kind: transformer, layers: 1, hidden: 128}"
    assert swap.parameters == load_recipe("numbers-rnn", [swap.override]).size
    swap = Swappable("gpt-prose").swap("model.kind", "transformer_xl")
    assert swap.left == () and swap.override == "model.kind=transformer_xl", "one line"


def test_what_only_the_old_part_could_have_leaves_too() -> None:
    """A vocabulary below the 256 bytes of BPE; depths of three stages, where the new net has widths for four."""
    swap = Swappable("numbers").swap("tokenizer", "bpe")
    assert swap.fits and swap.left == ("vocab",)
    swap = Swappable("captions").swap("model.encoder", "resnet")
    assert swap.fits and {"filters", "depths"} <= set(swap.left)


def test_what_the_old_part_reads_by_default_the_new_one_reads_too() -> None:
    """Scenes have three channels, as VGG by default; LeNet's default is one."""
    swap = Swappable("captions").swap("model.encoder", "lenet")
    assert swap.fits and "channels: 3" in swap.override


@pytest.mark.claim("M2")
@pytest.mark.parametrize(
    ("name", "key", "new", "why"),
    [
        ("digits-resnet", "model.kind", "vit", "images of 8 x 8 have no whole patches of 16 x 16"),
        ("digits", "model.encoder.0.kind", "max_pool", "pooling takes an image, not a vector of 64"),
        ("captions", "model.decoder.attention.score", "dot", "states have 128 numbers and the places of the map 96"),
        ("captions", "task.objective.kind", "self_critical", "set start.folder"),
        ("gpt-prose", "model.kind", "elmo", "an elmo reads lines"),
        ("bert-prose", "model.kind", "roberta", "a model without segments cannot be trained on pairs"),
        ("number-languages", "model.kind", "conv_classifier", "tokenizer.kind is unknown"),
        ("number-languages", "tokenizer.kind", "xlnet_unigram", "its classification token is in a third segment"),
        ("numbers", "data.kind", "tsv", "data.train is missing"),
        ("digits-resnet", "data.kind", "image_folder", "there is no such folder"),
    ],
)
def test_misfits_are_reported_before_training(name: str, key: str, new: str, why: str) -> None:
    swap = Swappable(name).swap(key, new)
    assert swap.problem is not None and not swap.fits and why in reason(swap.problem)


def test_a_size_that_only_the_data_show_is_refused_before_the_first_step(tmp_path: Path) -> None:
    """Scenes have three channels and other sizes than digits: said when they are read, with nothing trained."""
    swap = Swappable("digits-resnet", [*IMAGES, *SPLITS]).swap("data.kind", "scenes")
    events: list[object] = []
    with pytest.raises(UserError, match=r"(?i)images|channels|size"):
        events.extend(train(load_recipe("digits-resnet", [*IMAGES, *SPLITS, swap.override]), tmp_path / "run"))
    assert not any(isinstance(event, Step) for event in events)


def test_there_is_no_such_key_or_part() -> None:
    swappable = Swappable("numbers")
    with pytest.raises(UserError, match="this key selects no part"):
        swappable.swap("model.width", "8")
    with pytest.raises(UserError, match=r"no part of this name fits model\.kind"):
        swappable.swap("model.kind", "bert")


def sample(name: str) -> Iterator[Swap]:
    """One swap of a part of each recipe: of the model, or of what the recipes before it have not swapped."""
    wanted = ("model", "model.encoder.kind", "model.attention.score", "model.cell", "model.positions", "tokenizer.kind")
    every = fitting(name)
    chosen = [swap for swap in every if swap.key in wanted] or every
    yield chosen[list(RECIPES).index(name) % len(chosen)]


SAMPLE = (
    "numbers",
    "numbers-rnn",
    "prose",
    "bert-prose",
    "number-languages",
    "number-languages-conv",
    "digits-resnet",
    "digits",
)


@pytest.mark.claim("M2")
@pytest.mark.usefixtures("no_loss_curve")
@pytest.mark.parametrize("name", SAMPLE)
def test_a_swapped_part_trains(name: str, tmp_path: Path) -> None:
    for swap in sample(name):
        found = losses(name, swap, tmp_path / "run")
        assert len(found) == STEPS and all(map(math.isfinite, found)), swap.override


@pytest.mark.slow
@pytest.mark.claim("M2")
@pytest.mark.usefixtures("no_loss_curve")
@pytest.mark.parametrize("name", RECIPES)
def test_every_swap_that_fits_trains_twenty_steps(name: str, tmp_path: Path) -> None:
    before = files()
    for number, swap in enumerate(fitting(name)):
        found: list[float] = []
        shown = swap.key in ("data.kind", "tokenizer.kind")  # sizes and lengths that only the data show
        with suppress(UserError) if shown else nullcontext():
            found = losses(name, swap, tmp_path / str(number))
        assert len(found) in ((0, STEPS) if shown else (STEPS,)), swap.override
        assert all(map(math.isfinite, found)), swap.override
    assert files() == before, "no other file changes"
