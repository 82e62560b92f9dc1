"""Text from a stream of token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

from heedful.data.tokenizers.byte_pairs import Gpt2Tokenizer
from heedful.data.tokenizers.lm_tokenization import LanguageTokenizer

HELD_BACK = 12  # characters at the end of a line that later word pieces may change
DECODING_CONTEXT = 16  # ids before a token that its text depends on


class StreamDecoder:
    """Decodes a stream of token ids; text is returned once later ids cannot change it.

    Incomplete characters are held back, and with word pieces the end of a line, to which the next piece may be joined.
    """

    def __init__(
        self, tokenizer: LanguageTokenizer, text_after: Callable[[list[int], list[int]], str], before: Sequence[int]
    ) -> None:
        """`text_after` decodes ids that follow others, of which `before` are the first."""
        self.text_after, self.before, self.ids, self.emitted = text_after, list(before), list[int](), 0
        pieces = () if isinstance(tokenizer, Gpt2Tokenizer) else tokenizer.pieces(range(tokenizer.vocab))
        self.held_back = HELD_BACK if any(piece.startswith("##") for piece in pieces) else 0

    def fresh(self, before: Sequence[int]) -> StreamDecoder:
        """A decoder of another stream with the same tokenizer."""
        new = copy(self)
        new.before, new.ids, new.emitted = list(before), [], 0
        return new

    def add(self, number: int) -> str:
        """The text that is final after one more id."""
        return self.extend([number])

    def extend(self, numbers: Sequence[int]) -> str:
        """The text that is final after more ids."""
        self.ids.extend(numbers)
        text = self.text_after(self.before, self.ids)
        final = text if text.endswith("\n") else text[: max(0, len(text) - self.held_back)].rstrip("\ufffd")
        piece, self.emitted = final[self.emitted :], max(self.emitted, len(final))
        if final == text:  # nothing is held back: the next text depends only on the last ids
            self.before, self.ids, self.emitted = [*self.before, *self.ids][-DECODING_CONTEXT:], [], 0
        return piece

    def rest(self) -> str:
        """The text that was held back."""
        return self.text_after(self.before, self.ids)[self.emitted :]
