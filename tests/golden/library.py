"""What the golden files are of, as the library gives it: the one place here that names its modules and predictors."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors.numpy import load_file

from heedful.cli import app as cli
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer
from heedful.explore.views import VIEWS
from heedful.models import kinds_of
from heedful.runs.recipe import RECIPES, shipped
from heedful.tasks import TASKS

HERE = Path(__file__).parent
RUNS, SHOWN, PUBLISHED, LEDGERS, PACKETS = (
    HERE / name for name in ("runs", "recipes", "published", "ledgers", "packets")
)


# ------------------------------------------------------------------ what there is
def trained() -> set[tuple[str, str]]:
    """Every task with every kind of model that it trains."""
    return {(task, kind) for task, found in TASKS.items() for kind in kinds_of(*found.roles)}


def recipes() -> set[str]:
    """The name of every recipe that is shipped, and of every template, as `templates/NAME`."""
    return {*shipped(), *(f"templates/{file.stem}" for file in (RECIPES / "templates").glob("*.yaml"))}


def views() -> set[str]:
    """Every view of the explorer."""
    return set(VIEWS)


# ------------------------------------------------------------------ the command line
def command(*words: object) -> str:
    """What the command line prints."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with patch.object(sys, "argv", ["heedful", *map(str, words)]), redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as left:
            code = left.code
    assert code in (0, None), f"heedful {words}: {code}\n{err.getvalue()}"
    return out.getvalue()


def shown(name: str, folder: Path) -> str:
    """What `heedful show` prints of a recipe, or of a template as `heedful init` writes it."""
    if not name.startswith("templates/"):
        return command("show", name)
    template = name.removeprefix("templates/")
    command("init", template, folder / f"{template}.yaml")
    return command("show", folder / f"{template}.yaml")


def ledger(source: Path, folder: Path) -> dict[str, list[str]]:
    """What became of each tensor of a published folder on the way to ours, and of ours on the way back.

    The numbers of these folders are exact, so that hashes of tensors are the same on every machine.
    """
    ours, theirs = folder / "ours", folder / "theirs"
    there = command("convert", source, ours, "--to", "heedful", "--ledger")
    back = command("convert", ours, theirs, "--to", "hf", "--ledger")
    written = [
        f"{name}  {'x'.join(map(str, tensor.shape))}  {hashlib.sha256(tensor.tobytes()).hexdigest()}"
        for name, tensor in load_file(theirs / "model.safetensors").items()
    ]
    told = {"there": there.splitlines(), "back": back.splitlines(), "written": written}
    return {name: sorted(lines) for name, lines in told.items()}


