"""Documents as one array of ids, and pairs of segments with masked tokens: BERT's pre-training examples.

An example is `[CLS] A [SEP] B [SEP]`: A some sentences of a document, B those that follow, or some of another document
(next-sentence prediction); or A and B follow each other, and are swapped or not (sentence-order prediction).
The text is divided into cells as long as the context; each gives one example per epoch, which starts at a random token
of it, so that an example is a function of the seed, the epoch and the cell alone.

Differs from the published script: that one goes through a document in order and fixes pairs and masks once, here they
are sampled again in every epoch; what is too long loses a random part at its front and the rest at its end.

RoBERTa's examples are `<s> A </s>`: sentences of one document, or with `full_sentences` as many full sentences as fit,
in order and across the ends of documents, with `</s>` between documents.

B rows, T positions in a row, N pairs, M masked tokens, S sentences, D documents, C cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heedful.data.batch import Ints, fingerprint
from heedful.data.masking import MaskingVocab, apply_masking, choose_tokens, choose_whole_words, count_masked
from heedful.data.order import random_bits_at
from heedful.data.tokenizers.base import MaskTokenizer
from heedful.errors import UserError

FOLLOWS, UNRELATED = 0, 1
CHUNK = 1024  # sentences tokenized at a time
CELLS = 2**16  # cells sampled at a time
BEGIN, SHORT, TARGET, SPLIT, RELATED, OTHER, PLACE, FRONT_A, FRONT_B, HIDE, LUCK, SWAP = range(1, 13)  # streams


@dataclass(frozen=True, slots=True)
class PairRules:
    """How pairs are sampled and tokens masked."""

    hidden: float = 0.15  # share of the tokens
    whole_words: bool = False  # whether all pieces of a word are masked together
    unrelated: float = 0.5  # share of the pairs whose second text does not follow the first
    short: float = 0.1  # share of the pairs that are shorter than the context
    last_sep: bool = True  # whether a pair ends in [SEP]
    pairs: bool = True  # whether an example is a pair; else it is sentences of one document
    full_sentences: bool = False  # whether it is full sentences that may cross the ends of documents
    swapped: bool = False  # whether such pairs are two texts that follow each other, swapped; else of two documents

    @property
    def special(self) -> int:
        """Special tokens of a pair."""
        return 3 if self.last_sep and self.pairs else 2


class PairSpans(NamedTuple):
    """The spans of the two segments of each pair in the ids, and whether the second follows the first."""

    a: tuple[Ints, Ints]  # (N,) first token, and the one after the last
    b: tuple[Ints, Ints]
    unrelated: NDArray[np.bool_]  # (N,)
    special: int  # special tokens of a pair

    @property
    def lengths(self) -> Ints:
        """The number of tokens of each pair, special tokens included."""
        return self.a[1] - self.a[0] + self.b[1] - self.b[0] + self.special


class MaskedPairs(NamedTuple):
    """Padded pairs, original and with masked tokens."""

    ids: NDArray[np.int32]  # (B, T)
    shown: NDArray[np.int32]  # (B, T) the same, masked
    segments: Ints  # (B, T)
    lengths: Ints  # (B,)
    hidden: NDArray[np.bool_]  # (B, T)
    unrelated: NDArray[np.bool_]  # (B,)


@dataclass(frozen=True, slots=True)
class EncodedDocuments:
    """Documents as concatenated ids with sentence and document boundaries, and the rules for examples."""

    ids: NDArray[np.int32]  # tokens of all documents
    sentences: Ints  # (S + 1,) first token of each, then the end
    documents: Ints  # (D + 1,) first sentence of each, then the end
    marks: MaskingVocab
    context: int
    rules: PairRules
    sha256: str  # hash of the ids and boundaries
    unknown: int = 0  # tokens that the tokenizer does not know
    dropped: int = 0  # long sentences are truncated, not dropped

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def room(self) -> int:
        """The maximum number of text tokens in a pair."""
        return self.context - self.rules.special

    @property
    def cells(self) -> int:
        """The number of examples per epoch."""
        return -(-len(self) // self.room)

    def spans(self, seed: int, epoch: int, cells: Ints) -> PairSpans:
        """The segments of each cell's example."""

        def draw(stream: int) -> NDArray[np.uint64]:
            return random_bits_at(seed, epoch, stream, cells)

        def below(stream: int, limits: Ints | int) -> Ints:
            found: Ints = (draw(stream) % np.asarray(limits, dtype=np.uint64)).astype(np.int64)
            return found

        def share(stream: int, part: float) -> NDArray[np.bool_]:
            found: NDArray[np.bool_] = draw(stream) / 2.0**64 < part
            return found

        place = cells * self.room + below(BEGIN, np.minimum(self.room, len(self) - cells * self.room))
        first = np.searchsorted(self.sentences, place, side="right") - 1
        if self.rules.full_sentences:
            return self._full_spans(first, draw(FRONT_A))
        document = np.searchsorted(self.documents, first, side="right") - 1
        start, end = self.documents[document], self.documents[document + 1]
        first = np.minimum(first, np.maximum(start, end - 2))  # so that a second sentence follows
        target = np.where(share(SHORT, self.rules.short), 2 + below(TARGET, self.room - 1), self.room)
        last = np.minimum(np.maximum(self._filled(first, target), first + 2), end)  # the sentence after the last
        split = first + 1 + below(SPLIT, np.maximum(last - first - 1, 1))
        alone, unrelated = last - first == 1, share(RELATED, self.rules.unrelated)
        a, b = (self.sentences[first], self.sentences[split]), (self.sentences[split], self.sentences[last])
        if self.rules.pairs and self.rules.swapped:
            half = np.where(alone, (a[0] + a[1] + 1) // 2, a[1])  # a sentence that is alone is cut in two
            a, b = (a[0], half), (np.where(alone, half, b[0]), np.where(alone, a[1], b[1]))
            a, b = (
                (np.where(unrelated, two[0], one[0]), np.where(unrelated, two[1], one[1]))
                for one, two in ((a, b), (b, a))
            )
        elif self.rules.pairs and (unrelated := unrelated | alone).any():
            # Each of the other documents is equally likely, and in it each first sentence.
            others = len(self.documents) - 2
            other = (document + 1 + below(OTHER, others)) % (others + 1)
            begin = self.documents[other] + below(PLACE, self.documents[other + 1] - self.documents[other])
            stop = np.maximum(self._filled(begin, target - (a[1] - a[0])), begin + 1)
            stop = np.minimum(stop, self.documents[other + 1])
            b = (np.where(unrelated, self.sentences[begin], b[0]), np.where(unrelated, self.sentences[stop], b[1]))
        if not self.rules.pairs:
            a, b = (a[0], b[1]), (b[1], b[1])
            unrelated = np.zeros_like(unrelated)
        lost_a, lost_b = count_truncated(a[1] - a[0], b[1] - b[0], self.room)
        front_a, front_b = below(FRONT_A, lost_a + 1), below(FRONT_B, lost_b + 1)
        return PairSpans(
            (a[0] + front_a, a[1] - (lost_a - front_a)),
            (b[0] + front_b, b[1] - (lost_b - front_b)),
            unrelated,
            self.rules.special,
        )

    def _full_spans(self, first: Ints, random: NDArray[np.uint64]) -> PairSpans:
        """As many full sentences as fit, from each of these on; of a sentence that does not fit, a random part."""
        start, count = self.sentences[first], len(self.sentences) - 1
        last = np.searchsorted(self.sentences, start + self.room, side="right") - 1  # the sentence after the last
        # The separator after a document is not needed at the end of an example: one sentence more may fit without it.
        more = np.minimum(last + 1, count)
        last = np.where(self._text_end(more) == start + self.room, more, np.maximum(last, first + 1))
        end = self._text_end(last)
        lost = np.maximum(end - start - self.room, 0)
        front = (random % (lost + 1).astype(np.uint64)).astype(np.int64)
        start, end = start + front, end - (lost - front)
        return PairSpans((start, end), (end, end), np.zeros(len(first), dtype=np.bool_), self.rules.special)

    def _text_end(self, sentence: Ints) -> Ints:
        """The end of the text before a sentence, without a separator."""
        end = self.sentences[sentence]
        return end - (self.ids[end - 1] == self.marks.sep)

    def _filled(self, first: Ints, tokens: Ints) -> Ints:
        """The first sentence boundary at least `tokens` tokens after the start of sentence `first`."""
        found: Ints = np.searchsorted(self.sentences, self.sentences[first] + tokens, side="left")
        return np.minimum(found, len(self.sentences) - 1)

    def lengths(self, seed: int, epoch: int) -> Ints:
        """The number of tokens of every example of an epoch."""
        parts = (np.arange(at, min(at + CELLS, self.cells)) for at in range(0, self.cells, CELLS))
        return np.concatenate([self.spans(seed, epoch, cells).lengths for cells in parts])  # (C,)

    def build(self, seed: int, epoch: int, cells: Ints) -> MaskedPairs:
        """The masked examples of these cells."""
        spans, marks = self.spans(seed, epoch, cells), self.marks
        lengths, size = spans.lengths[:, None], (spans.a[1] - spans.a[0])[:, None]  # (B, 1)
        at = np.arange(int(lengths.max()))  # (T,)
        second = at > size + 1  # (B, T)
        found = np.where(second, spans.b[0][:, None] - size - 2, spans.a[0][:, None] - 1) + at  # (B, T)
        ids = self.ids[found.clip(0, len(self) - 1)]  # (B, T)
        ids[at >= lengths] = marks.pad
        ids[:, 0] = marks.cls
        ids[at == size + 1] = marks.sep
        if self.rules.last_sep:
            ids[at == lengths - 1] = marks.sep
        text, where = ~marks.special[ids], cells[:, None] * self.context + at  # (B, T)
        counts, random = count_masked(spans.lengths, self.rules.hidden), random_bits_at(seed, epoch, HIDE, where)
        if self.rules.whole_words:
            hidden = choose_whole_words(text, marks.continues_word[ids], counts, random)  # (B, T)
        else:
            hidden = choose_tokens(text, counts, random)  # (B, T)
        random, other = (random_bits_at(seed, epoch, stream, where[hidden]) for stream in (LUCK, SWAP))
        shown = apply_masking(ids, hidden, random, other, marks)  # (B, T)
        return MaskedPairs(
            ids, shown, (second & (at < lengths)).astype(np.int64), spans.lengths, hidden, spans.unrelated
        )


def count_truncated(first: Ints, second: Ints, room: int) -> tuple[Ints, Ints]:
    """The numbers of tokens to remove from two segments, always from the longer one, so that both fit into `room`."""
    over = np.maximum(first + second - room, 0)
    longer = np.minimum(over, np.abs(first - second))
    rest = over - longer
    return np.where(first > second, longer, 0) + rest // 2, np.where(second > first, longer, 0) + rest - rest // 2


def encode_documents(
    documents: Iterable[list[str]], tokenizer: MaskTokenizer, context: int, rules: PairRules
) -> EncodedDocuments:
    """Encode documents as ids; empty sentences and documents are skipped."""
    ids, sentences, sizes = list[NDArray[np.int32]](), [0], list[int]()
    for rows in tokenize_documents(documents, tokenizer):
        ids.append(np.array([number for row in rows for number in row], dtype=np.int32))
        sentences += [len(row) for row in rows]
        sizes.append(len(rows))
    arrays = (
        np.concatenate([np.zeros(0, dtype=np.int32), *ids]),
        np.cumsum(sentences, dtype=np.int64),
        np.cumsum([0, *sizes], dtype=np.int64),
    )
    unknown = int((arrays[0] == tokenizer.unk).sum())
    encoded = EncodedDocuments(*arrays, MaskingVocab.of(tokenizer), context, rules, fingerprint(*arrays), unknown)
    return prepare_examples(encoded)


def prepare_examples(encoded: EncodedDocuments) -> EncodedDocuments:
    """Documents from which the examples of their rules can be made; too little text is refused."""
    require_pairs(encoded)
    return join_documents(encoded) if encoded.rules.full_sentences else encoded


def join_documents(encoded: EncodedDocuments) -> EncodedDocuments:
    """The same text as one document, with a separator after each of its documents: RoBERTa's FULL-SENTENCES."""
    ends = encoded.sentences[encoded.documents[1:]]  # (D,)
    ids = np.insert(encoded.ids, ends, encoded.marks.sep)
    added = np.searchsorted(ends, encoded.sentences, side="right")  # separators before each sentence ends
    return replace(encoded, ids=ids, sentences=encoded.sentences + added, documents=encoded.documents[[0, -1]])


def tokenize_documents(documents: Iterable[list[str]], tokenizer: MaskTokenizer) -> Iterator[list[list[int]]]:
    """Tokenize the sentences of each document, many documents at a time."""
    waiting: list[list[str]] = []
    for document in documents:
        waiting.append(document)
        if sum(map(len, waiting)) >= CHUNK:
            yield from _tokenize_chunk(waiting, tokenizer)
            waiting = []
    yield from _tokenize_chunk(waiting, tokenizer)


def _tokenize_chunk(documents: list[list[str]], tokenizer: MaskTokenizer) -> Iterator[list[list[int]]]:
    rows = iter(tokenizer.ids([text for document in documents for text in document]))
    for document in documents:
        if found := [row for row in islice(rows, len(document)) if row]:
            yield found


def require_pairs(encoded: EncodedDocuments) -> EncodedDocuments:
    """Refuse documents from which no pairs can be made."""
    count, several = len(encoded.documents) - 1, len(encoded.sentences) > 2
    if not several or (count < 2 and encoded.rules.unrelated > 0 and not encoded.rules.swapped):
        raise UserError(
            "there is too little text to make pairs",
            where="data",
            found=f"in one of the splits, documents: {count:,}, sentences: {len(encoded.sentences) - 1:,}",
            expected="at least two documents to learn from and two that are held out, since half of the pairs take "
            "their second part from another one",
            todo="name more files, or raise data.held_out; if a file holds several documents, say where "
            "they end: between: blank_lines or headings",
        )
    return encoded
