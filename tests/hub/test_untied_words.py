"""Heads for masked words whose matrix is not that of the embeddings, compared with `transformers`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from bert_folders import PIECES, change, random_bert, save_folder
from test_convert import convert

import heedful
from heedful.blocks.layouts import Padded
from heedful.errors import UserError
from heedful.hub import Pretrained, pretrained, write
from heedful.hub.folder import read_config
from heedful.models import build

KINDS: dict[str, dict[str, Any]] = {
    "BertForMaskedLM": {},
    "BertForPreTraining": {},
    "RobertaForMaskedLM": {"type_vocab_size": 1, "pad_token_id": 1},
    "XLMRobertaForMaskedLM": {"type_vocab_size": 1, "pad_token_id": 1},
    "AlbertForMaskedLM": {"embedding_size": 12},
    "DistilBertForMaskedLM": {},
    "BigBirdForMaskedLM": {"attention_type": "original_full"},
    "XLNetLMHeadModel": {},
}
BIASES = {"cls.predictions.bias", "predictions.bias"}  # of files of older programs, and not used
BIASES_OF_ROBERTA = {"lm_head.bias"}


def random_model(kind: str, rng: random.Random) -> Any:
    """A model with random sizes and parameters, and a matrix of its own for the logits."""
    heads = rng.randint(1, 4)
    width, layers, hidden = heads * 2 * rng.randint(2, 7), rng.randint(1, 3), rng.randint(5, 60)
    names = {
        "DistilBert": {"dim": width, "n_layers": layers, "n_heads": heads, "hidden_dim": hidden},
        "XLNet": {"d_model": width, "n_layer": layers, "n_head": heads, "d_inner": hidden},
    }
    usual = {
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": hidden,
    }  # fmt: skip
    family = kind.split("For")[0].removesuffix("LMHeadModel")
    more = names.get(family, usual) | ({} if family == "XLNet" else {"max_position_embeddings": 40})
    config = getattr(transformers, f"{family}Config")(
        vocab_size=rng.randint(29, 60), tie_word_embeddings=False, **more, **KINDS[kind]
    )
    model = getattr(transformers, kind)(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model.eval()


def logits(found: Pretrained, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    model: Any = build(found.config)
    model.load_state_dict(found.tensors)
    model.eval()
    with torch.no_grad():
        logits: torch.Tensor = model.words(model(ids, None, Padded(real)).flatten(0, 1))
    return logits.unflatten(0, ids.shape)


@pytest.mark.parametrize("seed", [pytest.param(at, marks=[pytest.mark.slow] if at > 7 else []) for at in range(32)])
def test_untied_logits_are_those_of_transformers_and_folders_round_trip(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    model = random_model(kind, random.Random(seed))
    model.save_pretrained(tmp_path / "theirs")
    found = pretrained(tmp_path / "theirs")
    assert found.config.output == "untied" and found.config == read_config(tmp_path / "theirs")
    assert sum(x.numel() for x in found.tensors.values()) == found.config.parameters(found.config.vocab)
    ids, real = torch.randint(5, 29, (3, 13)), torch.ones(3, 13, dtype=torch.bool)
    if not kind.startswith("XLNet"):
        real[0, 7:] = False
    with torch.no_grad():
        result = model(input_ids=ids, attention_mask=real.long())
        right = (result.prediction_logits if kind == "BertForPreTraining" else result.logits)[real]
    close = {"rtol": 0.0, "atol": 1e-5 * float(right.abs().max())}
    torch.testing.assert_close(logits(found, ids, real)[real], right, **close)
    write(tmp_path / "back", found)
    before, after = (safetensors.torch.load_file(tmp_path / at / "model.safetensors") for at in ("theirs", "back"))
    unused = BIASES | (BIASES_OF_ROBERTA if "oberta" in kind else set())
    assert before.keys() == after.keys() and all(
        before[name].equal(x) for name, x in after.items() if name not in unused
    )
    again, report = getattr(transformers, kind).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report.values())
    again.eval()
    with torch.no_grad():
        result = again(input_ids=ids, attention_mask=real.long())
        torch.testing.assert_close(
            (result.prediction_logits if kind == "BertForPreTraining" else result.logits)[real], right, **close
        )


def test_bias_of_older_files_has_another_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    folder = save_folder(random_bert("BertForMaskedLM", tie_word_embeddings=False), tmp_path / "theirs")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    right = pretrained(folder).tensors["masked_words.bias"]
    tensors["cls.predictions.bias"] = tensors.pop("cls.predictions.decoder.bias")
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert torch.equal(pretrained(folder).tensors["masked_words.bias"], right)


def test_settings_decide_whether_the_output_is_tied(tmp_path: Path) -> None:
    torch.manual_seed(0)
    folder = save_folder(random_bert("BertForMaskedLM", tie_word_embeddings=False), tmp_path / "theirs")
    change(folder, tie_word_embeddings=None)
    with pytest.raises(UserError, match="set tie_word_embeddings to false"):
        pretrained(folder)
    tied = save_folder(random_bert("BertForMaskedLM"), tmp_path / "tied")
    change(tied, tie_word_embeddings=False)
    with pytest.raises(UserError, match=r"weights of the output layer are missing(.|\n)*cls\.predictions\.decoder"):
        pretrained(tied)
    change(tied, tie_word_embeddings="no")
    with pytest.raises(UserError, match="tie_word_embeddings"):
        pretrained(tied)
    encoder = save_folder(random_bert(tie_word_embeddings=False), tmp_path / "encoder")
    assert pretrained(encoder).config.output == "tied"


def test_untied_words_by_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = random_bert("BertForMaskedLM", tie_word_embeddings=False)
    folder = save_folder(model, tmp_path / "theirs")
    assert (
        convert(monkeypatch, folder, tmp_path / "ours")
        == convert(monkeypatch, tmp_path / "ours", tmp_path / "back")
        == 0
    )
    found = [heedful.load(tmp_path / name, "cpu").fill("a [MASK] cab", 3) for name in ("theirs", "ours", "back")]
    assert found[0] == found[1] == found[2]
    ids = torch.tensor([[2, 5, 4, PIECES.index("c"), PIECES.index("##a"), PIECES.index("##b"), 3]])
    with torch.no_grad():
        best = model(ids).logits[0, 2].softmax(-1).topk(3)
    assert [one.word for one in found[0].predictions[0]] == [PIECES[at] for at in best.indices]
    assert [one.probability for one in found[0].predictions[0]] == pytest.approx(best.values.tolist(), rel=1e-4)
