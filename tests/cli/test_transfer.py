"""`heedful transfer` and `heedful predict` with a style transfer model, on the recorded run of `tests/golden`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import heedful

Run = Callable[..., tuple[int, str, str]]
RUN = Path(__file__).parents[1] / "golden" / "runs" / "style_transfer-style_transfer"
TEXTS = ["the old king will sell a boat", "a cat did hide the ring"]


def test_texts_are_transferred(heedful: Run) -> None:
    found = model().transfer(TEXTS, "courtly")
    code, out, _ = heedful("transfer", RUN, *TEXTS, "--style", "courtly")
    assert code == 0 and out.splitlines() == [one.text for one in found]
    lines = f"{TEXTS[0]}\n\n{TEXTS[1]}\n".encode()
    code, out, _ = heedful("transfer", RUN, "-", "--style", "courtly", stdin=lines)
    assert code == 0 and out.splitlines() == [found[0].text, "", found[1].text]
    code, out, err = heedful("transfer", RUN, "the xylophone will sell", "--style", "courtly", "--json")
    row = json.loads(out)
    assert code == 0 and row["source"] == "the xylophone will sell" and row["style"] == "courtly"
    assert 0 <= row["probability"] <= 1 and "xylophone" in row["unknown"] and "does not know: " in err


def test_predict_reads_a_text_and_a_style_from_each_row(heedful: Run, tmp_path: Path) -> None:
    rows = [{"text": text, "style": style} for text in TEXTS for style in ("plain", "courtly")]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = heedful("predict", RUN, tmp_path / "in.jsonl")
    found = model().predict([(row["text"], row["style"]) for row in rows])
    assert code == 0 and [json.loads(line)["prediction"] for line in out.splitlines()] == [one.text for one in found]


def test_mistakes_are_explained(heedful: Run, tmp_path: Path) -> None:
    code, _, err = heedful("transfer", RUN, TEXTS[0])
    assert code == 2 and "there is no style to write" in err and "'courtly', 'plain'" in err
    assert "does not know this style" in heedful("transfer", RUN, TEXTS[0], "--style", "rude")[2]
    assert "there is no text to read" in heedful("transfer", RUN, "--style", "plain")[2]
    assert "use `heedful transfer`" in heedful("translate", RUN, "a text")[2]
    (tmp_path / "in.jsonl").write_text('{"text": "a cat"}\n')
    assert "there is no field 'style'" in heedful("predict", RUN, tmp_path / "in.jsonl")[2]


def model() -> heedful.TextStyleTransfer:
    return heedful.load(RUN, heedful.TextStyleTransfer)
