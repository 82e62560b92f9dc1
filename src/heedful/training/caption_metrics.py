"""Metrics of captions with several references each: BLEU-1 to BLEU-4, ROUGE-L, CIDEr-D and chrF.

They equal the published scripts of the COCO caption evaluation (Chen et al., 2015), except chrF, which is sacrebleu's.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from heedful.training.metrics import Score

Token = TypeVar("Token", bound=Hashable)
Tokens = Sequence[Token]
Ngram = tuple[Hashable, ...]

MAX_NGRAM = 4  # tokens of the longest n-gram
TINY, SMALL = 1e-15, 1e-9  # what BLEU's script adds to matches and to n-grams, which is why a score is never quite 0
ROUGE_BETA = 1.2  # how much more ROUGE-L's recall counts than its precision
SIGMA = 6.0  # standard deviation of CIDEr-D's penalty for another length

# Penn Treebank tokens, in the order in which they are tried.
TOKEN = re.compile(
    r"""
    (?:mr|mrs|ms|dr|st|jr|sr|vs|etc|prof)\.(?!\S) | (?:[a-z]\.){2,}      # abbreviations: mr., a.m.
    | \w+(?=n't\b) | n't\b | '(?:s|m|d|re|ve|ll|em|n'|\d\ds)(?!\w)      # do n't, it 's, the '90s
    | can(?=not\b) | (?:gon|wan)(?=na\b) | got(?=ta\b) | lem(?=me\b)    # can not, gon na
    | [-+]?\d+(?:[.,:/]\d+)+ | o'clock                                  # 10:30, 1,000, 1/2
    | [\w@\#]*\w(?:[-/.&@]+\w+)*                                        # words, also t-shirt, and/or
    | \.\.\. | --+ | [^\w\s]
    """,
    re.VERBOSE,
)
QUOTES = str.maketrans("‘’“”…", "''\"\".")
BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
PUNCTUATION = re.compile(r"[.?!,:;`'\"-]+")  # tokens that the scripts leave out


def caption_tokens(text: str) -> list[str]:
    """The lower-case tokens of a caption without punctuation, as the scripts count them.

    They split as in the Penn Treebank: `it's` is `it` and `'s`, `t-shirt` is one token. The published tokenizer needs
    Java; of 35,000 captions of Flickr8k, 34,996 have the same tokens.
    """
    plain = text.lower().translate(QUOTES)
    return [BRACKETS.get(token, token) for token in TOKEN.findall(plain) if not PUNCTUATION.fullmatch(token)]


def caption_scores(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[Score, ...]:
    """BLEU-1 to BLEU-4, ROUGE-L, CIDEr-D and chrF of captions, each with its references, as plain text."""
    _require_references(hypotheses, references)
    ours = [caption_tokens(text) for text in hypotheses]
    theirs = [[caption_tokens(text) for text in each] for each in references]
    return *bleu_scores(ours, theirs), rouge_l(ours, theirs), cider_d(ours, theirs), chrf(hypotheses, references)


def bleu_scores(hypotheses: Sequence[Tokens[Token]], references: Sequence[Sequence[Tokens[Token]]]) -> list[Score]:
    """BLEU-1 to BLEU-4 of all captions together (Papineni et al., 2002), with the length of the closest reference."""
    _require_references(hypotheses, references)
    matches, totals = np.zeros(MAX_NGRAM), np.zeros(MAX_NGRAM)
    length = expected = 0
    for ours, theirs in zip(hypotheses, references, strict=True):
        length += len(ours)
        expected += min((abs(len(one) - len(ours)), len(one)) for one in theirs)[1]
        most = Counter[Ngram]()
        for one in theirs:
            most |= ngrams(one)
        for ngram, count in (ngrams(ours) & most).items():
            matches[len(ngram) - 1] += count
        totals += [max(0, len(ours) - n) for n in range(MAX_NGRAM)]
    precisions = np.cumprod((matches + TINY) / (totals + SMALL))
    ratio = (length + TINY) / (expected + SMALL)
    penalty = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
    values = [100 * penalty * float(product) ** (1 / n) for n, product in enumerate(precisions, 1)]
    return [Score(f"bleu{n}", value, _signature(references)) for n, value in enumerate(values, 1)]


def rouge_l(hypotheses: Sequence[Tokens[Token]], references: Sequence[Sequence[Tokens[Token]]]) -> Score:
    """ROUGE-L (Lin, 2004): the F-score of the longest common subsequence, from the best precision and best recall."""
    _require_references(hypotheses, references)
    values = []
    for ours, theirs in zip(hypotheses, references, strict=True):
        common = [longest_common(ours, one) for one in theirs]
        precision = max(common) / max(1, len(ours))
        recall = max(count / max(1, len(one)) for count, one in zip(common, theirs, strict=True))
        weighted = recall + ROUGE_BETA**2 * precision
        values.append((1 + ROUGE_BETA**2) * precision * recall / weighted if weighted else 0.0)
    return Score("rouge_l", 100 * float(np.mean(values)), _signature(references))


def cider_d(hypotheses: Sequence[Tokens[Token]], references: Sequence[Sequence[Tokens[Token]]]) -> Score:
    """CIDEr-D (Vedantam et al., 2015) in percent, as papers print it (at most 1000), with these images' frequencies."""
    _require_references(hypotheses, references)
    values = CiderD(references).scores(hypotheses, range(len(hypotheses)))
    return Score("cider_d", 100 * float(values.mean()), _signature(references))


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Corpus chrF2 as sacrebleu computes it, of plain text with any number of references."""
    from sacrebleu.metrics.chrf import CHRF

    _require_references(hypotheses, references)
    most = max(len(each) for each in references)
    streams = [[each[n] if n < len(each) else None for each in references] for n in range(most)]
    metric = CHRF()
    value = metric.corpus_score(list(hypotheses), streams).score  # type: ignore[arg-type]  # None: no such reference
    return Score("chrf", float(value), str(metric.get_signature()))


@dataclass(frozen=True)
class _Vector:
    """The n-grams of a caption, weighted by how rare they are, the norm of those of each n, and its length."""

    weights: dict[Ngram, float]
    norms: list[float]
    length: int


class CiderD(Generic[Token]):
    """CIDEr-D against references that are counted once: the reward of self-critical training.

    The score of a caption is the mean over its references, and over n-grams of n = 1 to 4, of

        10 exp(-(difference of lengths)^2 / (2 6^2)) sum_ngram min(h, r) r / (|h| |r|)

    where h and r are their counts times log(images / images with this n-gram in a reference). Tokens may be strings or
    ids; an end token that is part of references and captions rewards ending in time.
    """

    def __init__(self, references: Sequence[Sequence[Tokens[Token]]]) -> None:
        self.references = references
        self.frequencies = Counter[Ngram]()
        for each in references:
            self.frequencies.update({ngram for one in each for ngram in ngrams(one)})
        self._logs = {ngram: math.log(count) for ngram, count in self.frequencies.items()}
        self._vectors: dict[int, list[_Vector]] = {}

    def scores(self, captions: Sequence[Tokens[Token]], images: Sequence[int]) -> NDArray[np.float64]:
        """The score of each caption (N,), from 0 to 10; `images` are the numbers of their references."""
        return np.array([self._score(*pair) for pair in zip(captions, images, strict=True)])

    def _score(self, caption: Tokens[Token], image: int) -> float:
        if image not in self._vectors:
            self._vectors[image] = [self._vector(one) for one in self.references[image]]
        ours, theirs = self._vector(caption), self._vectors[image]
        return 10 * sum(_similarity(ours, one) for one in theirs) / len(theirs)

    def _vector(self, tokens: Tokens[Token]) -> _Vector:
        rarest = math.log(len(self.references))
        weights = {ngram: count * (rarest - self._logs.get(ngram, 0.0)) for ngram, count in ngrams(tokens).items()}
        squares = [0.0] * MAX_NGRAM
        for ngram, weight in weights.items():
            squares[len(ngram) - 1] += weight**2
        return _Vector(weights, [math.sqrt(square) for square in squares], max(0, len(tokens) - 1))


def _similarity(ours: _Vector, theirs: _Vector) -> float:
    """The clipped cosine of two captions, the mean over n, with the penalty for another length."""
    products = [0.0] * MAX_NGRAM
    for ngram, weight in ours.weights.items():
        if there := theirs.weights.get(ngram):
            products[len(ngram) - 1] += min(weight, there) * there
    norms = [a * b for a, b in zip(ours.norms, theirs.norms, strict=True)]
    cosines = [product / norm if norm else 0.0 for product, norm in zip(products, norms, strict=True)]
    return sum(cosines) / MAX_NGRAM * math.exp(-((ours.length - theirs.length) ** 2) / (2 * SIGMA**2))


def ngrams(tokens: Tokens[Token]) -> Counter[Ngram]:
    """How often each n-gram of 1 to 4 tokens occurs."""
    return Counter(tuple(tokens[i : i + n]) for n in range(1, MAX_NGRAM + 1) for i in range(len(tokens) - n + 1))


def longest_common(first: Tokens[Token], second: Tokens[Token]) -> int:
    """The length of the longest common subsequence of both."""
    lengths = [0] * (len(second) + 1)
    for one in first:
        diagonal = 0
        for i, other in enumerate(second, 1):
            diagonal, lengths[i] = lengths[i], diagonal + 1 if one == other else max(lengths[i], lengths[i - 1])
    return lengths[-1]


def _signature(references: Sequence[Sequence[object]]) -> str:
    """The number of references, one or from the least to the most, and the tokenization."""
    counts = sorted({len(each) for each in references})
    most = f"{counts[0]}-{counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"nrefs:{most}|case:lc|tok:ptb|script:coco-caption|images:{len(references)}"


def _require_references(hypotheses: Sequence[object], references: Sequence[Sequence[object]]) -> None:
    """Refuse unequal numbers, and captions without a reference."""
    if not references or len(hypotheses) != len(references) or not all(references):
        raise ValueError(
            f"{len(hypotheses)} captions for {len(references)} lists of references: expected equal numbers, at least "
            "one, and at least one reference in each list"
        )
