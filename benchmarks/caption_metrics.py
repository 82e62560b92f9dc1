"""Caption metrics beside the published scripts on the same captions, which need Java for their tokens.

    pip install --target pycocoevalcap --no-deps pycocoevalcap
    PYTHONPATH=pycocoevalcap python benchmarks/caption_metrics.py flickr8k/dev_captions.txt.gz

Three sets of captions: a human's, with the other four as references; another image's, with one to five; and a human's
with words left out and repeated, with three.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from heedful.training.caption_metrics import CiderD, caption_scores, caption_tokens

Captions = tuple[list[str], list[list[str]]]


def main() -> None:
    """Print the scores of both, the largest relative difference, and microseconds a reward as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captions", type=Path, help="lines of image#number, a tab and a caption, as in Flickr8k; gzip")
    images = read(parser.parse_args().captions)
    sets = {"human": human(images), "other image": other_image(images), "edited": edited(images)}
    texts = [text for each in images for text in each]
    theirs = published_tokens([[text] for text in texts])
    same = sum(caption_tokens(text) == one[0].split() for text, one in zip(texts, theirs, strict=True))
    rows: list[dict[str, Any]] = [{"captions": len(texts), "with the same tokens": same}]
    for name, (hypotheses, references) in sets.items():
        ours = {score.name: score.value for score in caption_scores(hypotheses, references)}
        other = published_scores(hypotheses, references)
        worst = max(abs(ours[key] / value - 1) for key, value in other.items())
        spent = reward_seconds(hypotheses, references)
        found = {key: round(value, 3) for key, value in ours.items()}
        rows.append({"set": name, **found, "largest difference": worst, "us a reward": round(1e6 * spent, 1)})
    print(json.dumps(rows, indent=1))


def read(path: Path) -> list[list[str]]:
    """The captions of each image."""
    images: dict[str, list[str]] = {}
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        name, _, caption = line.partition("\t")
        images.setdefault(name.partition("#")[0], []).append(caption)
    return list(images.values())


def human(images: list[list[str]]) -> Captions:
    """The first caption of each image, and the others as its references."""
    return [each[0] for each in images], [each[1:] for each in images]


def other_image(images: list[list[str]]) -> Captions:
    """A caption of the next image, with one to five references."""
    rng = random.Random(1)
    moved = images[1:] + images[:1]
    return [each[0] for each in moved], [each[: rng.randint(1, 5)] for each in images]


def edited(images: list[list[str]]) -> Captions:
    """Captions of which words are left out, and which may be repeated, with three references."""
    rng = random.Random(2)
    texts = []
    for each in images:
        kept = [word for word in each[0].split() if rng.random() < 0.6]
        texts.append(" ".join(kept * rng.randint(1, 2)))
    return texts, [each[:3] for each in images]


def published_tokens(texts: list[list[str]]) -> list[list[str]]:
    """The tokens of the published tokenizer, joined by spaces."""
    tokenizer = importlib.import_module("pycocoevalcap.tokenizer.ptbtokenizer").PTBTokenizer()
    found: dict[int, list[str]] = tokenizer.tokenize(
        {number: [{"caption": text} for text in each] for number, each in enumerate(texts)}
    )
    return [found[number] for number in range(len(texts))]


def published_scores(hypotheses: list[str], references: list[list[str]]) -> dict[str, float]:
    """The scores of the published scripts, in percent."""
    ours = dict(enumerate(published_tokens([[text] for text in hypotheses])))
    theirs = dict(enumerate(published_tokens(references)))

    def of(name: str, *arguments: Any) -> Any:
        module = importlib.import_module(f"pycocoevalcap.{name}.{name}")
        with contextlib.redirect_stdout(sys.stderr):  # BLEU's script prints its counts
            return getattr(module, name.capitalize())(*arguments).compute_score(theirs, ours)[0]

    bleu = {f"bleu{n}": 100 * value for n, value in enumerate(of("bleu", 4), 1)}
    return {**bleu, "rouge_l": 100 * float(of("rouge")), "cider_d": 100 * float(of("cider"))}


def reward_seconds(hypotheses: list[str], references: list[list[str]]) -> float:
    """The time of one reward of self-critical training, once the references were seen."""
    reward = CiderD([[caption_tokens(text) for text in each] for each in references])
    ours = [caption_tokens(text) for text in hypotheses]
    reward.scores(ours, range(len(ours)))
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        reward.scores(ours, range(len(ours)))
        times.append((time.perf_counter() - begin) / len(ours))
    return float(np.median(times))


if __name__ == "__main__":
    main()
