"""sentence-transformers folders: pooling, normalization and maximum length round-trip."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from bert_folders import random_bert, save_folder
from test_convert import convert

import heedful
from heedful.errors import UserError
from heedful.hub import pretrained, write
from heedful.hub.folder import read_config
from heedful.hub.pooling import pool
from heedful.hub.sentence_transformers import FLAGS, MODES, Pooling, SentenceConfig, sentence_files
from tolerance import close


def sentence_config(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("pooling", get_args(Pooling))
@pytest.mark.parametrize("normalize", [True, False])
def test_sentence_settings_round_trip(pooling: Any, normalize: bool, tmp_path: Path) -> None:
    folder = sentence_config(
        save_folder(random_bert(), tmp_path / "theirs"),
        sentence_files(24, SentenceConfig(pooling=pooling, normalize=normalize), 16),
    )
    found = pretrained(folder)
    assert (found.pooling, found.normalize, found.longest) == (pooling, normalize, 16)
    write(tmp_path / "back", found)
    again = pretrained(tmp_path / "back")
    assert (again.pooling, again.normalize, again.longest) == (pooling, normalize, 16)


def by_hand(rows: list[list[float]], how: str) -> list[float]:
    """The pooled vector of a text's token vectors."""
    columns, count = list(zip(*rows, strict=True)), len(rows)
    weights = range(1, count + 1)
    means: dict[str, Any] = {
        "first": lambda column: column[0],
        "mean": lambda column: sum(column) / count,
        "max": max,
        "weighted_mean": lambda column: sum(w * x for w, x in zip(weights, column, strict=True)) / sum(weights),
        "mean_sqrt_length": lambda column: sum(column) / count**0.5,
    }
    return [means[how](column) for column in columns]


