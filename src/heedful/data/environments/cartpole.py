"""CartPole (Barto, Sutton and Anderson, 1983), with the dynamics, the limits and the random states of CartPole-v1.

A pole stands on a cart, which is pushed to the left or to the right in every step. An episode ends when the pole leans
by more than 12 degrees, or the cart is more than 2.4 from the middle; every step has a reward of 1.

B lanes.
"""

from __future__ import annotations

import math

import numpy as np

from heedful.data.environments.lanes import Floats, Ints, Moves, States

GRAVITY, CART, POLE = 9.8, 1.0, 0.1  # masses of the cart and of the pole
HALF = 0.5  # half of the length of the pole
FORCE, SECONDS = 10.0, 0.02  # of a push; between two steps, by Euler's method
FARTHEST, STEEPEST = 2.4, 12 * 2 * math.pi / 360
FIRST = 0.05  # the first state is uniform in this range around 0


class CartPole:
    """State: position, velocity, angle, angular velocity, and the number of steps taken."""

    observation_names = ("position", "velocity", "angle", "angular velocity")
    action_names = ("left", "right")

    def __init__(self, limit: int = 500) -> None:
        self.limit = limit

    def reset(self, seeds: Ints) -> tuple[States, Floats]:
        """The states that Gymnasium's CartPole-v1 has after `reset(seed=seed)`."""
        states = np.zeros((len(seeds), 5))  # (B, S)
        for state, seed in zip(states, seeds.tolist(), strict=True):
            state[:4] = np.random.default_rng(seed).uniform(-FIRST, FIRST, 4)
        return states, states[:, :4].astype(np.float32)

    def step(self, states: States, actions: Ints) -> Moves:
        """theta'' = (g sin theta - cos theta a) / (l (4/3 - m cos^2 theta / M)), x'' = a - m l theta'' cos theta / M.

        Here a = (F + m l theta'^2 sin theta) / M, m and M are the masses of the pole and of both, and l is HALF.
        """
        position, velocity, angle, turn, steps = states.T  # each (B,)
        force = np.where(actions == 1, FORCE, -FORCE)  # (B,)
        cosine, sine, mass, moment = np.cos(angle), np.sin(angle), CART + POLE, POLE * HALF
        push = (force + moment * np.square(turn) * sine) / mass  # (B,)
        turning = (GRAVITY * sine - cosine * push) / (HALF * (4.0 / 3.0 - POLE * np.square(cosine) / mass))  # (B,)
        moving = push - moment * turning * cosine / mass  # (B,)
        found = np.stack(
            [
                position + SECONDS * velocity, velocity + SECONDS * moving,
                angle + SECONDS * turn, turn + SECONDS * turning, steps + 1,
            ],
            1,
        )  # (B, S)  # fmt: skip
        fallen = (np.abs(found[:, 0]) > FARTHEST) | (np.abs(found[:, 2]) > STEEPEST)  # (B,)
        observations = found[:, :4].astype(np.float32)  # (B, O)
        return Moves(found, observations, np.ones(len(found)), fallen, found[:, 4] >= self.limit)
