"""The models that are open in the explorer: trained runs and model folders, each with its views."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from threading import Lock, RLock
from typing import Any, Protocol, TypeVar

import torch
from pydantic import ValidationError

from heedful.config import AnyConfig
from heedful.errors import UserError, shown
from heedful.explore import inspect, samples
from heedful.explore.habits import Habits, habits_on
from heedful.explore.head_settings import HeadSettings, heads_set
from heedful.explore.inspect import Attention, TextInput, Trace
from heedful.explore.lessons.lesson import Lesson
from heedful.explore.lessons.reading import shipped
from heedful.explore.openings import TextOpening
from heedful.explore.samples import Examples
from heedful.explore.views import VIEWS, HeadedRequest, ModelRequest, View, find, takes_heads
from heedful.files.reading import is_file
from heedful.runs.load import load, name_folders
from heedful.tasks.base import Example
from heedful.tasks.captioning.predictor import ImageCaptioner
from heedful.tasks.dialogue.predictor import DialogueModel
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.translation.predictor import Translator
from heedful.training.checkpoint.choice import split_checkpoint

MAX_BYTES, MAX_ENTRIES = 400_000_000, 256  # of the cache of a model
EVERY = f"*.{inspect.WEIGHTS}"  # the attention weights of all layers
RETRY = 2.0  # seconds until a model that could not be loaded is tried again


class Sized(Protocol):
    """What can be cached: it knows its size in bytes."""

    @property
    def size(self) -> int: ...


Cached = TypeVar("Cached", bound=Sized)


class Subject:
    """An open run or model folder; its model is loaded when it is first used."""

    def __init__(self, name: str, folder: Path, every: Mapping[str, Subject] | None = None) -> None:
        self.name, self.folder, self._path = name, split_checkpoint(folder)[0], folder
        self.every = {name: self} if every is None else every  # all open subjects by name
        self.lock = RLock()  # a model is watched by one thread at a time
        self._cache: OrderedDict[str, Any] = OrderedDict()
        self._loading = Lock()
        self._setting = ""  # which heads are changed; read and written under the lock
        self._failed: tuple[float, str | None] = (0.0, None)  # when it could not be loaded, and why

    @cached_property
    def predictor(self) -> Any:
        """The predictor, loaded once, with weights that take gradients whichever thread is first."""
        with self._loading, torch.inference_mode(False):
            if "predictor" not in self.__dict__:  # another thread may have loaded it meanwhile
                found = load(self._path)
                if isinstance(found, Translator | TextGenerator | ImageCaptioner | DialogueModel):
                    found.graphs = None  # CUDA graphs cannot be captured while other threads use the device
                self.__dict__["predictor"] = found
            return self.__dict__["predictor"]

    @property
    def broken(self) -> str | None:
        """Why the model cannot be loaded, or None; a run that has just started may soon have a checkpoint."""
        tried, why = self._failed
        if why is not None and time.monotonic() - tried < RETRY:
            return why
        try:
            _ = self.predictor
            self._failed = (0.0, None)
        except UserError as error:
            self._failed = (time.monotonic(), error.message)
        return self._failed[1]

    @property
    def model(self) -> Any:
        """The module itself."""
        return self.predictor.model

    @property
    def is_run(self) -> bool:
        """Whether it is a run, whose folder has its recipe."""
        return is_file(self.folder / "recipe.yaml")

    @cached_property
    def attentions(self) -> dict[str, tuple[str, ...]]:
        """The taps of the attention weights by kind, layer by layer; empty for a model that reads no text."""
        return inspect.attention_taps(self.model) if inspect.reads_text(self.predictor) else {}

    @cached_property
    def kinds(self) -> tuple[Attention, ...]:
        """The kinds of attention of the model that can be changed, in the order in which head settings count them."""
        if not self.attentions:
            headed = any(takes_heads(find(name)) for name in self.views if name != "home")
            return tuple(inspect.attentions_in(self.model)) if headed else ()
        one = Example("", "", "") if inspect.is_translator(self.predictor) else self._defaults[0]
        return self.trace(TextInput(text=one.text, other=one.other)).attentions

    @contextmanager
    def heads_set(self, settings: HeadSettings) -> Iterator[None]:
        """Within the block, the model runs with some heads changed; what is cached of it is kept apart."""
        if not settings.off and not settings.uniform:
            yield
            return
        with self.lock, heads_set(self.model, self.kinds, settings):
            before, self._setting = self._setting, f"{sorted(settings.off)} {sorted(settings.uniform)} "
            try:
                yield
            finally:
                self._setting = before

    def trace(self, given: TextInput, pattern: str = EVERY) -> Trace:
        """The activations at the model's taps for an input, cached."""
        key = json.dumps([given.model_dump(include={"text", "other"}), pattern])

        def compute() -> Trace:
            reading = inspect.reading(self.predictor, given)
            if pattern == EVERY:
                inspect.require_whole(self.model, reading)
            return inspect.trace(self.model, reading, pattern)

        return self.cached(key, compute)

    def cached(self, key: str, compute: Callable[[], Cached]) -> Cached:
        """A cached value, or a new one, computed while no other thread uses the model."""
        with self.lock:
            key = self._setting + key
            found: Cached | None = self._cache.pop(key, None)
            if found is None:
                found = compute()
            self._cache[key] = found
            while len(self._cache) > 1 and (
                len(self._cache) > MAX_ENTRIES or sum(one.size for one in self._cache.values()) > MAX_BYTES
            ):
                self._cache.popitem(last=False)
            return found

    @property
    def examples(self) -> Examples:
        """The inputs to start with, the most telling first; a run in training gets new ones with each evaluation."""
        if not inspect.reads_text(self.predictor):
            return Examples((), None)
        task = samples.task_in(self.folder) if self.is_run else None
        if task is not None and (own := samples.recorded(task, self.folder) or self._held_out):
            found = samples.fitted(self.predictor, own)
            return Examples(self._habits_on(found).sorted(found), task.words.sample[1])
        return Examples(self._defaults, None)

    @cached_property
    def _defaults(self) -> tuple[Example, ...]:
        """The inputs to start with where there are no data."""
        return samples.defaults(self.predictor)

    @property
    def habits(self) -> Habits:
        """What the heads do over these examples."""
        return self._habits_on(self.examples.examples)

    def _habits_on(self, examples: Sequence[Example]) -> Habits:
        """The same over some examples, which are read once, in whatever order they come."""
        key = json.dumps(sorted(examples))
        return self.cached(f"habits {key}", lambda: habits_on(self, examples))

    @cached_property
    def _held_out(self) -> list[Example]:
        """Examples of the run's data, which are read once."""
        task = samples.task_in(self.folder)
        return [] if task is None else samples.held_out(task)

    @cached_property
    def corpus(self) -> tuple[Example, ...]:
        """Some texts of the run's data to search in; without data, the examples."""
        task = samples.task_in(self.folder) if self.is_run else None
        found = samples.held_out(task, samples.CORPUS) if task is not None else []
        each = {(one.text, one.other): one for one in samples.fitted(self.predictor, found)}
        return tuple(each.values()) or self.examples.examples

    @property
    def sample(self) -> dict[str, str | None]:
        """The default input: the first of these examples."""
        return next(({"text": one.text, "other": one.other} for one in self.examples.examples), {})

    @property
    def views(self) -> tuple[str, ...]:
        """The views that fit it."""
        return tuple(name for name in VIEWS if find(name).fits(self))

    def about(self) -> dict[str, Any]:
        """Its description for the page."""
        about: dict[str, Any] = {"name": self.name, "run": self.is_run, "broken": self.broken, "views": self.views}
        if self.broken is None:
            found = self.examples
            about |= {
                "kind": self.model.config.kind, "parameters": sum(each.numel() for each in self.model.parameters()),
                "reads": texts_of(self.predictor), "looks": list(self.attentions) or [one.name for one in self.kinds],
                "examples": [one._asdict() for one in found.examples], "named": found.target,
            }  # fmt: skip
        return about


