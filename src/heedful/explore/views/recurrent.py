"""Recurrent layers over time: their gates and states at every step, and the gradient that comes back to each.

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

from heedful.blocks.layouts import Whole
from heedful.blocks.recurrent import Layer
from heedful.blocks.taps import taps, watch
from heedful.errors import UserError
from heedful.explore import inspect, subjects
from heedful.explore.capabilities import Tags, part_of
from heedful.explore.inspect import Given, Pass, Reading, Token, Trace
from heedful.explore.packets import pack
from heedful.explore.views import Asked, Request

if TYPE_CHECKING:
    from heedful.explore.subjects import Explorer, Subject

TITLE = "Recurrent trace"
ABOUT = "Gates and states of a recurrent layer at each step, and the gradient back through time."

LONGEST = 2000  # characters of a text: each step is a column of the picture
NEAR = 60  # steps from the end that a file tells the gradient of
TAPS = "*.cell.*"
BACK = "back"  # names what reads a text from its end
GATES = {
    "forget": "what of the cell is kept, and not erased",
    "write": "what is written to the cell",
    "candidate": "what could be written",
    "reveal": "what of the cell is shown",
    "reset": "what of the state the candidate may see",
    "keep": "what of the state is kept",
    "cell": "the long memory",
    "hidden": "the state that the next step and the next layer see",
}
SIGNED = {"candidate", "cell", "hidden"}


class Read(Asked):
    """A text whose steps can be seen."""

    text: str = Field(max_length=LONGEST)
    other: str | None = Field(None, max_length=LONGEST)


class OneLayer(Read):
    """One recurrent layer, by its name."""

    layer: str = Field(max_length=200)


class Step(Read):
    """The step whose prediction the gradient is of; None: the last."""

    step: int | None = Field(None, ge=0, le=100_000)


@dataclass(frozen=True)
class Run:
    """A recurrent layer: its name, its taps in the order of its work, and whether it reads from the end."""

    name: str
    gates: tuple[str, ...]
    back: bool

    def tap(self, gate: str) -> str:
        return f"{self.name}.cell.{gate}"

    @property
    def title(self) -> str:
        """What people call it: its place in the model, with layers counted from one."""
        parts = [part for part in self.name.split(".") if part not in ("layers", "stack")]
        return " ".join(f"layer {int(part) + 1}" if part.isdecimal() else part for part in parts)


def runs(model: nn.Module) -> list[Run]:
    """The recurrent layers of a model, from the first to the last."""
    return [
        Run(name, tuple(gate for gate in GATES if gate in taps(module.cell)), BACK in name.split("."))
        for name, module in model.named_modules()
        if isinstance(module, Layer)
    ]


def fits(subject: Subject) -> bool:
    return subject.broken is None and inspect.reads(subject.predictor) and bool(runs(subject.model))


# ------------------------------------------------------------------ what is read
def traced(subject: Subject, asked: Read) -> Trace:
    """What passes the gates and states while the model reads a text."""
    for able, read in READERS:
        if able(subject):
            with subject.lock:
                return inspect.trace(subject.model, read(subject.predictor, asked), TAPS)
    return subject.trace(asked, TAPS)


def read_words(predictor: Any, given: Given) -> Reading:
    """A text by a model whose layers stand on an encoder, and that tags words; here every token gets a tag."""
    row, segments = inspect.pair_ids(predictor.tokenizer, given, predictor.context)

    def read() -> Tensor:
        ids, parts = (torch.tensor([each], device=predictor.device) for each in (row, segments))
        logits: Tensor = predictor.model(ids, parts, Whole(ids), torch.arange(len(row), device=predictor.device))
        return logits[None]  # (R, T, V)

    tokens = [Token(*each) for each in zip(predictor.tokenizer.pieces(row), row, segments, strict=True)]
    return Reading({"text": tokens}, (Pass("text", "text", read),))


def read_twice(predictor: Any, given: Given) -> Reading:
    """A text by a model that predicts each token from those before it, and from those after it."""
    sides = inspect.read_recurrent(predictor, given).sides
    ids = [token.id for token in sides["text"]]

    def read() -> Tensor:
        return torch.cat(predictor.model(torch.tensor([ids], device=predictor.device)))  # (R, T, V)

    return Reading(sides, (Pass("text", "text", read),))


# What is looked at here is not all that the other views look at: told by what a model has.
READERS: tuple[tuple[Callable[[Subject], bool], Callable[[Any, Given], Reading]], ...] = (
    (lambda subject: part_of(subject.model, "reader") is not None, read_words),
    (lambda subject: inspect.listens(subject.predictor), read_twice),
)


def side_of(reading: Reading, each: Run) -> str:
    """The side of a reading that a layer goes over."""
    return reading.passes[0 if each.name.startswith("encoder") else -1].asks


def in_order(each: Run, values: Tensor) -> Tensor:
    """Steps (T, ...) in the order of the tokens, whichever way the layer reads them; and back again."""
    return values.flip(0) if each.back else values


# ------------------------------------------------------------------ gates and states
def layers(explorer: Explorer, asked: Read) -> bytes:
    """The tokens, and the recurrent layers that read them."""
    subject = explorer.subject(asked.model)
    trace = traced(subject, asked)
    told = [
        {
            "name": each.name, "title": each.title, "side": side_of(trace.reading, each), "back": each.back,
            "units": trace.values[each.tap("hidden")].shape[1],
            "gates": [{"name": gate, "about": GATES[gate], "signed": gate in SIGNED} for gate in each.gates],
        }
        for each in runs(subject.model)
    ]  # fmt: skip
    tokens = {name: [token.piece for token in side] for name, side in trace.reading.sides.items()}
    return pack({"sides": tokens, "layers": told, "predicts": trace.reading.passes[-1].asks})


def layer(explorer: Explorer, asked: OneLayer) -> bytes:
    """Every gate and state of one layer, (T, H) each, as half floats, in the order of the tokens."""
    subject = explorer.subject(asked.model)
    each = run_in(subject.model, asked.layer)
    values = traced(subject, asked).values
    return pack({}, **{gate: in_order(each, values[each.tap(gate)]).to(torch.float16) for gate in each.gates})


def run_in(model: nn.Module, name: str) -> Run:
    """The layer of a name."""
    found = {each.name: each for each in runs(model)}
    if name not in found:
        raise UserError("this model has no such layer", where="layer", expected=", ".join(found))
    return found[name]


# ------------------------------------------------------------------ the gradient
def gradient(explorer: Explorer, asked: Step) -> bytes:
    """How much the loss of one prediction changes with the states at each step, for every layer: norms (T,).

    The loss is -log p of the token that the model holds likeliest there. Of an LSTM, `cell` is the same for the cell,
    and `kept` the mean over its units of the product of forget gates from the step after to the one that predicts.
    """
    subject = explorer.subject(asked.model)
    trace = traced(subject, asked)
    predicts = trace.reading.passes[-1].asks
    steps = len(trace.reading.sides[predicts])
    step = steps - 1 if asked.step is None else asked.step
    if step >= steps:
        raise UserError("there is no such step", where="step", found=str(step + 1), expected=f"1 to {steps}")
    with subject.lock:
        found = norms(subject.model, trace.reading, step)
    arrays = {}
    for number, each in enumerate(runs(subject.model)):
        for state in ("hidden", "cell"):
            if state in each.gates:
                arrays[f"{state}{number}"] = in_order(each, found.norms[each.tap(state)])
        if "forget" in each.gates:
            forget = trace.values[each.tap("forget")]
            last = len(forget) - 1
            ends = last if side_of(trace.reading, each) != predicts else last - step if each.back else step
            arrays[f"kept{number}"] = in_order(each, kept(forget, ends))
    likeliest = int(found.logits[0].argmax())
    return pack(
        {
            "step": step, "predicted": spelled(subject.predictor, likeliest),
            "probability": float(found.logits[0].double().softmax(-1)[likeliest]),
        },
        **arrays,
    )  # fmt: skip


@dataclass(frozen=True)
class Norms:
    """By tap, the norm of the loss's gradient at each step, (T,), in the order that the layer reads; and the logits."""

    norms: dict[str, Tensor]
    logits: Tensor  # (R, V) of the step that predicts


