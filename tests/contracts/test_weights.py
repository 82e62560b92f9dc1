"""A model uses its current weights and can be copied: nothing derived from weights is cached."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from contracts import test_encoders as encoders
from contracts import test_models as decoders
from heedful.blocks.int8 import int8
from heedful.data.trees.batches import encode_trees
from heedful.data.trees.treebank import parse_tree
from heedful.models import MODELS, build, config_class, kinds_of
from heedful.models.roles import Role

Run = Callable[[Any], Tensor]


def decoded(case: decoders.Case) -> Run:
    """The logits of a few hypotheses, and of one, as in a search."""
    source, target = decoders.sentences(5, 3), torch.randint(0, decoders.VOCAB, (2, 4))

    def run(model: Any) -> Tensor:
        logits, state = model(target, case.start(model, source))
        return torch.cat([logits, model(target[:, :1], state)[0]], 1)

    return run


def read(case: encoders.Case) -> Run:
    batch = encoders.given(encoders.rows(5, 3))
    return lambda model: torch.cat([found.flatten() for found in case.says(model, batch)])


def in_trees(model: Any) -> Tensor:
    found: Tensor = model(encode_trees([parse_tree("(1 (0 a) (2 (1 b) (3 c)))", "here", 5)], None).batch(np.arange(1)))
    return found


def of_images(config: Any) -> Run:
    images = torch.rand(3, *config.input)
    return lambda model: model(images)


def of_words(config: Any) -> Run:
    words = torch.randint(0, config.vocab, (2, 5))
    return lambda model: model(words)


def of_stories(config: Any) -> Run:
    sentences, questions = torch.randint(0, config.vocab, (4, 5)), torch.randint(0, config.vocab, (2, 3))
    return lambda model: model(sentences, torch.tensor([[0, 1, 2], [3, 2, -1]]), questions)


def of_captions(config: Any) -> Run:
    images, words = torch.rand(2, *config.encoder.input), torch.randint(0, config.vocab, (2, 4))
    return lambda model: model(words, model.start(images))[0]


def of_dialogues(config: Any) -> Run:
    utterances, words = torch.randint(0, config.vocab, (2, 3, 5)), torch.randint(0, config.vocab, (6, 4))
    real, speakers = torch.ones(2, 3, 5, dtype=torch.bool), torch.arange(4).expand(2, 4) % 2
    return lambda model: model(words, model.start(utterances, real, speakers))[0]


def of_paragraphs(config: Any) -> Run:
    images, words = torch.rand(2, *config.encoder.input), torch.randint(0, config.vocab, (2, 4))
    boxes, real = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.2, 0.1, 0.6, 0.9]]).expand(2, 2, 4), torch.ones(2, 2) > 0

    def run(model: Any) -> Tensor:
        memory = model.remember(
            model.look(images, boxes, real), words[:, None].expand(2, 2, 4), torch.ones(2, 2, 4) > 0
        )
        plan, _ = model.plan(memory, real, model.begin_paragraph(memory, real))
        found: Tensor = model(words, model.start(plan.topic))[0]
        return found

    return run


def of_columns(config: Any) -> Run:
    shapes: dict[str, Callable[[Any], Tensor]] = {
        "text": lambda column: torch.randint(4, column.vocab, (2, 5)),
        "numbers": lambda column: torch.randn(2, column.size),
        "class": lambda column: torch.randint(0, column.classes, (2,)),
        "image": lambda column: torch.rand(2, column.channels, *column.size),
    }
    values = [shapes[column.kind](column) for column in config.columns]
    return lambda model: model(values)


def of_sentences(config: Any) -> Run:
    torch.manual_seed(1)
    words = torch.randint(4, config.vocab, (2, 7))

    def run(model: Any) -> Tensor:
        found: Tensor = model(words, model.start(model.encode(words).mean))[0]
        return found

    return run


def of_styles(config: Any) -> Run:
    texts, styles = torch.randint(4, config.vocab, (2, 5)), torch.tensor([0, 1])
    everywhere = torch.ones(2, 5) > 0

    def run(model: Any) -> Tensor:
        logits = model(texts[:, :4], model.start(texts, styles))[0]
        return torch.cat([logits.flatten(), model.discriminator(texts, everywhere).flatten()])

    return run


def of_observations(config: Any) -> Run:
    seen = torch.randn(5, config.inputs)
    return lambda model: torch.cat([model(seen), model.value(seen)[:, None]], 1)


OTHERS: dict[Role, Callable[[Any], Run]] = {  # by role: what is computed
    "text_autoencoder": of_sentences,
    "autoencoder": of_images,
    "image_encoder": of_images,
    "glimpse_classifier": of_images,
    "word_classifier": of_words,
    "story_answerer": of_stories,
    "tree_classifier": lambda config: in_trees,
    "style_transfer": of_styles,
    "captioner": of_captions,
    "tabular": of_columns,
    "policy": of_observations,
    "q_network": of_observations,
    "hierarchical": of_dialogues,
    "paragraph_captioner": of_paragraphs,
}


def cases() -> Iterator[Any]:
    """Every model with every combination of its varied settings: how it is built, and what it computes.

    `make test` takes every other combination, each encoder, and each head on one of them.
    """
    for number, param in enumerate(decoders.variants()):
        case, marks = param.values[0], [pytest.mark.slow] * (number % 2)
        yield pytest.param(case.build, lambda case=case: decoded(case), id=param.id, marks=marks)
    for name, reader in encoders.TABLE.items():
        marks = [] if name in encoders.ENCODERS or encoders.on_first(reader) else [pytest.mark.slow]
        yield pytest.param(reader.build, lambda case=reader: read(case), id=name, marks=marks)
    for kind in kinds_of(*OTHERS):
        config = config_class(kind).tiny()
        yield pytest.param(lambda c=config: build(c), lambda c=config: OTHERS[c.role](c), id=kind)


every_model = pytest.mark.parametrize(("made", "running"), list(cases()))
COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),  # noqa: S301
    "torch.save": lambda model: saved(model),
    "AveragedModel": lambda model: AveragedModel(model).module,
}


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    found: nn.Module = torch.load(file, weights_only=False)
    return found


def test_every_model_is_covered() -> None:
    named = {str(param.id).split("-")[0] for param in cases()}
    assert named == set(MODELS)


@every_model
@torch.no_grad()
def test_used_model_can_be_copied(made: Callable[[], Any], running: Callable[[], Run]) -> None:
    model, run = made().eval(), running()
    before = run(model)
    for name, copy in COPIES.items():
        assert run(copy(model)).equal(before), name


@every_model
@torch.no_grad()
def test_changed_weights_take_effect(made: Callable[[], Any], running: Callable[[], Run]) -> None:
    model, run, other = made().eval(), running(), made().eval()
    before, truth = run(model), run(other)
    assert not before.equal(truth)
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        mine.data.copy_(its)
    assert run(model).equal(truth), "written into .data"
    for _ in range(5):  # memory is reused: a new weight may have the address of an old one
        other = made().eval()
        for name, weight in other.named_parameters():
            owner, _, own = name.rpartition(".")
            setattr(model.get_submodule(owner), own, nn.Parameter(weight.clone()))
        assert run(model).equal(run(other)), "new parameters"
    for mine, its in zip(model.parameters(), (truth := made().eval()).parameters(), strict=True):
        mine.data = its.data.clone()
    assert run(model).equal(run(truth)), "other .data"


@torch.no_grad()
def test_int8_model_can_be_copied() -> None:
    model, tokens = int8(build(config_class("bert").tiny())), torch.randint(0, encoders.VOCAB, (2, 5))
    before = model(tokens)
    for name, copy in COPIES.items():
        assert copy(model)(tokens).equal(before), name
