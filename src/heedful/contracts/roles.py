"""How the models of the library are called, by their roles: what the checks vary, everything else staying the same.

B rows, S source tokens, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.blocks.layouts import Padded
from heedful.blocks.state import Ragged
from heedful.contracts.given_trees import left_trees
from heedful.contracts.subject import Call, Side, Step, Subject
from heedful.models.roles import ModelConfig, Role

LONGEST = 12
PROMPTED = 4  # tokens after a prompt
FILL = 1  # what is put into padding: any token
BOTH: tuple[Side, ...] = ("right", "left")


def fixed(count: int, vocab: int, rows: int, device: torch.device) -> Tensor:
    """The same few tokens (B, T) for every row."""
    return (torch.arange(count, device=device) * 3 % (vocab - 4) + 4).expand(rows, -1)


def ids(vocab: int) -> Callable[[int, torch.Generator], Tensor]:
    """Rows of random tokens, none of which is special."""
    return lambda length, random: torch.randint(min(4, vocab - 2), vocab, (length,), generator=random)


def whole(real: Tensor | None, tokens: Tensor) -> Tensor:
    """Which tokens are real: all, where nothing else is said."""
    return torch.ones_like(tokens, dtype=torch.bool) if real is None else real


def texts(
    name: str,
    module: nn.Module,
    config: Any,
    call: Call,
    *,
    aligned: bool = False,
    causal: bool | None = False,
    **more: Any,
) -> Subject:
    """A subject whose rows are texts."""
    longest = min(LONGEST, more.pop("context", None) or dict(config).get("context") or LONGEST)
    row, pad = ids(more.pop("vocab", None) or config.vocab), more.pop("pad", FILL)
    found = Subject(
        name, module, row, call, longest, True, aligned, BOTH, pad=pad, causal=causal, smooth=not config.hard
    )
    return replace(found, **more)


def numbers(name: str, module: nn.Module, shape: Sequence[int], call: Call, smooth: bool = True) -> Subject:
    """A subject whose rows are numbers, such as images."""

    def row(length: int, random: torch.Generator) -> Tensor:
        return torch.randn(*shape, generator=random)

    return Subject(name, module, row, call, 1, False, False, (), "rows have no positions", smooth=smooth)


def stepwise(begin: Callable[[Any, int], Any]) -> Step:
    """Steps of a model with a state: `begin` gives the first one for a number of rows."""

    def step(module: nn.Module, inputs: Tensor, sizes: Sequence[int]) -> Tensor:
        state, parts = begin(module, len(inputs)), []
        for chunk in inputs.split(list(sizes), 1):
            found, state = module(chunk, state)
            parts.append(found)
        return torch.cat(parts, 1)

    return step


def decoder(name: str, module: nn.Module, config: Any, begin: Callable[[Any, int], Any], vocab: int) -> Subject:
    """The tokens of a decoder, whose state before the first one is the same for all rows."""
    call: Call = lambda m, tokens, real: m(tokens, begin(m, len(tokens)))[0]  # noqa: E731
    return texts(
        name, module, config, call, aligned=True, causal=True, vocab=vocab, step=stepwise(begin), sides=(),
        unpadded="what is generated is not padded",
    )  # fmt: skip


def device_of(module: nn.Module) -> torch.device:
    """Where the weights are."""
    return next(module.parameters()).device


# ------------------------------------------------------------------ roles
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
        return m(target.expand(len(tokens), -1), state)[0]

    yield decoder("tokens", model, config, lambda m, rows: m.start(rows, device_of(m)), config.vocab)
    yield replace(texts("prompts", model, config, read), longest=LONGEST - PROMPTED, every=None)


def _bidirectional(model: nn.Module, config: Any) -> Iterator[Subject]:
    yield texts("tokens", model, config, lambda m, tokens, real: torch.cat(m(tokens, real), -1), aligned=True)


def _seq2seq(model: nn.Module, config: Any) -> Iterator[Subject]:
    vocab, device = config.vocab, device_of(model)
    target, source = fixed(5, vocab, 1, device), fixed(6, vocab, 1, device)

    def read(m: Any, tokens: Tensor, real: Tensor | None) -> Tensor:
        return m(target.expand(len(tokens), -1), m.start(tokens, Padded(whole(real, tokens))))[0]

    yield texts("source", model, config, read)
    yield decoder("target", model, config, lambda m, rows: m.start(source.expand(rows, -1)), vocab)


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
        return m.start(torch.stack([first, tokens], 1), mask, speakers.expand(len(tokens), -1))

    def read(m: Any, tokens: Tensor, real: Tensor | None) -> Tensor:
        replies = target.expand(2 * len(tokens), -1)
        return m(replies, begin(m, tokens, whole(real, tokens)))[0].unflatten(0, (len(tokens), 2))

    yield texts("utterances", model, config, read)
    yield replace(
        decoder("replies", model, config, lambda m, rows: one_utterance(m, fixed(4, vocab, rows, device)), vocab)
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
        found = m(target.expand(len(tokens), -1), m.start(tokens, styles, Padded(mask)))[0]
        return torch.cat([found.flatten(1), m.discriminator(tokens, mask)], 1)

    def begin(m: Any, rows: int) -> Any:
        return m.start(source.expand(rows, -1), torch.arange(rows, device=device) * 0)

    yield texts("texts", model, config, read)
    yield decoder("words", model, config, begin, vocab)


def _text_autoencoder(model: nn.Module, config: Any) -> Iterator[Subject]:
    vocab, device = config.vocab, device_of(model)
    target, source = fixed(4, vocab, 1, device), fixed(5, vocab, 1, device)

    def read(m: Any, tokens: Tensor, real: Tensor | None) -> Tensor:
        code = m.encode(tokens, Padded(whole(real, tokens)))
        found = m(target.expand(len(tokens), -1), m.start(code.mean))[0].flatten(1)
        return found if code.log_variance is None else torch.cat([found, code.log_variance], 1)

    yield texts("sentences", model, config, read)
    yield decoder("words", model, config, lambda m, rows: m.start(m.encode(source).mean.expand(rows, -1)), vocab)


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
    column = next(one for one in config.columns if one.kind == "text")

    def call(m: Any, tokens: Tensor, real: Tensor | None) -> Tensor:
        rows, values = len(tokens), list[Tensor]()
        shapes: dict[str, Callable[[Any], Tensor]] = {
            "numbers": lambda one: torch.linspace(-1, 1, one.size).expand(rows, -1),
            "class": lambda one: torch.ones(rows, dtype=torch.long),
            "image": lambda one: (
                torch.linspace(-1, 1, one.channels * one.size[0] * one.size[1])
                .view(1, one.channels, *one.size)
                .expand(rows, -1, -1, -1)
            ),
        }
        for one in config.columns:
            values.append(tokens if one.kind == "text" else shapes[one.kind](one).to(tokens.device))
        return m(values)

    yield texts("texts", model, config, call, pad=0, vocab=column.vocab, context=column.longest, sides=("right",))


def _image(model: nn.Module, config: Any) -> Iterator[Subject]:
    yield numbers("images", model, config.input, lambda m, images, real: m(images), not config.hard)


def _image_encoder(model: nn.Module, config: Any) -> Iterator[Subject]:
    def every(m: Any, images: Tensor, real: Tensor | None) -> Tensor:
        return torch.cat([logits for _, logits in m.training_logits(images)], 1)

    yield replace(next(_image(model, config)), every=every)


def _glimpses(model: nn.Module, config: Any) -> Iterator[Subject]:
    def every(m: Any, images: Tensor, real: Tensor | None) -> Tensor:
        m.train()  # places are sampled, and have a probability
        path = m.look(images)
        m.eval()
        return torch.cat([m(images), path.logs, path.values], 1)

    yield replace(next(_image(model, config)), every=every)


def _captioner(model: nn.Module, config: Any) -> Iterator[Subject]:
    device, shape = device_of(model), config.encoder.input
    image = torch.linspace(-1, 1, shape[0] * shape[1] * shape[2], device=device).view(1, *shape)
    words = fixed(5, config.vocab, 1, device)
    read: Call = lambda m, images, real: m(words.expand(len(images), -1), m.start(images))[0]  # noqa: E731
    yield numbers("images", model, shape, read, not config.hard)
    yield decoder(
        "words",
        model,
        config,
        lambda m, rows: m.start(image.to(next(m.parameters()).dtype).expand(rows, -1, -1, -1)),
        config.vocab,
    )


def _paragraph_captioner(model: nn.Module, config: Any) -> Iterator[Subject]:
    device, shape = device_of(model), config.encoder.input
    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.1, 0.2, 0.6, 0.9]], device=device)

    def plans(m: Any, images: Tensor, count: int = 2) -> tuple[Tensor, list[Any]]:
        rows, found = len(images), list[Any]()
        real = torch.ones(rows, 2, dtype=torch.bool, device=device)
        words = fixed(3, config.vocab, rows * 2, device).unflatten(0, (rows, 2))
        regions = m.look(images, boxes.to(images.dtype).expand(rows, -1, -1), real)
        memory = m.remember(regions, words, torch.ones_like(words, dtype=torch.bool))
        state = m.begin_paragraph(memory, real)
        for _ in range(count):
            plan, state = m.plan(memory, real, state)
            found.append(plan)
        return regions, found

    def read(m: Any, images: Tensor, real: Tensor | None) -> Tensor:
        regions, found = plans(m, images)
        words = fixed(4, config.vocab, len(images), device)
        parts = [m(words, m.start(found[-1].topic))[0], m.phrase_topics(regions)]
        parts += [part for plan in found for part in (plan.last[:, None], plan.weights)]
        return torch.cat([part.flatten(1) for part in parts], 1)

    image = torch.linspace(-1, 1, shape[0] * shape[1] * shape[2], device=device).view(1, *shape)

    def begin(m: Any, rows: int) -> Any:
        return m.start(plans(m, image.to(next(m.parameters()).dtype))[1][-1].topic.expand(rows, -1))

    yield numbers("images", model, shape, read, not config.hard)
    yield decoder("words", model, config, begin, config.vocab)


def _agent(model: nn.Module, config: Any) -> Iterator[Subject]:
    def call(m: Any, seen: Tensor, real: Tensor | None) -> Tensor:
        found = [m(seen)]
        found += [m.value(seen)[:, None]] if config.estimates else []
        return torch.cat(found, 1)

    yield numbers("observations", model, (config.inputs,), call)


ROLES: dict[Role, Callable[[nn.Module, Any], Iterator[Subject]]] = {
    "encoder": _encoder, "two_streams": _encoder, "causal": _causal, "bidirectional": _bidirectional,
    "seq2seq": _seq2seq, "hierarchical": _hierarchical, "classifier": _pooled, "regressor": _pooled,
    "multiple_choice": _pooled, "tagger": _tagger, "answerer": _answerer, "word_classifier": _word_classifier,
    "style_transfer": _style_transfer, "story_answerer": _story_answerer, "tree_classifier": _tree_classifier,
    "tabular": _tabular, "text_autoencoder": _text_autoencoder, "autoencoder": _image, "image_encoder": _image_encoder,
    "glimpse_classifier": _glimpses, "captioner": _captioner, "paragraph_captioner": _paragraph_captioner,
    "policy": _agent, "q_network": _agent,
}  # fmt: skip


def role_subjects(model: nn.Module, config: ModelConfig) -> tuple[Subject, ...]:
    """What the checks vary in a model of the library."""
    return tuple(ROLES[config.role](model, config))
