"""Dialogues: the loss, runs that resume, replies in any batch, and the same data for a flat model."""

from __future__ import annotations

import json
import math
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.data.dialogues.batches import encode_dialogues
from heedful.data.dialogues.sources import Dialogue
from heedful.data.dialogues.trips import Trips
from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WholeWords
from heedful.decode.settings import ReplySettings
from heedful.errors import UserError
from heedful.models import build, config_class
from heedful.runs.evaluate import results, scored
from heedful.runs.load import read_recipe
from heedful.runs.recipe import load_recipe
from heedful.runs.train import Finished, Started, train
from heedful.tasks import task_of
from heedful.tasks.dialogue.predictor import DialogueModel, next_speaker
from heedful.tasks.dialogue.reading import mean_loss, reading_of
from heedful.training.loop import Step
from heedful.training.metrics import distinct
from tolerance import close

SMALL = [
    "data.train=60", "data.valid=8", "data.test=8", "train.budget.steps=12", "train.evaluate_every=6",
    "train.save_every=6", "train.log_every=1", "train.samples=2", "train.batch_tokens=512", "train.schedule.warmup=1",
    "task.longest=20", "decode.max_length=12", "train.device=cpu",
]  # fmt: skip
SIZE = "width: 16, hidden: 20, layers: 1, context: 160, dropout: 0.1"
HRED = [*SMALL, f"model={{kind: hred, {SIZE}, attention: {{feed: output}}}}"]
ENCODER = "encoder: {kind: recurrent, cell: gru, layers: 1, hidden: 20}, cell: gru, attention: {feed: output}"
FLAT = [*SMALL, f"model={{kind: seq2seq, {SIZE}, {ENCODER}}}"]
TRANSFORMER = [
    *SMALL, "model={kind: transformer, width: 16, heads: 2, hidden: 20, context: 160}", "model.encoder_layers=1",
    "model.decoder_layers=1",
]  # fmt: skip
EVERY = {"hred": HRED, "seq2seq": FLAT, "transformer": TRANSFORMER}


def trips(count: int = 30) -> list[Dialogue]:
    return Trips(train=count, valid=1, test=1).read("train").dialogues


def model_of(kind: str, rows: list[Dialogue], **changes: Any) -> DialogueModel:
    """A dialogue model with random weights."""
    tokenizer = TrainedTokenizer.train(WholeWords(vocab=200), (text for row in rows for text in row.utterances))
    torch.manual_seed(0)
    tiny = config_class(kind).tiny()
    config = type(tiny).model_validate(tiny.model_dump() | {"vocab": tokenizer.vocab, "context": 120} | changes)
    model = build(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return DialogueModel(model, tokenizer, config.context, torch.device("cpu"), ReplySettings(max_length=8))


# ------------------------------------------------------------------ the loss
@pytest.mark.parametrize("kind", ["hred", "seq2seq", "transformer"])
def test_loss_is_that_of_each_reply_alone(kind: str) -> None:
    rows = trips(6)
    predictor = model_of(kind, rows)
    model: Any = predictor.model
    encoded = encode_dialogues(rows, predictor.tokenizer, 30, 32)
    total, tokens = 0.0, 0
    with torch.inference_mode():
        for row in rows:
            for turn in range(1, len(row.utterances)):
                (history,) = predictor.histories([row.utterances[:turn]])
                reply = [2, *predictor.tokenizer.ids([row.utterances[turn]])[0], 3]
                state = predictor.reading.start(model, [history], predictor.device)
                logits, _ = model(torch.tensor([reply[:-1]]), state)
                logs = logits.log_softmax(-1)[0]
                total -= sum(float(logs[place, one]) for place, one in enumerate(reply[1:]))
                tokens += len(reply) - 1
    for budget in (200, 5000):  # one dialogue a batch, or all
        close(
            torch.tensor(mean_loss(model, predictor.reading, encoded, predictor.device, budget)),
            torch.tensor(total / tokens),
        )


def test_loss_of_parts_of_a_batch_adds_up_with_its_gradients() -> None:
    rows = trips(8)
    predictor = model_of("hred", rows, dropout=0.0)
    model: Any = predictor.model
    encoded = encode_dialogues(rows, predictor.tokenizer, 30, 32)
    reading, found = predictor.reading, []
    for groups in ([np.arange(8)], [np.arange(5), np.arange(5, 8), np.arange(0)]):
        model.zero_grad()
        losses = [reading.loss(model, encoded.batch(rows)) for rows in groups]
        sum(loss.total for loss in losses).backward()  # type: ignore[union-attr]
        gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()])
        found.append((sum(loss.total.detach() for loss in losses), sum(int(loss.count) for loss in losses), gradient))
    assert found[0][1] == found[1][1] == encoded.batch(np.arange(8)).tokens
    close(found[1][0], found[0][0])
    close(found[1][2], found[0][2])


