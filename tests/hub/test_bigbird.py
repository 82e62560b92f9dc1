"""BigBird compared with `transformers`: equal outputs with both kinds of attention and every head, and round trips."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import sentencepiece
import torch
import transformers
from torch import Tensor

from heedful.blocks.layouts import Padded
from heedful.blocks.taps import watch
from heedful.data.tokenizers.sentencepiece import CONTROL, UNKNOWN, Piece, write_model
from heedful.data.tokenizers.unigram import BigBirdTokenizer, BigBirdUnigram
from heedful.errors import UserError
from heedful.hub import pretrained, write
from heedful.hub.loading import task_model
from heedful.models import build
from heedful.models.bigbird import model as bigbird
from heedful.models.bigbird.config import SIZES, BigBirdConfig
from heedful.models.bigbird.weights import config_json
from hub.test_roberta import near

TOKENIZER = BigBirdTokenizer.train(BigBirdUnigram(vocab=80), ["the cat sat on the mat, and the dog ran", "it is 2024"])
HEADS = (
    "ForPreTraining",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForMultipleChoice",
    "ForTokenClassification",
    "ForQuestionAnswering",
)
UNUSED = {"bert.pooler.weight", "bert.pooler.bias"}  # of a classifier, which has another pooler
TIED = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}


def random_model(name: str, **changes: Any) -> Any:
    """A model of `transformers` with random parameters, biases and norms included."""
    given = {
        "vocab_size": TOKENIZER.vocab, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 40, "max_position_embeddings": 96, "block_size": 4, "num_random_blocks": 2,
        "sep_token_id": TOKENIZER.sep, "num_labels": 3 if "Classification" in name else 2, **changes,
    }  # fmt: skip
    model = getattr(transformers, f"BigBird{name}")(transformers.BigBirdConfig(**given))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model.eval()


def save_folder(model: Any, folder: Path) -> Path:
    """Save a model with `transformers`, and the files of our tokenizer beside it."""
    model.save_pretrained(folder)
    for name, text in TOKENIZER.files(96).items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def our_model(folder: Path) -> tuple[Any, Any]:
    found = pretrained(folder)
    _, config, tensors, _ = task_model(found)
    model: Any = build(config).eval()
    model.load_state_dict(tensors)
    return found, model


def batch(rows: int, length: int, real: list[int]) -> dict[str, Tensor]:
    """Ids with segments, padded on the right."""
    ids = torch.randint(7, TOKENIZER.vocab, (rows, length))
    ids[:, 5] = TOKENIZER.sep
    mask = (torch.arange(length) < torch.tensor(real)[:, None]).long()
    segments = (torch.arange(length) > 5).long().repeat(rows, 1)
    return {"input_ids": torch.where(mask == 1, ids, 0), "attention_mask": mask, "token_type_ids": segments}


@torch.no_grad()
def their_vectors(model: Any, given: dict[str, Tensor], kind: str) -> Tensor:
    """The vectors of a model, which keeps full attention once a short text has made it change to that."""
    model.set_attention_type(kind)
    found: Tensor = model(**given).last_hidden_state
    return found


@pytest.mark.parametrize("number", range(20))
def test_both_attentions_equal_transformers(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(number)
    block, count, heads = rng.choice([1, 2, 3, 5, 8, 16]), rng.choice([1, 2, 3]), rng.choice([1, 2, 3])
    kind = ("block_sparse", "original_full")[number % 2]
    limit = (5 + 2 * count) * block
    context = limit + 12 * block
    model = random_model(
        "Model", attention_type=kind, block_size=block, num_random_blocks=count, num_attention_heads=heads,
        max_position_embeddings=context, hidden_act=rng.choice(["gelu", "gelu_new", "relu", "silu"]),
        num_hidden_layers=rng.choice([1, 3]),
    )  # fmt: skip
    found, ours = our_model(save_folder(model, tmp_path / "model"))
    assert (found.config.attention, found.config.block, found.config.random_blocks) == (kind, block, count)
    for length in (limit - block + 1, limit, limit + 1, limit + rng.randrange(2, 9 * block), context):
        # Rows end in the same block, where `transformers` does not depend on padding either.
        shortest = max((length - 1) // block * block + 1, limit + 1 if length > limit else 1)
        given = batch(3, length, [length, rng.randrange(shortest, length + 1), shortest])
        real = given["attention_mask"].bool()
        theirs = their_vectors(model, given, kind)
        with torch.no_grad(), monkeypatch.context() as patch:
            dense = ours(given["input_ids"], given["token_type_ids"], Padded(real))
            patch.setattr(bigbird, "SMALL", 0)  # computed as long texts are
            vectors = ours(given["input_ids"], given["token_type_ids"], Padded(real))
            with watch(ours, "*.weights") as seen:
                watched = ours(given["input_ids"], given["token_type_ids"], Padded(real))
        assert all(near(found[real], theirs[real]) for found in (vectors, dense, watched))
        assert {tuple(x.shape) for x in seen.values()} == {(3, heads, length, length)}


def test_padding_changes_their_vectors_but_not_ours(tmp_path: Path) -> None:
    """The last block is global: of the padded batch in `transformers`, of the text itself here."""
    model = random_model("Model", num_random_blocks=1)
    _, ours = our_model(save_folder(model, tmp_path / "model"))
    given = batch(2, 80, [80, 41])
    alone = {name: x[1:, :41] for name, x in given.items()}
    with torch.no_grad():
        vectors = ours(given["input_ids"], given["token_type_ids"], Padded(given["attention_mask"].bool()))
        assert near(vectors[1:, :41], ours(alone["input_ids"], alone["token_type_ids"]))
    theirs = their_vectors(model, given, "block_sparse")[1:, :41]
    assert not near(theirs, their_vectors(model, alone, "block_sparse"))
    assert near(vectors[1:, :41], their_vectors(model, alone, "block_sparse"))


@pytest.mark.parametrize("length", [20, 71])
@pytest.mark.parametrize("name", ["Model", *HEADS])
def test_each_head_equals_transformers_and_round_trips(name: str, length: int, tmp_path: Path) -> None:
    model = random_model(name)
    folder = save_folder(model, tmp_path / "model")
    found, ours = our_model(folder)
    given = batch(2, length, [length, length])
    ids, segments = given["input_ids"], given["token_type_ids"]
    layout = Padded(given["attention_mask"].bool())
    with torch.no_grad():
        one = {key: x[:, None] for key, x in given.items()} if name == "ForMultipleChoice" else given
        theirs = dict(model(**one))
        if name == "ForTokenClassification":
            pairs = {"logits": ours(ids, segments, layout, torch.arange(2 * length)).unflatten(0, (2, length))}
        elif name == "ForQuestionAnswering":
            # Their scores of the question are lower by a million: it begins with the first token and ends at [SEP].
            start, end = ours(ids, segments, layout, torch.tensor([6, length + 6]), torch.full((2,), length - 6),
                              length - 6).unbind(-1)  # fmt: skip
            pairs = {"start_logits": start, "end_logits": end}
            theirs = {key: theirs[key][:, 6:] for key in pairs}
        elif name.startswith("For") and "ing" not in name[-4:] and name != "ForMaskedLM":
            pairs = {"logits": ours(ids, segments, layout).reshape(2, -1)}
        else:
            x = ours(ids, segments, layout)
            pairs = {"last_hidden_state": x, "pooler_output": ours.pool(x[:, 0])}
            if found.config.masked_words:
                pairs |= {"logits": ours.words(x), "prediction_logits": ours.words(x)}
            if found.config.next_sentence:
                pairs |= {"seq_relationship_logits": ours.follows(x[:, 0])}
    assert theirs and theirs.keys() <= pairs.keys()
    for key, value in theirs.items():
        assert near(pairs[key], value), key

    again = tmp_path / "again"
    write(again, found)
    before, after = (safetensors.torch.load_file(path / "model.safetensors") for path in (folder, again))
    unused = UNUSED if name == "ForSequenceClassification" else set()
    assert after.keys() - TIED == before.keys() - TIED - unused
    assert all(after[key].equal(before[key]) for key in after if key in before)
    read = getattr(transformers, f"BigBird{name}").from_pretrained(again)
    if not unused:
        other = dict(read.eval()(**one))
        assert all(near(other[key], value) for key, value in model(**one).items())
    assert json.loads((again / "config.json").read_text())["architectures"] == [f"BigBird{name}"]


def test_published_size() -> None:
    config = SIZES["bigbird-base"].model_copy(update={"masked_words": False, "next_sentence": False})
    with torch.device("meta"):
        theirs = transformers.BigBirdModel(transformers.BigBirdConfig())
    assert config.parameters(50_358) == sum(x.numel() for x in theirs.parameters()) == 127_468_800


@pytest.mark.parametrize(("settings", "where"), [
    ({"random_from": "seed"}, "model.random_from"),
    ({"window_blocks": 5}, "model.window_blocks"),
    ({"global_tokens": 64, "random_from": "seed", "random_blocks": 0}, "model.global_tokens"),
    ({"pool": "relu"}, "model.pool"),
    ({"last_mlp": True}, "model.last_mlp"),
])  # fmt: skip
def test_settings_that_transformers_has_not_are_refused(settings: dict[str, Any], where: str) -> None:
    config = BigBirdConfig.model_validate({"vocab": 80, "random_from": "first"} | settings)
    with pytest.raises(UserError) as error:
        config_json(config)
    assert error.value.where == where


def test_unknown_attention_is_refused(tmp_path: Path) -> None:
    folder = save_folder(random_model("Model"), tmp_path / "model")
    settings = json.loads((folder / "config.json").read_text())
    for change, where in (({"attention_type": "sparse"}, "attention_type"), ({"use_bias": False}, "use_bias")):
        (folder / "config.json").write_text(json.dumps(settings | change))
        with pytest.raises(UserError) as error:
            pretrained(folder)
        assert str(error.value.where).endswith(where)


def test_vocabulary_without_scores_is_read_as_by_sentencepiece() -> None:
    """As published: pieces of GPT-2 with the score 0, and the unknown token in the middle."""
    texts = ["the cat sat on a mat", "at that hat, the cats chatted", "thesaurus"]
    named = ["<pad>", "</s>", "<s>", "[CLS]", "[SEP]", "[MASK]", "<unk>"]
    pieces = [Piece(name, 0.0, UNKNOWN if name == "<unk>" else CONTROL) for name in named]
    some = "a b c d e h m n o r s t u , ▁ th the at cat ▁t ▁th ▁the ▁c ▁ca ▁cat sat ▁sa tt ed hat ▁m".split()  # noqa: SIM905
    data = write_model([*pieces, *(Piece(one, 0.0) for one in some)], None, 6)
    ours = BigBirdTokenizer.from_model(data, "here")
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    assert ours.unk == 6 and ours.ids(texts) == [theirs.encode(text) for text in texts]
