"""Style transfer: what `heedful.load` returns, and its scores.

B texts, N texts of a split, T tokens, K styles.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from heedful.data.formats.tables import Item, class_numbers
from heedful.data.labelled.batches import EncodedTexts, encode_texts
from heedful.data.labelled.registers import CONTENT, REGISTERS, parse
from heedful.data.tokenizers.vocabulary import TextVocab
from heedful.decode.rules import SuppressTokens
from heedful.decode.search import Paths, drain, greedy
from heedful.errors import UserError, shown
from heedful.tasks.classification.predictor import Classification, read_items
from heedful.tasks.predictor import Evaluation, Predictor, Result, batch_of
from heedful.tasks.style_transfer.losses import BATCH_TOKENS, BEGIN, END, Texts, mean_loss
from heedful.training.metrics import Score

SUPPRESSED = SuppressTokens(tuple(sorted(TextVocab.special - {END})))
MARKER = 5.0  # times as often in one style as in the others: a word that marks this style


@dataclass(frozen=True, repr=False)
class StyledText(Result):
    """A text in another style, and the probability that it is a real text of this style, by the discriminator."""

    text: str
    style: str
    probability: float
    unknown: list[str] = field(repr=False)  # words of the input that the model does not know, and cannot write
    cut: int = field(default=0, repr=False)  # tokens beyond the model's context, which were not read


@dataclass
class TextStyleTransfer(Predictor[tuple[str, str], StyledText, tuple[str, str]]):
    """Says texts in another style."""

    task: ClassVar = "style_transfer"

    model: nn.Module
    tokenizer: TextVocab
    device: torch.device
    context: int
    notes: tuple[str, ...] = ()

    @property
    def styles(self) -> tuple[str, ...]:
        """The names of its styles."""
        return self.tokenizer.labels

    def transfer(self, texts: Sequence[str], style: str) -> list[StyledText]:
        """Each text in this style."""
        return self.predict([(text, style) for text in batch_of(texts)])

    def predict(self, inputs: Sequence[tuple[str, str]]) -> list[StyledText]:
        """The text of each pair (text, style) in that style."""
        for number, (text, style) in enumerate(inputs):
            if style not in self.styles:
                raise UserError(
                    "the model does not know this style", where=f"input {number}", found=shown(style),
                    expected="one of " + ", ".join(map(shown, self.styles)),
                )  # fmt: skip
            if not text.strip():
                raise UserError("the text is empty", where=f"input {number}", found=shown(text), expected="a sentence")
        if not inputs:
            return []
        wanted = np.array([self.styles.index(style) for _, style in inputs], np.int64)
        encoded = encode_texts([(text, None) for text, _ in inputs], wanted, self.tokenizer, self.context)
        found = self.write(encoded)
        probabilities = self._judged(found).softmax(-1)  # (N, K + 1)
        return [
            StyledText(text, style, float(row[number]), self._unknown(given), int(cut))
            for text, (given, style), number, row, cut in zip(
                found, inputs, wanted, probabilities, encoded.lost, strict=True
            )
        ]

    def classify(self, texts: Sequence[str]) -> list[Classification]:
        """The style of each text, by the discriminator, which was trained to know real texts of each."""
        logits = self._judged(batch_of(texts))[:, : len(self.styles)]  # (N, K)
        rows = [dict(zip(self.styles, row.tolist(), strict=True)) for row in logits.softmax(-1)]
        best = [max(row, key=row.__getitem__) for row in rows]
        return [Classification(style, row[style], row) for style, row in zip(best, rows, strict=True)]

    @torch.inference_mode()
    def write(self, encoded: EncodedTexts) -> list[str]:
        """Encoded texts in the styles that are their targets, by greedy search; a batch does not change them."""
        written: dict[int, str] = {}
        for batch in encoded.in_order(BATCH_TOKENS):
            there = batch.to(self.device)
            texts = Texts.of(there)
            state = self._net.start(texts.words, there.targets, texts.layout)
            prefix = torch.full((len(texts.words), 1), BEGIN, device=self.device)  # (B, 1)
            limit = (2 * texts.lengths + 8).clamp(max=self.context - 1).cpu()  # (B,)
            paths = drain(greedy(self._net, state, prefix, limit, END, (SUPPRESSED,)))
            written |= dict(zip(batch.indices.tolist(), self._texts(paths), strict=True))
        return [written[row] for row in range(len(encoded))]

    def _texts(self, paths: Paths) -> list[str]:
        rows = zip(paths.tokens[:, 0].tolist(), paths.lengths[:, 0].tolist(), strict=True)
        return [self.tokenizer.decode(tokens[:length]) for tokens, length in rows]

    @torch.inference_mode()
    def _judged(self, texts: Sequence[str]) -> torch.Tensor:
        """The discriminator's logits (N, K + 1)."""
        nothing = np.zeros(len(texts), np.int64)
        encoded = encode_texts([(text, None) for text in texts], nothing, self.tokenizer, self.context)
        found: dict[int, torch.Tensor] = {}
        for batch in encoded.in_order(BATCH_TOKENS):
            read = Texts.of(batch.to(self.device))
            logits = self._net.discriminator(read.words, read.real).float().cpu()  # (B, K + 1)
            found |= dict(zip(batch.indices.tolist(), logits, strict=True))
        return torch.stack([found[row] for row in range(len(texts))])  # (N, K + 1)

    def _unknown(self, text: str) -> list[str]:
        encoding = self.tokenizer.encode(text)
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        return [text[begin:end] for number, (begin, end) in spans if number == self.tokenizer.unk]

    def _evaluate(self, data: Path | Sequence[tuple[str, str]]) -> Evaluation:
        items = read_items(data)
        encoded = encode_items(items, self.styles, self.tokenizer, self.context)
        written = self.write(transferred(encoded, len(self.styles)))
        scores = judged_scores(items, written, self)
        return Evaluation.of(scores, mean_loss(self.model, encoded, self.device), len(items))


