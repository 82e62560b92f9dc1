"""The library calls behind the golden files: the only file here that names modules and predictors."""

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
def trained_kinds() -> set[tuple[str, str]]:
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
    """The output of the command line."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with patch.object(sys, "argv", ["heedful", *map(str, words)]), redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as left:
            code = left.code
    assert code in (0, None), f"heedful {words}: {code}\n{err.getvalue()}"
    return out.getvalue()


def show_recipe(name: str, folder: Path) -> str:
    """What `heedful show` prints of a recipe, or of a template as `heedful init` writes it."""
    if not name.startswith("templates/"):
        return command("show", name)
    template = name.removeprefix("templates/")
    command("init", template, folder / f"{template}.yaml")
    return command("show", folder / f"{template}.yaml")


def ledger(source: Path, folder: Path) -> dict[str, list[str]]:
    """The ledger of converting a published folder to ours, and of the conversion back.

    The numbers of these folders are exact, so that hashes of tensors are the same on every machine.
    """
    ours, theirs = folder / "ours", folder / "theirs"
    there = command("convert", source, ours, "--to", "heedful", "--ledger")
    back = command("convert", ours, theirs, "--to", "hf", "--ledger")
    written = [
        f"{name}  {'x'.join(map(str, tensor.shape))}  {hashlib.sha256(tensor.tobytes()).hexdigest()}"
        for name, tensor in load_file(theirs / "model.safetensors").items()
    ]
    lines_of = {"there": there.splitlines(), "back": back.splitlines(), "written": written}
    return {name: sorted(lines) for name, lines in lines_of.items()}


# ------------------------------------------------------------------ the explorer
def packet(run: Path, view: str, call: str, question: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header and the arrays of a view's answer about a run."""
    words, arrays = unpack(Explorer([run]).answer(view, call, question))
    if view == "source":  # the code may change: only the sizes of the model's own file are compared
        first = words["files"][0]
        return {"letters": sorted([letter, sizes] for letter, _, sizes in first["letters"])}, {}
    return words, arrays


# ------------------------------------------------------------------ predictions
WORDS = ("seven two", "nine four one", "three")
TEXTS = ("the red cat sees a small ball .", "a big dog takes the old stone .")


def predictions(predictor: Any, task: str, kind: str) -> dict[str, Any]:
    """The predictions of a loaded model for fixed inputs."""
    found = PREDICTED.get(f"{task}-{kind}") or PREDICTED[task]
    plain: dict[str, Any] = json.loads(json.dumps(found(predictor), default=_to_lists))
    return plain


def _translate(translator: Any) -> dict[str, Any]:
    def records(found: Sequence[Sequence[Any]]) -> list[list[dict[str, Any]]]:
        return [
            [{"text": one.text, "ids": one.ids, "score": one.score, "log": one.log_probability} for one in each]
            for each in found
        ]

    beams = translator.search(WORDS, beams=3, top=2)
    alignment = translator.align(WORDS[0], beams[0][0])
    return {
        "greedy": records(translator.search(WORDS, beams=1)),
        "beams": records(beams),
        "sampled": records(translator.sample(WORDS, temperature=0.9, top_k=8, seed=3)),
        "alignment": {"source": alignment.source, "target": alignment.target, "weights": alignment.weights},
    }


def _reply(model: Any) -> dict[str, Any]:
    histories = [["one cat", "two birds", "three"], [("a", "four dogs"), ("a", "five"), ("b", "six cats")], ["seven"]]

    def records(found: Sequence[Sequence[Any]]) -> list[list[dict[str, Any]]]:
        return [
            [{"text": one.text, "ids": one.ids, "score": one.score, "log": one.log_probability} for one in each]
            for each in found
        ]

    encoded = model.histories(histories)
    return {
        "greedy": records(model.search(encoded, beams=1)),
        "beams": records(model.search(encoded, beams=3, top=2)),
        "sampled": [one.ids for one in model.sample(histories, temperature=0.9, seed=3)],
    }


