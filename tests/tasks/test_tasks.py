"""Every task: the tables agree, and runs of any task resume to the same end."""

from __future__ import annotations

import inspect
import json
import shlex
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from heedful.cli.display import scoreboard
from heedful.config import config_classes, kinds_in
from heedful.errors import UserError
from heedful.models import MODELS, kinds_of
from heedful.runs.evaluate import results, scored
from heedful.runs.load import load, read_recipe
from heedful.runs.recipe import load_recipe
from heedful.runs.train import Event, Finished, Started, train
from heedful.tasks import TASKS, recipe_class, task_class, task_of
from heedful.tasks.base import Evaluated, Task
from heedful.tasks.classification.predictor import TextClassifier
from heedful.tasks.language_model.bidirectional import BidirectionalLanguageModel
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.pretraining.predictor import TextEncoder
from heedful.tasks.translation.predictor import Translator
from heedful.training.checkpoint.folder import newest
from heedful.training.loop import Step
from heedful.training.metrics import Score

SMALL = [
    "train.batch_tokens=256", "train.budget.steps=12", "train.evaluate_every=6", "train.save_every=6",
    "train.log_every=1", "train.samples=2", "train.device=cpu",
]  # fmt: skip
NUMBERS = [*SMALL, "data.train=120", "data.valid=8", "data.test=8", "tokenizer.vocab=90"]
TINY_LM = [
    *SMALL, "tokenizer={kind: characters, vocab: 60}", "model.width=12", "model.hidden=16", "model.layers=1",
    "model.context=16",
]  # fmt: skip
TINY_GPT = [
    *SMALL, "tokenizer={kind: characters, vocab: 60}", "model.width=16", "model.heads=2", "model.layers=1",
    "model.context=16", "model.dropout=0.1", "model.attention_dropout=0.1",
]  # fmt: skip
PAIRS = "tokenizer={kind: byte_pairs, vocab: 290}"
SEQ2SEQ = (
    "kind: seq2seq, width: 16, hidden: 16, layers: 1, context: 60, encoder: {kind: recurrent, hidden: 16, layers: 1}"
)


@pytest.fixture
def text(tmp_path: Path) -> list[str]:
    """Overrides for a generated text."""
    lines = ["All the world's a stage,", "and all the men and women", "", "merely players;", "they have exits"] * 12
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines[: 60 if name == "train" else 12]) + "\n")
    return [f"data={{kind: text, root: {tmp_path}, train: train.txt, valid: valid.txt, test: test.txt}}"]


# ------------------------------------------------------------------ the tables
def test_every_task_has_a_recipe_for_the_same_models() -> None:
    for kind, task in TASKS.items():
        recipe = recipe_class(kind)
        assert kind in kinds_in(config_classes(recipe.model_fields["task"].annotation))
        assert kinds_in(config_classes(recipe.model_fields["model"].annotation)) == set(kinds_of(*task.roles))
        for role in task.also:
            for model in kinds_of(role):
                other = recipe_class(kind, model)
                assert kind in kinds_in(config_classes(other.model_fields["task"].annotation))
                assert model in kinds_in(config_classes(other.model_fields["model"].annotation))
        assert set(task.models) <= MODELS.keys()


@pytest.mark.parametrize("kind", TASKS)
def test_every_task_has_the_required_methods(kind: str) -> None:
    task = task_class(kind)
    for name, asked in inspect.getmembers(Task, inspect.isfunction):
        if not name.startswith("_"):
            assert list(inspect.signature(getattr(task, name)).parameters) == list(inspect.signature(asked).parameters)
    assert task.words.testing.format("valid") != task.words.testing.format("test")
    fields = recipe_class(kind).model_fields
    decode = fields["task"] if kind == "reconstruction" else fields.get("decode")  # noise is part of the task
    assert task.decoding is (decode.annotation if decode else None)


@pytest.mark.parametrize(
    ("shipped", "loss", "first"),
    [
        ("numbers", 0.0, "test: loss 0.00000, perplexity 1.0000"),
        ("numbers", 1e6, "test: loss 1000000.00000, perplexity inf"),
        ("language-model", 0.5, "test: loss 0.50000"),  # its perplexity is a score
        ("sentiment-trees", 0.5, "test: loss 0.50000"),
    ],
)
def test_task_names_its_loss(shipped: str, loss: float, first: str) -> None:
    task = task_of(load_recipe(shipped, ["data.root=."] if shipped != "numbers" else []))
    lines = scoreboard(Evaluated(1, "test", loss, (Score("accuracy", 1.0, "trees:1"),), (), 0), task)
    assert lines[:2] == [first, "  accuracy    1.00   trees:1"]
    assert ["BLEU" in line for line in lines[2:]] == [True] * (shipped == "numbers")  # whose references are one word


