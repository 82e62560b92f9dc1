"""Recurrent layers over time: their gates and states at every step, and the gradient back through time.

T steps, H units, R rows of logits, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from heedful.blocks.layouts import Unpadded
from heedful.blocks.recurrent import Layer
from heedful.blocks.taps import taps, watch
from heedful.errors import UserError
from heedful.explore import inspect, subjects
from heedful.explore.capabilities import part_of
from heedful.explore.inspect import Pass, Reading, TextInput, Token, Trace
from heedful.explore.openings import Highlight, on_text, quoted
from heedful.explore.packets import pack
from heedful.explore.views import Call, InputRequest, input_of, require_index
from heedful.tasks.tagging.predictor import TokenTagger

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Recurrent trace"
ABOUT = "Gates and states of a recurrent layer at each step, and the gradient back through time."

EXAMPLES, FELT = 3, 0.1  # to choose the first picture from; of the largest gradient
LONGEST = 2000  # characters of a text: each step is a column of the figure
FILE_STEPS = 60  # last steps whose gradients a file holds
TAPS = "*.cell.*"
BACK = "back"  # part of the name of a layer that reads backwards
GATES = {
    "forget": "how much of the cell state is kept",
    "write": "how much of the candidate is added to the cell state",
    "candidate": "the new values for the state",
    "reveal": "how much of the cell state is output",
    "reset": "how much of the state the candidate depends on",
    "keep": "how much of the state is kept",
    "cell": "the cell state, a long-term memory",
    "hidden": "the output to the next step and the next layer",
}
SIGNED = {"candidate", "cell", "hidden"}


class StepsRequest(InputRequest):
    """A text that is short enough for one column per step."""

    text: str = Field(max_length=LONGEST)
    other: str | None = Field(None, max_length=LONGEST)


class LayerRequest(StepsRequest):
    """One recurrent layer, by its name."""

    layer: str = Field(max_length=200)


class GradientRequest(StepsRequest):
    """The step whose prediction is differentiated; None: the last."""

    step: int | None = Field(None, ge=0, le=100_000)


@dataclass(frozen=True)
class Recurrence:
    """A recurrent layer: its name, its gates and states in the order of computation, and whether it reads backwards."""

    name: str
    gates: tuple[str, ...]
    back: bool

    def tap(self, gate: str) -> str:
        return f"{self.name}.cell.{gate}"

    @property
    def title(self) -> str:
        """Its name on the page, with layers counted from one."""
        parts = [part for part in self.name.split(".") if part not in ("layers", "stack")]
        return " ".join(f"layer {int(part) + 1}" if part.isdecimal() else part for part in parts)


def recurrences(model: nn.Module) -> list[Recurrence]:
    """The recurrent layers of a model, from the first to the last."""
    return [
        Recurrence(name, tuple(gate for gate in GATES if gate in taps(module.cell)), BACK in name.split("."))
        for name, module in model.named_modules()
        if isinstance(module, Layer)
    ]


def fits(subject: Subject) -> bool:
    return subject.broken is None and inspect.reads_text(subject.predictor) and bool(recurrences(subject.model))


# ------------------------------------------------------------------ how models read
def traced(subject: Subject, request: StepsRequest) -> Trace:
    """The gates and states of a model for a text."""
    for fits, read in READERS:
        if fits(subject):
            with subject.lock:
                return inspect.trace(subject.model, read(subject.predictor, request), TAPS)
    return subject.trace(request, TAPS)


def read_tagged(predictor: Any, given: TextInput) -> Reading:
    """A text by a tagger with recurrent layers on an encoder; here every token gets a tag, not every word."""
    row, segments = inspect.pair_ids(predictor.tokenizer, given, predictor.context)

    def run() -> Tensor:
        ids, parts = (torch.tensor([each], device=predictor.device) for each in (row, segments))
        logits: Tensor = predictor.model(ids, parts, Unpadded(ids), torch.arange(len(row), device=predictor.device))
        return logits[None]  # (R, T, V)

    tokens = [Token(*each) for each in zip(predictor.tokenizer.pieces(row), row, segments, strict=True)]
    return Reading({"text": tokens}, (Pass("text", "text", run),))


def read_both_directions(predictor: Any, given: TextInput) -> Reading:
    """A text by a model that predicts each token from those before it and from those after it."""
    sides = inspect.read_recurrent(predictor, given).sides
    ids = [token.id for token in sides["text"]]

    def run() -> Tensor:
        return torch.cat(predictor.model(torch.tensor([ids], device=predictor.device)))  # (R, T, V)

    return Reading(sides, (Pass("text", "text", run),))


# Models whose recurrent layers need another forward pass than the other views run.
READERS: tuple[tuple[Callable[[Subject], bool], Callable[[Any, TextInput], Reading]], ...] = (
    (lambda subject: part_of(subject.model, "reader") is not None, read_tagged),
    (lambda subject: inspect.is_bidirectional_rnn(subject.predictor), read_both_directions),
)


def side_of(reading: Reading, each: Recurrence) -> str:
    """The side of a reading that a layer reads."""
    return reading.passes[0 if each.name.startswith("encoder") else -1].queries


def in_order(each: Recurrence, values: Tensor) -> Tensor:
    """Steps (T, ...) in the order of the tokens, also for a layer that reads backwards; and back again."""
    return values.flip(0) if each.back else values


# ------------------------------------------------------------------ gates and states
def layers(subject: Subject, request: StepsRequest) -> bytes:
    """The tokens, and the recurrent layers that read them."""
    trace = traced(subject, request)
    found = [
        {
            "name": each.name, "title": each.title, "side": side_of(trace.reading, each), "back": each.back,
            "units": trace.values[each.tap("hidden")].shape[1],
            "gates": [{"name": gate, "about": GATES[gate], "signed": gate in SIGNED} for gate in each.gates],
        }
        for each in recurrences(subject.model)
    ]  # fmt: skip
    tokens = {name: [token.piece for token in side] for name, side in trace.reading.sides.items()}
    return pack({"sides": tokens, "layers": found, "predicts": trace.reading.passes[-1].queries})


def layer(subject: Subject, request: LayerRequest) -> bytes:
    """Every gate and state of one layer, (T, H) each, as half floats, in the order of the tokens."""
    found = {each.name: each for each in recurrences(subject.model)}
    if (each := found.get(request.layer)) is None:
        raise UserError("this model has no such layer", where="layer", expected=", ".join(found))
    values = traced(subject, request).values
    return pack({}, **{gate: in_order(each, values[each.tap(gate)]).to(torch.float16) for gate in each.gates})


# ------------------------------------------------------------------ the gradient
def gradient(subject: Subject, request: GradientRequest) -> bytes:
    """The norm of one prediction's gradient with respect to each layer's hidden state at each step, (T,).

    The loss is -log p of the most probable token of that step. For an LSTM, `cell` is the same for the cell state, and
    `kept` the product of the forget gates after each step up to the prediction, as a mean over the units.
    """
    trace = traced(subject, request)
    predicts = trace.reading.passes[-1].queries
    steps = len(trace.reading.sides[predicts])
    step = steps - 1 if request.step is None else request.step
    require_index("step", step, steps)
    with subject.lock:
        found = gradient_norms(subject.model, trace.reading, step)
    arrays = {}
    for number, each in enumerate(recurrences(subject.model)):
        for state in ("hidden", "cell"):
            if state in each.gates:
                arrays[f"{state}{number}"] = in_order(each, found.norms[each.tap(state)])
        if "forget" in each.gates:
            forget = trace.values[each.tap("forget")]
            last = len(forget) - 1
            ends = last if side_of(trace.reading, each) != predicts else last - step if each.back else step
            arrays[f"kept{number}"] = in_order(each, retention(forget, ends))
    likeliest = int(found.logits[0].argmax())
    return pack(
        {
            "step": step, "predicted": label_of(subject.predictor, likeliest),
            "probability": float(found.logits[0].double().softmax(-1)[likeliest]),
        },
        **arrays,
    )  # fmt: skip


@dataclass(frozen=True)
class Gradients:
    """By tap, the norm of the loss's gradient at each step, (T,), in the layer's own order; and the logits."""

    norms: dict[str, Tensor]
    logits: Tensor  # (R, V) of the step that predicts


def gradient_norms(model: nn.Module, reading: Reading, step: int) -> Gradients:
    """Run a reading, and differentiate the loss of one prediction with respect to all hidden and cell states."""
    states: dict[str, list[Tensor]] = {}

    def keep(name: str, x: Tensor) -> Tensor | None:
        if not name.endswith((".hidden", ".cell")):
            return None
        x = x if x.requires_grad else x.detach().requires_grad_()
        states.setdefault(name, []).append(x)
        return x

    output = torch.empty(0)
    with torch.enable_grad(), watch(model, TAPS, keep):
        for each in reading.passes:
            output = each.run()
        logits = output[:, step].float()  # (R, V)
        # A bidirectional model predicts in each direction, by separate layers.
        loss = -logits.log_softmax(-1).amax(-1).sum()
    every = [state for some in states.values() for state in some]
    found = iter(torch.autograd.grad(loss, every, allow_unused=True))
    norms = {name: torch.stack([_norm(next(found)) for _ in some]).cpu() for name, some in states.items()}
    return Gradients(norms, logits.detach().cpu())


def _norm(gradient: Tensor | None) -> Tensor:
    """The norm of a gradient; zero for an unused state."""
    return torch.zeros(()) if gradient is None else gradient.detach().float().norm()


def retention(forget: Tensor, end: int) -> Tensor:
    """The part of each step's cell state left at step `end`, (T,): products of forget gates (T, H), mean over units."""
    between = forget[1 : end + 1].double().flip(0).cumprod(0).flip(0).mean(1)  # (end,)
    left = torch.zeros(len(forget))
    left[:end], left[end] = between.float(), 1.0
    return left


