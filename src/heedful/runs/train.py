"""An experiment from its recipe: data, vocabulary, model, training, scores, and the folder that holds it all."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from heedful.config import render
from heedful.errors import UserError
from heedful.files.writing import append_jsonl, disk_errors, write_text_atomic
from heedful.models import build
from heedful.runs.artifacts import (
    are_kept,
    artifact_texts,
    hashes,
    load_artifacts,
    open_artifacts,
    places,
    write_artifacts,
)
from heedful.runs.evaluate import Used, digest, made_from, plain, results, scored, write_results
from heedful.runs.events import keep_events, read_events, told_broken, trim_jsonl
from heedful.runs.load import Opened, cores, read_recipe, write_portable
from heedful.runs.recipe import check_recipe, recipe_of
from heedful.runs.start import begin, for_model, source_of
from heedful.tasks import task_of
from heedful.tasks.base import AnyTask, Encoded, Evaluated, Read, Source
from heedful.tasks.finetuning.recipe import Finetuning
from heedful.tasks.recipe_parts import Recipe
from heedful.training.checkpoint.choice import Use
from heedful.training.checkpoint.folder import Checkpoint, RunFolder, checkpoint_at, is_saved
from heedful.training.checkpoint.ownership import BUDGET, MAY_DIFFER, MAY_GROW, Changes, make_parents
from heedful.training.checkpoint.saver import Saver
from heedful.training.checkpoint.tensors import EXIT_NOT_FINITE
from heedful.training.checkpoint.ties import (
    require_carry,
    require_contents,
    require_made_with,
    require_of_run,
    run_name,
)
from heedful.training.checkpoint.weights import average, fingerprint, load_strictly, require_fit, weights_of
from heedful.training.configs import TrainConfig
from heedful.training.distributed.team import Parallel, Team
from heedful.training.environment import environment, memory
from heedful.training.loop import (
    Counters,
    Due,
    Epoch,
    Saved,
    Step,
    averaged,
    choose_device,
    fit,
    in_steps,
    over,
    repeat_exactly,
)
from heedful.training.optim import Cosine, Linear

NOTHING_SAVED = "nothing was saved yet"
NOT_COMPUTED = frozenset({"run", "recipe", "tokenizer", "data", "valid", "test"})  # what a manifest tells besides


@dataclass(frozen=True)
class Stage:
    """What is being done apart from training itself."""

    name: str


@dataclass(frozen=True)
class Noted:
    """What whoever trains should know, and what stops nothing."""

    text: str


@dataclass(frozen=True)
class Started:
    """Everything is ready, and training begins or goes on at a step."""

    step: int
    parameters: int
    examples: int
    dropped: int
    skipped: int
    vocab: int
    device: str
    threads: int
    processes: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Finished:
    """The run is complete, or was stopped at a step."""

    step: int
    stopped: bool
    folder: str


Happening = Stage | Noted | Started | Step | Epoch | Evaluated | Saved | Finished


def train(
    recipe: Recipe, run: str | Path, stop: Callable[[], bool] = lambda: False, team: Team | None = None
) -> Iterator[Happening]:
    """Train a recipe in a run folder, or go on where the folder stands; every event is recorded there as it happens.

    Every process of a team calls this; the folder belongs to the leader, and the others never look at it.
    """
    team = team or Team()
    team.require_same("recipe", render(recipe), "give every process the same recipe and the same settings")
    recipe = _filled(recipe, Path(run), team)
    check_recipe(recipe)
    repeat_exactly(recipe.train)
    device = choose_device(recipe.train, team.local_rank)
    size = recipe.size
    _require_memory(size, device, team, recipe.train.parallel)
    if not team.leads:
        yield from _train(recipe, None, Path(run), device, stop, team)
        return
    path = Path(run)
    make_parents(path)
    with RunFolder.create_or_open(
        path,
        render(recipe),
        keep=recipe.train.keep,
        every=recipe.train.save_every,
        may_differ=MAY_DIFFER | MAY_GROW,
    ) as folder:
        folder.preflight(4 * size, 4 * size * 3, recipe.train.keep_best)
        try:
            yield from _train(recipe, folder, path, device, stop, team)
        except UserError as error:
            if error.exit_code == EXIT_NOT_FINITE:
                error.todo = f"{error.todo}; {'the last checkpoint is good' if is_saved(path) else NOTHING_SAVED}"
            raise


def _filled(recipe: Recipe, run: Path, team: Team) -> Recipe:
    """The recipe with what the leader's files tell; a run that has saved something keeps what it began with."""
    if not isinstance(recipe, Finetuning):
        return recipe
    if team.leads:
        known = recipe.filled_as(read_recipe(run)) if is_saved(run) else recipe
        check_recipe(known)
        recipe = known.filled()
    return recipe_of(team.word(render(recipe)), str(run / "recipe.yaml"))


