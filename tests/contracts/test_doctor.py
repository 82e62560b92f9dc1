"""`heedful.doctor`: every planted fault is found by its check, and no correct model is blamed."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heedful
from contracts.foreign import FOREIGN, gpt2
from contracts.planted import CORRECT, PLANTED, CountedPadding, Encoder, Pooled
from heedful.contracts.doctor import CHECKS, doctor
from heedful.contracts.shrink import shrink
from heedful.contracts.subject import distance
from heedful.contracts.texts import Codec, shortest, trouble
from heedful.models import MODELS, build, config_class
from tolerance import near

LONG = ("seq2seq", "hred", "captioner", "paragraph_captioner", "text_vae", "style_transfer")
ALIKE = [
    f"transformers: {name}" for name in ("RobertaModel", "AlbertModel", "ResNetModel", "BertForSequenceClassification")
]
# Faults that several checks have to see.
ALSO = {
    "causal": {"causal-gradient", "cache"},
    "batch": {"order", "padding-right", "padding-left", "empty-row"},
    "order": {"batch", "padding-right", "padding-left", "gradient", "empty-row"},
    "padding-right": {"padding-left", "gradient"},
    "empty-row": {"dtype"},
    "gradient": {"empty-row"},
    "save": {"dtype"},
}


# ------------------------------------------------------------------ faults
@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_reported_by_its_check(name: str) -> None:
    builder, check, settings = PLANTED[name]
    report = doctor(builder, settings)
    assert check in report.failed and {*report.failed} <= {check, *ALSO.get(check, set())}
    finding = report[check]
    assert finding.cause and finding.advice and (finding.smallest or finding.reason)
    assert finding.difference is None or finding.difference > (finding.tolerance or 0)


def test_there_are_more_than_twenty_faults_of_every_check() -> None:
    assert len(PLANTED) > 20
    assert {check for _, check, _ in PLANTED.values()} == {*CHECKS} - {"tokenizer"}


def test_left_padding_of_gpt2_and_what_helps_are_reported() -> None:
    report = doctor(gpt2)
    assert report.failed == ("padding-left",)
    assert "with them, this check passes" in report["padding-left"].cause
    assert (report["padding-left"].difference or 0) > 0.1


def test_nan_of_empty_rows_of_multihead_attention_is_reported() -> None:
    report = doctor(lambda: nn.MultiheadAttention(16, 2, batch_first=True))
    assert report.failed == ("empty-row",)
    assert report["empty-row"].difference == math.inf and "nn.MultiheadAttention" in report["empty-row"].cause


# ------------------------------------------------------------------ no false alarms
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind in LONG else ()) for kind in MODELS]
)
def test_no_model_of_ours_is_blamed(kind: str) -> None:
    report = doctor(build(config_class(kind).tiny()))
    assert report.failed == (), str(report)
    assert {"determinism", "dropout", "batch", "order", "dtype", "gradient", "save"} <= {*report.passed}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ALIKE else ()) for name in (*FOREIGN, *CORRECT)]
)
def test_no_correct_model_is_blamed(name: str) -> None:
    report = doctor((FOREIGN | CORRECT)[name])
    assert report.failed == (), str(report)
    assert {"determinism", "dropout", "batch", "order", "dtype", "gradient", "save"} <= {*report.passed}


@pytest.mark.parametrize(
    ("kind", "checks"),
    [
        ("transformer", {"padding-left", "padding-right", "empty-row", "causal", "causal-gradient", "cache"}),
        ("gpt", {"padding-left", "padding-right", "empty-row", "causal", "causal-gradient", "cache"}),
        ("bert", {"padding-left", "padding-right", "empty-row", "positions"}),
        pytest.param("captioner", {"causal", "causal-gradient", "cache"}, marks=pytest.mark.slow),
    ],
)
def test_checks_that_a_model_of_ours_has_to_pass_apply(kind: str, checks: set[str]) -> None:
    assert checks <= {*doctor(build(config_class(kind).tiny())).passed}


# ------------------------------------------------------------------ calls
def test_module_is_left_as_it_was() -> None:
    module = Pooled().train()
    module.norm.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state().clone()
    doctor(module)
    assert module.training and not module.norm.training and torch.get_rng_state().equal(state)
    assert all(weight.grad is None for weight in module.parameters())
    assert all(value.equal(before[name]) for name, value in module.state_dict().items())


class Unusual(nn.Module):
    """Another order, names that say nothing, a mapping as output, and an argument that must be given."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.mix = Encoder(), nn.Linear(2, 16)

    def forward(self, other: Tensor, what: Tensor, hide: Tensor) -> dict[str, Any]:
        return {"count": 3, "first": other, "answer": self.net(what, ~hide) + self.mix(other)[:, None]}


