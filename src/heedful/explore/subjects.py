"""What the explorer is opened on: trained runs and model folders, each by a name, with what can be seen of it."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from threading import Lock, RLock
from typing import Any, Protocol, TypeVar

import torch
from pydantic import ValidationError

from heedful.blocks.taps import taps
from heedful.config import AnyConfig
from heedful.errors import UserError, shown
from heedful.explore import inspect, samples
from heedful.explore.capabilities import Captures
from heedful.explore.inspect import Given, Trace
from heedful.explore.samples import Shown
from heedful.explore.views import VIEWS, Named, View, find
from heedful.files.reading import is_file, require_folder
from heedful.runs.load import load
from heedful.tasks.base import Example
from heedful.training.checkpoint.choice import by_name, picked

MOST_BYTES, MOST_KEPT = 400_000_000, 256  # what is kept of a model: how large it is at the most, and how many
PATIENCE = 2.0  # seconds until what could not be opened is tried again


class Sized(Protocol):
    """What can be kept: it knows how many bytes it takes."""

    @property
    def size(self) -> int: ...


Kept = TypeVar("Kept", bound=Sized)


class Subject:
    """A run or a model folder: its name, and its model once it is asked for."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self._path = name, picked(folder)[0], folder
        self.lock = RLock()  # whoever watches a model has it alone
        self._kept: OrderedDict[str, Any] = OrderedDict()
        self._opening = Lock()
        self._failed: tuple[float, str | None] = (0.0, None)  # when it could not be opened, and why

    @cached_property
    def predictor(self) -> Any:
        """The model with all that it takes to use it, loaded once; weights that can be learned, whoever asks first."""
        with self._opening, torch.inference_mode(False):
            if "predictor" not in self.__dict__:  # whoever waited here gets what the other has loaded
                found = load(self._path)
                if isinstance(found, Captures):
                    found.graphs = None  # other threads use the device, too, which no capture of steps can bear
                self.__dict__["predictor"] = found
            return self.__dict__["predictor"]

    @property
    def broken(self) -> str | None:
        """Why there is no model, if there is none: a run that has just begun may soon have a checkpoint."""
        tried, why = self._failed
        if why is not None and time.monotonic() - tried < PATIENCE:
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
        """Whether it was trained here, and its folder tells how."""
        return is_file(self.folder / "recipe.yaml")

    @cached_property
    def attentions(self) -> dict[str, tuple[str, ...]]:
        """The taps that show where the model looks, layer by layer, where texts can be shown to it."""
        return inspect.attentions(self.model) if inspect.reads(self.predictor) else {}

    def has_tap(self, pattern: str) -> bool:
        """Whether a tap of the model matches."""
        return any(fnmatchcase(name, pattern) for name in taps(self.model))

    def trace(self, given: Given, pattern: str = f"*.{inspect.WEIGHTS}") -> Trace:
        """What passes the model's taps while it reads an input; the last few are kept."""
        key = json.dumps([given.model_dump(include={"text", "other"}), pattern])
        return self.kept(key, lambda: inspect.trace(self.model, inspect.reading(self.predictor, given), pattern))

    def kept(self, key: str, make: Callable[[], Kept]) -> Kept:
        """What was made for a key, or what is made now, the model watched by nobody else; the last few are kept."""
        with self.lock:
            found: Kept | None = self._kept.pop(key, None)
            if found is None:
                found = make()
            self._kept[key] = found
            while len(self._kept) > 1 and (
                len(self._kept) > MOST_KEPT or sum(one.size for one in self._kept.values()) > MOST_BYTES
            ):
                self._kept.popitem(last=False)
            return found

    @property
    def shown(self) -> Shown:
        """The examples that a reader begins with, asked anew each time: a run that trains has others later."""
        if not inspect.reads(self.predictor):
            return Shown((), None)
        task = samples.described(self.folder) if self.is_run else None
        if task is not None and (own := samples.recorded(task, self.folder) or self._read):
            return Shown(samples.ordered(self.predictor, own), task.words.sample[1])
        return Shown((samples.usual(self.predictor),), None)

    @cached_property
    def _read(self) -> list[Example]:
        """Examples of the run's data, which are read once."""
        task = samples.described(self.folder)
        return [] if task is None else samples.read(task)

    @property
    def sample(self) -> dict[str, str | None]:
        """An input to begin with: the first of these examples."""
        return next(({"text": one.text, "other": one.other} for one in self.shown.examples), {})

    @property
    def views(self) -> tuple[str, ...]:
        """The views that make sense of it, by what it can do."""
        return tuple(name for name in VIEWS if find(name).fits(self))

    def about(self) -> dict[str, Any]:
        """What the page is told of it first."""
        told: dict[str, Any] = {"name": self.name, "run": self.is_run, "broken": self.broken, "views": self.views}
        if self.broken is None:
            told["kind"] = self.model.config.kind
            told["parameters"] = sum(weight.numel() for weight in self.model.parameters())
            told["reads"] = reads(self.predictor)
            told["looks"] = list(self.attentions)
            first = self.shown
            told["examples"] = [one._asdict() for one in first.examples]
            told["named"] = first.named
        return told


