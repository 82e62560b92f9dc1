"""The same command twice gives the same bits; another number of threads is noted."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from torture.child import Orders
from torture.command import TINY, Trial, assert_same, committed, wait_for_step
from torture.report import FULL, counted

pytestmark = pytest.mark.slow

# Large enough for several threads to share its matrices, and by default to be given them.
WIDE = (*TINY, "model.width=128", "model.hidden=640", "model.encoder_layers=2", "model.decoder_layers=2",
        "train.budget.steps=6", "train.save_every=2", "train.evaluate_every=6")  # fmt: skip


def test_same_command_twice_gives_the_same_bits(tmp_path: Path) -> None:
    kinds = [(batching, threads) for batching in ("padded", "packed") for threads in (1, 2)]
    with counted("same twice") as row:
        for batching, threads in kinds if FULL else kinds[1:2]:
            words = (*WIDE, f"train.batching={batching}", f"train.threads={threads}")
            first = Trial(tmp_path / f"{batching}-{threads}", words)
            assert f"with {threads} thread" in first.finish().output
            for again in range(2):
                second = Trial(tmp_path / f"{batching}-{threads}-{again}", words)
                with row.trial(f"{batching}, {threads} threads"):
                    second.finish()
                    assert_same(second.run, first.run)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no other number of threads")
def test_another_number_of_threads_is_noted(tmp_path: Path) -> None:
    with counted("other threads") as row:
        for before, now in ((1, 2), (2, 1))[: row.wanted]:
            trial = Trial(tmp_path / f"{before}", WIDE)
            command = trial.start(Orders(cores=before))
            assert wait_for_step(trial, command, 3)
            command.send(signal.SIGTERM)
            command.wait()
            with row.trial(f"{before}, then {now}"):
                assert 0 < committed(trial.run) < 6
                output = trial.finish(Orders(cores=now)).output
                assert f"note: threads was {before} and is {now} now: results may differ in the last bits" in output
