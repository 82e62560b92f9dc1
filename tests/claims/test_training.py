"""Claims about the trainer: its loop, optimizer, learning rates and gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.data.embedded import NumberWords
from heedful.data.pairs.batches import PairBatches, encode_pairs
from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WordPiece
from heedful.models import build
from heedful.models.transformer.config import TransformerConfig
from heedful.tasks.translation.predictor import translation_loss
from heedful.training.checkpoint.folder import RunFolder, newest
from heedful.training.checkpoint.saver import Saver
from heedful.training.configs import Budget, TrainConfig
from heedful.training.loop import Counters, Due, Epoch, Event, Saved, Step, fit
from heedful.training.optim import AdamW, Constant, Cosine, Linear, Noam, clip

PAIRS = NumberWords(train=60, valid=1, test=1).pairs("train")[:60]
TOKENIZER = TrainedTokenizer.train(WordPiece(vocab=90), [text for pair in PAIRS for text in pair])
ENCODED = encode_pairs(PAIRS, TOKENIZER, longest=60)
MODEL = TransformerConfig(
    vocab=TOKENIZER.vocab, width=16, heads=2, encoder_layers=1, decoder_layers=1, hidden=32, context=60, dropout=0.0
)


def run(folder: Path, counters: Counters, stop: Callable[[], bool] = lambda: False, **changes: Any) -> Iterator[Event]:
    """The trainer's own loop on a small model."""
    settings: dict[str, Any] = {"budget": Budget(steps=10), "batch_tokens": 512, "evaluate_every": 4, "save_every": 3}
    torch.manual_seed(0)
    model: Any = build(MODEL)
    with RunFolder.create_or_open(folder, "a: 1\n") as run_folder:
        yield from fit(
            model, partial(translation_loss, model), PairBatches(ENCODED, 0, 512), TrainConfig(**settings | changes),
            torch.device("cpu"), Saver(run_folder), {}, counters, stop=stop,
        )  # fmt: skip


def steps(events: Iterator[Event]) -> list[Step]:
    return [event for event in events if isinstance(event, Step)]


@pytest.mark.claim("X2")
def test_gradients_are_clipped_by_norm_or_squared_norm() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    assert float(clip([weight], 5.0)) == 5
    assert weight.grad.tolist() == [3, 4]  # the true norm is 5: nothing to clip
    assert float(clip([weight], 5.0, rule="squared")) == 5
    assert weight.grad.tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.claim("J3")
@pytest.mark.parametrize(("rule", "measure"), [("norm", 13.0), ("squared", 169.0)])
def test_both_clipping_rules_rescale_large_gradients(rule: Any, measure: float) -> None:
    weights = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))]
    for limit in (1.0, 6.5, 12.99, 13.0, 20.0, 168.0, 169.0, 500.0):
        weights[0].grad, weights[1].grad = torch.tensor([3.0, 4.0]), torch.tensor([12.0])
        assert float(clip(weights, limit, rule)) == 13
        scale = limit / measure if measure > limit else 1.0
        assert weights[0].grad.tolist() == pytest.approx([3 * scale, 4 * scale])
        assert weights[1].grad.tolist() == pytest.approx([12 * scale])
        if rule == "norm":
            assert float(torch.cat([weight.grad for weight in weights]).norm()) == pytest.approx(min(13, limit))


@pytest.mark.claim("M17")
def test_training_emits_events_as_they_happen_and_obeys_conditions(tmp_path: Path) -> None:
    events = run(tmp_path / "run", Counters())
    emitted = [(type(event), event.step) for event in events if not isinstance(event, Epoch)]
    expected: list[tuple[type, int]] = []
    for step in range(1, 11):
        expected.append((Step, step))
        expected += [(Due, step)] if step % 4 == 0 or step == 10 else []
        expected += [(Saved, step)] if step % 3 == 0 or step == 10 else []
    assert emitted == expected

    counters, below = Counters(), [False]  # a custom condition: stop when the loss is below a threshold
    seen = []
    for event in run(
        tmp_path / "until", counters, lambda: below[0], budget=Budget(steps=200), optimizer=AdamW(lr=1e-2)
    ):
        if isinstance(event, Step):
            seen.append(event.loss)
            below[0] = event.loss < 3.0
    assert seen[-1] < 3.0 <= min(seen[:-1])
    assert 1 < counters.step == len(seen) < 200
    assert newest(tmp_path / "until", 1)[0][0].step == counters.step  # the last step is saved

    tokens = steps(run(tmp_path / "tokens", Counters(), budget=Budget(tokens=1000)))
    assert tokens[-1].tokens >= 1000 > tokens[-2].tokens


@pytest.mark.claim("M18")
@pytest.mark.parametrize(
    ("schedule", "curve"),
    [
        (Noam(width=16, warmup=4), lambda n: 16**-0.5 * min(n**-0.5, n * 4**-1.5)),
        (Cosine(warmup=2), lambda n: min(1, n / 2) * (1 + math.cos(math.pi * (n - 1) / 10)) / 2),
        (Linear(warmup=5, floor=0.1), lambda n: min(1, n / 5) * (0.1 + 0.9 * (1 - (n - 1) / 10))),
        (Constant(), lambda n: 1.0),
    ],
    ids=["noam", "cosine", "linear", "constant"],
)
def test_optimizer_follows_the_schedule_and_clips(tmp_path: Path, schedule: Any, curve: Callable[[int], float]) -> None:
    emitted = steps(run(tmp_path / "run", Counters(), schedule=schedule, clip=0.05, optimizer=AdamW(lr=3e-3)))
    assert [step.rate for step in emitted] == pytest.approx([3e-3 * curve(n) for n in range(1, 11)])
    assert min(step.norm for step in emitted) > 0.05  # the reported norm is the one before clipping
    moments = newest(tmp_path / "run", 1)[0][0].load("optimizer")
    first = torch.cat([value.flatten() for name, value in moments.items() if name.startswith("exp_avg.")])
    assert float(first.norm()) <= 0.05  # a running mean of clipped gradients
