"""Changes to the text of a template: other groups of settings, with the comments of the rest left as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

WORDS_INSTEAD = """\
# The model learns from your texts alone. With a trained encoder it needs fewer:
#   heedful init {name} --from FOLDER
tokenizer:
  kind: words
"""
ENCODER_INSTEAD = """\
# A small encoder, randomly initialized. A trained one needs far fewer examples:
#   heedful init {name} --from FOLDER
tokenizer:
  kind: wordpiece
  vocab: 8000               # at most
"""
ENCODER = """\
  encoder:
    kind: bert
    width: 128
    heads: 4
    layers: 2
    hidden: 512
    context: 256            # maximum number of tokens
"""


def with_group(text: str, key: str, group: str) -> str:
    """The text with another group of settings at a key of the top level."""
    return re.sub(rf"^{key}:.*\n(?:[ #].*\n)*", lambda _: group, text, count=1, flags=re.MULTILINE)


def with_value(text: str, key: str, value: str) -> str:
    """The text with another value of every setting of this name."""
    return re.sub(rf"^( +{key}: ).*?(?= *(?: #|$))", lambda found: found[1] + value, text, flags=re.MULTILINE)


def without_start(text: str, name: str, by_words: bool) -> str:
    """A fine-tuning recipe that starts from scratch: a ConvNet over words, or a small encoder below the head."""
    text = with_group(text, "start", (WORDS_INSTEAD if by_words else ENCODER_INSTEAD).format(name=name))
    if by_words:
        text = with_group(text, "model", "model:\n  kind: conv_classifier\n")
    else:
        text = re.sub(r"^(model:\n  kind:.*\n)", lambda found: found[1] + ENCODER, text, count=1, flags=re.MULTILINE)
    text = re.sub(r"^( +lr:) .*", r"\1 1e-3", text, flags=re.MULTILINE)
    return with_value(text, "epochs", "10")


def with_table(
    text: str, settings: Mapping[str, object], columns: Mapping[str, str | Sequence[str] | None], rows: int
) -> str:
    """The recipe for a table with these settings, evaluated after each epoch of that many rows.

    There are no columns for a task that reads all of them.
    """
    named = ", ".join(f"{setting}: {json.dumps(name, ensure_ascii=False)}" for setting, name in columns.items())
    usual = {"kind": "table", "train": True, "valid": 0.1, "test": 0.1, **settings}
    lines = [
        f"  {key}: {value if key == 'kind' else json.dumps(value, ensure_ascii=False)}" for key, value in usual.items()
    ]
    notes = {"kind": "CSV, TSV, JSON lines or Parquet; plain or .gz", "valid": "a file, or the share of rows held out"}
    noted = [f"{line:<27} # {notes[key]}" if key in notes else line for key, line in zip(usual, lines, strict=True)]
    read = [f"  columns: {{{named}}}"] if columns else []
    return with_epochs(with_group(text, "data", "\n".join(["data:", *noted, *read, ""])), rows)


def with_epochs(text: str, rows: int) -> str:
    """The recipe evaluated after each epoch of that many rows, of which a fifth is held out."""
    size = re.search(r"^  batch_examples: (\d+)", text, flags=re.MULTILINE)
    if size is None:
        return text
    steps = max(1, -(-rows * 8 // 10 // int(size[1])))
    for key, value in (("evaluate_every", steps), ("save_every", steps), ("warmup", max(1, steps // 2))):
        text = with_value(text, key, str(value))
    return re.sub(r"(?<=[{ ])warmup: \d+(?=[,}])", f"warmup: {max(1, steps // 2)}", text)
