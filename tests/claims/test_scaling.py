"""Scaling laws: a sweep of real runs whose losses lie on straight lines in log-log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heedful.data.embedded import LibraryProse
from heedful.extras.scaling.fits import fit
from heedful.extras.scaling.sweep import completed_runs, plan, read_sizes, read_tokens
from heedful.runs.train import train

RECIPE = """
task: {kind: language_model}
data: {kind: text, train: train.txt, valid: valid.txt}
tokenizer: {kind: characters, vocab: 120}
model: {kind: rnn_lm, cell: lstm, width: 32, hidden: 32, layers: 1, context: 16, dropout: 0.0}
train:
  budget: {steps: 10}
  batch_tokens: 512
  optimizer: {kind: adamw, lr: 1e-2, betas: [0.9, 0.99]}
  schedule: {kind: cosine, warmup: 20}
  samples: 0
  threads: 1
"""


@pytest.mark.claim("G9")
def test_losses_follow_power_laws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes 34 times apart and budgets 4 times apart, each axis scored by the same three criteria.

    The loss falls from each run of a line to the next; a straight line accounts for more than 95 % of what the
    logarithms of the losses vary by; and the whole interval of its exponent is above zero.
    """
    monkeypatch.chdir(tmp_path)
    for split, characters in (("train", 250_000), ("valid", 15_000)):
        (tmp_path / f"{split}.txt").write_text("\n".join(LibraryProse().read(split).lines)[:characters])
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    cells = plan("tiny.yaml", [], read_sizes("1x8,1x20,1x48"), read_tokens("4e4,8e4,1.6e5"), [], tmp_path / "sweep")
    for cell in cells:
        for _ in train(cell.recipe, cell.folder):
            pass
    runs, left_out = completed_runs(cells)
    assert left_out == {}
    for line in fit(list(runs.values())).lines:
        points = [runs[name] for name in line.runs]
        logs = np.log([[run.at(line.variable), run.loss] for run in points])
        assert len(points) >= 3
        assert (np.diff(logs[:, 1]) < 0).all()
        assert np.corrcoef(logs.T)[0, 1] ** 2 > 0.95
        assert line.plain is not None and line.plain.exponent.low > 0
