"""CTranslate2 folders: the tokens and scores of the model, whatever its settings; or a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.errors import UserError
from heedful.export import ctranslate2 as target
from heedful.export.check import TOLERANCE
from heedful.export.write import export
from heedful.models import build, config_class

ct2 = pytest.importorskip("ctranslate2", reason="needs `pip install 'heedful[ctranslate2]'`")
GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
WRITTEN = "translation-transformer", "language_model-gpt"
RUN_OF = {"transformer": WRITTEN[0], "gpt": WRITTEN[1]}
SETTINGS: tuple[dict[str, Any], ...] = (
    {"norm": "pre", "positions": "sinusoid", "activation": "relu", "output": "biased"},
    {"norm": "post", "positions": "sinusoid_halves", "activation": "swish", "output": "untied"},
    {"norm": "pre", "positions": "learned", "activation": "gelu", "score": "dot"},
    {"norm": "post", "positions": "rotary", "activation": "quick_gelu"},
    {"norm": "pre", "positions": "none", "activation": "tanh"},
    {"norm": "post", "positions": "learned", "activation": "gelu_tanh"},
)
REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("gpt", {"window": 4}, "a window of 4"),
    ("gpt", {"activation": "mish"}, "no activation mish"),
    ("gpt", {"positions": "alibi"}, "positions alibi"),
    ("transformer", {"score": "cosine"}, "no attention score cosine"),
    ("transformer", {"normalize": "sparsemax"}, "not by sparsemax"),
)


def predictor_of(kind: str, **settings: Any) -> Any:
    """A predictor with a random model of these settings, whose ends and special tokens are probable."""
    torch.manual_seed(0)
    predictor: Any = heedful.load(GOLDEN / RUN_OF[kind], "cpu")
    config = config_class(kind).tiny().model_copy(update={"vocab": predictor.tokenizer.vocab + 3, **settings})
    predictor.model = build(config).eval()
    with torch.no_grad():
        for name, weight in predictor.model.named_parameters():
            weight += (0.1 if weight.dim() == 1 else 0.0) * torch.randn_like(weight)
            if name == "tokens.weight":
                weight *= 4
                weight[:4] *= 1.5
    return predictor


@pytest.mark.parametrize("kind", RUN_OF)
@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_every_setting_gives_the_same_tokens_and_scores(kind: str, number: int, tmp_path: Path) -> None:
    (one,) = export(predictor_of(kind, **SETTINGS[number]), tmp_path / "out", "ctranslate2")
    assert one.difference <= TOLERANCE
    about = json.loads((tmp_path / "out" / "export.json").read_text())["files"][0]
    assert about["equal_searches"] == {"greedy": about["searches"], "beams": about["searches"]}


def test_scores_by_depth_of_gpt(tmp_path: Path) -> None:
    (one,) = export(predictor_of("gpt", score="depth_scaled_dot", norm_eps=1e-2), tmp_path / "out", "ctranslate2")
    assert one.difference <= TOLERANCE


@pytest.mark.parametrize(("kind", "settings", "reason"), REFUSED)
def test_setting_without_a_layer_is_refused(kind: str, settings: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not supported") as caught:
        export(predictor_of(kind, **settings), tmp_path / "out", "ctranslate2")
    assert reason in str(caught.value) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir()))
def test_every_run_is_written_or_says_why_not(name: str) -> None:
    predictor = heedful.load(GOLDEN / name, "cpu")
    if name in WRITTEN:
        assert target.writable(predictor).reason(predictor.model.config) is None
        return
    with pytest.raises(UserError, match=r"not supported\n.*Transformers that translate, and GPT"):
        target.writable(predictor)


def test_file_with_another_weight_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = target.save

    def wrong(spec: Any, *rest: Any) -> None:
        spec.decoder.layer[-1].ffn.linear_1.weight[0, 0] += 0.1
        right(spec, *rest)

    monkeypatch.setattr(target, "save", wrong)
    for kind in RUN_OF:
        with pytest.raises(UserError, match="does not compute what the model computes"):
            export(predictor_of(kind), tmp_path / "out", "ctranslate2")
    assert list(tmp_path.iterdir()) == []


def test_searches_with_other_tokens_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "STEPS", 4)
    monkeypatch.setattr(target.Side, "theirs", lambda self, rows, beams: [[5] for _ in rows])
    with pytest.raises(UserError, match="the same tokens in 0 of 6 searches"):
        export(predictor_of("gpt"), tmp_path / "out", "ctranslate2")
    assert list(tmp_path.iterdir()) == []


def test_int8_is_smaller_and_near_and_leaves_the_model_alone(tmp_path: Path) -> None:
    predictor = predictor_of("transformer", width=32, hidden=64)
    before = {name: weight.clone() for name, weight in predictor.model.state_dict().items()}
    (whole,) = export(predictor, tmp_path / "fp32", "ctranslate2")
    (small,) = export(predictor, tmp_path / "int8", "ctranslate2", int8=True)
    assert small.bytes < 0.5 * whole.bytes and TOLERANCE < small.difference < 0.1
    assert all(torch.equal(before[name], weight) for name, weight in predictor.model.state_dict().items())


def test_documented_loops_give_our_texts(tmp_path: Path) -> None:
    page = (GOLDEN.parents[2] / "docs" / "how-to" / "export.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(page.partition("## CTranslate2")[2].partition("```python\n")[2].partition("```")[0], names)
    translator: Any = heedful.load(GOLDEN / WRITTEN[0], "cpu")
    export(translator, tmp_path / "ende", "ctranslate2")
    texts = ["one two", "three", "four five six seven"]
    assert names["translate"](tmp_path / "ende", texts, 6, beam_size=1) == [
        translator.tokenizer.decode(one[0].ids[:6]) for one in translator.search(texts, beams=1)
    ]
    generator: Any = heedful.load(GOLDEN / WRITTEN[1], "cpu")
    export(generator, tmp_path / "gpt", "ctranslate2")
    found = names["generate"](tmp_path / "gpt", "the red", 6)
    assert found == generator.generate(["the red"], temperature=0, length=6, samples=1)[0].completion
