"""Quantities of predictions: without heads, of the next and of masked tokens, of a beam search; and of gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.errors import UserError, shown
from heedful.explore.lessons.state import MOST, Choice, Page, number, ranking, softmax


def heads_off(page: Page, off: str) -> list[list[int]]:
    """Heads from their text in the address, such as 2.0.1,2.1.0, where * stands for all: 2.0.* for a layer."""
    header, _ = page.ask("heads", "tokens", **page.texts())
    heads: list[list[int]] = []
    for one in filter(None, off.split(",")):
        parts = one.split(".")
        if len(parts) != 3 or not all(part == "*" or part.isdecimal() for part in parts):
            raise UserError("invalid heads", where="off", found=shown(one), expected="such as 2.0.1 or 2.*.*")
        heads += [
            [look, layer, head]
            for look, kind in enumerate(header["looks"]) if parts[0] in ("*", str(look))
            for layer in range(kind["layers"]) if parts[1] in ("*", str(layer))
            for head in range(kind["heads"]) if parts[2] in ("*", str(head))
        ]  # fmt: skip
    return heads


def says(page: Page, off: str) -> dict[str, Any]:
    """The prediction without some heads."""
    place = {"place": number(page, "place")} if "place" in page.state else {}
    return page.ask("ablation", "says", **page.texts(), **place, off=heads_off(page, off))[0]


def prediction(page: Page) -> str:
    return str(says(page, page.state.get("off", ""))["answers"][0]["text"])


def loss(page: Page) -> float:
    return float(says(page, page.state.get("off", ""))["loss"])


def token_losses(page: Page) -> list[Choice]:
    """The tokens of a target by their loss after those before them."""
    header, arrays = page.ask("ablation", "says", **page.texts(), off=heads_off(page, page.state.get("off", "")))
    return ranking(header["pieces"], arrays["losses"])


def missed(page: Page) -> list[Choice]:
    """The heads of a layer by how much the loss rises without each."""
    header, _ = page.ask("heads", "tokens", **page.texts())
    names = [one["name"] for one in header["looks"]]
    look = names.index(page.state["look"]) if page.state.get("look") in names else 0
    place = {"place": number(page, "place")} if "place" in page.state else {}
    before = says(page, "")["loss"]
    _, arrays = page.ask("ablation", "alone", **page.texts(), **place, look=look, layer=number(page, "layer"))
    return ranking([f"head {head + 1}" for head in range(len(arrays["losses"]))], arrays["losses"] - before)


def next_shares(page: Page) -> tuple[list[str], NDArray[np.float64]]:
    """All tokens, the most probable next one first, and their probabilities at the temperature of the state."""
    given = {key: value for key, value in page.texts().items() if value is not None}
    then = [int(one) for one in page.state.get("then", "").split(",") if one.isdecimal()]
    _, arrays = page.ask("next", "logits", **given, **({"then": then} if then else {}))
    logits = arrays["logits"].astype(np.float64)
    logits[arrays["never"]] = -np.inf
    shares = softmax(logits / max(0.01, float(page.state.get("temperature", "1"))))
    header, _ = page.ask("next", "vocabulary", model=given["model"])
    best = np.argsort(-logits, kind="stable")
    return [header["pieces"][one] for one in best], shares[best]


def next_token(page: Page) -> list[Choice]:
    names, shares = next_shares(page)
    order = sorted(
        range(min(number(page, "top", 6), MOST)), key=lambda at: names[at].lower()
    )  # the order must not tell the answer
    return ranking([names[at] for at in order], shares[order])


def next_probability(page: Page) -> float:
    return float(next_shares(page)[1][0])


def tail(page: Page) -> float:
    """The probability of all tokens but the `keep` most probable ones."""
    return float(next_shares(page)[1][number(page, "keep", 10) :].sum())


def nucleus(page: Page) -> float:
    """The most probable tokens whose probabilities sum to `p`, those that top-p keeps."""
    sums = next_shares(page)[1].cumsum()
    return min(int(np.searchsorted(sums, float(page.state.get("p", "0.9")))) + 1, len(sums))


def filled(page: Page) -> list[Choice]:
    """The most probable tokens for the first masked one."""
    given = {"hidden": [int(one) for one in page.state.get("hidden", "").split(",") if one.isdecimal()]}
    header, arrays = page.ask("fill", "guess", **page.texts(), **given)
    if not header["words"]:
        raise UserError("no token is masked", where="hidden", expected="the position of a token, such as hidden=3")
    pairs = sorted(zip(header["words"][0][:6], arrays["shares"][0], strict=False))
    return ranking([name for name, _ in pairs], [float(share) for _, share in pairs])


def original(page: Page) -> float:
    """The probability of the token that the mask replaces."""
    given = {"hidden": [int(one) for one in page.state.get("hidden", "").split(",") if one.isdecimal()]}
    return float(page.ask("fill", "guess", **page.texts(), **given)[1]["share"][0])


def beam(page: Page) -> tuple[dict[str, Any], Mapping[str, NDArray[Any]]]:
    """The tree of a search."""
    given = {key: value for key, value in page.texts().items() if value is not None}
    return page.ask("beam", "tree", **given, **{key: number(page, key) for key in ("k", "t") if key in page.state})


def hypothesis(page: Page) -> str:
    header, _ = beam(page)
    return str(header["texts"][header["paths"][0]["node"]])


def hypotheses(page: Page) -> list[Choice]:
    header, _ = beam(page)
    pairs = sorted((header["texts"][one["node"]], one["score"]) for one in header["paths"])
    return ranking([text for text, _ in pairs], [value for _, value in pairs])


def log_probability(page: Page) -> float:
    return float(beam(page)[0]["paths"][0]["log"])


def candidates(page: Page) -> float:
    return len(beam(page)[1]["token"])


# ------------------------------------------------------------------ recurrent layers
def gradient(page: Page) -> NDArray[Any]:
    """The norms of the gradient at each step, of one layer's hidden or cell state, up to the step that predicts."""
    step = {"step": number(page, "step")} if "step" in page.state else {}
    given = {key: value for key, value in page.texts().items() if value is not None}
    header, arrays = page.ask("recurrent", "gradient", **given, **step)
    return _of_layer(page, arrays, page.state.get("of", "hidden"))[: header["step"] + 1]


def _of_layer(page: Page, arrays: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    layers = sorted(int(key.removeprefix(name)) for key in arrays if key.removeprefix(name).isdecimal())
    if not layers:
        raise UserError(f"this model has no {name} state", todo="open a model with LSTM layers")
    return arrays[f"{name}{layers[min(number(page, 'layer'), len(layers) - 1)]}"]


def gradient_ratio(page: Page) -> float:
    """The norm at the first step, as a part of that at the last."""
    norms = gradient(page)
    return float(norms[0] / norms[-1]) if norms[-1] else 0.0


def kept(page: Page) -> float:
    """The part of the first step's cell state that forget gates leave."""
    step = {"step": number(page, "step")} if "step" in page.state else {}
    given = {key: value for key, value in page.texts().items() if value is not None}
    _, arrays = page.ask("recurrent", "gradient", **given, **step)
    return float(_of_layer(page, arrays, "kept")[0])


def step_count(page: Page) -> float:
    given = {key: value for key, value in page.texts().items() if value is not None}
    header, _ = page.ask("recurrent", "layers", **given)
    return len(header["sides"][header["predicts"]])
