"""The scores of a language model on a text: perplexity and bits per byte and per character."""

from __future__ import annotations

from pathlib import Path

from heedful.data.text.files import Text, TextFiles
from heedful.data.text.windows import EncodedText, encode_text
from heedful.data.tokenizers.lm_tokenization import LanguageTokenizer
from heedful.tasks.language_model.perplexity import (
    STRIDE,
    bits_per_byte,
    bits_per_character,
    perplexity,
    word_perplexity,
)
from heedful.tasks.predictor import Evaluation


def read_text(path: Path) -> Text:
    """The text of a file or folder."""
    return TextFiles(train=str(path), valid=str(path)).read("valid")


def text_scores(loss: float, text: EncodedText) -> Evaluation:
    """Perplexity and bits per byte and per character, from the mean loss of a text."""
    names = {"perplexity": perplexity(loss), "word_perplexity": word_perplexity(loss, text)}
    bits = {"bits_per_byte": bits_per_byte(loss, text), "bits_per_character": bits_per_character(loss, text)}
    return Evaluation(names | bits, loss, len(text))


def encode_whole(text: str, tokenizer: LanguageTokenizer, context: int = STRIDE) -> EncodedText:
    """The token ids of a text, whose last line ends with a newline."""
    if not text:
        raise ValueError("an empty text has no perplexity")
    return encode_text(Text(text.removesuffix("\n").split("\n")), tokenizer, context)
