"""An experiment from its recipe: data, tokenizer, model, training, scores, and the folder that holds it all."""

from __future__ import annotations

import json
import math
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.config import parse, render
from heedful.data.batches import Batches, encode
from heedful.data.sources import Pair, Split
from heedful.data.tokenizers import Tokenizer
from heedful.errors import UserError, shown
from heedful.models import build
from heedful.models.configs import TransformerConfig
from heedful.recipe import DecodeConfig, Recipe, check_recipe
from heedful.tasks.translation import Translator, compiled, perplexity_loss, translation_loss
from heedful.train.checkpoint import Checkpoint, RunFolder, newest
from heedful.train.environment import environment
from heedful.train.files import append_jsonl, disk_errors, trim_jsonl, write_text_atomic
from heedful.train.loop import (
    EXIT_NOT_FINITE,
    Counters,
    Due,
    Saved,
    Step,
    choose_device,
    fit,
    load_strictly,
    require_fit,
    spent,
    weights_of,
)
from heedful.train.metrics import Score, bleu, chrf, exact_match
from heedful.train.portable import read_model, write_model

TINY = 1_000_000  # parameters under which a second thread costs more than it brings


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
class Evaluated:
    """How good the model is on a split, with a few translations."""

    step: int
    split: Split
    loss: float
    scores: tuple[Score, ...]
    samples: tuple[tuple[str, str, str], ...]  # source, reference, translation
    unread: int  # sources too long for the model, whose translation counts as empty


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
    with RunFolder.create_or_open(path, render(recipe), keep=recipe.train.keep) as folder:
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
        for checkpoint in newest(folder.path, recipe.train.keep + 1)[0]
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


