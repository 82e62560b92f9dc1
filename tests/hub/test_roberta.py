"""RoBERTa compared with `transformers`: equal logits and tokens, and folders that round-trip."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from torch import Tensor

import heedful
from golden.library import command
from heedful.blocks.layouts import Padded
from heedful.data.text.pretraining import PairRules, encode_documents
from heedful.data.tokenizers.roberta import RobertaBpe, RobertaTokenizer
from heedful.errors import UserError
from heedful.hub import pretrained, write
from heedful.hub.loading import Pretrained, task_model
from heedful.models import build
from heedful.models.roberta.config import SIZES

TEXTS = ["the cat sat on the mat, and the dog ran", "A dog's tail — naïve café! 日本", "it is 2024; isn't it?\n\nso"]
TOKENIZER = RobertaTokenizer.train(RobertaBpe(vocab=300), TEXTS)
HEADS = (
    "RobertaModel",
    "RobertaForMaskedLM",
    "RobertaForSequenceClassification",
    "RobertaForMultipleChoice",
    "RobertaForTokenClassification",
    "RobertaForQuestionAnswering",
)


def random_roberta(kind: str = "RobertaModel", **changes: Any) -> Any:
    """A model of `transformers` with random parameters, biases and norms included."""
    settings: dict[str, Any] = {
        "vocab_size": TOKENIZER.vocab, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 40, "max_position_embeddings": 34, "type_vocab_size": 1, "pad_token_id": 1,
        "num_labels": 2 if "Question" in kind else 3,
    }  # fmt: skip
    model = getattr(transformers, kind)(transformers.RobertaConfig(**{**settings, **changes}))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model.eval()


def save_folder(model: Any, folder: Path) -> Path:
    """Save a model with `transformers`, and the files of our tokenizer beside it."""
    model.save_pretrained(folder)
    for name, text in TOKENIZER.files(32).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def batch(side: str, rows: int = 3, length: int = 9) -> dict[str, Tensor]:
    """Ids; the first row is padded on one side."""
    ids = torch.randint(4, TOKENIZER.vocab, (rows, length))
    mask = torch.ones_like(ids)
    mask[0, slice(length // 2, None) if side == "right" else slice(length // 2)] = 0
    return {"input_ids": torch.where(mask == 1, ids, 1), "attention_mask": mask}


def outputs(found: Pretrained, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of our model for a batch, by their names in `transformers`."""
    _, config, tensors, _ = task_model(found)
    model: Any = build(config).eval()
    model.load_state_dict(tensors)
    ids, layout = given["input_ids"], Padded(given["attention_mask"].bool())
    rows, length = ids.shape
    with torch.no_grad():
        if found.head is None:
            x = model(ids, None, layout)
            results = {"last_hidden_state": x}
            results |= {"pooler_output": model.pool(x[:, 0])} if found.config.pooler else {}
            return results | ({"logits": model.words(x)} if found.config.masked_words else {})
        if found.head.kind == "tagger":
            every = torch.arange(rows * length)
            return {"logits": model(ids, None, layout, every).unflatten(0, (rows, length))}
        if found.head.kind == "answerer":
            begins, sizes = torch.arange(rows) * length, torch.full((rows,), length)
            start, end = model(ids, None, layout, begins, sizes, length).unbind(-1)
            return {"start_logits": start, "end_logits": end}
        return {"logits": model(ids, torch.zeros_like(ids), Padded(layout.real)).reshape(rows, -1)}


def near(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours - theirs).abs().max() <= 1e-5 * theirs.abs().max())


def assert_equal_outputs(model: Any, found: Pretrained, side: str) -> None:
    """The outputs of both models are equal for all tokens but padding."""
    given = batch(side)
    real = given["attention_mask"].bool()
    choices = type(model).__name__.endswith("MultipleChoice")
    with torch.no_grad():
        theirs = dict(model(**({name: value[:, None] for name, value in given.items()} if choices else given)))
    ours = outputs(found, given)
    assert theirs.keys() <= ours.keys()
    for name, value in theirs.items():
        each = value.shape[:2] == real.shape  # one for each token
        if side == "left" and not each:  # `transformers` pools the first position even if it is padding
            value, other = value[1:], ours[name][1:]
            assert near(other, value), name
        else:
            assert near(ours[name][real] if each else ours[name], value[real] if each else value), name


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", HEADS)
def test_each_roberta_head_equals_transformers_and_round_trips(kind: str, side: str, tmp_path: Path) -> None:
    model = random_roberta(kind)
    found = pretrained(save_folder(model, tmp_path / "theirs"))
    assert_equal_outputs(model, found, side)
    write(tmp_path / "back", found)
    before = safetensors.torch.load_file(tmp_path / "theirs" / "model.safetensors")
    after = safetensors.torch.load_file(tmp_path / "back" / "model.safetensors")
    assert before.keys() - after.keys() <= {"lm_head.decoder.weight", "lm_head.decoder.bias"}
    assert all(torch.equal(before[name], value) for name, value in after.items())
    again, report = getattr(transformers, kind).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report.values()) and again.config.architectures == [kind]
    assert_equal_outputs(again.eval(), found, side)


