"""PyTorch packages of graphs: programs of `torch.export`, and AOTInductor's compiled ones."""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.export._patches as loops

from heedful.errors import UserError
from heedful.export.graph import Graph, Inputs, Run, forget_kernels
from heedful.export.onnx import SIZES, dynamic

UNLIKE = "failed for expression Ne("  # an assertion that two sizes differ
COMPILERS = "c++", "g++", "clang++"


def require_compiler() -> None:
    """Raise an error if there is no C++ compiler."""
    wanted = (os.environ["CXX"],) if os.environ.get("CXX") else COMPILERS
    if not any(map(shutil.which, wanted)):
        raise UserError(
            "AOTInductor needs a C++ compiler", found=f"no {' and no '.join(wanted)}",
            todo="install one (g++ of your system's packages), set CXX to its path, or export with --to torch",
        )  # fmt: skip


def program(graph: Graph) -> torch.export.ExportedProgram:
    """The graph for any number of rows and columns; recurrent layers are loops over the columns."""
    given = graph.inputs(*SIZES[0])
    forget_kernels()
    with quiet(), ExitStack() as stack, torch.no_grad():
        for patch in (loops.register_lstm_while_loop_decomposition, loops.register_gru_while_loop_decomposition):
            stack.enter_context(patch())
        found = torch.export.export(
            graph.module, tuple(given.values()), dynamic_shapes=(dynamic(graph),), strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,
        )  # fmt: skip
    nodes = found.graph_module.graph
    for node in list(nodes.nodes):
        # Some sizes lay out a tensor as if it were contiguous. The recorded operations are right for them as well.
        if node.target is torch.ops.aten._assert_scalar.default and UNLIKE in str(node.args[1]):
            nodes.erase_node(node)
    nodes.eliminate_dead_code()
    found.graph_module.recompile()
    return found


def write_program(graph: Graph, file: Path) -> None:
    """Write the graph as a program of `torch.export`."""
    with quiet():
        torch.export.save(program(graph), file)


def program_run(graph: Graph, file: Path) -> Run:
    """The function that runs such a program."""
    with quiet():
        return named_run(graph, torch.export.load(file).module())


def write_compiled(graph: Graph, file: Path) -> None:
    """Write the graph as machine code of this kind of processor, with its weights."""
    found = program(graph)
    try:
        with quiet(), torch.no_grad():
            torch._inductor.aoti_compile_and_package(found, package_path=str(file))
    except Exception as error:  # of many kinds, and none of them is public
        raise UserError(
            "AOTInductor cannot compile this model: not supported", where=graph.name,
            found=f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}", todo="export it with --to torch",
        ) from None  # fmt: skip


def compiled_run(graph: Graph, file: Path) -> Run:
    """The function that runs such a package."""
    with quiet():
        return named_run(graph, torch._inductor.aoti_load_package(str(file)))


def named_run(graph: Graph, call: Callable[..., Any]) -> Run:
    """A function of tensors as one of inputs by name, for the graph that it was made from."""

    @torch.no_grad()
    def run(inputs: Inputs) -> dict[str, torch.Tensor]:
        found = call(*inputs.values())
        return dict(zip(graph.outputs, found if isinstance(found, tuple | list) else (found,), strict=True))

    return run


@contextmanager
def quiet() -> Iterator[None]:
    """Without torch's notes on what it traces."""
    loggers = [logging.getLogger(name) for name in ("torch.export", "torch._export", "torch._inductor", "torch.fx")]
    levels = [one.level for one in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in loggers:
            one.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for one, level in zip(loggers, levels, strict=True):
                one.setLevel(level)
