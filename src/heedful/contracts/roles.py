"""How the models of the library are called, by their roles: what the checks vary, everything else staying the same.

B rows, S source tokens, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from heedful.blocks.layouts import Padded
from heedful.blocks.state import Ragged
from heedful.contracts.given import LONGEST, decoder, device_of, fixed, numbers, texts, whole
from heedful.contracts.given_trees import left_trees
from heedful.contracts.image_roles import (
    agent_subjects,
    captioner_subjects,
    glimpses_subjects,
    image_encoder_subjects,
    image_subjects,
    paragraph_captioner_subjects,
)
from heedful.contracts.subject import Call, Subject
from heedful.models.roles import ModelConfig, Role

PROMPTED = 4  # tokens after a prompt


def _encoder(model: nn.Module, config: Any) -> Iterator[Subject]:
    def call(m: Any, tokens: Tensor, real: Tensor | None) -> Tensor:
        return m(tokens, torch.zeros_like(tokens), Padded(whole(real, tokens)))

    def every(m: Any, tokens: Tensor, real: Tensor | None) -> Tensor:
        segments, layout = (
            torch.arange(tokens.shape[1], device=tokens.device) % 2 * (config.segments > 1),
            Padded(whole(real, tokens)),
        )
        x = m(tokens, segments.expand_as(tokens).contiguous(), layout)
        places = torch.arange(0, tokens.numel(), 2, device=tokens.device)
        found = [x, m.masked_vectors(tokens, segments.expand_as(tokens).contiguous(), layout, places)]
        found += [m.summarize(x, layout)] if config.pooler else []
        found += [m.words(x.flatten(0, 1)[places])] if config.masked_words else []
        found += [m.follows(x[:, 0])] if config.pairs else []
        return torch.cat([one.flatten() for one in found])

    yield texts("tokens", model, config, call, aligned=True, every=every)


def _causal(model: nn.Module, config: Any) -> Iterator[Subject]:
    target = fixed(PROMPTED, config.vocab, 1, device_of(model))

    def read(m: Any, tokens: Tensor, real: Tensor | None) -> Tensor:
        """The logits of a few tokens after prompts; where positions are counted, the padding of these comes first."""
        mask, state = whole(real, tokens), m.start(len(tokens), tokens.device)
        if not config.fixed_context:
            state = m(tokens, state, mask)[1]
        elif bool(mask.all()):
            state = m(tokens, state)[1]
        else:
            order = mask.int().argsort(dim=1, stable=True)
            ragged = Ragged((~mask).sum(1), config.context)
            state = m(tokens.gather(1, order), replace(state, ragged=ragged))[1]
        return m(target.to(tokens).expand(len(tokens), -1), state)[0]

    yield decoder("tokens", model, config, lambda m, rows: m.start(rows, device_of(m)), config.vocab)
    yield replace(texts("prompts", model, config, read), longest=LONGEST - PROMPTED, every=None)


def _bidirectional(model: nn.Module, config: Any) -> Iterator[Subject]:
    yield texts("tokens", model, config, lambda m, tokens, real: torch.cat(m(tokens, real), -1), aligned=True)


def _seq2seq(model: nn.Module, config: Any) -> Iterator[Subject]:
    vocab, device = config.vocab, device_of(model)
    known = dict(config).get("source_vocab") or vocab
    target, source = fixed(5, vocab, 1, device), fixed(6, known, 1, device)

    def read(m: Any, tokens: Tensor, real: Tensor | None) -> Tensor:
        return m(target.to(tokens).expand(len(tokens), -1), m.start(tokens, Padded(whole(real, tokens))))[0]

    yield texts("source", model, config, read, vocab=known)
    yield decoder("target", model, config, lambda m, rows: m.start(source.to(device_of(m)).expand(rows, -1)), vocab)


def _pooled(model: nn.Module, config: Any) -> Iterator[Subject]:
    encoder = dict(config).get("encoder", config)

    def call(m: Any, tokens: Tensor, real: Tensor | None) -> Tensor:
        return m(tokens, torch.zeros_like(tokens), Padded(whole(real, tokens)))

    yield texts("tokens", model, config, call, vocab=encoder.vocab, context=dict(encoder).get("context"))


def _word_classifier(model: nn.Module, config: Any) -> Iterator[Subject]:
    yield texts("tokens", model, config, lambda m, tokens, real: m(tokens, None, Padded(whole(real, tokens))))


def _tagger(model: nn.Module, config: Any) -> Iterator[Subject]:
    def call(m: Any, tokens: Tensor, real: Tensor | None) -> Tensor:
        places = torch.arange(tokens.numel(), device=tokens.device)
        if not bool(whole(real, tokens).all()):
            places = whole(real, tokens).flatten().nonzero()[:, 0]
        found = m(tokens, torch.zeros_like(tokens), Padded(whole(real, tokens)), places)
        out = found.new_zeros(tokens.numel(), found.shape[-1]).index_copy(0, places, found)
        return out.unflatten(0, tokens.shape)

    yield texts("tokens", model, config, call, aligned=True, vocab=config.encoder.vocab, context=config.encoder.context)


def _answerer(model: nn.Module, config: Any) -> Iterator[Subject]:
    def call(m: Any, tokens: Tensor, real: Tensor | None) -> Tensor:
        mask = whole(real, tokens)
        begins = torch.arange(len(tokens), device=tokens.device) * tokens.shape[1] + mask.int().argmax(1)
        return m(tokens, torch.zeros_like(tokens), Padded(mask), begins, mask.sum(1).clamp(min=1), 1)

    yield texts("tokens", model, config, call, vocab=config.encoder.vocab, context=config.encoder.context, empty=False)


def _hierarchical(model: nn.Module, config: Any) -> Iterator[Subject]:
    vocab, device = config.vocab, device_of(model)
    target, speakers = fixed(4, vocab, 1, device), torch.tensor([[0, 1, 0]], device=device)

    def begin(m: Any, tokens: Tensor, real: Tensor) -> Any:
        """Dialogues of two utterances, the first of which is the same for all."""
        first = fixed(tokens.shape[1], vocab, len(tokens), tokens.device)
        mask = torch.stack([torch.arange(tokens.shape[1], device=tokens.device).expand_as(real) < 1, real], 1)
        return m.start(torch.stack([first, tokens], 1), mask, speakers.to(tokens.device).expand(len(tokens), -1))

    def read(m: Any, tokens: Tensor, real: Tensor | None) -> Tensor:
        replies = target.to(tokens).expand(2 * len(tokens), -1)
        return m(replies, begin(m, tokens, whole(real, tokens)))[0].unflatten(0, (len(tokens), 2))

    yield texts("utterances", model, config, read)
    yield replace(
        decoder("replies", model, config, lambda m, rows: one_utterance(m, fixed(4, vocab, rows, device_of(m))), vocab)
    )


def one_utterance(model: Any, tokens: Tensor) -> Any:
    """The state before the reply to dialogues of one utterance."""
    real = torch.ones_like(tokens, dtype=torch.bool)
    return model.start(tokens[:, None], real[:, None], torch.zeros_like(tokens[:, :2]))


def _style_transfer(model: nn.Module, config: Any) -> Iterator[Subject]:
    vocab, device = config.vocab, device_of(model)
    target, source = fixed(4, vocab, 1, device), fixed(5, vocab, 1, device)

    def read(m: Any, tokens: Tensor, real: Tensor | None) -> Tensor:
        mask, styles = whole(real, tokens), torch.ones_like(tokens[:, 0])
        found = m(target.to(tokens).expand(len(tokens), -1), m.start(tokens, styles, Padded(mask)))[0]
        return torch.cat([found.flatten(1), m.discriminator(tokens, mask)], 1)

    def begin(m: Any, rows: int) -> Any:
        styles = torch.zeros(rows, dtype=torch.long, device=device_of(m))
        return m.start(source.to(styles).expand(rows, -1), styles)

    yield texts("texts", model, config, read)
    yield decoder("words", model, config, begin, vocab)


def _text_autoencoder(model: nn.Module, config: Any) -> Iterator[Subject]:
    vocab, device = config.vocab, device_of(model)
    target, source = fixed(4, vocab, 1, device), fixed(5, vocab, 1, device)

    def read(m: Any, tokens: Tensor, real: Tensor | None) -> Tensor:
        code = m.encode(tokens, Padded(whole(real, tokens)))
        found = m(target.to(tokens).expand(len(tokens), -1), m.start(code.mean))[0].flatten(1)
        return found if code.log_variance is None else torch.cat([found, code.log_variance], 1)

    yield texts("sentences", model, config, read)
    yield decoder(
        "words", model, config, lambda m, rows: m.start(m.encode(source.to(device_of(m))).mean.expand(rows, -1)), vocab
    )


def _story_answerer(model: nn.Module, config: Any) -> Iterator[Subject]:
    def call(m: Any, tokens: Tensor, real: Tensor | None) -> Tensor:
        stories = torch.arange(3, device=tokens.device).expand(len(tokens), -1)
        return m(fixed(4, config.vocab, 3, tokens.device) + stories[0, :, None] % 2, stories, tokens)

    yield texts("questions", model, config, call, pad=0)


def _tree_classifier(model: nn.Module, config: Any) -> Iterator[Subject]:
    def call(m: Any, tokens: Tensor, real: Tensor | None) -> Tensor:
        trees = left_trees(tokens, whole(real, tokens))
        return m(trees)[trees.roots]

    yield texts(
        "leaves", model, config, call, sides=("right",), empty=False, unpadded="trees are not padded on the left"
    )


def _tabular(model: nn.Module, config: Any) -> Iterator[Subject]:
    shapes: dict[str, Callable[[Any], tuple[int, ...]]] = {
        "numbers": lambda column: (column.size,),
        "image": lambda column: (column.channels, *column.size),
    }

    def call_with(varied: Any) -> Call:
        def call(m: Any, rows: Tensor, real: Tensor | None) -> Tensor:
            values = list[Tensor]()
            for column in config.columns:
                if column is varied:
                    values.append(rows)
                elif column.kind in shapes:
                    shape = shapes[column.kind](column)
                    some = torch.linspace(-1, 1, prod(shape), device=rows.device).view(1, *shape)
                    values.append(some.expand(len(rows), *shape))
                else:
                    some = torch.ones(len(rows), 2, dtype=torch.long, device=rows.device)
                    values.append(some if column.kind == "text" else some[:, 0])
            return m(values)

        return call

    for number, column in enumerate(config.columns, 1):
        call, name = call_with(column), f"column {number}, {column.kind}"
        if column.kind in shapes:
            yield numbers(name, model, shapes[column.kind](column), call)
        elif column.kind == "text":
            more: dict[str, Any] = {"vocab": column.vocab, "context": column.longest, "sides": ("right",), "pad": 0}
            yield texts(name, model, config, call, **more)


ROLES: dict[Role, Callable[[nn.Module, Any], Iterator[Subject]]] = {
    "encoder": _encoder, "two_streams": _encoder, "causal": _causal, "bidirectional": _bidirectional,
    "seq2seq": _seq2seq, "hierarchical": _hierarchical, "classifier": _pooled, "regressor": _pooled,
    "multi_label": _pooled, "multiple_choice": _pooled, "tagger": _tagger, "answerer": _answerer,
    "word_classifier": _word_classifier,
    "style_transfer": _style_transfer, "story_answerer": _story_answerer, "tree_classifier": _tree_classifier,
    "tabular": _tabular, "text_autoencoder": _text_autoencoder, "autoencoder": image_subjects,
    "image_encoder": image_encoder_subjects, "glimpse_classifier": glimpses_subjects, "captioner": captioner_subjects,
    "paragraph_captioner": paragraph_captioner_subjects, "policy": agent_subjects, "q_network": agent_subjects,
}  # fmt: skip


def role_subjects(model: nn.Module, config: ModelConfig) -> tuple[Subject, ...]:
    """What the checks vary in a model of the library."""
    return tuple(ROLES[config.role](model, config))
