"""`heedful caption` and `heedful predict` with a captioner, on the recorded run of `tests/golden`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Run = Callable[..., tuple[int, str, str]]
RUN = Path(__file__).parents[1] / "golden" / "runs" / "captioning-captioner"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "one.png"
    Image.fromarray((np.arange(20 * 30 * 3).reshape(20, 30, 3) % 251).astype(np.uint8)).save(path)
    return path


def test_images_are_described(heedful: Run, image: Path, tmp_path: Path) -> None:
    code, out, _ = heedful("caption", RUN, image, "--beams", "3", "--top", "2", "--picture", tmp_path / "words.png")
    lines = out.splitlines()
    assert code == 0 and lines[0].endswith("one.png") and len(lines) == 3
    assert Image.open(tmp_path / "words.png").width > 100


def test_json_has_the_words_and_their_maps(heedful: Run, image: Path) -> None:
    for attention, highest in (("hard", 1.0), ("soft", None)):
        code, out, _ = heedful("caption", RUN, image, "--json", "--attention", attention)
        found = json.loads(out)
        maps = np.array(found["maps"]).reshape(-1, 4, 4)
        assert code == 0 and len(maps) == len(found["words"])
        assert np.allclose(maps.sum((1, 2)), 1, atol=1e-5)
        assert highest is None or len(found["words"]) < len(found["ids"]) or (maps.max((1, 2)) == highest).all()


def test_predict_writes_the_captions_of_rows(heedful: Run, image: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"image": str(image), "id": 7}) + "\n")
    code, out, _ = heedful("predict", RUN, tmp_path / "in.jsonl", "--beams", "1")
    row = json.loads(out)
    assert code == 0 and row["id"] == 7 and isinstance(row["prediction"], str)


def test_mistakes_are_explained(heedful: Run, image: Path, tmp_path: Path) -> None:
    assert "there is no image to read" in heedful("caption", RUN)[2]
    assert "2 beams cannot give 3 captions" in heedful("caption", RUN, image, "--beams", "2", "--top", "3")[2]
    assert "there is no such file" in heedful("caption", RUN, tmp_path / "none.png")[2]
    assert "use `heedful caption`" in heedful("translate", RUN, "a text")[2]
