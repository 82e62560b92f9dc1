"""The stack of an exchangeable toolkit, as a lecture draws it (Texar; Hu et al., 2019), with the parts of each box."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from heedful import __all__ as exported
from heedful.catalogue.parts import Part, parts
from heedful.runs.recipe import shipped, templates


@dataclass(frozen=True)
class Box:
    """A box of the stack: its name there, what it is here, and which parts are in it."""

    name: str
    here: str
    kinds: tuple[str, ...] = ()  # of parts; none: the box holds no parts that a recipe swaps
    tasks: tuple[str, ...] = ()  # only parts that one of these uses
    words: str = ""  # only parts whose name, text or keys have one of these; a regular expression
    without: str = ""  # and none of these

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts in it, from the code as it is now."""
        return tuple(part for part in parts() if part.kind in self.kinds and self._holds(part))

    def _holds(self, part: Part) -> bool:
        text = " ".join((part.name, part.about, *part.keys, *part.tasks))
        return (
            (not self.tasks or any(task in self.tasks for task in part.tasks))
            and (not self.words or re.search(self.words, text, re.IGNORECASE) is not None)
            and (not self.without or re.search(self.without, text, re.IGNORECASE) is None)
        )


@dataclass(frozen=True)
class Row:
    """A layer of the stack: groups of boxes beside each other."""

    groups: tuple[tuple[str, tuple[Box, ...]], ...]  # the name of a group, empty where it has none

    @property
    def boxes(self) -> Iterator[Box]:
        """All its boxes."""
        return (box for _, boxes in self.groups for box in boxes)


REWARD = r"reward|reinforce|self.?critical|policy|hard attention|minimum risk|glimpse_loss"
RIVAL = r"adversarial|discriminat|generator"
REGULAR = r"regulariz|weight_decay|label_smoothing|dropout|\bKL\b|entropy of the policy|coverage"
OF_STEPS = r"train\.(schedule|clip|accumulate|average)"

ARCHITECTURES = (
    Box("Encoder", "what reads the input", ("encoder", "encoder_decoder")),
    Box("Decoder", "what writes token by token", ("decoder", "encoder_decoder")),
    Box("Embedder", "tokens, patches and positions as vectors", ("embedder", "positions")),
    Box("Classifier", "what predicts classes, tags or numbers", ("classifier",)),
    Box("Memory", "what is stored and looked up", ("memory",)),
    Box("Connector", "from the encoder's state to the decoder's", ("connector",)),
    Box("Policy", "probabilities of actions", ("policy",)),
    Box("QNet", "values of actions", ("q_network",)),
    Box("Attention", "scores, weights and spans", ("attention",)),
    Box("Layers", "what all of them are made of", ("layer", "activation")),
)
LOSSES = (
    Box("(Seq) MaxLikelihood", "cross-entropy of tokens, squared error", ("loss",), without=f"{REWARD}|{RIVAL}"),
    Box("Adversarial", "a discriminator against a generator", ("loss",), words=RIVAL),
    Box("Rewards", "what samples earn", ("loss",), words=REWARD),
    Box("RL-related", "gradients of expected rewards", ("loss", "agent"), words=REWARD),
    Box("Regularize", "what keeps weights and outputs small", ("regularizer", "loss"), words=REGULAR),
)
DATA = (
    Box("MonoText", "single texts", ("data",), ("language_model", "pretraining", "permutation_lm")),
    Box("PairedText", "a source and a target", ("data",), ("translation",)),
    Box("Dialog", "utterances, turn by turn", ("data",), words="dialog"),
    Box("Numerical", "numbers to predict or to read", ("data",), words=r"\bregression\b|numeric|tabular"),
    Box("Multi-field/type", "rows with columns", ("data",), words="column|per line|field|tabular"),
    Box("Parallel", "texts that belong together, line by line", ("data",), words="parallel"),
    Box("Tokenizers", "how texts become tokens", ("tokenizer",)),
)
TRAINER = (
    Box("Executor", "the loop, its steps and its settings", ("trainer",), without=r"train\.clip"),
    Box("Optimizer", "how gradients change weights", ("optimizer",)),
    Box("Seq/Episodic RL Agent", "what learns from rewards", ("agent", "loss"), words=f"agent|episode|{REWARD}"),
    Box("lr decay / grad clip / ...", "schedules, and limits", ("schedule", "trainer"), words=OF_STEPS),
)
STACK = (
    Row((("", (Box("Applications", "tasks: `task.kind`, one folder each", ("application",)),)),)),
    Row(
        (
            ("", (Box("Library APIs", "`import heedful`: what the package exports"),)),
            ("", (Box("Model templates + Config files", "shipped recipes, and templates of `heedful init`"),)),
        )
    ),
    Row(
        (
            ("", (Box("Training", "`heedful train RECIPE`, `heedful.train`"),)),
            ("", (Box("Evaluation", "`heedful eval RUN`, `Predictor.evaluate`; its scores", ("metric",)),)),
            ("", (Box("Prediction", "`heedful predict RUN`, `heedful.load`: a predictor for each task"),)),
        )
    ),
    Row(
        (
            ("Models: Architectures", ARCHITECTURES),
            ("Models: Losses", LOSSES),
            ("Data", DATA),
            ("Trainer", TRAINER),
        )
    ),
)


def boxes() -> Iterator[Box]:
    """All boxes, from top to bottom."""
    return (box for row in STACK for box in row.boxes)


@cache
def names_in(box: str) -> tuple[str, ...]:
    """What is in a box that holds no parts: exported names, or files."""
    if box == "Library APIs":
        return tuple(name for name in exported if not name.startswith("_"))
    if box == "Model templates + Config files":
        return (*shipped(), *(f"heedful init {name}" for name in templates()))
    return ()


def record(box: Box) -> dict[str, Any]:
    """A box as JSON, with the names of its parts."""
    return {"box": box.name, "here": box.here, "parts": [part.name for part in box.parts], "names": names_in(box.name)}
