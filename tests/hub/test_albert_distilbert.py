"""ALBERT and DistilBERT compared with `transformers`: equal outputs of every head, and folders that round-trip."""

from __future__ import annotations

import json
import random
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from torch import Tensor

import heedful
from golden.library import command
from heedful.blocks.layouts import Padded
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.errors import UserError
from heedful.hub import pretrained, write
from heedful.hub.loading import Pretrained, task_model
from heedful.models import build
from heedful.models.albert.config import SIZES as ALBERTS
from heedful.models.distilbert.config import SIZES as DISTILBERTS
from hub.test_roberta import near

TOKENIZER = BertTokenizer.train(WordPiece(vocab=60), ["the cat sat on the mat, and the dog ran", "it is 2024"])
HEADS = (
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForMultipleChoice",
    "ForTokenClassification",
    "ForQuestionAnswering",
)
NAMES = [f"{kind}{head}" for kind in ("Albert", "DistilBert") for head in ("Model", *HEADS)] + ["AlbertForPreTraining"]
TIED = ("predictions.decoder.weight", "predictions.decoder.bias", "vocab_projector.weight")
RXNMAPPER = Path(sysconfig.get_paths()["purelib"], "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k")


def settings(name: str, **changes: Any) -> Any:
    """The settings of `transformers` for a small model, by the names of BERT."""
    given = {
        "vocab_size": TOKENIZER.vocab, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3,
        "intermediate_size": 40, "max_position_embeddings": 32,
        "num_labels": 3 if "Classification" in name else 2, **changes,
    }  # fmt: skip
    if name.startswith("Albert"):
        return transformers.AlbertConfig(**{"embedding_size": 10, "num_hidden_groups": 2, **given})
    theirs = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
              "intermediate_size": "hidden_dim", "hidden_act": "activation"}  # fmt: skip
    return transformers.DistilBertConfig(**{theirs.get(key, key): value for key, value in given.items()})


def random_model(name: str, **changes: Any) -> Any:
    """A model of `transformers` with random parameters, biases and norms included."""
    model = getattr(transformers, name)(settings(name, **changes))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model.eval()