# ------------------------------------------------------------------ whole runs
Case = Callable[[list[str]], tuple[str, list[str], type]]
LANGUAGES = [
    *SMALL, "train.batch_examples=null", "train.budget.epochs=null", "data.train=200", "data.valid=8", "data.test=8",
    "tokenizer.vocab=90", "model.encoder={width: 32, heads: 2, layers: 1, hidden: 64, context: 32}",
    "train.optimizer.lr=2e-2", "train.schedule.warmup=0", "data.languages=[de, en]",
]  # fmt: skip
BERT = [
    *SMALL, "train.batch_tokens=512", "tokenizer.vocab=80", "train.optimizer.lr=3e-2", "train.schedule.warmup=0",
    "model={width: 16, heads: 2, layers: 1, hidden: 32, context: 24}",
]  # fmt: skip


def documents(text: list[str]) -> str:
    """The same files as documents, with a blank line between."""
    root = text[0].partition("root: ")[2].partition(",")[0]
    made = "{{kind: text, files: [{0}.txt], between: blank_lines}}"
    parts = ", ".join(f"{name}: [{made.format(name)}]" for name in ("train", "valid", "test"))
    return f"data={{kind: documents, root: {root}, {parts}}}"


CASES: dict[str, Case] = {
    "bert": lambda text: ("bert-prose", [*BERT, documents(text)], TextEncoder),
    "bert packed": lambda text: ("bert-prose", [*BERT, documents(text), "train.batching=packed"], TextEncoder),
    "bert workers": lambda text: ("bert-prose", [*BERT, documents(text), "train.workers=2"], TextEncoder),
    "bert words": lambda text: (
        "bert-prose",
        [*BERT, documents(text), "task.whole_words=true", "model.next_sentence=false", "train.accumulate=2"],
        TextEncoder,
    ),
    "classifier": lambda text: ("number-languages", LANGUAGES, TextClassifier),
    "by examples": lambda text: ("number-languages", [*LANGUAGES, "train.batch_examples=16"], TextClassifier),
    "seq2seq": lambda text: ("numbers", [*NUMBERS, f"model={{{SEQ2SEQ}}}"], Translator),
    "hard": lambda text: ("numbers", [*NUMBERS, f"model={{{SEQ2SEQ}, attention: {{choice: hard}}}}"], Translator),
    "gpt": lambda text: ("gpt-prose", [*TINY_GPT, *text], TextGenerator),
    "gpt documents": lambda text: ("gpt-prose", [*TINY_GPT, PAIRS, documents(text), "train.workers=1"], TextGenerator),
    "rnn_lm": lambda text: ("language-model", [*TINY_LM, "train.optimizer.lr=0.02", *text], TextGenerator),
    "elmo": lambda text: ("elmo", [*TINY_LM, *text], BidirectionalLanguageModel),
}


def stopped(recipe: Any, run: Path, after: int) -> list[Event]:
    """The events of a run that is interrupted after some steps."""
    asked = count()
    return list(train(recipe, run, lambda: next(asked) >= after))


# Seq2seq also resumes with random choices, GPT on documents; two workers are in the tests of the loop.
ALIKE = ("bert workers", "by examples", "seq2seq", "gpt")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in CASES])
def test_run_of_any_task_resumes_to_the_same_end_and_is_loaded(name: str, text: list[str], tmp_path: Path) -> None:
    shipped, overrides, kind = CASES[name](text)
    recipe = load_recipe(shipped, overrides)
    events = list(train(recipe, tmp_path / "whole"))
    assert isinstance(events[-1], Finished) and not events[-1].stopped
    losses = [event.loss for event in events if isinstance(event, Step)]
    assert losses[-1] < losses[0]
    assert sum(isinstance(event, Evaluated) for event in events) == 3

    for after in (4, 5):
        assert stopped(recipe, tmp_path / "broken", after)[-1].stopped  # type: ignore[union-attr]
    again = list(train(recipe, tmp_path / "broken"))
    assert next(event.step for event in again if isinstance(event, Started)) == 9
    for file in ("model/model.safetensors", "model/config.json", "tokenizer.json"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "broken" / file).read_bytes()
    assert results(tmp_path / "whole") == results(tmp_path / "broken")

    predictor = load(tmp_path / "whole")
    assert type(predictor) is kind
    stored = results(tmp_path / "whole")
    assert stored is not None
    assert scored(predictor, read_recipe(tmp_path / "whole"), "test", stored.step) == stored
    shutil.rmtree(tmp_path / "broken" / "model")  # as during training
    assert type(load(tmp_path / "broken")) is kind


