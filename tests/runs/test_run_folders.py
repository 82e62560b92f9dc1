"""Consistency of a run folder, extending a run, and choosing a checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command

from heedful.cli.app import app
from heedful.errors import UserError
from heedful.runs.evaluate import results, used
from heedful.runs.load import load
from heedful.runs.recipe import Recipe, load_recipe
from heedful.runs.train import Event, Finished, Noted, Stage, Started, train
from heedful.tasks.translation import task as translation
from heedful.training.checkpoint.folder import newest
from heedful.training.checkpoint.manifest import read_manifest
from heedful.training.loop import Step
from heedful.training.metrics import Score

pytestmark = pytest.mark.usefixtures("no_loss_curve")

WORDS = (("one", "eins"), ("two", "zwei"), ("three", "drei"), ("four", "vier"))
TINY = [
    "tokenizer={kind: wordpiece, vocab: 40}", "model.width=16", "model.heads=2", "model.hidden=32", "model.context=24",
    "model.encoder_layers=1", "model.decoder_layers=1", "train.batch_tokens=256", "train.accumulate=1",
    "train.budget.steps=8", "train.log_every=1", "train.evaluate_every=4", "train.save_every=2", "train.samples=1",
    "train.keep=9", "train.average=1", "train.schedule={kind: constant}", "train.optimizer.lr=1e-2", "decode.beams=1",
]  # fmt: skip


def lines(shift: int) -> str:
    return "".join(f"{WORDS[n % 4][0]} {WORDS[(n + shift) % 4][0]}\t{WORDS[n % 4][1]}\n" for n in range(24))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for shift, split in enumerate(("train", "valid", "test")):
        (folder / f"{split}.tsv").write_text(lines(shift))
    return folder


def recipe(data: Path, *changes: str) -> Recipe:
    files = f"data={{kind: tsv, root: {data}, train: train.tsv, valid: valid.tsv, test: test.tsv}}"
    return load_recipe("multi30k", [files, *TINY, *changes])


def until(step: int, run: Path, data: Path, *changes: str) -> list[Event]:
    """The events of a run that stops after a step."""
    at, events = [0], []
    for event in train(recipe(data, *changes), run, lambda: at[0] >= step):
        events.append(event)
        at[0] = event.step if isinstance(event, Started | Step) else at[0]
    return events


def notes(events: list[Event]) -> str:
    return "\n".join(next(event for event in events if isinstance(event, Started)).notes)


def steps(run: Path) -> list[int]:
    return sorted(point.step for point in newest(run, 99)[0])


def weights(run: Path, step: int) -> bytes:
    return (run / f"checkpoints/step-{step:08d}/model.safetensors").read_bytes()


def scored_again(events: list[Event]) -> bool:
    return any(isinstance(event, Stage) and event.name == "translating the test set" for event in events)


@pytest.fixture(scope="module")
def complete(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("complete") / "run"
    list(train(recipe(data), run))
    return run


@pytest.fixture(scope="module")
def unfinished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("unfinished") / "run"
    until(4, run, data)
    return run


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Path], Path]:
    def make(run: Path) -> Path:
        return Path(shutil.copytree(run, tmp_path / "copy"))

    return make


# ------------------------------------------------------------------ consistency
def test_checkpoint_records_what_it_was_made_from(complete: Path, data: Path) -> None:
    about = newest(complete, 1)[0][0].manifest.about
    assert about["recipe"] == recipe(data).model_dump(mode="json")
    assert {"run", "tokenizer", "data", "valid", "test"} <= about.keys()
    assert about["run"] == json.loads((complete / "env.json").read_text())["run"]
    assert len({about["data"], about["valid"], about["test"]}) == 3


@pytest.mark.parametrize("change", ["train.optimizer.lr=2e-2", "train.seed=1", "train.seed=0"])
def test_checkpoint_of_another_run_is_rejected(
    unfinished: Path, data: Path, tmp_path: Path, copy: Callable[[Path], Path], change: str
) -> None:
    until(6, tmp_path / "other", data, change)  # the last has equal settings, but is another run
    run = copy(unfinished)
    shutil.copytree(tmp_path / "other/checkpoints/step-00000006", run / "checkpoints/step-00000006")
    for use in (lambda: list(train(recipe(data), run)), lambda: load(run)):
        with pytest.raises(UserError, match="made by another run") as error:
            use()
        assert error.value.where == str(run / "checkpoints/step-00000006")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lr: 0.01", "lr: 0.02", "train.optimizer.lr: 0.01 in step-00000004, 0.02 now"),
        ("seed: 0", "seed: 1", "train.seed: 0 in step-00000004, 1 now"),
    ],
)
def test_edited_recipe_is_rejected_with_advice_to_branch(
    unfinished: Path, copy: Callable[[Path], Path], old: str, new: str, message: str
) -> None:
    run = copy(unfinished)
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text.replace(old, new))
    with pytest.raises(UserError, match="not the recipe that step-00000004 was made with") as error:
        list(train(load_recipe(str(run / "recipe.yaml")), run))
    assert message in str(error.value.found) and f"start.folder={run}" in str(error.value.todo)


def test_model_is_rejected_with_another_tokenizer_or_recipe(unfinished: Path, copy: Callable[[Path], Path]) -> None:
    run = copy(unfinished)
    good, text = load(run).translate(["one two"]), (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text.replace("positions: sinusoid", "positions: none"))
    with pytest.raises(UserError, match=r"not the recipe that step-00000004"):
        load(run)
    (run / "recipe.yaml").write_text(text.replace("lr: 0.01", "lr: 0.5"))  # does not matter for prediction
    assert load(run).translate(["one two"]) == good
    tokenizer = json.loads((run / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    one, two = list(vocab)[-2:]
    vocab[one], vocab[two] = vocab[two], vocab[one]
    (run / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match="not what the run started with") as error:
        load(run)
    assert error.value.where == str(run / "tokenizer.json")


def test_changed_validation_data_are_rejected_and_test_data_noted(
    unfinished: Path, data: Path, copy: Callable[[Path], Path]
) -> None:
    run = copy(unfinished)
    own = Path(shutil.copytree(data, run.parent / "own"))
    assert "data.root was" in notes(until(4, run, own))  # the same contents in another place
    assert str(own) in (run / "recipe.yaml").read_text()
    (own / "valid.tsv").write_text(lines(3))
    with pytest.raises(UserError, match="not what the run started with") as error:
        list(train(recipe(own), run))
    assert error.value.where == "the validation data"
    shutil.copy(data / "valid.tsv", own / "valid.tsv")
    (own / "test.tsv").write_text(lines(3))
    assert "the test data changed" in notes(until(4, run, own))


def test_model_of_another_run_is_rejected_and_rewritten(
    complete: Path, data: Path, tmp_path: Path, copy: Callable[[Path], Path]
) -> None:
    run, other = copy(complete), tmp_path / "other"
    list(train(recipe(data, "train.seed=3"), other))
    shutil.rmtree(run / "model")
    shutil.copytree(other / "model", run / "model")
    with pytest.raises(UserError, match="made by another run") as error:
        load(run)
    assert error.value.where == str(run / "model") and results(run) is None
    assert load(run, checkpoint="last") is not None
    list(train(recipe(data), run))
    assert (run / "model/model.safetensors").read_bytes() == (complete / "model/model.safetensors").read_bytes()
    assert results(run) == results(complete)


def as_before(run: Path) -> None:
    """Turn a folder into one of the previous version, without the records of consistency."""
    from heedful.training.checkpoint.manifest import commit

    for folder in [*run.glob("checkpoints/*"), *run.glob("model")]:
        manifest = read_manifest(folder)
        contents = {name: [(folder / name).read_bytes()] for name in manifest.files}
        if "state.json" in contents:
            state = json.loads(contents["state.json"][0])
            best = state.pop("best")
            state |= {"best_step": best[0][0], "best_score": best[0][1]} if best else {}
            for name in ("regular", "highest", "waited"):
                del state[name]
            contents["state.json"] = [json.dumps(state).encode()]
        gone = ("run", "recipe", "valid", "test", "checkpoint") if folder.name != "model" else ("run", "checkpoint")
        commit(folder, contents, manifest.step, {k: v for k, v in manifest.about.items() if k not in gone})
    for file in (run / "env.json", run / "results.json"):
        if file.exists():
            content = json.loads(file.read_text())
            file.write_text(json.dumps({k: v for k, v in content.items() if k not in ("run", "of", "digest")}))
    text = (run / "recipe.yaml").read_text()
    for name in ("use", "keep_best", "patience"):
        text = "".join(line for line in text.splitlines(keepends=True) if not line.strip().startswith(f"{name}:"))
    (run / "recipe.yaml").write_text(text)


def test_run_of_the_previous_version_loads_and_resumes(
    unfinished: Path, complete: Path, data: Path, tmp_path: Path
) -> None:
    old = Path(shutil.copytree(unfinished, tmp_path / "old"))
    as_before(old)
    assert load(old).translate(["one"]) == load(unfinished).translate(["one"])
    assert isinstance(list(train(recipe(data), old))[-1], Finished)
    assert weights(old, 8) == weights(complete, 8)
    assert (old / "model/model.safetensors").read_bytes() == (complete / "model/model.safetensors").read_bytes()
    done = Path(shutil.copytree(complete, tmp_path / "done"))
    as_before(done)
    assert results(done) == results(complete) and used(done) is None
    assert scored_again(list(train(recipe(data), done)))  # nothing records what they were made from
    assert results(done) == results(complete)


# ------------------------------------------------------------------ results
def test_complete_run_is_left_unchanged(complete: Path, data: Path, copy: Callable[[Path], Path]) -> None:
    run = copy(complete)
    before = (run / "results.json").read_bytes()
    assert not scored_again(list(train(recipe(data), run)))
    assert (run / "results.json").read_bytes() == before


def test_edited_results_are_recomputed(complete: Path, data: Path, copy: Callable[[Path], Path]) -> None:
    run = copy(complete)
    content = json.loads((run / "results.json").read_text())
    (run / "results.json").write_text(json.dumps({**content, "loss": 0.001}))
    assert results(run) is None
    assert scored_again(list(train(recipe(data), run)))
    assert results(run) == results(complete)


def test_changed_test_file_is_scored_again(complete: Path, data: Path, copy: Callable[[Path], Path]) -> None:
    run = copy(complete)
    own = Path(shutil.copytree(data, run.parent / "own"))
    (own / "test.tsv").write_text(lines(3).replace("eins", "zwei"))
    assert scored_again(list(train(recipe(own), run)))
    found = results(run)
    assert found is not None and found.loss != results(complete).loss  # type: ignore[union-attr]
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in logged if line.get("split") == "test"] == [found.loss]


def test_starting_over_with_other_data_leaves_no_old_files(
    complete: Path, data: Path, tmp_path: Path, copy: Callable[[Path], Path]
) -> None:
    run = copy(complete)
    own = Path(shutil.copytree(data, tmp_path / "own"))
    (own / "train.tsv").write_text(lines(2).replace("vier", "fuenf"))
    shutil.rmtree(run / "checkpoints")
    list(train(recipe(own), run))
    list(train(recipe(own), tmp_path / "fresh"))
    for name in ("tokenizer.json", "model/model.safetensors", "checkpoints/step-00000008/model.safetensors"):
        assert (run / name).read_bytes() == (tmp_path / "fresh" / name).read_bytes()
    assert results(run) == results(tmp_path / "fresh") != results(complete)


# ------------------------------------------------------------------ extending a run
def test_budget_can_be_extended(
    unfinished: Path, complete: Path, data: Path, tmp_path: Path, copy: Callable[[Path], Path]
) -> None:
    run = copy(complete)
    noted = notes(until(10, run, data, "train.budget.steps=12", "train.save_every=4", "train.log_every=5"))
    for words in ("train.budget.steps was 8 and is 12 now", "train.save_every was 2 and is 4 now", "bit for bit"):
        assert words in noted
    assert "steps: 12" in (run / "recipe.yaml").read_text()
    grown = ("train.budget.steps=12", "train.save_every=4", "train.log_every=5")
    list(train(recipe(data, *grown), run))
    list(train(recipe(data, *grown), tmp_path / "whole"))
    assert weights(run, 12) == weights(tmp_path / "whole", 12)  # the schedule does not follow the budget
    found = results(run)
    assert found is not None and found.step == 12


def test_schedule_that_depends_on_the_budget_is_noted(data: Path, tmp_path: Path) -> None:
    cosine = "train.schedule={kind: cosine}"
    until(4, tmp_path / "run", data, cosine)
    noted = notes(until(6, tmp_path / "run", data, cosine, "train.budget.steps=12"))
    assert "the cosine schedule follows the budget" in noted and "bit for bit" not in noted


@pytest.mark.parametrize(
    "change", ["train.budget.steps=6", "train.budget.minutes=5", "model.dropout=0.35", "train.keep=3"]
)
def test_other_changes_are_rejected_with_advice_to_branch(
    unfinished: Path, data: Path, copy: Callable[[Path], Path], change: str
) -> None:
    run = copy(unfinished)
    with pytest.raises(UserError, match="another recipe") as error:
        list(train(recipe(data, change), run))
    assert change.partition("=")[0] in str(error.value.found) and f"start.folder={run}" in str(error.value.todo)


def test_average_after_a_changed_save_interval_uses_existing_checkpoints(data: Path, tmp_path: Path) -> None:
    average = ("train.average=3", "train.keep=3", "train.use=average")
    until(6, tmp_path / "run", data, *average)
    list(train(recipe(data, *average, "train.save_every=8", "train.budget.steps=16"), tmp_path / "run"))
    made = used(tmp_path / "run")
    assert made is not None and made.steps == (6, 8, 16)


# ------------------------------------------------------------------ the best checkpoint
SCORES = (5.0, 50.0, 7.0, 30.0, 8.0, 9.0, 1.0)


@pytest.fixture
def fixed_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the checkpoints of steps 2, 4, ... these scores, at every evaluation."""
    evaluate = translation.TranslationTask.evaluate

    def fixed(self: Any, predictor: Any, held_out: Any) -> Any:
        found = evaluate(self, predictor, held_out)
        score = Score("chrf", SCORES[held_out.step // 2 - 1], "")
        return held_out.result([*(one for one in found.scores if one.name != score.name), score], found.samples)

    monkeypatch.setattr(translation.TranslationTask, "evaluate", fixed)


OFTEN = ("train.evaluate_every=2", "train.budget.steps=14", "train.keep=2")


def test_final_model_is_the_best_checkpoint_unless_configured(data: Path, tmp_path: Path, fixed_scores: None) -> None:
    for use, step in (("null", 4), ("best", 4), ("last", 14)):
        run = tmp_path / use
        list(train(recipe(data, *OFTEN, f"train.use={use}", "train.keep_best=2"), run))
        assert steps(run) == [4, 8, 12, 14]
        saved = {
            name: tensor
            for point in newest(run, 9)[0]
            if point.step == step
            for name, tensor in point.load("model").items()
        }
        assert all(torch.equal(saved[name], tensor) for name, tensor in load(run).model.state_dict().items())
        made = used(run)
        assert made is not None and (made.steps, made.score) == ((step,), 50.0 if step == 4 else None)
        assert made.text in (run / "report.html").read_text()
        assert json.loads((run / "results.json").read_text())["of"]["checkpoint"]["steps"] == [step]


def test_any_checkpoint_can_be_chosen(data: Path, tmp_path: Path, fixed_scores: None) -> None:
    run = tmp_path / "run"
    list(train(recipe(data, *OFTEN, "train.average=2"), run))
    at = {point.step: point.load("model") for point in newest(run, 9)[0]}
    name = next(iter(at[14]))

    def found(path: Path, checkpoint: str | int | None = None) -> torch.Tensor:
        weight: torch.Tensor = load(path, checkpoint=checkpoint).model.state_dict()[name]
        return weight

    mean = ((at[14][name].double() + at[12][name].double()) / 2).float()
    for which, wanted in (("best", at[4][name]), ("last", at[14][name]), ("average", mean), (12, at[12][name])):
        assert torch.equal(found(run, which), wanted)
    assert torch.equal(found(run), mean)
    assert torch.equal(found(run / "checkpoints" / "step-00000012"), at[12][name])
    with pytest.raises(UserError, match="no checkpoint of that step") as error:
        load(run, checkpoint=6)
    there = sorted(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").iterdir())
    assert error.value.expected == f"one of steps {', '.join(map(str, there))}" and 6 not in there
    for wrong in ("newest", "-1", "step-1"):
        with pytest.raises(UserError, match="no such checkpoint"):
            load(run, checkpoint=wrong)
    with pytest.raises(UserError, match="not a run"):
        load(run / "model", checkpoint="best")


def test_early_stopping_is_the_same_after_an_interruption(data: Path, tmp_path: Path, fixed_scores: None) -> None:
    patient = (*OFTEN, "train.patience=3", "train.save_every=3")
    events = list(train(recipe(data, *patient), tmp_path / "whole"))
    assert events[-1] == Finished(10, False, str(tmp_path / "whole"))  # 4 is best, and 6, 8 and 10 are not
    assert any(isinstance(event, Noted) and "stopped early" in event.text for event in events)
    assert steps(tmp_path / "whole") == [6, 9, 10]
    for step in (5, 7, 9):
        until(step, tmp_path / "broken", data, *patient)
    assert list(train(recipe(data, *patient), tmp_path / "broken"))[-1] == Finished(10, False, str(tmp_path / "broken"))
    for name in ("checkpoints/step-00000010/model.safetensors", "model/model.safetensors", "results.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "broken" / name).read_bytes()
    again = list(train(recipe(data, *patient), tmp_path / "whole"))
    assert not any(isinstance(event, Step) for event in again) and not scored_again(again)
    longer = list(train(recipe(data, *patient, "train.patience=4"), tmp_path / "whole"))
    assert longer[-1] == Finished(12, False, str(tmp_path / "whole"))


LOADING = (
    "eval", "translate", "generate", "classify-tree", "classify", "choose", "tag", "answer", "embed", "fill-mask",
    "predict-word", "caption", "describe", "reconstruct", "denoise", "encode", "predict", "convert", "explore",
    "chat", "interpolate", "sample", "transfer", "play", "export", "push", "serve",
)  # fmt: skip


def test_every_loading_verb_accepts_a_checkpoint() -> None:
    verbs = get_command(app).commands  # type: ignore[attr-defined]
    able = {name for name, verb in verbs.items() if any("--checkpoint" in param.opts for param in verb.params)}
    assert able == set(LOADING)


def test_checkpoint_is_chosen_on_the_command_line(complete: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = {}
    for words in (["--checkpoint", "2"], ["--checkpoint", "last"], []):
        assert app(["eval", str(complete), "--json", *words], standalone_mode=False) is None
        losses[" ".join(words)] = json.loads(capsys.readouterr().out)["loss"]
    app(["eval", str(complete / "checkpoints/step-00000002"), "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["loss"] == losses["--checkpoint 2"] != losses["--checkpoint last"]