def _train(
    recipe: Recipe, folder: RunFolder | None, path: Path, device: torch.device, stop: Callable[[], bool], team: Team
) -> Iterator[Happening]:
    task = task_of(recipe)
    yield Stage("reading the data")
    read: Read = task.read("train")
    valid: Read = task.read("valid")
    yield Stage(task.words.learning)
    checkpoint = folder.latest() if folder else None
    source = None if team.word("begun" if checkpoint else "") else source_of(task)
    kept = artifact_texts(task, _vocabulary(task, path, read, checkpoint is not None, source)) if folder else {}
    vocabulary = open_artifacts(task, json.loads(team.word(json.dumps(kept))), path)
    yield Stage(task.words.encoding)
    encoded: Encoded = task.encode(read, vocabulary)
    team.require_same("training set", encoded.sha256, "give every machine the same data files")
    held_out: Encoded = task.encode(valid, vocabulary)

    torch.manual_seed(recipe.train.seed)
    config = task.fitted(recipe.model, vocabulary, "model")
    source = for_model(source, config, task) if source is not None else None
    if (told := config.parameters(vocabulary.vocab)) > recipe.size:  # the words of trees are counted only now
        _require_memory(told, device, team, recipe.train.parallel)
        if folder:
            folder.preflight(4 * told, 4 * told * 3, recipe.train.keep_best)
    model: Any = build(config)
    size = sum(weight.numel() for weight in model.parameters())
    there = cores(team.local_world)
    threads = recipe.train.threads or (task.threads(model, there) if device.type == "cpu" else there)
    torch.set_num_threads(threads)
    model.to(device)

    state = json.loads(team.word(json.dumps(checkpoint.state if checkpoint else {})))
    counters = Counters.restored(state, recipe.train)
    began: list[str] = []
    if not counters.step:
        began = begin(model, source, vocabulary, task)
        source = None  # its weights are in the model now
        if team.world > 1:
            team.require_same(
                "model to begin with", fingerprint(model), "give every machine the same files to begin from"
            )
    name = run_name(path, checkpoint) if folder else ""
    setting = {"run": name, **environment(device), **team.environment(recipe.train.parallel)}
    packs = config.packs and device.type == "cuda"
    packed = recipe.train.batching == "packed" or (recipe.train.batching == "auto" and packs)
    made_with: dict[str, Any] = {
        "recipe": recipe.model_dump(mode="json"),
        **hashes(task, vocabulary),
        "data": encoded.sha256,
    }
    if folder:
        made_with |= {"valid": digest(valid, held_out), "test": _test_data(task, vocabulary)}
    exactness = {"packed": packed, "seed": recipe.train.seed, "deterministic": recipe.train.deterministic}
    about = {**setting, **made_with, **exactness}
    changed: Changes = {}
    if checkpoint:
        _require_same_samples(checkpoint, places(task, path), about)
        changed = _require_own(checkpoint, path, recipe, name)
        require_fit(model, checkpoint.load("model"), checkpoint.path / "model.safetensors")
    saved = {
        stem: team.tensors(checkpoint.load(stem) if checkpoint else None)
        for stem in (("model", "optimizer") if counters.step else ())
    }
    broken = 0
    if folder:
        folder.prune(counters.kept)  # where a crash came between a save and this
        broken = read_events(path).broken
        trim_jsonl(path / "metrics.jsonl", counters.step)
        write_text_atomic(path / "env.json", json.dumps(setting, indent=2) + "\n")
    yield Started(
        counters.step, size, len(encoded), encoded.dropped, read.skipped, vocabulary.vocab, str(setting["device"]),
        threads, team.world,
        (*_notes(folder, checkpoint, about, changed, recipe, team, broken), *began, *task.notes(encoded)),
    )  # fmt: skip

    even = device.type == "cuda" and not team.together  # where steps of few shapes are kept as graphs
    batches: Any = task.batches(encoded, packed, even)
    loss_of = task.loss_of(model, packed)
    carry = task.first_carry(model, batches, device)
    if checkpoint:
        require_carry(checkpoint, carry is not None)
    if counters.step and carry is not None:
        saved["carry"] = team.tensors(checkpoint.load("carry") if checkpoint else None)
    settings = in_steps(recipe.train, batches)
    if checkpoint and _use(task) == "average":  # what is lacking shows before hours of training, not after them
        end = settings.budget.steps or counters.step
        require_all(path, recipe, name, averaged(settings, counters, end), counters.step)
    # Of a sharded model no process has all; the leader looks at a copy of it.
    sharded = team.together and recipe.train.parallel == "fsdp"
    shown: Any = build(config) if sharded and team.leads else model
    predictor = task.predictor(shown, config, vocabulary, task.decode, device)
    with Saver(folder, recipe.train.save_behind) if folder else nullcontext() as saver:
        for event in fit(
            model, loss_of, batches, settings, device, saver, about, counters, saved, stop, team, task.records, carry
        ):
            if isinstance(event, Due):
                weights = weights_of(model, team) if sharded else {}
                if not team.leads:
                    continue
                if sharded:
                    shown.load_state_dict(weights)
                    del weights
                result = _validated(task, predictor, valid, held_out, event)
                counters.judge(event.step, result.merit(task.metric), event.saved, recipe.train)
                _record(path, result)
                yield result
            else:
                if team.leads:
                    _record(path, event, recipe.train.log_every)
                yield event
    stopped = not over(settings, counters)
    if not stopped and not counters.patient(recipe.train):
        yield Noted(
            f"stopped early: no better {task.metric} on the validation set in the last {counters.waited:,} evaluations"
        )
    if folder and not stopped:
        yield from _finish(task, folder, config, shown, predictor, counters, about, len(encoded))
    yield Finished(counters.step, stopped, str(path))