def _generate(generator: Any) -> dict[str, Any]:
    def records(prompts: Sequence[str] = TEXTS, length: int = 24, **settings: Any) -> list[dict[str, Any]]:
        return [
            {"ids": one.ids, "added": one.completion, "log": one.log_probability}
            for one in generator.generate(list(prompts), length=length, **settings)
        ]

    return {
        "greedy": records(temperature=0),
        "beams": records(["the red"], 8, beams=3, samples=2),
        "sampled": records(temperature=0.9, top_k=12, seed=5),
        "loss": generator.loss(TEXTS[0]),
    }


def _bidirectional(encoder: Any) -> dict[str, Any]:
    return {"layers": encoder.layers(list(TEXTS)), "loss": encoder.loss(TEXTS[0])}


def _encode(encoder: Any) -> dict[str, Any]:
    filled = encoder.fill("the red [MASK] sees a [MASK] ball .", top=3)
    return {
        "vectors": encoder.embed(list(TEXTS)),
        "first": encoder.vectors([TEXTS[0]])[0].values,
        "guesses": [[{"word": one.word, "p": one.probability} for one in masked] for masked in filled.predictions],
        "fillings": [{"words": one.words, "log": [one.independent, one.forward, one.backward]} for one in filled.joint],
        "follows": encoder.follows(*TEXTS) if encoder.model.config.pairs else None,
    }


def _classify(classifier: Any) -> dict[str, Any]:
    return {"texts": [{"label": one.label, "p": one.probabilities} for one in classifier.classify(list(TEXTS))]}


def _regress(regressor: Any) -> dict[str, Any]:
    return {"numbers": [one.value for one in regressor.predict([TEXTS, TEXTS[::-1], (TEXTS[0], TEXTS[0])])]}


def _label(classifier: Any) -> dict[str, Any]:
    return {"texts": [{"labels": list(one.labels), "p": one.probabilities} for one in classifier.predict(list(TEXTS))]}


def _choose(answerer: Any) -> dict[str, Any]:
    one = answerer.choose(TEXTS[0], ["the cat is red .", "the dog is big .", "a stone is old ."])
    return {"choice": one.choice, "number": one.index, "p": one.probabilities}


def _tag(tagger: Any) -> dict[str, Any]:
    return {
        "texts": [
            {
                "words": one.words, "tags": one.tags, "p": one.probabilities,
                "entities": [[each.kind, each.text, each.start, each.end] for each in one.entities],
            }
            for one in tagger.tag(list(TEXTS))
        ]
    }  # fmt: skip


def _answer(answerer: Any) -> dict[str, Any]:
    asked = [("what does the cat see ?", TEXTS[0]), ("who takes the stone ?", TEXTS[1])]
    found = answerer.answer(asked, top=2)
    return {
        "answers": [[{"text": one.text, "at": [one.start, one.end], "p": one.probability} for one in e] for e in found]
    }


def _classify_trees(classifier: Any) -> dict[str, Any]:
    found = classifier.classify(["(1 (1 not) (1 (1 very) (1 bad)))", "(1 (1 the) (1 good))"])
    return {"trees": [{"label": one.label, "nodes": one.nodes, "p": one.probabilities} for one in found]}


def _reconstruct(autoencoder: Any) -> dict[str, Any]:
    images = (np.arange(72).reshape(2, 1, 6, 6) % 7 / 7).astype(np.float32)
    return {
        "codes": autoencoder.encode(images),
        "images": autoencoder.reconstruct(images),
        "noisy": autoencoder.noisy(images, seed=2),
        "walk": autoencoder.walk(images[:1], images[1:], 3),
    }


def _classify_images(classifier: Any) -> dict[str, Any]:
    images = (np.arange(108).reshape(3, 6, 6) % 7 * 36).astype(np.uint8)
    return {
        "classes": [one.to_dict() for one in classifier.predict(list(images))],
        "features": classifier.features(list(images)),
    }


