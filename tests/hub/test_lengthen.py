"""`heedful convert --context` and `--kind`: longer positions and block-sparse attention from published weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from bert_folders import PIECES, random_bert, save_folder
from torch import Tensor

import heedful
from golden.library import command
from heedful.blocks.layouts import Padded
from heedful.errors import UserError
from heedful.hub import pretrained
from heedful.hub.lengthen import change_kind, lengthen
from heedful.hub.loading import Pretrained
from heedful.models import build, config_class, kinds_of
from hub.test_roberta import TOKENIZER, near, random_roberta
from hub.test_roberta import save_folder as save_roberta
from tolerance import close

SHORT, LONG = 32, 200  # context of the folders, and the new one
STRETCHED = tuple(kind for kind in kinds_of("encoder") if config_class(kind).tiny().first_position is not None)


def vectors(model: Pretrained, ids: Tensor, real: Tensor | None = None) -> Tensor:
    """The vectors of an encoder."""
    encoder: Any = build(model.config).eval()
    encoder.load_state_dict(model.tensors)
    with torch.no_grad():
        found: Tensor = encoder(ids, None, None if real is None else Padded(real))
    return found


def tiny(kind: str, **settings: Any) -> Pretrained:
    """An encoder of this kind with random weights."""
    torch.manual_seed(0)
    config = config_class(kind).tiny().model_copy(update=settings)
    model = build(config)
    return Pretrained(config, None, {name: torch.randn_like(value) for name, value in model.state_dict().items()}, ())


# ------------------------------------------------------------------ positions
def test_kinds_whose_context_grows() -> None:
    assert STRETCHED == ("bert", "roberta", "albert", "distilbert", "xlm_roberta", "bigbird")


@pytest.mark.parametrize("kind", STRETCHED)
def test_short_texts_stay_bit_identical_and_positions_repeat(kind: str) -> None:
    model = tiny(kind)
    before = model.config.context
    longer = lengthen(model, 3 * before + 5, Path("x"))
    ids, real = torch.randint(1, 23, (2, before)), torch.arange(before) < torch.tensor([[before], [5]])
    assert vectors(model, ids, real)[real].equal(vectors(longer, ids, real)[real])
    assert {name for name, value in longer.tensors.items() if value is not model.tensors[name]} == {"positions.table"}
    old, new, first = (model.tensors["positions.table"], longer.tensors["positions.table"], model.config.first_position)
    assert new.shape[0] == longer.config.position_rows == first + 3 * before + 5
    assert new[: len(old)].equal(old)
    assert all(new[first + place].equal(old[first + place % before]) for place in range(longer.config.context))
    vectors(longer, torch.randint(1, 23, (1, longer.config.context)))
    assert longer.notes == (
        f"positions {before} to {3 * before + 4} repeat the first {before}: train it on long texts before use",
    )


@pytest.mark.parametrize("kind", ["BertForPreTraining", "BertForSequenceClassification", "BertForQuestionAnswering"])
def test_transformers_gives_the_same_with_longer_positions(kind: str, tmp_path: Path) -> None:
    theirs = random_bert(kind)
    folder = save_folder(theirs, tmp_path / "theirs")
    ledger = command("convert", folder, tmp_path / "long", "--to", "hf", "--context", LONG, "--ledger").splitlines()
    (changed,) = [line for line in ledger if "as it is, repeated to 200 positions" in line]
    assert "position_embeddings" in changed and "32x24" in changed
    longer = getattr(transformers, kind).from_pretrained(tmp_path / "long").eval()
    ids = torch.randint(5, len(PIECES), (2, SHORT))
    with torch.no_grad():
        assert all(one.equal(other) for one, other in zip(theirs(ids).to_tuple(), longer(ids).to_tuple(), strict=True))
        longer(torch.randint(5, len(PIECES), (1, LONG)))
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "long").model_max_length == LONG
    assert pretrained(tmp_path / "long").config.context == LONG


def test_roberta_keeps_the_rows_before_its_positions(tmp_path: Path) -> None:
    theirs = random_roberta()
    folder = save_roberta(theirs, tmp_path / "theirs")
    command("convert", folder, tmp_path / "ours", "--context", LONG)  # ours, and back
    command("convert", tmp_path / "ours", tmp_path / "back")
    longer = transformers.RobertaModel.from_pretrained(tmp_path / "back").eval()
    assert longer.config.max_position_embeddings == LONG + 2
    ids = torch.randint(5, TOKENIZER.vocab, (2, SHORT))
    with torch.no_grad():
        assert theirs(ids).last_hidden_state.equal(longer(ids).last_hidden_state)
        ids = torch.randint(5, TOKENIZER.vocab, (1, LONG))
        assert near(vectors(pretrained(tmp_path / "ours"), ids), longer(ids).last_hidden_state)
    old, new = (safetensors.torch.load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    name = "embeddings.position_embeddings.weight"
    assert new[name][:34].equal(old[name]) and new[name][34:66].equal(old[name][2:])
    assert {key for key in new if not old[key].equal(new[key])} == {name}


def test_context_that_does_not_grow_is_refused() -> None:
    model = tiny("bert")
    assert lengthen(model, 16, Path("x")) is model
    with pytest.raises(UserError, match="the context can only grow") as caught:
        lengthen(model, 15, Path("folder"))
    assert (caught.value.found, caught.value.expected) == ("15", "at least 16, the context of folder")
    for kind in ("linformer", "xlnet"):
        with pytest.raises(UserError, match="the context of this model cannot be changed"):
            lengthen(tiny(kind), 64, Path("x"))
    with pytest.raises(UserError, match="cannot be changed") as caught:
        lengthen(tiny("gpt"), 64, Path("x"))
    assert caught.value.found == "GPT"


def test_a_limit_on_texts_is_lifted() -> None:
    longer = lengthen(tiny("bert")._replace(longest=8), 64, Path("x"))
    assert longer.longest is None and "texts were limited to 8 tokens" in longer.notes[1]


# ------------------------------------------------------------------ kinds
def test_bert_and_roberta_become_bigbirds_that_transformers_reads(tmp_path: Path) -> None:
    for name, theirs, vocab in (
        ("bert", random_bert("BertForPreTraining"), len(PIECES)),
        ("roberta", random_roberta("RobertaForMaskedLM"), TOKENIZER.vocab),
    ):
        folder = (save_roberta if name == "roberta" else save_folder)(theirs, tmp_path / name)
        bird = tmp_path / f"{name}-bird"
        command("convert", folder, bird, "--to", "hf", "--context", "1024", "--kind", "bigbird")
        loaded = transformers.AutoModelForMaskedLM.from_pretrained(bird).eval()
        assert (loaded.config.model_type, loaded.config.max_position_embeddings) == ("big_bird", 1024)
        ids = torch.randint(5, vocab, (2, SHORT))
        with torch.no_grad():
            one, other = (model(ids).to_tuple()[0] for model in (theirs, loaded))
            close(other, one, slack=64)
            ids = torch.randint(5, vocab, (1, 1024))  # more than 11 blocks: not every pair
            loaded.bert.set_attention_type("block_sparse")
            assert near(vectors(pretrained(bird), ids), loaded.bert(ids).last_hidden_state)
        tokenizers = [transformers.AutoTokenizer.from_pretrained(one) for one in (folder, bird)]
        assert tokenizers[0]("the cat. a dog") == tokenizers[1]("the cat. a dog")
        again = pretrained(bird)
        assert again.tokenizer.ids(["the cat. a dog"]) == pretrained(folder).tokenizer.ids(["the cat. a dog"])


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm_roberta", "distilbert"])
def test_bigbird_has_the_vectors_of_its_source_for_short_texts(kind: str) -> None:
    model = tiny(kind, pooler=kind != "distilbert", activation="gelu")
    bird = change_kind(lengthen(model, 1000, Path("x")), "bigbird", False, Path("x"))
    assert (bird.config.context, bird.config.block, bird.config.random_from) == (1000, 64, "seed")
    ids = torch.randint(1, 23, (2, 16))
    close(vectors(bird, ids), vectors(model, ids))
    assert bird.config.parameters(23) == sum(value.numel() for value in bird.tensors.values())
    long = torch.randint(1, 23, (1, 1000))
    full = vectors(lengthen(model, 1000, Path("x")), long)
    assert not vectors(bird, long).allclose(full, atol=1e-2), "more than 704 tokens do not all see each other"
    same = bird._replace(config=bird.config.model_copy(update={"attention": "original_full"}))
    close(vectors(same, long), full, slack=64)


def test_ledger_and_notes_tell_what_happened(tmp_path: Path) -> None:
    folder = save_roberta(random_roberta(), tmp_path / "theirs")
    words = ("--context", LONG, "--kind", "bigbird", "--json")
    records = [json.loads(line) for line in command("convert", folder, tmp_path / "bird", *words).splitlines()]
    changed = [one for one in records if one["operation"] not in ("as it is", "one of 3 stacked")]
    assert [(one["source"], one["operation"], one["shape"]) for one in changed] == [
        (
            "embeddings.position_embeddings.weight",
            "as it is, repeated to 200 positions, without its first 2 rows",
            [34, 24],
        )
    ]
    encoder: Any = heedful.load(tmp_path / "bird", "cpu")
    assert encoder.model.config.kind == "bigbird" and encoder.model.config.context == LONG
    assert change_kind(tiny("distilbert"), "bigbird", False, Path("x")).notes == (
        "DistilBERT has no segments: those of the new model are zero",
    )


def test_kinds_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = save_folder(random_bert("BertForSequenceClassification"), tmp_path / "tuned")
    for source, kind, message in (
        (pretrained(folder), "bigbird", "a fine-tuned model keeps its kind"),
        (tiny("albert"), "bigbird", "the weights of this ALBERT do not fit a bigbird"),
        (tiny("xlnet"), "bigbird", "do not fit a bigbird"),
        (tiny("bert"), "linformer", "do not fit a linformer"),
        (tiny("bert"), "gpt", "cannot become one of this kind"),
        (tiny("bert"), "bert", "cannot become one of this kind"),
        (tiny("roberta", activation="relu"), "bigbird", "do not fit a bigbird"),
    ):
        with pytest.raises(UserError, match=message):
            change_kind(source, kind, False, tmp_path)