def _require_memory(size: int, device: torch.device, team: Team, parallel: Parallel) -> None:
    """Refuse at once a model whose weights, gradients and two moments are more than there is memory for."""
    shards = team.world if parallel == "fsdp" else 1
    needed = round(4 * size * (1 + 3 / shards)) * (team.local_world if device.type == "cpu" else 1)
    there = memory(device)
    if there is not None and needed > there:
        raise UserError(
            "the model is too large to be trained here",
            where="model",
            found=f"{size:,} parameters, which take {needed / 1e9:,.1f} GB with their gradients and moments",
            expected=f"at most the {there / 1e9:,.1f} GB of memory of this {device.type}",
            todo="choose a smaller width, fewer blocks or a smaller vocabulary",
        )


def _validated(task: AnyTask, predictor: Any, valid: Read, held_out: Encoded, event: Due) -> Evaluated:
    """How good the model is on the validation set, at a moment in training."""
    loss = task.quick_loss(predictor, held_out)
    if not math.isfinite(loss):
        raise UserError(
            f"the loss on the validation set is not finite after step {event.step}",
            found=f"loss {loss}",
            todo="lower the learning rate or the clip",
            exit_code=EXIT_NOT_FINITE,
        )
    return task.evaluate(predictor, valid, held_out, loss, event.step, "valid", beams=1)