@pytest.mark.parametrize("seed", range(20))
def test_logits_of_random_configurations_equal_transformers(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    heads = chance.choice((1, 2, 4))
    model = random_roberta(
        "RobertaForMaskedLM",
        vocab_size=TOKENIZER.vocab + chance.randrange(9),
        hidden_size=heads * chance.choice((4, 8, 12)),
        num_attention_heads=heads,
        num_hidden_layers=chance.randint(1, 4),
        intermediate_size=chance.randint(5, 70),
        max_position_embeddings=chance.randint(11, 60),
        hidden_act=chance.choice(("gelu", "gelu_new", "relu", "silu")),
        layer_norm_eps=chance.choice((1e-5, 1e-12, 1e-3)),
    )
    assert_equal_outputs(model, pretrained(save_folder(model, tmp_path / "theirs")), chance.choice(("left", "right")))


def test_published_sizes() -> None:
    encoder = {"pooler": True, "masked_words": False}
    counts = {name: config.model_copy(update=encoder).parameters(50_265) for name, config in SIZES.items()}
    assert counts == {"roberta-base": 124_645_632, "roberta-large": 355_359_744}
    with torch.device("meta"):
        for name, config in SIZES.items():
            built = build(config.model_copy(update=encoder))
            assert sum(weight.numel() for weight in built.parameters()) == counts[name]
            assert built.positions.table.shape[0] == 514


def test_positions_start_at_two_and_segments_are_ignored() -> None:
    model: Any = build(SIZES["roberta-base"].model_copy(update={"vocab": 50, "width": 12, "layers": 1})).eval()
    ids = torch.randint(4, 50, (2, 7))
    before = model(ids)
    assert torch.equal(before, model(ids, torch.ones_like(ids)))
    with torch.no_grad():
        model.positions.table[:2] = 9.0
        model.positions.table[9:] = 9.0
        assert torch.equal(before, model(ids))
        model.positions.table[2] += 1.0
    assert not torch.equal(before, model(ids))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type_vocab_size": 2}, "type_vocab_size"),
        ({"pad_token_id": 0}, "pad_token_id"),
        ({"is_decoder": True}, "is_decoder"),
        ({"max_position_embeddings": 3}, "max_position_embeddings"),
        ({"hidden_act": "tanh"}, "hidden_act"),
    ],
)
def test_unsupported_roberta_settings_are_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = save_folder(random_roberta(), tmp_path / "theirs")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UserError, match=words):
        pretrained(folder)


def test_commands_read_roberta_folders(tmp_path: Path) -> None:
    words = save_folder(random_roberta("RobertaForMaskedLM"), tmp_path / "words")
    assert heedful.load(words, "cpu").fill("the <mask> sat").predictions
    assert "the" in command("fill-mask", words, "the <mask> sat")
    labels = {0: "no", 1: "yes", 2: "so"}
    classes = save_folder(random_roberta("RobertaForSequenceClassification", id2label=labels), tmp_path / "classes")
    assert any(label in command("classify", classes, "the cat") for label in labels.values())
    command("embed", words, "the cat", "--out", tmp_path / "vectors.npy")
    command("convert", classes, tmp_path / "ours", "--to", "heedful")
    command("convert", tmp_path / "ours", tmp_path / "back", "--to", "hf")
    before, after = (safetensors.torch.load_file(each / "model.safetensors") for each in (classes, tmp_path / "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_examples_are_one_text_between_special_tokens() -> None:
    documents = [[f"{text} {number}." for text in TEXTS] for number in range(4)]
    encoded = encode_documents(documents, TOKENIZER, 24, PairRules(unrelated=0.0, pairs=False))
    for epoch in range(2):
        built = encoded.build(0, epoch, np.arange(encoded.cells))
        for ids, length in zip(built.ids, built.lengths.tolist(), strict=True):
            assert (ids[0], ids[length - 1]) == (TOKENIZER.cls, TOKENIZER.sep)
            assert not TOKENIZER.special & set(ids[1 : length - 1].tolist()) and set(ids[length:].tolist()) <= {1}
        assert not built.segments.any() and not built.unrelated.any() and built.lengths.max() == 24
    with pytest.raises(UserError, match="cannot be trained on pairs"):
        heedful.load_recipe("roberta-prose", ["task.unrelated=0.5"])
