"""One query of one head step by step: dot products, scaling, mask, softmax or another normalizer, weighted sum.

T queries, S keys, K width of a query, E width of a value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field
from torch import Tensor

from heedful.blocks.attention import attend
from heedful.blocks.memory import MemoryAttention
from heedful.blocks.normalizers import softmax
from heedful.blocks.scores import scaled_dot
from heedful.blocks.taps import Tap, taps
from heedful.config import Config
from heedful.errors import UserError
from heedful.explore.block_steps import block_steps, decoder_steps, output_matrix
from heedful.explore.capabilities import HasNormalize, HasScore, part_of
from heedful.explore.habits import most_unusual
from heedful.explore.inspect import Attention, TextInput, Trace, is_translator
from heedful.explore.openings import Highlight, on_text
from heedful.explore.packets import pack
from heedful.explore.predictions import prediction_of, predicts
from heedful.explore.score_terms import decoder_terms
from heedful.explore.views import Call, InputRequest, heads, index_of, input_of, lens, require_index
from heedful.explore.views.heads import LayerRequest, attention_in, described

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Step by step"
ABOUT = "One query of one head, from q · k to the weighted sum, with the model's own values."
STAGES = ("vectors", "dot", "scale", "mask", "softmax", "sum")  # of dot-product attention
VECTORS = ("queries", "keys", "values")
TOP = 5  # logits
NOISE = 1e-5  # relative to the largest possible score: differences below are rounding errors, not a bias
UNDERFLOW = 87.0  # a score this far below the largest has a weight of 0 in float32
FILE = 6_000_000  # bytes of all heads, up to which a file holds more than the chosen one


class HeadRequest(LayerRequest):
    """One head of one layer."""

    head: int = Field(ge=0, le=1000)


class QueryRequest(HeadRequest):
    """One query of it."""

    query: int = Field(ge=0, le=100_000)


class ExampleRequest(Config):
    """The lectures' example, which has no settings."""


fits = heads.fits


def tokens(subject: Subject, request: InputRequest) -> bytes:
    """The tokens of each side, and the kinds of attention with their stages."""
    trace = subject.trace(request)
    header = described(trace)
    for each, attention in zip(header["looks"], trace.attentions, strict=True):
        each["stages"] = stages(subject, attention)
        module = subject.model.get_submodule(module_of(attention, 0))
        each["goes_on"] = goes_on(subject, attention, 0)
        if not is_softmax(module):
            each["normalizer"] = module.normalize.__name__
    return pack(header)


def highlight(subject: Subject, given: TextInput) -> Highlight | None:
    """The layer, head and query to open on, as in the view of all heads."""
    return most_unusual(subject, given, lambda found: {"head": found.head, "token": found.query})


def stages(subject: Subject, attention: Attention) -> list[str]:
    """The stages of an attention: all, or those of one without dot products or without softmax."""
    module = subject.model.get_submodule(module_of(attention, 0))
    found = list(STAGES) if is_dot_product(module) else ["scores", *STAGES[STAGES.index("mask") :]]
    return found if is_softmax(module) else [stage for stage in found if stage != "mask"]


def is_dot_product(module: Any) -> bool:
    """Whether a block's scores are scaled dot products of vectors that have taps."""
    tapped = taps(module).keys() >= set(VECTORS)
    plain = part_of(module, "score") is None and (not isinstance(module, HasScore) or module.score is scaled_dot)
    return tapped and plain


def is_softmax(module: Any) -> bool:
    """Whether its weights are zero only where a key is masked; those of sparsemax may be zero anywhere."""
    return not isinstance(module, HasNormalize) or module.normalize is softmax


def head(subject: Subject, request: HeadRequest) -> bytes:
    """All values of one head: scores and weights (T, S), and its vectors if they have taps, or the scores' terms."""
    attention, seen = traced(subject, request)
    name = module_of(attention, request.layer)
    module = subject.model.get_submodule(name)
    weights, scores = (seen.values[f"{name}.{tap}"][request.head] for tap in ("weights", "scores"))
    off = masked(scores, weights) if is_softmax(module) else torch.zeros_like(weights, dtype=torch.bool)
    arrays = {"weights": weights, "scores": scores, "masked": off.to(torch.uint8)}
    header: dict[str, Any] = {}
    if is_dot_product(module):
        q, k, v = (seen.values[f"{name}.{tap}"][request.head] for tap in VECTORS)
        arrays |= dot_products(q, k, v, scores, weights)
        header["width"] = q.shape[1]
    elif isinstance(module, MemoryAttention) and not request.uniform:  # uniform scores are no longer their terms' sums
        with subject.lock:
            terms = decoder_terms(module, subject.trace(request))
        if terms is not None:
            header["score"] = terms.score
            arrays |= {"asking": terms.q, "seen": terms.k} | ({} if terms.v is None else {"v": terms.v})
    return pack(header, **{name: array if name == "masked" else array.float() for name, array in arrays.items()})


