"""Maps of embeddings: the page shows what the lectures and the encoder compute."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity

from generators import return_value
from heedful.blocks.features import FEATURES
from heedful.errors import UserError
from heedful.explore.export import Export, page_of
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer, Subject
from heedful.explore.views import map as view
from heedful.lectures import occurrences
from heedful.lectures.contexts import SENTENCES, WORD, Settings, study, word_vectors
from heedful.lectures.occurrences import principal_components
from heedful.models import build
from heedful.models.elmo.config import ElmoConfig
from heedful.runs.load import read_recipe
from patience import until
from tolerance import close, near, tolerance

LINES = list(SENTENCES)
RUNS = Path(__file__).parents[1] / "golden" / "runs"


@pytest.fixture(scope="module")
def explorer(minilm: Path, run: Callable[[str], Path]) -> Explorer:
    return Explorer([minilm, *(run(name) for name in ("images", "translation", "gpt", "recurrent"))])


@pytest.fixture(scope="module")
def encoder(explorer: Explorer) -> Subject:
    return explorer.subject(name_of(explorer))


def name_of(explorer: Explorer) -> str:
    """The name of the encoder, or of the only open model."""
    return next((name for name, one in explorer.subjects.items() if hasattr(one.predictor, "embed")), "images")


def ask(explorer: Explorer, call: str, **asked: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return unpack(explorer.answer("map", call, {"model": name_of(explorer), **asked}))


def distances(points: Any) -> torch.Tensor:
    """The pairwise distances of points, which do not change under rotation."""
    return torch.cdist(torch.tensor(points).double(), torch.tensor(points).double())


def test_cosines_of_a_word_in_contexts_are_those_of_the_lecture(explorer: Explorer, minilm: Path) -> None:
    words, arrays = ask(explorer, "contexts", of="word", lines=LINES)
    right = return_value(study(Settings(model=str(minilm))))
    assert words["layers"] == ["table", "embedded", "1", "2", "3", "4", "5", "6"]
    close(arrays["cosines"][:, 0], right.cosines.numpy())
    close(arrays["cosines"][0], np.ones_like(arrays["cosines"][0]))  # a word alone is one vector
    assert arrays["cosines"][-1, 0, 2] > arrays["cosines"][-1, 0, 5]  # a device beside a device and an animal


def test_maps_of_occurrences_are_those_of_the_lecture(explorer: Explorer, encoder: Subject) -> None:
    words, arrays = ask(explorer, "points", of="word", lines=LINES)
    assert (words["word"], words["groups"]) == (WORD, list(range(6)))
    vectors = word_vectors(encoder.predictor, WORD, SENTENCES)  # (N, L + 2, D)
    for layer in range(8):
        points, held = principal_components(vectors[:, layer])
        close(distances(arrays["points"][layer]), distances(points.numpy()), 1024, torch.float32, of=vectors[:, layer])
        if layer:  # of one point there is no spread
            assert arrays["held"][layer] == near(held)
    close(arrays["points"][7], principal_components(vectors[:, 7])[0], slack=1024)


def test_each_layer_is_rotated_to_match_the_next(explorer: Explorer) -> None:
    _, arrays = ask(explorer, "points", of="tokens", lines=LINES)
    turns = [torch.tensor([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]]) for a in np.linspace(0, 2 * np.pi, 37)]
    mirrored = [turn @ torch.diag(torch.tensor([1.0, -1.0], dtype=turn.dtype)) for turn in turns]
    maps = torch.tensor(arrays["points"]).double()
    for this, after in pairwise(maps[:8]):
        here, slack = (this - after).square().sum(), tolerance(after.square().sum(), dtype=torch.float32)
        assert all(here <= (this @ turn.double() - after).square().sum() + slack for turn in (*turns, *mirrored))


def test_tokens_have_the_encoder_s_vectors_in_every_layer(explorer: Explorer, encoder: Subject) -> None:
    words, _ = ask(explorer, "points", of="tokens", lines=LINES)
    read = encoder.predictor.layers(LINES)
    own = [slice(1, -1)] * len(read)  # without [CLS] and [SEP]
    assert words["names"] == [piece for one in read for piece in one.pieces[1:-1]]
    assert words["layers"][-3:] == ["sum_last_four", "concat_last_four", "sum_all"]
    for layer, made in (
        *((str(number), lambda x, number=number: x[number]) for number in range(1, 7)),
        *((name, lambda x, name=name: FEATURES[name](list(x))) for name in view.JOINED),
    ):
        vectors = torch.cat([made(one.values)[some] for one, some in zip(read, own, strict=True)])
        found = ask(explorer, "cosines", of="tokens", lines=LINES, layer=layer)[1]["cosines"]
        close(found, cosine_similarity(vectors.double().numpy()))


def test_sentences_are_pooled_as_by_the_encoder(explorer: Explorer, encoder: Subject) -> None:
    words, arrays = ask(explorer, "points", of="sentences", lines=LINES)
    vectors = encoder.predictor.embed(LINES)
    points, held = principal_components(vectors)
    assert words["names"] == LINES
    place = words["layers"].index(words["last"])
    close(arrays["points"][place], points, slack=1024)
    assert arrays["held"][place] == near(held)


def test_codes_are_those_of_the_test_images(explorer: Explorer) -> None:
    autoencoder = explorer.subject("images").predictor
    images = view.test_images(explorer.subject("images").folder)
    words, arrays = ask(explorer, "points", model="images", of="codes")
    assert words["layers"] == ["pixels", "code"]
    assert [words["titles"][group] for group in words["groups"]] == words["names"]
    assert words["groups"] == images.labels.tolist()
    codes = torch.from_numpy(autoencoder.encode(images.pixels))
    close(arrays["points"][1], principal_components(codes)[0], slack=1024)
    assert arrays["pictures"].shape == (len(images), 8, 8, 1)
    assert np.array_equal(arrays["pictures"][..., 0], np.round(images.pixels[:, 0] * 255).astype(np.uint8))
    cosines = ask(explorer, "cosines", model="images", of="codes", layer="code")[1]["cosines"]
    close(cosines, cosine_similarity(autoencoder.encode(images.pixels)))


def test_t_sne_is_reproducible_and_rotated_to_match_pca(explorer: Explorer) -> None:
    asked = {"of": "tokens", "lines": LINES, "layer": "6"}
    first, second = (ask(explorer, "tsne", **asked)[1]["points"] for _ in range(2))
    assert np.array_equal(first, second) and first.shape == (49, 2)
    like = ask(explorer, "points", of="tokens", lines=LINES)[1]["points"][7]
    assert all((first * sign * like).sum() <= (first * like).sum() for sign in ([1, -1], [-1, 1], [-1, -1]))
    with pytest.raises(UserError, match="too few"):
        ask(explorer, "tsne", of="tokens", lines=["one two"], layer="6")


@pytest.mark.parametrize("kind", ["classification-classifier", "text_classification-rnn_classifier"])
def test_texts_of_the_data_have_what_the_classifier_reads(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RUNS / kind)
    explorer = Explorer([RUNS / kind])
    start, _ = ask(explorer, "begin", model=kind)
    assert start["of"][0] == "data" and start["texts"] == 8
    items = read_recipe(RUNS / kind).data.read("test").items
    words, arrays = ask(explorer, "points", model=kind, of="data")
    assert words["names"] == [item.text for item in items] and arrays["points"].shape[1:] == (8, 2)
    assert [words["titles"][group] for group in words["groups"]] == [item.label for item in items]
    predictor = explorer.subject(kind).predictor
    found = predictor.predict(words["names"])
    assert [words["titles"][group] for group in words["predicted"]] == [one.label for one in found]
    features = view.cloud(explorer.subject(kind), view.MapRequest(model=kind, of="data")).layers["features"]
    logits = predictor.model.head(features).softmax(-1)
    close(logits, torch.tensor([list(one.probabilities.values()) for one in found]))
    near_one = ask(explorer, "near", model=kind, of="data", layer="features", point=2)[1]["cosines"]
    close(near_one, cosine_similarity(features.double().numpy())[2])
    with pytest.raises(UserError, match="no such point"):
        ask(explorer, "near", model=kind, of="data", layer="features", point=8)


def test_images_of_the_data_have_what_the_classifier_reads(
    browse: Callable[..., Any], run: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by its true and its predicted class; a point opens its image."""
    browsing = browse(run("vit"))
    explorer, predictor = browsing.explorer, browsing.explorer.subject("vit").predictor
    images = view.test_images(run("vit"))
    start, _ = ask(explorer, "begin", model="vit")
    assert (start["of"], start["texts"], start["what"]) == (["data"], len(images), "images")
    words, arrays = ask(explorer, "points", model="vit", of="data")
    assert words["layers"] == ["pixels", "features"] and words["images"] == list(range(len(images)))
    assert words["groups"] == images.labels.tolist()
    found = predictor.predict(list(images.pixels))
    assert [words["titles"][group] for group in words["predicted"]] == [one.label for one in found]
    with torch.no_grad():
        features = predictor.model.features(predictor.inputs(list(images.pixels)))
    close(arrays["points"][1], principal_components(features)[0], slack=4096)
    page = browsing.go("map")
    page.get_by_test_id("canvas").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.get_by_test_id("open-image").click()
    page.wait_for_url(lambda url: "view=image" in url)
    assert browsing.address["image"] == "0"  # the first point
    monkeypatch.setattr(view, "VALUES", 0)  # of large images
    assert view.own_images(explorer.subject("vit")) == [
        number * len(images) // view.LEAST_IMAGES for number in range(view.LEAST_IMAGES)
    ]


