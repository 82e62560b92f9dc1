"""Batch norms: their running statistics move once a step, and do not depend on the number of processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.labelled_batches import EncodedLabelledImages, LabelledImageBatches
from heedful.data.own import Dataset
from heedful.errors import UserError
from heedful.runs.load import load
from heedful.runs.recipe import recipe_of
from heedful.runs.train import Step, train
from heedful.tasks.image_classification.predictor import ImageClassifier, image_loss
from heedful.tasks.recipe_parts import Recipe
from heedful.training.checkpoint.folder import newest
from heedful.training.checkpoint.weights import gather_weights
from heedful.training.configs import Budget, TrainConfig
from heedful.training.distributed.team import Team
from heedful.training.loop import Counters, fit
from heedful.training.optim import AdamW
from heedful.training.running_statistics import RunningStatistics
from tolerance import close
from training.test_distributed import LEARNED, run_team

CPU = torch.device("cpu")
STEPS = 4
PIXELS = np.random.default_rng(0).integers(0, 256, (26, 2, 6, 5), np.uint8)
IMAGES = EncodedLabelledImages(
    torch.from_numpy(PIXELS), np.arange(26) % 3, ImageSpec((2, 6, 5), ("a", "b", "c"), (0.5, 0.5), (0.25, 0.25))
)


class ConvNet(nn.Module):
    """Two convolutions with batch norms, and the mean over all pixels."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.stack = nn.ModuleList([nn.Conv2d(2, 4, 3), nn.Conv2d(4, 5, 3)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(5, momentum=0.3)])
        self.head = nn.Linear(5, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = images
        for layer, norm in zip(self.stack, self.norms, strict=True):
            x = norm(layer(x)).relu()
        found: Tensor = self.head(x.mean((2, 3)))
        return found

    def training_logits(self, images: Tensor) -> list[tuple[float, Tensor]]:
        return [(1.0, self(images))]


def net() -> ConvNet:
    torch.manual_seed(0)
    return ConvNet().train()


def trained(team: Team, accumulate: int = 1, how: Any = "ddp") -> dict[str, Tensor]:
    """The weights and statistics after a few steps."""
    model, batches = net(), LabelledImageBatches(IMAGES, 3, 7)
    config = TrainConfig(
        budget=Budget(steps=STEPS), batch_examples=7, accumulate=accumulate, parallel=how, evaluate_every=99,
        optimizer=AdamW(lr=1e-2, eps=1e-3), precision="fp32",
    )  # fmt: skip
    loss = partial(image_loss, model.training_logits)
    for _ in fit(model, loss, batches, config, CPU, None, {}, Counters(), None, lambda: False, team, records=True):
        pass
    return gather_weights(model, team)


# ------------------------------------------------------------------ one process
def test_one_micro_batch_a_step_is_what_torch_computes() -> None:
    plain, ours, batches = net(), net(), LabelledImageBatches(IMAGES, 3, 7)
    statistics = RunningStatistics(ours)
    assert len(statistics.buffers) == 6 and not RunningStatistics(nn.Linear(2, 2))
    for position in range(STEPS):
        statistics.begin()
        for model in (plain, ours):
            image_loss(model.training_logits, batches.at(position))
        statistics.add()
        statistics.update(Team())
    for one, other in zip(RunningStatistics(plain).buffers, statistics.buffers, strict=True):
        assert torch.equal(one, other)


def test_several_micro_batches_count_equally_and_in_any_order() -> None:
    batches = LabelledImageBatches(IMAGES, 3, 7)
    found = []
    for order in ((0, 1, 2), (2, 0, 1)):
        model = net()
        statistics = RunningStatistics(model)
        statistics.begin()
        for position in order:
            image_loss(model.training_logits, batches.at(position))
            statistics.add()
        statistics.update(Team())
        found.append(statistics.copy())
    close(found[0], found[1])
    separate = []
    for position in range(3):
        model = net()
        image_loss(model.training_logits, batches.at(position))
        separate.append(RunningStatistics(model).copy())
    close(found[0], [torch.stack([part.double() for part in parts]).mean(0) for parts in zip(*separate, strict=True)])
    assert int(found[0][2]) == 1  # one step


def test_step_that_is_not_taken_changes_nothing() -> None:
    model = net()
    statistics = RunningStatistics(model)
    before = statistics.copy()
    statistics.begin()
    image_loss(model.training_logits, LabelledImageBatches(IMAGES, 3, 7).at(0))
    assert not torch.equal(statistics.buffers[0], before[0])
    statistics.add()
    assert all(torch.equal(one, other) for one, other in zip(statistics.buffers, before, strict=True))


# ------------------------------------------------------------------ two processes
@pytest.mark.parametrize(("accumulate", "how"), [(1, "ddp"), (2, "ddp"), (1, "fsdp")])
def test_two_processes_learn_what_one_does(accumulate: int, how: str, tmp_path: Path) -> None:
    """With one micro-batch a step, both share it, and its statistics; with two, each has its own."""

    def work(team: Team) -> None:
        found = trained(team, accumulate, how)
        statistics = {name: value for name, value in found.items() if "running" in name}
        torch.save(found if team.leads else statistics, tmp_path / f"{team.rank}.pt")

    run_team(2, work, tmp_path)
    ours, alone = torch.load(tmp_path / "0.pt"), trained(Team(), accumulate)
    assert ours.keys() == alone.keys()
    for name, value in alone.items():
        close(ours[name], value, LEARNED, of=alone[name.rpartition(".")[0] + ".weight"] if "bias" in name else None)
    if how == "ddp":
        assert int(ours["norms.0.num_batches_tracked"]) == STEPS


def test_shared_statistics_have_the_gradients_of_the_whole_batch(tmp_path: Path) -> None:
    from heedful.training.distributed.batch_norm import share_statistics

    x = torch.randn(5, 3, 4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float32)

    def run(norm: nn.Module, images: Tensor) -> list[list[float]]:
        given = images.clone().requires_grad_()
        (norm(given) * torch.linspace(-1, 2, 24).view(1, 3, 4, 2)).pow(3).sum().backward()
        assert given.grad is not None
        return [given.grad.flatten().tolist(), norm.get_parameter("0.weight").grad.flatten().tolist()]  # type: ignore[union-attr]

    def work(team: Team) -> Any:
        norm = nn.Sequential(nn.BatchNorm2d(3))
        share_statistics(norm, team.rank, team.world, team.world)
        part = x[:5] if team.leads else x[5:]  # the second process has no images
        whole = run(norm, part)
        half = nn.Sequential(nn.BatchNorm2d(3))
        share_statistics(half, team.rank, team.world, team.world)
        return [whole, run(half, x[team.rank :: 2]), half[0].running_var.tolist()]

    (first, second), norm = run_team(2, work, tmp_path), nn.Sequential(nn.BatchNorm2d(3))
    gradient, weight = run(norm, x)
    near = partial(close, dtype=torch.float32)
    near(first[0][0], gradient)
    assert second[0][0] == []
    near(np.array(first[1][0]).reshape(3, -1), np.array(gradient).reshape(5, -1)[::2])
    near(np.array(second[1][0]).reshape(2, -1), np.array(gradient).reshape(5, -1)[1::2])
    near(np.array(first[1][1]) + np.array(second[1][1]), weight)
    near(first[2], norm[0].running_var.tolist())  # type: ignore[union-attr,operator]


# ------------------------------------------------------------------ runs
RECIPE = """
task: {kind: image_classification}
data: {kind: own}
model: {kind: lenet, channels: 2, size: [6, 5], padding: 6}
train:
  budget: {steps: 12}
  batch_examples: 7
  save_every: 4
  evaluate_every: 4
  log_every: 1
"""
DATA = [(pixels, "abc"[number % 3]) for number, pixels in enumerate(PIXELS)]


def recipe(**changes: Any) -> Recipe:
    found = recipe_of(RECIPE, "here")
    return found.model_copy(update={"train": found.train.model_copy(update=changes)})


def run(folder: Path, until: int = 99, **changes: Any) -> None:
    done = 0

    def stop() -> bool:
        return done >= until

    for event in train(recipe(**changes), folder, stop, model=ConvNet, data=Dataset(DATA, DATA[:9])):
        done = event.step if isinstance(event, Step) else done


def test_statistics_are_saved_and_resumed_bit_for_bit(tmp_path: Path) -> None:
    run(tmp_path / "whole", accumulate=2)
    run(tmp_path / "parts", until=6, accumulate=2)
    run(tmp_path / "parts", accumulate=2)
    (whole,), (parts,) = (newest(tmp_path / name, 1)[0] for name in ("whole", "parts"))
    for stem in ("model", "optimizer"):
        one, other = whole.load(stem), parts.load(stem)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one), stem
    assert int(whole.load("model")["norms.0.num_batches_tracked"]) == 12
    classifiers = [
        load(tmp_path / name, ImageClassifier, device="cpu", checkpoint="last", model=ConvNet)
        for name in ("whole", "parts")
    ]
    one, other = (classifier.predict(list(PIXELS[:5])) for classifier in classifiers)
    assert [result.to_dict() for result in one] == [result.to_dict() for result in other]


def test_mean_of_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be the mean of checkpoints"):
        run(tmp_path / "run", average=2)
