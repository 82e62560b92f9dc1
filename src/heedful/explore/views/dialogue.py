"""A dialogue and the reply of a model: its tokens, and what the model keeps of each earlier utterance.

U utterances, T tokens of the reply, N of the reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field

from heedful.data.dialogues.sources import Dialogue
from heedful.data.dialogues.trips import Trips
from heedful.data.formats.sources import Split
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.errors import UserError
from heedful.explore.head_settings import heads_of
from heedful.explore.once import OncePerModel
from heedful.explore.packets import not_finite, pack
from heedful.explore.samples import task_in
from heedful.explore.turns import candidates, kept_of_turns, layer_of_turns, left_out, scores, turns_read
from heedful.explore.views import LONGEST, Call, HeadedRequest, index_of, require_index
from heedful.explore.views.recurrent import GATES, SIGNED
from heedful.tasks.dialogue.predictor import DialogueModel

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Dialogue"
ABOUT = "A dialogue, the reply of a model, and what the model keeps of each earlier utterance."

SHOWN = 8  # dialogues to choose from
USUAL = 7  # utterances of a history that is easy to read
FIRST = 200  # dialogues among which they are chosen
MOST = 40  # utterances of a history
TOP = 5  # candidates for each token
SPLITS: tuple[Split, ...] = ("test", "valid")


class DialogueRequest(HeadedRequest):
    """A dialogue of the run's data by its number, or a history of the user's own, an utterance per line."""

    number: int | None = Field(None, ge=0, le=10_000_000)  # None: the first that is shown
    history: str | None = Field(None, max_length=LONGEST)


class Library:
    """The dialogues of a run's test or validation data; of a model without data, generated ones."""

    def __init__(self, subject: Subject) -> None:
        self.predictor: DialogueModel = subject.predictor
        self.task = task_in(subject.folder) if subject.is_run else None

    @cached_property
    def dialogues(self) -> list[Dialogue]:
        """The dialogues."""
        for split in SPLITS:
            try:
                if self.task is not None:
                    found: list[Dialogue] = self.task.read(split).dialogues
                    return found
            except UserError:
                continue
        return Trips(train=1, valid=1, test=SHOWN).read("test").dialogues

    @cached_property
    def order(self) -> list[int]:
        """The dialogues to choose from, of a readable length first; the model can read all of them."""
        sizes = [len(one.utterances) - 1 for one in self.dialogues[:FIRST]]
        places = sorted(range(len(sizes)), key=lambda place: abs(sizes[place] - USUAL))
        longest = self.predictor.context - 2  # bos and eos
        short = (
            place for place in places
            if max(map(len, self.predictor.tokenizer.ids(self.dialogues[place].utterances))) <= longest
        )  # fmt: skip
        return [place for place, _ in zip(short, range(SHOWN), strict=False)] or [0]


libraries = OncePerModel(Library)


def fits(subject: Subject) -> bool:
    return subject.broken is None and isinstance(subject.predictor, DialogueModel)


# ------------------------------------------------------------------ the answer
def reply(subject: Subject, request: DialogueRequest) -> bytes:
    """The reply and its tokens; and of each utterance how much is kept, attended to, and needed for the reply."""
    library = libraries.of(subject)
    predictor = library.predictor
    index = library.order[0] if request.number is None else request.number
    require_index("number", index, len(library.dialogues), "dialogue")
    known = library.dialogues[index] if request.history is None else None
    with subject.lock, torch.inference_mode():
        if known is not None:
            (history,) = predictor.histories([known.utterances[:-1]])
            texts, history = list(known.utterances[:-1]), history._replace(speakers=list(known.speakers))
        else:
            texts = [line.strip() for line in (request.history or "").splitlines() if line.strip()]
            require_short(texts)
            (history,) = predictor.histories([texts])
        require_short(texts)
        (best,) = predictor.search([history])[0]
        arrays = {f"reply {name}": values for name, values in candidates(predictor, history, best.ids, TOP).items()}
        arrays |= kept_of_turns(predictor, history, best.ids)
        shorter = [left_out(history, place) for place in range(len(texts))] if len(texts) > 1 else []
        others = [one[0] for one in predictor.search(shorter)]
        if shorter:
            arrays["without"] = scores(predictor, shorter, best.ids)  # (U, T)
        right = [] if known is None else [*predictor.tokenizer.ids([known.utterances[-1]])[0], TrainedTokenizer.eos]
        if right:
            arrays["reference"] = scores(predictor, [history], right)[0]  # (N,)
    if not all(bool(values.isfinite().all()) for values in arrays.values()):
        raise not_finite()
    pieces, layer, unread = (
        predictor.tokenizer.pieces,
        layer_of_turns(predictor),
        len(texts) - turns_read(predictor, history),
    )
    return pack(
        {
            "number": index,
            "own": known is None,
            "turns": texts,
            "speakers": history.speakers,
            "unread": unread,  # utterances at the beginning that do not fit the context
            "reply": best.text,
            "complete": best.complete,
            "pieces": pieces(best.ids),
            "candidates": [pieces(row) for row in arrays.pop("reply ids").tolist()],
            "replies": [one.text for one in others],  # without each utterance
            "right": None if known is None else known.utterances[-1],
            "right_pieces": pieces(right),
            "gates": [] if layer is None else [
                {"name": gate, "about": GATES[gate], "signed": gate in SIGNED} for gate in layer.gates
            ],
            "choices": [
                {"number": place, "text": library.dialogues[place].utterances[-2],
                 "turns": len(library.dialogues[place].utterances) - 1}
                for place in library.order
            ],
        },
        **{name: values.float() for name, values in arrays.items()},
    )  # fmt: skip


def require_short(texts: Sequence[str]) -> None:
    """Refuse a history of too many utterances."""
    if len(texts) > MOST:
        raise UserError(
            "this dialogue is too long to be shown", where="history", found=f"{len(texts):,} utterances",
            expected=f"at most {MOST}",
        )  # fmt: skip


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    """The dialogue of a state, and the others to choose from."""
    library = libraries.of(subject)
    model = {"model": subject.name, **heads_of(state)}
    asked: dict[str, Any] = dict(model)
    if state.get("number") is not None:
        asked["number"] = index_of(state, "number", len(library.dialogues))
    if state.get("history") is not None:
        asked["history"] = str(state["history"])
    return [Call("dialogue", "reply", one) for one in (asked, *({**model, "number": n} for n in library.order))]


CALLS = {"reply": (DialogueRequest, reply)}
