"""Training word vectors: time, and similarity to published ones, compared with gensim if it is installed.

    python benchmarks/word_vectors.py TEXT [--published GLOVE] [--rates 0.025,0.05]

Both learn with the same words, width, window, negatives, thinning and epochs: Heedful on one core and with the same
bits each time; gensim on two, whose threads write into each other's vectors. The score is the share of a word's ten
nearest published neighbours that are among its ten nearest here, over the words from the 100th to the 4,000th.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heedful import WordVectors, load_vectors
from heedful.data.formats.sources import lines
from heedful.extras.word2vec import LONGEST, WORD, read_corpus, train_vectors
from heedful.extras.word2vec_config import SkipGramConfig


def ours(path: Path, config: SkipGramConfig) -> tuple[WordVectors, float]:
    """Vectors, and the seconds from the file to them."""
    began = time.perf_counter()
    return train_vectors(read_corpus([path], config), config), time.perf_counter() - began


def gensims(path: Path, config: SkipGramConfig) -> tuple[WordVectors, float]:
    """The same by gensim, with two threads."""
    from gensim.models import Word2Vec

    began = time.perf_counter()
    sentences = [WORD.findall(line.lower()) for line in lines(path, LONGEST)]
    model = Word2Vec(
        sentences, vector_size=config.width, window=config.window, min_count=config.min_count, sg=1,
        negative=config.negatives, sample=config.sample, epochs=config.epochs, alpha=config.lr, seed=config.seed,
        workers=2,
    )  # fmt: skip
    return WordVectors(model.wv.index_to_key, model.wv.vectors), time.perf_counter() - began


def nearest(matrix: NDArray[np.float32], count: int = 10) -> NDArray[np.int64]:
    """The rows that point most nearly the same way as each row."""
    unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)
    return np.argpartition(-cosines, count, axis=1)[:, :count]


def likeness(vectors: WordVectors, published: WordVectors) -> float:
    """The share of published neighbours that are neighbours here."""
    words = [word for word in vectors.words if word in published][100:4000]
    here, there = (nearest(np.stack([some[word] for word in words])) for some in (vectors, published))
    return float(np.mean([len(set(a) & set(b)) / len(a) for a, b in zip(here, there, strict=True)]))


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=Path)
    parser.add_argument("--published", type=Path)
    parser.add_argument("--rates", default="0.025,0.05")
    given = parser.parse_args()
    published = load_vectors(given.published) if given.published else None
    makers = {"heedful": ours} | ({"gensim": gensims} if importlib.util.find_spec("gensim") else {})
    print(f"{given.text}, {given.text.stat().st_size:,} bytes; settings {SkipGramConfig()}")
    for rate in map(float, given.rates.split(",")):
        for name, make in makers.items():
            vectors, seconds = make(given.text, SkipGramConfig(lr=rate))
            score = f"  shared neighbours {likeness(vectors, published):.3f}" if published else ""
            print(f"rate {rate:<6} {name:<8} {len(vectors):,} words  {seconds:6.1f} s{score}", flush=True)


if __name__ == "__main__":
    main()
