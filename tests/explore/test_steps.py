"""One attention step by step: the values are the model's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from heedful.blocks.attention import attend
from heedful.blocks.masks import alibi, causal, dense
from heedful.blocks.memory import PredictiveSpan
from heedful.blocks.normalizers import sparsemax
from heedful.blocks.scores import SCORES, cosine, with_key_projection
from heedful.blocks.taps import Tap
from heedful.errors import UserError
from heedful.explore.capabilities import HasNormalize, HasScore
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer
from heedful.explore.views import InputRequest, steps
from patience import until
from tolerance import close, near

Arrays = dict[str, NDArray[Any]]
GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
TEXT = "The child came home from"


def request_of(explorer: Explorer, **more: Any) -> dict[str, Any]:
    (subject,) = explorer.subjects.values()
    return {"model": subject.name, "other": None, **subject.sample, **more}


def numbers(explorer: Explorer, **more: Any) -> tuple[dict[str, Any], Arrays]:
    return unpack(explorer.answer("steps", "head", request_of(explorer, **more)))


def attentions(explorer: Explorer, **more: Any) -> list[dict[str, Any]]:
    words, _ = unpack(explorer.answer("steps", "tokens", request_of(explorer, **more)))
    found: list[dict[str, Any]] = words["looks"]
    return found


def softmax(scores: NDArray[Any], masked: NDArray[Any]) -> NDArray[Any]:
    """In float64, over the keys that are not masked."""
    allowed = np.where(masked == 1, -np.inf, scores.astype(np.float64))
    raised = np.exp(allowed - allowed.max(1, keepdims=True))
    found: NDArray[Any] = raised / raised.sum(1, keepdims=True)
    return found


def check_stages(words: dict[str, Any], arrays: Arrays) -> None:
    """Each stage follows from the one before, computed here in float64."""
    q, k, v = (arrays[name].astype(np.float64) for name in ("queries", "keys", "values"))
    dots = q @ k.T
    np.testing.assert_allclose(arrays["dots"], dots, rtol=1e-6, atol=1e-6 * np.abs(dots).max())
    scaled = dots / math.sqrt(words["width"])
    np.testing.assert_allclose(scaled, arrays["scores"], rtol=1e-3, atol=1e-5 * np.abs(scaled).max())
    close(arrays["weights"], softmax(arrays["scores"], arrays["masked"]), slack=16)
    close(arrays["sums"], arrays["weights"].astype(np.float64) @ v)


@pytest.mark.claim("N2")
@pytest.mark.parametrize("name", ["translation", "gpt"])
def test_each_stage_follows_from_the_previous_one(run: Callable[[str], Path], name: str) -> None:
    explorer = Explorer([run(name)])
    for look in attentions(explorer):
        assert look["stages"] == ["vectors", "dot", "scale", "mask", "softmax", "sum"]
        for layer in range(look["layers"]):
            words, arrays = numbers(explorer, look=look["name"], layer=layer, head=look["heads"] - 1)
            check_stages(words, arrays)
            assert "bias" not in arrays
            ahead = np.triu(np.ones_like(arrays["masked"]), 1) if look["kind"] == "causal" else 0
            assert (arrays["masked"] == ahead).all()


@pytest.mark.claim("N2")
def test_values_are_those_of_the_taps_of_a_published_model(minilm: Path) -> None:
    from heedful.blocks.taps import watch
    from heedful.explore.inspect import reading

    explorer = Explorer([minilm])
    words, arrays = numbers(explorer, look="blocks.*.attention.weights", layer=3, head=7)
    check_stages(words, arrays)
    (subject,) = explorer.subjects.values()
    one = reading(subject.predictor, InputRequest(**request_of(explorer)))
    with torch.inference_mode(), watch(subject.model, "blocks.3.attention.*") as seen:
        one.passes[0].run()
    for name in ("queries", "keys", "values", "scores", "weights"):
        assert (arrays[name] == seen[f"blocks.3.attention.{name}"][0, 7].numpy()).all(), name


def test_bias_is_distinguished_from_rounding() -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, 2, 6, 8) for _ in range(3))
    for bias in (None, alibi(2)):
        seen: dict[str, torch.Tensor] = {}
        scores, weights = Tap(), Tap()
        scores.hook = lambda x, seen=seen: seen.update(scores=x)
        weights.hook = lambda x, seen=seen: seen.update(weights=x)
        attend(q, k, v, causal(), bias, scores=scores, weights=weights)
        for head in range(2):
            found = steps.dot_products(
                q[0, head], k[0, head], v[0, head], seen["scores"][0, head], seen["weights"][0, head]
            )
            assert ("bias" in found) == (bias is not None)
            if bias is not None:
                expected = dense(bias, q, k).expand(1, 2, 6, 6)[0, head]
                close(found["bias"].float(), expected)


def test_masked_keys_are_distinguished_from_tiny_weights() -> None:
    scores = torch.tensor([[3.0, 0.0, -200.0, 5.0], [1.0, 2.0, 3.0, 4.0]])
    weights = torch.tensor([[0.9526, 0.0474, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert steps.masked(scores, weights).tolist() == [[False, False, False, True], [True] * 4]


def test_attention_of_a_recurrent_decoder_has_its_own_stages(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("recurrent")])
    (look,) = attentions(explorer)
    assert look["stages"] == ["scores", "mask", "softmax", "sum"]
    _, arrays = numbers(explorer, look=look["name"], layer=0, head=0)
    assert set(arrays) == {"scores", "weights", "masked", "asking", "seen", "v"}
    close(arrays["weights"], softmax(arrays["scores"], arrays["masked"]), slack=16)
    # The values are the encoder's memory: what it is weighed with gives the products, whose sum is the context.
    (subject,) = explorer.subjects.values()
    memory = subject.trace(InputRequest(**request_of(explorer)), "encoder.output").values["encoder.output"].numpy()
    for query in (0, len(arrays["weights"]) - 1):
        given = request_of(explorer, look=look["name"], layer=0, head=0, query=query)
        _, found = unpack(explorer.answer("steps", "products", given))
        close(found["products"], arrays["weights"][query][:, None] * memory, slack=16)
        close(found["sums"], found["products"].astype(np.float64).sum(0))


@pytest.mark.parametrize("score", SCORES)
def test_terms_of_a_recurrent_decoder_s_scores_add_up_to_them(score: str) -> None:
    """Whatever the score; a window that favours its middle is no term."""
    explorer = Explorer([GOLDEN / "translation-seq2seq"])
    (subject,) = explorer.subjects.values()
    attention = subject.model.decoder.attention
    width = attention.score.v.weight.shape[1]
    torch.manual_seed(0)
    attention.score = with_key_projection(SCORES[score](width, width, 40)).requires_grad_(False)
    (look,) = attentions(explorer)
    for window in (None, 3):
        if window is not None:
            attention.span = PredictiveSpan(width, window).requires_grad_(False)
            subject._cache.clear()
        words, arrays = numbers(explorer, look=look["name"], layer=0, head=0)
        q, k = arrays["asking"].astype(np.float64)[:, None], arrays["seen"].astype(np.float64)[None]
        terms = np.tanh(q + k) * arrays["v"] if "v" in arrays else q * k
        assert (words["score"], "v" in arrays) == (score, score == "additive")
        if window is None:
            close(arrays["scores"], terms.sum(-1), dtype=torch.float32)
        else:
            assert np.abs(arrays["scores"] - terms.sum(-1)).max() > 0.1


def test_heads_with_another_score_have_the_values_times_their_weights() -> None:
    explorer = Explorer([GOLDEN / "translation-transformer"])
    (subject,) = explorer.subjects.values()
    for module in subject.model.modules():
        if isinstance(module, HasScore):
            module.score = cosine
    for look in attentions(explorer):
        assert "vectors" not in look["stages"]
        given = {"look": look["name"], "layer": 0, "head": 1}
        _, arrays = numbers(explorer, **given)
        request = InputRequest(**request_of(explorer))
        module = steps.module_of(subject.trace(request).attention(look["name"]), 0)
        v = subject.trace(request, f"{module}.*").values[f"{module}.values"][1].numpy()
        _, found = unpack(explorer.answer("steps", "products", request_of(explorer, **given, query=2)))
        close(found["products"], arrays["weights"][2][:, None] * v, slack=16)
        close(found["sums"], arrays["weights"][2].astype(np.float64) @ v, slack=16)


def test_page_names_the_normalizer(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("gpt"))
    model = browsing.explorer.subject("gpt").model
    attention = [module for module in model.modules() if isinstance(module, HasNormalize)]
    for module in attention:
        module.normalize = sparsemax
    (look,) = attentions(browsing.explorer)
    assert (look["normalizer"], look["stages"]) == ("sparsemax", ["vectors", "dot", "scale", "softmax", "sum"])
    page = browsing.go("steps", text=TEXT, step=3)
    assert page.get_by_test_id("stage-3").inner_text().split() == ["4", "sparsemax"]
    assert page.get_by_test_id("about").inner_text().startswith("Sparsemax: ")
    assert page.get_by_text("softmax", exact=True).count() == 0


def test_example_of_the_lectures(minilm: Path) -> None:
    words, arrays = unpack(Explorer([minilm]).answer("steps", "example", {}))
    assert (words["pieces"], words["width"]) == (["Thinking", "Machines"], 64)
    assert "mask" not in words["stages"]
    assert arrays["dots"].tolist() == [[112, 96]]
    assert arrays["scores"].tolist() == [[14, 12]]
    assert [round(float(one), 2) for one in arrays["weights"][0]] == [0.88, 0.12]
    check_stages(words, arrays)


def test_view_fits_models_with_attention_only(run: Callable[[str], Path]) -> None:
    expected = {"translation": True, "gpt": True, "recurrent": True, "rnn": False, "images": False}
    explorer = Explorer([run(name) for name in expected])
    assert {name: steps.fits(explorer.subject(name)) for name in expected} == expected


def test_invalid_requests_are_rejected(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("gpt")])
    look = attentions(explorer)[0]["name"]
    good = {"look": look, "layer": 0, "head": 0}
    wrong = ({"layer": 2}, {"head": 99}, {"look": "no such"}, {"text": "word " * 2000}, {"head": -1}, {"layer": 0.5})
    for more in wrong:
        with pytest.raises(UserError):
            numbers(explorer, **{**good, **more})
    assert numbers(explorer, **{**good, "text": ""})[1]["weights"].tolist() == [[1.0]]
    recurrent = Explorer([run("recurrent")])
    given = {"look": attentions(recurrent)[0]["name"], "layer": 0, "head": 0, "query": 5000}
    with pytest.raises(UserError, match="no such query"):
        recurrent.answer("steps", "products", request_of(recurrent, **given))


def test_saved_file_has_all_heads_of_the_layer(run: Callable[[str], Path]) -> None:
    for name in ("gpt", "recurrent"):
        explorer = Explorer([run(name)])
        look = attentions(explorer)[0]
        state = {**request_of(explorer), "layer": "7", "head": "x"}
        every = steps.calls(explorer.subject(state["model"]), state)
        assert sum(one.call == "head" for one in every) == look["heads"]
        assert sum(len(explorer.answer(*one)) for one in every) < 2_000_000


@pytest.mark.claim("N2")
def test_page_plays_the_stages_with_the_model_s_values(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("gpt"))
    given = {"model": "gpt", "text": TEXT, "other": None}
    page = browsing.go("steps", text=TEXT, layer=1)
    look = browsing.explorer.subject("gpt").trace(InputRequest(**given)).attentions[0]
    page.get_by_test_id("head").fill("2")
    page.get_by_test_id("query-3").click()
    browsing.ready()
    assert "head=2" in page.url
    assert "token=3" in page.url
    question = {**given, "look": look.name, "layer": 1, "head": 2}
    words, arrays = unpack(browsing.explorer.answer("steps", "head", question))
    check_stages(words, arrays)
    page.locator('[data-testid="steps"][data-query="3"]').wait_for()

    def column(name: str) -> list[float]:
        cells = page.locator(f'[data-testid^="{name}-"][data-value]')
        return [float(cell) for cell in cells.evaluate_all("all => all.map((one) => one.dataset.value)")]

    assert column("dot") == arrays["dots"][3].tolist()
    close(column("scale"), arrays["scores"][3])
    assert column("weight") == arrays["weights"][3].tolist()
    digits = {len(text.partition(".")[2]) for text in page.locator('[data-testid^="dot-"]').all_inner_texts()}
    assert len(digits) == 1  # one below the other
    crosses = page.locator('[data-testid^="mask-"]').all_inner_texts()
    assert [text == "×" for text in crosses] == (arrays["masked"][3] == 1).tolist()
    # Before its stage a column is not there to be seen; the player goes on by itself.
    page.get_by_test_id("stage-1").click()
    until(lambda: page.get_by_test_id("dot-0").is_visible())
    assert not page.get_by_test_id("scale-0").is_visible()
    page.get_by_test_id("play").click()
    page.locator('[data-testid="steps"][data-step="2"]').wait_for()
    assert page.get_by_test_id("scale-0").is_visible()
    # The numbers move over from the column before, where motion is wanted.
    assert (
        page.locator(".moved [data-testid=scale-0]").get_attribute("data-from")
        == page.get_by_test_id("dot-0").inner_text()
    )
    moves = "one => getComputedStyle(one, '::before').animationName + getComputedStyle(one).animationName"
    assert "none" not in page.get_by_test_id("scale-0").evaluate(moves)
    page.emulate_media(reduced_motion="reduce")
    assert "none" in page.get_by_test_id("scale-0").evaluate(moves)
    page.locator('[data-testid="steps"][data-step="3"]').wait_for()
    page.get_by_test_id("play").click()
    # A strip shows its numbers.
    page.get_by_test_id("asking").focus()
    page.keyboard.press("ArrowRight")
    readout = page.get_by_test_id("pointed").inner_text().replace("−", "-")
    assert readout.startswith("query of")
    assert float(readout.split(": ")[1]) == pytest.approx(float(arrays["queries"][3, 0]), rel=1e-3)
    # The lectures' own example, whatever the model.
    page.get_by_test_id("example").select_option("lectures")
    browsing.ready()
    page.get_by_test_id("weight-1").wait_for()
    shown = [page.get_by_test_id(name).inner_text().strip() for name in ("dot-0", "dot-1", "scale-0", "scale-1")]
    assert shown == ["112", "96", "14", "12"]
    assert [page.get_by_test_id(f"weight-{key}").inner_text().strip() for key in (0, 1)] == ["0.88", "0.12"]


def test_page_shows_attention_of_a_recurrent_decoder(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("recurrent"))
    page = browsing.go("steps", token=1)
    given = request_of(browsing.explorer)
    look = browsing.explorer.subject("recurrent").trace(InputRequest(**given)).attentions[0].name
    _, arrays = unpack(browsing.explorer.answer("steps", "head", {**given, "look": look, "layer": 0, "head": 0}))
    cells = page.locator('[data-testid^="score-"]')
    values = [float(cell) for cell in cells.evaluate_all("all => all.map((one) => one.dataset.value)")]
    assert values == arrays["scores"][1].tolist()
    assert page.get_by_test_id("sum").is_visible()
    assert page.get_by_test_id("key-vectors").count() == 0
    # The terms of a score: v tanh(query part + key part) of each dimension, the largest first.
    page.get_by_test_id("score-2").click()
    terms = np.tanh(arrays["asking"][1] + arrays["seen"][2]) * arrays["v"]
    shown = page.locator("[data-testid^=term-]").evaluate_all("all => all.map((one) => one.dataset.value)")
    largest = sorted(terms.tolist(), key=abs, reverse=True)[: len(shown)]
    assert len(shown) == 8 and [float(one) for one in shown] == near(largest)
    others = page.get_by_test_id("others").get_attribute("data-value")
    assert sum(map(float, (*shown, others))) == near(float(arrays["scores"][1, 2]), of=terms)
    said = page.get_by_test_id("terms").inner_text()
    assert said.startswith("v · tanh(W q + U k) of") and said.count("tanh(") == 9
    page.get_by_test_id("score-2").click()
    page.get_by_test_id("terms").wait_for(state="detached")


@pytest.mark.parametrize("name", ["gpt", "translation"])
def test_steps_after_the_attention_are_the_model_s_own(run: Callable[[str], Path], name: str) -> None:
    """Each follows from the one before, and the last are the outputs of the blocks and the logits."""
    explorer = Explorer([run(name)])
    subject = explorer.subject(name)
    look = attentions(explorer)[-1]  # of a translator, the cross-attention, whose block then has the feed-forward layer
    layer, query = 1 if look["layers"] > 1 else 0, 2
    each = [numbers(explorer, look=look["name"], layer=layer, head=head)[1]["sums"] for head in range(look["heads"])]
    given = request_of(explorer, look=look["name"], layer=layer, head=0, query=query)
    words, found = unpack(explorer.answer("steps", "rest", given))
    norm = "norm" if subject.model.config.norm == "post" else None
    sublayers = ["heads side by side", "output matrix", "residual", "norm", "hidden layer", "feed-forward", "residual"]
    blocks = [f"block {number + 1}" for number in range(layer, look["layers"])]
    assert words["stages"] == [*sublayers, *([norm] if norm else []), *blocks]
    close(found["s0"], np.concatenate([one[query] for one in each]), slack=64)
    block = subject.model.get_submodule(look["name"].replace("*", str(layer)).rsplit(".", 2)[0])
    inner = subject.model.get_submodule(look["name"].replace("*", str(layer)).rpartition(".")[0])
    with torch.no_grad():
        for module, before, after in ((inner.out, "s0", "s1"), (block.mlp.down, "s4", "s5")):
            weight, bias = (part.double().numpy() for part in (module.weight, module.bias))
            close(found[after], found[before].astype(np.float64) @ weight.T + bias, slack=64)
    if norm is None:
        close(found["s6"], found["s2"].astype(np.float64) + found["s5"], slack=16)
    trace = subject.trace(InputRequest(**request_of(explorer)), "*.output")
    stack = look["name"].split(".")[0]
    for number in range(layer, look["layers"]):
        place = words["stages"].index(f"block {number + 1}")
        close(found[f"s{place}"], trace.values[f"{stack}.{number}.output"][query].numpy(), slack=16)
    last = trace.output[0, query].double().softmax(-1)
    top = last.topk(5)
    assert [piece for piece, _, _ in words["top"]] == subject.predictor.tokenizer.pieces(top.indices.tolist())
    close(np.float32([share for _, _, share in words["top"]]), top.values.float().numpy(), slack=64)


def test_recurrent_decoder_goes_on_to_its_logits(run: Callable[[str], Path]) -> None:
    """Its state after it has read the context, the output matrix, and the logits of the next token."""
    explorer = Explorer([run("recurrent")])
    subject = explorer.subject("recurrent")
    (look,) = attentions(explorer)
    given = request_of(explorer, look=look["name"], layer=0, head=0, query=3)
    words, found = unpack(explorer.answer("steps", "rest", given))
    assert words["stages"] == ["decoder state", "output matrix"]
    trace = subject.trace(InputRequest(**request_of(explorer)), "decoder.*")
    states = [value for name, value in trace.values.items() if name.endswith(".cell.hidden")]
    close(found["s0"], states[-1][3].numpy(), slack=16)
    out = subject.model.decoder.out
    with torch.no_grad():
        close(found["s1"], out(torch.from_numpy(found["s0"].copy())).numpy(), slack=64)
    top = trace.output[0, 3].softmax(-1).topk(5)
    assert [piece for piece, _, _ in words["top"]] == subject.predictor.tokenizer.pieces(top.indices.tolist())
    close(np.float32([share for _, _, share in words["top"]]), top.values.float().numpy(), slack=64)


@pytest.mark.parametrize("name", ["pretraining-albert", "translation-transformer", "classification-classifier"])
def test_every_layer_leads_to_what_the_model_predicts(name: str) -> None:
    """Also where layers share their weights, where there is a single one, and where a class is predicted."""
    explorer = Explorer([GOLDEN / name])
    subject = explorer.subject(name)
    given = {"model": name, **{key: text for key, text in subject.sample.items() if text}}
    for look in unpack(explorer.answer("steps", "tokens", given))[0]["looks"]:
        for layer in range(look["layers"]):
            asked = {**given, "look": look["name"], "layer": layer, "head": 0, "query": 0}
            words, _ = unpack(explorer.answer("steps", "rest", asked))
            sublayers = 2 if look["title"] != "decoder masked self" else 3
            assert words["stages"].count("residual") == sublayers, (look["title"], layer)
            assert words["stages"][-1] == f"block {look['layers']}"
            if name == "classification-classifier":
                best = subject.predictor.classify([given["text"]])[0]
                assert words["says"] == "the class" and words["answers"][0] == [
                    best.label,
                    pytest.approx(best.probability),
                ]
            else:
                assert len(words["top"]) == (0 if look["title"] == "encoder self" else 5)


def test_page_unfolds_a_dot_product_and_goes_on_to_the_logits(
    browse: Callable[..., Any], run: Callable[[str], Path]
) -> None:
    browsing = browse(run("gpt"))
    page = browsing.go("steps", text=TEXT, layer=0, head=1, token=3)
    look = attentions(browsing.explorer, text=TEXT)[0]["name"]
    given = request_of(browsing.explorer, text=TEXT, look=look, layer=0, head=1)
    _, arrays = unpack(browsing.explorer.answer("steps", "head", given))
    page.get_by_test_id("dot-1").click()
    terms = arrays["queries"][3] * arrays["keys"][1]
    shown = page.locator("[data-testid^=term-]").evaluate_all("all => all.map((one) => one.dataset.value)")
    largest = sorted(terms.tolist(), key=abs, reverse=True)[: len(shown)]
    assert [float(one) for one in shown] == pytest.approx(largest, rel=1e-5)
    words, _ = unpack(browsing.explorer.answer("steps", "rest", {**given, "head": 0, "query": 3}))
    logits = page.locator("[data-testid^=logit-]").evaluate_all("all => all.map((one) => one.dataset.value)")
    assert [float(one) for one in logits] == pytest.approx([logit for _, logit, _ in words["top"]])
    assert page.locator("[data-testid^=rest-]").count() == len(words["stages"])
    page.get_by_test_id("next-block").click()
    page.wait_for_url(lambda url: "layer=1" in url and "step=0" in url and "head=1" in url and "token=3" in url)
    browsing.ready()
    page.get_by_test_id("stage-5").click()
    page.get_by_test_id("rest").wait_for()
    assert page.get_by_test_id("next-block").count() == 0  # the last layer
    page.get_by_test_id("text").fill(TEXT + " town")
    page.wait_for_url(lambda url: "town" in url)
    browsing.ready()
    after = page.locator("[data-testid^=query-]").count()
    longer = InputRequest(model="gpt", text=f"{TEXT} town")
    assert after == len(browsing.explorer.subject("gpt").trace(longer).reading.sides["text"])