def test_call_is_declared() -> None:
    with pytest.raises(heedful.UserError, match="what the argument what takes"):
        doctor(Unusual)
    settings = ["rows=what", "mask=hide", "mask_means=padding", "output=answer", "vocab=31"]
    example = {"other": torch.randn(1, 2)}
    report = doctor(Unusual, settings, example=example)
    assert report.failed == (), str(report)
    assert {"padding-left", "empty-row", "positions"} <= {*report.passed}
    assert "what, hide=padding, other" in report.called[0]
    blamed = doctor(Unusual, [*settings[:2], "mask_means=real", *settings[3:]], example=example)
    assert "the other way round" in blamed["padding-right"].cause


@pytest.mark.parametrize(("causal", "verdict"), [("true", "failed"), ("false", "not applicable")])
def test_causal_is_declared_where_it_cannot_be_measured(causal: str, verdict: str) -> None:
    assert doctor(Encoder, only=["causal"])["causal"].verdict == "not applicable"
    assert doctor(Encoder, [f"causal={causal}"], only=["causal"])["causal"].verdict == verdict


def test_model_in_half_precision_is_checked_in_float32() -> None:
    report = doctor(lambda: Encoder().bfloat16())
    assert report.failed == () and "in float32" in report.model
    half = Encoder().half()
    assert doctor(half, only=["padding-left", "dtype"]).ok and half.out.weight.dtype == torch.float16


def test_predictor_in_place_of_its_model_is_an_error() -> None:
    with pytest.raises(heedful.UserError, match=r"pass its \.model"):
        doctor(3)


def test_cache_in_a_module_of_torch_and_padding_by_lengths() -> None:
    assert "cache" in doctor(lambda: nn.LSTM(8, 8, batch_first=True)).passed
    report = doctor(CORRECT["packed LSTM"])
    assert "padding-right" in report.passed and "rows are padded on the right" in report["padding-left"].reason


def test_without_a_builder_a_copy_is_loaded() -> None:
    torch.manual_seed(0)
    builder = PLANTED["Random buffer that is not saved"][0]
    assert doctor(builder(), only=["save"]).ok
    assert doctor(builder, only=["save"]).failed == ("save",)
    assert doctor(PLANTED["Tied weights untied by loading"][0](), only=["save"]).failed == ("save",)


# ------------------------------------------------------------------ smallest inputs, texts, reports
def test_shrinking_leaves_what_is_needed() -> None:
    rows = [torch.tensor([5, 6, 7, 8]), torch.tensor([9, 3, 4]), torch.tensor([2, 2])]
    least = shrink(rows, lambda some: any(3 in row.tolist() for row in some), ragged=True, sequence=True)
    assert [row.tolist() for row in least] == [[3]]
    two = shrink(rows, lambda some: len(some) > 1, ragged=True, sequence=True)
    assert [len(row) for row in two] == [1, 1]


def test_distance_is_relative_and_infinite_for_nan_or_another_shape() -> None:
    one = torch.tensor([10.0, 0.0])
    assert distance([one + 0.1], [one]).item() == near(0.01)
    assert distance([one * torch.nan], [one]).item() == math.inf
    assert distance([one[:1]], [one]).item() == math.inf
    assert distance([one * 0], [one * 0]).item() == 0


def test_tokenizer_that_loses_a_character_is_reported_with_the_shortest_text() -> None:
    codec = Codec(lambda text: [ord(c) % 1000 for c in text], lambda ids: "".join(chr(one + 7) for one in ids), 900)
    assert trouble(codec, "abc") is not None
    assert len(shortest(codec, "a long text")) == 1
    good = Codec(lambda text: [ord(c) for c in text], lambda ids: "".join(map(chr, ids)), 2**21)
    assert trouble(good, "naïve \ud800") is None
    assert "outside of the vocabulary" in str(trouble(good._replace(vocab=50), "z"))


def test_report_is_readable_and_json() -> None:
    report = heedful.doctor(CountedPadding)
    text = str(report).splitlines()
    assert text[0] == f"CountedPadding: {report.parameters:,} parameters"
    assert "FAILED          padding-left     padding on the left changes nothing" in text
    verdicts = ("passed", "not applicable", "FAILED")
    assert [line.split()[1 + line.startswith("not")] for line in text if line.startswith(verdicts)] == [*CHECKS]
    assert "likely cause:   positions count padding" in str(report)
    whole = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert whole["ok"] is False and [one["check"] for one in whole["checks"]] == [*CHECKS]
    nan = heedful.doctor(PLANTED["NaN on an empty row"][0], only=["empty-row"]).to_dict()
    assert json.loads(json.dumps(nan, allow_nan=False))["checks"][0]["nan"] is True
