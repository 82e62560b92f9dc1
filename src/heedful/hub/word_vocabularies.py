"""The vocabulary of a published Transformer-XL: vocab.bin or vocab.pkl, which are pickles, or vocab.txt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heedful.data.tokenizers.base import MAX_FILE, require_fit
from heedful.data.tokenizers.wordpiece_files import CONFIG, read_tokenizer_settings, require_class
from heedful.data.tokenizers.words import WordTokenizer
from heedful.errors import UserError, shown, wrong
from heedful.files.folders import has_file, read_text
from heedful.hub.unpickling import read_vocabulary

PICKLES = ("vocab.bin", "vocab.pkl")
TEXT = "vocab.txt"


def find_words(folder: Path, vocab: int) -> WordTokenizer | None:
    """The tokenizer of a folder, if it has such a file; its words may not exceed the model's, `vocab`."""
    name = next((name for name in (TEXT, *PICKLES) if has_file(folder, name)), None)
    if name is None:
        return None
    settings, where = read_tokenizer_settings(folder), folder / CONFIG
    require_class(settings.get("tokenizer_class"), ("TransfoXLTokenizer",), where, "use the folder as it was published")
    if name == TEXT:
        lines = read_text(folder, TEXT, MAX_FILE).splitlines()
        words = [line.split()[0] if line.split() else "" for line in lines]
    else:
        settings = read_vocabulary(folder, name)
        words, where = settings["words"], folder / name
    lowercase: Any = settings.get("lower_case", False)
    if not isinstance(lowercase, bool):
        raise wrong(where, "lower_case", lowercase, "true or false")
    if settings.get("delimiter") is not None:
        raise UserError(
            "words are cut at whitespace alone", where=f"{where}: delimiter", found=shown(settings["delimiter"]),
            expected="null", todo="use the folder as it was published",
        )  # fmt: skip
    found = WordTokenizer.from_words(words, lowercase, str(folder / name))
    require_fit(found, vocab, folder / name)
    return found
