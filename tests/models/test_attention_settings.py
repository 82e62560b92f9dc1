"""The score and the normalization of attention as settings of every model with attention."""

from __future__ import annotations

from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful.blocks.normalizers import NORMALIZERS
from heedful.errors import UserError
from heedful.models import MODELS, build, config_class
from heedful.models.bert.config import BertConfig
from heedful.models.gpt.config import GptConfig
from heedful.models.roberta.config import RobertaConfig
from heedful.models.seq2seq.config import AttentionConfig, Seq2SeqConfig
from heedful.models.transformer.config import TransformerConfig
from heedful.models.transformer_xl.config import TransformerXLConfig
from heedful.models.xlnet.config import XLNetConfig
from heedful.tasks.base import Evaluated

RELATIVE = (TransformerXLConfig, XLNetConfig)  # their score, with its terms of distances, is what the papers add
ATTENDING = (TransformerConfig, GptConfig, BertConfig, RobertaConfig)
SETTINGS = [{"score": "additive"}, {"score": "general"}, {"score": "cosine"}, {"normalize": "sparsemax"}]


def test_every_attention_model_has_its_settings() -> None:
    for kind in MODELS:
        tiny = config_class(kind).tiny()
        attends = any(name.endswith("attention.weights") for name, _ in build(tiny).named_modules())
        fields: Any = tiny.encoder if hasattr(tiny, "encoder") and kind != "seq2seq" else tiny
        fields = tiny.attention if kind == "seq2seq" else tiny.decoder.attention if kind == "captioner" else fields
        expected = {"normalize"} if isinstance(tiny, RELATIVE) else {"score", "normalize"}
        assert not attends or expected <= set(type(fields).model_fields), kind


@pytest.mark.parametrize("config", [*ATTENDING, *RELATIVE])
def test_defaults_match_earlier_versions(config: Any) -> None:
    old = {
        name: value
        for name, value in config.tiny().model_dump().items()
        if name not in ("score", "normalize", "window", "sink")
    }
    assert config(**old) == config.tiny()
    assert not any("score" in name for name in build(config.tiny()).state_dict())


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("config", ATTENDING)
def test_parameter_count_holds_for_every_score(config: Any, settings: dict[str, str]) -> None:
    changed = config.tiny().model_copy(update=settings)
    assert changed.parameters(23) == sum(weight.numel() for weight in build(changed).parameters())
    assert (changed.parameters(23) > config.tiny().parameters(23)) == (settings.get("score") in ("additive", "general"))


def test_transformers_reject_the_location_score() -> None:
    for config in ATTENDING:
        with pytest.raises(ValueError, match="score"):
            config(score="location")
    assert Seq2SeqConfig(attention=AttentionConfig(score="location")).attention


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        *product([GptConfig, BertConfig, RobertaConfig], SETTINGS),
        *product(RELATIVE, [{"normalize": "sparsemax"}, {"normalize": "entmax15"}]),
    ],
    ids=str,
)
def test_settings_without_a_published_form_are_not_exported(config: Any, settings: dict[str, str]) -> None:
    weights = import_module(config.__module__.replace(".config", ".weights"))
    tiny = config.tiny().model_copy(update={"hidden": 64})
    assert weights.config_json(tiny)["model_type"] in weights.MODEL_TYPES
    with pytest.raises(UserError, match="cannot express this setting") as error:
        weights.config_json(tiny.model_copy(update=settings))
    assert error.value.where == f"model.{next(iter(settings))}"


def test_packed_batches_need_attention_with_a_kernel() -> None:
    for config in (TransformerConfig, BertConfig, RobertaConfig):
        assert config.tiny().packs
        assert not any(config.tiny().model_copy(update=settings).packs for settings in SETTINGS)
    head = config_class("classifier").tiny()
    assert head.packs
    sparse = head.encoder.model_copy(update={"normalize": "sparsemax"})
    assert not head.model_copy(update={"encoder": sparse}).packs


@pytest.mark.slow
@pytest.mark.parametrize("normalize", NORMALIZERS)
def test_number_words_are_learned_with_every_normalization(normalize: str, tmp_path: Path) -> None:
    recipe = heedful.load_recipe("numbers", [f"model.normalize={normalize}", "train.device=cpu"])
    events = list(heedful.train(recipe, tmp_path / "run"))
    (tested,) = (event for event in events if isinstance(event, Evaluated) and event.split == "test")
    assert {score.name: score.value for score in tested.scores}["exact_match"] >= 99
