"""Scores in two steps, keys once and queries later; the additive score in chunks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from heedful.blocks import scores
from heedful.blocks.scores import Additive, General, Location, Weightless, cosine, dot, scaled_dot
from tolerance import close

B, H, T, S, K = 2, 3, 6, 7, 4
WHOLE = B * H * T * S * 11  # elements in the hidden layer of the score
ROOMS = {"queries": 3 * B * H * S * 11, "keys": 2 * B * H * 11, "all": WHOLE, "one at a time": 1}
rooms = pytest.mark.parametrize("room", ROOMS)


def inputs() -> list[Tensor]:
    return [torch.randn(B, H, n, K, dtype=torch.float64, requires_grad=True) for n in (T, S)]


def additive() -> Additive:
    return Additive(K, K, 11).double()


def reference(score: Additive, q: Tensor, k: Tensor) -> Tensor:
    hidden = torch.tanh((q @ score.q.weight.T)[..., :, None, :] + (k @ score.k.weight.T)[..., None, :, :])
    return hidden @ score.v.weight[0]


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that any operation creates."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for part in made if isinstance(made, tuple | list) else (made,):
            if isinstance(part, Tensor):
                self.size = max(self.size, part.numel())
        return made


@rooms
def test_additive_score_in_chunks_matches_the_formula(room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    score, (q, k) = additive(), inputs()
    leaves = [q, k, *score.parameters()]
    probe = torch.randn(B, H, T, S, dtype=torch.float64)
    truth = reference(score, q, k)
    monkeypatch.setattr(scores, "ROOM", ROOMS[room])
    mine = score(q, k)
    close(mine, truth, slack=512)
    with torch.no_grad():
        close(score(q, k), truth, slack=512)
    for ours, theirs in zip(*(torch.autograd.grad((y * probe).sum(), leaves) for y in (mine, truth)), strict=True):
        close(ours, theirs, slack=8192)


@rooms
def test_gradcheck_of_chunks(room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "ROOM", ROOMS[room])
    score, (q, k) = additive(), inputs()
    assert torch.autograd.gradcheck(score, (q, k), fast_mode=True)


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("room", ["queries", "keys"])
def test_additive_score_stays_within_its_memory_limit(room: str, learns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    score, (q, k) = additive(), inputs()

    def largest() -> int:
        with Largest() as made, torch.set_grad_enabled(learns):
            y = score(q, k)
            if learns:
                y.sum().backward()
        return made.size

    assert largest() == WHOLE
    small = max(T, S) * B * H * 11  # the size of queries, keys and scores
    monkeypatch.setattr(scores, "ROOM", ROOMS[room])
    assert largest() <= max(ROOMS[room], small) < WHOLE


@pytest.mark.parametrize("room", [*range(1, 2000, 97), 10**9])
def test_chunks_cover_every_pair_once(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "ROOM", room)
    q, k = torch.zeros(B, H, T, 5), torch.zeros(B, H, S, 5)
    count = torch.zeros(T, S)
    for rows, columns in scores._Additive.pieces(q, k):
        count[rows, columns] += 1
        held = B * H * 5 * count[rows, columns].numel()
        assert held <= room or count[rows, columns].numel() == 1
    assert bool((count == 1).all())


MADE: dict[str, Callable[[], Any]] = {
    "dot": lambda: Weightless(dot),
    "scaled_dot": lambda: Weightless(scaled_dot),
    "cosine": lambda: Weightless(cosine),
    "general": lambda: General(K, 5).double(),
    "additive": lambda: Additive(K, 5, 11).double(),
    "location": lambda: Location(K, 9).double(),
}


@pytest.mark.parametrize("name", MADE)
def test_prepared_keys_serve_every_query(name: str) -> None:
    score = MADE[name]()
    width = 5 if name in ("general", "additive") else K
    q, memory = torch.randn(B, 1, T, K).double(), torch.randn(B, S, width).double()
    kept = score.project_keys(memory, torch.arange(S))[:, None]
    at_once = score.compare(q, kept)
    assert at_once.shape == (B, 1, T, S)
    for t in range(T):
        close(score.compare(q[:, :, t : t + 1], kept), at_once[:, :, t : t + 1], slack=8192)
    whole = score.compare if isinstance(score, Weightless) else score
    close(whole(q, memory[:, None]), at_once, slack=8192)


def test_location_score_uses_positions_not_columns() -> None:
    score, q = Location(K, 9).double(), torch.randn(B, 1, T, K).double()
    at = torch.tensor([[0, 1, 2, 3, 3, 3, 3], [0, 0, 0, 0, 1, 2, 3]])  # padded on the right, and on the left
    found = score.compare(q, score.project_keys(torch.randn(B, S, K).double(), at)[:, None])
    truth = q @ score.matrix.weight.T  # (B, 1, T, 9)
    close(found[0, :, :, :4], truth[0, :, :, :4], slack=8192)
    close(found[1, :, :, 3:], truth[1, :, :, :4], slack=8192)
