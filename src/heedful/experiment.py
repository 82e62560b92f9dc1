"""An experiment from its recipe: data, tokenizer, model, training, scores, and the folder that holds it all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.config import render
from heedful.data.batches import Batches, encode
from heedful.data.sources import Pair
from heedful.data.tokenizers import Tokenizer
from heedful.errors import UserError
from heedful.loading import few_threads, write_portable
from heedful.models import build
from heedful.models.configs import TransformerConfig
from heedful.recipe import Recipe, check_recipe
from heedful.scoring import Evaluated, evaluate, plain, results, scored
from heedful.tasks.translation import Translator, compiled, perplexity_loss, translation_loss
from heedful.training.checkpoint import Checkpoint, RunFolder, newest
from heedful.training.environment import environment
from heedful.training.files import append_jsonl, disk_errors, trim_jsonl, write_text_atomic
from heedful.training.loop import (
    EXIT_NOT_FINITE,
    Counters,
    Due,
    Saved,
    Step,
    choose_device,
    fit,
    load_strictly,
    spent,
)


@dataclass(frozen=True)
class Stage:
    """What is being done apart from training itself."""

    name: str


@dataclass(frozen=True)
class Started:
    """Everything is ready, and training begins or goes on at a step."""

    step: int
    parameters: int
    pairs: int
    dropped: int
    skipped: int
    vocab: int
    device: str
    threads: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Finished:
    """The run is complete, or was stopped at a step."""

    step: int
    stopped: bool
    folder: str


Happening = Stage | Started | Step | Evaluated | Saved | Finished


def train(recipe: Recipe, run: str | Path, stop: Callable[[], bool] = lambda: False) -> Iterator[Happening]:
    """Train a recipe in a run folder, or go on where the folder stands; every event is recorded there as it happens."""
    check_recipe(recipe)
    device = choose_device(recipe.train)
    path = Path(run)
    with disk_errors(path.parent, "make the folder of the run"):
        path.parent.mkdir(parents=True, exist_ok=True)
    with RunFolder.create_or_open(
        path, render(recipe), keep=recipe.train.keep, every=recipe.train.save_every
    ) as folder:
        yield from _train(recipe, folder, device, stop)


def _train(recipe: Recipe, folder: RunFolder, device: torch.device, stop: Callable[[], bool]) -> Iterator[Happening]:
    yield Stage("reading the data")
    read = recipe.data.read("train")
    valid = recipe.data.pairs("valid")
    yield Stage("training the tokenizer")
    tokenizer = _tokenizer(recipe, folder.path, read.pairs)
    yield Stage("turning text into tokens")
    encoded = encode(read.pairs, tokenizer, recipe.model.context)
    held_out = encode(valid, tokenizer, recipe.model.context)

    torch.manual_seed(recipe.train.seed)
    config = recipe.model.model_copy(update={"vocab": recipe.model.vocab or tokenizer.vocab})
    model: Any = build(config)
    size = sum(weight.numel() for weight in model.parameters())
    threads = recipe.train.threads or few_threads(model, device)
    torch.set_num_threads(threads)
    model.to(device)
    folder.preflight(bytes_needed=4 * size * 3 * (recipe.train.keep + 2))

    checkpoint = folder.latest()
    counters = Counters(**checkpoint.state) if checkpoint else Counters()
    trim_jsonl(folder.path / "metrics.jsonl", counters.step)
    setting = environment(device)
    packed = recipe.train.batching == "packed" or (recipe.train.batching == "auto" and device.type == "cuda")
    data = {"tokenizer": tokenizer.sha256, "data": encoded.sha256}
    about = {**setting, **data, "seed": recipe.train.seed, "packed": packed}
    if checkpoint:
        _require_same_samples(checkpoint, folder.path, data, packed)
    notes = [f"passed over a damaged checkpoint: {damaged.reason}" for damaged in folder.damaged]
    if checkpoint:
        notes += [
            f"{name} was {checkpoint.manifest.about.get(name)} and is {value} now: results may differ in the last bits"
            for name, value in setting.items()
            if checkpoint.manifest.about.get(name) != value
        ]
    write_text_atomic(folder.path / "env.json", json.dumps(setting, indent=2) + "\n")
    yield Started(
        counters.step, size, len(encoded), encoded.dropped, read.skipped, tokenizer.vocab, str(setting["device"]),
        threads, tuple(notes),
    )  # fmt: skip

    translator = Translator(
        model, tokenizer, config.context, device, recipe.decode.beams, recipe.decode.length_penalty,
        recipe.decode.max_length,
    )  # fmt: skip
    batches = Batches(encoded, recipe.train.seed, recipe.train.batch_tokens, packed)
    learner: Any = compiled(model, dynamic=not packed) if recipe.train.compile else model
    loss_of = partial(translation_loss, learner, label_smoothing=recipe.task.label_smoothing)
    events = fit(model, loss_of, batches, recipe.train, device, folder, about, counters, checkpoint, stop)
    for event in events:
        if isinstance(event, Due):
            loss = perplexity_loss(model, held_out, device, recipe.train.batch_tokens)
            if not math.isfinite(loss):
                raise UserError(
                    f"the loss on the validation set is not finite after step {event.step}",
                    found=f"loss {loss}",
                    todo="lower the learning rate or the clip; the last checkpoint is good",
                    exit_code=EXIT_NOT_FINITE,
                )
            result = evaluate(translator, valid, event.step, "valid", loss, recipe.train.samples, beams=1)
            score = next(score.value for score in result.scores if score.name == "chrf")
            if event.saved and (counters.best_score is None or score > counters.best_score):
                counters.best_score, counters.best_step = score, event.step
            _record(folder.path, result)
            yield result
        else:
            _record(folder.path, event, recipe.train.log_every)
            yield event
    stopped = spent(recipe.train, counters) < 1
    if not stopped:
        yield from _finish(recipe, folder, config, model, translator, counters)
    yield Finished(counters.step, stopped, str(folder.path))


def _require_same_samples(checkpoint: Checkpoint, run: Path, data: dict[str, str], packed: bool) -> None:
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
    for name, where in (("tokenizer", str(run / "tokenizer.json")), ("data", "the training data")):
        if about.get(name, data[name]) != data[name]:  # a run of an older version may not have noted it
            raise UserError(
                "this is not what the run began with",
                where=where,
                found=f"contents of SHA-256 {data[name][:16]}...",
                expected=f"contents of SHA-256 {about[name][:16]}..., as in {checkpoint.path.name}",
                todo="put the former file back, or begin anew with another --run",
            )


def _finish(
    recipe: Recipe,
    folder: RunFolder,
    config: TransformerConfig,
    model: nn.Module,
    translator: Translator,
    counters: Counters,
) -> Iterator[Happening]:
    """Average the last checkpoints, write the portable model, and score it on the test set."""
    # A stop between two saves leaves a checkpoint too, which is not averaged: the model does not depend on stops.
    regular = (
        checkpoint
        for checkpoint in newest(folder.path, recipe.train.keep + 3)[0]
        if checkpoint.step % recipe.train.save_every == 0 or checkpoint.step == counters.step
    )
    checkpoints = list(islice(regular, recipe.train.average))
    load_strictly(model, average([checkpoint.load("model") for checkpoint in checkpoints]), checkpoints[0].path)
    model.eval()
    write_portable(folder.path / "model", recipe, config, model, translator.tokenizer)
    curve(folder.path)
    if not _has_test(recipe):
        return
    if stored := results(folder.path):
        yield stored
        return
    yield Stage("translating the test set")
    result = scored(translator, recipe, "test", counters.step)
    _record(folder.path, result)
    write_text_atomic(folder.path / "results.json", json.dumps(plain(result), indent=2, ensure_ascii=False) + "\n")
    yield result


def average(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several sets of weights, taken in float64."""
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(states[0][name].dtype)
        for name in states[0]
    }


