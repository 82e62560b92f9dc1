"""Questions about stories: what is learned, exact resume, the predictor with its hops, commands, and bad input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import heedful
from heedful.cli.evaluate import eval_command
from heedful.cli.predict import Options, predict_command
from heedful.cli.texts import answer_command
from heedful.data.stories.sources import GeneratedStories
from heedful.errors import UserError
from heedful.models import build, config_class
from heedful.plots.hop_plot import Answered, plot_hops
from heedful.runs.recipe import load_recipe
from heedful.runs.train import Evaluated, Started, Step, train
from heedful.tasks import task_of
from heedful.training.checkpoint.folder import newest
from tolerance import close, near

CPU = ["train.device=cpu", "train.threads=1", "train.log_every=100"]
STORY = ("Mary moved to the garden.", "John went to the office.", "Mary travelled to the kitchen.")
TWO = [
    "data.every=2",
    "data.questions=3",
    "data.valid=20",
    "data.test=80",
    "train.optimizer.lr=2e-2",
]  # shorter stories than the recipe's
SMALL = ["data.train=40", "data.valid=8", "data.test=8", "model.width=8", "model.memory=8"]


@pytest.fixture(scope="module", autouse=True)
def _quick_end(no_loss_curve: None) -> None:
    """The picture of the losses takes longer than the training."""


def run(folder: Path, recipe: str, steps: int, *more: str, until: int = 10**9) -> list[Any]:
    every = [f"train.budget={{steps: {steps}}}", f"train.save_every={max(1, steps // 2)}"]
    every += [f"train.evaluate_every={steps}"]
    events = list[Any]()

    def stop() -> bool:
        return any(isinstance(event, Step) and event.step >= until for event in events)

    for event in train(load_recipe(recipe, [*CPU, *every, *more]), folder, stop):
        events.append(event)
    return events


def test_scores(events: Sequence[Any]) -> dict[str, float]:
    (found,) = [event for event in events if isinstance(event, Evaluated) and event.split == "test"]
    return {score.name: score.value for score in found.scores}


test_scores.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """A memory network after a few hundred steps on questions with one supporting fact, and its test scores."""
    folder = tmp_path_factory.mktemp("stories") / "one"
    return folder, test_scores(run(folder, "stories-1", 300, "data.train=400", "data.valid=20", "data.test=100"))


@pytest.fixture(scope="module")
def answerer(one: tuple[Path, dict[str, float]]) -> heedful.StoryAnswerer:
    return heedful.load(one[0], heedful.StoryAnswerer, device="cpu")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, of a model that remembers eight sentences."""
    folder = tmp_path_factory.mktemp("stories") / "small"
    run(folder, "stories-2", 2, *SMALL)
    return folder


# ------------------------------------------------------------------ what is learned
@pytest.mark.claim("M10")
def test_one_supporting_fact_is_learned(one: tuple[Path, dict[str, float]]) -> None:
    """Far above chance (one in six places) in seconds, and the supporting fact is what a hop attends to most."""
    assert one[1]["accuracy"] > 90 and one[1]["supports"] > 90


@pytest.mark.claim("M10")
def test_hops_find_two_supporting_facts_and_a_bag_of_words_does_not(tmp_path: Path) -> None:
    """On shorter stories than the recipe's, with the same data and settings for both models."""
    found = test_scores(run(tmp_path / "memory", "stories-2", 600, "data.train=1500", *TWO))
    bag = test_scores(run(tmp_path / "bag", "stories-2", 600, "data.train=1500", *TWO, "model={kind: bag_of_words}"))
    assert found["accuracy"] > 85 and found["supports"] > 80
    assert bag["accuracy"] < 65 and set(bag) == {"accuracy"}


RECIPES = {"stories-1": 99.0, "stories-2": 95.0, "stories-3": 70.0}


@pytest.mark.slow
@pytest.mark.claim("M10")
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_reaches_its_accuracy(recipe: str, tmp_path: Path) -> None:
    """The recipes as they are, and the bag of words on the same data, which is far below."""
    found, bag = (
        test_scores([*train(load_recipe(recipe, [*CPU, *more]), tmp_path / name)])
        for name, more in (("memory", []), ("bag", ["model={kind: bag_of_words}"]))
    )
    assert found["accuracy"] >= RECIPES[recipe] and bag["accuracy"] < found["accuracy"] - 25


