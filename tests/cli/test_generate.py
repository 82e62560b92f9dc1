"""The commands `generate` and `predict-word`: options, streaming, interrupts and errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful as library
from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2Tokenizer
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from patience import LONG

TEXT = "The child came home from school. A rose is a rose is a rose; naïve café 日本 🙂"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small GPT-2, written by `transformers`."""
    transformers = pytest.importorskip("transformers")
    folder, pairs = tmp_path_factory.mktemp("gpt"), Gpt2Tokenizer.train(Gpt2Bpe(vocab=300), [TEXT] * 20)
    sizes = {"n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 4}
    ends = {"bos_token_id": pairs.end, "eos_token_id": pairs.end}
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=pairs.vocab, **sizes, **ends))
    for weight in model.parameters():
        weight.data += 0.2 * torch.randn_like(weight)
    model.save_pretrained(folder)
    for name, text in pairs.files(24).items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small BERT for masked language modelling."""
    transformers = pytest.importorskip("transformers")
    folder, pieces = tmp_path_factory.mktemp("bert"), BertTokenizer.train(WordPiece(vocab=120), [TEXT] * 3)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=pieces.vocab, **sizes))
    for weight in model.parameters():
        weight.data += 0.2 * torch.randn_like(weight)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces.pieces(range(pieces.vocab))))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    return folder


def test_streamed_text_equals_json_output(gpt: Path, heedful: Run) -> None:
    for options in ([], ["--greedy"], ["--top-k", 5, "--top-p", 0.9, "--temperature", 0.7], ["--beams", 3]):
        words = ("generate", gpt, "The child", "--length", 12, *options)
        code, out, err = heedful(*words)
        assert (code, err) == (0, "")
        output = json.loads(heedful(*words, "--json")[1])
        assert out == output["text"] + "\n"
        assert output["prompt"] + output["added"] == output["text"]
        assert output["tokens"] == 12 or output["ended"]
    assert heedful("generate", gpt, "", "--length", 4)[1].endswith("\n")


def test_generation_options_equal_the_library_settings(gpt: Path, heedful: Run) -> None:
    rules = {"repetition_penalty": 1.4, "no_repeat_ngram": 2, "min_length": 3, "length": 9}
    words = ["--repetition-penalty", 1.4, "--no-repeat-ngram", 2, "--min-length", 3, "--length", 9]
    _, out, _ = heedful("generate", gpt, "a", "b", "--samples", 2, "--seed", 7, "--json", *words)
    output = [json.loads(line) for line in out.splitlines()]
    expected = library.load(gpt).generate(["a", "b"], samples=2, seed=7, **rules)
    assert [(one["text"], one["log_probability"]) for one in output] == [(w.text, w.log_probability) for w in expected]
    one = json.loads(heedful("generate", gpt, "a", "--seed", 7, "--json", *words)[1])
    assert one["text"] == output[0]["text"]
    assert "".join(library.load(gpt).stream("a", seed=7, **rules)) == one["added"]


def test_text_beyond_the_context_is_noted_once(gpt: Path, heedful: Run) -> None:
    code, _, err = heedful("generate", gpt, "a", "b", "--length", 60)
    assert (code, err.count("note: the model's context is 24 tokens")) == (0, 1)
    _, _, err = heedful("generate", gpt, "rose " * 40, "--length", 2)
    assert "of a prompt of" in err
    assert heedful("generate", gpt, "a", "--length", 22)[2] == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--greedy", "--top-k", "3"], "--top-k is for sampling"),
        (["--beams", "2", "--seed", "3"], "--seed is for sampling"),
        (["--greedy", "--samples", "2"], "--greedy gives only one text"),
        (["--beams", "2", "--samples", "3"], "2 beams cannot give 3 texts"),
        (["--greedy", "--beams", "2"], "leave one of them out"),
        (["--length-penalty", "2"], "needs beam search"),
        (["--beams", "2", "--length", "60"], "within the model's context"),
        (["--top-p", "2"], "--top-p"),
        (["--length", "0"], "--length"),
        (["--temperature", "-1"], "--temperature"),
        (["--no-repeat-ngram", "0"], "--no-repeat-ngram"),
    ],
)
def test_invalid_options_are_reported_and_nothing_is_written(
    gpt: Path, heedful: Run, words: list[str], message: str
) -> None:
    code, out, err = heedful("generate", gpt, "a", *words)
    assert (code, out) == (2, "")
    assert message in err


def test_special_tokens_in_prompts_need_the_option(gpt: Path, heedful: Run) -> None:
    words = ("generate", gpt, "a<|endoftext|>b", "--length", 5, "--greedy", "--json")
    plain, special = (json.loads(heedful(*words, *more)[1]) for more in ((), ("--special",)))
    assert plain["log_probability"] != special["log_probability"]
    assert plain["prompt"] == special["prompt"] == "a<|endoftext|>b"


def test_models_of_another_task_are_rejected(gpt: Path, bert: Path, heedful: Run) -> None:
    code, _, err = heedful("generate", bert, "a")
    assert (code, "this model embeds texts" in err) == (2, True)
    code, _, err = heedful("predict-word", "a ___", "--masked", gpt)
    assert (code, "this model generates text" in err) == (2, True)


def started(*words: object) -> subprocess.Popen[bytes]:
    environment: dict[str, str] = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "heedful", *map(str, words)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment
    )


def test_text_is_streamed_until_an_interrupt_or_a_closed_pipe(gpt: Path) -> None:
    words = ("generate", gpt, "The child", "--length", 10**6, "--min-length", 10**6)
    stopped = started(*words)
    assert stopped.stdout is not None
    begun = stopped.stdout.read(60)  # long before the end
    stopped.send_signal(signal.SIGINT)
    rest, err = stopped.communicate(timeout=LONG)
    assert stopped.returncode == 130
    assert (begun + rest).startswith(b"The child")
    assert rest.endswith(b"\n")  # what was written stays
    left = started(*words)
    assert left.stdout is not None and left.stderr is not None
    assert left.stdout.read(9) == b"The child"
    left.stdout.close()
    err += left.stderr.read()
    assert left.wait(timeout=LONG) == 1
    assert b"Traceback" not in err
    assert b"Exception" not in err


# ------------------------------------------------------------------ next
def test_predict_word_prints_and_draws_both_models(gpt: Path, bert: Path, heedful: Run, tmp_path: Path) -> None:
    words = ("--causal", gpt, "--masked", bert, "--top", 3)
    text, other = "The child came home from ___ .", "The child came home from ___ with a rose ;"
    code, out, err = heedful("predict-word", text, *words, "-o", tmp_path / "next.png")
    assert (code, err) == (0, "")
    assert "  causal: The child came home from ___\n" in out
    assert f"  masked: {text}\n" in out
    assert (tmp_path / "next.png").stat().st_size > 1000
    one, two = (json.loads(heedful("predict-word", some, *words, "--json")[1]) for some in (text, other))
    assert one["causal"] == two["causal"]
    assert one["masked"]["words"] != two["masked"]["words"]
    assert [len(one[kind]["words"]) for kind in ("causal", "masked")] == [3, 3]
    assert "masked" not in json.loads(heedful("predict-word", text, "--causal", gpt, "--json")[1])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a ___"], "no model was given"),
        (["no gap", "--causal", "x"], "one blank"),
        (["a ___", "--causal", "nosuch"], "no such folder"),
        (["a ___", "--causal", "x", "-o", "x.jpg"], ".png, .svg or .pdf"),
    ],
)
def test_predict_word_reports_errors(heedful: Run, words: list[Any], message: str) -> None:
    code, out, err = heedful("predict-word", *words)
    assert (code, out) == (2, "")
    assert message in err
