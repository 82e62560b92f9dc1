"""Recurrent layers over time: gates against the equations, gradients against float64 and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.blocks.taps import watch
from heedful.errors import UserError
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer, Subject
from heedful.explore.views import recurrent as view
from heedful.models.bert.config import BertConfig
from heedful.models.elmo.config import ElmoConfig
from heedful.models.elmo.model import Elmo
from heedful.models.heads.config import BiLSTMReader, TaggerConfig
from heedful.models.heads.tagger import Tagger
from heedful.models.rnn_lm.config import RnnLMConfig
from heedful.models.rnn_lm.model import RnnLM
from heedful.runs.load import load
from heedful.tasks.language_model.bidirectional import BidirectionalLanguageModel
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.tagging.predictor import TokenTagger

CPU = torch.device("cpu")
TEXT = "The child came home"
SOURCE = "nine hundred seventy-one"


def call_view(explorer: Explorer, call: str, **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return unpack(explorer.answer("recurrent", call, {"model": next(iter(explorer.subjects)), **settings}))


def opened(predictor: Any) -> Explorer:
    """An explorer on a model that was never trained."""
    explorer, subject = Explorer([Path()]), Subject("made", Path())
    subject.__dict__["predictor"] = predictor
    explorer.subjects = {"made": subject}
    return explorer


def by_the_slides(model: Any, ids: list[int]) -> dict[str, list[Tensor]]:
    """An LSTM of one layer over tokens as the slides write it, in float64, with gradients."""
    cell = model.stack.layers[0].cell
    h = c = torch.zeros(cell.h.weight.shape[1], dtype=torch.float64)
    found: dict[str, list[Tensor]] = {name: [] for name in ("forget", "write", "candidate", "reveal", "cell", "hidden")}
    for x in model.tokens(torch.tensor(ids)):
        i, f, g, o = (cell.x.weight @ x + cell.x.bias + cell.h.weight @ h).chunk(4)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = f * c + i * g
        h = o * c.tanh()
        for name, value in zip(found, (f, i, g, o, c, h), strict=True):
            value.retain_grad()
            found[name].append(value)
    return found


def test_gates_and_gradients_match_the_equations_in_float64(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("rnn")])
    words, _ = call_view(explorer, "layers", text=TEXT)
    predictor = load(run("rnn"))
    model = predictor.model.double()
    ids = [predictor.codec.start_id, *predictor.codec.encode(TEXT)]
    assert words["sides"]["text"] == predictor.tokenizer.pieces(ids)
    (layer,) = words["layers"]
    assert (layer["title"], layer["side"], layer["units"]) == ("layer 1", "text", model.config.hidden)
    _, gates = call_view(explorer, "layer", text=TEXT, layer=layer["name"])
    right = by_the_slides(model, ids)
    assert set(gates) == set(right)
    for name, values in gates.items():
        assert values.astype(float) == pytest.approx(torch.stack(right[name]).detach().numpy(), abs=2e-3, rel=2e-3)

    step = len(ids) - 3
    words, norms = call_view(explorer, "gradient", text=TEXT, step=step)
    logits = model.tokens.logits(model.out(right["hidden"][step]))
    token = int(logits.argmax())
    assert words["predicted"] == predictor.tokenizer.pieces([token])[0] and words["step"] == step
    assert words["probability"] == pytest.approx(logits.softmax(-1)[token].item(), rel=1e-4)
    (-logits.log_softmax(-1)[token]).backward()
    for name in ("hidden", "cell"):
        wanted = [0.0 if value.grad is None else float(value.grad.norm()) for value in right[name]]
        assert norms[f"{name}0"].tolist() == pytest.approx(wanted, rel=1e-3, abs=1e-12)
        assert all(wanted[: step + 1]) and not any(wanted[step + 1 :])
    forget = torch.stack(right["forget"])
    kept = [forget[place + 1 : step + 1].prod(0).mean().item() for place in range(step + 1)]
    assert norms["kept0"].tolist() == pytest.approx([*kept, 0, 0], rel=1e-4)


def test_gradient_of_a_translator_matches_finite_differences(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("recurrent")])
    subject = explorer.subjects["recurrent"]
    subject.model.double()
    words, found = call_view(explorer, "gradient", text=SOURCE, step=1)
    layers = view.recurrences(subject.model)
    names = [layer.name for layer in layers]
    reading = view.traced(subject, view.StepsRequest(model="recurrent", text=SOURCE)).reading
    assert [view.side_of(reading, layer) for layer in layers] == ["source", "source", "target"]
    assert words["step"] == 1

    def loss(tap: str, step: int, unit: int, change: float) -> float:
        times = iter(range(1000))

        def edit(name: str, x: Tensor) -> Tensor | None:
            if name != tap or next(times) != step:
                return None
            x = x.clone()
            x[0, unit] += change
            return x

        with torch.inference_mode(), watch(subject.model, "*.cell.hidden", edit):
            for each in reading.passes:
                logits = each.run()
        return -float(logits[0, 1].log_softmax(-1)[token])

    with torch.inference_mode():
        for each in reading.passes:
            token = int(each.run()[0, 1].argmax()) if each.queries == "target" else 0
    back = names.index("encoder.stack.layers.0.back")
    length = len(reading.sides["source"])
    for number, step, place in ((back, 1, length - 2), (0, 2, 2), (2, 0, 0)):
        tap = layers[number].tap("hidden")
        units = subject.model.get_submodule(names[number]).size
        changes = [(loss(tap, step, unit, 1e-5) - loss(tap, step, unit, -1e-5)) / 2e-5 for unit in range(units)]
        norm = float(torch.tensor(changes).double().norm())
        assert norm > 0
        assert found[f"hidden{number}"][place] == pytest.approx(norm, rel=1e-3)


def both_directions(explorer: Explorer, step: int, length: int) -> None:
    """What is ahead of a step cannot be changed from it by a layer that reads back, and the other way round."""
    _, found = call_view(explorer, "gradient", text=TEXT, step=step)
    ways = set()
    for number, layer in enumerate(view.recurrences(explorer.subjects["made"].model)):
        for name in ("hidden", "cell", "kept"):
            norms = found[f"{name}{number}"].tolist()
            assert len(norms) == length
            before, after = norms[:step], norms[step + 1 :]
            assert norms[step] > 0
            assert any(after) == layer.back and all(after) == layer.back
            assert any(before) != layer.back and all(before) != layer.back
        ways.add(layer.back)
    assert ways == {True, False}


def test_backward_layers_are_shown_in_token_order(run: Callable[[str], Path]) -> None:
    tokenizer = load(run("rnn")).tokenizer
    torch.manual_seed(0)
    explorer = opened(
        BidirectionalLanguageModel(
            Elmo(ElmoConfig(vocab=tokenizer.vocab, width=6, hidden=8, layers=2)), tokenizer, CPU, context=32
        )
    )
    words, _ = call_view(explorer, "layers", text=TEXT)
    assert [layer["title"] for layer in words["layers"]] == [
        "ahead layer 1", "ahead layer 2", "back layer 1", "back layer 2",
    ]  # fmt: skip
    both_directions(explorer, 3, len(words["sides"]["text"]))
    model = explorer.subjects["made"].model
    _, back = call_view(explorer, "layer", text=TEXT, layer="back.layers.0")
    ids = [
        token.id
        for token in view.read_both_directions(explorer.subjects["made"].predictor, view.TextInput(text=TEXT)).sides[
            "text"
        ]
    ]
    states, _ = model.back.layers[0](model.embed(torch.tensor([ids])).flip(1))
    assert back["hidden"] == pytest.approx(states[0].flip(0).detach().half().numpy(), abs=1e-3)


def test_lstm_on_top_of_an_encoder_is_shown(minilm: Path) -> None:
    torch.manual_seed(0)
    tokenizer = load(minilm).tokenizer
    encoder = BertConfig(vocab=tokenizer.vocab, width=8, heads=2, layers=1, hidden=8, context=32)
    config = TaggerConfig(encoder=encoder, labels=("O", "B-X"), reader=BiLSTMReader(hidden=10, layers=1))
    explorer = opened(TokenTagger(Tagger(config), tokenizer, CPU, ("O", "B-X"), context=32))
    assert view.fits(explorer.subjects["made"])
    words, _ = call_view(explorer, "layers", text=TEXT)
    assert words["sides"]["text"] == ["[CLS]", "the", "child", "came", "home", "[SEP]"]
    both_directions(explorer, 2, 6)
    assert call_view(explorer, "gradient", text=TEXT)[0]["predicted"] in config.labels


@pytest.mark.parametrize(("cell", "gates"), [("rnn", {"hidden"}), ("gru", {"reset", "keep", "candidate", "hidden"})])
def test_other_cells_have_other_gates(run: Callable[[str], Path], cell: Any, gates: set[str]) -> None:
    predictor = load(run("rnn"))
    model = RnnLM(RnnLMConfig(vocab=predictor.tokenizer.vocab, width=6, hidden=6, layers=2, cell=cell))
    explorer = opened(TextGenerator(model, predictor.tokenizer, CPU))
    words, _ = call_view(explorer, "layers", text=TEXT)
    assert [layer["title"] for layer in words["layers"]] == ["layer 1", "layer 2"]
    assert set(call_view(explorer, "layer", text=TEXT, layer="stack.layers.1")[1]) == gates
    assert set(call_view(explorer, "gradient", text=TEXT)[1]) == {"hidden0", "hidden1"}


def test_only_models_with_recurrent_layers_fit(run: Callable[[str], Path]) -> None:
    found = {name: view.fits(Subject(name, run(name))) for name in ("recurrent", "rnn", "gpt", "translation", "images")}
    assert found == {"recurrent": True, "rnn": True, "gpt": False, "translation": False, "images": False}


def test_unusual_requests_are_answered_or_rejected(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("rnn")])
    words, _ = call_view(explorer, "layers", text="")
    assert len(words["sides"]["text"]) == 1
    assert call_view(explorer, "gradient", text="")[1]["hidden0"].shape == (1,)
    for call, settings in (
        ("layers", {"text": "a" * 2001}), ("layer", {"text": "a", "layer": "nowhere"}),
        ("gradient", {"text": "a", "step": 2}), ("gradient", {"text": "a", "step": -1}),
    ):  # fmt: skip
        with pytest.raises(UserError):
            call_view(explorer, call, **settings)
    for state in ({}, {"model": 3}, {"model": "rnn"}, {"model": "rnn", "text": []}):
        with pytest.raises(UserError):
            view.calls(explorer.subject("rnn"), state)


def test_page_shows_the_gates_and_the_gradient_of_any_step(
    browse: Callable[..., Any], run: Callable[[str], Path]
) -> None:
    browsing = browse(run("recurrent"))
    page = browsing.go("recurrent", text=SOURCE)
    explorer = browsing.explorer
    assert page.locator("[data-testid^=gate-]").count() == 6
    page.get_by_test_id("cell").select_option("decoder.stack.layers.0")
    browsing.ready()
    page.get_by_test_id("token-1").click()
    browsing.ready()
    assert "back=1" in page.url
    _, gates = call_view(explorer, "layer", text=SOURCE, layer="decoder.stack.layers.0")
    words, norms = call_view(explorer, "gradient", text=SOURCE, step=1)
    page.get_by_test_id("token-0").hover()

    def number(name: str) -> float:
        return float(page.get_by_test_id(name).inner_text().replace("−", "-"))

    for gate, values in gates.items():
        assert number(f"mean-{gate}") == pytest.approx(float(values[0].astype(float).mean()), rel=6e-3, abs=1e-6)
    for name in ("hidden", "cell", "kept"):
        assert number(f"norm-{name}") == pytest.approx(float(norms[f"{name}2"][0]), rel=6e-3)
    assert words["predicted"] in page.locator(".gradient .said").first.inner_text()
    drawn = page.get_by_test_id("gate-hidden").evaluate(
        "one => [one.width, one.height, ...one.getContext('2d').getImageData(0, 0, one.width, 1).data]"
    )
    steps, units = gates["hidden"].shape
    assert drawn[:2] == [steps, units]
    signs = [blue > red for red, blue in zip(drawn[2::4], drawn[4::4], strict=True)]  # orange is below zero
    assert signs == [bool(value > 0) for value in gates["hidden"][:, 0]]
    page.get_by_test_id("units").select_option("sorted")
    assert "units=sorted" in page.url


def test_labels_and_the_predicting_step_stay_visible_for_a_long_text(
    browse: Callable[..., Any], run: Callable[[str], Path]
) -> None:
    page = browse(run("rnn")).go("recurrent", text="It is so. " * 30, back=9999)  # the last one
    box = page.get_by_test_id("recurrent").bounding_box()
    last = page.locator("[data-testid^=token-]").count() - 1
    for shown in (page.get_by_text("forget gate", exact=True), page.get_by_test_id(f"token-{last}")):
        found = shown.bounding_box()
        assert box["x"] < found["x"] and found["x"] + found["width"] < box["x"] + box["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