def label_of(predictor: Any, number: int) -> str:
    """The text of a predicted tag or token."""
    found: str = (
        predictor.labels[number] if isinstance(predictor, TokenTagger) else predictor.tokenizer.pieces([number])[0]
    )
    return found


def highlight(subject: Subject, given: TextInput) -> Highlight | None:
    """The token furthest back on which the last prediction still depends, by the gradient of the last layer there."""
    if max(len(given.text), len(given.other or "")) > LONGEST:
        return None
    trace = traced(subject, StepsRequest(model=subject.name, text=given.text, other=given.other))
    predicts = trace.reading.passes[-1].queries
    tokens = trace.reading.sides[predicts]
    layers = [one for one in recurrences(subject.model) if side_of(trace.reading, one) == predicts and not one.back]
    if not layers:
        return None
    step = len(tokens) - 1
    with subject.lock:
        norms = gradient_norms(subject.model, trace.reading, step).norms[layers[-1].tap("hidden")][:step]
    if not len(norms) or not bool(norms.isfinite().all() & norms.any()):
        return None
    first = int((norms >= FELT * norms.max()).int().argmax())
    part = float(norms[first] / norms.max())
    why = (
        f"Because the last prediction depends on tokens as far back as {quoted(tokens[first].piece)}, {step - first} "
        f"steps before: the gradient there is {part:.2f} of its largest."
    )
    return Highlight(step - first, why)


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    settings = input_of(state)
    request = subjects.parse_request(StepsRequest, json.dumps(settings).encode())
    reading = traced(subject, request).reading
    steps = len(reading.sides[reading.passes[-1].queries])
    last = range(max(0, steps - FILE_STEPS), steps)
    return [
        Call("recurrent", "layers", settings),
        *(Call("recurrent", "layer", {**settings, "layer": each.name}) for each in recurrences(subject.model)),
        *(Call("recurrent", "gradient", {**settings, "step": step}) for step in last),
    ]


CALLS = {
    "layers": (StepsRequest, layers), "layer": (LayerRequest, layer), "gradient": (GradientRequest, gradient),
    "opening": on_text(highlight, EXAMPLES),
}  # fmt: skip