def curve(run: Path) -> Path | None:
    """Draw the losses recorded so far into loss.png."""
    from heedful.figures import curves

    metrics = run / "metrics.jsonl"
    text = metrics.read_text(encoding="utf-8") if metrics.is_file() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    losses = {
        "train": [line for line in lines if line["kind"] == "step"],
        "valid": [line for line in lines if line["kind"] == "evaluated" and line["split"] == "valid"],
    }
    series = {
        name: ([line["step"] for line in some], [line["loss"] for line in some])
        for name, some in losses.items()
        if some
    }
    if not series:
        return None
    path = run / "loss.png"
    with disk_errors(run, "draw the loss"):
        curves(series, path, "Loss", "step", "nats a token")
    return path


def _has_test(recipe: Recipe) -> bool:
    return recipe.data.test is not None


def _tokenizer(recipe: Recipe, folder: Path, pairs: Sequence[Pair]) -> Tokenizer:
    """The run's tokenizer, trained once and kept."""
    path = folder / "tokenizer.json"
    if path.exists():
        return Tokenizer.load(path)
    tokenizer = Tokenizer.train(recipe.tokenizer, (text for pair in pairs for text in pair))
    write_text_atomic(path, tokenizer.json)
    return tokenizer


def _record(run: Path, event: Step | Saved | Evaluated, every: int = 1) -> None:
    """Add an event to the run's metrics; steps only now and then."""
    if isinstance(event, Step):
        if event.step % every and event.step != 1 and event.progress < 1:
            return
        append_jsonl(run / "metrics.jsonl", {"kind": "step", **asdict(event)})
    elif isinstance(event, Evaluated):
        append_jsonl(run / "metrics.jsonl", plain(event))