@pytest.mark.parametrize("how", get_args(Pooling))
def test_pooling_matches_a_loop_and_padding_changes_nothing(how: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, lengths = torch.randn(4, 7, 5, dtype=torch.float64) - 3, [7, 1, 4, 6]
    real = torch.arange(7) < torch.tensor(lengths)[:, None]
    right = torch.tensor([by_hand(row[:n].tolist(), how) for row, n in zip(x, lengths, strict=True)])
    close(pool(x, real, how), right)
    for row, n, expected in zip(x, lengths, right, strict=True):
        close(pool(row[None, :n], None, how)[0], expected)
    folder = sentence_config(
        save_folder(random_bert(), tmp_path / "theirs"), sentence_files(24, SentenceConfig(pooling=how), 16)
    )
    reader, texts = heedful.load(folder, "cpu"), ["a bad cab", "a", "b c d e f"]
    for vector, tokens in zip(reader.embed(texts), reader.vectors(texts), strict=True):
        close(vector, torch.tensor(by_hand(tokens.values.double().tolist(), how)).float())


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("modes", [*([mode] for mode in MODES), ["cls", "max", "mean"], ["max", "weightedmean"]])
def test_embeddings_are_those_of_sentence_transformers(
    modes: list[str], named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = pytest.importorskip("sentence_transformers").sentence_transformer.modules
    torch.manual_seed(0)
    folder = sentence_config(
        save_folder(random_bert(), tmp_path / "theirs"),
        sentence_files(24, SentenceConfig(pooling="mean", normalize=True), 16),
    )
    flags = {flag: mode in modes for flag, mode in FLAGS.items()}
    settings = {"word_embedding_dimension": 24, **({"pooling_mode": modes} if named else flags)}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    texts, found = ["a bad cab", "a", "b c d e f, a bad cab"], pretrained(folder)
    write(tmp_path / "back", found)
    reader, oracle = heedful.load(folder, "cpu"), modules.Pooling.load(str(folder), subfolder="1_Pooling")
    tokens = [one.values for one in reader.vectors(texts)]
    x = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    real = torch.tensor([[place < len(one) for place in range(x.shape[1])] for one in tokens])
    right = oracle({"token_embeddings": x, "attention_mask": real.long()})["sentence_embedding"]
    right = torch.nn.functional.normalize(right)
    assert reader.width() == right.shape[1] == 24 * len(modes)
    assert convert(monkeypatch, folder, tmp_path / "ours") == 0
    for name in ("theirs", "ours", "back"):
        close(heedful.load(tmp_path / name, "cpu").embed(texts), right)
    again = modules.Pooling.load(str(tmp_path / "back"), subfolder="1_Pooling")
    back = again({"token_embeddings": x, "attention_mask": real.long()})["sentence_embedding"]
    close(torch.nn.functional.normalize(back), right)


def test_lowercase_and_default_prompt_round_trip(tmp_path: Path) -> None:
    settings = SentenceConfig(pooling="mean", lowercase=True, prompt="Cab: ")
    folder = sentence_config(save_folder(random_bert(), tmp_path / "theirs"), sentence_files(24, settings, 16))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    found = pretrained(folder)
    assert (found.lowercase, found.prompt) == (True, "Cab: ") and found.sentences.prompt == settings.prompt
    write(tmp_path / "back", found)
    vectors = []
    for place in (folder, tmp_path / "back"):
        reader = heedful.load(place, "cpu")
        assert reader.tokenize(["A Bad"]).rows == [reader.tokenizer.pair(reader.tokenizer.ids(["cab: a bad"])[0])[0]]
        vectors.append(reader.embed(["A Bad"]))
    assert torch.equal(*vectors)
    assert not torch.equal(vectors[0], replace(reader, prompt="").embed(["A Bad"]))
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({**pooling, "include_prompt": False}))
    with pytest.raises(UserError, match="include_prompt"):
        pretrained(folder)


def test_encoder_without_sentence_settings_has_no_pooling(tmp_path: Path) -> None:
    found = pretrained(save_folder(random_bert(), tmp_path / "theirs"))
    assert (found.pooling, found.normalize, found.longest) == (None, False, None)


def test_encoder_in_a_subfolder_is_found(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    files = sentence_files(24, SentenceConfig(pooling="mean"), 16)
    modules = json.loads(files["modules.json"])
    modules[0]["path"] = "0_Transformer"
    sentence_config(tmp_path / "whole", {**files, "modules.json": json.dumps(modules)})
    save_folder(random_bert(), tmp_path / "whole" / "0_Transformer")
    (tmp_path / "whole" / "sentence_bert_config.json").rename(
        tmp_path / "whole" / "0_Transformer" / "sentence_bert_config.json"
    )
    found = pretrained(tmp_path / "whole")
    assert (found.pooling, found.longest, found.config.width) == ("mean", 16, 24)
    assert read_config(tmp_path / "whole") == found.config


@pytest.mark.parametrize("settings", [{}, {"embedding_dimension": 24}, dict.fromkeys(FLAGS, False)])
def test_pooling_without_a_mode_is_the_mean_as_in_sentence_transformers(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    files = sentence_files(24, SentenceConfig(pooling="max"), 16) | {"1_Pooling/config.json": json.dumps(settings)}
    assert pretrained(sentence_config(save_folder(random_bert(), tmp_path / "theirs"), files)).pooling == "mean"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("modules.json", "{}", "no modules"),
        ("modules.json", '[{"type": "sentence_transformers.models.Transformer", "path": ""}]', "not supported"),
        ("1_Pooling/config.json", '{"pooling_mode_max_tokens": true, "pooling_mode_lasttoken": true}', "lasttoken"),
        ("1_Pooling/config.json", '{"pooling_mode": [["max"]]}', "not supported"),
        ("1_Pooling/config.json", '{"pooling_mode": []}', "not supported"),
        ("1_Pooling/config.json", '{"pooling_mode": "lasttoken"}', "lasttoken"),
        ("sentence_bert_config.json", '{"max_seq_length": "16"}', "max_seq_length"),
        ("sentence_bert_config.json", '{"max_seq_length": -1}', "max_seq_length"),
        ("sentence_bert_config.json", '{"do_lower_case": "yes"}', "do_lower_case"),
        ("config_sentence_transformers.json", '{"default_prompt_name": "q", "prompts": {}}', "default_prompt_name"),
        ("config_sentence_transformers.json", '{"default_prompt_name": 3}', "default_prompt_name"),
    ],
)
def test_unsupported_sentence_settings_are_rejected(name: str, text: str, words: str, tmp_path: Path) -> None:
    folder = sentence_config(
        save_folder(random_bert(), tmp_path / "theirs"),
        {**sentence_files(24, SentenceConfig(pooling="mean", normalize=True), 16), name: text},
    )
    with pytest.raises(UserError, match=words):
        pretrained(folder)


@pytest.mark.parametrize("path", ["../other", "/etc"])
def test_modules_outside_the_folder_are_rejected(path: str, tmp_path: Path) -> None:
    folder = sentence_config(
        save_folder(random_bert(), tmp_path / "theirs"),
        sentence_files(24, SentenceConfig(pooling="mean", normalize=True), 16),
    )
    modules = json.loads((folder / "modules.json").read_text())
    for which in (0, 1):
        modules[which]["path"] = path
        (folder / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(UserError, match="points outside"):
            pretrained(folder)