def _notes(
    folder: RunFolder | None,
    checkpoint: Checkpoint | None,
    about: Mapping[str, Any],
    settings: Changes,
    recipe: Recipe,
    team: Team,
    broken: int,
) -> Iterator[str]:
    """What whoever starts or takes up a run should know, above all whether it goes on bit for bit."""
    if folder and folder.anew:
        yield "the folder held a run that had saved nothing yet; it begins anew"
    yield from (f"passed over a damaged checkpoint: {damaged.reason}" for damaged in (folder.damaged if folder else ()))
    if folder and broken:
        yield told_broken(folder.path, broken)
    if checkpoint:
        then = checkpoint.manifest.about
        changed = [name for name in about if name not in NOT_COMPUTED and then.get(name, about[name]) != about[name]]
        yield from (
            f"{name} was {then[name]} and is {about[name]} now: results may differ in the last bits" for name in changed
        )
        grown = [name for name in settings if name in MAY_GROW]
        yield from (f"{name} was {settings[name][0]} and is {settings[name][1]} now" for name in grown)
        schedule = recipe.train.schedule
        stretched = isinstance(schedule, Cosine | Linear) and any(name in BUDGET for name in grown)
        if stretched:
            yield (
                f"the {schedule.kind} schedule follows the budget: from here on the learning rate is that of the "
                "larger one, so that this is not the run that had it from the beginning"
            )
        if then.get("test", about["test"]) != about["test"]:
            yield "the test data are others than when the run began: the model is scored on those that are there now"
        exact = recipe.train.deterministic or about["device"] == "cpu"
        if not (changed or stretched) and exact and recipe.train.budget.minutes is None:
            yield "versions, machine, threads and processes are as before: the run goes on bit for bit"
        elif not exact:
            yield "results may differ in the last bits, since train.deterministic is off"
    if team.local_world < team.world:
        yield f"the run folder is on the machine of rank 0, {socket.gethostname()}"
    if about["packed"] and recipe.train.accumulate % team.world:
        yield (
            f"{team.world} processes share packed batches of full size, which saves no time: make train.accumulate "
            f"a multiple of {team.world}, and train.batch_tokens smaller"
        )


def _require_same_samples(checkpoint: Checkpoint, artifacts: Mapping[str, str], about: Mapping[str, Any]) -> None:
    """Refuse to go on with other samples, or in another order, than the run began with."""
    if checkpoint.manifest.about["packed"] != about["packed"]:
        before, now = ("padded", "packed") if about["packed"] else ("packed", "padded")
        raise UserError(
            "this run cannot go on in the same order of samples",
            where="train.batching",
            found=f"{now} batches on this device, {before} ones when the run began",
            todo=f"go on on the device it began on, or begin anew elsewhere with train.batching={before}",
        )
    require_contents(checkpoint, about, {**artifacts, "data": "the training data", "valid": "the validation data"})


def _require_own(checkpoint: Checkpoint, run: Path, recipe: Recipe, name: str) -> Changes:
    """Refuse a checkpoint of another run, or of another recipe, and tell which settings changed that may."""
    about, settings = checkpoint.manifest.about, recipe.model_dump(mode="json")
    require_of_run(checkpoint.path, about, name, "delete it, or put the run's own back")
    return require_made_with(checkpoint.path, about, settings, run, MAY_DIFFER | MAY_GROW)


def _test_data(task: AnyTask, vocabulary: Any) -> str | None:
    """What tells the test data from any others, if there are any."""
    if not _has_test(task.recipe):
        return None
    read = task.read("test")
    return digest(read, task.encode(read, vocabulary))


def _finish(
    task: AnyTask,
    folder: RunFolder,
    config: Any,
    model: nn.Module,
    predictor: Any,
    counters: Counters,
    about: Mapping[str, Any],
    examples: int,
) -> Iterator[Happening]:
    """Average the last checkpoints, write the portable model, score it on the test set, and report on all that."""
    recipe = task.recipe
    used = _used(task, counters)
    checkpoints = require_all(folder.path, recipe, about["run"], used.steps, counters.step)
    load_strictly(model, average([checkpoint.load("model") for checkpoint in checkpoints]), checkpoints[0].path)
    model.eval()
    made = {"run": about["run"], "checkpoint": asdict(used)}
    write_portable(folder.path / "model", task, config, model, predictor.tokenizer, made)
    curve(folder.path, task.words.loss)
    result = None
    if _has_test(recipe):
        of = made_from(folder.path, recipe, about["test"]) | {"checkpoint": asdict(used)}
        result = results(folder.path, of)
        if result is None:
            yield Stage(task.words.testing.format("test"))
            result = scored(predictor, recipe, "test", counters.step)
            write_results(folder.path, result, of)
        _record_test(folder.path, result)
        yield result
    yield from _report(task, folder.path, config, predictor, result, examples, used.text)


