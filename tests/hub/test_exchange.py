"""BERT folders of `transformers`, read and written: equal bits, equal outputs, and every tensor accounted for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from bert_folders import HEADS, PIECES, batch, change, random_bert, save_folder
from torch import Tensor

import heedful
from heedful.blocks.layouts import Padded
from heedful.errors import UserError
from heedful.hub import pretrained, write
from heedful.hub.folder import read_config
from heedful.hub.loading import Pretrained, task_model
from heedful.hub.rules import format_ledger, tensor_sha256
from heedful.models import build

CLOSE = 1e-5


def same(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours - theirs).abs().max() <= CLOSE)


def outputs(found: Pretrained, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of our model for a batch, by the names in `transformers`."""
    _, config, tensors, _ = task_model(found)
    model = build(config).eval()
    model.load_state_dict(tensors)
    layout = Padded(given["attention_mask"].bool())
    ids, segments = given["input_ids"], given["token_type_ids"]
    rows, length = ids.shape
    with torch.no_grad():
        if found.head is None:
            x = model(ids, segments, layout)
            results = {"last_hidden_state": x}
            results |= {"pooler_output": model.pool(x[:, 0])} if found.config.pooler else {}
            results |= {"prediction_logits": model.words(x)} if found.config.masked_words else {}
            results |= {"seq_relationship_logits": model.follows(x[:, 0])} if found.config.next_sentence else {}
            return results
        if found.head.kind == "tagger":
            every = torch.arange(rows * length)
            return {"logits": model(ids, segments, layout, every).unflatten(0, (rows, length))}
        if found.head.kind == "answerer":
            begins, sizes = torch.arange(rows) * length, torch.full((rows,), length)
            start, end = model(ids, segments, layout, begins, sizes, length).unbind(-1)
            return {"start_logits": start, "end_logits": end}
        return {"logits": model(ids, segments, layout).reshape(rows, -1)}


# What `transformers` calls "logits" where we tell it by another name.
OTHERS = {"BertForMaskedLM": "prediction_logits", "BertForNextSentencePrediction": "seq_relationship_logits"}


@pytest.mark.parametrize("kind", HEADS)
def test_each_head_computes_the_same_and_round_trips_bit_for_bit(kind: str, tmp_path: Path) -> None:
    model, given = random_bert(kind), batch()
    found = pretrained(save_folder(model, tmp_path / "theirs"))
    with torch.no_grad():
        theirs = dict(model(**given))
    if "logits" in theirs and kind in OTHERS:
        theirs[OTHERS[kind]] = theirs.pop("logits")
    ours, real = outputs(found, given), given["attention_mask"].bool()
    assert theirs.keys() - {"hidden_states"} <= ours.keys()
    for name, value in theirs.items():
        alone = value.dim() == 2 and name not in ("start_logits", "end_logits")  # one for each row
        assert same(ours[name] if alone else ours[name][real], value if alone else value[real]), name

    ledger = write(tmp_path / "back", found)
    before = safetensors.torch.load_file(tmp_path / "theirs" / "model.safetensors")
    after = safetensors.torch.load_file(tmp_path / "back" / "model.safetensors")
    assert {name: tensor_sha256(value) for name, value in after.items()} == {
        name: tensor_sha256(value) for name, value in before.items() if not name.startswith("cls.predictions.decoder.")
    }
    assert {line.source: line.sha256 for line in ledger} == {
        name: tensor_sha256(value) for name, value in after.items()
    }
    again, report = getattr(transformers, kind).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report.values())
    with torch.no_grad():
        assert all(
            torch.equal(value, dict(again.eval()(**given))[name]) for name, value in dict(model(**given)).items()
        )
    assert again.config.architectures == [kind]


