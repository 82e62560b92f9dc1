"""Contract tests of paragraph captioners: every model in the role, in its tiny size, with every cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.blocks.taps import watch
from heedful.models import build, config_class, kinds_of
from heedful.training.checkpoint.weights import load_strictly
from tolerance import close

CASES = [(kind, cell) for kind in kinds_of("paragraph_captioner") for cell in ("gru", "lstm", "rnn")]
B, R, T = 3, 4, 5
BOXES = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.1, 0.2, 0.5, 0.6], [0.5, 0.1, 0.9, 0.4], [0.3, 0.6, 0.7, 1.0]])


def model_of(kind: str, cell: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    return build(config_class(kind).tiny().model_copy(update={"cell": cell, **changes})).eval()


def inputs(model: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, boxes, which regions are real, and phrases."""
    torch.manual_seed(1)
    images = torch.randn(B, *model.config.encoder.input)
    real = torch.arange(R) < torch.tensor([[4], [2], [3]])
    phrases = torch.randint(4, model.config.vocab, (B, R, T)) * real[..., None]
    return images, BOXES.expand(B, R, 4), real, phrases


def remember(model: Any, images: Tensor, boxes: Tensor, real: Tensor, phrases: Tensor) -> Tensor:
    memory: Tensor = model.remember(model.look(images, boxes, real), phrases, phrases > 0)
    return memory


def plans(model: Any, memory: Tensor, real: Tensor, count: int = 4, chosen: Tensor | None = None) -> list[Any]:
    state, found = model.begin_paragraph(memory, real), []
    for step in range(count):
        plan, state = model.plan(memory, real, state, None if chosen is None else chosen[:, step])
        found.append(plan)
    return found


@pytest.mark.parametrize(("kind", "cell"), CASES)
def test_shapes_count_and_gradients(kind: str, cell: str) -> None:
    model = model_of(kind, cell, layers=2)
    images, boxes, real, phrases = inputs(model)
    assert sum(weight.numel() for weight in model.parameters()) == model.config.parameters(model.config.vocab)
    memory = remember(model, images, boxes, real, phrases)
    found = plans(model, memory, real, chosen=torch.tensor([[[0, 0], [1, 1], [1, -1], [-1, -1]]] * B))
    for plan in found:
        assert plan.topic.shape == (B, model.config.hidden) and plan.last.shape == (B,)
        assert plan.weights.shape == (B, model.config.regions, R)
        close(plan.weights.sum(-1), torch.ones(B, model.config.regions))
        assert (plan.weights[~real[:, None].expand_as(plan.weights)] == 0).all()
    words = torch.randint(0, model.config.vocab, (B, T))
    logits, _ = model(words, model.start(found[-1].topic))
    assert logits.shape == (B, T, model.config.vocab)
    said, _ = model(words, model.start(model.phrase_topics(model.look(images, boxes, real))[:, 1]))
    (
        logits.logsumexp(-1).sum()
        + said.logsumexp(-1).sum()
        + sum(plan.last.sum() + plan.weights[..., 1].sum() for plan in found)
    ).backward()
    missing = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert missing == []


@pytest.mark.parametrize(("kind", "cell"), CASES)
@torch.inference_mode()
def test_padding_batches_and_order_do_not_matter(kind: str, cell: str) -> None:
    model = model_of(kind, cell)
    images, boxes, real, phrases = inputs(model)
    memory = remember(model, images, boxes, real, phrases)
    together = plans(model, memory, real)
    for row in range(B):
        count = int(real[row].sum())
        alone = [part[row : row + 1, :count] for part in (boxes, real, phrases)]
        own = remember(model, images[row : row + 1], *alone)
        close(own[0], memory[row, :count], msg="a region alone and in a batch")
        for one, other in zip(plans(model, own, alone[1]), together, strict=True):
            close(one.topic[0], other.topic[row])
            close(one.weights[0], other.weights[row, :, :count])
            close(one.last[0], other.last[row], of=one.topic)
    order = torch.tensor([0, 3, 1, 2])  # the whole image stays first
    moved = remember(model, images[:1], boxes[:1, order], real[:1, order], phrases[:1, order])
    close(moved, memory[:1, order])
    for one, other in zip(plans(model, moved, real[:1, order]), together, strict=True):
        close(one.topic, other.topic[:1])
        close(one.weights, other.weights[:1][..., order])


