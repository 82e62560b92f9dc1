"""A model's source code with the shapes of a forward pass; only files of the package are shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import heedful
from heedful.errors import UserError
from heedful.explore.inspect import TextInput
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer
from heedful.explore.views import source
from heedful.shapes import statements

PACKAGE = Path(heedful.__file__).parent


def files(explorer: Explorer, **more: Any) -> tuple[dict[str, dict[str, Any]], dict[str, NDArray[Any]]]:
    """The files of the only subject by name, each with its place in the packet, and the arrays."""
    (subject,) = explorer.subjects.values()
    given = {"model": subject.name, "text": "", "other": None, **subject.sample, **more}
    words, arrays = unpack(explorer.answer("source", "lines", given))
    return {one["name"]: {**one, "at": number} for number, one in enumerate(words["files"])}, arrays


def line_of(file: dict[str, Any], code: str) -> str:
    """The number of the line that holds a piece of code."""
    (number,) = [number for number, line in enumerate(file["text"].split("\n"), 1) if code in line]
    return str(number)


def shapes(file: dict[str, Any], code: str) -> list[list[Any]]:
    found: list[list[Any]] = file["shapes"][line_of(file, code)]
    return found


def test_shapes_are_those_of_the_model_and_the_input(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("gpt")])
    (subject,) = explorer.subjects.values()
    config, text = subject.model.config, "The child came home"
    length = 1 + len(subject.predictor.codec.encode(text))
    found, arrays = files(explorer, text=text)
    own = found["models/gpt/model.py"]
    assert own["at"] == 0
    assert own["text"] == (PACKAGE / "models" / "gpt" / "model.py").read_text()
    assert shapes(own, "return self.tokens.logits(x), state")[0] == ["return[0]", [1, length, config.vocab], 1, 1, ""]
    letters = {letter: (meaning, sizes) for letter, meaning, sizes in own["letters"]}
    assert letters["T"] == ("positions", [length])
    assert letters["D"] == ("width", [config.width])
    attention = found["blocks/attention.py"]
    split = [1, config.heads, length, config.width // config.heads]
    each = shapes(attention, "q, k, v = qkv.transpose")
    assert each == [[name, split, 1, config.layers, ""] for name in ("q", "k", "v")]
    assert attention["dims"][line_of(attention, "a = score(q, k)")] == ["B", "H", "T", "S"]
    runs = arrays[f"runs{attention['at']}"]
    assert runs[int(line_of(attention, "a = score(q, k)")) - 1] == config.layers
    assert runs[int(line_of(attention, "class MultiHead")) - 1] == 0


def test_shape_letters_have_the_model_s_sizes(run: Callable[[str], Path]) -> None:
    """T is the target's length in the file of a translator, though one function reads source and target alike."""
    explorer = Explorer([run("translation")])
    (subject,) = explorer.subjects.values()
    given = TextInput(text="five hundred six", other="fünf")
    sides = subject.trace(given).reading.sides
    source, target = len(sides["source"]), len(sides["target"])
    assert source != target
    found, _ = files(explorer, text=given.text, other=given.other)
    own = found["models/transformer/model.py"]
    letters = {letter: sizes for letter, _, sizes in own["letters"]}
    assert (letters["S"], letters["T"]) == ([source], [target])
    both = {(shape[1], where) for _, shape, _, _, where in shapes(own, "return self.dropout(self.positions(")}
    assert both == {(source, "source"), (target, "target")}


def test_shape_comments_of_executed_lines_hold(run: Callable[[str], Path]) -> None:
    """The shapes on the page have as many sizes as the comments beside them, letter by letter one size a call."""
    explorer = Explorer([run("translation")])
    found, _ = files(explorer)
    checked = 0
    for name, file in found.items():
        for statement in (one for group in statements(PACKAGE / name).values() for one in group):
            for _, shape, items, _, _ in file["shapes"].get(str(statement.last), [])[:1] if statement.dims else []:
                assert items > 1 or len(shape) == len(statement.dims), (name, statement)
                checked += 1
    assert checked > 20