def _report(
    task: AnyTask, run: Path, config: Any, predictor: Any, result: Evaluated | None, examples: int, used: str
) -> Iterator[Happening]:
    """Draw the run's pictures and write its report; a run that cannot draw is complete all the same."""
    from heedful.runs.report import write_report

    yield Stage("drawing pictures")
    try:
        write_report(run, task, config, predictor, result, examples, used)
    except Exception as error:
        yield Noted(f"there is no report of this run, which is complete all the same: {error}")


def _use(task: AnyTask) -> Use:
    """Which checkpoint the final model is, as the recipe asks for."""
    train: TrainConfig = task.recipe.train
    return train.use or ("average" if train.average > 1 else "best" if task.validates else "last")


def _used(task: AnyTask, counters: Counters) -> Used:
    """The steps that the final model is made from."""
    use, train = _use(task), task.recipe.train
    steps = {
        "best": [step for step, _ in counters.best[:1]] or [counters.step],
        "last": [counters.step],
        # A stop between two saves leaves a checkpoint too, which is not averaged: the model does not depend on stops.
        "average": averaged(train, counters, counters.step),
    }[use]
    merit = dict(counters.best).get(steps[0]) if len(steps) == 1 else None
    score = merit if merit is None or task.metric != "loss" else -merit
    return Used(use, tuple(steps), counters.step, task.metric, score)


def require_all(run: Path, recipe: Recipe, name: str, steps: Sequence[int], now: int) -> list[Checkpoint]:
    """Those checkpoints of the final model that are due by now, the newest first; none may be lacking."""
    many = f"the final model is the mean of steps {', '.join(map(str, steps))}"
    why = many if len(steps) > 1 else "the final model is made from it"
    found = [checkpoint_at(run, step, why) for step in sorted(steps, reverse=True) if step <= now]
    for checkpoint in found:
        _require_own(checkpoint, run, recipe, name)
    return found


def curve(run: Path, unit: str) -> Path | None:
    """Draw the losses recorded so far into loss.png, in the unit that they are measured in."""
    from heedful.plots.figures import curves

    events = read_events(run)
    losses = {
        name: [event for event in some if isinstance(event.get("loss"), int | float)]
        for name, some in (("train", events.steps()), ("valid", events.evaluated("valid")))
    }
    series = {
        name: ([event["step"] for event in some], [event["loss"] for event in some])
        for name, some in losses.items()
        if some
    }
    if not series:
        return None
    path = run / "loss.png"
    with disk_errors(run, "draw the loss"):
        curves(series, path, "Loss", "step", unit)
    return path


def _has_test(recipe: Recipe) -> bool:
    return recipe.data.test is not None


def _vocabulary(task: AnyTask, folder: Path, read: Read, begun: bool, source: Opened | Source | None) -> Any:
    """The run's vocabulary, learned when it begins, or that of the model it starts from, and kept from then on."""
    if begun and are_kept(task, folder):
        return load_artifacts(task, folder)
    vocabulary = source.vocabulary if source is not None else task.learn(read)
    write_artifacts(task, folder, vocabulary)
    return vocabulary


def _record_test(run: Path, result: Evaluated) -> None:
    """Let the metrics hold these test scores and no others: not those of a former model, nor none after a crash."""
    if read_events(run).evaluated("test") != [json.loads(json.dumps(plain(result)))]:
        keep_events(run / "metrics.jsonl", lambda event: event.get("split") != "test")
        _record(run, result)


def _record(run: Path, event: Step | Epoch | Saved | Evaluated, every: int = 1) -> None:
    """Add an event to the run's metrics; steps only now and then."""
    if isinstance(event, Step):
        if event.step % every and event.step != 1 and event.progress < 1:
            return
        append_jsonl(run / "metrics.jsonl", {"kind": "step", **asdict(event)})
    elif isinstance(event, Epoch):
        append_jsonl(run / "metrics.jsonl", {"kind": "epoch", **asdict(event)})
    elif isinstance(event, Evaluated):
        append_jsonl(run / "metrics.jsonl", plain(event))
