"""Runs of language models: token files, starting from a trained model, and evaluation."""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from heedful.blocks.state import WindowCache
from heedful.cli.app import app
from heedful.config import render
from heedful.data.text.files import collect
from heedful.data.text.windows import encode_text
from heedful.errors import UserError
from heedful.models import build
from heedful.runs.artifacts import load_artifacts
from heedful.runs.evaluate import scored
from heedful.runs.load import load, read_recipe
from heedful.runs.recipe import load_recipe
from heedful.runs.train import Evaluated, Finished, Started, Step, train
from heedful.tasks import task_of
from heedful.tasks.language_model.perplexity import document_loss, sliding_loss, text_loss, windows_loss
from heedful.tasks.language_model.task import LanguageModelTask
from tolerance import near

TEXTS = [f"Once upon a time {number} mice were there.\nThey ate all {number} cheeses!" for number in range(40)]
TINY = [
    "tokenizer.vocab=290", "model={kind: gpt, width: 16, heads: 2, layers: 1, context: 24, dropout: 0.1}",
    "train.batch_tokens=120", "train.budget.steps=12", "train.save_every=6", "train.evaluate_every=6",
    "train.samples=2", "train.device=cpu", "decode.length=8",
]  # fmt: skip

FEW = ["train.budget.steps=2", "train.save_every=2", "train.evaluate_every=2", "train.samples=1"]


