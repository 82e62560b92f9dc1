"""Graphs of every model: the same values as its own methods, and in onnxruntime at any size; or a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import heedful
from exported_runs import GOLDEN, REFUSED, RUNS
from heedful.blocks.layouts import Padded
from heedful.cli.export import export_command
from heedful.errors import UserError
from heedful.export import onnx, write
from heedful.export.check import TOLERANCE, compare
from heedful.export.graph import Function, Graph
from heedful.export.onnx import onnx_run
from heedful.export.roles import graphs_of
from heedful.export.write import export
from heedful.models import MODELS, build, config_class
from heedful.tasks import TASKS
from tolerance import close

FAST = ("control-policy",)  # the others take seconds each


def test_every_task_and_model_has_a_run() -> None:
    assert {name.partition("-")[0] for name in RUNS} >= {*TASKS} - {"text_classification"}
    assert {name.partition("-")[2] for name in RUNS} == {*MODELS}


@pytest.mark.parametrize(
    ("to", "packages", "message"),
    [("tflite", onnx.NEEDED, "no such target"), ("onnx", ("no_such_package",), r"heedful\[onnx\]")],
)
def test_target_that_cannot_be_written_is_an_error(
    to: str, packages: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx, "NEEDED", packages)
    with pytest.raises(UserError, match=message):
        export_command(GOLDEN / "control-policy", tmp_path / "out", to, False, False, False)
    assert list(tmp_path.iterdir()) == []


def test_folder_in_the_way_is_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for force in (False, True):
        with pytest.raises(UserError, match="already exists"):
            export_command(GOLDEN / "control-policy", tmp_path, "onnx", False, force, False)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_int8_is_near_and_says_how_near(tmp_path: Path) -> None:
    (one,) = export(heedful.load(GOLDEN / "control-policy", "cpu"), tmp_path / "out", "onnx", int8=True)
    assert 1e-5 < one.difference < 0.1
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"model.onnx", "export.json"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RUNS if name not in REFUSED])
def test_int8_of_every_run_is_near(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="ONNX files need `pip install 'heedful[onnx]'`")
    predictor = heedful.load(GOLDEN / name, "cpu")
    for graph, one in zip(graphs_of(predictor), export(predictor, tmp_path / "out", "onnx", int8=True), strict=True):
        assert one.difference < 0.1
        assert compare(graph, onnx_run(tmp_path / "out" / one.file), [(1, 2), (4, 3), (2, 11)]) < 0.1


def test_int8_of_a_weight_that_layers_share(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="ONNX files need `pip install 'heedful[onnx]'`")
    torch.manual_seed(0)
    layer = nn.Linear(6, 6)
    module = Function(layer, lambda m, x: m(m(x).tanh()))
    graph = Graph("model", module, ("y",), lambda rows, _, random: {"x": torch.randn(rows, 6, generator=random)}, 1)
    onnx.write_onnx(graph, tmp_path / "whole")
    onnx.quantized(tmp_path / "whole", tmp_path / "int8")
    assert TOLERANCE < compare(graph, onnx_run(tmp_path / "int8")) < 0.05


def test_int8_that_is_far_off_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "FAR", 1e-3)
    with pytest.raises(UserError, match="does not compute what the model computes") as caught:
        export(heedful.load(GOLDEN / "control-policy", "cpu"), tmp_path / "out", "onnx", int8=True)
    assert "leave out --int8" in str(caught.value) and list(tmp_path.iterdir()) == []


def test_file_that_computes_something_else_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(file: Path) -> Any:
        run = onnx_run(file)
        return lambda given: {name: value * 1.001 for name, value in run(given).items()}

    monkeypatch.setattr(write, "onnx_run", wrong)
    with pytest.raises(UserError, match="does not compute what the model computes"):
        export(heedful.load(GOLDEN / "control-policy", "cpu"), tmp_path / "out", "onnx")
    assert list(tmp_path.iterdir()) == []


def test_file_that_fails_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fixed(graph: Any, file: Path) -> None:
        write_onnx(replace(graph, draw=lambda rows, columns, random: graph.draw(2, columns, random)), file)

    write_onnx = onnx.write_onnx
    broken = write.GraphFiles(".onnx", fixed, lambda _, file: onnx_run(file))
    monkeypatch.setitem(write.TARGETS, "onnx", write.Target(lambda: None, broken))
    with pytest.raises(UserError, match="does not compute what the model computes") as caught:
        export(heedful.load(GOLDEN / "control-policy", "cpu"), tmp_path / "out", "onnx")
    assert "an error: [ONNXRuntimeError]" in str(caught.value) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_graph_says_why_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not supported") as caught:
        export(heedful.load(GOLDEN / name, "cpu"), tmp_path / "out", "onnx")
    assert REFUSED[name] in str(caught.value) and list(tmp_path.iterdir()) == []


def first_of_three(value: torch.Tensor) -> torch.Tensor:
    """The first row, where there is one for each of three."""
    return value[:1] if value.dim() and len(value) == 3 else value


@pytest.mark.parametrize("name", [name for name in RUNS if name not in REFUSED])
def test_graph_gives_the_same_for_a_row_alone_and_in_a_batch(name: str) -> None:
    for graph in graphs_of(heedful.load(GOLDEN / name, "cpu")):
        given = graph.inputs(3, 6)
        every, single = graph.run(given), {key: first_of_three(value) for key, value in given.items()}
        for key, value in graph.run(single).items():
            whole = first_of_three(every[key])
            close(value.float(), whole.float(), msg=f"{graph.name} {key}")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in RUNS if name not in REFUSED]
)
def test_run_is_exported_and_equal_in_onnxruntime_at_any_size(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="ONNX files need `pip install 'heedful[onnx]'`")
    predictor = heedful.load(GOLDEN / name, "cpu")
    written = export(predictor, tmp_path / "out", "onnx")
    for graph, one in zip(graphs_of(predictor), written, strict=True):
        assert one.difference <= TOLERANCE
        run = onnx_run(tmp_path / "out" / one.file)
        assert compare(graph, run, [(1, 2), (4, 3), (2, 11), (7, 6)]) <= TOLERANCE
    assert {path.suffix for path in (tmp_path / "out").iterdir()} <= {".onnx", ".json"}


@pytest.mark.parametrize("kind", ["gpt", "transformer", "seq2seq", "rnn_lm"])
def test_steps_of_a_graph_are_the_steps_of_the_model(kind: str) -> None:
    torch.manual_seed(0)
    model: Any = build(config_class(kind).tiny()).eval()
    predictor = heedful.load(GOLDEN / next(name for name in RUNS if name.endswith(f"-{kind}")), "cpu")
    predictor.model = model
    start, step = graphs_of(predictor)
    given = start.inputs(3, 4)
    with torch.no_grad():
        if kind in ("gpt", "rnn_lm"):
            given["padding"] *= 0
            whole = model(torch.arange(1, 7).expand(3, -1), model.start(3, torch.device("cpu")))[0]
        else:
            state = model.start(given["input_ids"], Padded(given["attention_mask"] != 0))
            whole = model(torch.arange(1, 7).expand(3, -1), state)[0]
    found = start.run(given)
    for number in range(6):
        state = {name.replace("next", "state", 1): value for name, value in found.items() if name != "logits"}
        found = step.run({"tokens": torch.full((3, 1), number + 1), **state})
        close(found["logits"], whole[:, number], msg=f"step {number}")


def documented(heading: str, name: str) -> Any:
    """A function of the page, which needs numpy, onnxruntime and tokenizers alone."""
    page = (GOLDEN.parents[2] / "docs" / "how-to" / "export.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(page.partition(f"## {heading}\n")[2].partition("```python\n")[2].partition("```")[0], names)
    return names[name]


def documented_loop() -> Any:
    return documented("A greedy loop", "greedy")


@pytest.mark.slow
def test_documented_classifier_labels_as_ours_does(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="ONNX files need `pip install 'heedful[onnx]'`")
    classifier: Any = heedful.load(GOLDEN / "classification-classifier", "cpu")
    with torch.no_grad():
        for weight in classifier.model.parameters():
            weight += 0.5 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    export(classifier, tmp_path / "out", "onnx")
    texts = ["the red cat sees a dog", "a", "[SEP] two", "a dog " * 40, "bird bird ball", "the big bird sees it"]
    ours = [one.label for one in classifier.predict(texts)]
    assert documented("What is written", "classify")(tmp_path / "out", texts) == ours and len(set(ours)) > 1


def test_documented_loop_translates_as_the_translator_does(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="ONNX files need `pip install 'heedful[onnx]'`")
    translator: Any = heedful.load(GOLDEN / "translation-transformer", "cpu")
    export(translator, tmp_path / "out", "onnx")
    texts = ["one two", "three", "four five six seven"]
    rows, (ids, real) = 3, pad_left(translator.source_ids(texts))
    given = {"input_ids": ids.numpy(), "attention_mask": real.numpy()}
    found = documented_loop()(tmp_path / "out", given, np.full((rows, 1), 2), 3, 6, (0, 1, 2))
    ours = [one[0].ids[:6] for one in translator.search(texts, beams=1)]
    assert found == [ids[: ids.index(3)] if 3 in ids else ids for ids in ours]
    described = json.loads((tmp_path / "out" / "export.json").read_text())
    assert [one["file"] for one in described["files"]] == ["start.onnx", "step.onnx"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt", "rnn_lm", "transformer_xl"])
def test_documented_loop_writes_as_the_language_model_does(kind: str, tmp_path: Path) -> None:
    generator: Any = heedful.load(GOLDEN / f"language_model-{kind}", "cpu")
    export(generator, tmp_path / "out", "onnx")
    prompts = ["the red", "a small dog sees"] if kind == "gpt" else ["the red"]
    ids, real = pad_left([generator.prompt_ids(prompt) for prompt in prompts])
    padding = (1 - real).sum(1).numpy()
    never = [token for token in generator.codec.suppressed if token < generator.model.config.vocab]
    found = documented_loop()(tmp_path / "out", {"padding": padding}, ids.numpy(), generator.codec.end_id, 6, never)
    ours = generator.generate(prompts, temperature=0, length=6, samples=1)
    assert found == [one.ids[: len(row)] for one, row in zip(ours, found, strict=True)]


def pad_left(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of tokens with zeros before them, and which of them are real."""
    most = max(map(len, rows))
    ids, real = ([[0] * (most - len(row)) + [(1, one)[token] for one in row] for row in rows] for token in (1, 0))
    return torch.tensor(ids), torch.tensor(real)
