"""What in a text decides its class: gradient x input, integrated gradients, and attention rollout.

The first two explain the logit of a class by the vectors of the tokens, and are those of `vision.gradients`; a token's
value is the sum over the dimensions of its vector. Rollout follows the attention weights of all layers to the tokens,
and knows of no class: attention shows where a model reads, not what decides.

B texts, T tokens, D width, C classes, S tokens of a text and those that its encoder puts before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from heedful.blocks.taps import taps, watch
from heedful.data.labelled.sequences import Sequences, pad_sequences
from heedful.data.tokenizers.base import HasMask, PairTokenizer
from heedful.errors import UserError, shown
from heedful.extras.vision import gradients
from heedful.extras.vision.attention import rollout
from heedful.extras.vision.gradients import STEPS, Score
from heedful.models.heads.head import Head
from heedful.models.layer_graph import evaluating
from heedful.tasks.classification.predictor import TextClassifier, TextOrPair, tokenize_chunks
from heedful.tasks.multi_label.predictor import MultiLabelClassifier
from heedful.tasks.reading import layout_of

Method = Literal["gradient x input", "integrated gradients", "attention rollout"]


# ------------------------------------------------------------------ the logit as a function of the tokens' vectors
def token_table(model: nn.Module) -> nn.Module:
    """The embedding of the tokens of a classifier: that called `tokens`, or the only one of a model of one's own."""
    inner = model.get_submodule("encoder") if isinstance(model, Head) else model
    if (named := dict(inner.named_children()).get("tokens")) is not None:
        return named
    found = [module for module in inner.modules() if isinstance(module, nn.Embedding)]
    if len(found) != 1:
        todo = "call the embedding of the tokens `tokens`"
        raise UserError("this model has no known embedding of tokens", where=type(model).__name__, todo=todo)
    return found[0]


def token_vectors(model: nn.Module, texts: Sequences) -> Tensor:
    """The embeddings (B, T, D) of the tokens, to which the model adds positions and segments."""
    found: Tensor = token_table(model)(texts.ids)
    return found.detach()


def class_logit(model: nn.Module, texts: Sequences, classes: int | Tensor) -> Score:
    """The logit of a class, or of one for each text (B,), as a function of the embeddings (B, T, D)."""

    def score(vectors: Tensor) -> Tensor:
        hook = token_table(model).register_forward_hook(lambda *_: vectors)
        try:
            with evaluating(model):
                logits: Tensor = model(texts.ids, texts.segments, layout_of(texts))  # (B, C)
        finally:
            hook.remove()
        chosen = torch.as_tensor(classes, device=logits.device).expand(len(logits))
        return logits.gather(1, chosen[:, None]).squeeze(1)  # (B,)

    return score


# ------------------------------------------------------------------ a value for each token (B, T), 0 for padding
def gradient_times_input(model: nn.Module, texts: Sequences, classes: int | Tensor) -> Tensor:
    """The derivative of the logit by the embedding of each token, times the embedding (Shrikumar et al., 2016)."""
    score = class_logit(model, texts, classes)
    return gradients.gradient_times_input(score, token_vectors(model, texts)).sum(-1)


def integrated_gradients(
    model: nn.Module, texts: Sequences, classes: int | Tensor, baseline: Tensor, steps: int = STEPS
) -> Tensor:
    """The way from the embedding of a baseline to that of each token, times the mean gradient on it.

    The values of a text add up to its logit minus that of the tokens `baseline` (B, T), up to the error of the midpoint
    rule (Sundararajan et al., 2017); `masked` gives the text with all words masked.
    """
    score = class_logit(model, texts, classes)
    start, end = (token_vectors(model, replace(texts, ids=ids)) for ids in (baseline, texts.ids))
    return gradients.integrated_gradients(score, end, start, steps).sum(-1)


def masked(tokenizer: PairTokenizer, ids: Tensor) -> Tensor:
    """Token ids (B, T) with every token masked that is not special, or unknown where there is no mask token."""
    special = torch.tensor(sorted(tokenizer.special - {tokenizer.unk}), device=ids.device)
    blank = tokenizer.mask if isinstance(tokenizer, HasMask) else tokenizer.unk
    return torch.where(torch.isin(ids, special), ids, blank)


