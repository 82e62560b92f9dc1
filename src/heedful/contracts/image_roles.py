"""How the models of the library that read images or observations are called, by their roles.

B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.contracts.given import decoder, device_of, fixed, numbers
from heedful.contracts.subject import Subject


def image_subjects(model: nn.Module, config: Any) -> Iterator[Subject]:
    yield numbers("images", model, config.input, lambda m, images, real: m(images), not config.hard)


def image_encoder_subjects(model: nn.Module, config: Any) -> Iterator[Subject]:
    def every(m: Any, images: Tensor, real: Tensor | None) -> Tensor:
        return torch.cat([logits for _, logits in m.training_logits(images)], 1)

    yield replace(next(image_subjects(model, config)), every=every)


def glimpses_subjects(model: nn.Module, config: Any) -> Iterator[Subject]:
    def every(m: Any, images: Tensor, real: Tensor | None) -> Tensor:
        m.train()  # places are sampled, and have a probability
        path = m.look(images)
        m.eval()
        return torch.cat([m(images), path.logs, path.values], 1)

    yield replace(next(image_subjects(model, config)), every=every)


def captioner_subjects(model: nn.Module, config: Any) -> Iterator[Subject]:
    device, shape = device_of(model), config.encoder.input
    image = torch.linspace(-1, 1, shape[0] * shape[1] * shape[2], device=device).view(1, *shape)
    words = fixed(5, config.vocab, 1, device)

    def read(m: Any, images: Tensor, real: Tensor | None) -> Tensor:
        found: Tensor = m(words.to(images.device).expand(len(images), -1), m.start(images))[0]
        return found

    def every(m: Any, images: Tensor, real: Tensor | None) -> Tensor:
        m.train()  # places are sampled, and have a probability
        found = m.read(images, words.to(images.device).expand(len(images), -1)).choices
        m.eval()
        return torch.cat([read(m, images, real).flatten(1), found], 1)

    subject = numbers("images", model, shape, read, not config.hard)
    yield replace(subject, every=every) if config.hard else subject

    def begin(m: Any, rows: int) -> Any:
        return m.start(image.to(next(m.parameters())).expand(rows, -1, -1, -1))

    yield decoder("words", model, config, begin, config.vocab)


def paragraph_captioner_subjects(model: nn.Module, config: Any) -> Iterator[Subject]:
    device, shape = device_of(model), config.encoder.input
    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.1, 0.2, 0.6, 0.9]], device=device)

    def plans(m: Any, images: Tensor, count: int = 2) -> tuple[Tensor, list[Any]]:
        rows, found = len(images), list[Any]()
        real = torch.ones(rows, 2, dtype=torch.bool, device=images.device)
        words = fixed(3, config.vocab, rows * 2, images.device).unflatten(0, (rows, 2))
        regions = m.look(images, boxes.to(images).expand(rows, -1, -1), real)
        memory = m.remember(regions, words, torch.ones_like(words, dtype=torch.bool))
        state = m.begin_paragraph(memory, real)
        for _ in range(count):
            plan, state = m.plan(memory, real, state)
            found.append(plan)
        return regions, found

    def read(m: Any, images: Tensor, real: Tensor | None) -> Tensor:
        regions, found = plans(m, images)
        words = fixed(4, config.vocab, len(images), images.device)
        parts = [m(words, m.start(found[-1].topic))[0], m.phrase_topics(regions)]
        parts += [part for plan in found for part in (plan.last[:, None], plan.weights)]
        return torch.cat([part.flatten(1) for part in parts], 1)

    image = torch.linspace(-1, 1, shape[0] * shape[1] * shape[2], device=device).view(1, *shape)

    def begin(m: Any, rows: int) -> Any:
        return m.start(plans(m, image.to(next(m.parameters())))[1][-1].topic.expand(rows, -1))

    yield numbers("images", model, shape, read, smooth=False)  # a region is chosen by its weight
    yield replace(decoder("words", model, config, begin, config.vocab), smooth=False)


def agent_subjects(model: nn.Module, config: Any) -> Iterator[Subject]:
    def call(m: Any, seen: Tensor, real: Tensor | None) -> Tensor:
        found = [m(seen)]
        found += [m.value(seen)[:, None]] if config.estimates else []
        return torch.cat(found, 1)

    yield numbers("observations", model, (config.inputs,), call)
