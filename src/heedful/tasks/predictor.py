"""The base class of predictors, results with a short `repr`, and saving a predictor to a folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from heedful.config import Config
from heedful.errors import UserError, shown
from heedful.hub.model_folder import write_model
from heedful.models.own import OwnModel, own_class, settings_of
from heedful.tasks import task_class
from heedful.tasks.base import Artifact
from heedful.training.metrics import Score

REPR_CHARACTERS = 60  # of a text
REPR_ITEMS = 6  # of a list


class Result:
    """A result of a predictor: a frozen dataclass. Fields with `repr=False` are left out of its `repr`."""

    def __repr__(self) -> str:
        fields = [field for field in dataclasses.fields(self) if field.repr]  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(_brief(getattr(self, field.name)) for field in fields)})"

    def to_dict(self) -> dict[str, object]:
        """All fields as plain values that `json.dumps` accepts."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}  # type: ignore[arg-type]


def _brief(value: object) -> str:
    """A value in few characters: arrays by their shapes, long lists by their lengths."""
    if isinstance(value, Tensor | np.ndarray):
        return f"<{'tensor' if isinstance(value, Tensor) else 'array'} {' x '.join(map(str, value.shape))}>"
    if isinstance(value, str):
        return repr(value if len(value) <= REPR_CHARACTERS else value[: REPR_CHARACTERS - 3] + "...")
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_brief(value[key])}" for key in value) + "}"
    if isinstance(value, list | tuple):
        return f"<{len(value)} items>" if len(value) > REPR_ITEMS else "[" + ", ".join(map(_brief, value)) + "]"
    return repr(value)


def _plain(value: object) -> object:
    """A value that `json.dumps` accepts."""
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """The evaluation of a predictor: scores by name, the mean loss if there is one, and the number of examples."""

    scores: dict[str, float]
    loss: float | None
    count: int

    @classmethod
    def of(cls, scores: Sequence[Score], loss: float | None, count: int) -> Evaluation:
        """An evaluation from scores with their signatures."""
        return cls({score.name: score.value for score in scores}, loss, count)


I_contra = TypeVar("I_contra", contravariant=True)
O_co = TypeVar("O_co", covariant=True)
X_contra = TypeVar("X_contra", contravariant=True)


@runtime_checkable
class Predictor(Protocol[I_contra, O_co, X_contra]):
    """A trained model that is ready to use, as `heedful.load` returns it.

    I: an input, O: the result for it, X: an example to evaluate on, most often a pair (input, expected).
    """

    task: ClassVar[str]  # the kind of task, as recipes name it

    model: nn.Module
    tokenizer: Artifact  # or what else the task keeps beside the weights
    device: torch.device
    notes: tuple[str, ...]  # remarks for the user about how it was loaded

    def __post_init__(self) -> None:
        self.model.to(self.device).eval()

    @property
    def _net(self) -> Any:
        """The model, typed so that the methods of its role can be called."""
        return self.model

    @property
    def decode_settings(self) -> Config | None:
        """The settings that are saved with the model, where the task has any."""
        return None

    def predict(self, inputs: Sequence[I_contra]) -> Sequence[O_co]:
        """The result for each input, with the default settings."""

    def evaluate(self, data: str | Path | Sequence[X_contra]) -> Evaluation:
        """Scores on a data file in the format of the task, or on examples."""
        if not isinstance(data, str | Path) and not len(data):
            raise UserError("there are no examples to evaluate on", found="an empty list")
        return self._evaluate(Path(data) if isinstance(data, str) else data)

    def _evaluate(self, data: Path | Sequence[X_contra]) -> Evaluation:
        """Scores on a file, or on at least one example."""

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device, such as cpu or cuda, and return this predictor."""
        self.device = device_of(device)
        self.__post_init__()
        return self

    def save(self, folder: str | Path) -> None:
        """Write a model folder, from which `heedful.load` makes the same predictor."""
        config, own = settings_of(self.model), own_class(self.model)
        task, settings = task_class(self.task, config.kind), {"task": self.task, "model": config.model_dump()}
        settings |= {"own_model": own} if own else {}
        settings |= {} if self.decode_settings is None else {self._settings_key: self.decode_settings.model_dump()}
        artifacts = {name: artifact.json for name, artifact in task.artifacts_of(self.tokenizer).items()}
        write_model(Path(folder), json.dumps(settings, indent=2) + "\n", self.saved_tensors, artifacts, {})

    @property
    def saved_tensors(self) -> dict[str, Tensor]:
        """The tensors of a model folder."""
        return self.model.state_dict()

    _settings_key: ClassVar[str] = "decode"  # where config.json keeps these settings

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str | None = None,
        checkpoint: str | int | None = None,
        model: OwnModel | None = None,
    ) -> Self:
        """A predictor of this class from a run folder, a model folder or a Hugging Face folder."""
        from heedful.runs.load import load

        return load(path, cls, device, checkpoint, model)


def device_of(device: str | torch.device | None) -> torch.device:
    """The device with this name; None: a GPU if there is one, else the CPU."""
    gpu = torch.cuda.is_available()
    try:
        found = torch.device(device or ("cuda" if gpu else "cpu"))
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda") or (found.type == "cuda" and not gpu):
        raise UserError(
            "there is no such device", where="device", found=shown(str(device)),
            expected="cpu or cuda" if gpu else "cpu: torch finds no GPU here",
        )  # fmt: skip
    return found


def batch_of(inputs: Sequence[Any], what: str = "texts, as [text]") -> Sequence[Any]:
    """The inputs, which must be a list and not a single text."""
    if isinstance(inputs, str):
        raise TypeError(f"pass a list of {what}")
    return inputs
