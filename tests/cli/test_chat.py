"""`heedful chat`, `predict` and `eval` with a dialogue model, on the recorded run of `tests/golden`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import heedful as library
from heedful.tasks.dialogue.predictor import DialogueModel

Run = Callable[..., tuple[int, str, str]]
RUN = Path(__file__).parents[1] / "golden" / "runs" / "dialogue-hred"


@pytest.fixture(scope="module")
def model() -> DialogueModel:
    return library.load(RUN, DialogueModel, device="cpu")


def test_each_line_gets_a_reply_to_all_before_it(heedful: Run, model: DialogueModel) -> None:
    code, out, _ = heedful("chat", RUN, stdin=b"one cat sees\n\ntwo birds\n")
    first, blank, second = out.splitlines()
    history = ["one cat sees", model.reply(["one cat sees"]).text]
    assert (code, first, blank) == (0, history[1], "")
    assert second == model.reply([*history, "two birds"]).text


def test_reset_starts_over(heedful: Run) -> None:
    code, out, _ = heedful("chat", RUN, stdin=b"one cat sees\nred bird\n/reset\nred bird\n")
    again = heedful("chat", RUN, stdin=b"red bird\n")[1]
    assert code == 0 and out.splitlines()[2:] == ["", *again.splitlines()]


def test_sampling_depends_on_the_seed_and_the_reply_number(heedful: Run, model: DialogueModel) -> None:
    hot = ("--sample", "--temperature", "3")
    said = b"one cat\n/reset\none cat\n"
    first, second = (heedful("chat", RUN, *hot, "--seed", "4", stdin=said)[1] for _ in range(2))
    assert first == second
    lines = first.splitlines()
    assert lines[0] == model.sample_reply(["one cat"], temperature=3, seed=4).text
    assert lines[2] == model.sample_reply(["one cat"], temperature=3, seed=4, first=1).text
    assert heedful("chat", RUN, *hot, "--seed", "5", stdin=said)[1] != first


def test_file_of_utterances_gets_one_reply(heedful: Run, model: DialogueModel, tmp_path: Path) -> None:
    (tmp_path / "said.txt").write_text("one cat\ntwo birds\n\nthree dogs\n")
    code, out, _ = heedful("chat", RUN, "--history", "said.txt", "--beams", "3", "--json")
    expected = model.search(model.histories([["one cat", "two birds", "three dogs"]]), 3)[0][0]
    assert code == 0 and json.loads(out)["text"] == expected.text and json.loads(out)["ids"] == expected.ids


def test_predict_replies_to_each_row(heedful: Run, model: DialogueModel, tmp_path: Path) -> None:
    rows = [{"utterances": ["one cat", "two"], "id": 1}, {"utterances": [{"text": "red", "speaker": "a"}]}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = heedful("predict", RUN, "in.jsonl")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and found[0]["id"] == 1
    assert [row["prediction"] for row in found] == [
        one.text for one in model.predict([["one cat", "two"], [("a", "red")]])
    ]


def test_mistakes_are_explained(heedful: Run, tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text("\n\n")
    (tmp_path / "none.jsonl").write_text('{"utterances": []}\n')
    (tmp_path / "other.jsonl").write_text('{"source": "a"}\n')
    for words, stdin, message in (
        (("chat", RUN, "--history", "blank.txt"), b"", "there is no utterance to reply to"),
        (("chat", RUN, "--history", "nowhere.txt"), b"", "there is no such file"),
        (("chat", RUN, "--temperature", "2"), b"a\n", "need --sample"),
        (("chat", RUN, "--sample", "--beams", "2"), b"a\n", "cannot be combined with --beams"),
        (("chat", RUN), b"cat " * 40 + b"\n", "this utterance is too long for the model"),
        (("chat", RUN.parent / "translation-seq2seq"), b"a\n", "use `heedful translate`"),
        (("translate", RUN, "a"), b"", "use `heedful chat`"),
        (("predict", RUN, "none.jsonl"), b"", "a row needs utterances"),
        (("predict", RUN, "other.jsonl"), b"", "there is no field 'utterances'"),
    ):
        code, _, error = heedful(*words, stdin=stdin)
        assert code == 2 and message in error, error
