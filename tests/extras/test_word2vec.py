"""Skip-gram: a step against loops, and similar words get similar vectors."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from heedful.errors import UserError
from heedful.extras import word2vec as skipgram
from heedful.extras.word2vec import BLOCK, NEGATIVES, Corpus, Plan, Table, learn, read_corpus, train_vectors
from heedful.extras.word2vec_config import SkipGramConfig


def text(path: Path, lines: int = 400) -> Path:
    """Lines about animals and lines about numbers, in which words of a kind may stand for each other."""
    draw = random.Random(0)
    kinds = [(["cat", "dog", "horse", "cow"], "the {} eats and the {} sleeps"),
             (["one", "two", "three", "four"], "from {} we count on to {} again")]  # fmt: skip
    written = []
    for number in range(lines):
        words, pattern = kinds[number % 2]
        written.append(pattern.format(draw.choice(words), draw.choice(words)).capitalize() + ".")
    path.write_text("\n".join(written) + "\n\n", encoding="utf-8")
    return path


def corpus_of(ids: list[int], lines: list[int], vocab: int) -> Corpus:
    counts = np.bincount(ids, minlength=vocab)
    return Corpus([f"w{number}" for number in range(vocab)], counts, np.array(ids), np.array(lines))


def test_words_are_numbered_by_frequency(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("It's the cat, the CAT\nthe end-game\n\nrare", encoding="utf-8")
    (tmp_path / "b.txt").write_text("it’s it’s end", encoding="utf-8")
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    corpus = read_corpus(paths, SkipGramConfig(min_count=2))
    assert corpus.words == ["the", "cat", "end", "it’s"]
    assert corpus.counts.tolist() == [3, 2, 2, 2]
    assert corpus.ids.tolist() == [0, 1, 0, 1, 0, 2, 3, 3, 2]
    assert corpus.lines.tolist() == [0, 0, 0, 0, 1, 1, 4, 4, 4]
    cased = read_corpus(paths, SkipGramConfig(min_count=1, lowercase=False))
    assert {"CAT", "cat", "It's", "game", "rare"} <= set(cased.words)
    with pytest.raises(UserError, match="too few words") as raised:
        read_corpus(paths, SkipGramConfig(min_count=50))
    assert "a.txt" in str(raised.value.where)


def test_step_matches_loops_in_float64() -> None:
    """The same blocks and chance words; pair by pair, from the vectors as they were before the step."""
    draw = np.random.default_rng(0)
    vocab, width, rate = 17, 6, 0.3
    ids = draw.integers(0, vocab, 300).tolist()
    corpus = corpus_of(ids, [place // 40 for place in range(300)], vocab)
    config = SkipGramConfig(window=3, negatives=4, sample=1.0, seed=5)
    step = next(iter(Plan(corpus, config, 0)))
    inner = torch.from_numpy(draw.standard_normal((vocab, width))).float()
    outer = torch.from_numpy(draw.standard_normal((vocab, width))).float()
    before, seen = inner.double().numpy().copy(), outer.double().numpy().copy()
    new_inner, new_outer = before.copy(), seen.copy()
    around = BLOCK + 2 * config.window
    pairs = 0

    def climb(x: int, y: int, sign: float, times: float) -> None:
        """Make times * log s(sign * x.y) larger."""
        slope = sign / (1 + math.exp(sign * before[x] @ seen[y]))
        new_inner[x] += rate * times * slope * seen[y]
        new_outer[y] += rate * times * slope * before[x]

    for block, centres in enumerate(step.centers.tolist()):
        for place, centre in enumerate(centres):
            near = step.weights[block, place, :around].nonzero().flatten().tolist()
            pairs += len(near)
            for other in near:
                climb(centre, int(step.others[block, other]), 1.0, 1.0)
                for chance in step.others[block, around:].tolist():
                    climb(centre, chance, -1.0, config.negatives / NEGATIVES)
    halved = torch.ones(vocab, 1)
    halved[3] = 0.5  # what a word has of the learning rate
    new_inner[3], new_outer[3] = (before[3] + new_inner[3]) / 2, (seen[3] + new_outer[3]) / 2
    learn(Table(inner, halved), Table(outer, halved), step, around, rate)
    assert pairs > 500
    np.testing.assert_allclose(inner.numpy(), new_inner, atol=2e-4)
    np.testing.assert_allclose(outer.numpy(), new_outer, atol=2e-4)
    assert np.abs(new_inner - before).max() > 1


def test_context_words_are_in_the_same_line_and_window() -> None:
    ids = list(range(100)) * 6
    corpus = corpus_of(ids, [place // 50 for place in range(600)], 100)
    config = SkipGramConfig(window=4, sample=1.0, negatives=7)
    steps = list(Plan(corpus, config, 0))
    around = BLOCK + 2 * config.window
    seen, distances = 0, set()
    for step in steps:
        for block, place, other in step.weights[..., :around].nonzero().tolist():
            a, b = int(step.centers[block, place]), int(step.others[block, other])
            distances.add(abs(a - b))
            assert 1 <= abs(a - b) <= 4
            assert a // 50 == b // 50
            seen += 1
        pairs = step.weights[..., :around].sum(-1, keepdim=True)
        torch.testing.assert_close(step.weights[..., around:].sum(-1, keepdim=True), 7 * pairs)
    assert distances == {1, 2, 3, 4}
    assert 600 * 4 < seen < 600 * 6  # twice a mean reach of 2.5, less at the ends of lines


def test_subsampling_and_the_distribution_of_negative_samples() -> None:
    corpus = corpus_of([0] * 30_000 + [1] * 5_000 + [2] * 5_000, list(range(40_000)), 3)
    steps = list(Plan(corpus, SkipGramConfig(sample=0.01), 0))
    shares = skipgram.keep_probabilities(corpus.counts, 0.01)
    assert shares[0] == pytest.approx(math.sqrt(0.01 / 0.75) + 0.01 / 0.75)
    kept = sum(len(step.centers) * BLOCK for step in steps)
    assert kept == pytest.approx((shares * corpus.counts).sum(), rel=0.05)
    chance = torch.cat([step.others[:, -NEGATIVES:].flatten() for step in steps]).bincount(minlength=3).double()
    wanted = torch.tensor([30_000.0, 5_000.0, 5_000.0], dtype=torch.float64) ** 0.75
    torch.testing.assert_close(chance / chance.sum(), wanted / wanted.sum(), atol=0.01, rtol=0)


def test_similar_words_have_similar_vectors_and_training_is_reproducible(tmp_path: Path) -> None:
    path = text(tmp_path / "t.txt")
    config = SkipGramConfig(width=16, window=2, sample=1.0, epochs=20, seed=3)
    corpus, progress = read_corpus([path], config), []
    vectors = train_vectors(corpus, config, progress.append)
    assert {one.word for one in vectors.neighbours("cat", 3)} == {"dog", "horse", "cow"}
    assert {one.word for one in vectors.neighbours("three", 3)} == {"one", "two", "four"}
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    again = train_vectors(corpus, config)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)
    assert again.matrix.tobytes() == vectors.matrix.tobytes()
    other = train_vectors(corpus, config.model_copy(update={"seed": 4}))
    assert other.matrix.tobytes() != vectors.matrix.tobytes()
