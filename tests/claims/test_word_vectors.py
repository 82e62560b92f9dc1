"""Word vectors as in the lectures: a matrix with a row for each word, and the snippet that reads it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import heedful
from heedful.cli import app as cli
from heedful.data.word_vectors import FORMATS, Format
from heedful.models import build
from heedful.models.conv_classifier.config import ConvClassifierConfig
from heedful.runs.recipe import recipe_of

GLOVE = Path(os.environ.get("HEEDFUL_DATA", "../shared/data"), "glove-6b-100d-subset", "glove.6B.100d.subset.txt.gz")
TABLE = """
fox -0.348680 -0.077720 0.177750 -0.094953 -0.452890 0.237790 0.209440 0.037886 0.035064 0.899010
ham -0.773320 -0.282540 0.580760 0.841480 0.258540 0.585210 -0.021890 -0.463680 0.139070 0.658720
brown -0.374120 -0.076264 0.109260 0.186620 0.029943 0.182700 -0.631980 0.133060 -0.128980 0.603430
beautiful 0.171200 0.534390 -0.348540 -0.097234 0.101800 -0.170860 0.295650 -0.041816 -0.516550 2.117200
jumps -0.334840 0.215990 -0.350440 -0.260020 0.411070 0.154010 -0.386110 0.206380 0.386700 1.460500
eggs -0.417810 -0.035192 -0.126150 -0.215930 -0.669740 0.513250 -0.797090 -0.068611 0.634660 1.256300
beans -0.423290 -0.264500 0.200870 0.082187 0.066944 1.027600 -0.989140 -0.259950 0.145960 0.766450
sky 0.312550 -0.303080 0.019587 -0.354940 0.100180 -0.141530 -0.514270 0.886110 -0.530540 1.556600
bacon -0.430730 -0.016025 0.484620 0.101390 -0.299200 0.761820 -0.353130 -0.325290 0.156730 0.873210
breakfast 0.073378 0.227670 0.208420 -0.456790 -0.078219 0.601960 -0.024494 -0.467980 0.054627 2.283700
toast 0.130740 -0.193730 0.253270 0.090102 -0.272580 -0.030571 0.096945 -0.115060 0.484000 0.848380
today -0.156570 0.594890 -0.031445 -0.077586 0.278630 -0.509210 -0.066350 -0.081890 -0.047986 2.803600
blue 0.129450 0.036518 0.032298 -0.060034 0.399840 -0.103020 -0.507880 0.076630 -0.422920 0.815730
green -0.072368 0.233200 0.137260 -0.156630 0.248440 0.349870 -0.241700 -0.091426 -0.530150 1.341300
kings 0.259230 -0.854690 0.360010 -0.642000 0.568530 -0.321420 0.173250 0.133030 -0.089720 1.528600
dog -0.057120 0.052685 0.003026 -0.048517 0.007043 0.041856 -0.024704 -0.039783 0.009614 0.308416
sausages -0.174290 -0.064869 -0.046976 0.287420 -0.128150 0.647630 0.056315 -0.240440 -0.025094 0.502220
lazy -0.353320 -0.299710 -0.176230 -0.321940 -0.385640 0.586110 0.411160 -0.418680 0.073093 1.486500
love 0.139490 0.534530 -0.252470 -0.125650 0.048748 0.152440 0.199060 -0.065970 0.128830 2.055900
quick -0.445630 0.191510 -0.249210 0.465900 0.161950 0.212780 -0.046480 0.021170 0.417660 1.686900
""".lstrip()
ROWS = {line.split()[0]: line.split()[1:] for line in TABLE.splitlines()}


def save_table(folder: Path, format: Format) -> Path:
    """The lecture's table as a file in the given format."""
    (folder / "table.txt").write_text(TABLE)
    heedful.load_vectors(folder / "table.txt").save(folder / format, format)
    return folder / format


@pytest.mark.claim("L1")
@pytest.mark.parametrize("format", FORMATS)
def test_each_row_is_a_word_vector_in_every_format(tmp_path: Path, format: Format) -> None:
    vectors = heedful.load_vectors(save_table(tmp_path, format))
    assert vectors.matrix.shape == (20, 10)
    for word, numbers in ROWS.items():
        assert vectors[word].tobytes() == np.array([float(number) for number in numbers], np.float32).tobytes()


@pytest.mark.claim("L1")
def test_table_of_20_words_by_10_columns_matches_the_lecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save_table(tmp_path, "word2vec-binary")
    monkeypatch.setattr(sys, "argv", ["heedful", "lookup", str(file), *ROWS])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.split() == [str(column) for column in range(10)]
    assert [line.split() for line in lines] == [line.split() for line in TABLE.splitlines()]


@pytest.mark.claim("L1")
@pytest.mark.skipif(not GLOVE.is_file(), reason=f"no GloVe vectors in {GLOVE.parent}; set HEEDFUL_DATA")
def test_published_vectors_neighbours_and_analogies() -> None:
    vectors = heedful.load_vectors(GLOVE, most=20_000)
    assert vectors.width == 100
    assert vectors["the"][:4].tobytes() == np.array([-0.038194, -0.24487, 0.72812, -0.39961], np.float32).tobytes()
    assert vectors.analogy("man", "king", "woman", 1)[0].word == "queen"
    assert vectors.analogy("france", "paris", "italy", 1)[0].word == "rome"
    assert {one.word for one in vectors.neighbours("three", 3)} <= {"two", "four", "five", "six", "seven", "eight"}


@pytest.mark.claim("M20")
@pytest.mark.parametrize("read_fn", ["load_word2vec", "load_glove"])
def test_lecture_snippet_runs(tmp_path: Path, read_fn: str) -> None:
    """Data and a pre-trained matrix, an embedder initialized with it, and a Conv1D classifier on top."""
    file = save_table(tmp_path, "word2vec-binary" if read_fn == "load_word2vec" else "glove")
    vocab = {word: number for number, word in enumerate(["<pad>", "<unk>", "<s>", "</s>", "unseen", *ROWS])}
    initial = np.random.default_rng(0).uniform(-0.25, 0.25, (len(vocab), 10)).astype(np.float32)
    init_value = getattr(heedful, read_fn)(file, vocab, initial.copy())
    assert (init_value[:5] == initial[:5]).all()
    assert (init_value[5:] == heedful.load_vectors(file).matrix).all()
    recipe = recipe_of(
        f"task: {{kind: text_classification}}\ndata: {{kind: number_languages}}\n"
        f"embedding_init:\n  file: {file}\n  read_fn: {read_fn}\n"
        "model: {kind: conv_classifier, width: 10}\ntrain: {budget: {steps: 1}}\n",
        "snippet",
    )
    read = recipe.embedding_init.read(set(vocab), 0, 10)
    assert read.words == list(ROWS)
    assert (read.matrix == init_value[5:]).all()
    model = build(ConvClassifierConfig(vocab=len(vocab), labels=("no", "yes"), width=10)).eval()
    with torch.no_grad():
        model.tokens.weight.copy_(torch.from_numpy(init_value))
    texts = torch.tensor([[vocab[word] for word in ["lazy", "brown", "dog", "jumps"]]])
    logits = model(texts)
    assert logits.shape == (1, 2)
    with torch.no_grad():
        model.tokens.weight[vocab["dog"]] += 1
    assert not model(texts).equal(logits)
