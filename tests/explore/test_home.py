"""The home of the explorer: a diagram of the loaded model, its explanations, and the selection that all views share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.explore.architecture import Part, architecture
from heedful.explore.explanations import EXPLANATIONS
from heedful.explore.inspect import TextInput
from heedful.explore.packets import unpack
from heedful.explore.predictions import prediction_of
from heedful.explore.subjects import Explorer
from heedful.explore.views import VIEWS, home
from heedful.hub.model_folder import write_model
from heedful.models import MODELS, build, config_class
from heedful.models.bert.config import BertConfig
from heedful.models.captioner.config import TransformerDecoder
from heedful.models.tracing import RUNS
from patience import until
from tolerance import near

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
TIRED = "The animal didn't cross the street because it was too tired"


def every(part: Part) -> Iterator[Part]:
    yield part
    for one in part.parts:
        yield from every(one)


def asked(explorer: Explorer, call: str, **more: Any) -> Any:
    (subject,) = explorer.subjects.values()
    return unpack(explorer.answer("home", call, {"model": subject.name, **more}))[0]


# ------------------------------------------------------------------ the parts
@pytest.mark.parametrize("kind", MODELS)
def test_parts_are_those_of_the_model(kind: str) -> None:
    """Every parameter once, by its name in a checkpoint, and counts that add up; each kind of part is explained."""
    model = build(config_class(kind).tiny())
    root = architecture(model)
    found = list(root.names())
    assert dict(found) == {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    assert len(found) == len(dict(found))
    assert root.parameters == sum(weight.numel() for weight in model.parameters())
    for part in every(root):
        own = sum(matrix.parameters for matrix in part.matrices)
        assert part.parameters == own + sum(one.parameters * one.times for one in part.parts)
    unknown = {part.kind for part in every(root)} - {root.kind} - set(EXPLANATIONS)
    assert not unknown


def test_explanations_name_views() -> None:
    for about in EXPLANATIONS.values():
        assert about.title and about.about.endswith(".") and about.equation
        assert set(about.views) <= set(VIEWS)
    assert set(home.WORKS) == set(RUNS)
    assert set(home.OUTPUTS) <= set(VIEWS)


def test_rows_of_blocks_are_folded() -> None:
    model = build(config_class("albert").tiny())
    (blocks,) = [part for part in architecture(model).parts if part.name == "blocks"]
    assert blocks.numbers == (0, 0)  # both layers have the weights of the first
    assert blocks.times == 1
    root = architecture(build(config_class("transformer").tiny()))
    (decoder,) = [part for part in root.parts if part.name == "decoder"]
    assert decoder.numbers == (0, 1)
    assert [part.name for part in decoder.parts] == ["attention", "add1", "cross", "add2", "mlp", "add3"]


def test_parts_are_in_the_order_of_the_data() -> None:
    """A norm of a list stands behind its own stack; cross-attention, which reads the map first, is in its block."""
    whole = architecture(build(config_class("transformer").tiny().model_copy(update={"norm": "pre"})))
    names = [part.name for part in whole.parts]
    assert names[-4:] == ["encoder", "norms.0", "decoder", "norms.1"]
    captioner = config_class("captioner").tiny()
    decoder = captioner.model_copy(update={"decoder": TransformerDecoder(width=8, heads=2, layers=2, hidden=8)})
    (inner,) = (part for part in architecture(build(decoder)).parts if part.name == "decoder")
    places = {part.name: place for place, part in enumerate(inner.parts)}
    assert places["memory"] < places["tokens"] < places["blocks"] < places["norm"]
    patches = architecture(build(config_class("vit").tiny()))  # the class token joins the patches
    assert [part.name for part in patches.parts[:3]] == ["patches", "tokens", "positions"]


def test_module_that_cannot_run_on_a_small_input_is_shown_too() -> None:
    model = build(config_class("gpt").tiny())
    model.tokens.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(OSError("no")))
    root = architecture(model)
    assert root.parameters == sum(weight.numel() for weight in model.parameters())
    assert {part.shape for part in every(root)} == {()}


# ------------------------------------------------------------------ answers
@pytest.mark.parametrize("folder", sorted(GOLDEN.iterdir()), ids=lambda folder: str(folder.name))
def test_every_recorded_run_has_a_home(folder: Path) -> None:
    explorer = Explorer([folder])
    (subject,) = explorer.subjects.values()
    assert subject.views[0] == "home"
    found = asked(explorer, "model")
    assert found["parameters"] == sum(weight.numel() for weight in subject.model.parameters())

    def check(part: dict[str, Any]) -> None:
        assert set(part["views"]) <= set(subject.views)
        assert part["kind"] in found["explained"] and part["kind"] in EXPLANATIONS
        if part["look"]:
            assert part["look"] in subject.attentions
        for one in part["parts"]:
            check(one)

    for part in found["parts"]:
        check(part)
    if subject.sample:
        flow = asked(explorer, "flow", **subject.sample)
        assert all(flow["sides"].values())


def test_flow_is_what_the_library_reads_and_predicts(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("gpt")])
    (subject,) = explorer.subjects.values()
    found = asked(explorer, "flow", text="The child came")
    ids = subject.predictor.prompt_ids("The child came")
    assert [one["id"] for one in found["sides"]["text"]] == ids
    with torch.inference_mode():
        logits = subject.model(torch.tensor([ids]), subject.predictor.start(1))[0][
            0, -1, : subject.predictor.tokenizer.vocab
        ]
    best = logits.softmax(-1).topk(5)
    assert [one["text"] for one in found["answers"]] == subject.predictor.tokenizer.pieces(best.indices.tolist())
    near(torch.tensor([one["chance"] for one in found["answers"]]), best.values)


def test_layers_and_heads_are_those_of_the_attention(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("translation")])
    (subject,) = explorer.subjects.values()
    trace = subject.trace(TextInput(text="five six"))
    root = home.diagram(subject)
    for attention in trace.attentions:
        name, inner = attention.name.removesuffix(".weights").split(".*.")
        (stack,) = [part for part in root.parts if part.name == name]
        (part,) = [part for part in stack.parts if part.name == inner]
        assert len(stack.numbers) == len(attention.taps)
        assert part.heads == attention.heads
    found = asked(explorer, "flow", text="five six")
    made = prediction_of(subject.predictor, TextInput(text="five six"), trace.reading).candidates()
    assert [one["text"] for one in found["answers"]] == [one.text for one in made]


# ------------------------------------------------------------------ the page
@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of 24 layers with 16 heads, and narrow."""
    folder = tmp_path_factory.mktemp("deep") / "deep"
    tokenizer = BertTokenizer.train(WordPiece(vocab=60, lowercase=True), ["the old cat sat on a mat"] * 3)
    sizes = {"vocab": tokenizer.vocab, "width": 64, "heads": 16, "layers": 24, "hidden": 20, "context": 32}
    config = BertConfig.model_validate(sizes)
    weights = build(config).state_dict()
    settings = {"task": "pretraining", "model": config.model_dump()}
    write_model(folder, json.dumps(settings), weights, {"tokenizer.json": tokenizer.json}, {})
    return folder


