"""An experiment from its recipe: data, vocabulary, model, training, scores, and the folder that holds it all."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.config import render
from heedful.errors import UserError
from heedful.jobs import Encoded, Evaluated, Job, Read, Vocabulary, job_of
from heedful.loading import cores, read_recipe, write_portable
from heedful.models import build
from heedful.reading import exists
from heedful.recipe import Recipe, check_recipe, recipe_of
from heedful.recipe.finetuning import Finetuning
from heedful.scoring import plain, results, scored
from heedful.training.checkpoint import Checkpoint, RunFolder, is_saved, newest
from heedful.training.distributed import Parallel, Team
from heedful.training.environment import environment, memory
from heedful.training.events import read_events, told_broken
from heedful.training.files import append_jsonl, disk_errors, trim_jsonl, write_text_atomic
from heedful.training.loop import Counters, Due, Epoch, Saved, Step, choose_device, fit, in_steps, repeat_exactly, spent
from heedful.training.ownership import make_parents
from heedful.training.saving import Saver
from heedful.training.tensors import EXIT_NOT_FINITE
from heedful.training.weights import fingerprint, load_strictly, require_fit, weights_of

# Settings that say how a run is computed, not what; a run may go on with others, at the price of the last bits.
MAY_DIFFER = frozenset(f"train.{name}" for name in ("threads", "workers", "device", "parallel", "save_behind"))


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
        path, render(recipe), keep=recipe.train.keep, every=recipe.train.save_every, may_differ=MAY_DIFFER
    ) as folder:
        folder.preflight(model=4 * size, checkpoint=4 * size * 3)
        yield from _train(recipe, folder, path, device, stop, team)


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
    job = job_of(recipe)
    yield Stage("reading the data")
    read: Read = job.read("train")
    valid: Read = job.read("valid")
    yield Stage(job.words.learning)
    text = team.word(_vocabulary(job, path, read).json if folder else "")
    vocabulary = job.open(text, str(path / job.file))
    yield Stage(job.words.encoding)
    encoded: Encoded = job.encode(read, vocabulary)
    team.require_same("training set", encoded.sha256, "give every machine the same data files")
    held_out: Encoded = job.encode(valid, vocabulary)

    torch.manual_seed(recipe.train.seed)
    config = job.fitted(recipe.model, vocabulary, "model")
    if (told := config.parameters(vocabulary.vocab)) > recipe.size:  # the words of trees are counted only now
        _require_memory(told, device, team, recipe.train.parallel)
        if folder:
            folder.preflight(model=4 * told, checkpoint=4 * told * 3)
    model: Any = build(config)
    size = sum(weight.numel() for weight in model.parameters())
    there = cores(team.local_world)
    threads = recipe.train.threads or (job.threads(model, there) if device.type == "cpu" else there)
    torch.set_num_threads(threads)
    model.to(device)

    checkpoint = folder.latest() if folder else None
    counters = Counters(**json.loads(team.word(json.dumps(checkpoint.state if checkpoint else {}))))
    if not counters.step:
        job.begin(model, vocabulary)
        if team.world > 1:
            team.require_same(
                "model to begin with", fingerprint(model), "give every machine the same files to begin from"
            )
    setting = environment(device) | team.environment(recipe.train.parallel)
    packs = config.packs and device.type == "cuda"
    packed = recipe.train.batching == "packed" or (recipe.train.batching == "auto" and packs)
    data = {"tokenizer": vocabulary.sha256, "data": encoded.sha256}
    batching = {"packed": packed, "batch_tokens": recipe.train.batch_tokens, "accumulate": recipe.train.accumulate}
    about = {**setting, **data, **batching, "seed": recipe.train.seed, "deterministic": recipe.train.deterministic}
    if checkpoint:
        _require_same_samples(checkpoint, path, job.file, data, packed)
        require_fit(model, checkpoint.load("model"), checkpoint.path / "model.safetensors")
    saved = {
        stem: team.tensors(checkpoint.load(stem) if checkpoint else None)
        for stem in (("model", "optimizer") if counters.step else ())
    }
    broken = 0
    if folder:
        folder.prune(counters.best_step)  # where a crash came between a save and this
        broken = read_events(path).broken
        trim_jsonl(path / "metrics.jsonl", counters.step)
        write_text_atomic(path / "env.json", json.dumps(setting, indent=2) + "\n")
    yield Started(
        counters.step, size, len(encoded), encoded.dropped, read.skipped, vocabulary.vocab, str(setting["device"]),
        threads, team.world,
        (*_notes(folder, checkpoint, about, recipe, team, broken), *job.notes(encoded)),
    )  # fmt: skip

    even = device.type == "cuda" and not team.together  # where steps of few shapes are kept as graphs
    batches, loss_of = job.batches(encoded, packed, even), job.loss_of(model, packed)
    settings = in_steps(recipe.train, batches)
    # Of a sharded model no process has all; the leader looks at a copy of it.
    sharded = team.together and recipe.train.parallel == "fsdp"
    shown: Any = build(config) if sharded and team.leads else model
    speaker = job.speaker(shown, config, vocabulary, job.decode, device)
    with Saver(folder, recipe.train.save_behind) if folder else nullcontext() as saver:
        for event in fit(
            model, loss_of, batches, settings, device, saver, about, counters, saved, stop, team, job.records
        ):
            if isinstance(event, Due):
                weights = weights_of(model, team) if sharded else {}
                if not team.leads:
                    continue
                if sharded:
                    shown.load_state_dict(weights)
                    del weights
                result = _validated(job, speaker, valid, held_out, event)
                score = job.merit(result)
                if event.saved and (counters.best_score is None or score > counters.best_score):
                    counters.best_score, counters.best_step = score, event.step
                _record(path, result)
                yield result
            else:
                if team.leads:
                    _record(path, event, recipe.train.log_every)
                yield event
    stopped = spent(settings, counters) < 1
    if folder and not stopped:
        yield from _finish(job, folder, config, shown, speaker, counters, len(encoded))
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


def _validated(job: Job, speaker: Any, valid: Read, held_out: Encoded, event: Due) -> Evaluated:
    """How good the model is on the validation set, at a moment in training."""
    loss = job.quick_loss(speaker, held_out)
    if not math.isfinite(loss):
        raise UserError(
            f"the loss on the validation set is not finite after step {event.step}",
            found=f"loss {loss}",
            todo="lower the learning rate or the clip; the last checkpoint is good",
            exit_code=EXIT_NOT_FINITE,
        )
    return job.evaluate(speaker, valid, held_out, loss, event.step, "valid", beams=1)


def _notes(
    folder: RunFolder | None,
    checkpoint: Checkpoint | None,
    about: Mapping[str, object],
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
        changed = [name for name, value in about.items() if then.get(name, value) != value]
        yield from (
            f"{name} was {then[name]} and is {about[name]} now: results may differ in the last bits" for name in changed
        )
        exact = recipe.train.deterministic or about["device"] == "cpu"
        if not changed and exact and recipe.train.budget.minutes is None:
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


def _require_same_samples(checkpoint: Checkpoint, run: Path, file: str, data: dict[str, str], packed: bool) -> None:
    """Refuse to go on with other samples, or in another order, than the run began with."""
    about = checkpoint.manifest.about
    if about["packed"] != packed:
        before, now = ("padded", "packed") if packed else ("packed", "padded")
        raise UserError(
            "this run cannot go on in the same order of samples",
            where="train.batching",
            found=f"{now} batches on this device, {before} ones when the run began",
            todo=f"go on on the device it began on, or begin anew elsewhere with train.batching={before}",
        )
    for name, where in (("tokenizer", str(run / file)), ("data", "the training data")):
        if about.get(name, data[name]) != data[name]:  # a run of an older version may not have noted it
            raise UserError(
                "this is not what the run began with",
                where=where,
                found=f"contents of SHA-256 {data[name][:16]}...",
                expected=f"contents of SHA-256 {about[name][:16]}..., as in {checkpoint.path.name}",
                todo="put the former file back, or begin anew with another --run",
            )


def _finish(
    job: Job, folder: RunFolder, config: Any, model: nn.Module, speaker: Any, counters: Counters, examples: int
) -> Iterator[Happening]:
    """Average the last checkpoints, write the portable model, score it on the test set, and report on all that."""
    recipe = job.recipe
    # A stop between two saves leaves a checkpoint too, which is not averaged: the model does not depend on stops.
    regular = (
        checkpoint
        for checkpoint in newest(folder.path, recipe.train.keep + 3)[0]
        if checkpoint.step % recipe.train.save_every == 0 or checkpoint.step == counters.step
    )
    checkpoints = list(islice(regular, recipe.train.average))
    load_strictly(model, average([checkpoint.load("model") for checkpoint in checkpoints]), checkpoints[0].path)
    model.eval()
    write_portable(folder.path / "model", job, config, model, speaker.tokenizer)
    curve(folder.path, job.words.loss)
    result = results(folder.path) if _has_test(recipe) else None
    if result is None and _has_test(recipe):
        yield Stage(job.words.testing.format("test"))
        result = scored(speaker, recipe, "test", counters.step)
        write_text_atomic(folder.path / "results.json", json.dumps(plain(result), indent=2, ensure_ascii=False) + "\n")
    if result is not None:
        if not read_events(folder.path).evaluated("test"):  # a crash may have come before this
            _record(folder.path, result)
        yield result
    yield from _report(job, folder.path, config, speaker, result, examples)


def _report(
    job: Job, run: Path, config: Any, speaker: Any, result: Evaluated | None, examples: int
) -> Iterator[Happening]:
    """Draw the run's pictures and write its report; a run that cannot draw is complete all the same."""
    from heedful.report import write_report

    yield Stage("drawing pictures")
    try:
        write_report(run, job, config, speaker, result, examples)
    except Exception as error:
        yield Noted(f"there is no report of this run, which is complete all the same: {error}")


def average(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several sets of weights, taken in float64."""
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(states[0][name].dtype)
        for name in states[0]
    }


def curve(run: Path, unit: str) -> Path | None:
    """Draw the losses recorded so far into loss.png, in the unit that they are measured in."""
    from heedful.figures import curves

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


def _vocabulary(job: Job, folder: Path, read: Read) -> Vocabulary:
    """The run's vocabulary, learned once and kept."""
    path = folder / job.file
    if exists(path):
        return job.load(path)
    vocabulary = job.learn(read)
    write_text_atomic(path, vocabulary.json)
    return vocabulary


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