def norms(model: nn.Module, reading: Reading, step: int) -> Norms:
    """Run a reading with gradients, and go back from one of its predictions to all hidden states and cells."""
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
        # A model that reads both ways predicts in each of them; neither prediction knows of the other's layers.
        loss = -logits.log_softmax(-1).amax(-1).sum()
    every = [state for some in states.values() for state in some]
    found = iter(torch.autograd.grad(loss, every, allow_unused=True))
    sizes = {
        name: torch.stack([_size(next(found)) for _ in some]).cpu() for name, some in states.items()
    }  # fmt: skip
    return Norms(sizes, logits.detach().cpu())


def _size(gradient: Tensor | None) -> Tensor:
    """The norm of a gradient; none is zero."""
    return torch.zeros(()) if gradient is None else gradient.detach().float().norm()


def kept(forget: Tensor, end: int) -> Tensor:
    """What is left at step `end` of the cell of each step, (T,): a product of gates (T, H), as a mean over units."""
    between = forget[1 : end + 1].double().flip(0).cumprod(0).flip(0).mean(1)  # (end,)
    left = torch.zeros(len(forget))
    left[:end], left[end] = between.float(), 1.0
    return left


def spelled(predictor: Any, number: int) -> str:
    """A prediction as people read it: a tag or a token."""
    found: str = predictor.labels[number] if isinstance(predictor, Tags) else predictor.tokenizer.pieces([number])[0]
    return found


def wanted(explorer: Explorer, state: Mapping[str, Any]) -> Sequence[Request]:
    given = {name: state.get(name) for name in ("model", "text", "other")}
    asked = subjects.asked(Read, json.dumps(given).encode())
    subject = explorer.subject(asked.model)
    reading = traced(subject, asked).reading
    steps = len(reading.sides[reading.passes[-1].asks])
    return [
        Request("recurrent", "layers", given),
        *(Request("recurrent", "layer", {**given, "layer": each.name}) for each in runs(subject.model)),
        *(Request("recurrent", "gradient", {**given, "step": step}) for step in range(max(0, steps - NEAR), steps)),
    ]


CALLS = {"layers": (Read, layers), "layer": (OneLayer, layer), "gradient": (Step, gradient)}