def test_distinct_ngrams() -> None:
    assert distinct(["a b a b", "a b"], 1).value == pytest.approx(100 * 2 / 6)
    assert distinct(["a b a b", "a b"], 2).value == pytest.approx(100 * 2 / 4)
    assert distinct([""], 2).value == 0


# ------------------------------------------------------------------ runs
def stopped(recipe: Any, run: Path, after: int) -> list[Any]:
    asked = count()
    return list(train(recipe, run, lambda: next(asked) >= after))


@pytest.mark.parametrize("kind", ["hred", "seq2seq", pytest.param("transformer", marks=pytest.mark.slow)])
def test_run_resumes_to_the_same_end_and_is_loaded(kind: str, tmp_path: Path) -> None:
    recipe = load_recipe("trips", EVERY[kind])
    events = list(train(recipe, tmp_path / "whole"))
    assert isinstance(events[-1], Finished)
    losses = [event.loss for event in events if isinstance(event, Step)]
    assert losses[-1] < losses[0]
    assert stopped(recipe, tmp_path / "broken", 5)[-1].stopped
    again = list(train(recipe, tmp_path / "broken"))
    assert next(event.step for event in again if isinstance(event, Started)) == 5
    for file in ("model/model.safetensors", "model/config.json", "tokenizer.json"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "broken" / file).read_bytes()
    assert results(tmp_path / "whole") == results(tmp_path / "broken")
    predictor = heedful.DialogueModel.load(tmp_path / "whole")
    stored = results(tmp_path / "whole")
    assert stored is not None and scored(predictor, read_recipe(tmp_path / "whole"), "test", stored.step) == stored
    assert [score.name for score in stored.scores] == ["perplexity", "exact_match", "distinct1", "distinct2"]
    assert stored.scores[0].value == pytest.approx(math.exp(stored.loss))
    predictor.save(tmp_path / "folder")
    copy = heedful.load(tmp_path / "folder", DialogueModel)
    history = ["i want to go to rome .", "a good choice .", "where do i go ?"]
    assert copy.reply(history) == predictor.reply(history)
    assert copy.settings.max_length == 12


def test_model_kind_alone_changes_the_model() -> None:
    names = {"hred": "hierarchical", "seq2seq": "seq2seq", "transformer": "seq2seq"}
    for kind, role in names.items():
        recipe = load_recipe("trips", [f"model.kind={kind}"])
        assert (recipe.model.kind, recipe.model.role) == (kind, role)
        shipped = load_recipe("trips")
        assert (recipe.data, recipe.train, recipe.task) == (shipped.data, shipped.train, shipped.task)
        assert recipe.model.hidden == shipped.model.hidden


def test_own_dialogues_train_and_what_was_left_out_is_noted(tmp_path: Path) -> None:
    rows = [list(row.utterances) for row in trips(40)]
    rows[0] = [*rows[0][:2], "  ", *rows[0][2:]]
    named = [[("ann", "i am anna ."), ("bob", "nice to meet you ."), ("eve", "where do i go ?")]]
    data = heedful.Dataset([*rows, *named, ["alone"]], rows[:4], rows[4:8])
    changes = [one for one in HRED if not one.startswith("data.")]
    recipe = load_recipe("trips", [*changes, "data={kind: own, test: true}", "task.utterances=6"])
    events = list(heedful.train(recipe, tmp_path / "run", data=data))
    (started,) = (event for event in events if isinstance(event, Started))
    notes = "\n".join(started.notes)
    assert "utterances without text, left out: 1" in notes
    assert "dialogues of more than 6 utterances, split: 4" in notes
    assert "dialogues of more than 2 speakers, the others taken for one: 1" in notes
    assert started.skipped == 1  # of one utterance


def test_flat_model_notes_histories_that_do_not_fit() -> None:
    task = task_of(load_recipe("trips", [*FLAT, "model.context=40"]))
    read = task.read("train")
    notes = task.notes(task.encode(read, task.learn(read)))
    assert len(notes) == 1 and notes[0].startswith("replies whose first utterances do not fit the model's context: ")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.longest=100", "model.context=50"], "task.longest is 100"),
        (["decode.max_length=40", "model.context=30"], "decode.max_length is 40"),
        (["task.utterances=1"], "greater than or equal to 2"),
        (["model.attention={choice: hard}"], "choice: soft"),
        (["model={kind: seq2seq, attention: {choice: hard}}"], "choice: soft"),
        (["train.batching=packed"], "write batching: padded"),
        (["train.compile=true"], "compile: false"),
        (["model.turns.hidden=0"], "model.turns.hidden"),
        (["data={kind: dailydialog, train: a.txt}"], "data.valid"),
    ],
)
def test_recipes_that_cannot_work_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        load_recipe("trips", overrides)
    assert message in str(error.value)


