"""Long texts through the tasks: whole reviews and articles with a BigBird, and settings that do not fit."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.cli.train import memory_error
from heedful.data.tokenizers.wordpiece import NAMES, BertTokenizer
from heedful.errors import UserError
from heedful.hub.model_folder import write_model
from heedful.models import build
from heedful.models.bigbird.config import BigBirdConfig
from heedful.runs.recipe import check_recipe, load_recipe
from heedful.runs.train import Finished, Started, train
from heedful.tasks import task_of

CONTEXT = 600  # more than the rows for which a mask of T x T is made
WORDS = ("red", "blue", "cat", "dog", "ran", "sat", "the", "a", "who", "where", "in", "rome", "oslo", "?", ".", ",")
SMALL = [
    "train.budget={steps: 2}", "train.evaluate_every=2", "train.save_every=2", "train.log_every=1", "train.samples=1",
    "train.device=cpu", "train.schedule={kind: constant}", "train.batch_examples=4", "train.accumulate=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BigBird with random weights, and its tokenizer."""
    tokenizer = BertTokenizer.from_vocab([*NAMES, *WORDS], True, "here")
    sizes: dict[str, Any] = {"vocab": tokenizer.vocab, "width": 8, "heads": 2, "layers": 1, "hidden": 12, "block": 8}
    config = BigBirdConfig(**sizes, context=CONTEXT, random_blocks=1, seed=3)
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("start") / "bird"
    settings = json.dumps({"task": "pretraining", "model": config.model_dump()})
    weights = {name: value + 0.3 * torch.randn_like(value) for name, value in build(config).state_dict().items()}
    write_model(folder, settings, weights, {"tokenizer.json": tokenizer.json}, {})
    return folder


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Long texts of several lines in a CSV file, whose class is the last word; one has more than a context."""
    folder, rng = tmp_path_factory.mktemp("papers"), random.Random(0)
    for split, size in (("train", 8), ("valid", 4)):
        with (folder / f"{split}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["title", "body", "field"])
            for number in range(size):
                body = [rng.choice(WORDS[:8]) for _ in range(rng.randrange(520, 580))]
                body = body * 200 if number == 1 else body  # more than the usual limit of a field
                out.writerow([f"paper {number}", " ".join(body) + ',\n"' + ("red", "blue")[number % 2], number % 2])
    return folder


def classify(start: Path, papers: Path, *more: str) -> Any:
    files = f"root: {papers}, train: train.csv, valid: valid.csv, text: body, label: field"
    known = [f"start={{folder: {start}}}", f"data={{kind: csv, {files}}}"]
    return load_recipe("imdb-long", [*SMALL, *known, f"model.longest={CONTEXT}", *more])


# ------------------------------------------------------------------ classification
def test_whole_texts_of_a_table_are_classified(start: Path, papers: Path, tmp_path: Path) -> None:
    recipe = classify(start, papers)
    events = list(train(recipe, tmp_path / "run"))
    assert isinstance(events[-1], Finished)
    notes = next(event.notes for event in events if isinstance(event, Started))
    assert f"1 of 8 texts are longer than {CONTEXT} tokens, and are truncated" in notes
    predictor: Any = heedful.load(tmp_path / "run", "cpu")
    text = " ".join(["red cat"] * 290)
    whole, other = predictor.classify([text, text + " blue"])
    assert whole.cut == 0 and whole.probability != other.probability, "the last word of 583 is read"
    cut: Any = heedful.load(tmp_path / "run", "cpu")
    cut.context = 512
    short, same = cut.classify([text, text + " blue"])
    assert short.cut == 70 and short.probability == same.probability


def test_batches_of_whole_texts_are_padded_and_never_packed(start: Path, papers: Path, tmp_path: Path) -> None:
    task: Any = task_of(classify(start, papers).fill_in())
    encoded = task.encode(task.read("train"), heedful.load(start, "cpu").tokenizer)
    batch = task.batches(encoded, False, False).at(0)
    assert batch.ids.shape[0] == 4 and 520 < batch.ids.shape[1] <= CONTEXT
    with pytest.raises(UserError, match="cannot read packed batches"):
        list(train(classify(start, papers, "train.batching=packed"), tmp_path / "run"))


def test_texts_longer_than_the_context_of_the_start_are_refused(start: Path, papers: Path) -> None:
    recipe = classify(start, papers, "model.longest=4096")
    for refused in (recipe.fill_in, lambda: check_recipe(recipe)):
        with pytest.raises(UserError) as caught:
            refused()
        error = (caught.value.problems or (caught.value,))[0]
        assert (error.where, error.found) == ("model.longest", "4,096")
        assert error.expected == "at most 600, the context of the encoder in start.folder"
        assert "heedful convert SRC DST --context 4096" in str(error.todo)


def test_memory_error_of_a_fine_tuned_model_has_its_examples_and_rows(start: Path, papers: Path) -> None:
    error = memory_error(classify(start, papers).fill_in(), "none left")
    assert error.where == "train.batch_examples"
    assert error.found == "none left\nbatches of 4 examples, in rows of up to 600 tokens"
    one = memory_error(classify(start, papers, "train.batch_examples=1").fill_in(), "none left")
    assert str(one.todo).startswith("a batch is one row already")


# ------------------------------------------------------------------ answers
def test_whole_articles_are_answered_without_windows(start: Path, tmp_path: Path) -> None:
    rng, paragraphs = random.Random(1), []
    for number in range(6):
        context = " ".join(rng.choice(WORDS[:8]) for _ in range(80)) + " in rome ."
        answers = [{"text": "rome", "answer_start": context.index("rome")}]
        asked = {"id": str(number), "question": "where ?", "answers": answers}
        paragraphs.append({"context": context, "qas": [asked]})
    (tmp_path / "a.json").write_text(json.dumps({"data": [{"title": "x", "paragraphs": paragraphs}]}))
    known = [f"start={{folder: {start}}}", f"data.root={tmp_path}", "data.train=a.json", "data.valid=a.json"]
    for more, windows, passages in (([], 6, 6), (["data.paragraphs=null"], 6, 1), (["model.longest=128"], 6, 6)):
        task: Any = task_of(load_recipe("squad", [*SMALL, *known, *more]).fill_in())
        read = task.read("train")
        encoded = task.encode(read, heedful.load(start, "cpu").tokenizer)
        assert (len(encoded.firsts), len({one.passage for one in read.questions})) == (windows, passages)
        assert task.notes(encoded) == [] and encoded.dropped == 0
    cut: Any = task_of(load_recipe("squad", [*SMALL, *known, "data.paragraphs=null", "model.longest=128"]).fill_in())
    encoded = cut.encode(cut.read("train"), heedful.load(start, "cpu").tokenizer)
    assert len(encoded.firsts) > 6 and cut.notes(encoded)[0].startswith("6 of 6 passages are longer than the context")
    recipe = load_recipe("squad", [*SMALL, *known, "data.paragraphs=null"])
    assert isinstance(list(train(recipe, tmp_path / "run"))[-1], Finished)
    answerer: Any = heedful.load(tmp_path / "run", "cpu")
    article = "\n".join(one["context"] for one in paragraphs)
    (best,) = answerer.answer([("where ?", article)])
    assert article[best[0].start : best[0].end] == best[0].text
    assert recipe.model_dump()["data"]["paragraphs"] is None
    assert "paragraphs" not in load_recipe("squad", [*SMALL, *known]).model_dump()["data"]


# ------------------------------------------------------------------ the seed of random blocks
def test_another_seed_of_random_blocks_is_refused(start: Path, papers: Path, tmp_path: Path) -> None:
    config = json.loads((start / "config.json").read_text())["model"]
    names = ("pooler", "masked_words", "next_sentence", "pool", "last_mlp")
    other = {name: value for name, value in config.items() if name not in names} | {"seed": 4}
    changed = f"model.encoder={json.dumps(other)}"
    with pytest.raises(UserError, match="was trained with another seed") as caught:
        list(train(classify(start, papers, changed), tmp_path / "first"))
    assert (caught.value.where, caught.value.found) == ("model.encoder.seed", "4")
    assert caught.value.expected == f"3, as in {start}"
    list(train(classify(start, papers), tmp_path / "run"))
    with pytest.raises(UserError, match=r"model\.encoder\.seed: 3 in the folder, 4 now"):
        list(train(classify(start, papers, changed), tmp_path / "run"))
    with pytest.raises(UserError, match="was trained with another seed"):
        list(train(classify(tmp_path / "run", papers, changed), tmp_path / "next"))
    recipe = tmp_path / "run" / "recipe.yaml"
    assert "seed: 3" in recipe.read_text()
    recipe.write_text(recipe.read_text().replace("seed: 3", "seed: 4"))
    for checkpoint in (None, "last"):
        with pytest.raises(UserError, match=r"encoder\.seed: 3 in .*, 4 now"):
            heedful.load(tmp_path / "run", "cpu", checkpoint)
