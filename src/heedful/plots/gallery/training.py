"""Training: schedules of the learning rate, activations, loss curves, and scaling laws.

B texts of a batch, T tokens of a text.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, get_args

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from heedful.blocks.feedforward import ACTIVATIONS, Activation
from heedful.data.embedded import NumberWords
from heedful.data.formats.sources import Split
from heedful.errors import UserError
from heedful.extras.scaling.fits import Run, fit
from heedful.extras.scaling.plot import plot
from heedful.lectures import Progress
from heedful.lectures.learning import learn, seeded
from heedful.models import build, config_class
from heedful.models.autoencoder.network import ACTIVATIONS as SIMPLE
from heedful.plots.figures import curves, legend_below, scale_axis
from heedful.plots.style import Figure, Style, drawing
from heedful.runs.report import plot_loss
from heedful.training.configs import ScheduleConfig

Seed = Annotated[int, Field(ge=0, lt=2**63)]


def schedules(
    *,
    steps: Annotated[int, Field(ge=2, le=10_000_000, description="steps of training")] = 4000,
    warmup: Annotated[int, Field(ge=1, description="steps in which the rate rises")] = 400,
    width: Annotated[int, Field(ge=1, description="model width in the formula of noam")] = 512,
    style: Style = "light",
) -> Figure:
    """Every schedule of recipes, each as a share of its peak."""
    at = np.unique(np.linspace(1, steps, min(steps, 500)).astype(int))
    lines = {}
    for cls in get_args(get_args(ScheduleConfig)[0]):
        fields: dict[str, Any] = {"warmup": warmup, "width": width}
        schedule = cls(**{name: value for name, value in fields.items() if name in cls.model_fields})
        rates = np.array([schedule.factor(int(step), (step - 1) / steps) for step in at])
        lines[schedule.kind] = (at, rates / rates.max())
    title = f"Learning-rate schedules with {warmup:,} steps of warmup"
    return curves(lines, title, "step", "share of the peak", style=style)


def activations(
    *, reach: Annotated[float, Field(gt=0, le=100, description="inputs from -reach to reach")] = 4.0,
    style: Style = "light",
) -> Figure:  # fmt: skip
    """The activation functions of all models, and their derivatives by autograd."""
    every: dict[str, Activation] = {**dict[str, Activation](SIMPLE.items()), **ACTIVATIONS}
    with drawing(style, 10.5, 4.4, "Activation functions") as (figure, palette):
        for number, (axes, title) in enumerate(zip(figure.subplots(1, 2), ("value", "derivative"), strict=True)):
            for name, function in every.items():
                x = torch.linspace(-reach, reach, 401, dtype=torch.float64, requires_grad=True)
                y = function(x)
                shown = y if not number else torch.autograd.grad(y.sum(), x)[0]
                dashes = {"linestyle": "--"} if name == "gelu_tanh" else {}  # it lies on gelu
                axes.plot(x.detach().numpy(), shown.detach().numpy(), label=name, **dashes)
            axes.grid()
            axes.set_title(title)
            axes.set_xlabel("x")
            axes.axhline(0, color=palette.quiet, linewidth=0.8, linestyle="-")
            scale_axis(axes, "x", False, [])
        handles, names = axes.get_legend_handles_labels()
        legend_below(figure, handles, len(names))
    return figure


def loss_curves(
    *,
    run: Annotated[str | None, Field(description="the folder of a run; null: one is trained on digits")] = None,
    epochs: Annotated[int, Field(ge=1, le=1000, description="epochs of the run that is trained")] = 30,
    style: Style = "light",
) -> Generator[Progress, None, Figure]:
    """The losses that a run has recorded."""
    if run is not None:
        found = plot_loss(Path(run), "loss", style)
        if found is None:
            raise UserError("this run has recorded no loss", where="run", found=run, todo="name the folder of a run")
        yield Progress(1.0, "drawing")
        return found
    from heedful.runs.recipe import load_recipe
    from heedful.runs.train import train
    from heedful.training.loop import Step

    changes = [f"train.budget.epochs={epochs}", "train.evaluate_every=45", "train.log_every=9"]
    with TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        run_of = train(load_recipe("digits", changes), Path(folder, "run"))
        for event in run_of:
            if isinstance(event, Step):
                yield Progress(event.progress, "training an autoencoder")
                if event.progress >= 1:
                    break  # its final model and report are not needed
        del run_of  # ends it
        figure = plot_loss(Path(folder, "run"), "mean squared error", style)
    assert figure is not None  # it has just been trained
    return figure


# ------------------------------------------------------------------ scaling laws
BATCH, CONTEXT = 16, 64  # texts of a step, and bytes of a text


def scaling_lines(
    *,
    widths: Annotated[tuple[Annotated[int, Field(ge=2, le=512, multiple_of=2)], ...], Field(min_length=1)] = (
        8, 16, 32,
    ),
    tokens: Annotated[tuple[Annotated[int, Field(ge=BATCH * CONTEXT)], ...], Field(min_length=1)] = (
        16_384, 32_768, 65_536, 131_072,
    ),
    seed: Seed = 0,
    style: Style = "light",
) -> Generator[Progress, None, Figure]:  # fmt: skip
    """A sweep of small language models over bytes of spelled-out numbers, and the laws that are fitted to it."""
    train, valid = (_bytes(NumberWords(train=5000), split) for split in ("train", "valid"))
    runs, total, done = list[Run](), sum(tokens) * sum(widths), 0.0
    for width in widths:
        sizes = {"vocab": 256, "width": width, "heads": 2, "layers": 2, "context": CONTEXT, "dropout": 0.0}
        config = config_class("gpt")(**sizes, attention_dropout=0.0)
        for count in tokens:
            model: Any = seeded(lambda config=config: build(config), seed)  # type: ignore[misc]
            generator = torch.Generator().manual_seed(seed)
            steps = count // (BATCH * CONTEXT)
            loss = lambda model=model, generator=generator: _loss(model, train, generator, BATCH)  # noqa: E731
            name = f"width {width}"
            for share in learn(model, loss, steps, 5e-3):
                yield Progress((done + share * count * width) / total, f"{name}, {count:,} tokens")
            done += count * width
            with torch.no_grad():
                found = float(_loss(model, valid, torch.Generator().manual_seed(1), 256))
            runs.append(
                Run(f"{width}-{count}", name, config.parameters(0) - CONTEXT * width, steps * BATCH * CONTEXT, found)
            )
    return plot(runs, fit(runs, seed=seed), [], "Small language models of bytes: loss by size, data and compute", style)


def _bytes(numbers: NumberWords, split: Split) -> Tensor:
    """The numbers of a split in words, as one text of bytes."""
    text = "\n".join(source for source, _ in numbers.pairs(split))
    return torch.from_numpy(np.frombuffer(text.encode(), dtype=np.uint8).copy()).long()


def _loss(model: Any, data: Tensor, generator: torch.Generator, rows: int) -> Tensor:
    """The mean cross-entropy of random texts, in nats."""
    start = torch.randint(len(data) - CONTEXT - 1, (rows, 1), generator=generator)
    texts = data[start + torch.arange(CONTEXT + 1)]  # (B, T + 1)
    logits, _ = model(texts[:, :-1], model.start(rows, texts.device))  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), texts[:, 1:].flatten())
