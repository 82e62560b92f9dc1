"""A run as a folder for another program: its graphs, its tokenizer, and export.json, which describes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from heedful import __version__
from heedful.errors import UserError, shown
from heedful.export.check import require_near, seconds
from heedful.export.graph import Graph
from heedful.export.onnx import onnx_bytes, onnx_run, quantized, require_onnx
from heedful.export.roles import graphs_of
from heedful.files import writing as files
from heedful.models.own import settings_of
from heedful.runs.load import AnyPredictor
from heedful.tasks import task_class

Target = Literal["onnx"]
TIMED = 8, 32  # rows and columns
FAR = 0.5  # of the largest number, at which int8 is of no use


@dataclass(frozen=True)
class Exported:
    """A file of an export: its size, how far it is from the model, and seconds of CPU time for the same inputs."""

    file: str
    bytes: int
    difference: float  # the largest, as a part of the largest number of an output
    model_seconds: float
    file_seconds: float


def export(
    predictor: AnyPredictor, folder: Path, to: str, int8: bool = False, say: Callable[[str], None] = lambda text: None
) -> list[Exported]:
    """Write the folder atomically, if every file computes what the model computes."""
    require_target(to)
    predictor.to("cpu")
    graphs, written = graphs_of(predictor), list[Exported]()
    with files.atomic_path(folder) as fresh:
        files.make_folder(fresh)
        for graph in graphs:
            say(f"{graph.name}: tracing, writing and comparing ...")
            written.append(write_graph(graph, fresh, int8))
        about = description(predictor, to, int8, graphs, written)
        files.write_new(fresh / "export.json", (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode())
        for name, text in artifacts(predictor):
            files.write_new(fresh / name, text.encode())
    return written


def require_target(to: str) -> None:
    """Refuse a target that does not exist, or whose packages are missing."""
    if to not in get_args(Target):
        raise UserError(
            "there is no such target", where="--to", found=shown(to), expected=" or ".join(get_args(Target)),
            todo="for folders of Hugging Face: heedful convert RUN DST --to hf",
        )  # fmt: skip
    require_onnx()


def write_graph(graph: Graph, folder: Path, int8: bool) -> Exported:
    """Write the file of a graph, compared with the graph."""
    file = folder / f"{graph.name}.onnx"
    files.write_new(file, onnx_bytes(graph))
    off = require_near(graph, onnx_run(file))
    if int8:
        quantized(file, folder / "int8")
        files.rename(folder / "int8", file)
        off = require_near(graph, onnx_run(file), FAR)
    timed = graph.inputs(*TIMED)
    ours, theirs = seconds((graph.run, onnx_run(file)), timed)
    return Exported(file.name, file.stat().st_size, off, ours, theirs)


def artifacts(predictor: AnyPredictor) -> Iterator[tuple[str, str]]:
    """The tokenizer, or what else the task keeps, by the names of the files."""
    task = task_class(predictor.task, settings_of(predictor.model).kind)
    for name, artifact in task.artifacts_of(predictor.tokenizer).items():
        yield name, artifact.json


def description(
    predictor: AnyPredictor, to: str, int8: bool, graphs: tuple[Graph, ...], written: list[Exported]
) -> dict[str, Any]:
    """What export.json says: how each file is called, and how it was compared."""

    def sizes(graph: Graph) -> dict[str, Any]:
        small, large = graph.inputs(2, 5), graph.inputs(3, 7)
        return {name: tensor(value, large[name].shape) for name, value in small.items()}

    def tensor(value: Any, other: Any) -> dict[str, Any]:
        shape = [size if size == its else None for size, its in zip(value.shape, other, strict=True)]
        return {"type": str(value.dtype).removeprefix("torch."), "shape": shape}

    return {
        "heedful": __version__,
        "task": predictor.task,
        "target": to,
        "int8": int8,
        "model": settings_of(predictor.model).model_dump(mode="json"),
        "files": [
            {**asdict(one), "inputs": sizes(graph), "outputs": list(graph.outputs)}
            for graph, one in zip(graphs, written, strict=True)
        ],
    }