@pytest.fixture
def data(tmp_path: Path) -> str:
    """The override that names some documents."""
    (tmp_path / "some.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    parts = f"train: [{{kind: jsonl, files: [{tmp_path}/some.jsonl]}}]"
    return f"data={{kind: documents, {parts}, test: [{{kind: jsonl, files: [{tmp_path}/some.jsonl]}}], held_out: 0.1}}"


def run(overrides: list[str], folder: Path) -> list[Any]:
    return list(train(load_recipe("gpt-prose", overrides), folder))


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def test_token_files_train_the_same_weights_as_text(data: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["tokenize", "gpt-prose", "-o", str(tmp_path / "tokens"), "--jobs", "1", *TINY, data]
    )
    assert done.exit_code == 0, done.output
    events = run([*TINY, data], tmp_path / "text")
    tokens = [f"data={{kind: tokens, folder: {tmp_path}/tokens}}", "tokenizer=null"]
    others = run([*TINY[1:], *tokens], tmp_path / "files")
    assert weights(tmp_path / "text") == weights(tmp_path / "files")
    assert isinstance(others[-1], Finished)
    one, other = ([event for event in some if isinstance(event, Evaluated)] for some in (events, others))
    assert [event.loss for event in one] == [event.loss for event in other]
    assert [event.scores for event in one] == [event.scores for event in other]
    given, right, made = other[0].samples[0]
    assert any(text.startswith(given) and right in text for text in TEXTS)
    assert made
    (tmp_path / "tokens" / "train.ids").write_bytes(b"")
    with pytest.raises(UserError, match="not as the recipe says") as error:
        run([*TINY[1:], *tokens], tmp_path / "again")
    assert any(problem.where.endswith("train.ids") for problem in error.value.problems)  # type: ignore[union-attr]


def test_gpt_is_evaluated_in_overlapping_windows(data: str, tmp_path: Path) -> None:
    events = run([*TINY, data], tmp_path / "run")
    predictor, recipe = load(tmp_path / "run"), read_recipe(tmp_path / "run")
    task: Any = task_of(recipe)
    encoded = task.encode(task.read("test"), predictor.tokenizer)
    assert len(encoded.starts) == 40
    evaluations = [event for event in events if isinstance(event, Evaluated)]
    cpu = torch.device("cpu")
    assert evaluations[-1].split == "test"
    assert evaluations[-1].loss == sliding_loss(predictor.model, encoded, cpu, 12, 120)
    assert evaluations[-1].scores[0].signature.endswith("|context:24|stride:12")
    assert evaluations[0].scores[0].signature.endswith("|context:24|stride:24")
    found = CliRunner().invoke(app, ["eval", str(tmp_path / "run"), "--stride", "24", "--json"])
    assert found.exit_code == 0, found.output
    plain = json.loads(found.output)
    assert plain["loss"] == pytest.approx(windows_loss(document_loss, predictor.model, encoded, cpu, 120), rel=1e-6)
    assert plain["scores"]["perplexity"]["signature"].endswith("|context:24|stride:24")
    assert CliRunner().invoke(app, ["eval", str(tmp_path / "run"), "--stride", "25"]).exit_code != 0
    once = load_recipe("gpt-prose", [*TINY, data, "task.stride=1"])
    assert scored(predictor, once, "test").loss == sliding_loss(predictor.model, encoded, cpu, 1, 120)


def test_run_starts_from_a_trained_model_with_its_tokenizer(data: str, tmp_path: Path) -> None:
    run([*TINY, data], tmp_path / "first")
    start = [*TINY[2:], data, "tokenizer=null", f"start.folder={tmp_path}/first"]
    recipe = load_recipe("gpt-prose", [*start, "model={dropout: 0.0, attention_dropout: 0.0}"])
    assert recipe.model == read_recipe(tmp_path / "first").model.model_copy(  # type: ignore[union-attr]
        update={"dropout": 0.0, "attention_dropout": 0.0, "vocab": 290}
    )
    events = list(train(recipe, tmp_path / "second"))
    step = next(event for event in events if isinstance(event, Step))
    trained, task = load(tmp_path / "first"), task_of(recipe)
    batch = task.batches(task.encode(task.read("train"), trained.tokenizer), False, False).at(0)
    loss = document_loss(trained.model, batch)  # where the first one ended
    assert step.loss == pytest.approx(float(loss.plain / loss.count), rel=1e-5)
    assert (tmp_path / "first/tokenizer.json").read_bytes() == (tmp_path / "second/tokenizer.json").read_bytes()
    shutil.rmtree(tmp_path / "first")  # everything is stored in the run
    again = list(train(read_recipe(tmp_path / "second"), tmp_path / "second"))
    assert isinstance(again[-1], Finished)
    with pytest.raises(UserError, match="there is no such folder"):
        load_recipe("gpt-prose", start)


def test_window_trains_evaluates_generates_and_does_not_change(data: str, tmp_path: Path) -> None:
    small = [*TINY, *FEW, "model={kind: gpt, width: 16, heads: 2, layers: 1, context: 24, window: 6, sink: 2}", data]
    events = run(small, tmp_path / "run")
    predictor: Any = load(tmp_path / "run")
    assert isinstance(predictor.start(1), WindowCache)
    recipe = read_recipe(tmp_path / "run")
    task: Any = task_of(recipe)
    encoded = task.encode(task.read("test"), predictor.tokenizer)
    full = build(recipe.model.model_copy(update={"vocab": predictor.tokenizer.vocab, "window": None, "sink": 0}))
    full.load_state_dict(predictor.model.state_dict())
    losses = [sliding_loss(one, encoded, torch.device("cpu"), 12, 120) for one in (predictor.model, full.eval())]
    assert next(event.loss for event in events if isinstance(event, Evaluated) and event.split == "test") == losses[0]
    assert losses[0] != losses[1]
    with pytest.raises(UserError, match=r"another recipe(.|\n)*model.window: 6 in the folder, 7 now"):
        run([*small, "model.window=7"], tmp_path / "run")
    start = [*TINY[2:], *FEW, data, "tokenizer=null", f"start.folder={tmp_path}/run"]
    assert isinstance(run([*start, "model={window: 9}"], tmp_path / "wider")[-1], Finished)


def test_mismatched_weights_are_named(data: str, tmp_path: Path) -> None:
    run([*TINY, data], tmp_path / "first")
    start = [*TINY[2:], data, "tokenizer=null", f"start.folder={tmp_path}/first"]
    with pytest.raises(UserError, match="the weights do not fit the model") as error:
        run([*start, "model={context: 12}"], tmp_path / "second")
    assert "positions" in str(error.value)


def test_other_models_read_across_document_ends(data: str) -> None:
    recipe = load_recipe("gpt-prose", [*TINY, "model={kind: rnn_lm}", data, "tokenizer={kind: words, vocab: 60}"])
    task = LanguageModelTask(recipe)  # type: ignore[arg-type]
    read = task.read("train")
    encoded = task.encode(read, task.learn(read))
    assert encoded.starts.tolist() == [0]
    assert encoded.ids.tolist() == encode_text(collect(read.documents), task.learn(read), 24).ids.tolist()  # type: ignore[union-attr]


def test_text_shorter_than_a_window_trains_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab\ncd\n")
    text = [f"data={{kind: text, root: {tmp_path}, train: a.txt}}", "tokenizer={kind: characters, vocab: 20}"]
    events = run([*TINY, *text, "train.budget.steps=2"], tmp_path / "run")
    (started,) = (event for event in events if isinstance(event, Started))
    assert any("fewer than a window of 24" in note for note in started.notes)
    assert isinstance(events[-1], Finished)


def test_too_few_documents_for_validation_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("only one\n")
    data = f"data={{kind: documents, root: {tmp_path}, train: [{{kind: text, files: [a.txt]}}]}}"
    with pytest.raises(UserError, match="there is no text for valid"):
        run([*TINY, data], tmp_path / "run")


def test_small_gpts_use_threads_and_tiny_ones_do_not() -> None:
    for width, threads in ((8, 1), (128, 6)):
        recipe = load_recipe("gpt-prose", [f"model.width={width}", "model.vocab=1024"])
        assert task_of(recipe).threads(build(recipe.model), 6) == threads


@pytest.mark.parametrize("data", [b"\xff\xfe{}", b"", b"{", b'{"added_tokens": 3}'])
def test_damaged_tokenizer_is_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(data)
    with pytest.raises(UserError) as error:
        load_artifacts(LanguageModelTask, tmp_path)
    assert str(path) in str(error.value.where)


# ------------------------------------------------------------------ carried state
def carried_recipe(folder: Path, *changes: str) -> Any:
    """A recipe of a recurrent net that carries its state from step to step."""
    (folder / "text.txt").write_text("\n".join(f"{number} mice ate {number * 7 % 13} cheeses." for number in range(60)))
    overrides = [
        f"data.root={folder}", "data.train=text.txt", "task.carry=true", "model.width=8", "model.hidden=8",
        "model.context=6", "train.batch_tokens=30", "train.device=cpu", "train.budget.steps=14", "train.save_every=5",
        "train.evaluate_every=5", "train.keep=9", "train.samples=1", "decode.length=8",
    ]  # fmt: skip
    return load_recipe("language-model", [*overrides, *changes])


XL = "model={kind: transformer_xl, width: 8, heads: 2, layers: 2, hidden: 12, context: 6, memory: 8}"
CLUSTERS = XL.replace("memory: 8", "memory: 8, cutoffs: [5, 9], divisor: 2, dropout: 0.1")
STATES = {"recurrent": (), "memory": (XL,), "clusters": (CLUSTERS,)}


def checkpoints(folder: Path) -> dict[str, bytes]:
    """The bytes of the tensors of all checkpoints."""
    return {f"{file.parent.name}/{file.name}": file.read_bytes() for file in folder.glob("checkpoints/*/*.safetensors")}


@pytest.mark.parametrize("kind", STATES)
def test_run_with_a_carry_resumes_exactly_after_a_kill(tmp_path: Path, kind: str) -> None:
    recipe = carried_recipe(tmp_path, *STATES[kind])
    whole = [event.loss for event in train(recipe, tmp_path / "whole") if isinstance(event, Step)]
    child = os.fork()
    if not child:
        try:
            for event in train(recipe, tmp_path / "killed"):
                if isinstance(event, Step) and event.step == 8:
                    os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    events = list(train(recipe, tmp_path / "killed"))
    assert [event.loss for event in events if isinstance(event, Step)] == whole[5:]
    assert any("resumes bit for bit" in note for event in events if isinstance(event, Started) for note in event.notes)
    found = checkpoints(tmp_path / "killed")
    assert found == checkpoints(tmp_path / "whole")
    assert sum(name.endswith("/carry.safetensors") for name in found) == 3
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")


def test_state_is_saved_only_when_configured_and_cannot_be_added_later(tmp_path: Path) -> None:
    alone, onward = (carried_recipe(tmp_path, f"task.carry={carry}") for carry in ("false", "true"))
    assert "carry" not in render(alone)
    assert "carry: true" in render(onward)
    for recipe, folder in ((alone, tmp_path / "alone"), (onward, tmp_path / "onward")):
        with closing(train(recipe, folder)) as events:
            assert any(event.step == 6 for event in events if isinstance(event, Step))
    assert {name.split("/")[1] for name in checkpoints(tmp_path / "alone")} == {
        "model.safetensors",
        "optimizer.safetensors",
    }
    for recipe, folder in ((onward, "alone"), (alone, "onward")):
        with pytest.raises(UserError, match="another recipe") as error:
            list(train(recipe, tmp_path / folder))
        assert "task.carry" in str(error.value.found)


def test_only_recurrent_models_have_a_carry(data: str) -> None:
    with pytest.raises(UserError, match="a gpt has no state to carry"):
        load_recipe("gpt-prose", [data, *TINY, "task.carry=true"])


def test_evaluation_lanes_start_with_a_zero_state(tmp_path: Path) -> None:
    recipe = carried_recipe(tmp_path)
    list(train(recipe, tmp_path / "run"))
    task: Any = task_of(recipe)
    predictor: Any = load(tmp_path / "run")
    encoded = task.encode(task.read("valid"), predictor.tokenizer)
    one = task_of(carried_recipe(tmp_path, "train.batch_tokens=6"))  # a single lane
    near_whole = one.quick_loss(predictor, encoded)
    assert near_whole == near(task.loss(predictor, encoded))
    assert task.quick_loss(predictor, encoded) != near_whole


def test_steps_with_a_memory_compile_and_those_of_recurrent_nets_do_not(tmp_path: Path) -> None:
    assert carried_recipe(tmp_path, XL, "train.compile=true").train.compile is True
    with pytest.raises(UserError, match="carry a recurrent state cannot be compiled"):
        carried_recipe(tmp_path, "train.compile=true")


def test_generator_continues_beyond_its_memory_in_any_batch(tmp_path: Path) -> None:
    for _ in train(carried_recipe(tmp_path, XL), tmp_path / "run"):
        pass
    writer: Any = load(tmp_path / "run")
    prompts = ["7 mice ate", "", "12 mice ate 3 cheeses.\n13 mice"]
    together = writer.generate(prompts, length=20, seed=3)
    assert [one.completion for one in together] == [
        writer.generate([prompt], length=20, seed=3, first=number)[0].completion
        for number, prompt in enumerate(prompts)
    ]
    best = writer.generate(prompts, length=12, beams=3)
    assert [one.ids for one in best] == [writer.generate([prompt], length=12, beams=3)[0].ids for prompt in prompts]
    assert all(len(one.ids) == 20 for one in together)


def test_longer_memory_in_evaluation_and_generation(tmp_path: Path) -> None:
    recipe = carried_recipe(tmp_path, XL.replace("memory: 8", "memory: 8, clamp: 8"))
    for _ in train(recipe, tmp_path / "run"):
        pass

    def scores(*options: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["eval", str(tmp_path / "run"), "--split", "valid", "--json", *options])
        assert done.exit_code == 0, done.output
        return dict(json.loads(done.stdout))

    writer: Any = load(tmp_path / "run")
    task: Any = task_of(recipe)
    text = task.encode(task.read("valid"), writer.tokenizer)
    for memory in (3, 8, 50):
        found = scores("--memory", str(memory))
        assert found["loss"] == near(
            text_loss(writer.model, text, writer.device, writer.model.start(1, writer.device, memory))
        )
        assert found["scores"]["perplexity"]["signature"].endswith(f"|memory:{memory}")
    assert scores()["loss"] == scores("--memory", "8")["loss"] != scores("--memory", "50")["loss"]
    assert "memory" not in scores()["scores"]["perplexity"]["signature"]

    whole = "12 mice ate 3 cheeses.\n13 mice ate 4"
    ids = writer.prompt_ids(whole)
    with torch.no_grad():
        logits, _ = writer.model(torch.tensor([ids]), writer.model.start(1, writer.device, 50))
    (long,) = writer.generate([whole], memory=50, length=1, temperature=0.0)
    (usual,) = writer.generate([whole], length=1, temperature=0.0)
    assert long.log_probability == near(float(logits[0, -1].log_softmax(-1)[long.ids[0]]))
    assert long.log_probability != near(usual.log_probability)
    done = CliRunner().invoke(
        app, ["generate", str(tmp_path / "run"), whole, "--memory", "50", "--greedy", "--json", "--length", "1"]
    )
    assert json.loads(done.stdout)["log_probability"] == long.log_probability


def test_memory_that_the_model_does_not_know_is_rejected(tmp_path: Path) -> None:
    for _ in train(carried_recipe(tmp_path, XL), tmp_path / "run"):
        pass
    for command in (["eval", str(tmp_path / "run"), "--split", "valid"], ["generate", str(tmp_path / "run"), "7"]):
        done = CliRunner().invoke(app, [*command, "--memory", "9"])
        assert isinstance(done.exception, UserError)
        assert "longer distances than the model has learned" in str(done.exception)
        assert "model.clamp=8" in str(done.exception)
    with pytest.raises(UserError, match=r"learns distances up to 8; write at most this, or set model\.clamp: 8"):
        carried_recipe(tmp_path, XL, "decode.memory=9")
    with pytest.raises(UserError, match="an rnn_lm has no memory; leave this out"):
        carried_recipe(tmp_path, "decode.memory=9")
    recurrent = carried_recipe(tmp_path)
    for _ in train(recurrent, tmp_path / "rnn"):
        pass
    done = CliRunner().invoke(app, ["eval", str(tmp_path / "rnn"), "--split", "valid", "--memory", "9"])
    assert "this model has no memory of tokens" in str(done.exception)