def test_components_of_many_vectors_are_those_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = torch.randn(40, 9, generator=torch.Generator().manual_seed(0))
    points, share = principal_components(vectors)
    monkeypatch.setattr(occurrences, "MANY", 30)
    found, held = principal_components(vectors)
    close(found, points, slack=1024)
    assert held == near(share)


@pytest.mark.parametrize("name", ["translation", "gpt", "recurrent"])
def test_every_kind_of_model_has_layers_and_words(explorer: Explorer, name: str) -> None:
    subject = explorer.subject(name)
    start, _ = ask(explorer, "begin", model=name)
    assert start["of"] == ["tokens", "sentences", "word", "table"] and start["lines"]
    words, arrays = ask(explorer, "points", model=name, of="tokens", lines=["two hundred", "one hundred"])
    own = [layer for layer in words["layers"] if layer not in view.JOINED]
    assert own == ["table", *map(str, range(1, len(own)))]
    whole = [subject.predictor.tokenizer.encode(line).pieces for line in ("two hundred", "one hundred")]
    assert words["names"] == [piece for pieces in whole for piece in pieces]
    assert words["words"] == {"hundred": 2} and np.isfinite(arrays["points"]).all()
    table, points = ask(explorer, "points", model=name, of="table")
    assert len(table["names"]) == points["points"].shape[1] > 30