@pytest.mark.parametrize("kind", HEADS)
def test_written_folders_read_back_equal(kind: str, tmp_path: Path) -> None:
    found = pretrained(save_folder(random_bert(kind, id2label={0: "no", 1: "perhaps", 2: "ja?"}), tmp_path / "theirs"))
    write(tmp_path / "back", found)
    with safetensors.safe_open(tmp_path / "back" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    again = pretrained(tmp_path / "back")
    assert again.config == found.config
    assert again.tokenizer is not None and found.tokenizer is not None
    assert again.tokenizer.json == found.tokenizer.json
    assert all(torch.equal(again.tensors[name], value) for name, value in found.tensors.items())
    assert (again.head is None) == (found.head is None)
    if found.head is not None and again.head is not None:
        assert found.head.labels == again.head.labels == (() if "Question" in kind else ("no", "perhaps", "ja?"))
        assert torch.equal(found.head.tensors["weight"], again.head.tensors["weight"])


def test_head_with_one_output_is_a_regressor(tmp_path: Path) -> None:
    model, given = random_bert("BertForSequenceClassification", num_labels=1), batch()
    found = pretrained(save_folder(model, tmp_path / "theirs"))
    assert found.head is not None
    assert (found.head.kind, found.head.labels) == ("regressor", ())
    with torch.no_grad():
        assert same(outputs(found, given)["logits"], model(**given).logits)
    write(tmp_path / "back", found)
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "back")
    assert (again.config.num_labels, again.config.problem_type) == (1, "regression")


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
def test_each_activation_is_the_same_function(act: str, tmp_path: Path) -> None:
    model, given = random_bert(hidden_act=act, layer_norm_eps=1e-3), batch()
    found = pretrained(save_folder(model, tmp_path / "theirs"))
    with torch.no_grad():
        theirs = model(**given).last_hidden_state
    real = given["attention_mask"].bool()
    assert same(outputs(found, given)["last_hidden_state"][real], theirs[real])
    write(tmp_path / "back", found)
    again = transformers.BertModel.from_pretrained(tmp_path / "back")
    with torch.no_grad():
        assert same(again(**given).last_hidden_state[real], theirs[real])


def test_encoder_without_a_pooler_round_trips(tmp_path: Path) -> None:
    model = transformers.BertModel(random_bert().config, add_pooling_layer=False)
    found = pretrained(save_folder(model, tmp_path / "theirs"))
    assert not found.config.pooler
    write(tmp_path / "back", found)
    assert not any("pooler" in name for name in safetensors.torch.load_file(tmp_path / "back" / "model.safetensors"))


def test_encoder_is_the_same_under_any_head(tmp_path: Path) -> None:
    model = random_bert("BertForPreTraining")
    save_folder(model, tmp_path / "whole")
    save_folder(model.bert, tmp_path / "encoder")
    one, other = pretrained(tmp_path / "whole"), pretrained(tmp_path / "encoder")
    assert other.tensors.keys() < one.tensors.keys()
    assert all(torch.equal(one.tensors[name], value) for name, value in other.tensors.items())


def replace_tensors(folder: Path, change: Any) -> None:
    """Replace the tensors of a folder."""
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    safetensors.torch.save_file({name: value.contiguous() for name, value in change(tensors).items()}, file)


