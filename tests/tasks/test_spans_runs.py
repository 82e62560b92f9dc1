"""Runs of taggers and answerers: resume, loading, and the command line."""

from __future__ import annotations

import io
import json
import random
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful.cli.texts import answer_command, read_passage, tag_command
from heedful.data.formats.conll import Conll
from heedful.errors import UserError
from heedful.runs.evaluate import results, scored
from heedful.runs.load import load
from heedful.runs.recipe import check_recipe, load_recipe
from heedful.runs.train import Finished, Started, train
from heedful.tasks import task_of
from heedful.tasks.answering.predictor import QuestionAnswerer
from heedful.tasks.base import Evaluated
from heedful.tasks.tagging.predictor import TokenTagger
from heedful.training.loop import Step
from heedful.training.metrics import Score

ENCODER = "{width: 16, heads: 2, layers: 4, hidden: 20, context: 32, dropout: 0.1, attention_dropout: 0.0}"
SMALL = [
    "start=null", "tokenizer={kind: wordpiece, vocab: 100, lowercase: true}", f"model.encoder={ENCODER}",
    "train.budget={steps: 12}", "train.evaluate_every=6", "train.save_every=6", "train.log_every=1", "train.samples=2",
    "train.device=cpu", "train.batch_examples=8", "train.optimizer.lr=5e-3", "train.schedule={kind: constant}",
]  # fmt: skip
KINDS = {
    "tagging": ("conll2003", TokenTagger),
    "features": ("conll-features", TokenTagger),
    "answering": ("squad", QuestionAnswerer),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences with names in them, and questions about them."""
    folder, luck = tmp_path_factory.mktemp("data"), random.Random(0)
    for split, size in (("train", 60), ("valid", 12), ("test", 12)):
        lines, articles = [], []
        for number in range(size):
            first, last = luck.choice(["Ada", "Kurt", "Emmy"]), luck.choice(["Turing", "Hopper"])
            verb, place = luck.choice(["saw", "left"]), luck.choice(["Oslo", "Rome"])
            lines += [f"{first} I-PER", f"{last} I-PER", f"{verb} O", f"{place} I-LOC", ". O", ""]
            passage = f"{first} {last} {verb} {place}."
            answers = [{"text": place, "answer_start": passage.index(place)}]
            asked = {"id": f"{split}-{number}", "question": f"Where was {first}?", "answers": answers}
            articles.append({"title": first, "paragraphs": [{"context": passage, "qas": [asked]}]})
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
        (folder / f"{split}.json").write_text(json.dumps({"data": articles}))
    return folder


def recipe_of(kind: str, data: Path, *more: str) -> Any:
    ending = "json" if kind == "answering" else "txt"
    files = [f"data.root={data}", *(f"data.{split}={split}.{ending}" for split in ("train", "valid", "test"))]
    tiny = ["model.reader={kind: bilstm, hidden: 12, layers: 1}"] if kind == "features" else []
    return load_recipe(KINDS[kind][0], [*SMALL, *files, *tiny, *more])


@pytest.mark.parametrize("kind", KINDS)
def test_run_resumes_to_the_same_end_and_is_loaded(kind: str, data: Path, tmp_path: Path) -> None:
    recipe = recipe_of(kind, data)
    events = list(train(recipe, tmp_path / "whole"))
    assert isinstance(events[-1], Finished) and not events[-1].stopped
    losses = [event.loss for event in events if isinstance(event, Step)]
    assert losses[-1] < losses[0]
    assert sum(isinstance(event, Evaluated) for event in events) == 3

    for after in (4, 5):
        asked = count()
        list(train(recipe, tmp_path / "broken", lambda asked=asked, after=after: next(asked) >= after))  # type: ignore[misc]
    again = list(train(recipe, tmp_path / "broken"))
    assert next(event.step for event in again if isinstance(event, Started)) == 9
    for file in ("model/model.safetensors", "model/config.json", "tokenizer.json", "recipe.yaml"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "broken" / file).read_bytes()
    assert results(tmp_path / "whole") == results(tmp_path / "broken")

    predictor = load(tmp_path / "whole")
    assert type(predictor) is KINDS[kind][1]
    stored = results(tmp_path / "whole")
    assert stored is not None
    filled = load_recipe(str(tmp_path / "whole" / "recipe.yaml"))
    assert scored(predictor, filled, "test", stored.step) == stored
    shutil.rmtree(tmp_path / "broken" / "model")  # as during training
    assert type(load(tmp_path / "broken")) is KINDS[kind][1]
    if kind != "answering":
        assert predictor.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
        assert predictor.model.config.freeze is (kind == "features")


@pytest.mark.parametrize("kind", ["tagging", "answering"])
def test_packed_batches_train(kind: str, data: Path, tmp_path: Path) -> None:
    events = list(train(recipe_of(kind, data, "train.batching=packed"), tmp_path / "run"))
    losses = [event.loss for event in events if isinstance(event, Step)]
    assert losses[-1] < losses[0]


def test_run_starts_from_the_encoder_of_another_run(data: Path, tmp_path: Path) -> None:
    list(train(recipe_of("tagging", data), tmp_path / "tagger"))
    start = [f"start={{folder: {tmp_path / 'tagger'}}}", "tokenizer=null", "model.encoder=null"]
    recipe = recipe_of("answering", data, *start, "model.freeze=true")
    check_recipe(recipe)
    events = list(train(recipe, tmp_path / "answerer"))
    assert isinstance(events[-1], Finished) and not events[-1].stopped
    one, other = load(tmp_path / "tagger"), load(tmp_path / "answerer")
    assert one.tokenizer.json == other.tokenizer.json
    weights = other.model.encoder.state_dict()
    assert all(weights[name].equal(weight) for name, weight in one.model.encoder.state_dict().items())


def test_missing_feature_layers_are_reported_before_training(data: Path, tmp_path: Path) -> None:
    small = ENCODER.replace("layers: 4", "layers: 2")
    list(train(recipe_of("tagging", data, f"model.encoder={small}"), tmp_path / "small"))
    start = [f"start={{folder: {tmp_path / 'small'}}}", "tokenizer=null", "model.encoder=null"]
    recipe = recipe_of("features", data, *start)
    with pytest.raises(UserError) as error:
        check_recipe(recipe)
    (problem,) = error.value.problems
    assert (problem.where, problem.found) == ("model.features", "concat_last_four, but the encoder has 2 blocks")


def test_packed_batches_for_lstm_are_rejected(data: Path) -> None:
    with pytest.raises(UserError, match="this tagger cannot read packed batches"):
        recipe_of("features", data, "train.batching=packed")


def test_tag_missing_from_training_is_named_with_its_line(data: Path, tmp_path: Path) -> None:
    text = (data / "valid.txt").read_text()
    (tmp_path / "odd.txt").write_text(text + "\nReuters I-ORG\nsaid O\n")
    with pytest.raises(UserError, match="unknown tag") as error:
        list(train(recipe_of("tagging", data, f"data.valid={tmp_path}/odd.txt"), tmp_path / "run"))
    assert str(error.value.where).startswith(f"{tmp_path}/odd.txt:{text.count(chr(10)) + 2}")
    assert error.value.found == "'B-ORG'" and "B-PER" in str(error.value.expected)


def test_answers_outside_every_window_are_rejected(data: Path, tmp_path: Path) -> None:
    passage = "Ada saw " * 40 + "Rome"
    row = {"question": "Where?", "passage": passage, "answer": passage, "start": 0}
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    more = [f"data={{kind: jsonl, root: {tmp_path}, train: train.jsonl, valid: valid.jsonl}}"]
    with pytest.raises(UserError, match="there is no answer to train on"):
        list(train(load_recipe("squad", [*SMALL, *more]), tmp_path / "run"))


def test_truncated_passages_questions_and_words_are_noted(data: Path, tmp_path: Path) -> None:
    passage = "Ada saw Rome . " * 20
    rows = [{"question": "Where is it that Ada was? " * 5, "passage": passage, "answer": "Rome", "start": 8}] * 3
    for split in ("train", "valid"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    more = [f"data={{kind: jsonl, root: {tmp_path}, train: train.jsonl, valid: valid.jsonl}}"]
    started = [event for event in train(load_recipe("squad", [*SMALL, *more]), tmp_path / "run")
               if isinstance(event, Started)]  # fmt: skip
    noted = "\n".join(started[0].notes)
    assert "3 of 3 passages are longer than the context, and are split into windows" in noted
    assert "3 of 3 questions are too long, and are truncated" in noted


# ------------------------------------------------------------------ the command line
@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A trained tagger and a trained answerer."""
    folder = tmp_path_factory.mktemp("runs")
    for kind in ("tagging", "answering"):
        list(train(recipe_of(kind, data, "train.budget={steps: 60}", "train.evaluate_every=60"), folder / kind))
    return {kind: folder / kind for kind in ("tagging", "answering")}


def test_tag_prints_spans_with_offsets(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tag_command(runs["tagging"], ["Kurt Hopper left Oslo."], False)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "Kurt Hopper left Oslo."
    assert [line.split()[0::2] for line in lines] == [["PER", "0-11", "Hopper"], ["LOC", "17-21"]]
    assert all(line.split()[1].endswith("%") for line in lines)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Emmy Turing saw Rome\n\n")))
    tag_command(runs["tagging"], ["-"], True)
    one, blank = map(json.loads, capsys.readouterr().out.splitlines())
    assert one["words"] == ["Emmy", "Turing", "saw", "Rome"] and one["tags"] == ["B-PER", "I-PER", "O", "B-LOC"]
    assert [(each["kind"], each["text"], each["start"], each["end"]) for each in one["entities"]] == [
        ("PER", "Emmy Turing", 0, 11), ("LOC", "Rome", 16, 20),
    ]  # fmt: skip
    assert blank is None


def test_answer_prints_spans_of_the_passage(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "passage.txt").write_text("Kurt Hopper left Oslo.\n")
    for passage in ("Kurt Hopper left Oslo.", str(tmp_path / "passage.txt")):
        answer_command(runs["answering"], passage, ["Where was Kurt?"], 2, False)
        question, best, second = capsys.readouterr().out.splitlines()
        assert question == "Where was Kurt?"
        assert best.split()[1:] == ["17-21", "Oslo"] and best.split()[0].endswith("%")
        assert second != best
    answer_command(runs["answering"], "Kurt Hopper left Oslo.", ["Where was Kurt?"], 1, True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["question"] == "Where was Kurt?"
    (answer,) = printed["answers"]
    assert (answer["text"], answer["start"], answer["end"]) == ("Oslo", 17, 21) and 0 < answer["probability"] <= 1


def test_commands_reject_other_models(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="this model tags words"):
        answer_command(runs["tagging"], "a passage", ["a question"], 1, False)
    with pytest.raises(UserError, match="this model answers questions"):
        tag_command(runs["answering"], ["a text"], False)
    with pytest.raises(UserError, match="there is no such file"):
        read_passage("nowhere.txt")
    with pytest.raises(UserError, match="there is no passage"):
        read_passage("  ")
    assert read_passage("word " * 2000) == "word " * 2000
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(UserError, match="there is no text to read"):
        tag_command(runs["tagging"], [], False)
    with pytest.raises(UserError, match="there is no question to read"):
        answer_command(runs["answering"], "a passage", [], 1, False)


def test_suggested_commands_name_the_verbs(data: Path, tmp_path: Path) -> None:
    for kind, verb in (("tagging", "tag"), ("answering", "answer")):
        first, *_ = task_of(recipe_of(kind, data)).next(tmp_path / "a run", None)
        assert first.startswith(f"heedful {verb} '{tmp_path}/a run'")


@pytest.mark.parametrize("kind", ["tagging", "answering"])
def test_best_checkpoint_has_the_best_f1(kind: str, data: Path) -> None:
    scores = (Score("exact_match", 1.0, ""), Score("f1", 2.0, ""), Score("recall", 3.0, ""))
    assert Evaluated(1, "valid", 9.0, scores, (), 0).selection_score(task_of(recipe_of(kind, data)).metric) == 2.0


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tagger of parts of speech, trained on a file of columns."""
    folder, luck = tmp_path_factory.mktemp("speech"), random.Random(1)
    for split, size in (("train", 60), ("valid", 12), ("test", 12)):
        lines = []
        for _ in range(size):
            lines += [f"{luck.choice(['the', 'a'])} DET", f"{luck.choice(['dog', 'cat'])} NOUN"]
            lines += [f"{luck.choice(['saw', 'left'])} VERB", f"{luck.choice(['Rome', 'Oslo'])} NOUN", ". .", ""]
        (folder / f"{split}.txt").write_text("\n".join(lines))
    list(train(recipe_of("tagging", folder, "train.budget={steps: 40}", "train.evaluate_every=20"), folder / "run"))
    return folder


def test_parts_of_speech_are_learned_scored_and_shown(
    speech: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sklearn.metrics import accuracy_score, f1_score

    results = json.loads((speech / "run" / "results.json").read_text())
    scores = {name: score["value"] for name, score in results["scores"].items()}
    assert list(scores) == ["accuracy", "f1", "f1 .", "f1 DET", "f1 NOUN", "f1 VERB"]
    marker = heedful.load(speech / "run", "cpu")
    assert marker.labels == (".", "DET", "NOUN", "VERB")
    sentences = Conll(root=str(speech), train="train.txt", valid="valid.txt", test="test.txt").read("test").sentences
    said = [tag for marked in marker.tag([sentence.words for sentence in sentences]) for tag in marked.tags]
    true = [tag for sentence in sentences for tag in sentence.tags]
    assert scores["accuracy"] == pytest.approx(100 * accuracy_score(true, said)) and scores["accuracy"] > 60
    assert scores["f1"] == pytest.approx(100 * f1_score(true, said, average="macro"))
    each = 100 * f1_score(true, said, average=None, labels=marker.labels)
    assert [scores[f"f1 {label}"] for label in marker.labels] == pytest.approx(each.tolist())
    tag_command(speech / "run", ["the dog left Rome ."], False)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(marker.tag(["the dog left Rome ."])[0].tags)
    assert [line.split()[2:] for line in lines][:2] == [["0-3", "the"], ["4-7", "dog"]]
    evaluated = [json.loads(line) for line in (speech / "run" / "metrics.jsonl").read_text().splitlines()]
    valid = [event for event in evaluated if event.get("split") == "valid"]
    assert valid and all(list(event["scores"]) == ["accuracy", "f1"] for event in valid)


def test_best_tagger_without_chunks_has_the_best_accuracy(speech: Path) -> None:
    scores = (Score("accuracy", 1.0, ""), Score("f1", 2.0, ""))
    recipe = recipe_of("tagging", speech, "model.labels=[DET, NOUN]")
    assert Evaluated(1, "valid", 9.0, scores, (), 0).selection_score(task_of(recipe).metric) == 1.0
