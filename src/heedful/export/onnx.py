"""ONNX files of graphs, and onnxruntime to run them."""

from __future__ import annotations

import logging
import warnings
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.errors import UserError
from heedful.export.graph import Graph, Inputs, Run
from heedful.files import writing as files

SIZES = (2, 5), (3, 7)  # rows and columns of two inputs
MAX_BYTES = 2**31 - 1  # of one ONNX file
NEEDED = ("onnx", "onnxscript", "onnxruntime")


def require_onnx() -> None:
    """Raise an error that names the missing packages, if any."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UserError(
            "export to ONNX needs packages that are not installed", found=f"no {' and no '.join(missing)}",
            todo="pip install 'heedful[onnx]'",
        )  # fmt: skip


def dynamic(graph: Graph) -> tuple[dict[int, Any], ...]:
    """The sizes of each input that differ between inputs of two sizes; those that are alike in both are the same."""
    small, large = (graph.inputs(*sizes) for sizes in SIZES)
    found: dict[tuple[int, int], Any] = {(SIZES[0][0], SIZES[1][0]): torch.export.Dim("rows")}
    shapes: list[dict[int, Any]] = []
    for x, y in zip(small.values(), large.values(), strict=True):
        shapes.append({})
        for axis, pair in enumerate(zip(x.shape, y.shape, strict=True)):
            if pair[0] != pair[1]:
                one = torch.export.Dim(f"columns{len(found)}", max=graph.longest)
                shapes[-1][axis] = found.setdefault(pair, one)
    return tuple(shapes)


def write_onnx(graph: Graph, file: Path) -> None:
    """Write the graph as an ONNX file."""
    size = sum(4 * weight.numel() for weight in graph.module.parameters())
    if size > MAX_BYTES:
        raise UserError(
            "this model is too large for one ONNX file", found=f"{size:,} bytes", expected=f"at most {MAX_BYTES:,}",
            todo="export it with --to torch",
        )  # fmt: skip
    given = graph.inputs(*SIZES[0])
    with warnings.catch_warnings(), redirect_stdout(StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        for name in ("torch.onnx", "onnxscript", "onnx_ir"):
            logging.getLogger(name).setLevel(logging.ERROR)
        program = torch.onnx.export(
            graph.module, tuple(given.values()), dynamo=True, input_names=list(given), output_names=list(graph.outputs),
            dynamic_shapes=(dynamic(graph),), verbose=False,
        )  # fmt: skip
    assert program is not None
    files.write_new(file, program.model_proto.SerializeToString())


def quantized(file: Path, into: Path) -> None:
    """The same with weights in int8, and activations that are quantized as they come."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(file)
    del model.graph.value_info[:]  # the sizes of weights that the quantizer turns around
    root, level = logging.root, logging.root.level  # where the quantizer logs
    root.setLevel(logging.ERROR)
    try:
        quantize_dynamic(model, into, weight_type=QuantType.QInt8)
    finally:
        root.setLevel(level)


def onnx_run(file: Path) -> Run:
    """The function that runs an ONNX file in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    taken, names = ([one.name for one in found] for found in (session.get_inputs(), session.get_outputs()))

    def run(inputs: Inputs) -> dict[str, Tensor]:
        found = session.run(None, {name: value.numpy() for name, value in inputs.items() if name in taken})
        return {name: torch.from_numpy(value) for name, value in zip(names, found, strict=True)}

    return run
