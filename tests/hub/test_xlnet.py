"""XLNet compared with `transformers`: equal vectors and logits, both streams, memory, and folders that round-trip."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from torch import Tensor

from heedful.blocks.layouts import Padded
from heedful.errors import UserError
from heedful.hub import pretrained, write
from heedful.hub.loading import Pretrained, task_model
from heedful.models import build
from heedful.models.xlnet.config import SIZES

VOCAB = 50
HEADS = (
    "XLNetModel",
    "XLNetLMHeadModel",
    "XLNetForSequenceClassification",
    "XLNetForMultipleChoice",
    "XLNetForTokenClassification",
    "XLNetForQuestionAnsweringSimple",
)


def random_xlnet(kind: str = "XLNetModel", **changes: Any) -> Any:
    """A model of `transformers` with random parameters, biases and norms included."""
    settings: dict[str, Any] = {
        "vocab_size": VOCAB, "d_model": 24, "n_layer": 2, "n_head": 3, "d_inner": 40, "mem_len": 6,
        "num_labels": 2 if "Question" in kind else 3,
    }  # fmt: skip
    model = getattr(transformers, kind)(transformers.XLNetConfig(**{**settings, **changes}))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model.eval()


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def batch(side: str, rows: int = 3, length: int = 9) -> dict[str, Tensor]:
    """Ids and segments, more than two; the first row is padded on one side."""
    ids, segments = torch.randint(5, VOCAB, (rows, length)), torch.randint(0, 4, (rows, length))
    mask = torch.ones_like(ids)
    mask[0, slice(length // 2, None) if side == "right" else slice(length // 2)] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}


def outputs(found: Pretrained, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of our model for a batch, by their names in `transformers`."""
    _, config, tensors, _ = task_model(found)
    model: Any = build(config).eval()
    model.load_state_dict(tensors)
    ids, segments, layout = given["input_ids"], given["token_type_ids"], Padded(given["attention_mask"].bool())
    rows, length = ids.shape
    with torch.no_grad():
        if found.head is None:
            layers = model.layers(ids, segments, layout)
            results = {f"hidden_states.{number}": x for number, x in enumerate(layers)}
            return results | {"logits" if found.config.masked_words else "last_hidden_state": (
                model.lens(layers[-1]) if found.config.masked_words else layers[-1]
            )}  # fmt: skip
        if found.head.kind == "tagger":
            every = torch.arange(rows * length)
            return {"logits": model(ids, segments, layout, every).unflatten(0, (rows, length))}
        if found.head.kind == "answerer":
            begins, sizes = torch.arange(rows) * length, torch.full((rows,), length)
            start, end = model(ids, segments, layout, begins, sizes, length).unbind(-1)
            return {"start_logits": start, "end_logits": end}
        return {"logits": model(ids, segments, layout).reshape(rows, -1)}


def near(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours - theirs).abs().max() <= 1e-5 * theirs.abs().max())


def assert_equal_outputs(model: Any, found: Pretrained, side: str) -> None:
    """The outputs of both models are equal for all tokens but padding."""
    given = batch(side)
    real = given["attention_mask"].bool()
    choices = type(model).__name__.endswith("MultipleChoice")
    with torch.no_grad():
        inputs = {name: value[:, None] for name, value in given.items()} if choices else given
        theirs = dict(model(**inputs, use_mems=False, output_hidden_states=found.head is None))
    for number, value in enumerate(theirs.pop("hidden_states", ())):
        theirs[f"hidden_states.{number}"] = value
    ours = outputs(found, given)
    assert theirs.keys() <= ours.keys()
    for name, value in theirs.items():
        each = value.shape[:2] == real.shape  # one for each token
        if side == "right" and not each:  # `transformers` takes the last position even if it is padding
            assert near(ours[name][1:], value[1:]), name
        else:
            assert near(ours[name][real] if each else ours[name], value[real] if each else value), name


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", HEADS)
def test_each_head_equals_transformers_and_round_trips(kind: str, side: str, tmp_path: Path) -> None:
    model = random_xlnet(kind)
    found = pretrained(saved(model, tmp_path / "theirs"))
    assert_equal_outputs(model, found, side)
    write(tmp_path / "back", found)
    before = safetensors.torch.load_file(tmp_path / "theirs" / "model.safetensors")
    after = safetensors.torch.load_file(tmp_path / "back" / "model.safetensors")
    assert before.keys() - after.keys() <= {"lm_loss.weight"}
    assert all(torch.equal(before[name], value) for name, value in after.items())
    again, report = getattr(transformers, kind).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report.values()) and again.config.architectures == [kind]
    assert_equal_outputs(again.eval(), found, side)


