"""Programs of torch.export and AOTInductor: the values of the graph at any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import heedful
from exported_runs import GOLDEN, REFUSED, RUNS
from heedful.errors import UserError
from heedful.export import program, write
from heedful.export.check import TOLERANCE, compare
from heedful.export.graph import Function, Graph
from heedful.export.roles import graphs_of
from heedful.export.write import GraphFiles, export, require_target

FAST = "control-policy", "story_answering-bag_of_words", "image_classification-lenet"
EXPORTED = [name for name in RUNS if name not in REFUSED]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in EXPORTED]
)
def test_program_is_equal_at_any_size(name: str, tmp_path: Path) -> None:
    predictor = heedful.load(GOLDEN / name, "cpu")
    written = export(predictor, tmp_path / "out", "torch")
    for graph, one in zip(graphs_of(predictor), written, strict=True):
        run = program.program_run(graph, tmp_path / "out" / one.file)
        assert compare(graph, run, [(1, 2), (4, 3), (2, 11), (7, 6)]) <= TOLERANCE


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_recurrent_layers_are_exported_twice_for_any_number_of_columns(layer: Any, tmp_path: Path) -> None:
    def draw(rows: int, columns: int, random: torch.Generator) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(rows, columns, 3, generator=random)}

    torch.manual_seed(0)
    graph = Graph("model", Function(layer(3, 4, batch_first=True).eval(), lambda m, x: m(x)[0]), ("y",), draw, 30)
    for turn in range(2):
        file = tmp_path / f"{turn}.pt2"
        graph.run(graph.inputs(2, 5))  # torch now knows the usual kernel
        program.write_program(graph, file)
        assert compare(graph, program.program_run(graph, file)) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
def test_compiled_package_is_equal_at_any_size(name: str, tmp_path: Path) -> None:
    program.require_compiler()
    predictor = heedful.load(GOLDEN / name, "cpu")
    written = export(predictor, tmp_path / "out", "aotinductor")
    for graph, one in zip(graphs_of(predictor), written, strict=True):
        run = program.compiled_run(graph, tmp_path / "out" / one.file)
        assert compare(graph, run, [(1, 2), (4, 3), (2, 11), (7, 6)]) <= TOLERANCE


def test_program_of_other_weights_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(graph: Any, file: Path) -> None:
        weight = next(weight for weight in graph.module.parameters() if weight.dim() > 1)
        weight.data[0] += 0.01
        program.write_program(graph, file)
        weight.data[0] -= 0.01

    broken = write.TARGETS["torch"].write
    assert isinstance(broken, GraphFiles)
    monkeypatch.setitem(
        write.TARGETS, "torch", write.Target(lambda: None, GraphFiles(".pt2", wrong, program.program_run), int8=False)
    )
    with pytest.raises(UserError, match="does not compute what the model computes"):
        export(heedful.load(GOLDEN / "control-policy", "cpu"), tmp_path / "out", "torch")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", ["torch", "aotinductor"])
def test_int8_of_a_target_without_it_is_an_error(to: str) -> None:
    with pytest.raises(UserError, match="this target has no int8") as caught:
        require_target(to, int8=True)
    assert "--to onnx or --to ctranslate2" in str(caught.value)


def test_graph_that_cannot_be_compiled_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("a subgraph\nand more")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fail)
    with pytest.raises(UserError, match="cannot compile this model: not supported") as caught:
        export(heedful.load(GOLDEN / "control-policy", "cpu"), tmp_path / "out", "aotinductor")
    assert "AssertionError: a subgraph" in str(caught.value) and "--to torch" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_missing_compiler_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match="needs a C\\+\\+ compiler"):
        require_target("aotinductor")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="no no-such-compiler"):
        require_target("aotinductor")
