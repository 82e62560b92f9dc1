"""The plots of a run in a notebook."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

import heedful
from heedful import Run, UserError

Trained = Callable[[str], Path]


def labels(axes: Axes) -> tuple[list[str], list[str]]:
    return [text.get_text() for text in axes.get_yticklabels()], [text.get_text() for text in axes.get_xticklabels()]


def test_loss_plot_has_the_recorded_losses(run: Trained) -> None:
    one = Run(run("translation"))
    assert repr(one) == f"Run({str(run('translation'))!r})"
    axes = one.plot().axes[0]
    assert [line.get_label() for line in axes.lines] == ["train", "valid"]
    assert list(axes.lines[1].get_xdata()) == [60, 120]  # type: ignore[arg-type]


def test_loss_plot_has_each_part_of_the_loss(run: Trained, tmp_path: Path) -> None:
    shutil.copy(run("translation") / "recipe.yaml", tmp_path / "recipe.yaml")
    lines = [{"step": step, "kind": "step", "loss": 3.0, "parts": {"a": step, "valid": 1.0}} for step in (1, 2)]
    strange = {"step": 3, "kind": "step", "loss": 3.0, "parts": {"a": "x", "<b>": 1}}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, strange]))
    lines_drawn = {str(line.get_label()): line for line in Run(tmp_path).plot().axes[0].lines}
    assert list(lines_drawn) == ["train", "a", "valid"]
    assert [*zip(*map(list, lines_drawn["a"].get_data()), strict=True)] == [(1, 1), (2, 2)]  # type: ignore[call-overload]


def test_attention_plot_is_of_the_chosen_layer_and_head(run: Trained) -> None:
    one = Run(run("translation"))
    text = "twenty-one"
    with heedful.watch(one.predictor.model, "decoder.*.cross.weights") as seen:
        found = one.predictor.search([text])[0][0]
        alignment = one.predictor.align(text, found)
    (axes, _) = one.plot("attention", text, layer=0, head=1).axes
    assert labels(axes) == (alignment.target, alignment.source)
    assert axes.images[0].get_array().shape == alignment.weights.shape  # type: ignore[union-attr]
    mean = np.ma.getdata(one.plot("attention", text, layer=alignment.layer - 1).axes[0].images[0].get_array())
    np.testing.assert_allclose(mean, alignment.weights.numpy(), rtol=1e-4, atol=1e-5)
    own = np.ma.getdata(one.plot("attention", text, attention="causal").axes[0].images[0].get_array())
    assert own.shape[0] == own.shape[1] and np.triu(own, 1).max() == 0
    assert "decoder.0.cross.weights" in seen


def test_alignment_can_be_plotted(run: Trained) -> None:
    translator = Run(run("translation")).predictor
    found = translator.search(["twenty-one"])[0][0]
    alignment = translator.align("twenty-one", found)
    axes = alignment.plot("A title", "dark").axes[0]
    assert labels(axes) == alignment.labels()
    np.testing.assert_allclose(np.ma.getdata(axes.images[0].get_array()), alignment.weights.numpy())


def test_autoencoder_has_image_plots(run: Trained) -> None:
    one = Run(run("images"))
    assert one.plot("images").axes[0].images
    assert len(one.plot("walk").axes[0].images) == 12
    assert one.plot("codes").axes[0].collections


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        (("lost",), {}, "no such plot"),
        (("attention",), {}, "needs a text"),
        (("attention", "one"), {"layer": 9}, "no such layer"),
        (("attention", "one"), {"head": -9}, "no such head"),
        (("attention", "one"), {"attention": "sideways"}, "no such attention"),
        (("codes",), {}, "plot of an autoencoder"),
    ],
)
def test_invalid_arguments_are_rejected(
    run: Trained, words: tuple[str, ...], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        Run(run("translation")).plot(*words, **settings)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no such folder"):
        Run("nowhere")
