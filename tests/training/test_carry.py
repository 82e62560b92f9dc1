"""The carry of a model: detached, saved, and restored bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from heedful.blocks.losses import Loss
from heedful.blocks.state import tensors
from heedful.data.text.lanes import Lanes
from heedful.data.text.text_stream import TextCounts
from heedful.data.text.windows import EncodedText
from heedful.errors import UserError
from heedful.models import build
from heedful.models.rnn_lm.config import RnnLMConfig
from heedful.tasks.language_model.perplexity import stateful_loss
from heedful.training import loop
from heedful.training.carry import gather_lanes, local_lanes, restore
from heedful.training.checkpoint.folder import RunFolder, newest
from heedful.training.checkpoint.saver import Saver
from heedful.training.checkpoint.tensors import EXIT_NOT_FINITE
from heedful.training.configs import Budget, TrainConfig
from heedful.training.distributed.team import ParallelLoss, ProcessInfo, Team
from heedful.training.loop import Counters, Event, Step, fit
from heedful.training.optim import AdamW, make_optimizer
from heedful.training.step import PlainStep
from tolerance import close

CPU = torch.device("cpu")
VOCAB, LANES, CONTEXT = 11, 3, 5
IDS = np.random.default_rng(0).integers(0, VOCAB, 91)
TEXT = EncodedText(IDS, np.zeros(1, np.int64), CONTEXT, TextCounts())
BATCHES: Any = Lanes(TEXT, 0, LANES * CONTEXT)


def settings(steps: int = 16, **changes: Any) -> TrainConfig:
    usual = {"batch_tokens": LANES * CONTEXT, "evaluate_every": 99, "save_every": 4, "optimizer": AdamW(lr=1e-2)}
    return TrainConfig(**{"budget": Budget(steps=steps), **usual, **changes})


def build_model(cell: str = "lstm", dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    return build(RnnLMConfig(vocab=VOCAB, cell=cell, width=6, hidden=8, layers=2, context=CONTEXT, dropout=dropout))


def stepper(model: Any, carry: Any, config: TrainConfig | None = None) -> PlainStep:
    config = config or settings()
    spread = ParallelLoss(partial(stateful_loss, model))
    return PlainStep(model, spread, make_optimizer(config.optimizer, model, CPU), config, CPU, None, carry)


# ------------------------------------------------------------------ from batch to batch
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_carry_equals_an_uninterrupted_pass_over_each_lane(cell: str) -> None:
    model = build_model(cell).double()
    step = stepper(model, model.start(LANES, CPU))
    logged = 0.0
    for position in range(BATCHES.count):
        logged += float(step.gradients(BATCHES.at(position), 1).plain)
    whole = torch.from_numpy(np.stack([IDS[:-1][lane * 30 : lane * 30 + 30] for lane in range(LANES)]))  # (B, T)
    wanted = torch.from_numpy(np.stack([IDS[1:][lane * 30 : lane * 30 + 30] for lane in range(LANES)]))  # (B, T)
    with torch.no_grad():
        logits, state = model(whole, model.start(LANES, CPU))
    for found, expected in zip(tensors(step.carry), tensors(state), strict=True):
        close(found, expected)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
    close(torch.tensor(logged, dtype=torch.float64), loss)


def test_lane_that_starts_over_has_a_zero_state() -> None:
    model = build_model()
    fresh, stale = stepper(model, model.start(LANES, CPU)), stepper(model, model.start(LANES, CPU))
    stale.gradients(BATCHES.at(3), 1)
    one, other = (float(step.gradients(BATCHES.at(BATCHES.count), 1).plain) for step in (fresh, stale))
    assert one == other


def test_no_gradient_flows_into_the_previous_step() -> None:
    model = build_model().double()
    step = stepper(model, model.start(LANES, CPU))
    step.gradients(BATCHES.at(0), 1)
    step.skip()
    before = step.carry
    assert not any(x.requires_grad for x in tensors(before))
    step.gradients(BATCHES.at(1), 1)
    found = [weight.grad.clone() for weight in model.parameters()]

    def gradients(carry: Any) -> list[Tensor]:
        loss, _ = stateful_loss(model, BATCHES.at(1), carry)
        return list(torch.autograd.grad(loss.total, list(model.parameters())))

    for one, other in zip(found, gradients(before), strict=True):
        close(one, other)
    _, connected = stateful_loss(model, BATCHES.at(0), model.start(LANES, CPU))
    through = gradients(connected)
    assert any(not torch.allclose(one, other) for one, other in zip(found, through, strict=True))


# ------------------------------------------------------------------ in the training loop
@dataclass
class Trial:
    """A run of a recurrent net over lanes, resumed from its folder if it has a checkpoint."""

    folder: Path
    config: TrainConfig
    looks: Callable[[Any], None] = lambda model: None
    dropout: float = 0.3

    def run(self, until: int = 99, records: bool = False) -> list[float]:
        model, losses = build_model(dropout=self.dropout), []
        with RunFolder.create_or_open(self.folder, "a: 1\n", keep=9) as folder:
            point = folder.latest()
            counters = Counters(**point.state) if point else Counters()
            saved = {stem: point.load(stem) for stem in ("model", "optimizer", "carry")} if point else None
            for event in fit(
                model, partial(stateful_loss, model), BATCHES, self.config, CPU, Saver(folder, self.config.save_behind),
                {}, counters, saved, lambda: counters.step >= until, records=records, carry=model.start(LANES, CPU),
            ):  # fmt: skip
                losses += [event.loss] if isinstance(event, Step) else []
                self.looks(model)
        return losses


def saved(folder: Path) -> dict[int, bytes]:
    """The bytes of every tensor of each checkpoint."""
    return {
        point.step: b"".join(
            (point.path / f"{stem}.safetensors").read_bytes() for stem in ("model", "optimizer", "carry")
        )
        for point in newest(folder, 99)[0]
    }


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"accumulate": 2},
        *(pytest.param(one, marks=pytest.mark.slow) for one in ({"workers": 2}, {"save_behind": True})),
    ],
    ids=str,
)
def test_interrupted_run_equals_the_uninterrupted_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = settings(**changes)
    whole = Trial(tmp_path / "whole", config).run()
    broken = [loss for last in (3, 4, 11, 99) for loss in Trial(tmp_path / "broken", config).run(last)]
    assert broken == whole
    one, other = saved(tmp_path / "whole"), saved(tmp_path / "broken")
    assert all(other[step] == one[step] for step in one)
    assert set(one) == {4, 8, 12, 16}


def test_without_its_carry_a_resumed_run_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above is able to fail."""
    whole = Trial(tmp_path / "whole", settings()).run()
    part = Trial(tmp_path / "broken", settings()).run(10)
    monkeypatch.setattr(loop, "restore", lambda first, saved: first)
    rest = Trial(tmp_path / "broken", settings()).run()
    assert part == whole[:10]
    assert rest[0] != whole[10]


