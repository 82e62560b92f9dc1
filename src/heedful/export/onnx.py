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
from heedful.export.graph import Graph, Inputs, Run, forget_kernels
from heedful.files import writing as files

SIZES = (2, 5), (3, 7)  # rows and columns of two inputs
MAX_BYTES = 2**31 - 1  # of one ONNX file
NEEDED = ("onnx", "onnxscript", "onnxruntime")
INT8 = ["MatMul", "Conv", "Gather"]  # and no LSTM: that of onnxruntime in int8 is far from the model


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
        forget_kernels()
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
    split_gemms(model.graph)
    del model.graph.value_info[:]  # sizes, which the file is no smaller for
    root, level = logging.root, logging.root.level  # where the quantizer logs
    root.setLevel(logging.ERROR)
    try:
        quantize_dynamic(model, into, op_types_to_quantize=INT8, weight_type=QuantType.QInt8)
    finally:
        root.setLevel(level)


def split_gemms(graph: Any) -> None:
    """Write each Gemm, A B^T + C, as MatMul and Add: the quantizer would transpose B again for each that shares it."""
    from onnx import helper, numpy_helper

    weights = {weight.name: weight for weight in graph.initializer}
    turned: dict[str, Any] = {}
    nodes = []
    for node in graph.node:
        settings = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        scaled = settings.get("alpha", 1.0) != 1 or settings.get("beta", 1.0) != 1 or settings.get("transA", 0)
        if node.op_type != "Gemm" or scaled or not settings.get("transB", 0) or node.input[1] not in weights:
            nodes.append(node)
            continue
        name, (out,) = f"{node.input[1]}_transposed", node.output
        if name not in turned:
            turned[name] = numpy_helper.from_array(numpy_helper.to_array(weights[node.input[1]]).T.copy(), name)
        product = f"{out}_product"
        nodes.append(helper.make_node("MatMul", [node.input[0], name], [product], f"{node.name}_MatMul"))
        nodes.append(helper.make_node("Add", [product, node.input[2]], [out], f"{node.name}_Add"))
    read = {name for node in nodes for name in node.input}
    kept = [weight for weight in graph.initializer if weight.name in read]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend([*kept, *turned.values()])


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