def test_parts_are_explained_and_open_their_views(browse: Callable[..., Any], minilm: Path) -> None:
    """Pointing explains; clicking opens the view with the layer, the head and the token."""
    browsing = browse(minilm)
    page, by = browsing.go("home", text=TIRED), browsing.page.get_by_test_id
    by("part-blocks.*.attention").hover()
    about = EXPLANATIONS["SelfAttention"]
    assert by("told").locator("h3").inner_text() == about.title
    assert by("equation").inner_text() == about.equation
    by("token-10").click()
    by("layer-blocks.*-3").click()
    page.locator("[data-testid='layer-blocks.*-3'][aria-pressed=true]").wait_for()
    by("head-blocks.*.attention-1").click()
    by("view-heads").and_(page.locator("[aria-current]")).wait_for()
    browsing.ready()
    kept = {name: browsing.address[name] for name in ("view", "layer", "heads", "token")}
    assert kept == {"view": "heads", "layer": "3", "heads": "1", "token": "ask-10"}
    assert by("selection").inner_text().split() == ["layer", "4", "head", "2", "token", "11"]
    assert page.locator("[data-testid=where] rect.here").count() >= 1
    by("where-home").click()
    by("view-home").and_(page.locator("[aria-current]")).wait_for()
    browsing.ready()
    assert {name: browsing.address[name] for name in ("layer", "head", "token")} == {
        "layer": "3", "head": "1", "token": "10",
    }  # fmt: skip
    assert by("token-10").get_attribute("aria-pressed") == "true"
    by("part-tokens").click()
    by("view-map").and_(page.locator("[aria-current]")).wait_for()
    assert "layer 4 (kept)" in by("selection").inner_text()  # which the map does not show


