"""An XLNet in every task that takes an encoder: by `start.folder` or `model.kind` alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from golden.library import RUNS
from heedful.runs.recipe import load_recipe
from heedful.runs.train import train
from heedful.training.loop import Step

STARTED = RUNS / "permutation_lm-xlnet"
TASKS = ("classification-classifier", "regression-regressor", "multiple_choice-multiple_choice", "tagging-tagger",
         "answering-answerer")  # fmt: skip
SHORT = ["train.budget.steps=3", "train.evaluate_every=3", "train.save_every=3", "train.schedule.warmup=0"]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("how", ["start", "kind"])
def test_every_task_takes_it(task: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(RUNS / task / "data", tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    kind = task.partition("-")[2]
    changes = {
        "start": [f"start={{folder: {STARTED}}}", "tokenizer=null", "model.encoder=null"],
        "kind": ["tokenizer={kind: xlnet_unigram, vocab: 60}",
                 "model.encoder={kind: xlnet, width: 8, heads: 2, layers: 1, hidden: 16, context: 32}"],
    }[how]  # fmt: skip
    recipe = load_recipe(str(RUNS / task / "recipe.yaml"), [*SHORT, *changes])
    losses = [event.loss for event in train(recipe, tmp_path / "run") if isinstance(event, Step)]
    assert losses and all(torch.tensor(losses).isfinite())
    found: Any = heedful.load(tmp_path / "run")
    assert found.model.config.kind == kind and found.model.config.encoder.kind == "xlnet"


def test_text_gives_the_same_alone_and_among_others() -> None:
    encoder: Any = heedful.load(STARTED, device="cpu")
    texts = ["the red cat sees a ball .", "the dog .", "a bird likes the old leaf ."]
    together, alone = encoder.embed(texts), torch.cat([encoder.embed([text]) for text in texts])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5 * float(alone.abs().max()))
    tokens = encoder.vectors(texts[:1])[0]
    assert tokens.pieces[-2:] == ["<sep>", "<cls>"] and tokens.offsets[-2:] == [(0, 0), (0, 0)]
    assert tokens.offsets[-3][1] == len(texts[0]) and tokens.offsets[:-2] == sorted(tokens.offsets[:-2])


def test_masks_are_filled_by_the_query_stream() -> None:
    encoder: Any = heedful.load(STARTED, device="cpu")
    filled = encoder.fill("the red <mask> sees a <mask> ball .", top=3)
    assert len(filled.predictions) == 2 and filled.joint
    row = encoder.tokenizer.pair(encoder.tokenizer.encode_with_masks("the red <mask> sees"))[0]
    place = row.index(encoder.tokenizer.mask)
    ids, segments = torch.tensor([row]), torch.tensor([[0] * (len(row) - 1) + [2]])
    ranks = torch.zeros_like(ids)
    ranks[0, place] = 1
    with torch.no_grad():
        _, query = encoder.model.two_streams(ids, ranks, torch.tensor([[place]]), segments)
        logits = encoder.model.words(query[0])[0, : encoder.tokenizer.vocab]
    best = encoder.fill("the red <mask> sees", top=1).predictions[0][0]
    assert best.word == encoder.tokenizer.pieces([int(logits.argmax())])[0]
    assert best.probability == pytest.approx(float(logits.softmax(-1).max()), rel=1e-5)
