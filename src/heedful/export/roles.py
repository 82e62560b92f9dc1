"""The graphs of every model, by its role.

B rows, S or T columns, U utterances, W words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.blocks.layouts import Padded
from heedful.blocks.state import Ragged
from heedful.errors import UserError
from heedful.export.graph import Function, Graph, Inputs, decoder_graphs, whole
from heedful.hub.loading import Pretrained
from heedful.hub.onnx import Exported
from heedful.models.heads.config import HeadConfig
from heedful.models.own import own_class, settings_of
from heedful.models.roles import Role
from heedful.runs.load import AnyPredictor
from heedful.tasks.pretraining.predictor import TextEncoder

Graphs = tuple[Graph, ...]
KEEP = "keep the run as it is: heedful.load and `heedful serve` read it"
LONGEST = 512  # columns of inputs that are drawn


def texts(vocab: int, sides: tuple[str, ...] = ("right", "left")) -> Callable[..., Inputs]:
    """Rows of random tokens, every other one shorter, with padding on either side."""

    def draw(rows: int, columns: int, random: torch.Generator) -> Inputs:
        ids = torch.randint(min(4, vocab - 1), vocab, (rows, columns), generator=random)  # (B, T)
        real = torch.ones_like(ids)
        for row in range(1, rows):
            gone = int(torch.randint(columns, (1,), generator=random))
            side = sides[row % len(sides)]
            real[row, columns - gone :] = int(side != "right" or not gone)
            real[row, :gone] *= int(side != "left")
        return {"input_ids": ids * real, "attention_mask": real}

    return draw


def segmented(vocab: int, segments: int = 1) -> Callable[..., Inputs]:
    """The same with the segment of each token."""

    def draw(rows: int, columns: int, random: torch.Generator) -> Inputs:
        found = texts(vocab)(rows, columns, random)
        kinds = torch.randint(max(1, min(2, segments)), found["input_ids"].shape, generator=random)  # (B, T)
        return found | {"token_type_ids": kinds}

    return draw


def random_numbers(name: str, shape: tuple[int, ...]) -> Callable[..., Inputs]:
    """Rows of random numbers."""
    return lambda rows, columns, random: {name: torch.randn(rows, *shape, generator=random)}


def one(model: nn.Module, outputs: tuple[str, ...], call: Callable[..., Any], draw: Any, longest: int) -> Graphs:
    """A single graph."""
    return (Graph("model", Function(model, call), outputs, draw, longest),)


def heads_of(config: Any) -> tuple[int, int]:
    """The heads of a decoder, and the width of each; one head where it has none."""
    heads = dict(config).get("heads", 1)
    return heads, dict(config).get("width", 0) // heads


def decoder(model: nn.Module, config: Any, begin: Callable[..., Any], draw: Any, several: bool = False) -> Graphs:
    """The graphs of a decoder whose state begins with inputs."""
    start = Graph("start", model, (), draw, config.context)
    return decoder_graphs(start, model, begin, config.vocab, config.context, several)


def _causal(model: Any, config: Any) -> Graphs:
    """Tokens in any number of steps; where positions are counted, `padding` is the number of tokens before each row."""

    def begin(m: Any, skip: Tensor) -> Any:
        state = whole(m.start(skip.shape[0], skip.device), *heads_of(config), config.context, skip)
        return replace(state, ragged=Ragged(skip, config.context)) if config.fixed_context else state

    def draw(rows: int, columns: int, random: torch.Generator) -> Inputs:
        return {"padding": torch.arange(rows) % 2 * int(columns > 1) * int(config.fixed_context)}

    return decoder(model, config, begin, draw, several=True)


def _bidirectional(model: Any, config: Any) -> Graphs:
    def call(m: Any, ids: Tensor, real: Tensor) -> Any:
        return (*m(ids, real != 0), m.layers(ids, real != 0))

    names = ("next_logits", "previous_logits", "layers")
    return one(model, names, call, texts(config.vocab), config.context)


def _seq2seq(model: Any, config: Any) -> Graphs:
    def begin(m: Any, ids: Tensor, real: Tensor) -> Any:
        return whole(m.start(ids, Padded(real != 0)), *heads_of(config), config.context, ids[:, 0])

    return decoder(model, config, begin, texts(dict(config).get("source_vocab") or config.vocab))


def _style_transfer(model: Any, config: Any) -> Graphs:
    def begin(m: Any, ids: Tensor, real: Tensor, styles: Tensor) -> Any:
        return m.start(ids, styles, Padded(real != 0))

    def draw(rows: int, columns: int, random: torch.Generator) -> Inputs:
        styles = torch.randint(len(config.labels), (rows,), generator=random)
        return texts(config.vocab)(rows, columns, random) | {"styles": styles}

    return decoder(model, config, begin, draw)


def _text_autoencoder(model: Any, config: Any) -> Graphs:
    def encode(m: Any, ids: Tensor, real: Tensor) -> Any:
        code = m.encode(ids, Padded(real != 0))
        return code.mean if code.log_variance is None else (code.mean, code.log_variance)

    given = texts(config.vocab)
    with torch.no_grad():
        code = model.encode(torch.ones(1, 2, dtype=torch.long))
    names = ("mean",) if code.log_variance is None else ("mean", "log_variance")
    encoder = Graph("encoder", Function(model, encode), names, given, config.context)
    draw = random_numbers("code", tuple(code.mean.shape[1:]))
    return encoder, *decoder(model, config, lambda m, code: m.start(code), draw)


def _captioner(model: Any, config: Any) -> Graphs:
    def begin(m: Any, images: Tensor) -> Any:
        inner = config.decoder
        return whole(m.start(images), *heads_of(inner), config.context, images[:, 0, 0, 0].long())

    draw = random_numbers("images", config.encoder.input)
    return decoder(model, config, begin, draw)


def encoder_graphs(model: Any, config: Any, **sentences: Any) -> Graphs:
    """The graph of an encoder; with a `pooling`, also with a vector for each text."""
    found = Exported(Pretrained(config, None, model.state_dict(), (), **sentences)).eval()
    draw = segmented(config.vocab, config.segments)
    return one(found, tuple(found.outputs), lambda m, *given: m(*given), draw, config.context)


def _pooled(model: Any, config: Any) -> Graphs:
    def call(m: Any, ids: Tensor, real: Tensor, segments: Tensor) -> Any:
        return m(ids, segments, Padded(real != 0))

    encoder = config.encoder
    return one(model, ("logits",), call, segmented(encoder.vocab, encoder.segment_types), encoder.context)


def _tagger(model: Any, config: Any) -> Graphs:
    def call(m: Any, ids: Tensor, real: Tensor, segments: Tensor) -> Any:
        places = torch.arange(ids.shape[0] * ids.shape[1], device=ids.device)
        return m(ids, segments, Padded(real != 0), places).unflatten(0, ids.shape)

    encoder = config.encoder
    return one(model, ("logits",), call, segmented(encoder.vocab, encoder.segment_types), encoder.context)


def _answerer(model: Any, config: Any) -> Graphs:
    def call(m: Any, ids: Tensor, real: Tensor, segments: Tensor) -> Any:
        return m.head(m.encoder.layers(ids, segments, Padded(real != 0))[-1]).unbind(-1)

    encoder = config.encoder
    names = ("start_logits", "end_logits")
    return one(model, names, call, segmented(encoder.vocab, encoder.segment_types), encoder.context)


def _word_classifier(model: Any, config: Any) -> Graphs:
    def call(m: Any, ids: Tensor, real: Tensor) -> Any:
        return m(ids, None, Padded(real != 0))

    return one(model, ("logits",), call, texts(config.vocab), dict(config).get("context") or LONGEST)


def _story_answerer(model: Any, config: Any) -> Graphs:
    def draw(rows: int, columns: int, random: torch.Generator) -> Inputs:
        """As many distinct sentences as words and rows, of which each story has some, padded on the left."""
        count = rows + columns
        found = texts(config.vocab, ("right",))
        sentences, questions = (found(n, columns, random)["input_ids"] for n in (count, rows))
        size = min(max(1, columns - 3), config.memory)  # differs from columns, and seldom reaches its limit
        stories = torch.randint(count, (rows, size), generator=random)
        stories[1::2, 0] = -1
        return {"sentences": sentences, "stories": stories, "questions": questions}

    return one(model, ("logits",), lambda m, *given: m(*given), draw, LONGEST)


def _tabular(model: Any, config: Any) -> Graphs:
    def draw(rows: int, columns: int, random: torch.Generator) -> Inputs:
        found: Inputs = {}
        for number, column in enumerate(config.columns):
            if column.kind == "text":
                value = texts(column.vocab, ("right",))(rows, min(columns, column.longest), random)["input_ids"]
            elif column.kind == "class":
                value = torch.randint(column.classes, (rows,), generator=random)
            else:
                shape = (column.size,) if column.kind == "numbers" else (column.channels, *column.size)
                value = torch.randn(rows, *shape, generator=random)
            found[f"column_{number + 1}"] = value
        return found

    return one(model, ("outputs",), lambda m, *given: m(given), draw, LONGEST)


def _images(model: Any, config: Any) -> Graphs:
    return one(model, ("logits",), lambda m, x: m(x), random_numbers("images", config.input), LONGEST)


def _autoencoder(model: Any, config: Any) -> Graphs:
    def call(m: Any, images: Tensor) -> Any:
        return m.encoder(images), m(images)

    return one(model, ("codes", "images_again"), call, random_numbers("images", config.input), LONGEST)


def _agent(model: Any, config: Any) -> Graphs:
    def call(m: Any, seen: Tensor) -> Any:
        return (m(seen), m.value(seen)) if config.estimates else m(seen)

    names = ("logits", "value") if config.estimates else ("logits",)
    return one(model, names, call, random_numbers("observations", (config.inputs,)), LONGEST)


ROLES: dict[Role, Callable[[nn.Module, Any], Graphs]] = {
    "encoder": encoder_graphs, "two_streams": encoder_graphs, "causal": _causal, "bidirectional": _bidirectional,
    "seq2seq": _seq2seq, "classifier": _pooled, "regressor": _pooled, "multi_label": _pooled,
    "multiple_choice": _pooled, "tagger": _tagger,
    "answerer": _answerer, "word_classifier": _word_classifier, "style_transfer": _style_transfer,
    "story_answerer": _story_answerer, "tabular": _tabular, "text_autoencoder": _text_autoencoder,
    "autoencoder": _autoencoder, "image_encoder": _images, "glimpse_classifier": _images, "captioner": _captioner,
    "policy": _agent, "q_network": _agent,
}  # fmt: skip


def why_not(model: nn.Module, config: Any) -> str | None:
    """Why a model has no graphs; None: it has."""
    if own_class(model):
        return f"{own_class(model)} is your own module: export it with torch.onnx.export"
    reason: str | None = config.unexported
    return reason or (config.encoder.unexported if isinstance(config, HeadConfig) and config.encoder else None)


def graphs_of(predictor: AnyPredictor) -> Graphs:
    """The graphs of a predictor's model."""
    model: Any = predictor.model
    config = settings_of(model)
    if reason := why_not(model, config):
        raise UserError("this model cannot be exported as a graph: not supported", found=reason, todo=KEEP)
    if isinstance(predictor, TextEncoder):
        return encoder_graphs(
            model, config, pooling=predictor.pooling or "mean", dense=predictor.dense.config,
            dense_tensors=predictor.dense.state_dict(), normalize=predictor.normalize,
        )  # fmt: skip
    return ROLES[config.role](model, config)
