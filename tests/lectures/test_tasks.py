"""The training tasks of the figures."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.lectures.learning import learn, seeded
from heedful.lectures.recall import FILLERS, KEYS, NETS, QUESTION, Settings, trial
from heedful.lectures.strings import ATTENTION, BEGIN, END, LETTERS, writer


@pytest.mark.parametrize("distance", [1, 9])
def test_recall_sentence_layout(distance: int) -> None:
    tokens, keys = trial("LSTM", distance, Settings(width=4)).sentences(50)
    assert tokens.shape == (50, distance + 2)
    assert tokens[:, 0].equal(keys)
    assert set(keys.tolist()) == set(range(KEYS))
    middle = tokens[:, 1:-1]
    assert bool(((middle >= KEYS) & (middle < QUESTION)).all())
    assert bool((tokens[:, -1] == QUESTION).all())


def test_fillers_are_independent_of_the_key() -> None:
    tokens, keys = trial("LSTM", 20, Settings(width=4)).sentences(400)
    middle = tokens[:, 1:-1]
    counts = middle.flatten().bincount(minlength=QUESTION)[KEYS:QUESTION]
    assert counts.min() > 0.8 * middle.numel() / FILLERS  # all of them, about as often
    assert len({tuple(row) for row in middle.tolist()}) == 400  # sampled for each sentence
    for key in range(KEYS):
        among = middle[keys == key].flatten().bincount(minlength=QUESTION)[KEYS:QUESTION]
        assert among.min() > 0.4 * among.float().mean()
    assert keys.bincount(minlength=KEYS).min() > 25


@pytest.mark.parametrize("name", NETS)
def test_every_model_sees_the_whole_sentence(name: str) -> None:
    one = trial(name, 5, Settings(width=8))
    tokens, _ = one.sentences(1)
    before = one.net(tokens)
    assert before.shape == (1, KEYS)
    for position in range(tokens.shape[1]):
        other = tokens.clone()
        other[0, position] = (other[0, position] + 1) % (QUESTION + 1)
        assert not one.net(other).equal(before)


@pytest.mark.parametrize("backwards", [False, True])
def test_target_has_start_and_end_tokens(backwards: bool) -> None:
    source, target = writer(None, 4, backwards, 5, 0).strings(3, 4)
    assert bool((source < len(LETTERS)).all())
    assert target[:, 1:-1].equal(source.flip(1) if backwards else source)
    assert bool((target[:, 0] == BEGIN).all() and (target[:, -1] == END).all())


def test_exact_match_includes_the_end_token(monkeypatch: pytest.MonkeyPatch) -> None:
    one = writer(ATTENTION, 4, False, 5, 0)
    source, target = one.strings(6, 4)

    def force_output(target: Tensor) -> None:
        """Make the model predict this target for every input."""

        def forward(tokens: Tensor, state: int) -> tuple[Tensor, int]:
            return 50.0 * F.one_hot(target[:, state + 1 : state + 2], END + 1).float(), state + 1

        monkeypatch.setattr(type(one), "strings", lambda self, count, length: (source, right))
        monkeypatch.setattr(one.net, "start", lambda source: 0)
        monkeypatch.setattr(one.net, "forward", forward)

    right = target
    force_output(target)
    assert one.exact(6, 4) == 1.0
    wrong = target.clone()
    wrong[0, 2] = (wrong[0, 2] + 1) % len(LETTERS)
    wrong[1, -1] = 0  # continues where it should end
    wrong[2, 3] = END  # ends too early
    force_output(wrong)
    assert one.exact(6, 4) == 0.5


def test_learning_rate_decays_to_zero() -> None:
    net = nn.Linear(1, 1, bias=False)
    weights = [float(net.weight.detach())]
    for share in learn(net, lambda: net.weight.sum(), 4, 0.1):
        weights.append(float(net.weight.detach()))
        assert share == (len(weights) - 1) / 4
    steps = [before - after for before, after in pairwise(weights)]
    assert steps == pytest.approx([0.1, 0.075, 0.05, 0.025], rel=1e-4)  # Adam's step with a constant gradient


def test_building_a_model_keeps_the_global_random_state() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    one, two = seeded(lambda: nn.Linear(2, 2), 5), seeded(lambda: nn.Linear(2, 2), 5)
    assert torch.rand(1).equal(expected)
    assert one.weight.equal(two.weight)
