"""The catalogue is made from the code: each role has its kind, each key its parts, each part what it is."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

import pytest
from pydantic import Field
from torch import nn

import heedful
from heedful.catalogue.kinds import KEY_KINDS, KINDS, NUMBER_KINDS, ROLE_KINDS, kind_of_key
from heedful.catalogue.page import page
from heedful.catalogue.parts import kind_of, kinds, parts, parts_of
from heedful.catalogue.slots import GROUP, NONE, class_of, present, task_slots, walk
from heedful.catalogue.source import definitions
from heedful.catalogue.stack import STACK, boxes, names_in
from heedful.config import Config, load_yaml
from heedful.errors import UserError
from heedful.models import MODELS, config_class
from heedful.models.roles import ROLES, Role
from heedful.runs.recipe import load_recipe, shipped
from heedful.tasks import TASKS

ROOT = Path(__file__).parents[2]
# The names on the slide, from top to bottom.
SLIDE = [
    "Applications", "Library APIs", "Model templates + Config files", "Training", "Evaluation", "Prediction",
    "Encoder", "Decoder", "Embedder", "Classifier", "Memory", "Connector", "Policy", "QNet",
    "(Seq) MaxLikelihood", "Adversarial", "Rewards", "RL-related", "Regularize",
    "MonoText", "PairedText", "Dialog", "Numerical", "Multi-field/type", "Parallel",
    "Executor", "Optimizer", "Seq/Episodic RL Agent", "lr decay / grad clip / ...",
]  # fmt: skip
# Boxes that hold nothing yet; a part that comes into one of them needs no change here.
EMPTY: set[str] = set()


def test_every_role_has_a_kind_with_a_line() -> None:
    assert set(get_args(Role)) == set(ROLES) and set(ROLES) - set(ROLE_KINDS) == set(), "a line in ROLE_KINDS"
    assert {*ROLE_KINDS.values(), *KEY_KINDS.values(), *NUMBER_KINDS.values()} <= set(KINDS)


def test_every_model_and_every_task_is_a_part_with_its_key() -> None:
    found = {(part.kind, part.name): part for part in parts() if any(key.startswith("model.") for key in part.keys)}
    for kind, model in MODELS.items():
        part = found[ROLE_KINDS[model.role], kind]
        assert f"model.kind: {kind}" in part.keys and part.code.endswith(model.config)
        assert part.takes and part.gives, f"{model.role}'s protocol does not say what goes in and out"
        assert part.about == " ".join((inspect.getdoc(config_class(kind)) or "").partition("\n\n")[0].split())
    tasks = {part.name: part for part in parts_of("application")}
    assert set(tasks) == set(TASKS)
    assert all(f"task.kind: {name}" in part.keys for name, part in tasks.items())


def test_every_option_of_every_key_is_a_part() -> None:
    known = {(part.kind, part.name) for part in parts()}
    for task in TASKS:
        for slot in task_slots(task):
            for option in slot.options:
                if option != NONE and slot.key != "task":
                    assert (slot.kind_of(option), option) in known


def test_new_kinds_appear_by_themselves() -> None:
    """A class that this package does not know, with a key and a role of its own."""

    class Forward(Config):
        kind: Literal["forward"] = "forward"

    class Stochastic(Config):
        kind: Literal["stochastic"] = "stochastic"
        weight_decay: float = 0.0

    class Model(Config):
        implementation: ClassVar = "model.New"
        kind: Literal["new"] = "new"
        connector: Annotated[Forward | Stochastic, Field(discriminator="kind")] = Forward()
        mood: Literal["calm", "wild"] = "calm"
        layers: tuple[Annotated[Forward | Stochastic, Field(discriminator="kind")], ...] = ()

    class Recipe(Config):
        model: Model = Model()

    found = {slot.key: slot for slot in walk(Recipe)}
    assert found["model.connector"].options == ("forward", "stochastic")
    assert found["model.connector"].kind_of("stochastic") == "connector"
    assert found["model.layers[]"].kind_of("forward") == "layer"
    assert found["model.mood"].options == ("calm", "wild") and found["model.mood"].kind_of("calm") == "choice"
    assert kind_of_key("model.connector.weight_decay", is_group=False) == "regularizer"
    written = {"model": {"connector": {"kind": "stochastic"}, "layers": [{"kind": "forward"}]}}
    here = {one.key: one.option for one in present(Recipe, written)}
    assert here == {
        "model": "new", "model.connector": "stochastic", "model.layers.0": "forward", "model.mood": "calm"
    }  # fmt: skip
    assert kind_of("q_learner").title == "Q learner"


def test_recipes_as_written_have_the_parts_that_they_have_when_read() -> None:
    """What a file leaves out is its default, whatever kind of group it is in."""
    for name, path in shipped().items():
        settings, _ = load_yaml(path)
        here = {one.key: one.option for one in present(class_of(settings), settings)}
        try:
            recipe = load_recipe(name)
        except UserError:
            continue  # the folder that it starts from is not there
        whole = recipe.model_dump(mode="json")
        for key, option in here.items():
            value, left_out = whole, False
            for word in key.split("."):
                left_out |= isinstance(value, dict) and word not in value  # as the default objective is
                value = value[int(word)] if isinstance(value, list) else value.get(word)  # type: ignore[assignment,union-attr]
            if left_out:
                continue
            each = [*value.values()] if isinstance(value, dict) else []
            if each and all(isinstance(one, dict) and "kind" in one for one in each):  # groups by name, such as columns
                assert option in {one["kind"] for one in each}, (name, key)
            elif isinstance(value, dict):
                assert value.get("kind", GROUP) == option, (name, key)
            elif not (value is None and "start" in settings):
                assert option == (NONE if value is None else value), (name, key)


def test_definitions_agree_with_the_modules_themselves() -> None:
    """What is read from the files is what Python sees: no module of the blocks is missed, and none is made up."""
    found = {(one.file, one.name): one for one in definitions()}
    for path in sorted((ROOT / "src/heedful/blocks").glob("*.py")):
        module = importlib.import_module(f"heedful.blocks.{path.stem}")
        for name, cls in vars(module).items():
            own = inspect.isclass(cls) and cls.__module__ == module.__name__
            if own and issubclass(cls, nn.Module) and not name.startswith("_"):
                one = found[f"blocks/{path.name}", name]
                assert (inspect.getdoc(cls) or "").splitlines()[0] == one.about, name
    for one in found.values():
        module = importlib.import_module("heedful." + one.file.removesuffix(".py").replace("/", "."))
        said = inspect.getdoc(vars(module)[one.name])
        assert said and " ".join(said.split()).startswith(one.about)


@pytest.mark.claim("M1")
def test_each_name_of_the_stack_is_here_with_its_parts() -> None:
    listed = [box.name for box in boxes()]
    assert [name for name in SLIDE if name not in listed] == []
    empty = {box.name for box in boxes() if box.kinds and not box.parts}
    assert empty <= EMPTY
    for box in boxes():
        assert box.here and (box.kinds or names_in(box.name) or "`" in box.here)
        assert all(part.kind in box.kinds for part in box.parts)
    assert set(names_in("Library APIs")) == {name for name in heedful.__all__ if not name.startswith("_")}
    assert {*shipped()} < {*names_in("Model templates + Config files")}
    for name in ("train", "load"):
        assert name in heedful.__all__
    assert [len(row.groups) for row in STACK] == [1, 2, 3, 4]


@pytest.mark.claim("M23")
def test_activations_layers_and_losses_of_the_slide_are_listed() -> None:
    activations = {part.name for part in parts_of("activation")}
    assert activations >= {"linear", "relu", "sigmoid", "tanh"}
    layers = {part.name: part for part in parts_of("layer")}
    assert layers.keys() >= {
        "dense",
        "conv",
        "max_pool",
        "average",
        "max",
        "lstm",
        "gru",
        "rnn",
        "Residual",
        "basic",
        "bottleneck",
    }
    assert layers["lstm"].keys and layers["conv"].keys, "selected by a key"
    losses = {part.name: part for part in parts_of("loss")}
    assert losses["cross_entropy"].code == "blocks/losses.py: cross_entropy"
    assert (
        "squared error" in losses["reconstruction_loss"].about
        and "reconstruction" in losses["reconstruction_loss"].tasks
    )
    assert "mean squared error" in losses["reconstruction_loss"].about


@pytest.mark.claim("M9")
def test_encoders_decoders_embedders_and_classifiers_of_all_three_families_are_listed() -> None:
    classifiers = {part.name for part in parts_of("classifier") if "model.kind" in part.keys[0]}
    assert classifiers >= {"conv_classifier", "rnn_classifier", "transformer_classifier"}
    assert {part.name for part in parts_of("encoder")} >= {"recurrent", "transformer", "resnet", "bert"}
    assert {part.name for part in parts_of("decoder")} >= {"recurrent", "transformer", "rnn_lm", "gpt"}
    assert {part.name for part in parts_of("embedder")} >= {"elmo", "load_word2vec", "load_glove", "Patches"}


def test_kinds_have_names_that_a_user_would_type() -> None:
    assert parts_of("Optimizers") == parts_of("optimizer") and parts_of("encoder-decoder") == parts_of(
        "encoder_decoder"
    )
    with pytest.raises(UserError) as caught:
        parts_of("wheel")
    assert caught.value.found == "wheel" and "optimizer" in (caught.value.expected or "")
    assert list(kinds())[:2] == ["application", "data"]


def test_page_of_the_documentation_is_current() -> None:
    found = (ROOT / "docs/reference/catalogue.md").read_text(encoding="utf-8")
    assert found == page(), "python docs/catalogue.py"


def test_catalogue_is_read_without_torch() -> None:
    import subprocess

    script = "import sys, heedful.catalogue.swaps as s, heedful.catalogue.stack as t\nt.boxes()\ns.swaps('numbers')\n"
    done = subprocess.run(
        [sys.executable, "-c", script + "print('torch' in sys.modules)"], capture_output=True, text=True
    )
    assert done.stdout == "False\n", done.stderr
