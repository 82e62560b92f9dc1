"""Ordinary variants of published models: activations, float64, outputs of their own, scores, and left-out settings."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from bert_folders import batch, change, random_bert, save_folder
from gpt_folders import gpt_folder, random_gpt
from test_convert import convert

import heedful
from heedful.blocks.embedding import EMBEDDINGS
from heedful.blocks.feedforward import ACTIVATIONS as FUNCTIONS
from heedful.blocks.losses import cross_entropy
from heedful.errors import UserError
from heedful.hub import Pretrained, pretrained, write
from heedful.hub.folder import exchanges
from heedful.hub.image_folders import image_exchanges
from heedful.models import build
from heedful.models.exchange import ACTIVATION_NAMES, ACTIVATIONS, ENCODER_DEFAULTS
from heedful.models.gpt.config import GptConfig
from tolerance import close

RELATIVE = 1e-5  # of the largest value


def built(found: Pretrained) -> Any:
    model = build(found.config)
    model.load_state_dict(found.tensors)
    return model.eval()


def agree(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=RELATIVE * float(theirs.abs().max()))


def same_tensors(folder: Path, other: Path, *absent: str) -> None:
    """The same tensors, bit for bit, but for those that are tied in one folder and left out of the other."""
    before, after = (safetensors.torch.load_file(one / "model.safetensors") for one in (folder, other))
    assert before.keys() - after.keys() <= set(absent) and after.keys() <= before.keys()
    assert all(torch.equal(before[name], value) for name, value in after.items())


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_the_functions_of_transformers(name: str) -> None:
    x = torch.linspace(-8, 8, 1001)
    theirs = transformers.activations.ACT2FN[name](x)
    torch.testing.assert_close(FUNCTIONS[ACTIVATIONS[name]](x), theirs, rtol=0, atol=1e-6 * 8)
    assert ACTIVATIONS[ACTIVATION_NAMES[ACTIVATIONS[name]]] == ACTIVATIONS[name]


def test_activations_of_our_configs_are_all_published_names() -> None:
    assert set(ACTIVATIONS.values()) == set(FUNCTIONS)


def random_gpt_config(rng: random.Random) -> dict[str, Any]:
    heads = rng.randint(1, 4)
    inverse = rng.random() < 0.5
    return {
        "n_head": heads, "n_embd": heads * rng.randint(2, 9), "n_layer": rng.randint(1, 4),
        "n_inner": rng.choice([None, rng.randint(5, 60)]), "n_positions": rng.randint(20, 40),
        "activation_function": rng.choice(list(ACTIVATIONS)), "layer_norm_epsilon": rng.choice([1e-5, 1e-3]),
        "tie_word_embeddings": rng.random() < 0.5, "reorder_and_upcast_attn": rng.random() < 0.5,
        "scale_attn_by_inverse_layer_idx": inverse, "scale_attn_weights": inverse or rng.random() < 0.7,
    }  # fmt: skip


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] if seed > 5 else []) for seed in range(24)]
)
def test_random_gpt_variants_give_the_same_logits_and_round_trip(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    theirs = random_gpt(**random_gpt_config(random.Random(seed)))
    folder = gpt_folder(theirs, tmp_path / "theirs")
    found, ids = pretrained(folder), torch.randint(293, (3, 17))
    ours = built(found)
    with torch.no_grad():
        right = theirs(ids).logits
        agree(ours.tokens.logits(ours.read(ids)), right)
        state, logits = ours.start(3, ids.device), []
        for at in range(17):
            one, state = ours(ids[:, at : at + 1], state)
            logits.append(one)
    agree(torch.cat(logits, 1), right)
    write(tmp_path / "back", found)
    same_tensors(folder, tmp_path / "back", "lm_head.weight")
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "back").eval()
    with torch.no_grad():
        agree(again(ids).logits, right)
    assert pretrained(tmp_path / "back").config == found.config


def test_untied_gpt_through_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    settings = {"tie_word_embeddings": False, "scale_attn_by_inverse_layer_idx": True}
    folder = gpt_folder(random_gpt(**settings), tmp_path / "theirs")
    assert (
        convert(monkeypatch, folder, tmp_path / "ours")
        == convert(monkeypatch, tmp_path / "ours", tmp_path / "back")
        == 0
    )
    same_tensors(folder, tmp_path / "back")
    texts = [
        heedful.load(one, "cpu").generate(["the child"], length=8, temperature=0) for one in (folder, tmp_path / "ours")
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("kind", EMBEDDINGS)
def test_loss_of_each_output_matches_its_logits(kind: str) -> None:
    torch.manual_seed(0)
    tokens, x = EMBEDDINGS[kind](11, 4).double(), torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        for weight in tokens.parameters():
            weight.normal_()
    targets = torch.randint(11, (7,))
    logits = x @ tokens.weight.T + (0 if tokens.bias is None else tokens.bias)
    found, right = tokens.loss(x, targets, smoothing=0.1), cross_entropy(logits, targets, 0.1)
    close(found.total, right.total)
    for mine, its in zip(*(torch.autograd.grad(one.total, [x, tokens.weight]) for one in (found, right)), strict=True):
        close(mine, its)
    close(tokens.logits(x), logits)
    close(tokens(targets), tokens.table[targets] * 2)


@pytest.mark.parametrize("output", ["tied", "biased", "untied"])
def test_parameters_of_each_output_are_counted(output: Any) -> None:
    config = GptConfig.tiny().model_copy(update={"output": output})
    assert sum(weight.numel() for weight in build(config).parameters()) == config.parameters(23)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] if seed > 3 else []) for seed in range(20)]
)
def test_random_bert_activations_in_float64_give_the_same_logits(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    act = list(ACTIVATIONS)[seed % len(ACTIVATIONS)]
    theirs = random_bert("BertForMaskedLM", hidden_act=act)
    wide = random_bert("BertForMaskedLM", hidden_act=act).double()
    wide.load_state_dict(theirs.state_dict())
    found = pretrained(save_folder(wide, tmp_path / "theirs"))
    assert {line.operation for line in found.ledger if line.name} <= {
        "as it is, made float32", "one of 3 stacked, made float32"
    }  # fmt: skip
    model, inputs = built(found), batch()
    with torch.no_grad():
        right = theirs(**inputs).logits[1:]
        x = model(inputs["input_ids"][1:], inputs["token_type_ids"][1:])
        agree(model.words(x.flatten(0, 1)), right.flatten(0, 1))
    write(tmp_path / "back", found)
    assert transformers.BertConfig.from_pretrained(tmp_path / "back").hidden_act in (
        act,
        ACTIVATION_NAMES[ACTIVATIONS[act]],
    )
    again = pretrained(tmp_path / "back")
    assert again.config == found.config and all(
        torch.equal(again.tensors[name], x) for name, x in found.tensors.items()
    )


def test_float64_beyond_float32_is_refused_by_name(tmp_path: Path) -> None:
    folder = save_folder(random_bert().double(), tmp_path / "theirs")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["embeddings.LayerNorm.bias"][0] = 1e300
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"embeddings\.LayerNorm\.bias: values beyond those of float32"):
        pretrained(folder)


def test_settings_that_are_left_out_are_the_defaults_of_transformers(tmp_path: Path) -> None:
    model = random_bert("BertForMaskedLM", num_attention_heads=12, type_vocab_size=2, max_position_embeddings=512)
    folder = save_folder(model, tmp_path / "theirs")
    change(folder, num_attention_heads=None, type_vocab_size=None, max_position_embeddings=None)
    found = pretrained(folder)
    assert "num_attention_heads 12, max_position_embeddings 512, type_vocab_size 2" in found.notes[0]
    with torch.no_grad():
        right = model(**batch()).logits
    assert found.config.heads == 12 and right.isfinite().all()


EXCHANGES = {name: one for one in (*exchanges().values(), *image_exchanges().values()) for name in one.MODEL_TYPES}


@pytest.mark.parametrize("model_type", EXCHANGES)
def test_defaults_are_those_of_transformers(model_type: str) -> None:
    if model_type not in transformers.CONFIG_MAPPING:
        assert model_type == "transfo-xl"  # which version 5 does not have; `test_transformer_xl` has those of version 4
        return
    theirs, exchange = transformers.CONFIG_MAPPING[model_type](), EXCHANGES[model_type]
    defaults = vars(exchange).get("DEFAULTS", ENCODER_DEFAULTS)
    defaults = defaults.get(model_type, defaults)
    given = json.loads(theirs.to_json_string(use_diff=False))
    assert defaults == {key: given[key] for key in defaults}
    published = exchange.read_config({"model_type": model_type}, Path("config.json"))
    assert published.config == exchange.read_config(given, Path("config.json")).config
    assert all(f"{key} {value}" in published.notes[0] for key, value in defaults.items())