def attention_rollout(model: nn.Module, texts: Sequences) -> Tensor:
    """The share of each token in what the classifier reads, through all layers (Abnar and Zuidema, 2020).

    It reads some vectors of the last layer, such as that of `[CLS]` or all: those by which the logits have a gradient.
    """
    if not has_rollout(model):
        raise UserError("this model has no attention from token to token", where="method", found="attention rollout")
    names, weights, outputs = weight_taps(model), list[Tensor](), list[Tensor]()

    def keep(name: str, value: Tensor) -> Tensor | None:
        if name in names:
            weights.append(value.detach())
        elif name.endswith(".output"):
            # A vector of its own, so that there are gradients where the weights of the model have none.
            outputs.append(value if value.requires_grad else value.requires_grad_())
            return outputs[-1]
        return None

    with torch.enable_grad(), evaluating(model), watch(model, "*", edit=keep):
        logits: Tensor = model(texts.ids, texts.segments, layout_of(texts))  # (B, C)
        classes = torch.arange(1, logits.shape[1] + 1, device=logits.device)
        (slope,) = torch.autograd.grad((logits * classes).sum(), outputs[-1])  # (B, S, D)
    read = (slope != 0).any(-1).to(logits.dtype)  # (B, S)
    read = read / read.sum(1, keepdim=True).clamp(min=1)
    found = (read[:, None] @ rollout(weights))[:, 0]  # (B, S)
    return found[:, -texts.ids.shape[1] :]


def weight_taps(model: nn.Module) -> list[str]:
    """The taps of the attention weights of each layer."""
    every = taps(model)
    return [name for name in every if name.endswith(".weights") and f"{name.removesuffix('weights')}scores" in every]


def has_rollout(model: nn.Module) -> bool:
    """Whether its tokens attend to tokens."""
    mixed = isinstance(model, Head) and not model.encoder.config.weighs_tokens
    return bool(weight_taps(model)) and not mixed


# ------------------------------------------------------------------ of a predictor
@dataclass(frozen=True)
class Explanation:
    """The tokens of a text, special ones included, and how much each says for a class."""

    label: str
    tokens: list[str]
    values: list[float]


def methods_of(model: nn.Module) -> tuple[Method, ...]:
    """The methods that explain a text classifier."""
    return tuple(name for name in get_args(Method) if name != "attention rollout" or has_rollout(model))


def explain(
    predictor: TextClassifier | MultiLabelClassifier,
    texts: Sequence[TextOrPair],
    method: Method = "integrated gradients",
    label: str | None = None,
) -> list[Explanation]:
    """What in each text decides whether it has a label, by default its most probable one."""
    if method not in get_args(Method):
        raise UserError(
            "there is no such method", where="method", found=shown(method), expected=", ".join(get_args(Method))
        )
    if label is not None and label not in predictor.labels:
        expected = ", ".join(predictor.labels)
        raise UserError("there is no such label", where="label", found=shown(label), expected=expected)
    return [
        explain_one(predictor, pad_sequences([encoded.row(row)], encoded.pad).to(predictor.device), method, label)
        for encoded in tokenize_chunks(texts, predictor.tokenizer, predictor.context)
        for row in range(len(encoded))
    ]


def explain_one(
    predictor: TextClassifier | MultiLabelClassifier, text: Sequences, method: Method, label: str | None
) -> Explanation:
    """The explanation of one text."""
    if label is None:
        with torch.no_grad(), evaluating(predictor.model):
            number = int(predictor.model(text.ids, text.segments, layout_of(text))[0].argmax())
    else:
        number = predictor.labels.index(label)
    match method:
        case "gradient x input":
            values = gradient_times_input(predictor.model, text, number)
        case "integrated gradients":
            blank = masked(predictor.tokenizer, text.ids)
            values = integrated_gradients(predictor.model, text, number, blank)
        case "attention rollout":
            values = attention_rollout(predictor.model, text)
    pieces = predictor.tokenizer.pieces(text.ids[0].tolist())
    return Explanation(predictor.labels[number], pieces, values[0].float().tolist())