@pytest.mark.parametrize(("kind", "cell"), CASES)
@torch.inference_mode()
def test_words_in_chunks_and_later_words(kind: str, cell: str) -> None:
    model = model_of(kind, cell, layers=2)
    topics, words = torch.randn(B, model.config.hidden), torch.randint(0, model.config.vocab, (B, T))
    whole, _ = model(words, model.start(topics))
    state, parts = model.start(topics), []
    for part in words.split([1, 3, 1], 1):
        logits, state = model(part, state)
        parts.append(logits)
    close(torch.cat(parts, 1), whole)
    changed = torch.cat([words[:, :3], (words[:, 3:] + 1) % model.config.vocab], 1)
    close(model(changed, model.start(topics))[0][:, :3], whole[:, :3])
    with pytest.raises(ValueError, match="the sentence is empty"):
        model(words[:, :0], model.start(topics))


@pytest.mark.parametrize(("kind", "cell"), CASES)
def test_chosen_regions_lead_where_the_weights_would(kind: str, cell: str) -> None:
    model = model_of(kind, cell)
    images, boxes, real, phrases = inputs(model)
    memory = remember(model, images, boxes, real, phrases)
    free = plans(model, memory, real)
    forced = plans(model, memory, real, chosen=torch.stack([plan.weights.argmax(-1) for plan in free], 1))
    for one, other in zip(free, forced, strict=True):
        close(one.topic, other.topic)
    other = plans(model, memory, real, 1, chosen=1 - free[0].weights.argmax(-1).clamp(max=1)[:, None])
    assert not torch.allclose(other[0].topic, free[0].topic)
    soft = plans(model, memory, real, 1, chosen=torch.full((B, 1, model.config.regions), -1))
    w = soft[0].weights[:, 0]
    assert not torch.allclose(soft[0].topic, free[0].topic) and w.max() < 1


@pytest.mark.parametrize("kind", kinds_of("paragraph_captioner"))
def test_dropout_taps_files_and_frozen_encoders(kind: str) -> None:
    model = model_of(kind, "gru")
    images, boxes, real, phrases = inputs(model)
    memory = remember(model, images, boxes, real, phrases)
    with watch(model, model.grounding) as seen:
        found = plans(model, memory, real)
    close(torch.stack([plan.weights for plan in found]), torch.stack(seen.all[model.grounding]))
    words, topics = torch.randint(0, model.config.vocab, (B, T)), found[0].topic.detach()
    model.train()
    assert not torch.equal(model(words, model.start(topics))[0], model(words, model.start(topics))[0])
    other = model_of(kind, "gru")
    load_strictly(other, model.state_dict(), Path("a file"))
    torch.testing.assert_close(remember(other, images, boxes, real, phrases), memory, rtol=0, atol=0)
    frozen = model_of(kind, "gru", freeze="encoder").train()
    assert not frozen.encoder.training and frozen.planner.training
    assert not any(weight.requires_grad for weight in frozen.encoder.parameters())


@pytest.mark.parametrize(("kind", "cell"), CASES)
@torch.inference_mode()
def test_half_precision_is_near(kind: str, cell: str) -> None:
    model = model_of(kind, cell)
    images, boxes, real, phrases = inputs(model)
    words, found = torch.randint(0, model.config.vocab, (B, T)), []
    for half in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            memory = remember(model, images, boxes, real, phrases)
            plan = plans(model, memory, real, 2, chosen=torch.ones(B, 2, model.config.regions, dtype=torch.long))[-1]
            logits, _ = model(words, model.start(plan.topic))
            found.append((logits.float(), plan.weights.float(), plan.topic.float()))
    for exact, half in zip(*found, strict=True):
        assert half.isfinite().all() and (half - exact).abs().max() < 0.05 * (1 + exact.abs().max())