def texts_of(predictor: Any) -> str:
    """The texts that a model takes: a source and its translation, one or two, one, or none."""
    if not inspect.reads_text(predictor):
        return "none"
    if inspect.is_translator(predictor):
        return "pair"
    return "one" if inspect.encoder_of(predictor) is None else "two"


class Explorer:
    """The open subjects, and the answers to the page's calls."""

    def __init__(self, folders: Sequence[Path], lesson: Lesson | None = None) -> None:
        if not folders:
            raise UserError("there is no model to open", todo="name a run or a model folder")
        self.subjects: dict[str, Subject] = {}
        self.subjects |= {name: Subject(name, folder, self.subjects) for name, folder in name_folders(folders).items()}
        opened = {} if lesson is None else {lesson.name: lesson}
        self.lessons = opened | shipped() | opened  # the opened one first, also where a shipped one has its name

    def lesson(self, name: str) -> Lesson:
        """A lesson by its name."""
        if name not in self.lessons:
            raise UserError("there is no such lesson", found=shown(name), expected=", ".join(self.lessons))
        return self.lessons[name]

    def subject(self, name: str) -> Subject:
        """An open subject by its name."""
        if name not in self.subjects:
            known = ", ".join(self.subjects)
            raise UserError("this model is not open", where="model", found=shown(name), expected=known)
        return self.subjects[name]

    def about(self) -> dict[str, Any]:
        """The description of all subjects and views for the page."""
        views = [
            {"name": name, "title": find(name).TITLE, "about": find(name).ABOUT, "opens": kind_of_opening(find(name))}
            for name in VIEWS
        ]
        return {"subjects": [each.about() for each in self.subjects.values()], "views": views}

    def answer(self, view: str, call: str, settings: bytes | Mapping[str, Any]) -> bytes:
        """The packet that answers one call of a view, with its settings as JSON or as a mapping."""
        module: View = find(view)
        if call not in module.CALLS:
            raise UserError("there is no such call", where=view, found=shown(call))
        kind, function = module.CALLS[call]
        request = parse_request(kind, settings if isinstance(settings, bytes) else json.dumps(settings).encode())
        if not isinstance(request, ModelRequest):
            return function(request)
        subject = self.subject(request.model)
        require_fit(module, subject)
        if not isinstance(request, HeadedRequest):
            return function(subject, request)
        with subject.heads_set(request):
            return function(subject, request)


def kind_of_opening(view: View) -> str:
    """What a view chooses to open on: a text, an image, or nothing."""
    kind, _ = view.CALLS.get("opening", (None, None))
    return "" if kind is None else "text" if issubclass(kind, TextOpening) else "image"


def require_fit(view: View, subject: Subject) -> None:
    """Raise an error for a model that does not fit a view, or cannot be loaded."""
    if not view.fits(subject):
        message = subject.broken or "this view does not fit this model"
        raise UserError(message, where="model", found=shown(subject.name))


def parse_request(kind: type[AnyConfig], text: bytes) -> AnyConfig:
    """The settings of a call from JSON; the error names the first invalid value."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))[:100] or None
        raise UserError(first["msg"][:200], where=where, found=shown(first.get("input"))) from None
