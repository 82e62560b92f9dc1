"""The speed of preparing pre-training data: sentences, tokens, pairs with masked tokens.

    python benchmarks/bert_data.py                         # the prose of Python's standard library
    python benchmarks/bert_data.py --text novels/*.gz --vocab vocab.txt --json result.json

One process each, in tokens a second. Batches are of 32,768 tokens, the first ones of an epoch, none cached. Beside
them stands `DataCollatorForLanguageModeling` of `transformers`, where it is installed: it pads and masks sequences of
the same lengths that are already split, and builds no pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from heedful.data.embedded import LibraryProse
from heedful.data.text.documents import TextDocuments, library_documents
from heedful.data.text.pretraining import EncodedDocuments, PairRules, encode_documents
from heedful.data.text.pretraining_batches import PretrainingBatches
from heedful.data.tokenizers.encoders import encoder_tokenizer
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer, WordPieceFile
from heedful.data.workers import BatchIndex, load_batches

ROOM = 32_768


def main() -> None:
    """Measure every stage, and print a line for each."""
    asked = arguments()
    found: dict[str, float] = {}
    began = time.perf_counter()
    documents = list(texts(asked.text))
    reading = time.perf_counter() - began
    config = WordPieceFile(file=asked.vocab) if asked.vocab else WordPiece(vocab=8000, lowercase=True)
    tokenizer = encoder_tokenizer(config, (text for document in documents for text in document))
    began = time.perf_counter()
    encoded = encode_documents(documents, tokenizer, 128, PairRules())
    found["reading and splitting"] = len(encoded) / reading
    found["tokenizing"] = len(encoded) / (time.perf_counter() - began)
    print(f"{len(documents):,} documents, {len(encoded.sentences) - 1:,} sentences, {len(encoded):,} tokens")
    for context in (128, 512):
        words = PairRules(whole_words=True)
        for name, rules, packed in (
            ("padded", PairRules(), False),
            ("packed", PairRules(), True),
            ("packed, whole words", words, True),
        ):
            batches = PretrainingBatches(make_pairs(encoded, context, rules), 0, ROOM, packed, even=not packed)
            found[f"pairs of {context}, {name}"] = speed(batches, asked.batches)
            if name == "packed":
                found[f"pairs of {context}, {name}, from a worker"] = speed(batches, asked.batches, workers=1)
        collator = peer(
            tokenizer, PretrainingBatches(make_pairs(encoded, context, PairRules()), 0, ROOM), asked.batches
        )
        if collator is not None:
            found[f"masks of {context}, transformers' collator"] = collator
    for name, rate in found.items():
        print(f"{name:<45} {rate:>12,.0f} tokens/s")
    if asked.json:
        Path(asked.json).write_text(json.dumps({"tokens": len(encoded), "tokens_per_second": found}, indent=2) + "\n")


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", nargs="*", default=[], help="files of text, a document each")
    parser.add_argument("--vocab", help="a vocab.txt; else the pieces are learned")
    parser.add_argument("--batches", type=int, default=100, help="batches that are measured")
    parser.add_argument("--json", help="a file for the figures")
    return parser.parse_args()


def texts(files: list[str]) -> Iterator[list[str]]:
    """The documents of files, or those that need none."""
    return TextDocuments(files=files).documents(".", 10**8) if files else library_documents(LibraryProse(), "train")


def make_pairs(encoded: EncodedDocuments, context: int, rules: PairRules) -> EncodedDocuments:
    """The same documents for another context."""
    return replace(encoded, context=context, rules=rules)


def speed(batches: PretrainingBatches, number: int, workers: int = 0) -> float:
    """Tokens a second of some batches, from a process of their own or not."""
    places: Callable[[], Iterator[BatchIndex]] = lambda: (BatchIndex(position) for position in count())  # noqa: E731
    source = load_batches(batches, places, workers)
    next(source)
    began = time.perf_counter()
    tokens = sum(batch.tokens for batch in islice(source, number))
    rate = tokens / (time.perf_counter() - began)
    source.close()
    return rate


def peer(tokenizer: BertTokenizer, batches: PretrainingBatches, number: int) -> float | None:
    """The same for masks alone by `transformers`, over sequences that are lists already."""
    try:
        from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast
    except ImportError:
        return None
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tokenizer.json").write_text(tokenizer.json)
        names = {name: f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
        theirs: Any = PreTrainedTokenizerFast(
            tokenizer_file=str(Path(folder, "tokenizer.json")),
            **{f"{name}_token": text for name, text in names.items()},
        )
    collate = DataCollatorForLanguageModeling(theirs, mlm_probability=0.15)
    rows = []
    for batch in (batches.at(position) for position in range(number)):
        parts = (part.tolist() for part in (batch.ids, batch.segments, batch.lengths))
        pairs = ((ids[:length], segments[:length]) for ids, segments, length in zip(*parts, strict=True))
        rows.append([{"input_ids": ids, "token_type_ids": segments} for ids, segments in pairs])
    began = time.perf_counter()
    tokens = sum(int(collate(some)["attention_mask"].sum()) for some in rows)
    return tokens / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