def test_old_norm_names_and_unused_tensors_are_accepted(tmp_path: Path) -> None:
    folder = save_folder(random_bert("BertForPreTraining"), tmp_path / "old")
    before = pretrained(folder).tensors
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def rename_norms(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        for new, name in old.items():
            tensors = {key.replace(new, name): value for key, value in tensors.items()}
        words = tensors["bert.embeddings.word_embeddings.weight"].clone()
        places = torch.arange(32)[None]
        return tensors | {"bert.embeddings.position_ids": places, "cls.predictions.decoder.weight": words}

    replace_tensors(folder, rename_norms)
    found = pretrained(folder)
    assert all(torch.equal(found.tensors[name], value) for name, value in before.items())
    fates = {line.source: line for line in found.ledger}
    assert fates["bert.embeddings.position_ids"].name is None
    assert fates["cls.predictions.decoder.weight"].operation.endswith("bert.embeddings.word_embeddings.weight")
    assert fates["bert.encoder.layer.1.output.LayerNorm.gamma"].name == "blocks.1.add2.norm.weight"


def test_ledger_has_a_line_for_each_tensor_with_the_hash_of_its_bytes(tmp_path: Path) -> None:
    folder = save_folder(random_bert(), tmp_path / "theirs")
    tensors, found = safetensors.torch.load_file(folder / "model.safetensors"), pretrained(folder)
    assert {line.source: line.sha256 for line in found.ledger} == {
        name: tensor_sha256(value) for name, value in tensors.items()
    }
    assert {line.name for line in found.ledger} == set(found.tensors)
    [line] = [
        line for line in format_ledger(found.ledger) if line.startswith("encoder.layer.1.attention.self.key.bias\t")
    ]
    assert line.split("\t")[1:4] == ["blocks.1.attention.qkv.bias", "one of 3 stacked", "24"]


def test_sharded_weights_are_read(tmp_path: Path) -> None:
    model = random_bert("BertForMaskedLM")
    whole_one = pretrained(save_folder(model, tmp_path / "one"))
    found = pretrained(save_folder(model, tmp_path / "many", max_shard_size="10KB"))
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    assert found.tensors.keys() == whole_one.tensors.keys()
    assert all(torch.equal(found.tensors[name], value) for name, value in whole_one.tensors.items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    found = pretrained(save_folder(random_bert().to(dtype), tmp_path / "half"))
    assert {value.dtype for value in found.tensors.values()} == {torch.float32}
    assert all("made float32" in line.operation for line in found.ledger)


def left(tensors: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: value for name, value in tensors.items() if name not in names}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: left(t, "pooler.dense.bias"), "bert.pooler.dense.bias: not in the file"),
        (lambda t: left(t, "encoder.layer.0.attention.self.key.weight"), "attention.self.key.weight: not in the file"),
        (lambda t: t | {"strange.weight": torch.ones(2)}, "strange.weight: unexpected"),
        (lambda t: t | {"encoder.layer.2.output.dense.bias": torch.ones(24)}, "layer.2.output.dense.bias: unexpected"),
        (
            lambda t: t | {"pooler.dense.weight": torch.ones(24, 23)},
            r"pooler.dense.weight: \(24, 23\) in the file, \(24, 24\)",
        ),
        (lambda t: t | {"pooler.dense.bias": torch.ones(24, dtype=torch.int64)}, "pooler.dense.bias: int64"),
        (lambda t: t | {"pooler.dense.bias": torch.full((24,), torch.nan)}, "not finite"),
        (lambda t: t | {"embeddings.LayerNorm.gamma": torch.ones(24)}, "twice"),
        (lambda t: {f"x.{name}": value for name, value in t.items()}, "and .* more"),
    ],
)
def test_mismatched_tensors_are_named(change: Any, words: str, tmp_path: Path) -> None:
    folder = save_folder(random_bert(), tmp_path / "theirs")
    replace_tensors(folder, change)
    with pytest.raises(UserError, match=words) as raised:
        pretrained(folder)
    assert str(folder / "model.safetensors") in str(raised.value.where)


def test_untied_output_layer_is_rejected(tmp_path: Path) -> None:
    folder = save_folder(random_bert("BertForMaskedLM"), tmp_path / "theirs")
    replace_tensors(folder, lambda t: t | {"cls.predictions.decoder.weight": torch.randn(len(PIECES), 24)})
    with pytest.raises(UserError, match=r"decoder.weight: not the same as bert.embeddings.word_embeddings.weight"):
        pretrained(folder)