def test_parts_unfold_down_to_their_matrices(browse: Callable[..., Any], minilm: Path) -> None:
    """The names are those of the checkpoint in the chosen layer, and everything adds up to the model's total."""
    browsing = browse(minilm)
    page = browsing.go("home", layer=2)
    folded = page.locator(".twist[aria-expanded=false]")
    while folded.count():
        folded.first.click()
    (subject,) = browsing.explorer.subjects.values()
    rows = page.get_by_test_id("matrix")
    shown = dict(
        rows.evaluate_all("all => all.map((one) => [one.dataset.name, one.querySelector('.quiet').textContent])")
    )
    layers = len(subject.attentions["blocks.*.attention.weights"])
    want = {
        name: " × ".join(map(str, weight.shape))
        for name, weight in subject.model.named_parameters()
        if not name.startswith("blocks.") or name.startswith("blocks.2.")
    }
    assert shown == want
    counts = rows.evaluate_all("all => all.map((one) => [one.dataset.name, one.querySelector('.count').textContent])")
    total = sum(int(count.replace(",", "")) * (layers if name.startswith("blocks.") else 1) for name, count in counts)
    assert total == sum(weight.numel() for weight in subject.model.parameters())
    page.get_by_test_id("undo").click()
    until(lambda: rows.count() < len(want))


def test_way_back_leads_to_the_same_unfolded_diagram(browse: Callable[..., Any], minilm: Path) -> None:
    """By the miniature, from a view that was opened from another one, and by undo, with layer, head and token."""
    browsing = browse(minilm)
    page, by = browsing.go("home", text=TIRED, layer=2, token=3), browsing.page.get_by_test_id
    by("unfold-tokens").click()
    by("unfold-blocks.*.mlp").click()
    until(lambda: browsing.address["open"].endswith("blocks.*.mlp"))
    shown = page.locator("[data-part], [data-testid=matrix]").count()
    address = browsing.address
    by("part-blocks.*.attention").click()
    until(lambda: browsing.address["view"] == "heads")
    assert browsing.address["layer"] == "2" and browsing.address["token"] == "ask-3"
    by("view-grid").click()
    by("where-home").click()
    until(lambda: {**browsing.address, "look": None} == {**address, "look": None})  # the kind of attention is kept
    browsing.ready()
    assert page.locator("[data-part], [data-testid=matrix]").count() == shown
    for _ in range(3):
        by("undo").click()
    until(lambda: browsing.address == address)
    assert page.locator("[data-part], [data-testid=matrix]").count() == shown


