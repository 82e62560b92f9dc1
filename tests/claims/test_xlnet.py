"""XLNet predicts in every order of the factorization, and never sees what it predicts."""

from __future__ import annotations

import math
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heedful.data.text.permutation import PermutationBatch, order_ranks
from heedful.models import build
from heedful.models.xlnet.config import XLNetConfig
from heedful.tasks.permutation_lm.loss import permutation_loss
from tolerance import close

VOCAB = 5


def xlnet(**changes: Any) -> Any:
    """A small one in float64, whose weights are all random."""
    settings: dict[str, Any] = {"vocab": VOCAB, "width": 8, "heads": 2, "layers": 2, "hidden": 12, "context": 16}
    model = build(XLNetConfig(**{**settings, **changes})).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.5 * torch.randn_like(weight))
    return model


def every_order(length: int) -> Tensor:
    """The rank of each position in each of the n! orders (n!, n)."""
    return torch.tensor(list(permutations(range(length))))


def log_likelihoods(model: Any, ids: Tensor, ranks: Tensor) -> Tensor:
    """log p(x) of each row, by the chain rule in its order: the sum of log p(x_i | x_j before i)."""
    places = torch.arange(ids.shape[1]).expand_as(ids)
    _, query = model.two_streams(ids, ranks, places, torch.zeros_like(ids))
    logs = model.lens(query).log_softmax(-1)
    return logs.gather(-1, ids[:, :, None]).sum((1, 2))


def batch_of(ids: Tensor, ranks: Tensor) -> PermutationBatch:
    """All tokens of each row are predicted, in its order."""
    places = torch.arange(ids.shape[1]).expand_as(ids)
    whole, fresh = torch.tensor([ids.numel(), ids.numel()]), torch.ones(len(ids), dtype=torch.bool)
    return PermutationBatch(ids, torch.zeros_like(ids), ranks, places, ids, fresh, whole, 0)


@pytest.mark.claim("G5")
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_training_estimates_the_mean_log_likelihood_over_all_orders(length: int) -> None:
    model, ranks = xlnet(), every_order(length)
    assert len(ranks) == math.factorial(length)
    ids = torch.randint(0, VOCAB, (1, length)).expand(len(ranks), -1)
    each = torch.cat([log_likelihoods(model, ids[:1], order[None]) for order in ranks])
    if length > 2:
        assert float(each.detach().std()) > 1e-3  # another order is another model of the same text
    loss, _ = permutation_loss(model, batch_of(ids, ranks))
    close(loss.total / loss.count, -each.mean() / length)


@pytest.mark.claim("G5")
def test_each_order_is_a_distribution_over_all_texts() -> None:
    model, length = xlnet(), 3
    texts = torch.tensor(list(product(range(VOCAB), repeat=length)))
    for order in every_order(length):
        total = log_likelihoods(model, texts, order.expand_as(texts)).exp().sum()
        close(total, torch.tensor(1.0, dtype=torch.float64), slack=64)


@pytest.mark.claim("G5")
def test_every_order_is_sampled_equally_often() -> None:
    rows, length = 24_000, 4
    random = np.random.default_rng(0).integers(2**64, size=(rows, length), dtype=np.uint64)
    ranks = order_ranks(np.ones((rows, length), dtype=np.bool_), 0, random)
    found, counts = np.unique(ranks, axis=0, return_counts=True)
    assert len(found) == 24
    assert np.abs(counts - 1000).max() < 150  # five standard deviations of a thousand


def gradients(model: Any, ids: Tensor, ranks: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the query at each place, and the content at each position, depends on each token's embedding."""
    seen: list[Tensor] = []

    def keep(module: Any, given: Any, out: Tensor) -> Tensor:
        seen.append(out.detach().requires_grad_())
        return seen[-1]

    hook = model.tokens.register_forward_hook(keep)
    content, query = model.two_streams(ids, ranks, places, torch.zeros_like(ids))
    hook.remove()

    def reached(x: Tensor) -> Tensor:
        (found,) = torch.autograd.grad((x * torch.randn_like(x)).sum(), seen, retain_graph=True)
        return found[0].abs().sum(-1) != 0

    queries = torch.stack([reached(query[0, g]) for g in range(query.shape[1])])
    return queries, torch.stack([reached(content[-1][0, t]) for t in range(ids.shape[1])])


@pytest.mark.claim("G5")
def test_query_stream_never_sees_its_target_and_the_content_stream_does() -> None:
    model = xlnet()
    for order in every_order(4):
        ids = torch.randint(0, VOCAB, (1, 4))
        query, content = gradients(model, ids, order[None], torch.arange(4)[None])
        before = order[None, :] < order[:, None]
        assert query.equal(before)  # the gradient is exactly zero at the target and at all that come later
        assert content.equal(before | torch.eye(4, dtype=torch.bool))


@pytest.mark.claim("G5")
def test_partial_prediction_asks_for_the_last_tokens_of_the_order() -> None:
    model, ids = xlnet(), torch.randint(0, VOCAB, (1, 6))
    ranks = torch.tensor([[0, 2, 0, 0, 1, 0]])  # positions 4, then 1, are predicted; the others see each other
    query, content = gradients(model, ids, ranks, torch.tensor([[1, 4]]))
    context = torch.tensor([True, False, True, True, False, True])
    assert query[0].equal(context | (torch.arange(6) == 4))
    assert query[1].equal(context)
    assert all(content[place].equal(context) for place in (0, 2, 3, 5))


@pytest.mark.claim("G5")
def test_in_the_order_of_the_text_it_is_a_causal_language_model() -> None:
    model, causal = xlnet(), xlnet(direction="left")
    causal.load_state_dict(model.state_dict())
    ids, places = torch.randint(0, VOCAB, (2, 7)), torch.arange(7).expand(2, -1)
    content, query = model.two_streams(ids, places, places)
    for one, other in zip(content, causal.layers(ids), strict=True):
        close(one, other)
    logs = model.lens(query).log_softmax(-1)  # (B, T, V)
    for length in range(1, 7):  # the same from the text so far alone, as a language model predicts the next token
        short, last = ids[:, : length + 1].clone(), torch.full((2, 1), length)
        short[:, length] = 0  # whatever stands there
        _, asked = model.two_streams(short, places[:, : length + 1], last)
        close(model.lens(asked).log_softmax(-1)[:, 0], logs[:, length])