@pytest.mark.parametrize(
    ("name", "own", "block"),
    [
        ("translation", "models/transformer/model.py", "blocks/attention.py"),
        ("recurrent", "models/seq2seq/model.py", "blocks/memory.py"),
        ("rnn", "models/rnn_lm/model.py", "blocks/recurrent.py"),
        ("images", "models/autoencoder/model.py", "models/autoencoder/network.py"),
    ],
)
def test_each_kind_of_model_shows_its_own_file_first(
    run: Callable[[str], Path], name: str, own: str, block: str
) -> None:
    explorer = Explorer([run(name)])
    (subject,) = explorer.subjects.values()
    assert source.fits(subject)
    found, arrays = files(explorer)
    assert next(iter(found)) == own
    assert block in found
    for file in found.values():
        assert (PACKAGE / file["name"]).read_text() == file["text"]
        assert file["name"].split("/")[0] in ("models", "blocks")
        assert len(arrays[f"runs{file['at']}"]) == file["text"].count("\n")
        assert file["shapes"] or file["at"]


def test_no_path_is_sent_to_the_page(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("images")])
    (packet,) = (explorer.answer(*one) for one in source.calls(explorer.subject("images"), {"model": "images"}))
    for secret in (str(PACKAGE), str(run("images")), str(Path.home())):
        assert secret.encode() not in packet
    with pytest.raises(UserError):
        explorer.answer("source", "lines", {"model": "images", "text": "", "file": "../../setup.py"})


def test_keywords_are_highlighted() -> None:
    text = 'def one(x):\n    """Two\n    lines."""\n    return x + 3  # sum\n'
    found = list(source.highlighted(text))
    assert found == [
        (1, 0, 3, source.KEYWORD), (1, 4, 7, source.DEFINED), (2, 4, -1, source.STRING), (3, 0, 13, source.STRING),
        (4, 4, 10, source.KEYWORD), (4, 15, 16, source.NUMBER), (4, 18, 23, source.COMMENT),
    ]  # fmt: skip


def test_shape_letters_are_explained_by_the_docstring() -> None:
    text = '"""A thing.\n\nB batch, T target\npositions, D width of a\nrow.\n"""\n'
    assert source.meanings(text) == {"B": "batch", "T": "target positions", "D": "width of a row"}
    assert source.meanings("x = 1\n") == {}


def test_page_shows_shapes_next_to_the_lines(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("translation"))
    page = browsing.go("source", text="forty-two")
    found, arrays = files(browsing.explorer, text="forty-two")
    page.get_by_role("button", name="attention", exact=True).click()
    page.locator('[data-file="blocks/attention.py"]').wait_for()
    assert "file=blocks" in page.url
    file = found["blocks/attention.py"]
    number = line_of(file, "a = score(q, k)")
    beside = page.get_by_test_id(f"shapes-{number}").inner_text()
    for name, shape, *_ in file["shapes"][number]:
        assert f"{name} ({', '.join(map(str, shape))})" in beside
    queries = {where: shape[2] for _, shape, _, _, where in file["shapes"][number] if where}
    assert f"T={queries['source']} in the source, {queries['target']} in the target" in beside
    runs = page.get_by_test_id(f"line-{number}").get_attribute("data-runs")
    assert int(runs) == arrays[f"runs{file['at']}"][int(number) - 1]
    # Lines that did not run come when they are asked for, and every line reads as it is written.
    folded = page.locator('[data-testid^="line-"]').count()
    page.get_by_test_id("whole").click()
    lines = page.locator('[data-testid^="line-"] .text')
    assert lines.count() > folded
    assert lines.evaluate_all("all => all.map((one) => one.textContent)") == file["text"].split("\n")[:-1]
    assert np.array_equal(
        page.locator('[data-testid^="line-"]').evaluate_all("all => all.map((one) => Number(one.dataset.runs))"),
        arrays[f"runs{file['at']}"],
    )