def encode_items(items: Sequence[Item], styles: Sequence[str], tokenizer: TextVocab, context: int) -> EncodedTexts:
    """Texts with their styles, truncated to the context."""
    targets = np.array(class_numbers(items, styles), np.int64)
    return encode_texts([(item.text, None) for item in items], targets, tokenizer, context)


def transferred(encoded: EncodedTexts, styles: int) -> EncodedTexts:
    """The same texts with other styles as targets: of several, in turn."""
    shift = 1 + np.arange(len(encoded)) % (styles - 1)  # (N,)
    return replace(encoded, targets=(encoded.targets + shift) % styles)


# ------------------------------------------------------------------ scores
def kept(before: Iterable[str], after: Iterable[str]) -> float:
    """The share of words that are in both texts, of those in the longer one: added words count as lost ones."""
    one, other = Counter(before), Counter(after)
    return (one & other).total() / max(one.total(), other.total(), 1)


def grammar_scores(items: Sequence[Item], written: Sequence[str]) -> list[Score]:
    """Of the language in two registers, all decided by its grammar.

    style: the sentences of the target register; content: the share of content words kept; meaning: the sentences that
    say exactly what they should.
    """
    style = content = meaning = 0.0
    for item, text in zip(items, written, strict=True):
        (target,) = (register for register in REGISTERS if register != item.label)
        (register,) = (register for register in REGISTERS if register == item.label)
        said, wanted = parse(text, target), parse(item.text, register)
        style += said is not None
        meaning += said is not None and said == wanted
        content += kept(*([word for word in one.split() if word in CONTENT] for one in (item.text, text)))
    count = len(items)
    scores = transfer_scores(style / count, content / count, f"by:grammar|texts:{count}")
    return [*scores, Score("meaning", 100 * meaning / count, f"by:grammar|texts:{count}")]


def judged_scores(items: Sequence[Item], written: Sequence[str], predictor: TextStyleTransfer) -> list[Score]:
    """Of any texts: the style as the discriminator sees it, and the words kept that mark no style.

    A word marks a style if it is `MARKER` times as frequent in it as in the other styles (Li et al., 2018), in the
    texts of these items, with one added to each count.
    """
    words = predictor.tokenizer

    def split(text: str) -> list[str]:
        return words.pieces(words.ids([text])[0])

    marks = markers([(split(item.text), item.label) for item in items])
    style = content = 0.0
    judged = predictor.classify(written)
    targets = transferred(encode_items(items, words.labels, words, predictor.context), len(words.labels)).targets
    for item, text, found, target in zip(items, written, judged, targets, strict=True):
        style += found.label == words.labels[target]
        content += kept(*([word for word in split(one) if word not in marks] for one in (item.text, text)))
    count = len(items)
    return transfer_scores(style / count, content / count, f"by:discriminator|marker:{MARKER:g}|texts:{count}")


def markers(texts: Iterable[tuple[Sequence[str], str]]) -> set[str]:
    """The words that mark a style: much more frequent in its texts than in all others."""
    counts: dict[str, Counter[str]] = {}
    for words, style in texts:
        counts.setdefault(style, Counter()).update(words)
    total = Counter[str]()
    for each in counts.values():
        total.update(each)
    return {
        word
        for word in total
        if any((each[word] + 1) / (total[word] - each[word] + 1) >= MARKER for each in counts.values())
    }


def transfer_scores(style: float, content: float, signature: str) -> list[Score]:
    """Style and content, shares from 0 to 1, and first their geometric mean."""
    values = {"transfer": math.sqrt(style * content), "style": style, "content": content}
    return [Score(name, 100 * value, signature) for name, value in values.items()]
