"""Quantities of images: reconstructions, classes, patches and captions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.errors import UserError, shown
from heedful.explore.lessons.state import Choice, Packet, Page, entropy_of, number, ranking


def reconstructions(page: Page) -> Packet:
    """A page of images with their errors."""
    noise = {"noise": float(page.state["noise"])} if "noise" in page.state else {}
    return page.ask("reconstruct", "rows", model=page.texts()["model"], **noise)


def error(page: Page) -> float:
    """The mean squared error of the model, or of the PCA with `of=PCA`."""
    return dict(errors(page))[page.state.get("of", "model")]


def errors(page: Page) -> list[Choice]:
    header, arrays = reconstructions(page)
    means = arrays["errors"].astype(np.float64).mean(1)
    found: list[Choice] = []
    for title, mean in list(zip(header["titles"], means, strict=True))[1:]:
        name = "noisy" if title == "noisy" else "PCA" if title.startswith("PCA") else "model"
        if name not in [one.name for one in found]:
            found.append(Choice(name, float(mean)))
    return found


def worse(page: Page) -> list[Choice]:
    """The PCA and the model by their errors."""
    return [one for one in errors(page) if one.name != "noisy"]


def code_width(page: Page) -> float:
    return int(reconstructions(page)[0]["width"])


def pixel_count(page: Page) -> float:
    return int(np.prod(reconstructions(page)[0]["image"]))


def classes(page: Page) -> list[Choice]:
    header, arrays = page.ask("image", "classes", **_image(page))
    pairs = sorted(zip(header["labels"], arrays["probabilities"].tolist(), strict=True))
    return ranking([name for name, _ in pairs], [share for _, share in pairs])


def patches(page: Page) -> float:
    _, arrays = page.ask("image", "attention", **_image(page), layer=0)
    return int(np.prod(arrays["rollout"].shape))


def patch_heads(page: Page) -> list[Choice]:
    """The heads of a layer by the weight that each gives its favourite patch."""
    each = _patch_weights(page, "heads")
    peaks = each.reshape(len(each), -1).max(1)
    return ranking([f"head {head + 1}" for head in range(len(peaks))], peaks)


def patch_peak(page: Page) -> float:
    """The weight of the favourite patch: of the mean over heads, of any head, or of the rollout."""
    return float(_patch_weights(page, page.state.get("of", "mean")).max())


def patch_place(page: Page) -> str:
    """Where the favourite patch is."""
    shares = _patch_weights(page, page.state.get("of", "mean"))
    *_, row, column = np.unravel_index(int(shares.argmax()), shares.shape)
    return f"row {row + 1}, column {column + 1}"


def _patch_weights(page: Page, of: str) -> NDArray[Any]:
    """The weights of the patches in the layer of the state: of its heads, their mean, or the rollout."""
    _, arrays = page.ask("image", "attention", **_image(page), layer=number(page, "block"))
    if of not in arrays:
        raise UserError("there are no such weights", where="of", found=shown(of), expected=" ".join(arrays))
    return arrays[of]


def _image(page: Page) -> dict[str, Any]:
    image = {"image": number(page, "image")} if "image" in page.state else {}
    return {"model": page.texts()["model"], **image}


def captions(page: Page) -> Packet:
    """The captions of an image."""
    return page.ask("caption", "captions", **_image(page), beams=number(page, "beams", 3))


def caption(page: Page) -> str:
    return str(captions(page)[0]["captions"][0]["text"])


def caption_peaks(page: Page) -> list[Choice]:
    """The words of a caption by the largest weight that each gives a region."""
    words, each = _word_weights(page)
    return ranking(words, each.max(1))


def caption_entropies(page: Page) -> list[Choice]:
    """The words of a caption by the entropy of their weights."""
    words, each = _word_weights(page)
    return ranking(words, [entropy_of(one) for one in each])


def caption_peak(page: Page) -> float:
    """The largest weight that the word at a place of a caption gives a region."""
    return float(_weights_of_word(page).max())


def caption_place(page: Page) -> str:
    """Where that region is."""
    row, column = np.unravel_index(int(_weights_of_word(page).argmax()), captions(page)[0]["grid"])
    return f"row {row + 1}, column {column + 1}"


def caption_word(page: Page) -> str:
    """The word at a place of a caption."""
    words, _ = _word_weights(page)
    return words[min(number(page, "word"), len(words) - 1)]


def _weights_of_word(page: Page) -> NDArray[Any]:
    each = _word_weights(page)[1]
    return each[min(number(page, "word"), len(each) - 1)]


def _word_weights(page: Page) -> tuple[list[str], NDArray[Any]]:
    """The words of a caption, and the weights of each on the regions."""
    header, arrays = captions(page)
    words: list[str] = header["captions"][0]["words"]
    each = arrays["maps"][: len(words)].reshape(len(words), -1)
    if not each.shape[1]:
        raise UserError("this captioner has no attention", todo="open one whose decoder attends")
    return words, each


def regions(page: Page) -> float:
    return int(np.prod(captions(page)[0]["grid"]))