def test_selection_is_undone_and_redone(browse: Callable[..., Any], minilm: Path) -> None:
    browsing = browse(minilm)
    page, by = browsing.go("home", text=TIRED), browsing.page.get_by_test_id
    assert by("undo").is_disabled() and by("redo").is_disabled()
    by("token-3").click()
    by("layer-blocks.*-5").click()
    by("view-grid").click()
    until(lambda: browsing.address["view"] == "grid")
    by("undo").click()
    until(lambda: browsing.address["view"] == "home")
    by("undo").click()
    until(lambda: "layer" not in browsing.address)
    assert browsing.address["token"] == "3"
    by("redo").click()
    until(lambda: browsing.address.get("layer") == "5")
    page.keyboard.press("Control+z")
    until(lambda: "layer" not in browsing.address)
    page.keyboard.press("Control+Shift+Z")
    until(lambda: browsing.address.get("layer") == "5")
    by("undo").click()
    until(lambda: "layer" not in browsing.address)
    by("token-4").click()  # another choice: what was undone is gone
    until(lambda: browsing.address["token"] == "4")
    until(lambda: by("redo").is_disabled() and by("undo").is_enabled())


def test_selection_beyond_the_model_is_said(browse: Callable[..., Any], minilm: Path) -> None:
    browsing = browse(minilm)
    browsing.go("home", layer=30, head=40)
    words = browsing.page.get_by_test_id("selection").inner_text()
    assert "layer 6, the last (there is no 31)" in words
    assert "head 12, the last (there is no 41)" in words
    assert browsing.page.get_by_test_id("layer-blocks.*-5").get_attribute("aria-pressed") == "true"


def test_home_is_used_by_the_keyboard(browse: Callable[..., Any], minilm: Path) -> None:
    """Parts are reached by Tab, explained at once, and opened by Enter; layers are one stop with arrow keys."""
    browsing = browse(minilm)
    page, by = browsing.go("home", text=TIRED), browsing.page.get_by_test_id
    by("layer-blocks.*-0").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    until(lambda: browsing.address.get("layer") == "1")
    by("unfold-blocks.*.attention").focus()
    page.keyboard.press("Enter")
    by("part-blocks.*.attention.qkv").wait_for()
    page.keyboard.press("Tab")
    assert page.locator(":focus").get_attribute("data-testid") == "part-blocks.*.attention"
    assert by("equation").inner_text() == EXPLANATIONS["SelfAttention"].equation
    page.keyboard.press("Enter")
    until(lambda: browsing.address["view"] == "heads")
    browsing.ready()
    assert browsing.address["layer"] == "1"


def test_deep_model_is_a_small_page(browse: Callable[..., Any], deep: Path) -> None:
    """One block stands for 24; the others are as many buttons."""
    browsing = browse(deep)
    page = browsing.go("home")
    assert page.locator("[data-part^='blocks.*']").count() == 5
    assert page.locator("[data-figure] *").count() < 300
    page.get_by_test_id("layer-blocks.*-23").click()
    page.locator("[data-testid='layer-blocks.*-23'][aria-pressed=true]").wait_for()
    assert page.locator("[data-figure] *").count() < 300
    page.get_by_test_id("unfold-blocks.*.add1").click()
    page.get_by_test_id("unfold-blocks.*.add1.norm").click()
    page.locator("[data-name='blocks.23.add1.norm.weight']").wait_for()


def test_image_and_answer_are_those_of_the_model_s_view(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("captions"))
    page = browsing.go("home")
    (subject,) = browsing.explorer.subjects.values()
    words, _ = unpack(browsing.explorer.answer("caption", "captions", {"model": subject.name, "beams": 3}))
    assert page.get_by_test_id("answer-0").inner_text() == words["captions"][0]["text"]
    assert page.get_by_test_id("input").locator("canvas").count() == 1 + 3  # with three to choose from
    page.get_by_test_id("chip-2").click()
    page.wait_for_url(lambda url: f"image={words['images'][2]}" in url)
    browsing.ready()
    given = {"model": subject.name, "beams": 3, "image": words["images"][2]}
    words, _ = unpack(browsing.explorer.answer("caption", "captions", given))
    assert page.get_by_test_id("answer-0").inner_text() == words["captions"][0]["text"]
