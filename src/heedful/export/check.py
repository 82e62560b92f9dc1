"""A file compared with the model it was written from: its outputs at several sizes, and the time of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import process_time

import torch

from heedful.errors import UserError
from heedful.export.graph import Graph, Inputs, Run

SIZES = (1, 1), (1, 4), (2, 9), (3, 7), (5, 2)  # rows and columns
SMALLEST = 1e-3  # number of an output that differences are compared with
TOLERANCE = 1e-4  # of the largest number of an output, in float32
ROUNDS = 5
WITHOUT_INT8 = "leave out --int8: this model needs its weights in float32"


@dataclass(frozen=True)
class Exported:
    """A file of an export: its size, how far it is from the model, and seconds of CPU time for the same inputs."""

    file: str
    bytes: int
    difference: float  # the largest, as a part of the largest number of an output
    model_seconds: float
    file_seconds: float


def compare(graph: Graph, run: Run, sizes: Sequence[tuple[int, int]] = SIZES) -> float:
    """The largest difference between a graph and its file, as a part of the largest number of that output.

    It is infinite where shapes differ, or where one of them is not finite.
    """
    off, large = dict.fromkeys(graph.outputs, 0.0), dict.fromkeys(graph.outputs, SMALLEST)
    for seed, (rows, columns) in enumerate(sizes):
        given = graph.inputs(rows, columns, seed)
        ours, theirs = graph.run(given), run(given)
        for name, value in ours.items():
            other = theirs.get(name)
            if other is None or other.shape != value.shape or not torch.equal(value.isfinite(), other.isfinite()):
                return float("inf")
            mine, its = (x[value.isfinite()].double() for x in (value, other))
            if mine.numel():
                off[name] = max(off[name], float((mine - its).abs().max()))
                large[name] = max(large[name], float(mine.abs().max()))
    return max(off[name] / large[name] for name in graph.outputs)


def require_near(graph: Graph, run: Run, most: float = TOLERANCE) -> float:
    """The difference, which is an error if it is larger than `most`: by default, than rounding explains."""
    try:
        found = compare(graph, run)
    except Exception as error:  # those of onnxruntime have a class of their own
        raise different(graph.name, f"an error: {str(error).partition(chr(10))[0][:200]}") from None
    if not found <= most:
        raise different(
            graph.name, f"outputs that differ by {found:.2g} of the largest number, not {most:.1g} at most", most
        )
    return found


def different(name: str, found: str, most: float = TOLERANCE) -> UserError:
    """The error for a file that computes something else; int8 may differ by more than rounding."""
    return UserError(
        "the exported file does not compute what the model computes, and was deleted", where=name, found=found,
        todo="keep the run, and report this as a bug with its config.json" if most == TOLERANCE else WITHOUT_INT8,
    )  # fmt: skip


def seconds(runs: Sequence[Run], given: Inputs) -> list[float]:
    """CPU seconds of a call of each, the least of some rounds in which they take turns."""
    least = [float("inf")] * len(runs)
    for _ in range(ROUNDS):
        for number, run in enumerate(runs):
            begin = process_time()
            run(given)
            least[number] = min(least[number], process_time() - begin)
    return least