def dot_products(q: Tensor, k: Tensor, v: Tensor, scores: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """The vectors, the products q . k (T, S), the bias of the scores if there is one, and the outputs (T, E)."""
    dots = q.double() @ k.double().mT  # (T, S)
    scaled = dots / math.sqrt(q.shape[1])  # (T, S)
    found = {"queries": q, "keys": k, "values": v, "dots": dots, "sums": weights.double() @ v.double()}
    longest = q.double().norm(dim=1).max() * k.double().norm(dim=1).max() / math.sqrt(q.shape[1])
    added = scores.double() - scaled  # (T, S)
    return {**found, "bias": added} if bool((added.abs() > NOISE * longest).any()) else found


def masked(scores: Tensor, weights: Tensor) -> Tensor:
    """The mask (T, S): where a weight is zero, though its score would not underflow."""
    largest = scores.masked_fill(weights == 0, -math.inf).amax(1, keepdim=True)  # (T, 1)
    return (weights == 0) & (scores > largest - UNDERFLOW)


def products(subject: Subject, request: QueryRequest) -> bytes:
    """One query of scores that are no dot products: each value times its weight (S, E), and their sum."""
    attention, seen = traced(subject, request)
    name = module_of(attention, request.layer)
    weights = seen.values[f"{name}.weights"]  # (H, T, S)
    require_index("query", request.query, weights.shape[1])
    if f"{name}.products" in seen.values:  # of a recurrent decoder: its steps are concatenated along the keys
        sums = seen.values[f"{name}.context"]  # (T, E)
        each = seen.values[f"{name}.products"].reshape(len(sums), -1, sums.shape[-1])[request.query]  # (S, E)
        return pack({}, products=each.float(), sums=sums[request.query].float())
    if f"{name}.values" not in seen.values:
        raise UserError("this attention has no tap for its values", where="look", found=attention.name)
    each = weights[request.head, request.query][:, None] * seen.values[f"{name}.values"][request.head]  # (S, E)
    return pack({}, products=each.float(), sums=each.sum(0).float())


def rest(subject: Subject, request: QueryRequest) -> bytes:
    """One query after the attention: each step of its block, the output of each later block, and what comes out.

    That is the top logits of the query's own prediction, or the prediction of a head on an encoder.
    """
    attention, _ = traced(subject, request)
    trace, tap = subject.trace(request), attention.taps[request.layer]
    if not goes_on(subject, attention, request.layer):
        raise UserError("this attention is not in a block of add & norm", where="look", found=attention.name)
    require_index("query", request.query, trace.weights(attention, request.layer).shape[1])
    key = f"block steps {tap} {request.text!r} {request.other!r}"
    steps_of = decoder_steps if "vectors" not in stages(subject, attention) else block_steps
    found = subject.cached(key, lambda: steps_of(subject.model, trace, tap)).stages
    header: dict[str, Any] = {"stages": [one.name for one in found], "top": [], "says": "", "answers": []}
    last = own_logits(subject, trace, attention, found[-1].value, request.query) if found else None  # (V,)
    if last is not None:
        best = last.topk(min(TOP, len(last)))
        pieces = subject.predictor.tokenizer.pieces(best.indices.tolist())
        shares = last.softmax(-1)[best.indices].tolist()
        header["top"] = [list(each) for each in zip(pieces, best.values.tolist(), shares, strict=True)]
    elif found and attention.queries == "source":
        header["says"] = "the decoder attends to these vectors"
    elif found and predicts(subject.predictor):
        header |= predicted(subject, request, trace)
    return pack(header, **{f"s{place}": one.value[request.query].float() for place, one in enumerate(found)})


def goes_on(subject: Subject, attention: Attention, layer: int) -> bool:
    """Whether it is known what follows an attention: a block of add & norm, or the step of a recurrent decoder."""
    if output_matrix(subject.model, attention.taps[layer]) is not None:
        return True
    return f"{module_of(attention, layer)}.context" in taps(subject.model) and attention.queries == "written"


def own_logits(subject: Subject, trace: Trace, attention: Attention, x: Tensor, query: int) -> Tensor | None:
    """The logits (V,) of a query that predicts a token, from the last step after its attention (T, D)."""
    names = lens.layers_of(subject.model)
    if names and names[-1].startswith(attention.taps[0].split(".")[0] + "."):
        return lens.logits(subject, x[query, None])[0]
    if attention.kind == "cross" and is_translator(subject.predictor):
        return trace.output[0, query].float().cpu()
    return None


def predicted(subject: Subject, request: QueryRequest, trace: Trace) -> dict[str, Any]:
    """What a head on the encoder predicts for the whole text."""
    try:
        with subject.lock, torch.inference_mode():
            made = prediction_of(subject.predictor, request, trace.reading)
            answers = made.candidates()[:TOP]
    except UserError:  # such as a question without a passage
        return {}
    return {"says": made.what, "answers": [[one.text, one.probability] for one in answers]}


def traced(subject: Subject, request: HeadRequest) -> tuple[Attention, Trace]:
    """A kind of attention, and the activations at all taps of one of its layers."""
    attention = attention_in(subject.trace(request), request.look)
    require_index("layer", request.layer, len(attention.taps))
    require_index("head", request.head, attention.heads)
    return attention, subject.trace(request, f"{module_of(attention, request.layer)}.*")


def module_of(attention: Attention, layer: int) -> str:
    """The path of a layer's attention module."""
    return attention.taps[layer].rpartition(".")[0]


# ------------------------------------------------------------------ the example of the lectures
@torch.inference_mode()
def example(request: ExampleRequest) -> bytes:
    """ "Thinking Machines": 112 and 96, divided by 8, give 14 and 12, and weights of 0.88 and 0.12."""
    q, k, v = thinking_machines()
    scores, weights = Tap(), Tap()
    seen: dict[str, Tensor] = {}
    scores.hook = lambda x: seen.update(scores=x[0, 0])
    weights.hook = lambda x: seen.update(weights=x[0, 0])
    attend(q[None, None], k[None, None], v[None, None], scores=scores, weights=weights)
    arrays = {**seen, **dot_products(q, k, v, seen["scores"], seen["weights"])}
    stages = [one for one in STAGES if one != "mask"]
    header = {"width": q.shape[1], "pieces": ["Thinking", "Machines"], "stages": stages}
    masks = torch.zeros(seen["scores"].shape, dtype=torch.uint8)
    return pack(header, masked=masks, **{name: array.float() for name, array in arrays.items()})


def thinking_machines() -> tuple[Tensor, Tensor, Tensor]:
    """A query (1, 64), two keys and two values (2, 64) with q . k = 112 and 96, exact in any float type.

    q has entries of 1 and -1, so q . q = 64; a key is a multiple of q plus a vector orthogonal to it.
    """
    q = torch.cos(torch.arange(64.0) ** 2).sign()  # (64,)
    away = torch.stack([torch.arange(32) % 5 - 2, torch.arange(32) % 3 - 1]) / 4  # (2, 32)
    across = torch.stack([away, -away], 2).flatten(1) * q  # (2, 64)
    waves = torch.stack([torch.cos(torch.arange(64) / 5), torch.sin(torch.arange(64) / 3)])  # (2, 64)
    return q[None], torch.tensor([[112.0], [96.0]]) / 64 * q + across, waves


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    """The chosen layer with all its heads, or the chosen head where they are too large, and the lectures' example."""
    settings = input_of(state)
    trace = subject.trace(InputRequest(**settings))
    attention = trace.attention(state.get("look"))
    layer, chosen = index_of(state, "layer", len(attention.taps)), index_of(state, "head", attention.heads)
    weights = trace.weights(attention, layer)
    several = range(attention.heads) if weights.nbytes * 2 <= FILE else [chosen]
    one = {**settings, "look": attention.name, "layer": layer}
    found = [Call("steps", "head", {**one, "head": number}) for number in several]
    if goes_on(subject, attention, layer):
        queries = range(min(weights.shape[1], 30))
        found += [Call("steps", "rest", {**one, "head": 0, "query": query}) for query in queries]
    if "vectors" not in stages(subject, attention):
        queries = range(min(weights.shape[1], 100))
        found += [
            Call("steps", "products", {**one, "head": number, "query": query})
            for number in several
            for query in queries
        ]
    return [Call("steps", "tokens", settings), Call("steps", "example", {}), *found]


CALLS = {
    "tokens": (InputRequest, tokens), "head": (HeadRequest, head), "products": (QueryRequest, products),
    "example": (ExampleRequest, example), "opening": on_text(highlight), "rest": (QueryRequest, rest),
}  # fmt: skip
