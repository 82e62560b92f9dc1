"""The cost of pre-training: days from FLOPs and rates, and the vendors' rates."""

from __future__ import annotations

import pytest

from heedful.lectures.cost import CHIPS, CLAIMS, Claim, Costs, published_work, training_work
from heedful.models.bert.config import SIZES, BertConfig


def test_peak_rates_match_the_vendors() -> None:
    # 180 tera a Cloud TPU v2 of four chips; tensor cores in half precision, without sparsity, for the GPUs.
    assert CHIPS == {"TPU v2": 180e12 / 4, "V100": 125e12, "RTX 2080 Ti": 107.6e12, "H200": 989.5e12}


def test_days_formula() -> None:
    found = Costs({"bert-large": 8.64e20}, share=0.5, chips=4)
    assert found.days(Claim("bert-large", 10, "V100", 0.0)) == pytest.approx(8.64e20 / (10 * 125e12 * 0.5) / 86_400)
    assert Claim("bert-base", 2, "TPU v2", 3.0).work == 2 * 45e12 * 3 * 24 * 60 * 60
    found = Costs({claim.model: published_work(claim.model) for claim in CLAIMS}, share=0.35, chips=256)
    for claim, row in zip(CLAIMS, found.table().rows, strict=True):
        model, chips, chip, days, work, best, used, needed = row
        assert (model, chips, chip, days) == tuple(claim)
        assert float(used) == pytest.approx(float(work) / float(best))
        assert float(needed) == pytest.approx(claim.days * float(used) / 0.35)  # at the default utilization


def test_attention_cost_grows_with_length() -> None:
    config, tokens = SIZES["bert-base"], 1e6
    assert isinstance(config, BertConfig)
    more = training_work(config, 30_522, tokens, 512) - training_work(config, 30_522, tokens, 128)
    # Scores and weighted sums cost width multiplications per pair of positions; the backward pass costs twice that.
    assert more == pytest.approx(3 * 2 * 2 * config.layers * config.width * tokens * (512 - 128))
