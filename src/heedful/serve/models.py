"""The models of a server by name, with what computes for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from heedful.errors import UserError
from heedful.http.answers import Refused
from heedful.runs.load import few_threads, load, name_folders
from heedful.serve.engine import Completion, Engine
from heedful.serve.worker import Batcher, Part
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.pretraining.predictor import TextEncoder

Precision = Literal["fp32", "bf16", "int8"]


class Served:
    """A model: its predictor, and the queues of its requests."""

    def __init__(
        self,
        name: str,
        predictor: Any,
        slots: int,
        longest: int,
        waiting: int,
        deliver: Callable[[Sequence[Completion]], None],
    ) -> None:
        self.name, self.predictor = name, predictor
        self.predictions = Batcher(predictor.predict, waiting)
        self.engine = self.embeddings = None
        if isinstance(predictor, TextGenerator):
            self.engine = Engine(predictor, slots, longest, waiting, deliver)
        if isinstance(predictor, TextEncoder):
            self.embeddings = Batcher(lambda texts: embed(predictor, texts), waiting)

    @property
    def parts(self) -> list[Part]:
        """What the worker does for it."""
        return [part for part in (self.engine, self.embeddings, self.predictions) if part is not None]

    @property
    def batchers(self) -> list[Batcher]:
        """The queues of predictions and embeddings."""
        return [part for part in (self.embeddings, self.predictions) if part is not None]

    @property
    def waiting(self) -> int:
        """The requests that wait."""
        queued = sum(len(part.waiting) for part in self.batchers)
        return queued + (len(self.engine.waiting) if self.engine else 0)


def embed(encoder: TextEncoder, texts: Sequence[str]) -> list[tuple[list[float], int]]:
    """The vector of each text, and the number of its tokens."""
    tokenized = encoder.tokenize(texts)
    vectors: list[list[float]] = encoder.embed_tokenized(tokenized).tolist()
    return list(zip(vectors, map(len, tokenized.rows), strict=True))


def open_models(
    folders: Sequence[Path], slots: int, longest: int, waiting: int, precision: Precision,
    deliver: Callable[[Sequence[Completion]], None], loading: Callable[[str], None],
) -> dict[str, Served]:  # fmt: skip
    """Load the models; `loading` is called with the name of each."""
    found: dict[str, Served] = {}
    for name, folder in name_folders(folders).items():
        loading(name)
        predictor = in_precision(load(folder), precision, name)
        found[name] = Served(name, predictor, slots, longest, waiting, deliver)
    models = [one.predictor for one in found.values()]
    torch.set_num_threads(max(few_threads(one.model, one.device) for one in models))
    return found


def in_precision(predictor: Any, precision: Precision, name: str) -> Any:
    """The predictor with its weights in a precision that it supports."""
    match predictor, precision:
        case _, "fp32":
            return predictor
        case TextGenerator() | TextEncoder(), "bf16":
            return predictor.bfloat16()
        case TextEncoder(), "int8":
            return predictor.int8()
    raise UserError(
        f"this model cannot be served in {precision}", where="--precision", found=f"{name} ({predictor.task})",
        expected="bf16 for language models and encoders of texts, int8 for encoders, fp32 for all",
        todo="serve it on its own",
    )  # fmt: skip


def chosen(models: dict[str, Served], name: str | None) -> Served:
    """The model that a request names; it may be left out if there is only one."""
    if name is None and len(models) == 1:
        return next(iter(models.values()))
    if name not in models:
        known = ", ".join(models)
        raise Refused(
            404, f"there is no model {name[:100]!r}; there are: {known}" if name else f"name a model: {known}"
        )
    return models[name]