# ------------------------------------------------------------------ replies
@pytest.mark.parametrize("kind", ["hred", "seq2seq"])
@pytest.mark.parametrize("beams", [1, 3])
def test_replies_do_not_depend_on_the_batch(kind: str, beams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = trips(12)
    predictor = model_of(kind, rows)
    predictor.settings = predictor.settings.but(beams=beams)
    histories = [row.utterances[: 1 + number % 5] for number, row in enumerate(rows)]
    together = predictor.predict(histories)
    assert [one.text for one in together] == [predictor.reply(history).text for history in histories]
    monkeypatch.setattr("heedful.tasks.dialogue.predictor.BATCH_TOKENS", 60)
    assert [one.text for one in predictor.predict(histories)] == [one.text for one in together]
    assert len({one.text for one in together}) > 1


def test_sampled_replies_depend_on_the_seed_and_their_number_alone() -> None:
    rows = trips(6)
    predictor = model_of("hred", rows)
    histories = [row.utterances[:3] for row in rows]
    first = predictor.sample(histories, seed=5)
    assert [one.ids for one in first] == [
        predictor.sample_reply(history, seed=5, first=number).ids for number, history in enumerate(histories)
    ]
    assert [one.ids for one in predictor.sample(histories, seed=6)] != [one.ids for one in first]


def test_who_speaks_matters_and_replies() -> None:
    assert [next_speaker(said) for said in ([0], [0, 1], [0, 1, 0], [0, 0], [0, 1, 2, 2], [0, 1, 1])] == [
        1,
        0,
        1,
        1,
        1,
        0,
    ]
    predictor = model_of("hred", trips(6))
    alternating, named = predictor.histories(
        [["rome .", "oslo .", "rome ."], [("a", "rome ."), ("a", "oslo ."), ("b", "rome .")]]
    )
    assert (alternating.speakers, named.speakers) == ([0, 1, 0, 1], [0, 0, 1, 0])
    assert alternating.utterances == named.utterances


def test_histories_that_cannot_be_read_are_refused() -> None:
    predictor = model_of("hred", trips(6))
    for bad, message in (
        ([], "a history needs utterances with text"),
        (["rome .", " "], "a blank utterance"),
        ([3], "this is no utterance"),
        (["rome . " * 60], "120 tokens"),
    ):
        with pytest.raises(UserError, match=message):
            predictor.reply(bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a list of utterances"):
        predictor.reply("rome .")
    assert predictor.reply(["rome . " * 59]).text is not None


def test_flat_model_forgets_the_first_utterances_of_a_long_history() -> None:
    rows = trips(6)
    predictor = model_of("seq2seq", rows, context=12)
    long = [*rows[0].utterances, *rows[1].utterances]
    assert predictor.reply(long).ids == predictor.reply(long[-2:]).ids
    (history,) = predictor.histories([long])
    assert 6 <= predictor.reading.size(history)[1] <= 12
    assert reading_of(build(config_class("hred").tiny()).config).size(history)[0] == len(long)  # type: ignore[union-attr]


def test_evaluate_on_files_and_examples(tmp_path: Path) -> None:
    rows = trips(8)
    predictor = model_of("hred", rows)
    encoded = encode_dialogues(rows, predictor.tokenizer, 30, 32)
    loss = mean_loss(predictor.model, predictor.reading, encoded, predictor.device, 1000)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"utterances": row.utterances}) + "\n" for row in rows))
    (tmp_path / "a.txt").write_text("".join(" __eou__ ".join(row.utterances) + " __eou__\n" for row in rows))
    for data in (tmp_path / "a.jsonl", str(tmp_path / "a.txt"), [row.utterances for row in rows]):
        found = predictor.evaluate(data)
        assert found.count == 8 and found.loss == pytest.approx(loss, rel=1e-5)
        assert found.scores["perplexity"] == pytest.approx(math.exp(loss), rel=1e-4)


def test_parts_of_evaluation_see_what_training_saw() -> None:
    rows = trips(6)
    predictor = model_of("hred", rows)
    two, _ = predictor.last_replies(rows, utterances=2)
    assert two == [one.text for one in predictor.predict([row.utterances[-2:-1] for row in rows])]
    whole, _ = predictor.last_replies(rows, utterances=32)
    assert whole == [one.text for one in predictor.predict([row.utterances[:-1] for row in rows])]


@pytest.mark.slow
def test_hierarchical_model_remembers_what_a_model_of_one_utterance_cannot_know(tmp_path: Path) -> None:
    found = {}
    for name, changes in {"whole": [], "last": ["task.utterances=2"]}.items():
        list(train(load_recipe("trips", ["data.test=200", "data.valid=20", *changes]), tmp_path / name))
        stored = results(tmp_path / name)
        assert stored is not None
        found[name] = {score.name: score.value for score in stored.scores}
    assert found["whole"]["exact_match"] > 80  # six values of each fact: one in six is a guess
    assert found["last"]["exact_match"] < 40
    assert found["whole"]["perplexity"] < found["last"]["perplexity"] - 0.05
