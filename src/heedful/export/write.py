"""A run as a folder for another program: its graphs, its tokenizer, and export.json, which describes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from heedful import __version__
from heedful.errors import UserError, shown
from heedful.export.check import Exported, require_near, seconds
from heedful.export.ctranslate2 import require_ctranslate2, write_ctranslate2
from heedful.export.graph import Graph, Run
from heedful.export.onnx import onnx_run, quantized, require_onnx, write_onnx
from heedful.export.program import compiled_run, program_run, require_compiler, write_compiled, write_program
from heedful.export.roles import graphs_of
from heedful.files import writing as files
from heedful.models.own import settings_of
from heedful.runs.load import AnyPredictor
from heedful.tasks import task_class

TIMED = 8, 32  # rows and columns
FAR = 0.5  # of the largest number, at which int8 is of no use
Written = list[tuple[Exported, dict[str, Any]]]  # each file, and what export.json says of it
Say = Callable[[str], None]


@dataclass(frozen=True)
class Target:
    """A program that runs exported files: what it needs, and how a folder for it is written."""

    require: Callable[[], None]
    write: Callable[[AnyPredictor, Path, bool, Say], Written]
    int8: bool = True  # whether weights can be in int8


@dataclass(frozen=True)
class GraphFiles:
    """How the graphs of a model are written as files, and run."""

    suffix: str
    write: Callable[[Graph, Path], None]
    run: Callable[[Graph, Path], Run]
    quantize: Callable[[Path, Path], None] | None = None

    def __call__(self, predictor: AnyPredictor, folder: Path, int8: bool, say: Say) -> Written:
        """Write a file for each graph, compared with the graph."""
        found: Written = []
        for graph in graphs_of(predictor):
            say(f"{graph.name}: tracing, writing and comparing ...")
            file = folder / f"{graph.name}{self.suffix}"
            self.write(graph, file)
            off = require_near(graph, self.run(graph, file))
            if int8 and self.quantize:
                self.quantize(file, folder / "int8")
                files.rename(folder / "int8", file)
                off = require_near(graph, self.run(graph, file), FAR)
            ours, theirs = seconds((graph.run, self.run(graph, file)), graph.inputs(*TIMED))
            one = Exported(file.name, file.stat().st_size, off, ours, theirs)
            found.append((one, {"inputs": sizes(graph), "outputs": list(graph.outputs)}))
        return found


TARGETS = {
    "onnx": Target(require_onnx, GraphFiles(".onnx", write_onnx, lambda _, file: onnx_run(file), quantized)),
    "ctranslate2": Target(require_ctranslate2, write_ctranslate2),
    "torch": Target(lambda: None, GraphFiles(".pt2", write_program, program_run), int8=False),
    "aotinductor": Target(require_compiler, GraphFiles(".pt2", write_compiled, compiled_run), int8=False),
}


def export(
    predictor: AnyPredictor, folder: Path, to: str, int8: bool = False, say: Say = lambda text: None
) -> list[Exported]:
    """Write the folder atomically, if every file computes what the model computes."""
    target = require_target(to, int8)
    predictor.to("cpu")
    with files.atomic_path(folder) as fresh:
        files.make_folder(fresh)
        written = target.write(predictor, fresh, int8, say)
        about = description(predictor, to, int8, written)
        files.write_new(fresh / "export.json", (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode())
        for name, text in artifacts(predictor):
            files.write_new(fresh / name, text.encode())
    return [one for one, _ in written]


def require_target(to: str, int8: bool = False) -> Target:
    """The target; an error if it does not exist, has no int8, or needs what is missing."""
    if to not in TARGETS:
        raise UserError(
            "there is no such target", where="--to", found=shown(to), expected=" or ".join(TARGETS),
            todo="for folders of Hugging Face: heedful convert RUN DST --to hf",
        )  # fmt: skip
    target = TARGETS[to]
    if int8 and not target.int8:
        able = " or ".join(f"--to {name}" for name, one in TARGETS.items() if one.int8)
        raise UserError("not supported: this target has no int8", where="--int8", found=f"--to {to}", todo=able)
    target.require()
    return target


def artifacts(predictor: AnyPredictor) -> Iterator[tuple[str, str]]:
    """The tokenizer, or what else the task keeps, by the names of the files."""
    task = task_class(predictor.task, settings_of(predictor.model).kind)
    for name, artifact in task.artifacts_of(predictor.tokenizer).items():
        yield name, artifact.json


def sizes(graph: Graph) -> dict[str, Any]:
    """The type and the shape of each input; null: any size."""

    def tensor(value: Tensor, other: Tensor) -> dict[str, Any]:
        shape = [size if size == its else None for size, its in zip(value.shape, other.shape, strict=True)]
        return {"type": str(value.dtype).removeprefix("torch."), "shape": shape}

    small, large = graph.inputs(2, 5), graph.inputs(3, 7)
    return {name: tensor(value, large[name]) for name, value in small.items()}


def description(predictor: AnyPredictor, to: str, int8: bool, written: Written) -> dict[str, Any]:
    """What export.json says: how each file is called, and how it was compared."""
    return {
        "heedful": __version__,
        "task": predictor.task,
        "target": to,
        "int8": int8,
        "model": settings_of(predictor.model).model_dump(mode="json"),
        "files": [{**asdict(one), **about} for one, about in written],
    }