def save_folder(model: Any, folder: Path, **options: Any) -> Path:
    """Save a model with `transformers`, and the files of our tokenizer beside it."""
    model.save_pretrained(folder, **options)
    for name, text in TOKENIZER.files(32).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def batch(side: str, segments: bool, rows: int = 3, length: int = 9) -> dict[str, Tensor]:
    """Ids and their segments; the first row is padded on one side."""
    ids = torch.randint(5, TOKENIZER.vocab, (rows, length))
    mask = torch.ones_like(ids)
    mask[0, slice(length // 2, None) if side == "right" else slice(length // 2)] = 0
    found = {"input_ids": torch.where(mask == 1, ids, 0), "attention_mask": mask}
    return found | ({"token_type_ids": (torch.arange(length) > 4).long().repeat(rows, 1)} if segments else {})


class Shifted(Padded):
    """Padding on the left, with positions that count it, as in `transformers`."""

    @property
    def at(self) -> Tensor:
        return torch.arange(self.real.shape[1]).expand(self.real.shape)

    def first(self, x: Tensor) -> Tensor:
        return x[:, 0]


def outputs(found: Pretrained, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of our model for a batch, by their names in `transformers`."""
    _, config, tensors, _ = task_model(found)
    model: Any = build(config).eval()
    model.load_state_dict(tensors)
    ids, layout = given["input_ids"], Shifted(given["attention_mask"].bool())
    segments, (rows, length) = given.get("token_type_ids"), ids.shape
    with torch.no_grad():
        if found.head is None:
            x = model(ids, segments, layout)
            results = {"last_hidden_state": x, "hidden_states": model.layers(ids, segments, layout)}
            results |= {"pooler_output": model.pool(x[:, 0])} if found.config.pooler else {}
            results |= {"sop_logits": model.follows(x[:, 0])} if found.config.pairs else {}
            words = {name: model.words(x) for name in ("logits", "prediction_logits") if found.config.masked_words}
            return results | words
        if found.head.kind == "tagger":
            every = torch.arange(rows * length)
            return {"logits": model(ids, segments, layout, every).unflatten(0, (rows, length))}
        if found.head.kind == "answerer":
            begins, sizes = torch.arange(rows) * length, torch.full((rows,), length)
            start, end = model(ids, segments, layout, begins, sizes, length).unbind(-1)
            return {"start_logits": start, "end_logits": end}
        return {"logits": model(ids, segments, layout).reshape(rows, -1)}


def assert_equal_outputs(model: Any, found: Pretrained, side: str) -> None:
    """The outputs of both models are equal for all tokens but padding."""
    name = type(model).__name__
    given, encoder = batch(side, name.startswith("Albert")), name.endswith(("Model", "MaskedLM"))
    real = given["attention_mask"].bool()
    theirs_of = {key: value[:, None] for key, value in given.items()} if "MultipleChoice" in name else given
    with torch.no_grad():
        theirs = dict(model(**theirs_of, output_hidden_states=encoder))
    ours = outputs(found, given)
    assert theirs.keys() <= ours.keys()
    if encoder:
        pairs = list(zip(ours.pop("hidden_states"), theirs.pop("hidden_states"), strict=True))
        assert all(near(one[real], other[real]) for one, other in pairs)
    for key, value in theirs.items():
        each = value.shape[:2] == real.shape  # one for each token
        assert near(ours[key][real] if each else ours[key], value[real] if each else value), key


@pytest.mark.claim("G7")
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", NAMES)
def test_each_head_equals_transformers_and_round_trips(name: str, side: str, tmp_path: Path) -> None:
    model = random_model(name)
    found = pretrained(save_folder(model, tmp_path / "theirs"))
    assert_equal_outputs(model, found, side)
    write(tmp_path / "back", found)
    before = safetensors.torch.load_file(tmp_path / "theirs" / "model.safetensors")
    after = safetensors.torch.load_file(tmp_path / "back" / "model.safetensors")
    assert before.keys() - after.keys() <= {*TIED}
    assert all(torch.equal(before[key], value) for key, value in after.items())
    again, report = getattr(transformers, name).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report.values()) and again.config.architectures == [name]
    assert_equal_outputs(again.eval(), found, side)


@pytest.mark.claim("G7")
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", ["AlbertForPreTraining", "DistilBertForMaskedLM"])
def test_logits_of_random_configurations_equal_transformers(name: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    heads, layers = rng.choice((1, 2, 4)), rng.randint(1, 5)
    albert = {"embedding_size": rng.randint(1, 40), "num_hidden_groups": rng.randint(1, layers)}
    model = random_model(
        name,
        vocab_size=TOKENIZER.vocab + rng.randrange(9),
        hidden_size=heads * rng.choice((4, 8, 12)),
        num_attention_heads=heads,
        num_hidden_layers=layers,
        intermediate_size=rng.randint(5, 70),
        max_position_embeddings=rng.randint(9, 60),
        hidden_act=rng.choice(("gelu", "gelu_new", "relu", "silu")),
        **(albert | {"layer_norm_eps": rng.choice((1e-5, 1e-12, 1e-3))} if name.startswith("Albert") else {}),
    )
    options = {"max_shard_size": "10KB"} if rng.random() < 0.5 else {}
    found = pretrained(save_folder(model, tmp_path / "theirs", **options))
    assert_equal_outputs(model, found, rng.choice(("left", "right")))


@pytest.mark.parametrize("name", ["AlbertForPreTraining", "DistilBertForMaskedLM"])
def test_pickled_weights_are_read(name: str, tmp_path: Path) -> None:
    model = random_model(name)
    folder = save_folder(model, tmp_path / "theirs")
    before = pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    command("convert", folder, tmp_path / "ours", "--to", "heedful")
    after = pretrained(tmp_path / "ours")
    assert after.config == before.config and after.tensors.keys() == before.tensors.keys()
    assert all(torch.equal(after.tensors[key], value) for key, value in before.tensors.items())


@pytest.mark.claim("G7")
def test_published_sizes() -> None:
    expected = {"albert-base": 11_683_584, "albert-large": 17_683_968, "albert-xlarge": 58_724_864}
    expected |= {"albert-xxlarge": 222_595_584}
    assert {name: config.under_head(True).parameters(30_000) for name, config in ALBERTS.items()} == expected
    small = {name: config.under_head(False).parameters(30_522) for name, config in DISTILBERTS.items()}
    assert small == {"distilbert-base": 66_362_880}
    every = {name: config.under_head(True) for name, config in ALBERTS.items()}
    every |= {name: config.under_head(False) for name, config in DISTILBERTS.items()}
    with torch.device("meta"):
        for name, config in every.items():
            built = build(config)
            assert sum(weight.numel() for weight in built.parameters()) == (expected | small)[name]
            assert sum(value.numel() for value in built.state_dict().values()) == (expected | small)[name]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("AlbertModel", {"inner_group_num": 2}, "inner_group_num"),
        ("AlbertModel", {"num_hidden_groups": 9}, "num_hidden_groups"),
        ("AlbertModel", {"embedding_size": 0}, "embedding_size"),
        ("AlbertModel", {"hidden_act": "laplace"}, "hidden_act"),
        ("AlbertModel", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("DistilBertModel", {"n_heads": 5}, "n_heads"),
        ("DistilBertModel", {"activation": "laplace"}, "activation"),
        ("DistilBertModel", {"pruned_heads": {"0": [1]}}, "pruned_heads"),
    ],
)
def test_unsupported_settings_are_rejected(name: str, change: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = save_folder(random_model(name), tmp_path / "theirs")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UserError, match=words):
        pretrained(folder)


def test_settings_that_hugging_face_cannot_express_are_not_written(tmp_path: Path) -> None:
    config = DISTILBERTS["distilbert-base"].tiny()
    for change in ({"norm_eps": 1e-5}, {"pooler": True}):
        one = config.model_copy(update=change)
        with pytest.raises(UserError, match="cannot express"):
            write(tmp_path / "theirs", Pretrained(one, None, build(one).state_dict(), ()))


@pytest.mark.parametrize("kind", ["Albert", "DistilBert"])
def test_commands_read_the_folders(kind: str, tmp_path: Path) -> None:
    words = save_folder(random_model(f"{kind}ForMaskedLM"), tmp_path / "words")
    assert heedful.load(words, "cpu").fill("the [MASK] sat").predictions
    labels = {0: "no", 1: "yes", 2: "so"}
    classes = save_folder(random_model(f"{kind}ForSequenceClassification", id2label=labels), tmp_path / "classes")
    assert any(label in command("classify", classes, "the cat") for label in labels.values())
    command("convert", classes, tmp_path / "ours", "--to", "heedful")
    command("convert", tmp_path / "ours", tmp_path / "back", "--to", "hf")
    before, after = (safetensors.torch.load_file(each / "model.safetensors") for each in (classes, tmp_path / "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.claim("G7")
@pytest.mark.skipif(not RXNMAPPER.is_dir(), reason="needs the package rxnmapper, see the Makefile")
def test_trained_albert_fills_masks_as_transformers_does(tmp_path: Path) -> None:
    pieces = (RXNMAPPER / "vocab.txt").read_text().split("\n")
    words = ["[CLS]", *"CC(=O)O.OCC", ">>", *"CC(=O)OCC", "[SEP]"]
    ids = torch.tensor([[pieces.index(word) for word in words]])
    model = transformers.AlbertForMaskedLM.from_pretrained(RXNMAPPER).eval()
    command("convert", RXNMAPPER, tmp_path / "ours", "--to", "heedful")
    found = pretrained(tmp_path / "ours")
    ours: Any = build(found.config).eval()
    ours.load_state_dict(found.tensors)
    masked = ids.repeat(len(words) - 2, 1)
    places = torch.arange(1, len(words) - 1)
    masked[torch.arange(len(masked)), places] = pieces.index("[MASK]")
    with torch.no_grad():
        theirs, mine = model(masked).logits, ours.words(ours(masked))
    assert near(mine, theirs)
    predicted = mine[torch.arange(len(masked)), places].argmax(-1)
    assert torch.equal(predicted, theirs[torch.arange(len(masked)), places].argmax(-1))
    assert int((predicted == ids[0, 1:-1]).sum()) >= 14  # of 19: it has learned reactions
    filled = heedful.load(tmp_path / "ours", "cpu", None).fill("C C [MASK] O")
    assert filled.predictions