def results(run: Path) -> Evaluated | None:
    """The test scores of a run that is complete."""
    path = run / "results.json"
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        scores = tuple(Score(name, score["value"], score["signature"]) for name, score in data["scores"].items())
        samples = tuple((source, reference, found) for source, reference, found in data["samples"])
        return Evaluated(data["step"], data["split"], data["loss"], scores, samples, data["unread"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            "the test scores cannot be read", where=str(path), found=repr(error),
            todo="delete the file, and train again with the same command: the model is scored anew",
        ) from error  # fmt: skip


def scored(
    translator: Translator,
    recipe: Recipe,
    split: Split,
    step: int = 0,
    beams: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluated:
    """Scores of a trained model on one split of its recipe's data, with the recipe's beams if none are given."""
    pairs = recipe.data.pairs(split)
    encoded = encode(pairs, translator.tokenizer, translator.context)
    loss = perplexity_loss(translator.model, encoded, translator.device, recipe.train.batch_tokens)
    return evaluate(translator, pairs, step, split, loss, recipe.train.samples, beams, progress)


def evaluate(
    translator: Translator,
    pairs: Sequence[Pair],
    step: int,
    split: Split,
    loss: float,
    samples: int,
    beams: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluated:
    """BLEU, chrF and exact match of a translator on pairs, and a few samples spread over them."""
    fits = [length <= translator.context for length in translator.lengths([pair.source for pair in pairs])]
    texts = [pair.source for pair, fit in zip(pairs, fits, strict=True) if fit]
    translations = iter(translator.search(texts, beams, progress=progress))
    found = [next(translations)[0].text if fit else "" for fit in fits]
    references = [pair.target for pair in pairs]
    shown = random.Random(step).sample(range(len(pairs)), min(samples, len(pairs)))
    return Evaluated(
        step,
        split,
        loss,
        (bleu(found, references), chrf(found, references), exact_match(found, references)),
        tuple((pairs[row].source, references[row], found[row]) for row in shown),
        fits.count(False),
    )


def few_threads(model: nn.Module, device: torch.device) -> int:
    """How many CPU threads a model is worth."""
    size = sum(weight.numel() for weight in model.parameters())
    if size < TINY and device.type == "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def average(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several sets of weights, taken in float64."""
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(states[0][name].dtype)
        for name in states[0]
    }


def write_portable(
    folder: Path, recipe: Recipe, config: TransformerConfig, model: nn.Module, tokenizer: Tokenizer
) -> None:
    """The folder that `load` reads: config.json, model.safetensors, tokenizer.json."""
    text = json.dumps(
        {"task": recipe.task.kind, "model": config.model_dump(), "decode": recipe.decode.model_dump()}, indent=2
    )
    write_model(folder, text + "\n", weights_of(model), tokenizer.json, {"recipe": recipe.model_dump(mode="json")})


def load(path: str | Path, device: str | None = None) -> Translator:
    """A trained model from a run folder (its final model, else its newest checkpoint) or from a model folder."""
    folder = Path(path)
    place = _place(device)
    if not folder.is_dir():
        raise UserError(
            "there is no such folder", where=str(path), expected="a run folder or a model folder",
            todo="`heedful runs` lists the runs below a folder",
        )  # fmt: skip
    portable = folder / "model" if (folder / "model").is_dir() else folder
    if portable != folder or (folder / "config.json").is_file():
        config, decode, tokenizer, tensors = _portable(portable)
        weights = portable / "model.safetensors"
    else:
        recipe = read_recipe(folder)
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
        config = recipe.model.model_copy(update={"vocab": recipe.model.vocab or tokenizer.vocab})
        decode = recipe.decode
        checkpoints, _ = newest(folder, 1)
        if not checkpoints:
            raise UserError(
                "this run has no checkpoint yet",
                where=str(folder),
                todo="train on with the same command, then try again",
            )
        tensors, weights = checkpoints[0].load("model"), checkpoints[0].path / "model.safetensors"
    with torch.device("meta"):  # a config may ask for a model of any size: no memory is taken until the weights fit
        require_fit(build(config), tensors, weights)
    model = build(config)
    model.load_state_dict(tensors)
    return Translator(model, tokenizer, config.context, place, decode.beams, decode.length_penalty, decode.max_length)


def _portable(folder: Path) -> tuple[TransformerConfig, DecodeConfig, Tokenizer, dict[str, Tensor]]:
    """What a model folder holds, each part checked."""
    found, where = read_model(folder), folder / "config.json"
    settings = _json(found.config_json, where)
    if settings.get("task") != "translation":
        raise UserError(
            "this model is not one that translates", where=f"{where}: task", found=shown(settings.get("task")),
            expected="translation", todo="give the folder of a translation model",
        )  # fmt: skip
    model, decoding = (_group(settings, name, where) for name in ("model", "decode"))
    config, decode = parse(TransformerConfig, model, file=where), parse(DecodeConfig, decoding, file=where)
    if found.tokenizer_json is None:
        raise UserError("the tokenizer is missing", where=str(folder / "tokenizer.json"), todo="copy the whole folder")
    tokenizer = Tokenizer(found.tokenizer_json, str(folder / "tokenizer.json"))
    if config.vocab is None or config.vocab < tokenizer.vocab:
        raise UserError(
            "the model and its tokenizer do not belong together",
            where=f"{where}: model.vocab",
            found=str(config.vocab),
            expected=f"at least {tokenizer.vocab:,}, the tokens in tokenizer.json",
            todo="copy the whole folder again",
        )
    return config, decode, tokenizer, found.tensors


def _place(device: str | None) -> torch.device:
    """The device of that name, or the best there is."""
    gpu = torch.cuda.is_available()
    try:
        place = torch.device(device or ("cuda" if gpu else "cpu"))
    except RuntimeError:
        place = None
    if place is None or place.type not in ("cpu", "cuda") or (place.type == "cuda" and not gpu):
        raise UserError(
            "there is no such device", where="device", found=shown(device),
            expected="cpu or cuda" if gpu else "cpu: torch finds no GPU here",
        )  # fmt: skip
    return place


def read_recipe(folder: Path) -> Recipe:
    """The recipe that a run folder was made from."""
    from heedful.config import load_yaml

    file = folder / "recipe.yaml"
    if not file.is_file():
        raise UserError(
            "this folder is not a run", where=str(folder), expected="a folder with recipe.yaml in it",
            todo="`heedful runs` lists the runs below a folder",
        )  # fmt: skip
    data, marks = load_yaml(file)
    return parse(Recipe, data, marks, (), file)


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
    return bool(getattr(recipe.data, "test", None))


def _tokenizer(recipe: Recipe, folder: Path, pairs: Sequence[Pair]) -> Tokenizer:
    """The run's tokenizer, trained once and kept."""
    path = folder / "tokenizer.json"
    if path.exists():
        return Tokenizer.load(path)
    tokenizer = Tokenizer.train(recipe.tokenizer, (text for pair in pairs for text in pair))
    write_text_atomic(path, tokenizer.json)
    return tokenizer


def _json(text: str, where: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            "this is not JSON", where=f"{where}", found=str(error), todo="copy the whole folder again"
        ) from error
    if not isinstance(found, dict):
        raise UserError("this is not a model's config", where=f"{where}", todo="copy the whole folder again")
    return found


def _group(settings: dict[str, Any], name: str, where: Path) -> dict[str, Any]:
    found = settings.get(name)
    if not isinstance(found, dict):
        raise UserError(
            f"{name} is not right", where=str(where), found=shown(found), expected="a group of settings, {...}",
            todo="copy the whole folder again",
        )  # fmt: skip
    return found


def plain(event: Evaluated) -> dict[str, Any]:
    """An evaluation as it is written to JSON."""
    scores = {score.name: {"value": score.value, "signature": score.signature} for score in event.scores}
    return {"kind": "evaluated", **asdict(event), "scores": scores}


def _record(run: Path, event: Step | Saved | Evaluated, every: int = 1) -> None:
    """Add an event to the run's metrics; steps only now and then."""
    if isinstance(event, Step):
        if event.step % every and event.step != 1 and event.progress < 1:
            return
        append_jsonl(run / "metrics.jsonl", {"kind": "step", **asdict(event)})
    elif isinstance(event, Evaluated):
        append_jsonl(run / "metrics.jsonl", plain(event))