# ------------------------------------------------------------------ the explorer
def packet(run: Path, view: str, call: str, question: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The words and the arrays by which a view answers a question about a run."""
    words, arrays = unpack(Explorer([run]).answer(view, call, question))
    if view == "source":  # the code itself may be written otherwise: what is told is the sizes of the model's own file
        first = words["files"][0]
        return {"letters": sorted([letter, sizes] for letter, _, sizes in first["letters"])}, {}
    return words, arrays


# ------------------------------------------------------------------ predictions
WORDS = ("seven two", "nine four one", "three")
TEXTS = ("the red cat sees a small ball .", "a big dog takes the old stone .")


def predictions(predictor: Any, task: str, kind: str) -> dict[str, Any]:
    """What a loaded model says about fixed inputs."""
    found = PREDICTED.get(f"{task}-{kind}") or PREDICTED[task]
    plain: dict[str, Any] = json.loads(json.dumps(found(predictor), default=_plain))
    return plain


def _translated(translator: Any) -> dict[str, Any]:
    def told(found: Sequence[Sequence[Any]]) -> list[list[dict[str, Any]]]:
        return [
            [{"text": one.text, "ids": one.ids, "score": one.score, "log": one.log_probability} for one in each]
            for each in found
        ]

    beams = translator.search(WORDS, beams=3, top=2)
    looked = translator.align(WORDS[0], beams[0][0])
    return {
        "greedy": told(translator.search(WORDS, beams=1)),
        "beams": told(beams),
        "sampled": told(translator.sample(WORDS, temperature=0.9, top_k=8, seed=3)),
        "alignment": {"source": looked.source, "target": looked.target, "weights": looked.weights},
    }


def _written(writer: Any) -> dict[str, Any]:
    def told(prompts: Sequence[str] = TEXTS, length: int = 24, **settings: Any) -> list[dict[str, Any]]:
        return [
            {"ids": one.ids, "added": one.completion, "log": one.log_probability}
            for one in writer.generate(list(prompts), length=length, **settings)
        ]

    return {
        "greedy": told(temperature=0),
        "beams": told(["the red"], 8, beams=3, samples=2),
        "sampled": told(temperature=0.9, top_k=12, seed=5),
        "loss": writer.loss(TEXTS[0]),
    }


def _layers(reader: Any) -> dict[str, Any]:
    return {"layers": reader.layers(list(TEXTS)), "loss": reader.loss(TEXTS[0])}


def _read(reader: Any) -> dict[str, Any]:
    filled = reader.fill("the red [MASK] sees a [MASK] ball .", top=3)
    return {
        "vectors": reader.embed(list(TEXTS)),
        "first": reader.vectors([TEXTS[0]])[0].values,
        "guesses": [[{"word": one.word, "p": one.probability} for one in gap] for gap in filled.predictions],
        "fillings": [{"words": one.words, "log": [one.independent, one.forward, one.backward]} for one in filled.joint],
        "follows": reader.follows(*TEXTS) if reader.model.config.next_sentence else None,
    }


def _classified(classifier: Any) -> dict[str, Any]:
    return {"texts": [{"label": one.label, "p": one.probabilities} for one in classifier.classify(list(TEXTS))]}


def _rated(regressor: Any) -> dict[str, Any]:
    return {"numbers": [one.value for one in regressor.predict([TEXTS, TEXTS[::-1], (TEXTS[0], TEXTS[0])])]}


def _chosen(answerer: Any) -> dict[str, Any]:
    one = answerer.choose(TEXTS[0], ["the cat is red .", "the dog is big .", "a stone is old ."])
    return {"choice": one.choice, "number": one.index, "p": one.probabilities}


def _tagged(marker: Any) -> dict[str, Any]:
    return {
        "texts": [
            {
                "words": one.words, "tags": one.tags, "p": one.probabilities,
                "entities": [[each.kind, each.text, each.start, each.end] for each in one.entities],
            }
            for one in marker.tag(list(TEXTS))
        ]
    }  # fmt: skip


def _answered(answerer: Any) -> dict[str, Any]:
    asked = [("what does the cat see ?", TEXTS[0]), ("who takes the stone ?", TEXTS[1])]
    found = answerer.answer(asked, top=2)
    return {
        "answers": [[{"text": one.text, "at": [one.start, one.end], "p": one.probability} for one in e] for e in found]
    }


def _judged(judge: Any) -> dict[str, Any]:
    found = judge.classify(["(1 (1 not) (1 (1 very) (1 bad)))", "(1 (1 the) (1 good))"])
    return {"trees": [{"label": one.label, "nodes": one.nodes, "p": one.probabilities} for one in found]}


def _painted(autoencoder: Any) -> dict[str, Any]:
    images = (np.arange(72).reshape(2, 1, 6, 6) % 7 / 7).astype(np.float32)
    return {
        "codes": autoencoder.encode(images),
        "images": autoencoder.reconstruct(images),
        "noisy": autoencoder.noisy(images, seed=2),
        "walk": autoencoder.walk(images[:1], images[1:], 3),
    }


PREDICTED: dict[str, Callable[[Any], dict[str, Any]]] = {
    "translation": _translated,
    "language_model": _written,
    "language_model-elmo": _layers,
    "pretraining": _read,
    "classification": _classified,
    "text_classification": _classified,
    "regression": _rated,
    "multiple_choice": _chosen,
    "tagging": _tagged,
    "answering": _answered,
    "tree_classification": _judged,
    "reconstruction": _painted,
}


def _plain(value: Any) -> Any:
    """An array or a tensor as lists; float32 numbers are written with all their digits."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().tolist()
    assert isinstance(value, np.ndarray | np.generic), type(value)
    return value.tolist()