def _play(agent: Any) -> dict[str, Any]:
    size = len(agent.environment.observations)
    seen = np.eye(size, dtype=np.float32)
    return {
        "actions": [{"action": one.name, "scores": one.scores} for one in agent.predict(list(seen))],
        "episodes": [
            {"return": one.total, "ending": one.ending, "actions": one.actions, "last": one.scores[-1]}
            for one in agent.play(2, seed=5)
        ],
    }


def _describe(describer: Any) -> dict[str, Any]:
    images = [(np.arange(768).reshape(3, 16, 16) % (7 + n) * 30).astype(np.uint8) for n in range(2)]
    boxes = [[[1, 2, 9, 8], [6, 7, 16, 16]], [[0, 0, 8, 8]]]
    return {
        "greedy": [one.to_dict() for one in describer.describe(images, boxes, beams=1)],
        "beams": [one.text for one in describer.describe(images, boxes, beams=3)],
        "given": [one.text for one in describer.describe(images, boxes, [["red circle", "cross"], ["square"]])],
    }


def _answer_stories(answerer: Any) -> dict[str, Any]:
    story = ["Mary moved to the garden.", "Mary took the milk there.", "John went to the office."]
    asked = [(story, "Where is the milk?"), (" ".join(story * 3), "Where is John?")]
    return {"answers": [one.to_dict() for one in answerer.predict(asked)]}


def _caption(captioner: Any) -> dict[str, Any]:
    images = (np.arange(2 * 3 * 16 * 16).reshape(2, 3, 16, 16) % 11 * 23).astype(np.uint8)
    found = captioner.search(list(images), beams=3, top=2)
    sampled = captioner.sample(list(images), seed=3)
    return {
        "beams": [[{"text": one.text, "ids": one.ids, "log": one.log_probability} for one in each] for each in found],
        "sampled": [one.ids for one in sampled],
        "maps": found[0][0].maps,
    }


def _predict_column(predictor: Any) -> dict[str, Any]:
    pixels = np.arange(36, dtype=np.uint8).reshape(6, 6)
    common = {"size": [1, -2], "photo": pixels}
    rows = [
        {"text": TEXTS[0], "weight": 2.5, "place": "hill", **common},
        {"text": TEXTS[1], "weight": None, "place": "nowhere", **common},
    ]
    return {"classes": [one.probabilities for one in predictor.predict(rows)]}


def _interpolate(autoencoder: Any) -> dict[str, Any]:
    def plain(sentences: Any) -> list[dict[str, Any]]:
        return [{"text": one.text, "log": one.log_probability} for one in sentences]

    return {
        "codes": autoencoder.encode(list(TEXTS)),
        "between": plain(autoencoder.interpolate(*TEXTS, steps=4)),
        "sampled": plain(autoencoder.sample(3, seed=2, beams=3)),
    }


def _transfer(model: Any) -> dict[str, Any]:
    texts = ["the old king will sell a boat", "yon cat some bell find hath", "a stone"]
    return {
        "texts": [[one.to_dict() for one in model.transfer(texts, style)] for style in model.styles],
        "styles": [one.to_dict() for one in model.classify(texts)],
    }


PREDICTED: dict[str, Callable[[Any], dict[str, Any]]] = {
    "translation": _translate,
    "dialogue": _reply,
    "language_model": _generate,
    "language_model-elmo": _bidirectional,
    "pretraining": _encode,
    "permutation_lm": _encode,
    "classification": _classify,
    "text_classification": _classify,
    "regression": _regress,
    "multi_label": _label,
    "multiple_choice": _choose,
    "tagging": _tag,
    "style_transfer": _transfer,
    "answering": _answer,
    "tree_classification": _classify_trees,
    "text_autoencoding": _interpolate,
    "story_answering": _answer_stories,
    "reconstruction": _reconstruct,
    "tabular": _predict_column,
    "image_classification": _classify_images,
    "control": _play,
    "paragraphs": _describe,
    "captioning": _caption,
}


def _to_lists(value: Any) -> Any:
    """An array or a tensor as lists; float32 numbers are written with all their digits."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().tolist()
    assert isinstance(value, np.ndarray | np.generic), type(value)
    return value.tolist()