def test_layers_of_a_translator_are_its_encoder_s(explorer: Explorer) -> None:
    subject = explorer.subject("translation")
    (line,) = view.read_lines(subject, ["two hundred five"])
    (ids,) = subject.predictor.source_ids(["two hundred five"])
    model, row = subject.model, torch.tensor([ids])
    with torch.inference_mode():
        x = model.embed(row, torch.arange(len(ids)))
        for number, block in enumerate(model.encoder, 1):
            x = block(x, None, None, torch.arange(len(ids)))
            close(line.layers[str(number)], x[0])


def test_bidirectional_model_has_both_directions(explorer: Explorer) -> None:
    class Hook:
        model: Any = build(
            ElmoConfig(vocab=explorer.subject("translation").model.config.vocab, width=8, hidden=8)
        ).eval()
        tokenizer = explorer.subject("translation").predictor.tokenizer
        device = torch.device("cpu")

    subject = Subject("hook", Path())
    subject.__dict__["predictor"] = Hook()
    (line,) = view.read_lines(subject, ["two hundred"])
    own = torch.tensor([[3, *Hook.tokenizer.ids(["two hundred"])[0], 3]])
    right = Hook.model.layers(own)[0]  # (L + 1, T, 2 * D)
    close(line.layers["1"], right[1])
    assert line.layers["1"].shape[1] == 16
    assert [span is None for span in line.spans] == [True, *[False] * (own.shape[1] - 2), True]


