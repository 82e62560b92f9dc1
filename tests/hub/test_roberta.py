"""RoBERTa and XLM-R compared with `transformers`: equal logits and tokens, and folders that round-trip."""

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
from heedful.data.tokenizers.base import MaskTokenizer
from heedful.data.tokenizers.roberta import RobertaBpe, RobertaTokenizer
from heedful.data.tokenizers.unigram import XlmRobertaTokenizer, XlmUnigram
from heedful.errors import UserError
from heedful.hub import pretrained, write
from heedful.hub.loading import Pretrained, task_model
from heedful.models import build
from heedful.models.bert.config import SIZES as BERT_SIZES
from heedful.models.roberta.config import SIZES
from heedful.models.xlm_roberta.config import SIZES as XLM_SIZES

TEXTS = ["the cat sat on the mat, and the dog ran", "A dog's tail — naïve café! 日本", "it is 2024; isn't it?\n\nso"]
TOKENIZER = RobertaTokenizer.train(RobertaBpe(vocab=300), TEXTS)
PIECES = XlmRobertaTokenizer.train(XlmUnigram(vocab=120), TEXTS * 3)
HEADS = (
    "RobertaModel",
    "RobertaForMaskedLM",
    "RobertaForSequenceClassification",
    "RobertaForMultipleChoice",
    "RobertaForTokenClassification",
    "RobertaForQuestionAnswering",
)
families = pytest.mark.parametrize("family", ["", "XLM"])


def tokenizer_of(kind: str) -> MaskTokenizer:
    return PIECES if kind.startswith("XLM") else TOKENIZER


def random_roberta(kind: str = "RobertaModel", **changes: Any) -> Any:
    """A model of `transformers` with random parameters, biases and norms included."""
    settings: dict[str, Any] = {
        "vocab_size": tokenizer_of(kind).vocab, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 40, "max_position_embeddings": 34, "type_vocab_size": 1, "pad_token_id": 1,
        "num_labels": 2 if "Question" in kind else 3,
    }  # fmt: skip
    config = transformers.XLMRobertaConfig if kind.startswith("XLM") else transformers.RobertaConfig
    model = getattr(transformers, kind)(config(**{**settings, **changes}))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model.eval()


def save_folder(model: Any, folder: Path) -> Path:
    """Save a model with `transformers`, and the files of our tokenizer beside it."""
    model.save_pretrained(folder)
    for name, text in tokenizer_of(type(model).__name__).files(32).items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def batch(side: str, rows: int = 3, length: int = 9) -> dict[str, Tensor]:
    """Ids; the first row is padded on one side."""
    ids = torch.randint(4, PIECES.vocab, (rows, length))
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


@pytest.mark.claim("G7")
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", [*HEADS, *(f"XLM{kind}" for kind in HEADS)])
def test_each_head_equals_transformers_and_round_trips(kind: str, side: str, tmp_path: Path) -> None:
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
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert (
        read("the cat, naïve café", "so")["input_ids"]
        == found.tokenizer.pair(*found.tokenizer.ids(["the cat, naïve café", "so"]))[0]
    )


