"""GPT and GPT-2 folders of `transformers`, read and written: equal bits and outputs, every tensor accounted for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from bert_folders import change
from gpt_folders import KINDS, TEXT, gpt_folder, pairs, random_gpt, release
from torch import Tensor
from torch.nn.functional import cross_entropy

import heedful
from heedful.blocks.taps import watch
from heedful.errors import UserError
from heedful.hub import write
from heedful.hub.folder import read_config
from heedful.hub.loading import Pretrained, pretrained
from heedful.hub.rules import tensor_sha256
from heedful.models.gpt.config import SIZES, GptConfig
from heedful.models.gpt.model import Gpt

CLOSE = 1e-5


def same(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours - theirs).abs().max() <= CLOSE)


def build_model(found: Pretrained) -> Gpt:
    model = Gpt(found.config).eval()
    model.load_state_dict(found.tensors)
    return model


def ids(rows: int = 3, length: int = 32) -> Tensor:
    return torch.randint(0, 290, (rows, length))


def replace_tensors(folder: Path, change: Any) -> Path:
    """Replace the tensors of a folder."""
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    safetensors.torch.save_file({name: value.contiguous() for name, value in change(tensors).items()}, file)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_layers_and_logits_equal_transformers(kind: str, tmp_path: Path) -> None:
    model, tokens = random_gpt(kind), ids()
    ours = build_model(pretrained(gpt_folder(model, tmp_path / "theirs"), role="causal"))
    with torch.no_grad(), watch(ours, "blocks.*.output") as seen:
        x, results = ours.read(tokens), model(tokens, output_hidden_states=True)
    layers = [seen[f"blocks.{index}.output"] for index in range(2)]
    if kind.startswith("GPT2"):
        layers[-1] = x  # in `transformers`, the last one includes the final norm
    for own, theirs in zip(layers, results.hidden_states[1:], strict=True):
        assert same(own, theirs)
    if "LMHead" in kind:
        logits = ours.tokens.logits(x)
        assert float(results.logits.std()) > 0.5  # so that equality is not trivial
        assert same(logits, results.logits)
        with torch.no_grad():
            loss = model(tokens, labels=tokens).loss
        assert same(cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()), loss)


@pytest.mark.parametrize("kind", KINDS)
def test_gpt_tensors_round_trip_bit_for_bit_with_a_ledger(kind: str, tmp_path: Path) -> None:
    model, tokens = random_gpt(kind), ids(2, 9)
    found = pretrained(gpt_folder(model, tmp_path / "theirs"), role="causal")
    before = safetensors.torch.load_file(tmp_path / "theirs" / "model.safetensors")
    assert {line.source: line.sha256 for line in found.ledger} == {
        name: tensor_sha256(value) for name, value in before.items()
    }
    assert {line.name for line in found.ledger} == set(found.tensors) == set(Gpt(found.config).state_dict())
    ledger = write(tmp_path / "back", found)
    after = safetensors.torch.load_file(tmp_path / "back" / "model.safetensors")
    below = "" if "LMHead" in kind else "transformer."
    assert {below + name: tensor_sha256(value) for name, value in before.items()} == {
        name: tensor_sha256(value) for name, value in after.items()
    }
    assert {line.source: line.sha256 for line in ledger} == {
        name: tensor_sha256(value) for name, value in after.items()
    }
    again, report = getattr(transformers, kind).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report.values())
    with_output = {"GPT2": "GPT2LMHeadModel", "Open": "OpenAIGPTLMHeadModel"}
    assert json.loads((tmp_path / "back" / "config.json").read_text())["architectures"] == [with_output[kind[:4]]]
    with torch.no_grad():
        assert torch.equal(again.eval()(tokens)[0], model(tokens)[0])
    second = pretrained(tmp_path / "back", role="causal")
    assert second.config == found.config == read_config(tmp_path / "back", "causal")
    assert all(torch.equal(second.tensors[name], value) for name, value in found.tensors.items())


def test_exported_models_generate_the_same_tokens(tmp_path: Path) -> None:
    torch.manual_seed(3)
    gpt = Gpt(GptConfig(vocab=290, width=24, heads=3, layers=2, context=32)).eval()
    with torch.no_grad():
        for weight in gpt.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    write(tmp_path / "hf", Pretrained(gpt.config, pairs(), gpt.state_dict(), ()))
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    prompt = pairs().ids(["the child came"])
    assert tokenizer("the child came")["input_ids"] == prompt[0]
    assert theirs.config.eos_token_id == tokenizer.eos_token_id == pairs().end
    written = theirs.generate(torch.tensor(prompt), max_new_tokens=20, do_sample=False, eos_token_id=None)
    tokens = torch.tensor(prompt)
    with torch.no_grad():
        for _ in range(20):
            tokens = torch.cat([tokens, gpt.tokens.logits(gpt.read(tokens))[:, -1:].argmax(-1)], 1)
    assert tokens.tolist() == written.tolist()
    assert len(set(tokens[0].tolist())) > 5


@pytest.mark.parametrize("act", ["gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "silu"])
def test_each_setting_of_gpt2_is_the_same_function(act: str, tmp_path: Path) -> None:
    model = random_gpt(activation_function=act, n_inner=40, layer_norm_epsilon=1e-3, reorder_and_upcast_attn=True)
    found, tokens = pretrained(gpt_folder(model, tmp_path / "theirs"), role="causal"), ids()
    write(tmp_path / "back", found)
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "back").eval()
    with torch.no_grad():
        theirs = model(tokens).logits
        assert same(build_model(found).tokens.logits(build_model(found).read(tokens)), theirs)
        assert same(again(tokens).logits, theirs)


@pytest.mark.parametrize("act", ["gelu", "relu", "silu"])
def test_each_activation_of_gpt_is_the_same_function(act: str, tmp_path: Path) -> None:
    model, tokens = random_gpt("OpenAIGPTModel", afn=act), ids()
    found = pretrained(gpt_folder(model, tmp_path / "theirs"), role="causal")
    with torch.no_grad():
        assert same(build_model(found).read(tokens), model(tokens).last_hidden_state)
    write(tmp_path / "back", found)
    assert pretrained(tmp_path / "back", role="causal").config == found.config


def test_tensor_names_of_the_first_upload_are_accepted(tmp_path: Path) -> None:
    folder = gpt_folder(random_gpt(), tmp_path / "old")
    before = pretrained(folder, role="causal").tensors

    def rename_as_first_upload(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {name.removeprefix("transformer."): value for name, value in tensors.items()}
        found |= {f"h.{index}.attn.bias": torch.ones(1, 1, 32, 32).tril() for index in range(2)}
        found |= {f"h.{index}.attn.masked_bias": torch.tensor(-1e4) for index in range(2)}
        return found | {"lm_head.weight": found["wte.weight"].clone()}

    found = pretrained(replace_tensors(folder, rename_as_first_upload), role="causal")
    assert all(torch.equal(found.tensors[name], value) for name, value in before.items())
    fates = {line.source: line for line in found.ledger}
    assert fates["h.1.attn.bias"].name is fates["h.0.attn.masked_bias"].name is fates["lm_head.weight"].name is None
    assert fates["h.1.attn.c_attn.weight"].operation == "turned"


def test_output_layer_of_its_own_must_be_there_and_be_named(tmp_path: Path) -> None:
    folder = gpt_folder(random_gpt(), tmp_path / "theirs")
    change(folder, tie_word_embeddings=False)
    with pytest.raises(UserError, match="weights of the output layer are missing"):
        pretrained(folder, role="causal")
    change(folder, tie_word_embeddings=True)
    replace_tensors(folder, lambda t: t | {"lm_head.weight": torch.randn(293, 24)})
    with pytest.raises(UserError, match=r"not supported: lm_head.weight of its own"):
        pretrained(folder, role="causal")


def test_sharded_weights_are_read(tmp_path: Path) -> None:
    model = random_gpt()
    one = pretrained(gpt_folder(model, tmp_path / "one"), role="causal")
    many = pretrained(gpt_folder(model, tmp_path / "many", max_shard_size="10KB"), role="causal")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    assert all(torch.equal(many.tensors[name], value) for name, value in one.tensors.items())


def test_tensorflow_release_is_the_same_model(tmp_path: Path) -> None:
    model = random_gpt()
    found = pretrained(release(model, tmp_path / "117M"), role="causal")
    expected = pretrained(gpt_folder(model, tmp_path / "hf"), role="causal")
    assert (
        found.config == expected.config.model_copy(update={"dropout": 0.1}) == read_config(tmp_path / "117M", "causal")
    )
    assert found.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(found.tensors[name], value) for name, value in expected.tensors.items())
    assert found.tokenizer is not None and found.tokenizer.ids([TEXT]) == pairs().ids([TEXT])
    assert [line.source for line in found.ledger if line.name is None] == ["global_step"]
    data = tmp_path / "117M" / "model.ckpt.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(UserError, match="cannot be read"):
        pretrained(tmp_path / "117M", role="causal")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False}, "not supported: attention scores"),
        ({"scale_attn_by_inverse_layer_idx": 1}, "scale_attn_by_inverse_layer_idx"),
        ({"add_cross_attention": True}, "add_cross_attention: not supported"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads: not supported"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "never run"),
        ({"activation_function": "laplace"}, "not supported: activation_function 'laplace'"),
        ({"architectures": ["GPT2ForSequenceClassification"]}, r"score.weight: not in the file"),
        ({"architectures": ["GPT2DoubleHeadsModel"]}, "GPT2LMHeadModel, GPT2Model, GPT2ForSequenceClassification"),
        ({"n_head": 5}, "a divisor of n_embd, 24"),
        ({"n_layer": 0}, "invalid value for n_layer"),
        ({"n_layer": 3}, r"transformer.h.2.*not in the file"),
        ({"n_layer": 1}, r"transformer.h.1.*unexpected"),
        ({"n_positions": 31}, r"\(32, 24\) in the file, \(31, 24\) in the model"),
        ({"n_inner": -1}, "invalid value for n_inner"),
        ({"vocab_size": "many"}, "invalid value for vocab_size"),
        ({"layer_norm_epsilon": 0}, "these settings describe no valid model"),
        ({"n_embd": 60000, "n_head": 1, "n_layer": 900}, "billion parameters"),
        ({"model_type": "gptj"}, "model_type 'gpt2' or 'openai-gpt'"),
        ({"model_type": "gpt_neo"}, "model_type 'gpt2' or 'openai-gpt'"),
        ({"model_type": "openai-gpt"}, "OpenAIGPTLMHeadModel, OpenAIGPTModel"),
    ],
)
def test_unsupported_settings_are_rejected_by_name(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = change(gpt_folder(random_gpt(), tmp_path / "theirs"), **settings)
    with pytest.raises(UserError) as raised:
        pretrained(folder, role="causal")
    assert re.search(words, str(raised.value))
    assert str(folder) in str(raised.value)


def test_other_model_types_name_the_supported_ones(tmp_path: Path) -> None:
    folder = change(gpt_folder(random_gpt(), tmp_path / "theirs"), model_type="gpt_neo")
    with pytest.raises(UserError, match="gpt_neo") as raised:
        pretrained(folder)
    assert all(kind in str(raised.value) for kind in ("'bert'", "'gpt2'", "'openai-gpt'"))


def test_two_dropout_settings_are_merged_with_a_note(tmp_path: Path) -> None:
    folder = gpt_folder(random_gpt(embd_pdrop=0.3), tmp_path / "theirs")
    found = pretrained(folder, role="causal")
    assert found.config.dropout == 0.2 and ["embd_pdrop 0.3" in note for note in found.notes] == [True]


def left(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key: value for key, value in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: left(t, "transformer.ln_f.bias"), "transformer.ln_f.bias: not in the file"),
        (lambda t: t | {"score.weight": torch.ones(2, 24)}, "score.weight: unexpected"),
        (
            lambda t: t | {"transformer.h.0.attn.c_attn.weight": torch.ones(72, 24)},
            r"c_attn.weight: \(72, 24\) in the file, \(24, 72\)",
        ),
        (lambda t: t | {"transformer.ln_f.bias": torch.full((24,), torch.inf)}, "not finite"),
    ],
)
def test_mismatched_tensors_are_named(change: Any, words: str, tmp_path: Path) -> None:
    folder = replace_tensors(gpt_folder(random_gpt(), tmp_path / "theirs"), change)
    with pytest.raises(UserError, match=words):
        pretrained(folder, role="causal")


def test_tokenizer_may_be_smaller_than_the_vocabulary_but_not_larger(tmp_path: Path) -> None:
    folder = gpt_folder(random_gpt(), tmp_path / "theirs")
    tokenizer = pretrained(folder, role="causal").tokenizer
    assert tokenizer is not None and tokenizer.vocab == 290  # of 293 rows
    assert tokenizer.json == pairs().json
    small = gpt_folder(random_gpt(vocab_size=289), tmp_path / "small")
    with pytest.raises(UserError, match="does not match the model"):
        pretrained(small, role="causal")
    (folder / "merges.txt").unlink()
    with pytest.raises(UserError, match="has no merges"):
        pretrained(folder, role="causal")
    (folder / "tokenizer.json").write_text(pairs().json)
    found = pretrained(folder, role="causal").tokenizer
    assert found is not None and found.json == pairs().json
    for name in ("tokenizer.json", "vocab.json"):
        (folder / name).unlink()
    assert pretrained(folder, role="causal").tokenizer is None


def test_gpt1_tokenizer_is_converted(tmp_path: Path) -> None:
    folder = gpt_folder(random_gpt("OpenAIGPTLMHeadModel"), tmp_path / "theirs")
    pieces = ["<unk>", *"abcdefghij", *(f"{letter}</w>" for letter in "abcdefghij"), "ab", "abc</w>"]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\nab c</w>\n")
    found = pretrained(folder, role="causal")
    assert found.tokenizer is None and found.word_ends is not None
    write(tmp_path / "back", found)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    for text in ("abc ab Abc, dad", "jihg"):
        assert theirs(text)["input_ids"] == found.word_ends.ids([text])[0]
    with pytest.raises(UserError, match="GPT-1 cannot generate text"):
        heedful.load(folder)


def test_add_prefix_space_is_rejected(tmp_path: Path) -> None:
    folder = gpt_folder(random_gpt(), tmp_path / "theirs")
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True}))
    with pytest.raises(UserError, match="add_prefix_space"):
        pretrained(folder, role="causal")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"positions": "rotary"}, "rotary"),
        ({"positions": "none"}, "none"),
        ({"norm": "post", "activation": "gelu"}, "gelu"),
        ({"norm": "post", "hidden": 40}, "four times the width"),
    ],
)
def test_settings_without_a_hugging_face_equivalent_are_rejected(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    gpt = Gpt(GptConfig(**{"vocab": 290, "width": 24, "heads": 3, "layers": 1, "context": 8, **settings}))
    with pytest.raises(UserError, match=words):
        write(tmp_path / "hf", Pretrained(gpt.config, pairs(), gpt.state_dict(), ()))
    assert not (tmp_path / "hf").exists()


def test_gpt_config_is_read_without_weights(tmp_path: Path) -> None:
    folder = gpt_folder(random_gpt(n_inner=40), tmp_path / "theirs")
    (folder / "model.safetensors").unlink()
    config = read_config(folder, "causal")
    assert (config.width, config.heads, config.layers, config.inner, config.context) == (24, 3, 2, 40, 32)
    with pytest.raises(UserError, match="no such folder"):
        read_config(tmp_path / "nowhere", "causal")


def test_encoder_beside_a_gpt_is_read_as_an_encoder(tmp_path: Path) -> None:
    from bert_folders import random_bert, save_folder

    folder = save_folder(random_bert(), tmp_path / "bert")
    assert not pretrained(folder).writes
    with pytest.raises(UserError, match="'gpt2' or 'openai-gpt'"):
        read_config(folder, "causal")


@pytest.mark.parametrize("size", ["gpt", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"])
def test_published_sizes_have_the_tensors_of_transformers(size: str, tmp_path: Path) -> None:
    from heedful.models.gpt.weights import config_json, table

    config = SIZES[size]
    (tmp_path / "config.json").write_text(json.dumps(config_json(config, end=5)))
    with torch.device("meta"):
        ours = {name: tuple(value.shape) for name, value in Gpt(config).state_dict().items()}
        theirs = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    shapes = {name: rule.shape(ours[rule.ours]) for rule in table(config).rules for name in rule.theirs}
    assert shapes == {name: tuple(value.shape) for name, value in theirs.named_parameters()}
    assert config.parameters(config.vocab or 0) == sum(value.numel() for value in theirs.parameters())
    assert read_config(tmp_path, "causal") == config
