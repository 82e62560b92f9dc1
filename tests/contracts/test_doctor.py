"""`heedful.doctor`: every planted fault is found by its check, and no correct model is blamed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heedful
from contracts.foreign import FOREIGN, RARE, gpt2
from contracts.planted import CountedPadding, Decoder, Encoder, Pooled
from contracts.planted_habits import CAUSES, CORRECT, PLANTED, ChunkUnmasked
from heedful.contracts.doctor import CHECKS, doctor
from heedful.contracts.shrink import shrink
from heedful.contracts.subject import distance
from heedful.contracts.texts import Codec, shortest, trouble
from heedful.models import MODELS, build, config_class
from tolerance import near

LONG = (
    "seq2seq", "hred", "captioner", "paragraph_captioner", "text_vae", "style_transfer", "rnn_encoder", "linformer",
    "elmo", "resnet", "googlenet", "multi_label", "distilbert", "albert", "roberta", "xlm_roberta", "transformer_xl",
)  # fmt: skip
ALIKE = [
    *(
        f"transformers: {name}"
        for name in ("RobertaModel", "AlbertModel", "ResNetModel", "BertForSequenceClassification")
    ),
    *RARE,
]
GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
# Faults that several checks have to see.
ALSO = {
    "causal": {"causal-gradient", "cache"},
    "batch": {"order", "padding-right", "padding-left", "empty-row"},
    "order": {"batch", "padding-right", "padding-left", "gradient", "empty-row"},
    "padding-right": {"padding-left", "gradient"},
    "empty-row": {"dtype"},
    "gradient": {"empty-row"},
    "save": {"dtype", "device"},
    "determinism": {"gradient"},
}


# ------------------------------------------------------------------ faults
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if number > 39 else ()) for number, name in enumerate(PLANTED)]
)
def test_planted_fault_is_reported_by_its_check(name: str) -> None:
    builder, check, settings = PLANTED[name]
    report = doctor(builder, settings)
    assert check in report.failed and {*report.failed} <= {check, *ALSO.get(check, set())}
    finding = report[check]
    assert finding.cause and finding.advice and (finding.smallest or finding.reason)
    assert finding.difference is None or finding.difference > (finding.tolerance or 0)
    assert CAUSES.get(name, "") in finding.cause


def test_there_are_more_than_twenty_faults_of_every_check() -> None:
    assert len(PLANTED) > 20 and {*CAUSES} <= {*PLANTED}
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


@pytest.mark.slow
@pytest.mark.parametrize("run", sorted(path.name for path in GOLDEN.iterdir()))
def test_no_recorded_run_is_blamed(run: str) -> None:
    report = doctor(GOLDEN / run)
    assert report.failed == (), str(report)


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


class Words(nn.Module):
    """Characters of words (B, T, W) -> a vector for each word."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(29, 8), nn.Linear(8, 3)

    def forward(self, characters: Tensor) -> Tensor:
        batch, words, letters = characters.shape
        return self.out(self.embed(characters.view(batch * words, letters)).mean(1)).view(batch, words, 3)


def test_several_tokens_at_each_position_are_declared() -> None:
    with pytest.raises(heedful.UserError, match=r"not enough values to unpack .* \(test_doctor.py, line \d+\)"):
        doctor(Words)
    report = doctor(Words, ["shape=[12,5]", "vocab=29"])
    assert report.ok and "tokens (B, T, 5) below 29" in report.called[0]


def test_chunks_after_a_cache_are_measured_and_may_be_demanded() -> None:
    assert "several tokens at once" in doctor(ChunkUnmasked, only=["cache"])["cache"].about
    assert (
        doctor(Decoder, ["chunks=true"], only=["cache"])["cache"].about
        == "steps with a cache give the same as all at once"
    )


class OneNumber(Encoder):
    """The mean of a batch."""

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return super().forward(tokens, mask).mean()


def test_what_cannot_be_called_or_compared_is_an_error() -> None:
    with pytest.raises(heedful.UserError, match="one number for the whole batch"):
        doctor(OneNumber)
    with pytest.raises(heedful.UserError, match="names no argument"):
        doctor(type("Any", (Encoder,), {"forward": lambda self, **batch: batch}))
    with pytest.raises(heedful.UserError, match="nothing says what it reads"):
        doctor(nn.Identity())
    with pytest.raises(heedful.UserError, match="no values"):
        doctor(Encoder().to("meta"))
    with pytest.raises(heedful.UserError, match="greater than or equal to 1"):
        doctor(nn.Linear(3, 2), ["shape=[-3]"])


def test_output_is_named_by_its_number() -> None:
    assert doctor(nn.LSTM(8, 8, batch_first=True), ["output=0"], only=["batch"]).ok


class FailsBackwards(torch.autograd.Function):
    """A gradient that is not written yet."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        raise NotImplementedError("no gradient of mine")


class Unfinished(Encoder):
    """Its gradient raises."""

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.out(FailsBackwards.apply(x))


def test_error_of_a_gradient_is_reported_with_its_line() -> None:
    report = doctor(Unfinished)
    assert {"gradient"} <= {*report.failed} <= {"gradient", "empty-row"}
    assert "NotImplementedError: no gradient of mine (test_doctor.py, line" in report["gradient"].reason


def test_what_is_checked_depends_on_the_input_alone() -> None:
    report = doctor(PLANTED["NaN in a weight"][0])
    assert report.failed == ("finite",) and "out.weight" in report["finite"].reason
    assert "see finite" in report["gradient"].reason


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
    excluded = torch.tensor([10.0, -math.inf])
    assert distance([excluded], [excluded]).item() == 0 and distance([one], [excluded]).item() == math.inf


def test_tokenizer_that_loses_a_character_is_reported_with_the_shortest_text() -> None:
    codec = Codec(lambda text: [ord(c) % 1000 for c in text], lambda ids: "".join(chr(one + 7) for one in ids), 900)
    assert trouble(codec, "abc") is not None
    assert len(shortest(codec, "a long text")) == 1
    good = Codec(lambda text: [ord(c) for c in text], lambda ids: "".join(map(chr, ids)), 2**21)
    assert trouble(good, "naïve \ud800") is None
    stripped = Codec(lambda text: [ord(c) for c in text.strip()], lambda ids: "".join(map(chr, ids)) or " ", 2**21)
    assert trouble(stripped, "") is None
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