@families
@pytest.mark.claim("G7")
@pytest.mark.parametrize("seed", range(20))
def test_logits_of_random_configurations_equal_transformers(family: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    heads = chance.choice((1, 2, 4))
    model = random_roberta(
        kind := f"{family}RobertaForMaskedLM",
        vocab_size=tokenizer_of(kind).vocab + chance.randrange(9),
        hidden_size=heads * chance.choice((4, 8, 12)),
        num_attention_heads=heads,
        num_hidden_layers=chance.randint(1, 4),
        intermediate_size=chance.randint(5, 70),
        max_position_embeddings=chance.randint(11, 60),
        hidden_act=chance.choice(("gelu", "gelu_new", "relu", "silu")),
        layer_norm_eps=chance.choice((1e-5, 1e-12, 1e-3)),
    )
    found = pretrained(save_folder(model, tmp_path / "theirs"))
    for side in ("left", "right"):
        assert_equal_outputs(model, found, side)
    write(tmp_path / "back", found)
    before, after = (safetensors.torch.load_file(tmp_path / one / "model.safetensors") for one in ("theirs", "back"))
    assert all(torch.equal(before[name], value) for name, value in after.items())


@pytest.mark.claim("G7")
def test_published_sizes() -> None:
    encoder, sizes = {"pooler": True, "masked_words": False}, SIZES | XLM_SIZES
    counts = {name: config.model_copy(update=encoder).parameters(config.vocab or 0) for name, config in sizes.items()}
    assert counts == {
        "roberta-base": 124_645_632, "roberta-large": 355_359_744,
        "xlm-roberta-base": 278_043_648, "xlm-roberta-large": 559_890_432,
    }  # fmt: skip
    with torch.device("meta"):
        for name, config in sizes.items():
            built = build(config.model_copy(update=encoder))
            assert sum(weight.numel() for weight in built.parameters()) == counts[name]
            assert built.positions.table.shape[0] == 514


@pytest.mark.claim("G7")
def test_parsbert_is_bert_with_100_000_pieces() -> None:
    bare = {"masked_words": False, "next_sentence": False}
    with torch.device("meta"):
        built = build(BERT_SIZES["parsbert"].model_copy(update=bare))
    assert sum(weight.numel() for weight in built.parameters()) == 162_841_344


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


@families
@pytest.mark.parametrize("left_out", [False, True])
def test_segment_table_with_more_rows_is_read_and_written(family: str, left_out: bool, tmp_path: Path) -> None:
    """As in models with the default of `transformers`, two, of which its tokenizer never uses the second."""
    model = random_roberta(f"{family}RobertaForSequenceClassification", type_vocab_size=2)
    folder = save_folder(model, tmp_path / "theirs")
    settings = json.loads((folder / "config.json").read_text())
    if left_out:
        del settings["type_vocab_size"]
        (folder / "config.json").write_text(json.dumps(settings))
    found = pretrained(folder)
    assert found.config.segments == 2 and found.config.segment_types == 1
    assert_equal_outputs(model, found, "right")
    words = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        right = model(**words("the cat sat", "so it is", return_tensors="pt")).logits.softmax(-1)[0]
    (ours,) = heedful.load(folder, "cpu").classify([("the cat sat", "so it is")])
    assert near(torch.tensor([*ours.probabilities.values()]), right)
    write(tmp_path / "back", found)
    assert json.loads((tmp_path / "back" / "config.json").read_text())["type_vocab_size"] == 2
    before, after = (safetensors.torch.load_file(tmp_path / one / "model.safetensors") for one in ("theirs", "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], value) for name, value in after.items())


@families
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type_vocab_size": 2}, "token_type_embeddings"),
        ({"type_vocab_size": 0}, "type_vocab_size"),
        ({"pad_token_id": 0}, "pad_token_id"),
        ({"is_decoder": True}, "is_decoder"),
        ({"max_position_embeddings": 3}, "max_position_embeddings"),
        ({"hidden_act": "laplace"}, "hidden_act"),
    ],
)
def test_unsupported_settings_are_rejected(family: str, change: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = save_folder(random_roberta(f"{family}RobertaModel"), tmp_path / "theirs")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UserError, match=words):
        pretrained(folder)


@families
def test_commands_read_folders(family: str, tmp_path: Path) -> None:
    words = save_folder(random_roberta(f"{family}RobertaForMaskedLM"), tmp_path / "words")
    assert heedful.load(words, "cpu").fill("the <mask> sat").predictions
    assert "the" in command("fill-mask", words, "the <mask> sat")
    labels = {0: "no", 1: "yes", 2: "so"}
    head = f"{family}RobertaForSequenceClassification"
    classes = save_folder(random_roberta(head, id2label=labels), tmp_path / "classes")
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


def test_full_sentences_cross_documents_with_a_separator_between_them() -> None:
    documents = [
        [f"{'the cat ' * (1 + number % 3)}{number}-{one}." for one in range(1 + number)] for number in range(6)
    ]
    rules = PairRules(unrelated=0.0, pairs=False, full_sentences=True)
    encoded = encode_documents(documents, TOKENIZER, 48, rules)
    flat: list[int] = []  # the reference: every sentence, and a separator after each document
    starts, ends = set[int](), set[int]()
    for document in documents:
        for number, ids in enumerate(TOKENIZER.ids(document), start=1):
            starts.add(len(flat))
            flat += ids
            ends.add(len(flat))
            if number == len(document):
                flat.append(TOKENIZER.sep)
    assert encoded.ids.tolist() == flat
    crossed = 0
    for epoch in range(4):
        built, spans = (
            encoded.build(0, epoch, np.arange(encoded.cells)),
            encoded.spans(0, epoch, np.arange(encoded.cells)),
        )
        for row, (begin, end) in enumerate(zip(*spans.a, strict=True)):
            length = int(built.lengths[row])
            assert built.ids[row, :length].tolist() == [TOKENIZER.cls, *flat[begin:end], TOKENIZER.sep]
            assert begin in starts and end in ends and length <= 48  # full sentences
            following = [one for one in ends if one > end]
            assert not following or min(following) - begin + 2 > 48  # as many as fit
            crossed += TOKENIZER.sep in flat[begin:end]
            assert not built.hidden[row][np.isin(built.ids[row], list(TOKENIZER.special))].any()
    assert crossed > 3
    with pytest.raises(UserError, match="reads pairs"):
        heedful.load_recipe("bert-prose", ["task.full_sentences=true"])


def test_sentence_longer_than_the_context_is_cut_at_random() -> None:
    rules = PairRules(unrelated=0.0, pairs=False, full_sentences=True)
    encoded = encode_documents([["the cat sat on the mat " * 9], ["so"]], TOKENIZER, 16, rules)
    spans = [encoded.spans(0, epoch, np.arange(encoded.cells)) for epoch in range(5)]
    assert {int(length) for one in spans for length in one.lengths} <= {3, 4, 16}
    assert len({int(begin) for one in spans for begin in one.a[0]}) > 5


def test_masking_is_dynamic() -> None:
    """The same text is masked in another way in each epoch, and always in the same way in one epoch."""
    rules = PairRules(unrelated=0.0, pairs=False, full_sentences=True)
    encoded = encode_documents([["the cat sat on the mat, and the dog ran", "so"]], TOKENIZER, 64, rules)
    first = [epoch for epoch in range(40) if encoded.spans(0, epoch, np.arange(1)).a[0][0] == 0]  # the whole text
    built = [encoded.build(0, epoch, np.arange(1)) for epoch in first]
    assert len(first) > 5 and all(np.array_equal(one.ids, built[0].ids) for one in built)
    assert len({one.hidden.tobytes() for one in built}) > len(built) // 2
    assert len({one.shown.tobytes() for one in built}) > len(built) // 2
    again = encoded.build(0, first[1], np.arange(1))
    assert np.array_equal(again.hidden, built[1].hidden) and np.array_equal(again.shown, built[1].shown)
