"""Checkpoints as the lectures load them, and the sizes of the published ones.

`hub/checkpoint/` was written by TensorFlow 2.21 with the names of the original program: two blocks of width 8, both
heads, some of what the optimizer remembers. `as_tensorflow_reads.safetensors` is what TensorFlow itself reads of it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from heedful.data.word_vectors import WordVectors
from heedful.hub import pretrained
from heedful.hub.folder import read_config
from heedful.hub.tensorflow import read_checkpoint
from heedful.models.bert.config import SIZES, BertConfig
from heedful.models.bert.model import Bert
from heedful.models.bert.weights import table
from tolerance import close

FOLDER = Path(__file__).parents[1] / "hub" / "checkpoint"


@pytest.mark.claim("M21")
def test_tensors_match_tensorflow() -> None:
    found = read_checkpoint(FOLDER, "bert_model.ckpt")
    expected = safetensors.torch.load_file(FOLDER / "as_tensorflow_reads.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in expected.items())


@pytest.mark.claim("M21")
def test_original_checkpoint_loads_as_a_model() -> None:
    expected = safetensors.torch.load_file(FOLDER / "as_tensorflow_reads.safetensors")
    found = pretrained(FOLDER)
    model = Bert(found.config)
    model.load_state_dict(found.tensors)
    block = "bert/encoder/layer_1"
    assert torch.equal(model.tokens.weight, expected["bert/embeddings/word_embeddings"])
    assert torch.equal(model.blocks[1].mlp.up.weight, expected[f"{block}/intermediate/dense/kernel"].T)
    assert torch.equal(
        model.blocks[1].attention.qkv.weight,
        torch.cat([expected[f"{block}/attention/self/{name}/kernel"].T for name in ("query", "key", "value")]),
    )
    assert model.next_sentence is not None and model.masked_words is not None
    assert torch.equal(model.next_sentence.weight, expected["cls/seq_relationship/output_weights"])
    assert torch.equal(model.masked_words.bias, expected["cls/predictions/output_bias"])
    assert {line.source for line in found.ledger} == expected.keys()
    assert {line.source for line in found.ledger if line.name is None} == {
        "global_step",
        *(f"bert/pooler/dense/{part}/adam_{moment}" for part in ("kernel", "bias") for moment in "mv"),
    }
    assert found.tokenizer is not None and found.tokenizer.lowercase
    assert read_config(FOLDER) == found.config
    assert "tensorflow" not in sys.modules


PROGRAM = """
import heedful
from sklearn.linear_model import LogisticRegression

texts = ["the cat sat", "the cat slept", "the dog ran", "a dog ran home"]
embedder = {embedder}
embedded = embedder.embed(texts)
classifier = LogisticRegression().fit(embedded, ["cat", "cat", "dog", "dog"])
labels = classifier.predict(embedded)
"""


@pytest.mark.claim("M21")
def test_switching_from_word_vectors_to_bert_changes_one_line(tmp_path: Path) -> None:
    """As in the lecture: a new embedder from the checkpoint, with the same data and classifier."""
    words = ["a", "cat", "dog", "home", "ran", "sat", "slept", "the"]
    matrix = np.random.default_rng(0).standard_normal((len(words), 6)).astype(np.float32)
    WordVectors(words, matrix).save(tmp_path / "glove.txt", "glove")
    programs = [
        PROGRAM.format(embedder=f"heedful.load_vectors({str(tmp_path / 'glove.txt')!r})"),
        PROGRAM.format(embedder=f"heedful.load({str(FOLDER)!r})"),
    ]
    changed = [pair for pair in zip(*(program.splitlines() for program in programs), strict=True) if len(set(pair)) > 1]
    assert len(changed) == 1
    found = []
    for program in programs:
        names: dict[str, Any] = {}
        exec(program, names)
        found.append(np.asarray(names["embedded"]))
        assert len(names["labels"]) == 4
    assert [one.shape for one in found] == [(4, 6), (4, 8)]
    rows = [[words.index(word) for word in text.split() if word in words] for text in ("the cat sat", "a dog ran home")]
    close(found[0][[0, 3]], [matrix[row].mean(0) for row in rows])
    assert "tensorflow" not in sys.modules


@pytest.mark.claim("F2")
@pytest.mark.claim("F3")
@pytest.mark.claim("X4")
@pytest.mark.parametrize(
    ("size", "encoder", "whole"),
    [("bert-base", 109_482_240, 110_106_428), ("bert-large", 335_141_888, 336_226_108)],
)
def test_published_sizes_have_the_tensors_of_transformers(size: str, encoder: int, whole: int) -> None:
    config = SIZES[size]
    assert isinstance(config, BertConfig)
    config = config.model_copy(update={"vocab": 30_522})
    with torch.device("meta"):
        ours = {name: value.shape for name, value in Bert(config).state_dict().items()}
        theirs = transformers.BertForPreTraining(
            transformers.BertConfig(
                hidden_size=config.width,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                intermediate_size=config.hidden,
            )
        )
    expected = {name: tuple(value.shape) for name, value in theirs.named_parameters()}
    rules = table(config).rules
    assert {name: rule.shape(ours[rule.ours]) for rule in rules for name in rule.theirs} == expected
    assert sum(shape.numel() for shape in ours.values()) == whole
    heads = ("masked_words.", "next_sentence.")
    assert sum(shape.numel() for name, shape in ours.items() if not name.startswith(heads)) == encoder
