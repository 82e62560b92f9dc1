"""Figures for slides: `heedful figure NAME KEY=VALUE ...`, or `heedful.figure(NAME, key=value)`.

A figure is a function of typed keyword settings, computed by the code that models run; one that takes longer than a
second or two is a generator that yields its progress. `FIGURES` names them, and the studies of the lectures are figures
too. Modules are imported when a figure of theirs is drawn.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

from heedful.config import Config, parse
from heedful.lectures import FIGURES as STUDIES
from heedful.lectures import Progress, Table, find, require_figure
from heedful.plots.style import Figure, Style, style_sheet

if TYPE_CHECKING:
    from collections.abc import Callable


class Entry(NamedTuple):
    """A figure: the module here and the function in it, and what it shows."""

    function: str  # module:function; empty for a study
    about: str
    needs: str = ""  # settings without which there is nothing to draw


FIGURES = {
    "attention": Entry("attention:attention", "the attention weights of a sentence as a heat map; model=RUN for yours"),
    "heads": Entry("attention:heads", "multi-head attention: the heads of a layer side by side; model=RUN for yours"),
    "attention-steps": Entry("attention:attention_steps", "score, scale, softmax and weighted sum, with numbers"),
    "self-attention": Entry("attention:self_attention", "self-attention of three tokens as matrices, with numbers"),
    "masks": Entry("masks:masks", "which keys each query may attend to: causal, padding, window, permutation"),
    "three-masks": Entry("masks:three_masks", "the masks of GPT, BERT and XLNet side by side"),
    "masking": Entry("masks:masking", "BERT's masked tokens: 15 %, of which 80 % [MASK], 10 % random, 10 % unchanged"),
    "bigbird": Entry("long_texts:bigbird", "random, window and global attention, and BigBird's, which is all three"),
    "linformer": Entry("long_texts:linformer", "Linformer: keys and values projected along the length"),
    "sinusoids": Entry("positions:sinusoids", "sinusoidal positional encodings, interleaved and concatenated"),
    "waves": Entry("positions:waves", "some dimensions of the positional encodings as waves"),
    "schedules": Entry("training:schedules", "all learning-rate schedules"),
    "activations": Entry("training:activations", "activation functions and their derivatives"),
    "loss-curves": Entry("training:loss_curves", "training and validation loss by step; run=RUN for yours"),
    "scaling-lines": Entry("training:scaling_lines", "power laws of size, data and compute, fitted to a sweep"),
    "lstm-gates": Entry("recurrent:lstm_gates", "the gates of an LSTM that remembers a word, step by step"),
    "beam-tree": Entry("decoding:beam_tree", "beam search as a tree; model=RUN and text=TEXT for yours"),
    "digit-maps": Entry("images:digit_maps", "digits on a plane: PCA, t-SNE and an autoencoder"),
    "reconstructions": Entry("images:reconstructions", "digits, noisy ones, and what a denoising autoencoder restores"),
    "filters": Entry("vision:filters", "the filters of the first convolution; model=RUN for yours"),
    "feature-maps": Entry("vision:feature_map_rows", "an image in all layers of a ConvNet; model=RUN for yours"),
    "receptive-field": Entry("vision:receptive_field", "what a unit of each layer sees; model=RUN for yours"),
    "top-patches": Entry("vision:top_patch_rows", "patches that activate channels most; model=RUN for yours"),
    "saliency": Entry("vision:saliency_rows", "which pixels raise the logit of a class; model=RUN for yours"),
    "occlusion": Entry("vision:occlusion_rows", "how a logit falls where an image is covered; model=RUN for yours"),
    "vit-attention": Entry("vision:vit_attention", "a ViT's attention over an image, and rollout; model=RUN for yours"),
    "glimpses": Entry("glimpses:glimpses", "where a recurrent model looks to read a digit; model=RUN for yours"),
    "visual-search": Entry("glimpses:visual_search", "it finds the red shape among others; model=RUN for yours"),
    "hops": Entry("hops:hops", "which sentences each hop of a memory network attends to; model=RUN for yours"),
    "captions": Entry("captions:captions", "a caption and what each word attended to; model=RUN for yours"),
    "soft-hard": Entry("captions:soft_hard", "maps of soft and hard attention for a caption; model=RUN for yours"),
    "paragraphs": Entry("paragraphs:paragraphs", "an image, the phrases of its regions, and sentences", "model=RUN"),
    "neighbours": Entry("vision:neighbours", "training images with the most similar features; model=RUN for yours"),
    "image-probes": Entry("vision:image_probes", "a linear classifier on each layer; model=RUN for yours"),
    "loss-surface": Entry("surface:residual_surfaces", "the loss around a minimum, with and without residual paths"),
    "architecture": Entry("diagram:architecture", "any model as a diagram; model=RECIPE or RUN for yours"),
}  # fmt: skip
NEEDS = {"contexts": "model=FOLDER", "occurrences": "model=FOLDER", "maps": "model=RUN"}  # of studies
EVERY = FIGURES | {
    name: Entry("", about.partition("; needs")[0], NEEDS.get(name, "")) for name, about in STUDIES.items()
}


@dataclass(frozen=True)
class Drawn:
    """A figure, the settings it was drawn with, and the numbers behind it, where it has a table of them."""

    figure: Figure
    settings: Config
    table: Table | None


Drawing = Generator[Progress, None, Drawn]


def figure(name: str, *, theme: Style = "light", style: str | Path | None = None, **settings: object) -> Figure:
    """Draw a figure by its name, as a Matplotlib `Figure`; `heedful figure` lists the names.

    `theme` is light, dark or print, and `style` a Matplotlib style sheet on top of it. Settings are the figure's.

        >>> heedful.figure("sinusoids", length=50, width=128)
    """
    with style_sheet(style):
        steps = draw(name, settings, theme=theme)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                drawn: Drawn = end.value
                return drawn.figure


def draw(
    name: str, settings: Mapping[str, object] | None = None, overrides: Sequence[str] = (), theme: Style = "light"
) -> Drawing:
    """Check the settings of a figure, then draw it: yields progress. Unknown names and settings raise a `UserError`."""
    given = json.loads(json.dumps(dict(settings or {}), default=str))
    checked = parse(settings_class(name), given, overrides=overrides)
    return _study(name, checked, theme) if name in STUDIES else _figure(name, checked, theme)


def _study(name: str, settings: Config, theme: Style) -> Drawing:
    study = find(name)
    found = yield from study.study(settings)
    return Drawn(study.plot(found, theme), settings, found.table())


def _figure(name: str, settings: Config, theme: Style) -> Drawing:
    values = {key: getattr(settings, key) for key in type(settings).model_fields}
    result = _function(name)(**values, style=theme)
    if inspect.isgenerator(result):
        result = yield from result
    return Drawn(result, settings, None)


def settings_class(name: str) -> type[Config]:
    """The settings of a figure, as a class."""
    require_figure(name, {one: entry.about for one, entry in EVERY.items()})
    return find(name).Settings if name in STUDIES else _class_of(name)


@cache
def _class_of(name: str) -> type[Config]:
    """The parameters of a figure's function as a class of settings."""
    from pydantic import create_model

    function = _function(name)
    types = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {
        key: (types[key], parameter.default)
        for key, parameter in inspect.signature(function).parameters.items()
        if key != "style"
    }
    return create_model("Settings", __base__=Config, **fields)


def _function(name: str) -> Callable[..., Any]:
    module, _, function = FIGURES[name].function.partition(":")
    found: Callable[..., Any] = getattr(import_module(f"{__name__}.{module}"), function)
    return found


def commands() -> Iterator[str]:
    """The command of every figure."""
    return (f"heedful figure {name} {entry.needs}".rstrip() for name, entry in EVERY.items())
