"""The whole model as a diagram: its parts in the order of the data, with widths, parameters and the views of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from heedful.errors import UserError
from heedful.explore import inspect
from heedful.explore.architecture import Part, architecture, join
from heedful.explore.explanations import explanation
from heedful.explore.inspect import WEIGHTS, attention_taps
from heedful.explore.packets import pack
from heedful.explore.predictions import prediction_of, predicts
from heedful.explore.views import Call, InputRequest, ModelRequest, find, input_of
from heedful.explore.views.heads import looks_of
from heedful.models.roles import Role

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "The model"
ABOUT = "What the model is made of: its input at the bottom, its output at the top."
ROWS = 14  # of the diagram, until the reader unfolds more
FEW = 3  # parts of a model that are all unfolded


class Work(NamedTuple):
    """What models of a role do: a sentence, their input, and their output."""

    does: str
    reads: str
    writes: str


CLASSES = Work("It reads a text and says which class it belongs to.", "a text", "a class")
AGENT = Work("It looks at the state of its world and chooses an action.", "an observation", "an action")
WORKS: dict[Role, Work] = {
    "encoder": Work(
        "It reads a text and gives a vector for each token, to compare texts by or to train a task on.",
        "a text",
        "a vector for each token",
    ),
    "causal": Work("It reads a text and predicts what comes next.", "a text", "the next token"),
    "bidirectional": Work(
        "It predicts each token from the left and from the right.", "a text", "the token after each, and before each"
    ),
    "seq2seq": Work("It reads a source and writes a target, token by token.", "a source", "the next token"),
    "hierarchical": Work("It reads the turns of a dialogue and writes a reply.", "a dialogue", "the next token"),
    "classifier": CLASSES,
    "regressor": Work("It reads a text and gives a number.", "a text", "a number"),
    "multi_label": Work("It reads a text and says which classes it belongs to.", "a text", "any of the classes"),
    "multiple_choice": Work("It scores the choices for a question.", "a question with choices", "a score for each"),
    "tagger": Work("It gives each word of a text a tag.", "a text", "a tag for each word"),
    "answerer": Work("It finds the answer to a question in a passage.", "a question and a passage", "start and end"),
    "word_classifier": CLASSES,
    "style_transfer": Work("It writes a text again in another style.", "a text and a style", "the next word"),
    "story_answerer": Work("It answers questions about a story.", "a story and a question", "an answer"),
    "tree_classifier": Work("It gives each node of a tree a class.", "a tree", "a class for each node"),
    "tabular": Work("It predicts one column of a table from the others.", "a row of a table", "a class or a number"),
    "autoencoder": Work("It squeezes an image into a code and draws it again.", "an image", "the image again"),
    "text_autoencoder": Work("It squeezes a sentence into a code and writes it again.", "a sentence", "the next token"),
    "image_encoder": Work("It looks at an image and says which class it belongs to.", "an image", "a class"),
    "glimpse_classifier": Work("It looks at a few places of an image and names its class.", "an image", "a class"),
    "captioner": Work("It looks at an image and describes it, word by word.", "an image", "the next word"),
    "paragraph_captioner": Work("It describes the regions of an image.", "an image with regions", "the next word"),
    "policy": AGENT,
    "q_network": AGENT._replace(writes="the value of each action"),
}
OUTPUTS = (
    "next", "fill", "classifier", "image", "caption", "reconstruct", "hops", "glimpses", "paragraph", "dialogue",
    "agent", "beam", "map", "ablation",
)  # fmt: skip

SEEN = {  # what views answer about the input and the output of models that read no text
    "image": "classes", "glimpses": "path", "caption": "captions", "paragraph": "description", "hops": "answer",
    "reconstruct": "rows",
}  # fmt: skip


@dataclass(frozen=True)
class Diagram:
    """The parts of a model with their number of parameters, and its text for the page, cached by its subject."""

    root: Part
    size: int = 100_000


def fits(subject: Subject) -> bool:
    return subject.broken is None


def diagram(subject: Subject) -> Part:
    """The parts of a subject, found once."""
    with subject.lock:  # hooks watch the model
        return subject.cached("home", lambda: Diagram(architecture(subject.model))).root


def model(subject: Subject, request: ModelRequest) -> bytes:
    """The parts of the model, nested, with what explains each kind of them."""
    root = diagram(subject)
    work = WORKS[subject.model.config.role]
    views = set(subject.views)
    looks = {name.removesuffix(f".{WEIGHTS}"): name for name in attention_taps(subject.model)}

    def described(part: Part, around: str) -> dict[str, Any]:
        path = path_of(part, around)
        about = explanation(part.kind)
        look = looks.get(path, "") if subject.attentions else ""
        return {
            "name": part.name, "kind": part.kind, "width": part.shape[0] if part.shape else 0,
            "parameters": part.parameters, "heads": part.heads, "numbers": part.numbers, "look": look,
            "matrices": part.matrices, "parts": [described(one, path) for one in part.parts],
            "views": [
                name
                for name in (("alignment",) if "cross" in part.name else ()) + about.views
                if name in views
            ],
        }  # fmt: skip

    kinds = {kind: explanation(kind)[:3] for kind in sorted(set(kinds_in(root)))}
    return pack(
        {
            "parts": [described(part, "") for part in root.parts], "matrices": root.matrices, "kind": root.kind,
            "parameters": root.parameters, "explained": kinds, "open": opened(root), **work._asdict(),
            "seen": next(([name, call] for name, call in SEEN.items() if name in views), None),
            "outputs": [name for name in OUTPUTS if name in views],
        }
    )  # fmt: skip


def kinds_in(part: Part) -> Iterator[str]:
    """The classes of a part and of all in it."""
    yield part.kind
    for one in part.parts:
        yield from kinds_in(one)


def opened(root: Part) -> list[str]:
    """The parts that are unfolded at first: those around rows of blocks, and the blocks, as far as there is room."""
    rows, found = len(root.parts), list[str]()
    waiting = [(part, "", len(root.parts) <= FEW) for part in root.parts]
    while waiting:
        part, around, alone = waiting.pop(0)
        if part.parts and (part.holds_heads or part.stacks or alone) and rows + len(part.parts) <= ROWS:
            rows += len(part.parts)
            found.append(path := path_of(part, around))
            waiting += [(one, path, len(part.parts) == 1) for one in part.parts]
    return found


def path_of(part: Part, around: str) -> str:
    """The path of a part, with * for the number of one of a row."""
    return join(join(around, part.name), "*" if part.numbers else "")


def kinds(subject: Subject, request: ModelRequest) -> bytes:
    """The kinds of attention of a model that can be changed, whatever it reads."""
    return pack({"looks": looks_of(subject.kinds)})


@torch.inference_mode()
def flow(subject: Subject, request: InputRequest) -> bytes:
    """The tokens that the model reads, and what it predicts."""
    predictor = subject.predictor
    if not inspect.reads_text(predictor):
        return pack({"sides": {}, "says": "", "answers": []})
    with subject.lock:
        reading = subject.trace(request).reading if subject.attentions else inspect.reading(predictor, request)
        found: dict[str, Any] = {
            "sides": {name: [token.to_json() for token in side] for name, side in reading.sides.items()},
            "says": "", "answers": [], "masked": None,
        }  # fmt: skip
        if predicts(predictor):
            try:
                made = prediction_of(predictor, request, reading)
                answers = [{"text": one.text, "chance": one.probability} for one in made.candidates()]
                found |= {"says": made.what, "answers": answers, "masked": made.masked}
            except UserError as error:  # such as a question without a passage
                found["says"] = error.message
    return pack(found)


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    found = [Call("home", "model", {"model": state["model"]})]
    if inspect.reads_text(subject.predictor):
        found.append(Call("home", "flow", input_of(state)))
    for name in [name for name in SEEN if name in subject.views][:1]:
        found += [one for one in find(name).calls(subject, state) if one.call == SEEN[name]]
    return found


CALLS = {"model": (ModelRequest, model), "kinds": (ModelRequest, kinds), "flow": (InputRequest, flow)}
