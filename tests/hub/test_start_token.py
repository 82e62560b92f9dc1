"""The start token: published GPT-2s continue the bare prompt as in `transformers`; Heedful's runs keep theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gpt_folders import TEXT, gpt_folder, pairs, random_gpt
from test_convert import convert

import heedful
from heedful import load_recipe, train
from heedful.cli.app import main
from heedful.data.tokenizers.byte_pairs import END
from heedful.errors import UserError
from heedful.explore.decoding import prefix_of
from heedful.explore.inspect import TextInput, read_causal
from heedful.hub.folder import read_config
from heedful.hub.gpt_tokenizers import find_tokenizer
from heedful.hub.loading import pretrained
from heedful.tasks.language_model.next_word import next_words
from heedful.tasks.language_model.predictor import TextGenerator
from tolerance import close

PROMPTS = ["the child", " home", "a", "school and the child went\n", "x", "The [PAD] 漢字"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(5)
    return gpt_folder(random_gpt(vocab_size=290), tmp_path_factory.mktemp("published") / "gpt2")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ours")
    for name in ("train", "valid"):
        (place / f"{name}.txt").write_text(TEXT.replace(". ", ".\n"))
    sizes = ["model.width=16", "model.heads=2", "model.layers=1", "model.context=32", "tokenizer.vocab=300"]
    files = [f"data={{kind: text, root: {place}, train: [train.txt], valid: [valid.txt]}}"]
    short = ["train.budget.steps=2", "train.batch_tokens=64", "train.samples=0"]
    list(train(load_recipe("gpt-prose", [*files, *sizes, *short]), place / "run"))
    return place / "run"


def run_command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["heedful", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def hugging_face_completion(folder: Path, prompt: str) -> list[int]:
    """The completion of a prompt, or of nothing, by `transformers`."""
    model, words = (kind.from_pretrained(folder) for kind in (transformers.GPT2LMHeadModel, transformers.AutoTokenizer))
    given = {"input_ids": torch.tensor([ids])} if (ids := words(prompt)["input_ids"]) else {}
    start = len(ids) or 1
    found: list[int] = model.generate(**given, max_new_tokens=12, do_sample=False, pad_token_id=0)[0, start:].tolist()
    return found


def test_without_a_start_token_generation_equals_transformers(published: Path) -> None:
    writer = heedful.load(published, "cpu")
    written = writer.generate(["", *PROMPTS], temperature=0.0, length=12)
    assert [one.ids for one in written] == [hugging_face_completion(published, prompt) for prompt in ["", *PROMPTS]]
    assert writer.generate(PROMPTS[:1], beams=3, length=5)[0].log_probability < 0
    writer.start_token = True
    changed = writer.generate(PROMPTS, temperature=0.0, length=12)
    assert [one.ids for one in changed] != [one.ids for one in written[1:]]
    assert writer.generate([""], temperature=0.0, length=12)[0].ids == written[0].ids


def test_perplexity_next_words_and_views_use_the_same_start_token(published: Path) -> None:
    writer, text = heedful.load(published, "cpu"), "the child came home"
    ids = pairs().ids([text])[0]
    model = transformers.GPT2LMHeadModel.from_pretrained(published)
    with torch.no_grad():
        results = model(torch.tensor([ids]), labels=torch.tensor([ids]))
    close(torch.tensor(writer.loss(text)), results.loss)
    with pytest.raises(ValueError, match="one token"):
        writer.loss("a")
    likeliest = results.logits[0, -1, :290].softmax(-1).max()
    close(torch.tensor(next_words(writer, f"{text} ___", 1).predictions[0].probability), likeliest)
    assert prefix_of(writer, TextInput(text=text), [7]).ids == [*ids, 7]
    assert prefix_of(writer, TextInput(text=""), [7]).ids == [pairs().end, 7]
    tokens = read_causal(writer, TextInput(text=text)).sides["text"]
    assert [(token.id, token.part) for token in tokens] == [(number, 0) for number in ids]
    writer.start_token = True
    assert prefix_of(writer, TextInput(text=text), []).ids == [pairs().end, *ids] == writer.prompt_ids(text)
    assert read_causal(writer, TextInput(text=text)).sides["text"][0].part is None


def test_empty_prompt_without_start_token_is_noted(
    published: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for options in ([], ["--no-start-token"], ["--start-token"]):
        command = ("generate", str(published), "the child", "--greedy", "--length", "12", "--json", *options)
        assert run_command(monkeypatch, *command) == 0
        texts.append(json.loads(capsys.readouterr().out)["added"])
    assert (
        texts[0]
        == texts[1]
        == heedful.load(published, "cpu").generate(["the child"], length=12, temperature=0.0)[0].completion
    )
    assert texts[2] != texts[0]
    assert run_command(monkeypatch, "generate", str(published), "", "--greedy", "--length", "2") == 0
    assert "so the model starts from <|endoftext|>" in capsys.readouterr().err
    assert run_command(monkeypatch, "predict-word", "the child ___", "--causal", str(published), "--start-token") == 0
    assert "causal" in capsys.readouterr().out


def test_start_token_of_a_run_survives_conversion(ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads((ours / "model" / "config.json").read_text())["decode"]["start_token"] is True
    writer = heedful.load(ours, "cpu")
    text = writer.generate(["The child"], temperature=0.0, length=6)[0].ids
    assert writer.start_token and convert(monkeypatch, ours, tmp_path / "hf") == 0
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert words("The child")["input_ids"] == writer.prompt_ids("The child")
    assert hugging_face_completion(tmp_path / "hf", "The child")[:6] == text
    assert convert(monkeypatch, tmp_path / "hf", tmp_path / "back") == 0
    for folder in (tmp_path / "hf", tmp_path / "back"):
        again = heedful.load(folder, "cpu")
        assert again.start_token and again.generate(["The child"], temperature=0.0, length=6)[0].ids == text
    writer.start_token = False
    assert (
        writer.prompt_ids("The child") == writer.prompt_ids("The child", special=True) == train_bpe(writer, "The child")
    )


def train_bpe(writer: TextGenerator, text: str) -> list[int]:
    found: list[int] = writer.tokenizer.ids([text])[0]
    return found


def test_published_folders_have_no_start_token_and_old_ones_keep_it(
    published: Path, ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        convert(monkeypatch, published, tmp_path / "a") == 0
        and convert(monkeypatch, tmp_path / "a", tmp_path / "b") == 0
    )
    assert not any(heedful.load(tmp_path / name, "cpu").start_token for name in "ab")
    file = ours / "model" / "config.json"
    settings = json.loads(file.read_text())
    del settings["decode"]["start_token"]
    assert pretrained(ours, role="causal").starts
    old = tmp_path / "old"
    old.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (old / name).write_bytes((ours / "model" / name).read_bytes())
    (old / "config.json").write_text(json.dumps(settings))
    assert pretrained(old, role="causal").starts


SETTINGS: list[tuple[dict[str, Any], dict[str, Any], bool | None]] = [  # a config, what is beside it, whether it starts
    ({}, {}, False),
    ({"add_prefix_space": True}, {}, None),
    ({"add_prefix_space": False, "model_max_length": 10}, {}, False),
    ({"tokenizer_class": "GPT2TokenizerFast", "bos_token": END}, {}, False),
    ({"tokenizer_class": "LlamaTokenizer"}, {}, None),
    ({"pad_token": "[PAD]"}, {}, False),
    ({"additional_special_tokens": ["<u>", "<b>"]}, {}, False),
    ({"added_tokens_decoder": {"290": {"content": "<u>", "special": True, "normalized": False}}}, {}, False),
    ({"added_tokens_decoder": {"290": {"content": "<u>", "special": True, "lstrip": True}}}, {}, False),
    ({"added_tokens_decoder": {"290": {"content": "child", "special": False}}}, {}, False),
    ({"added_tokens_decoder": {"295": {"content": "<u>", "special": True, "normalized": False}}}, {}, None),
    ({"split_special_tokens": True}, {}, None),
    ({"bos_token": "<s>", "eos_token": "</s>"}, {}, False),
    ({}, {"special_tokens_map.json": {"pad_token": "<u>"}}, False),
    ({}, {"added_tokens.json": {"<u>": 290}}, False),
]
SPELLED = ["the child", " Home <u>a</u> <b>", "[PAD]the<|u|> <s>x</s> \n", "", "漢字<u>", "<u> <u>" * 3]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("config", "beside", "starts"), SETTINGS)
def test_bpe_settings_are_followed_or_rejected(
    config: dict[str, Any], beside: dict[str, Any], starts: bool | None, whole: bool, published: Path, tmp_path: Path
) -> None:
    for name in ("config.json", *(["tokenizer.json"] if whole else ["vocab.json", "merges.txt"])):
        text = (published / name).read_text() if name == "config.json" else pairs().files()[name]
        (tmp_path / name).write_text(text, encoding="utf-8")
    if config:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    for name, value in beside.items():
        (tmp_path / name).write_text(json.dumps(value))
    if starts is None:
        with pytest.raises(UserError) as refused:
            find_tokenizer(tmp_path, 300, "byte_pairs")
        assert refused.value.found and refused.value.todo
        return
    found, begins = find_tokenizer(tmp_path, 300, "byte_pairs")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert found is not None and begins == starts and found.vocab == len(theirs)
    assert found.ids(SPELLED) == [theirs(text)["input_ids"] for text in SPELLED]


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_only_a_start_token_may_be_added(name: str, published: Path, tmp_path: Path) -> None:
    for file in ("vocab.json", "merges.txt"):
        (tmp_path / file).write_text(pairs().files()[file], encoding="utf-8")
    (tmp_path / "config.json").write_text((published / "config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({f"add_{name}_token": True}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    if name == "eos":
        with pytest.raises(UserError, match="not supported: the special tokens"):
            find_tokenizer(tmp_path, read_config(tmp_path, "causal").vocab, "byte_pairs")
    else:
        found, begins = find_tokenizer(tmp_path, read_config(tmp_path, "causal").vocab, "byte_pairs")
        assert begins and found is not None
        assert [pairs().end, *found.ids(["the child"])[0]] == theirs("the child")["input_ids"]