@pytest.mark.parametrize("seed", range(20))
def test_random_configurations_equal_transformers(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    chance = random.Random(seed)
    heads = chance.choice((1, 2, 4))
    model = random_xlnet(
        "XLNetLMHeadModel",
        vocab_size=VOCAB + chance.randrange(9),
        d_model=heads * chance.choice((4, 8, 12)),
        n_head=heads,
        n_layer=chance.randint(1, 4),
        d_inner=chance.randint(5, 70),
        clamp_len=chance.choice((-1, 2, 5)),
        ff_activation=chance.choice(("gelu", "gelu_new", "relu", "silu")),
        layer_norm_eps=chance.choice((1e-5, 1e-12, 1e-3)),
    )
    found = pretrained(saved(model, tmp_path / "theirs"))
    for side in ("left", "right"):
        assert_equal_outputs(model, found, side)


def test_left_to_right_equals_transformers(tmp_path: Path) -> None:
    model = random_xlnet("XLNetLMHeadModel", attn_type="uni")  # with padding, only batches of one run there
    found = pretrained(saved(model, tmp_path / "theirs"))
    assert found.config.direction == "left"
    given = batch("left") | {"attention_mask": torch.ones(3, 9)}
    with torch.no_grad():
        expected = model(given["input_ids"], token_type_ids=given["token_type_ids"]).logits
    assert near(outputs(found, given)["logits"], expected)


@pytest.mark.parametrize("memory", [False, True])
def test_two_streams_equal_transformers(memory: bool, tmp_path: Path) -> None:
    theirs = random_xlnet("XLNetLMHeadModel")
    found = pretrained(saved(theirs, tmp_path / "theirs"))
    ours: Any = build(found.config).eval()
    ours.load_state_dict(found.tensors)
    earlier, ids, segments = (torch.randint(0, most, (3, 9)) for most in (VOCAB, VOCAB, 3))
    ranks = torch.stack([torch.randperm(9) for _ in range(3)])
    places = (ranks >= 5).nonzero()[:, 1].reshape(3, 4)
    target = torch.nn.functional.one_hot(places, 9).float()
    hidden = (ranks[:, :, None] <= ranks[:, None]).float()
    with torch.no_grad():
        first = torch.zeros_like(earlier)
        mems = theirs.transformer(earlier, token_type_ids=first).mems if memory else None
        remembered = ours.start(3, 6, ids.device).append(ours.layers(earlier, first)) if memory else None
        expected = theirs(
            ids,
            perm_mask=hidden,
            target_mapping=target,
            token_type_ids=segments,
            mems=mems,
            output_hidden_states=True,
        )
        content, query = ours.two_streams(ids, ranks, places, segments, None, remembered)
    assert near(ours.lens(query), expected.logits)
    for number, x in enumerate(content):
        assert near(x, expected.hidden_states[2 * number]), number


def test_published_sizes() -> None:
    assert SIZES["xlnet-base"].under_head(pools=False).parameters(32_000) == 116_718_336
    assert SIZES["xlnet-large"].under_head(pools=False).parameters(32_000) == 360_268_800


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("bi_data", True, "bi_data: not supported"),
        ("same_length", True, "same_length: not supported"),
        ("summary_type", "first", "summary_type: not supported"),
        ("summary_use_proj", False, "summary_use_proj: not supported"),
        ("summary_proj_to_labels", True, "summary_proj_to_labels: not supported"),
        ("summary_activation", "relu", "not supported: summary_activation"),
        ("attn_type", "tri", "not supported: attn_type"),
        ("ff_activation", "laplace", "not supported: ff_activation"),
        ("clamp_len", "far", "clamp_len"),
        ("d_head", 7, "d_head"),
        ("n_head", 5, "n_head"),
        ("d_model", 0, "d_model"),
        ("dropout", 2, "dropout"),
        ("architectures", ["XLNetForQuestionAnswering"], "predicted from its start"),
        ("architectures", ["BertModel"], "not supported: architectures"),
        ("auto_map", {"AutoModel": "mine.Model"}, "code of its own"),
    ],
)
def test_unsupported_settings_are_one_clear_error(key: str, value: object, said: str, tmp_path: Path) -> None:
    folder = saved(random_xlnet("XLNetForSequenceClassification"), tmp_path / "theirs")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, key: value}))
    with pytest.raises(UserError, match=said):
        pretrained(folder)