# ------------------------------------------------------------------ runs
def test_stopped_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Also with noise, which depends on the seed and the step alone."""
    run(tmp_path / "whole", "stories-2", 6, *SMALL, "model.noise=0.4")
    run(tmp_path / "parts", "stories-2", 6, *SMALL, "model.noise=0.4", until=3)
    run(tmp_path / "parts", "stories-2", 6, *SMALL, "model.noise=0.4")
    whole, parts = (newest(tmp_path / name, 1)[0][0].load("model") for name in ("whole", "parts"))
    assert all(torch.equal(parts[name], value) for name, value in whole.items())
    run(tmp_path / "other", "stories-2", 6, *SMALL, "model.noise=0.4", "train.seed=1")
    other = newest(tmp_path / "other", 1)[0][0].load("model")
    assert not any(torch.equal(other[name], value) for name, value in whole.items())


def test_notes_on_long_stories_and_unknown_answers(tmp_path: Path) -> None:
    """They are counted and named; an unknown answer is wrong, and has no loss."""
    stories = [(["Mary is here.", "John left.", "Mary slept."], "Where is Mary?", "here"), ("A b. C d.", "Who?", "b")]
    data = heedful.Dataset(train=stories * 4, valid=[*stories, ("A b.", "Who?", "nobody"), ("A b.", "Who?", "b")])
    recipe = load_recipe(
        "stories-1", ["data={kind: own}", "model.memory=2", "train.budget={steps: 2}", *CPU, "train.evaluate_every=2"]
    )
    events = [*heedful.train(recipe, tmp_path / "run", data=data)]
    (started,) = [event for event in events if isinstance(event, Started)]
    assert "4 of 8 questions are about more than 2 sentences; the last are kept" in started.notes
    valid = next(event for event in events if isinstance(event, Evaluated))
    known = next(score for score in valid.scores if score.name == "known_answers")
    assert known.value == 75 and known.signature == "questions:4|answers not seen in training:nobody"
    (remark,) = task_of(recipe).remarks(valid)
    assert remark == "25.0% of the questions have an answer that training has not seen, which counts as wrong: nobody"
    predictor = heedful.load(tmp_path / "run", heedful.StoryAnswerer, device="cpu")
    assert predictor.labels == ("b", "here")
    found = predictor.evaluate([(("A b.", "Who?"), "nobody")])
    assert found.scores["accuracy"] == 0 and found.loss is None and found.count == 1


def test_run_starts_from_another(small: Path, tmp_path: Path) -> None:
    run(tmp_path / "more", "stories-2", 2, *SMALL, f"start.folder={small}", "data.seed=4")
    run(tmp_path / "fresh", "stories-2", 2, *SMALL, "data.seed=4")
    one, other, first = (
        newest(folder, 1)[0][0].load("model")["head.weight"]
        for folder in (tmp_path / "more", tmp_path / "fresh", small)
    )
    assert float((one - first).abs().max()) < 0.05 < float((one - other).abs().max()) + 0.05
    assert not torch.equal(one, other)


# ------------------------------------------------------------------ the predictor
@pytest.mark.claim("M10")
def test_answer_shows_its_hops(answerer: heedful.StoryAnswerer) -> None:
    found = answerer.answer(STORY, "Where is Mary?")
    assert found.text == "kitchen" and found.probability > 0.5
    assert found.probability == max(found.probabilities.values()) and len(found.probabilities) == 5
    assert answerer.hops == 3 == len(found.weights) and found.forgotten == 0 and found.unknown == []
    for weights in found.weights:
        assert len(weights) == len(STORY) and sum(weights) == near(1.0) and min(weights) >= 0
    assert max(weights[2] for weights in found.weights) > 0.5
    assert answerer.answer(" ".join(STORY), "where is mary") == found
    assert "weights" not in repr(found) and json.loads(json.dumps(found.to_dict()))["text"] == "kitchen"
    john = answerer.answer(STORY, "Where is John?")
    assert john.text == "office"
    assert answerer.predict([(STORY, "Where is Mary?"), (STORY, "Where is John?")], top=1)[1].probabilities == {
        "office": near(john.probability)
    }


def test_batch_does_not_change_an_answer(answerer: heedful.StoryAnswerer) -> None:
    asked = GeneratedStories(test=20).read("test").asked
    inputs = [(one.sentences, one.question.text) for one in asked]
    together = answerer.predict(inputs)
    for each, given in zip(together, inputs, strict=True):
        alone = answerer.answer(*given)
        assert alone.text == each.text and alone.probability == near(each.probability, slack=64)
        close(torch.tensor(alone.weights), torch.tensor(each.weights), slack=64)
    assert np.mean([each.text == one.question.answer for each, one in zip(together, asked, strict=True)]) > 0.9
    scores = answerer.evaluate([(given, one.question.answer) for given, one in zip(inputs, asked, strict=True)])
    right = sum(each.text == one.question.answer for each, one in zip(together, asked, strict=True))
    assert scores.scores["accuracy"] == near(100 * right / len(asked)) and scores.count == len(asked)
    assert scores.loss is not None and 0 < scores.loss < 1


def test_long_story_and_unknown_words_are_named(small: Path) -> None:
    predictor = heedful.load(small, heedful.StoryAnswerer, device="cpu")
    story = [f"Mary moved to the {place}." for place in ("garden", "office") * 6]
    found = predictor.answer([*story, "A zebra flew."], "Where is the milk?")
    assert found.forgotten == 5 and found.unknown == ["a", "zebra", "flew"]
    for weights in found.weights:
        assert weights[:5] == [0.0] * 5 and len(weights) == 13 and sum(weights) == near(1.0)
    last = predictor.answer([*story[5:], "A zebra flew."], "Where is the milk?")
    assert last.probabilities == found.probabilities


def test_saved_predictor_answers_the_same(answerer: heedful.StoryAnswerer, tmp_path: Path) -> None:
    answerer.save(tmp_path / "saved")
    again = heedful.load(tmp_path / "saved", device="cpu")
    assert isinstance(again, heedful.StoryAnswerer)
    assert again.answer(STORY, "Where is Mary?") == answerer.answer(STORY, "Where is Mary?")


def test_bag_of_words_has_no_hops(tmp_path: Path) -> None:
    run(tmp_path / "bag", "stories-1", 2, "data.train=20", "data.valid=5", "data.test=5", "model={kind: bag_of_words}")
    predictor = heedful.load(tmp_path / "bag", heedful.StoryAnswerer, device="cpu")
    assert predictor.hops == 0 and predictor.answer(STORY, "Where is Mary?").weights == []
    with pytest.raises(UserError, match="no hops to draw"):
        answer_command(tmp_path / "bag", " ".join(STORY), ["Where is Mary?"], 1, False, tmp_path / "x.png")


@pytest.mark.parametrize(
    ("story", "question", "message"),
    [([], "Who?", "no sentence"), ("", "Who?", "no sentence"), ([" . "], "Who?", "no sentence"),
     (STORY, "?", "no question"), (STORY, "", "no question")],
)  # fmt: skip
def test_bad_input_is_refused(answerer: heedful.StoryAnswerer, story: Any, question: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        answerer.answer(story, question)
    with pytest.raises(TypeError):
        answerer.answer([1, 2], "Who?")  # type: ignore[list-item]
    with pytest.raises(TypeError):
        answerer.predict("a text")  # type: ignore[arg-type]


# ------------------------------------------------------------------ commands
def test_answer_command(one: tuple[Path, dict[str, float]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story, picture = tmp_path / "story.txt", tmp_path / "hops.png"
    story.write_text("\n".join([*STORY, "Mary hummed."]))
    answer_command(one[0], str(story), ["Where is Mary?", "Where is John?"], 2, False, picture)
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == "Where is Mary?" and lines[1].endswith("%  kitchen") and lines[3].startswith("  hop 1: ")
    assert lines[6] == "Where is John?" and lines[7].endswith("%  office") and len(lines) == 12
    assert "words that the model does not know: hummed" in err and f"wrote {picture}" in err
    with Image.open(picture) as image:
        assert image.height > 300
    answer_command(one[0], " ".join(STORY), ["Where is Mary?"], 1, True)
    record = json.loads(capsys.readouterr().out)
    assert record["story"] == list(STORY) and record["question"] == "Where is Mary?" and record["text"] == "kitchen"
    assert len(record["weights"]) == 3 and len(record["probabilities"]) == 1
    with pytest.raises(UserError, match="does not say which format"):
        answer_command(one[0], " ".join(STORY), ["Where is Mary?"], 1, True, tmp_path / "hops.txt")


def test_predict_and_evaluate_commands(
    one: tuple[Path, dict[str, float]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"story": list(STORY), "question": "Where is John?", "id": 7}, {"story": "Mary left.", "question": "Who?"}]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)))
    predict_command(one[0], source, out, Options(batch=10))
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert found[0]["prediction"] == "office" and found[0]["id"] == 7 and len(found) == 2
    source.write_text(json.dumps({"story": 3, "question": "Who?"}))
    with pytest.raises(UserError, match="needs a story"):
        predict_command(one[0], source, None, Options())
    answerer = heedful.load(one[0], heedful.StoryAnswerer, device="cpu")
    source.write_text(json.dumps({"story": list(STORY), "question": "Where is John?", "answer": "office"}))
    assert answerer.evaluate(source).scores["accuracy"] == 100
    babi = tmp_path / "qa.txt"
    babi.write_text("1 Mary moved to the garden.\n2 Where is Mary?\tgarden\t1\n3 Where is Mary?\toffice\t1\n")
    assert answerer.evaluate(babi).scores == {"accuracy": 50.0, "supports": near(100.0)}


def test_babi_recipe_trains_on_files(tmp_path: Path) -> None:
    text = "".join(
        f"1 {name} moved to the {place}.\n2 Where is {name}?\t{place}\t1\n"
        for name in ("Mary", "John") for place in ("garden", "office", "kitchen")
    )  # fmt: skip
    (tmp_path / "qa.txt").write_text(text * 5)
    data = f"data={{kind: babi, root: {tmp_path}, train: qa.txt, test: qa.txt}}"
    assert "accuracy" in test_scores(run(tmp_path / "run", "stories-1", 3, data))
    (tmp_path / "same.txt").write_text("1 A b.\n2 Who?\tx\t1\n1 C d.\n2 Who?\tx\t1\n")
    with pytest.raises(UserError, match="the same answer"):
        run(tmp_path / "same", "stories-1", 3, data.replace("qa.txt", "same.txt"))


# ------------------------------------------------------------------ recipes and pictures
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.batch_examples=null", "number of questions per batch"),
        ("train.compile=true", "too many shapes to compile"),
        ("train.batching=packed", "packed"),
        ("data.facts=4", "data.facts"),
        ("model.hops=0", "model.hops"),
    ],
)
def test_bad_recipe_is_refused(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_recipe("stories-1", [override])


def test_no_answer_of_the_training_data(tmp_path: Path) -> None:
    train_rows = [("A b.", "Who?", "x"), ("A b.", "Where?", "y")]
    recipe = load_recipe("stories-1", ["data={kind: own}", "train.budget={steps: 1}", *CPU])
    with pytest.raises(UserError, match="no question has an answer of the training data"):
        [*heedful.train(recipe, tmp_path / "run", data=heedful.Dataset(train_rows, [("A b.", "Who?", "z")]))]


def test_settings_name_the_size() -> None:
    for kind in ("memory_network", "bag_of_words"):
        config = config_class(kind).tiny()
        assert sum(weight.numel() for weight in build(config).parameters()) == config.parameters(config.vocab)
    with pytest.raises(ValueError, match="billion"):
        config_class("memory_network")(vocab=10_000_000, width=65_536, hops=100)


def test_picture_of_hops_marks_the_facts() -> None:
    figure = plot_hops([Answered(STORY, "Where is Mary?", "kitchen", 0.9, [[0.1, 0.1, 0.8]] * 2, (2,))], "Hops")
    (axes,) = figure.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [STORY[0], STORY[1], f"● {STORY[2]}"]
    assert [text.get_text() for text in axes.texts] == ["0.10", "0.10", "0.10", "0.10", "0.80", "0.80"]
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.1, 0.1], [0.1, 0.1], [0.8, 0.8]])


def test_eval_command(one: tuple[Path, dict[str, float]], capsys: pytest.CaptureFixture[str]) -> None:
    eval_command(one[0], "test", None, True)
    record = json.loads(capsys.readouterr().out)
    assert {name: score["value"] for name, score in record["scores"].items()} == {
        name: near(value) for name, value in one[1].items()
    }