def test_view_fits_models_with_vectors(explorer: Explorer) -> None:
    first = {name: view.offered(one)[0] for name, one in explorer.subjects.items()}
    assert first == {name: "codes" if name == "images" else "tokens" for name in explorer.subjects}
    with pytest.raises(UserError, match="no such points"):
        ask(explorer, "points", of="codes")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"lines": []}, "nothing to map"),
        ({"lines": [""]}, "nothing to map"),
        ({"lines": ["word " * 1000]}, "too long|2000"),
        ({"lines": ["a b c d e f g h i j k l m n o p q r s t"] * 60}, "too many"),
        ({"of": "word", "lines": LINES, "word": "elephant"}, "none of the lines"),
        ({"lines": LINES, "layer": "../7"}, "no such layer"),
    ],
)
def test_invalid_requests_are_rejected(explorer: Explorer, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ask(explorer, "cosines" if "layer" in asked else "points", **{"of": "tokens", **asked})


def test_one_point_and_a_masked_token_have_a_map(explorer: Explorer) -> None:
    assert ask(explorer, "points", of="tokens", lines=["mouse"])[1]["points"].shape[1:] == (1, 2)
    words, _ = ask(explorer, "points", of="tokens", lines=["the [MASK] ran"])
    assert "[MASK]" in words["names"]


def test_error_for_missing_images_has_no_path(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(folder: Path) -> None:
        raise UserError("there is no such file", found="/a/secret/place")

    monkeypatch.setattr(view, "test_images", gone)
    with pytest.raises(UserError, match="cannot be read") as error:
        view.codes(explorer.subject("images"), view.MapRequest(model="images", of="codes"))
    assert "secret" not in str(error.value)


@pytest.mark.claim("F18")
@pytest.mark.claim("F23")
def test_layers_and_neighbours_in_the_page_are_those_of_the_lecture(browse: Callable[..., Any], minilm: Path) -> None:
    browsing = browse(minilm)
    page = browsing.go("map", of="word")
    right = return_value(study(Settings(model=str(minilm)))).cosines  # (L + 2, N)
    for layer in range(8):
        for other in range(1, 6):
            shown = float(page.get_by_test_id(f"cosine-{layer}-{other}").get_attribute("data-value"))
            assert shown == near(float(right[layer, other]))
    before = page.get_by_test_id("canvas").screenshot()
    page.get_by_test_id("layer").fill("2")
    page.locator('[data-testid="map"][data-at="1"][data-ready="true"]').wait_for()
    assert "at=1" in page.url and page.get_by_test_id("canvas").screenshot() != before
    _, arrays = ask(browsing.explorer, "points", of="word", lines=LINES)
    assert page.get_by_test_id("held").inner_text() == f"{100 * arrays['held'][2]:.1f} %"
    page.get_by_test_id("of").select_option("tokens")
    page.locator('[data-testid="map"][data-count="49"][data-ready="true"]').wait_for()
    page.get_by_test_id("canvas").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.get_by_test_id("near-0").wait_for()
    _, found = ask(browsing.explorer, "cosines", of="tokens", lines=LINES, layer="6")
    order = np.argsort(-found["cosines"][0], kind="stable")
    order = [place for place in order if place != 0][:10]
    shown = [page.get_by_test_id(f"near-{number}") for number in range(10)]
    assert [one.inner_text().split("\n")[-1] for one in shown] == [
        f"{found['cosines'][0][place]:.3f}" for place in order
    ]
    page.get_by_test_id("lines").fill("the king rules\nthe queen rules")
    page.locator('[data-testid="map"][data-count="6"][data-ready="true"]').wait_for()
    for width in (1280, 1024):
        page.set_viewport_size({"width": width, "height": 860})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_page_shows_codes_as_their_images(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("images"))
    page = browsing.go("map", point=3, way="tsne")
    _, found = ask(browsing.explorer, "cosines", of="codes", layer="code")
    best = sorted((-value, place) for place, value in enumerate(found["cosines"][3]) if place != 3)[0]
    first = page.get_by_test_id("near-0")
    assert first.get_attribute("data-place") == str(best[1])
    assert first.inner_text().split("\n")[-1] == f"{-best[0]:.3f}"


def test_page_zooms_filters_finds_and_opens_texts(browse: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "classification-classifier"
    monkeypatch.chdir(RUNS / kind)
    browsing = browse(RUNS / kind)
    page = browsing.go("map")
    words, _ = ask(browsing.explorer, "points", model=kind, of="data")
    canvas = page.get_by_test_id("canvas")

    def picture() -> str:
        browsing.ready()
        page.mouse.move(0, 0)
        found: str = canvas.evaluate("canvas => canvas.toDataURL()")
        return found

    def stated(name: str) -> str | None:
        found: str | None = page.evaluate("name => new URLSearchParams(location.hash.slice(1)).get(name)", name)
        return found

    def at(name: str, value: str | None) -> None:
        until(lambda: stated(name) == value)

    whole = picture()
    canvas.hover(position={"x": 200, "y": 200})
    page.mouse.wheel(0, -300)
    until(lambda: float((stated("zoom") or "1").split(",")[0]) > 1.2)
    closer, before = picture(), stated("zoom")
    page.mouse.move(*(canvas.bounding_box()[side] + 150 for side in "xy"))
    page.mouse.down()
    page.mouse.move(*(canvas.bounding_box()[side] + 190 for side in "xy"), steps=4)
    page.mouse.up()
    until(lambda: stated("zoom") != before)
    assert stated("point") is None, "what is dragged is not selected"
    assert len({whole, closer, picture()}) == 3
    canvas.focus()
    page.keyboard.press("0")
    at("zoom", None)
    assert picture() == whole
    page.keyboard.press("+")
    until(lambda: stated("zoom") is not None)
    page.get_by_test_id("zoom-all").click()
    at("zoom", None)

    side = words["groups"][0]
    page.get_by_test_id(f"only-{side}").click()
    at("only", str(side))
    assert picture() != whole
    page.get_by_test_id(f"only-{side}").click()
    at("only", None)
    word = words["names"][0].split()[1]
    page.get_by_test_id("find").fill(word.upper())
    count = sum(word in name for name in words["names"])
    page.get_by_test_id("matches").get_by_text(f"{count} found").wait_for()
    assert picture() != whole
    page.get_by_test_id("find").fill(words["names"][3])
    page.get_by_test_id("matches").get_by_text("1 found").wait_for()
    canvas.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    at("point", "3")
    page.get_by_test_id("open-classifier").click()
    at("view", "classifier")
    assert stated("text") == words["names"][3] and stated("find") is None


def test_too_many_lines_are_rejected_in_the_page(browse: Callable[..., Any], minilm: Path) -> None:
    page = browse(minilm).go("map", lines="the king rules", point="1.5", at="nowhere")
    page.get_by_test_id("lines").fill("\n".join(["the king"] * 65))
    page.get_by_text("there are too many lines for a map").wait_for()
    page.get_by_test_id("lines").fill("a king")
    page.locator('[data-testid="map"][data-count="2"][data-ready="true"]').wait_for()
    page.get_by_test_id("joined").select_option("sum_last_four")
    page.locator('[data-testid="map"][data-at="sum_last_four"][data-ready="true"]').wait_for()
    assert page.get_by_test_id("trouble").count() == page.get_by_test_id("layer").count() == 0


def test_saved_file_has_t_sne_if_shown(explorer: Explorer, encoder: Subject) -> None:
    def bent(**state: str) -> list[str]:
        given = {"model": encoder.name, "of": "tokens", **state}
        return [
            one.settings["layer"] for one in view.calls(explorer.subject(given["model"]), given) if one.call == "tsne"
        ]

    assert bent() == bent(way="tsne", lines="a king") == []
    layers = ask(explorer, "points", of="tokens", lines=LINES)[0]["layers"]
    assert bent(way="tsne") == layers
    assert bent(way="tsne", lines="\n".join(["the king rules the land"] * 30), at="2") == ["2"]


def test_saved_file_has_every_layer(explorer: Explorer, encoder: Subject) -> None:
    for of in ("tokens", "word"):
        state = {"model": encoder.name, "of": of}
        asked = [(one.call, one.settings.get("layer")) for one in view.calls(explorer.subject(state["model"]), state)]
        assert {("points", None), ("cosines", "table"), ("cosines", "sum_last_four")} <= set(asked)
        assert (("contexts", None) in asked) == (of == "word")
        assert len(page_of(explorer, Export(view="map", state=state))) < 10_000_000
