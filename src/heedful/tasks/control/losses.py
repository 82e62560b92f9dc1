"""Returns, advantages, and the losses of policies and Q networks, as plain functions.

T steps, B lanes, N samples, A actions.
"""

from __future__ import annotations

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Doubles = NDArray[np.float64]
Bools = NDArray[np.bool_]


def discounted(rewards: Doubles, discount: float) -> Doubles:
    """G_t = r_t + discount G_(t+1), the return from each step (T, B) of whole episodes, with zeros after their ends."""
    returns, following = np.empty_like(rewards), np.zeros_like(rewards[0])  # (T, B), (B,)
    for step in reversed(range(len(rewards))):
        following = rewards[step] + discount * following  # (B,)
        returns[step] = following
    return returns


def others_mean(returns: Doubles, real: Bools) -> Doubles:
    """The mean return (T, B) of the other episodes from the same step on; 0 where no other one lasts as long.

    It depends on no action of the episode itself, so that as a baseline it leaves the gradient unbiased.
    """
    total, others = (returns * real).sum(1, keepdims=True), real.sum(1, keepdims=True) - real  # (T, 1), (T, B)
    return np.where(others > 0, (total - returns * real) / np.maximum(others, 1), 0.0)


def generalized_advantages(
    rewards: Doubles,
    values: Doubles,
    following: Doubles,
    terminated: Bools,
    ended: Bools,
    discount: float,
    trace: float,
) -> Doubles:
    """A_t = d_t + discount trace A_(t+1), where d_t = r_t + discount V(s_(t+1)) - V(s_t); all (T, B).

    Schulman et al., 2016. `values` are V(s_t), `following` those of the observations after the steps. Nothing follows
    on a terminated step. An episode that was only stopped, by its limit or by the end of these T steps, goes on for its
    value, but the sum ends with it: `ended` says where the next step is of another episode.
    """
    deltas = rewards + discount * following * ~terminated - values  # (T, B)
    found, later = np.empty_like(deltas), np.zeros_like(deltas[0])  # (T, B), (B,)
    for step in reversed(range(len(deltas))):
        later = deltas[step] + discount * trace * later * ~ended[step]  # (B,)
        found[step] = later
    return found


def policy_loss(logits: Tensor, actions: Tensor, advantages: Tensor) -> Tensor:
    """-sum_n A_n log p(a_n), whose gradient is minus the policy gradient (Williams, 1992).

    logits (N, A), actions (N,), advantages (N,), which have no gradient.
    """
    logs = logits.log_softmax(-1).gather(-1, actions[:, None]).squeeze(-1)  # (N,)
    return -(advantages * logs).sum()


def q_targets(rewards: Tensor, discounts: Tensor, following: Tensor) -> Tensor:
    """r + discount V(s'), the targets (N,) of Q(s, a); the discount is 0 where nothing follows."""
    return rewards + discounts * following  # (N,)


def best_values(values: Tensor) -> Tensor:
    """max_a Q'(s', a), from values (N, A) of the target network (Mnih et al., 2015)."""
    return values.amax(-1)  # (N,)


def double_values(values: Tensor, online: Tensor) -> Tensor:
    """Q'(s', argmax_a Q(s', a)): one network chooses, the other one judges (van Hasselt et al., 2016)."""
    return values.gather(-1, online.argmax(-1, keepdim=True)).squeeze(-1)  # (N,)


def q_loss(values: Tensor, actions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of Huber's losses of Q(s, a) (N, A) at the actions (N,), and that of the squared errors."""
    found = values.gather(-1, actions[:, None]).squeeze(-1)  # (N,)
    return F.smooth_l1_loss(found, targets, reduction="sum"), (found.detach() - targets).square().sum()
