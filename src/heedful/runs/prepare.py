"""Preparing a run before its first step: data, vocabulary, model, and the checkpoint to resume from."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heedful.blocks.feedforward import recompute_hidden
from heedful.data.images.sources import ImageFolders
from heedful.data.tables.source import Table
from heedful.errors import UserError
from heedful.files.writing import write_text_atomic
from heedful.models.roles import ModelConfig
from heedful.runs.artifacts import (
    are_kept,
    artifact_texts,
    hashes,
    load_artifacts,
    open_artifacts,
    places,
    write_artifacts,
)
from heedful.runs.evaluate import digest
from heedful.runs.events import broken_lines, read_events, trim_jsonl
from heedful.runs.load import Opened, cores
from heedful.runs.progress import Event, Stage, Started
from heedful.runs.recipe import completed
from heedful.runs.start import for_model, initialize, source_of
from heedful.tasks import task_of
from heedful.tasks.base import AnyTask, Encoded, Read, Source
from heedful.tasks.recipe_parts import Recipe
from heedful.training.checkpoint.choice import Use
from heedful.training.checkpoint.folder import Checkpoint, RunFolder, checkpoint_at
from heedful.training.checkpoint.ownership import BUDGET, MAY_DIFFER, MAY_GROW, Changes
from heedful.training.checkpoint.ties import (
    require_carry,
    require_contents,
    require_made_with,
    require_of_run,
    run_name,
)
from heedful.training.checkpoint.weights import fingerprint, require_fit
from heedful.training.configs import TrainConfig
from heedful.training.distributed.team import Carry, Parallel, Team
from heedful.training.environment import environment, memory
from heedful.training.loop import Counters, epochs_to_steps, steps_to_average
from heedful.training.optim import Cosine, Linear, Stepwise
from heedful.training.running_statistics import RunningStatistics

NOT_COMPUTED = frozenset(
    {"run", "recipe", "tokenizer", "data", "valid", "test"}
)  # keys of a manifest that are not settings of torch


class Run(NamedTuple):
    """A run: its recipe, folder, device and processes; only the leader has the folder open."""

    recipe: Recipe
    path: Path
    folder: RunFolder | None
    device: torch.device
    team: Team
    build: Callable[[ModelConfig], nn.Module]  # the library's, or one that builds the user's own model


class Data(NamedTuple):
    """The data of a run, as read and as encoded."""

    train: Read
    valid: Read
    vocabulary: Any
    encoded: Encoded
    encoded_valid: Encoded


@dataclass
class Ready:
    """A run that is ready for its next step."""

    task: AnyTask
    data: Data
    config: ModelConfig
    model: nn.Module
    counters: Counters
    saved: dict[str, dict[str, Tensor]]  # tensors of the checkpoint, for `fit`
    about: dict[str, Any]  # recorded in manifests
    batches: Any
    carry: Carry
    settings: TrainConfig  # with the budget in steps


def prepare(run: Run) -> Generator[Event, None, Ready]:
    """Read the data, build the model, and load the newest checkpoint, if the run has one."""
    recipe, path, folder, device, team, build = run
    task = task_of(recipe)
    data, checkpoint, source = yield from _read(run, task)
    vocabulary = data.vocabulary

    torch.manual_seed(recipe.train.seed)
    config = task.fitted(recipe.model, vocabulary, "model")
    if recipe.train.batching == "packed" and not config.packs:
        raise UserError(
            "this model cannot read packed batches", where="train.batching", found="packed",
            expected="padded, or auto", todo="write batching: padded",
        )  # fmt: skip
    source = for_model(source, config, task, vocabulary) if source is not None else None
    if not recipe.own_model and (size := config.parameters(vocabulary.vocab)) > recipe.size:
        require_room(run, size)  # for trees, the vocabulary is known only now
    model = build(config)
    if recipe.train.average > 1 and RunningStatistics(model):
        raise UserError(
            "a model with batch norms cannot be the mean of checkpoints: its running statistics are not their mean",
            where="train.average", found=str(recipe.train.average), todo="write average: 1",
        )  # fmt: skip
    if recipe.own_model:
        require_room(run, sum(weight.numel() for weight in model.parameters()))
    available = cores(team.local_world)
    threads = recipe.train.threads or (task.threads(model, available) if device.type == "cpu" else available)
    torch.set_num_threads(threads)
    model.to(device)
    if recipe.train.recompute:
        recompute_hidden(model)

    state = json.loads(team.broadcast(json.dumps(checkpoint.state if checkpoint else {})))
    counters = Counters.restored(state, recipe.train)
    begun: list[str] = []
    if not counters.step:
        begun = initialize(model, source, vocabulary, task)
        if team.world > 1:
            team.require_same(
                "model to begin with", fingerprint(model), "give every machine the same files to begin from"
            )
    del source  # its weights have been copied into the model
    machine: dict[str, Any] = {
        "run": run_name(path, checkpoint) if folder else "",
        **environment(device),
        **team.environment(recipe.train.parallel),
    }
    sources = task.sources() if folder else {}
    about = machine | _contents(run, task, data, config) | {name: sha256 for name, (sha256, _) in sources.items()}
    changed: Changes = {}
    if checkpoint:
        read = {name: place for name, (_, place) in sources.items()}
        _require_same_samples(checkpoint, places(task, path) | read, about)
        changed = _require_own(checkpoint, path, recipe, about["run"])
        require_fit(model, checkpoint.load("model"), checkpoint.path / "model.safetensors")
    saved = {
        stem: team.broadcast_tensors(checkpoint.load(stem) if checkpoint else None)
        for stem in (("model", "optimizer") if counters.step else ())
    }
    broken = _clean(folder, counters, machine) if folder else 0
    yield Started(
        counters.step, sum(weight.numel() for weight in model.parameters()), len(data.encoded), data.encoded.dropped,
        data.train.skipped, vocabulary.vocab, str(about["device"]), threads, team.world,
        (*_notes(run, checkpoint, about, changed, broken), *begun, *task.notes(data.encoded)),
    )  # fmt: skip

    # Batches of few shapes, for CUDA graphs.
    even = device.type == "cuda" and not team.distributed and not recipe.own_model
    batches: Any = task.batches(data.encoded, about["packed"], even)
    carry = task.first_carry(model, batches, device)
    if checkpoint:
        require_carry(checkpoint, carry is not None)
    if counters.step and carry is not None:
        saved["carry"] = team.broadcast_tensors(checkpoint.load("carry") if checkpoint else None)
    settings = epochs_to_steps(recipe.train, batches)
    if checkpoint and final_use(task) == "average":  # fail before training, not after it
        end = settings.budget.steps or counters.step
        require_all(path, recipe, about["run"], steps_to_average(settings, counters, end), counters.step)
    return Ready(task, data, config, model, counters, saved, about, batches, carry, settings)


def _read(run: Run, task: AnyTask) -> Generator[Event, None, tuple[Data, Checkpoint | None, Opened | Source | None]]:
    """The data and vocabulary of a run, and its newest checkpoint or the model that it starts from."""
    yield Stage("reading the data")
    train: Read = task.read("train")
    valid: Read = task.read("valid")
    data = task.recipe.data
    if run.folder and isinstance(data, Table | ImageFolders) and (division := data.division):
        write_text_atomic(run.path / "held_out.json", json.dumps(division) + "\n")
    yield Stage(task.words.learning)
    checkpoint = run.folder.latest() if run.folder else None
    source = None if run.team.broadcast("begun" if checkpoint else "") else source_of(task)
    texts = (
        artifact_texts(task, _vocabulary(task, run.path, train, checkpoint is not None, source)) if run.folder else {}
    )
    vocabulary = open_artifacts(task, json.loads(run.team.broadcast(json.dumps(texts))), run.path)
    yield Stage(task.words.encoding)
    encoded: Encoded = task.encode(train, vocabulary)
    run.team.require_same("training set", encoded.sha256, "give every machine the same data files")
    return Data(train, valid, vocabulary, encoded, task.encode(valid, vocabulary)), checkpoint, source


def _contents(run: Run, task: AnyTask, data: Data, config: ModelConfig) -> dict[str, Any]:
    """What checkpoints record: the recipe, the SHA-256 of the data, and the order of samples."""
    settings = run.recipe.train
    packs = config.packs and task.packs and run.device.type == "cuda" and not run.recipe.own_model
    about: dict[str, Any] = {
        "recipe": run.recipe.model_dump(mode="json"),
        **hashes(task, data.vocabulary),
        "data": data.encoded.sha256,
    }
    if run.folder:
        about |= {"valid": digest(data.valid, data.encoded_valid), "test": _test_data(task, data.vocabulary)}
    return about | {
        "packed": settings.batching == "packed" or (settings.batching == "auto" and packs),
        "seed": settings.seed,
        "deterministic": settings.deterministic,
    }


def _clean(folder: RunFolder, counters: Counters, machine: Mapping[str, Any]) -> int:
    """Delete what a crash left after the last checkpoint; returns the number of broken lines in the metrics."""
    folder.prune(counters.kept)
    broken = read_events(folder.path).broken
    trim_jsonl(folder.path / "metrics.jsonl", counters.step)
    write_text_atomic(folder.path / "env.json", json.dumps(machine, indent=2) + "\n")
    return broken


def require_room(run: Run, size: int) -> None:
    """Refuse a model that does not fit into memory or onto the disk."""
    require_memory(size, run.device, run.team, run.recipe.train.parallel)
    if run.folder:
        run.folder.preflight(4 * size, 4 * size * 3, run.recipe.train.keep_best)


def require_memory(size: int, device: torch.device, team: Team, parallel: Parallel) -> None:
    """Refuse a model whose weights, gradients and Adam moments do not fit into memory."""
    shards = team.world if parallel == "fsdp" else 1
    needed = round(4 * size * (1 + 3 / shards)) * (team.local_world if device.type == "cpu" else 1)
    there = memory(device)
    if there is not None and needed > there:
        raise UserError(
            "the model is too large to train here",
            where="model",
            found=f"{size:,} parameters, which take {needed / 1e9:,.1f} GB with their gradients and moments",
            expected=f"at most the {there / 1e9:,.1f} GB of memory of this {device.type}",
            todo="choose a smaller width, fewer blocks or a smaller vocabulary",
        )


def _notes(
    run: Run, checkpoint: Checkpoint | None, about: Mapping[str, Any], settings: Changes, broken: int
) -> Iterator[str]:
    """Notes for the user about a run that starts or resumes, such as whether it resumes bit for bit."""
    recipe, folder, team = run.recipe, run.folder, run.team
    if folder and folder.restarted:
        yield "the folder held a run that had saved nothing yet; it starts over"
    yield from (f"skipped a damaged checkpoint: {damaged.reason}" for damaged in (folder.damaged if folder else ()))
    if folder and broken:
        yield broken_lines(folder.path, broken)
    if checkpoint:
        then = checkpoint.manifest.about
        changed = [name for name in about if name not in NOT_COMPUTED and then.get(name, about[name]) != about[name]]
        yield from (
            f"{name} was {then[name]} and is {about[name]} now: results may differ in the last bits" for name in changed
        )
        grown = [name for name in settings if name in MAY_GROW]
        yield from (f"{name} was {settings[name][0]} and is {settings[name][1]} now" for name in grown)
        schedule = recipe.train.schedule
        stretched = isinstance(schedule, Cosine | Linear | Stepwise) and any(name in BUDGET for name in grown)
        if stretched:
            yield (
                f"the {schedule.kind} schedule follows the budget: from here on the learning rate is that of the "
                "larger one, so that this differs from a run that had it from the start"
            )
        if then.get("test", about["test"]) != about["test"]:
            yield "the test data changed since the run started: the model is scored on the current ones"
        exact = recipe.train.deterministic or about["device"] == "cpu"
        if not (changed or stretched) and exact and recipe.train.budget.minutes is None:
            yield "versions, machine, threads and processes are as before: the run resumes bit for bit"
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
    """Refuse to resume with other samples, or in another order."""
    if checkpoint.manifest.about["packed"] != about["packed"]:
        before, now = ("padded", "packed") if about["packed"] else ("packed", "padded")
        raise UserError(
            "this run cannot resume with the same order of samples",
            where="train.batching",
            found=f"{now} batches on this device, {before} ones when the run started",
            todo=f"resume on the device it started on, or start over elsewhere with train.batching={before}",
        )
    require_contents(checkpoint, about, {**artifacts, "data": "the training data", "valid": "the validation data"})


def _require_own(checkpoint: Checkpoint, run: Path, recipe: Recipe, name: str) -> Changes:
    """Refuse a checkpoint of another run or recipe; returns the allowed changes of settings."""
    about, settings = dict(checkpoint.manifest.about), recipe.model_dump(mode="json")
    if isinstance(about.get("recipe"), dict):
        about["recipe"] = completed(about["recipe"])
    require_of_run(checkpoint.path, about, name, "delete it, or put the run's own back")
    return require_made_with(checkpoint.path, about, settings, run, MAY_DIFFER | MAY_GROW)


def _test_data(task: AnyTask, vocabulary: Any) -> str | None:
    """The SHA-256 of the test data; None without any."""
    if not has_test(task.recipe):
        return None
    read = task.read("test")
    return digest(read, task.encode(read, vocabulary))


def has_test(recipe: Recipe) -> bool:
    return recipe.data.test is not None


def _vocabulary(task: AnyTask, folder: Path, read: Read, begun: bool, source: Opened | Source | None) -> Any:
    """The run's vocabulary: learned at its start, or that of the model it starts from."""
    if begun and are_kept(task, folder):
        return load_artifacts(task, folder)
    vocabulary = task.adapted(source.vocabulary, read) if source is not None else task.learn(read)
    write_artifacts(task, folder, vocabulary)
    return vocabulary


def require_all(run: Path, recipe: Recipe, name: str, steps: Sequence[int], now: int) -> list[Checkpoint]:
    """The checkpoints for the final model so far, newest first; none may be missing."""
    many = f"the final model is the mean of steps {', '.join(map(str, steps))}"
    why = many if len(steps) > 1 else "the final model is made from it"
    found = [checkpoint_at(run, step, why) for step in sorted(steps, reverse=True) if step <= now]
    for checkpoint in found:
        _require_own(checkpoint, run, recipe, name)
    return found


def final_use(task: AnyTask) -> Use:
    """Which checkpoint becomes the final model: best, last or average."""
    train: TrainConfig = task.recipe.train
    return train.use or ("average" if train.average > 1 else "best" if task.validates else "last")
