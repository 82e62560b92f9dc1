"""The commands `embed` and `fill-mask`: output, files and errors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from heedful import load
from heedful.cli import embed
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.hub.model_folder import write_model
from heedful.models import build
from heedful.models.bert.config import BertConfig
from tolerance import close

TEXTS = ["the cat sat", "a dog", "", "the old cat sat on a mat", "[MASK]"]
Run = Callable[..., tuple[int, str, str]]


def write_model_folder(path: Path, **settings: object) -> Path:
    """Write a folder with a randomly initialized BERT."""
    tokenizer = BertTokenizer.train(WordPiece(vocab=60, lowercase=True), ["the old cat sat on a mat, a dog ran"] * 3)
    config = BertConfig(vocab=tokenizer.vocab, width=8, heads=2, layers=4, hidden=12, context=16)
    config = config.model_copy(update=settings)
    torch.manual_seed(0)
    settings_file = {
        "task": "pretraining",
        "model": config.model_dump(),
        "sentences": {"pooling": "mean", "normalize": True},
    }
    write_model(path, json.dumps(settings_file), build(config).state_dict(), {"tokenizer.json": tokenizer.json}, {})
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("encoder") / "model")


def test_embed_prints_a_json_line_per_text(heedful: Run, run: Path) -> None:
    code, out, _ = heedful("embed", run, *TEXTS[:2])
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [row["text"] for row in rows] == TEXTS[:2]
    expected = load(run).embed(TEXTS[:2])
    close([row["vector"] for row in rows], expected.numpy(), slack=16)
    np.testing.assert_allclose(expected.norm(dim=1), 1.0, rtol=1e-5)  # the folder has normalize: true


@pytest.mark.parametrize("kind", ["npy", "safetensors", "jsonl"])
def test_embed_writes_vectors_in_order(heedful: Run, run: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "CHUNK", 2)  # three chunks
    monkeypatch.setattr(embed.embed_chunks, "__defaults__", (2,))
    settings = ("--layers", "concat_last_four", "--pooling", "first")
    code, out, err = heedful("embed", run, "-", "--out", f"a.{kind}", *settings, stdin="\n".join(TEXTS).encode())
    assert (code, out) == (0, "")
    assert f"wrote 5 vectors of dimension 32 to a.{kind}" in err
    path = Path(f"a.{kind}")
    if kind == "npy":
        vectors = np.load(path)
    elif kind == "safetensors":
        vectors = load_file(path)["vectors"]
    else:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert [row["text"] for row in rows] == TEXTS
        vectors = np.array([row["vector"] for row in rows])
    expected = load(run).embed(TEXTS, "concat_last_four", "first")
    close(vectors, expected.numpy(), slack=16)
    assert list(Path().iterdir()) == [path]


def test_empty_stdin_writes_an_array_without_rows(heedful: Run, run: Path) -> None:
    assert heedful("embed", run, "-", "--out", "a.npy")[0] == 0
    assert np.load("a.npy").shape == (0, 8)


def test_similarity_prints_the_cosine_matrix(heedful: Run, run: Path) -> None:
    code, out, _ = heedful("embed", run, *TEXTS[:2], "--similarity")
    assert code == 0
    first, second = (line.split() for line in out.splitlines())
    unit = load(run).embed(TEXTS[:2])
    cosine = float(unit[0] @ unit[1])
    assert first[:3] == ["1", "1.000", f"{cosine:.3f}"] and second[:3] == ["2", f"{cosine:.3f}", "1.000"]
    assert out.splitlines()[0].endswith("the cat sat")


def test_int8_vectors_are_close(heedful: Run, run: Path) -> None:
    vectors = [
        json.loads(heedful("embed", run, "the cat sat", *flags)[1])["vector"] for flags in ((), ("--int8",))
    ]  # fmt: skip
    assert vectors[0] != vectors[1]
    np.testing.assert_allclose(vectors[0], vectors[1], atol=0.05)


def test_truncated_texts_are_counted(heedful: Run, run: Path) -> None:
    _, _, err = heedful("embed", run, "-", "--out", "a.npy", stdin=("cat " * 40 + "\ncat\n" + "dog " * 15).encode())
    assert "note: 2 texts are longer than 16 tokens, and truncated" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("embed", "{run}", "a", "--out", "a.txt"), "ends in .npy or .safetensors or .jsonl"),
        (("embed", "{run}", "a", "--out", "nowhere/a.npy"), "there is no such folder"),
        (("embed", "{run}", "a", "--out", "a.npy", "--similarity"), "cannot be combined"),
        (("embed", "{run}", "a", "--similarity"), "2 to 20"),
        (("embed", "nowhere", "a"), "there is no such folder"),
        (("fill-mask", "{run}", "the cat"), "write [MASK] where a token is to be predicted"),
        (("fill-mask", "{run}", "[MASK] " * 20), "too long for the model"),
    ],
)
def test_invalid_usage_is_reported_and_writes_nothing(
    heedful: Run, run: Path, words: tuple[str, ...], message: str
) -> None:
    code, out, err = heedful(*(word.replace("{run}", str(run)) for word in words))
    assert (code, out) == (2, "")
    assert message in err
    assert not list(Path().iterdir())


def test_model_of_another_task_names_its_command(heedful: Run, run: Path) -> None:
    code, _, err = heedful("translate", run, "a")
    assert code == 2
    assert "use `heedful embed`, or `heedful fill-mask` if it has a head" in err


def test_fill_mask_needs_a_masked_language_model_head(heedful: Run, tmp_path: Path) -> None:
    bare = write_model_folder(tmp_path / "bare", masked_words=False)
    assert "no head that predicts masked tokens" in heedful("fill-mask", bare, "a [MASK]")[2]


def test_fill_mask_prints_the_most_probable_words(heedful: Run, run: Path) -> None:
    code, out, _ = heedful("fill-mask", run, "the [MASK] sat", "--top", 3)
    head, *words = out.splitlines()
    (expected,) = load(run).fill("the [MASK] sat", 3).predictions
    assert (code, head) == (0, "the [MASK] sat")
    assert [line.split() for line in words] == [[one.word, f"{one.probability:.1%}"] for one in expected]


def test_several_masks_show_how_much_they_depend_on_each_other(heedful: Run, run: Path) -> None:
    text = "the [MASK] sat on a [MASK]"
    out = heedful("fill-mask", run, text, "--top", 2)[1]
    expected = load(run).fill(text, 2)
    assert "mask 1" in out and "mask 2" in out
    best = expected.joint[0]
    (line,) = (line for line in out.splitlines() if line.strip().startswith(" ... ".join(best.words)))
    probabilities = [f"{math.exp(log):.2%}" for log in (best.independent, best.forward, best.backward)]
    assert line.split()[-4:] == [*probabilities, f"{best.forward - best.independent:+.2f}"]
    assert f"lose {expected.dependence:.3f} nats" in out


def test_fill_mask_json_keeps_blank_lines_as_null(heedful: Run, run: Path) -> None:
    code, out, _ = heedful("fill-mask", run, "-", "--json", "--top", 2, stdin=b"a [MASK]\n\n[MASK] [MASK]\n")
    one, none, two = map(json.loads, out.splitlines())
    assert code == 0 and none is None
    assert one["dependence"] is None and len(one["predictions"]) == 1 and len(one["predictions"][0]) == 2
    assert two["dependence"] is not None and {len(filling["words"]) for filling in two["joint"]} == {2}