def reads(predictor: Any) -> str:
    """How many texts a model reads: a pair, of which it writes the second, one or two, one, or none."""
    if not inspect.reads(predictor):
        return "none"
    if inspect.translates(predictor):
        return "pair"
    return "one" if inspect.encoder_in(predictor) is None else "two"


class Explorer:
    """The subjects that are open, and the answers to what the page asks about them."""

    def __init__(self, folders: Sequence[Path]) -> None:
        if not folders:
            raise UserError("there is nothing to open", todo="name a run, or a folder with a model")
        for number, folder in enumerate(folders):
            run, _ = picked(folder)
            require_folder(run, "a run folder or a model folder", "`heedful runs` lists the runs below a folder")
            if folder.resolve() in [other.resolve() for other in folders[:number]]:
                raise UserError("the same folder is named twice", where=str(folder), todo="leave it out once")
        called = by_name(folders)
        if "model" in called and (above := called["model"].resolve().parent.name) not in called:
            # As it is called in every run; its place among the others stays.
            called = {above if name == "model" else name: folder for name, folder in called.items()}
        self.subjects = {name: Subject(name, folder) for name, folder in called.items()}

    def subject(self, name: str) -> Subject:
        """A subject by its name; nothing else can be opened from the page."""
        if name not in self.subjects:
            known = ", ".join(self.subjects)
            raise UserError("there is no such model here", where="model", found=shown(name), expected=known)
        return self.subjects[name]

    def about(self) -> dict[str, Any]:
        """What the page is told first: what is open, and which views there are."""
        views = [{"name": name, "title": find(name).TITLE, "about": find(name).ABOUT} for name in VIEWS]
        return {"subjects": [each.about() for each in self.subjects.values()], "views": views}

    def answer(self, view: str, call: str, question: bytes | Mapping[str, Any]) -> bytes:
        """The packet that answers one question of a view, put as JSON or as its settings."""
        module: View = find(view)
        if call not in module.CALLS:
            raise UserError("there is no such question", where=view, found=shown(call))
        kind, function = module.CALLS[call]
        text = question if isinstance(question, bytes) else json.dumps(question).encode()
        settings = asked(kind, text)
        if isinstance(settings, Named):
            require_fit(module, self.subject(settings.model))
        return function(self, settings)


def require_fit(view: View, subject: Subject) -> None:
    """Refuse what a view is asked about a model that it makes no sense of, or that cannot be opened."""
    if not view.fits(subject):
        message = subject.broken or "this view does not fit this model"
        raise UserError(message, where="model", found=shown(subject.name))


def asked(kind: type[AnyConfig], text: bytes) -> AnyConfig:
    """A question from its JSON."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: ValidationError) -> UserError:
    """The first thing that is wrong with a question."""
    first = error.errors(include_url=False, include_context=False)[0]
    return UserError(
        first["msg"][:200], where=".".join(map(str, first["loc"]))[:100] or None, found=shown(first.get("input"))
    )
