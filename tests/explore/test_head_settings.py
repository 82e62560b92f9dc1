"""Heads that are off or uniform: every view shows what Python computes with the same heads changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from heedful.blocks.taps import watch
from heedful.errors import UserError
from heedful.explore.head_settings import HeadSettings, parse_heads
from heedful.explore.inspect import TextInput
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer, Subject
from heedful.explore.turns import scores
from heedful.extras.vision.attention import attention_weights, over_image, rollout
from heedful.extras.vision.gradients import METHODS, class_score
from heedful.runs.images import test_split as images
from tolerance import close, near

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
TEXT = "A list of the names"


def zeroed(head: int) -> Callable[[str, Tensor], Tensor]:
    """What a user of `watch` writes to switch off a head."""

    def edit(_: str, weights: Tensor) -> Tensor:
        weights = weights.clone()
        weights[:, head] = 0
        return weights

    return edit


def opened(folder: Path) -> tuple[Explorer, Subject]:
    explorer = Explorer([folder])
    (subject,) = explorer.subjects.values()
    return explorer, subject


def test_next_token_without_a_head_is_that_of_python(run: Callable[[str], Path]) -> None:
    explorer, subject = opened(run("gpt"))
    asked = {"model": subject.name, "text": TEXT}
    with watch(subject.model, "blocks.1.*.weights", edit=zeroed(2)), torch.inference_mode():
        ids = torch.tensor([subject.predictor.prompt_ids(TEXT)])
        expected = subject.predictor.model(ids, subject.predictor.start(1))[0][0, -1]
    _, arrays = unpack(explorer.answer("next", "logits", {**asked, "off": [[0, 1, 2]]}))
    assert arrays["logits"].tolist() == near(expected.tolist(), 64)
    whole = unpack(explorer.answer("next", "logits", asked))[1]["logits"]
    assert np.abs(whole - arrays["logits"]).max() > 1e-3
    # What was computed without the head is not taken for the model as it is, nor the other way round.
    before = unpack(explorer.answer("heads", "layer", {**asked, "look": "blocks.*.attention.weights", "layer": 1}))[1]
    off = {**asked, "look": "blocks.*.attention.weights", "layer": 1, "off": [[0, 1, 2]]}
    after = unpack(explorer.answer("heads", "layer", off))[1]["weights"]
    assert not after[2].any() and after[3].any() and before["weights"][2].any()
    again = unpack(explorer.answer("heads", "layer", {**asked, "look": "blocks.*.attention.weights", "layer": 1}))[1]
    assert again["weights"].tolist() == before["weights"].tolist()


def test_translation_search_and_alignment_without_cross_attention(run: Callable[[str], Path]) -> None:
    explorer, subject = opened(run("translation"))
    asked = {"model": subject.name, "text": "forty two thousand"}
    off = [[2, layer, head] for layer in range(2) for head in range(4)]
    with watch(subject.model, "decoder.*.cross.weights", edit=lambda _, weights: torch.zeros_like(weights)):
        (expected,) = subject.predictor.search(["forty two thousand"], beams=3, top=3)
    header, _ = unpack(explorer.answer("beam", "tree", {**asked, "off": off, "k": 3, "t": 3}))
    assert [one["log"] for one in header["paths"]] == near([one.log_probability for one in expected], 256)
    with watch(subject.model, "decoder.*.cross.weights", edit=lambda _, weights: torch.zeros_like(weights)):
        written = subject.predictor.search(["forty two thousand"])[0][0].ids
    words, _ = unpack(explorer.answer("alignment", "steps", {**asked, "off": off}))
    assert [one["id"] for one in words["written"]] == list(written)
    _, arrays = unpack(explorer.answer("alignment", "weights", {**asked, "off": off}))
    assert not arrays["heads"].any()


@pytest.mark.parametrize("name", ["gpt", "translation", "recurrent"])
def test_weights_of_a_uniform_head_are_equal_over_the_keys_it_may_attend_to(
    run: Callable[[str], Path], name: str
) -> None:
    _, subject = opened(run(name))
    given = TextInput(text="forty two thousand")
    for index, kind in enumerate(subject.kinds):
        plain = subject.trace(given).weights(kind, len(kind.taps) - 1)
        with subject.heads_set(HeadSettings(uniform=((index, len(kind.taps) - 1, 0),))):
            trace = subject.trace(given if kind.kind != "cross" else TextInput(text=given.text, other="zwei"))
        weights = trace.weights(kind, len(kind.taps) - 1)[0]  # (T, S)
        seen = (weights > 0).sum(-1, keepdim=True)
        close(weights, weights.gt(0) / seen, 16)
        if kind.kind == "causal":
            assert seen[:, 0].tolist() == list(range(1, len(seen) + 1))
        else:
            assert (seen == weights.shape[-1]).all()
        assert not subject.trace(given).weights(kind, len(kind.taps) - 1).ne(plain).any()


def test_long_texts_of_block_sparse_attention_stay_in_blocks(bigbird: Path) -> None:
    """The weights of a text of thousands of tokens are never a tensor of T x T."""
    explorer, subject = opened(bigbird)
    asked = {"model": subject.name, "text": "the old cat sat on a mat " * 300, "layer": 1, "head": 0}
    _, plain = unpack(explorer.answer("blocks", "weights", asked))
    _, off = unpack(explorer.answer("blocks", "weights", {**asked, "off": [[0, 1, 0]]}))
    _, even = unpack(explorer.answer("blocks", "weights", {**asked, "uniform": [[0, 1, 0]]}))
    assert plain["shares"].any() and not off["shares"].any()
    given = [one["shares"][5, :-1][one["shares"][5, :-1] > 0] for one in (plain, even)]  # the last block is shorter
    assert np.ptp(given[1]) < 1e-6 < np.ptp(given[0])


def even(_: str, weights: Tensor) -> Tensor:
    """What a user of `watch` writes to make all heads uniform."""
    return (weights > 0) / (weights > 0).sum(-1, keepdim=True)


def test_image_without_a_head_is_that_of_python(run: Callable[[str], Path]) -> None:
    explorer, subject = opened(run("vit"))
    asked = {"model": subject.name, "image": 3}
    plain = unpack(explorer.answer("image", "classes", asked))
    pixels = images(subject.folder).pixels[3]
    for setting, edit in (({"off": [[0, 1, 1]]}, zeroed(1)), ({"uniform": [[0, 1, 0], [0, 1, 1]]}, even)):
        with watch(subject.model, "blocks.1.*.weights", edit=edit):
            (expected,) = subject.predictor.predict([pixels], top=10)
            x = subject.predictor.inputs([pixels])
            gradient = METHODS["gradient"](class_score(subject.model, 5), x).numpy()
            weights = attention_weights(subject.model, x)
        words, arrays = unpack(explorer.answer("image", "classes", {**asked, **setting}))
        assert words["labels"] == list(expected.probabilities) and words["layers"] == plain[0]["layers"]
        assert arrays["probabilities"] == near(list(expected.probabilities.values()))
        assert np.abs(np.sort(arrays["probabilities"]) - np.sort(plain[1]["probabilities"])).max() > 1e-4
        pixel = unpack(explorer.answer("image", "pixels", {**asked, **setting, "label": 5}))[0]
        assert pixel["largest"] == pytest.approx(float(np.abs(gradient).max()), rel=1e-4)
        _, seen = unpack(explorer.answer("image", "attention", {**asked, **setting, "layer": 1}))
        assert seen["heads"] == near(over_image(weights[1][0], (4, 4)).numpy())
        assert seen["rollout"] == near(over_image(rollout(weights)[0], (4, 4)).numpy())
    again = unpack(explorer.answer("image", "classes", asked))[1]["probabilities"]
    assert again.tolist() == plain[1]["probabilities"].tolist()


def test_caption_with_uniform_attention_is_that_of_python(run: Callable[[str], Path]) -> None:
    """A single attention without heads counts as one head; the same captioner with hard attention is changed, too."""
    explorer, subject = opened(run("captions"))
    asked = {"model": subject.name, "image": 4, "beams": 2}
    plain = unpack(explorer.answer("caption", "captions", asked))
    pixels = images(subject.folder).pixels[4]
    hard = subject.predictor.attending("hard")
    for setting, edit in (({"uniform": [[0, 0, 0]]}, even), ({"off": [[0, 0, 0]]}, zeroed(0))):
        with watch(subject.model, "*.weights", edit=edit):
            found = subject.predictor.search([pixels], 2, 2)[0]
        with watch(hard.model, "*.weights", edit=edit):
            others = [hard.describe(pixels, one.ids) for one in found]
        words, arrays = unpack(explorer.answer("caption", "captions", {**asked, **setting}))
        assert [one["text"] for one in words["captions"]] == [one.text for one in found]
        assert [one["log"] for one in words["captions"]] == near([one.log_probability for one in found])
        assert [one["logs"]["hard"] for one in words["captions"]] == near([one.log_probability for one in others])
        assert arrays["maps"] == near(np.concatenate([one.maps.numpy() for one in found]))
        assert arrays["soft"] == near(arrays["maps"])
        assert arrays["hard"] == near(np.concatenate([one.maps.numpy() for one in others]))
        assert words["captions"][0]["log"] != near(plain[0]["captions"][0]["log"])
        tree = unpack(explorer.answer("caption", "search", {**asked, **setting}))[1]
        ended = tree["log"][tree["fate"] == 2].max()
        assert not found[0].complete or ended == near(max(one.log_probability for one in found if one.complete))


@pytest.mark.parametrize("kind", ["transformer", "hred", "seq2seq"])
def test_reply_with_changed_heads_is_that_of_python(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    folder = GOLDEN / f"dialogue-{kind}"
    monkeypatch.chdir(folder)
    explorer, subject = opened(folder)
    said = ["the old cat sees the ball .", "a dog likes the stone .", "the small bird sees the leaf ."]
    asked = {"model": subject.name, "history": "\n".join(said)}
    plain = unpack(explorer.answer("dialogue", "reply", asked))[1]
    (history,) = subject.predictor.histories([said])
    taps = subject.model.alignment
    cross = next(at for at, one in enumerate(subject.kinds) if one.kind == "cross")
    every = [[cross, 0, head] for head in range(subject.kinds[cross].heads)]
    for setting, edit in (({"uniform": every}, even), ({"off": every}, lambda _, weights: torch.zeros_like(weights))):
        with watch(subject.model, taps, edit=edit):
            expected = subject.predictor.reply(said)
            logs = scores(subject.predictor, [history], expected.ids)[0].detach()
        words, arrays = unpack(explorer.answer("dialogue", "reply", {**asked, **setting}))
        assert words["reply"] == expected.text
        assert arrays["reply logs"] == near(logs.numpy())
        assert arrays["attention"].any() == ("uniform" in setting)
        assert arrays["reply logs"].shape != plain["reply logs"].shape or (
            np.abs(arrays["reply logs"] - plain["reply logs"]).max() > 1e-6
        )


def test_heads_are_those_of_the_views_that_take_them(run: Callable[[str], Path]) -> None:
    def of(folder: Path) -> list[tuple[str, int, int]]:
        return [(one.title, len(one.taps), one.heads) for one in opened(folder)[1].kinds]

    assert of(run("vit")) == [("self", 2, 2)]
    assert of(run("captions")) == of(GOLDEN / "captioning-captioner") == [("decoder cross", 1, 1)]
    assert of(GOLDEN / "dialogue-transformer") == [
        ("encoder self", 1, 2), ("decoder masked self", 1, 2), ("decoder cross", 1, 2),
    ]  # fmt: skip
    assert of(run("lenet")) == of(GOLDEN / "story_answering-memory_network") == []


def test_missing_heads_are_refused(run: Callable[[str], Path]) -> None:
    explorer, subject = opened(run("gpt"))
    asked = {"model": subject.name, "text": TEXT}
    for setting in ({"off": [[0, 9, 0]]}, {"uniform": [[0, 0, 99]]}, {"off": [[7, 0, 0]]}, {"uniform": [[0, 0]]},
                    {"off": [[0, 0, 0]] * 5001}, {"off": "0.0.0"}):  # fmt: skip
        with pytest.raises(UserError):
            explorer.answer("next", "logits", {**asked, **setting})
    for text in ("0.x.1", "0.1", "0.1.2.3", "a"):
        with pytest.raises(UserError, match="invalid heads"):
            parse_heads(text)