def test_label_count_must_match_unless_labels_are_defaults(tmp_path: Path) -> None:
    folder = save_folder(random_bert("BertForSequenceClassification"), tmp_path / "theirs")
    change(folder, id2label={"0": "LABEL_0", "1": "LABEL_1"})
    head = pretrained(folder).head
    assert head is not None and head.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    change(folder, id2label={"0": "no", "1": "yes"})
    with pytest.raises(UserError, match="2 labels"):
        pretrained(folder)


def test_without_an_architecture_the_tensors_determine_the_head(tmp_path: Path) -> None:
    for kind, expected in (
        ("BertForSequenceClassification", "classifier"),
        ("BertForTokenClassification", "tagger"),
        ("BertForQuestionAnswering", "answerer"),
        ("BertForPreTraining", None),
    ):
        found = pretrained(change(save_folder(random_bert(kind), tmp_path / kind), architectures=None))
        assert (found.head.kind if found.head else None) == expected
        assert found.config.next_sentence == (kind == "BertForPreTraining")


def test_config_is_read_without_weights(tmp_path: Path) -> None:
    folder = save_folder(random_bert("BertForPreTraining"), tmp_path / "theirs")
    (folder / "model.safetensors").unlink()
    config = read_config(folder)
    assert (config.width, config.heads, config.layers, config.hidden, config.context) == (24, 3, 2, 40, 32)
    assert (config.dropout, config.attention_dropout, config.segments, config.vocab) == (0.2, 0.1, 2, len(PIECES))


@pytest.mark.parametrize("accents", [None, True, False])
@pytest.mark.parametrize("lower", [True, False])
def test_tokens_equal_transformers_before_and_after_conversion(
    lower: bool, accents: bool | None, tmp_path: Path
) -> None:
    folder = save_folder(random_bert(), tmp_path / "theirs")
    settings = {"do_lower_case": lower, "strip_accents": accents, "tokenizer_class": "BertTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    found = pretrained(folder)
    assert found.tokenizer is not None
    write(tmp_path / "back", found)
    for place in (folder, tmp_path / "back"):
        theirs = transformers.AutoTokenizer.from_pretrained(place)
        for text in ("Abc, ja! bad cafe", "ÀBC äb é", "日a本 ab", ""):
            assert found.tokenizer.encode(text).ids == theirs(text, add_special_tokens=False)["input_ids"], text
        assert theirs.mask_token_id == found.tokenizer.mask == 4


def test_vocabulary_without_settings_is_lowercase_as_in_transformers(
    tmp_path: Path,
) -> None:
    folder = save_folder(random_bert(), tmp_path / "theirs")
    found = pretrained(folder)
    assert found.tokenizer is not None and found.tokenizer.lowercase and not found.notes
    (folder / "vocab.txt").write_text("\n".join([*PIECES[:-1], "A"]))
    found = pretrained(folder)
    assert found.tokenizer is not None and found.tokenizer.lowercase and "has capital letters" in found.notes[0]
    assert heedful.load(folder, "cpu").notes == found.notes


def test_maximum_length_round_trips(tmp_path: Path) -> None:
    text = "a b c d e f g h i j a b c d"
    for kind in ("BertForSequenceClassification", "BertModel"):
        folder = save_folder(random_bert(kind), tmp_path / kind)
        (folder / "tokenizer_config.json").write_text('{"model_max_length": 9}')
        found = pretrained(folder)
        write(tmp_path / f"{kind}-back", found)
        assert found.longest == pretrained(tmp_path / f"{kind}-back").longest == 9
        predictor = heedful.load(folder, "cpu")
        if kind == "BertModel":
            assert [len(row) for row in predictor.tokenize([text]).rows] == [9]
        else:
            assert predictor.context == 9 and predictor.classify([text])[0].cut == 7


def test_tokenizer_larger_than_the_vocabulary_is_rejected(tmp_path: Path) -> None:
    folder = save_folder(random_bert(), tmp_path / "theirs")
    (folder / "vocab.txt").write_text("\n".join([*PIECES, "z"]))
    with pytest.raises(UserError, match="does not match the model"):
        pretrained(folder)
