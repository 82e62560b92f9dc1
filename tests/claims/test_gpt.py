"""GPT, GPT-2 and GPT-3 as the lectures give their sizes, and language models without positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from generators import return_value
from heedful.hub.loading import pretrained
from heedful.lectures import nopos
from heedful.models.gpt.config import SIZES
from heedful.models.gpt.model import Gpt


def count_parameters(size: str) -> int:
    """The number of parameters of a published size."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in Gpt(SIZES[size]).parameters())


def logit_difference(model: Any, folder: Path) -> float:
    """The largest difference to the logits of a random model of `transformers`, as a share of the largest logit."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    model.eval().save_pretrained(folder)
    found = pretrained(folder, role="causal")
    assert {line.name for line in found.ledger} >= set(found.tensors)
    ours = Gpt(found.config).eval()
    ours.load_state_dict(found.tensors)
    tokens = torch.randint(0, model.config.vocab_size, (2, 20))
    with torch.no_grad():
        theirs = model(tokens).logits
        assert float(theirs.std()) > 0.3
        return float((ours.tokens.logits(ours.read(tokens)) - theirs).abs().max() / theirs.abs().max())


@pytest.mark.claim("G1")
def test_gpt_size_and_parameter_count() -> None:
    gpt = SIZES["gpt"]
    assert (gpt.layers, gpt.width, gpt.heads, gpt.context, gpt.norm) == (12, 768, 12, 512, "post")
    assert count_parameters("gpt") == gpt.parameters(40_478) == 116_534_784


@pytest.mark.claim("G1")
def test_gpt_is_causal() -> None:
    config = SIZES["gpt"].model_copy(update={"width": 48, "vocab": 97, "context": 24})
    torch.manual_seed(0)
    model = Gpt(config).eval()
    tokens = torch.randint(0, 97, (2, 24))
    with torch.no_grad():
        before = model.tokens.logits(model.read(tokens))
        for at in range(1, 24):
            other = tokens.clone()
            other[:, at:] = (other[:, at:] + 1) % 97
            after = model.tokens.logits(model.read(other))
            assert torch.equal(before[:, :at], after[:, :at])
            assert not torch.equal(before[:, at], after[:, at])


@pytest.mark.claim("G1")
def test_gpt_checkpoint_logits_match_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "n_positions": 24, "n_embd": 48, "n_layer": 12, "n_head": 12}
    model = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**sizes))
    assert logit_difference(model, tmp_path / "gpt") <= 1e-5


@pytest.mark.claim("G2")
def test_gpt2_parameter_counts() -> None:
    counts = {size: count_parameters(size) for size in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")}
    assert list(counts.values()) == [124_439_808, 354_823_168, 774_030_080, 1_557_611_200]
    assert 1.5e9 < counts["gpt2-xl"] < 1.6e9
    assert counts["gpt2-xl"] > 10 * count_parameters("gpt")


@pytest.mark.claim("G2")
def test_gpt2_checkpoint_logits_match_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "n_positions": 24, "n_embd": 48, "n_layer": 12, "n_head": 12}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    assert logit_difference(model, tmp_path / "gpt2") <= 1e-5


@pytest.mark.claim("G3")
def test_gpt3_has_175_billion_parameters() -> None:
    """By its settings alone: 96 blocks of width 12,288 and 96 heads, a context of 2,048."""
    gpt3 = SIZES["gpt3"]
    assert (gpt3.layers, gpt3.width, gpt3.heads, gpt3.context) == (96, 12_288, 96, 2048)
    count = gpt3.parameters(50_257)
    by_hand = (50_257 + 2048) * 12_288 + 96 * (12 * 12_288**2 + 13 * 12_288) + 2 * 12_288
    assert count == by_hand == 174_604_259_328
    assert round(count / 1e9) == 175
    assert count > 10 * 17e9
    assert count > 1000 * count_parameters("gpt")


@pytest.mark.claim("D6")
def test_causal_model_without_positions_learns_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nopos, "SCHEMES", ("learned", "none"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    study = nopos.study(nopos.Settings(width=32, layers=3, context=32, steps=400, lr=6e-3))
    try:
        found = return_value(study)
    finally:
        torch.set_num_threads(threads)
    learned, none, bag = (found.nets[name] for name in ("learned", "none", "bag"))
    assert none.loss < 1.2 * learned.loss  # about 0.46 and 0.41 nats per character
    assert bag.loss > 1.4 * none.loss  # about 0.69: without order, words are not spelled
    assert none.wrong[0] == pytest.approx(found.baseline, rel=0.01)  # character embeddings carry no position
    assert min(none.wrong) < 0.85 * found.baseline  # the layers add it
    assert learned.wrong[0] < 0.25 * found.baseline
