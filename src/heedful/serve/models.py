"""The models of a server by name, with what computes for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from heedful.errors import UserError
from heedful.http.answers import Refused
from heedful.runs.load import few_threads, load, require_run_folder
from heedful.serve.engine import Completion, Engine
from heedful.serve.worker import Batcher, Part
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.pretraining.predictor import TextEncoder
from heedful.training.checkpoint.choice import by_name, split_checkpoint


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


def names_of(folders: Sequence[Path]) -> dict[str, Path]:
    """The folders of models by name; a run is called as its folder."""
    if not folders:
        raise UserError("there is no model to serve", todo="name a run or a model folder")
    found: dict[str, Path] = {}
    for name, folder in by_name(folders).items():
        run, _ = split_checkpoint(folder)
        require_run_folder(run)
        if any(folder.resolve() == other.resolve() for other in found.values()):
            raise UserError("the same folder is given twice", where=str(folder), todo="remove one of them")
        above = folder.resolve().parent.name  # every run has a folder called model
        found[above if name == "model" and above and above not in found else name] = folder
    return found


def open_models(
    folders: Sequence[Path], slots: int, longest: int, waiting: int, bf16: bool,
    deliver: Callable[[Sequence[Completion]], None], loading: Callable[[str], None],
) -> dict[str, Served]:  # fmt: skip
    """Load the models; `loading` is called with the name of each."""
    found: dict[str, Served] = {}
    for name, folder in names_of(folders).items():
        loading(name)
        predictor: Any = load(folder)
        if bf16:
            if not isinstance(predictor, TextGenerator):
                raise UserError(
                    "only language models are served in bfloat16", where="--bf16", found=f"{name}: {predictor.task}",
                    todo="leave it out",
                )  # fmt: skip
            predictor.bfloat16()
        found[name] = Served(name, predictor, slots, longest, waiting, deliver)
    models = [one.predictor for one in found.values()]
    torch.set_num_threads(max(few_threads(one.model, one.device) for one in models))
    return found


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