def test_best_language_model_has_the_lowest_perplexity(text: list[str], tmp_path: Path) -> None:
    recipe = load_recipe("language-model", [*TINY_LM, *text, "train.save_every=3", "train.evaluate_every=3"])
    events = list(train(recipe, tmp_path / "run"))
    seen = {event.step: event.loss for event in events if isinstance(event, Evaluated) and event.split == "valid"}
    state = newest(tmp_path / "run", 1)[0][0].state
    best = min(seen, key=lambda step: seen[step])
    assert state["best"] == [[best, -seen[best]]]


def test_language_model_scores_are_of_the_whole_text(text: list[str], tmp_path: Path) -> None:
    recipe = load_recipe("language-model", [*TINY_LM, *text])
    events = list(train(recipe, tmp_path / "run"))
    test = next(event for event in events if isinstance(event, Evaluated) and event.split == "test")
    whole = (tmp_path / "test.txt").read_text()
    writer = load(tmp_path / "run")
    named = {score.name: score for score in test.scores}
    assert named["perplexity"].value == pytest.approx(writer.perplexity(whole))
    assert named["bits_per_character"].value == pytest.approx(writer.bits_per_character(whole))
    tokens = f"tokens:{len(whole)}|unknown:0"
    assert named["perplexity"].signature == tokens
    assert named["bits_per_character"].signature == f"{tokens}|characters:{len(whole)}"
    assert named["bits_per_byte"].signature == f"{tokens}|bytes:{len(whole)}"
    counts = f"words:{len(whole.split())}|lines:{len(whole.splitlines())}"
    assert named["word_perplexity"].signature == f"{tokens}|{counts}"
    assert len(test.samples) == 2
    for prompt, follows, written in test.samples:
        assert f"{prompt}\n{follows}" in whole
        assert len(written) == writer.settings.length or len(written) == 100


@pytest.mark.parametrize("vocab", [60, 20, 14])
def test_many_unknown_tokens_are_noted(text: list[str], tmp_path: Path, vocab: int) -> None:
    whole = (tmp_path / "train.txt").read_text()
    known = sum(count for letter, count in Counter(whole.replace("\n", "")).most_common(vocab - 4))
    share = 1 - (known + whole.count("\n")) / len(whole)
    recipe = load_recipe("language-model", [*TINY_LM, *text, f"tokenizer.vocab={vocab}"])
    (started,) = (event for event in train(recipe, tmp_path / "run") if isinstance(event, Started))
    shares = [note.split(" of the tokens of the training text are unknown")[0] for note in started.notes]
    assert shares == ([f"{share:.1%}"] if vocab < 60 else [])


# ------------------------------------------------------------------ what is refused
def test_model_folder_of_another_task_is_named(text: list[str], tmp_path: Path) -> None:
    list(train(load_recipe("language-model", [*TINY_LM, *text]), tmp_path / "run"))
    config = tmp_path / "run" / "model" / "config.json"
    (config.parent / "manifest.json").unlink()
    content = json.loads(config.read_text())
    assert (content["task"], content["model"]["kind"]) == ("language_model", "rnn_lm")
    config.write_text(json.dumps({**content, "task": "translation"}))
    with pytest.raises(UserError, match="invalid value for kind") as error:
        load(tmp_path / "run")
    assert error.value.expected == f"one of {', '.join(kinds_of('seq2seq'))}"
    config.write_text(json.dumps({**content, "task": "telepathy"}))
    with pytest.raises(UserError, match="invalid value for task"):
        load(tmp_path / "run")


def test_suggested_commands_fit_the_model(text: list[str], tmp_path: Path) -> None:
    def suggestion(name: str, overrides: list[str]) -> str:
        return "\n".join(task_of(load_recipe(name, overrides)).next(tmp_path / "a run", None))

    assert "--align" in suggestion("numbers", [])
    assert "--align" in suggestion("numbers", [f"model={{{SEQ2SEQ}}}"])
    assert "--align" not in suggestion("numbers", [f"model={{{SEQ2SEQ}, attention: null}}"])
    assert f"heedful generate '{tmp_path}/a run'" in suggestion("language-model", text)
    assert "layers" in suggestion("elmo", text)
    for name, overrides in (("numbers", []), ("language-model", text)):  # the suggested command works as it is
        verb, folder, sample, *_ = shlex.split(suggestion(name, overrides).splitlines()[0])[1:]
        assert (verb, folder) == ("translate" if name == "numbers" else "generate", f"{tmp_path}/a run")
        assert sample.replace(" ", "").isalpha()