def test_micro_batches_of_a_step_carry_in_order(tmp_path: Path) -> None:
    Trial(tmp_path / "twice", settings(1, accumulate=2), dropout=0).run()
    Trial(tmp_path / "once", settings(2, optimizer=AdamW(lr=1e-30)), dropout=0).run()  # the weights do not change
    one, other = (newest(tmp_path / name, 1)[0][0].load("carry") for name in ("twice", "once"))
    assert one.keys() == other.keys() == {"0", "1", "2", "3"}
    for name in one:
        close(one[name], other[name])


def test_evaluation_does_not_change_the_carry(tmp_path: Path) -> None:
    def looks(model: Any) -> None:
        with torch.no_grad():
            model(torch.zeros(1, 4, dtype=torch.long), model.start(1, CPU))

    plain = Trial(tmp_path / "plain", settings()).run()
    assert Trial(tmp_path / "looked", settings(evaluate_every=3), looks).run() == plain
    assert Trial(tmp_path / "records", settings()).run(records=True) == plain  # which are plain steps here
    assert saved(tmp_path / "looked") == saved(tmp_path / "plain") == saved(tmp_path / "records")


class Diverging(nn.Module):
    """A model whose state becomes infinite while its loss stays finite."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.memory = nn.Identity()

    def loss(self, batch: Any, carry: tuple[Tensor]) -> tuple[Loss, tuple[Tensor]]:
        total = (self.weight * 0.5) ** 2
        return Loss(total, total.detach(), torch.tensor(1)), (self.memory(carry[0] * self.weight * 1e13),)


def test_non_finite_carry_stops_the_step(tmp_path: Path) -> None:
    model, counters = Diverging(), Counters()
    events: list[Event] = []
    with RunFolder.create_or_open(tmp_path / "run", "a: 1\n") as folder, pytest.raises(UserError) as error:  # noqa: PT012
        for event in fit(
            model, model.loss, BATCHES, settings(save_every=1, clip=None), CPU, Saver(folder), {}, counters,
            carry=(torch.ones(LANES, 2),),
        ):  # fmt: skip
            events.append(event)
            before = model.weight.detach().clone()
    assert error.value.exit_code == EXIT_NOT_FINITE
    assert "at step 3" in error.value.message
    assert "the input of memory" in str(error.value.found)
    assert torch.equal(model.weight, before)
    assert [point.step for point in newest(tmp_path / "run", 9)[0]] == [2, 1]


# ------------------------------------------------------------------ lanes of several processes
def test_lanes_are_split_among_processes_and_restored() -> None:
    carry = (torch.arange(10.0).view(5, 2), torch.arange(5))
    teams = [Team(ProcessInfo(rank, 2, rank, 2, "127.0.0.1", 1)) for rank in range(2)]
    parts = [local_lanes(carry, team) for team in teams]
    assert [part[1].tolist() for part in parts] == [[0, 2, 4], [1, 3]]
    form = gather_lanes(carry, Team(), 5)
    back = restore((torch.zeros(5, 2), torch.zeros(5)), dict(reversed(form.items())))
    assert all(torch.equal(one, other) for one, other in zip(back, carry, strict=True))
    assert local_lanes(None, teams[0]) is None
    with pytest.raises(UserError, match="more processes than lanes"):
        local_lanes((torch.zeros(1, 2),), teams[0])
    with pytest.raises(UserError, match="does not fit the model"):
        restore((torch.zeros(4, 2), torch.zeros(4)), form)
    with pytest.raises(UserError, match="does not fit the model"):
        restore((torch.zeros(5, 2),), form)
