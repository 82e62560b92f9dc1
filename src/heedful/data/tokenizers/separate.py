"""Two tokenizers for a translation: the source and the target have a vocabulary each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from heedful.data.tokenizers.base import Encoding, parse_json
from heedful.data.tokenizers.tokenizer import TokenizerConfig, TrainedTokenizer


class SeparateTokenizers(TrainedTokenizer):
    """The tokenizer of the target, which encodes a text as a source by another one."""

    source_vocab: int

    def __init__(self, text: str, where: str) -> None:
        """Parse a file; `where` is its name in errors."""
        data = parse_json(text, where, self.invalid_file)
        if not isinstance(data, dict) or not all(isinstance(data.get(side), dict) for side in ("source", "target")):
            raise self.invalid_file(where, "a file without a tokenizer for each side")
        source, target = (json.dumps(data[side], ensure_ascii=False) for side in ("source", "target"))
        super().__init__(target, where)
        self._source = TrainedTokenizer(source, where)
        self.source_vocab = self._source.vocab
        self.json = json.dumps(
            {"source": json.loads(self._source.json), "target": json.loads(self.json)}, ensure_ascii=False
        )

    @classmethod
    def learn(
        cls, source: TokenizerConfig, target: TokenizerConfig, sources: Iterable[str], targets: Iterable[str]
    ) -> SeparateTokenizers:
        """Train a tokenizer on the texts of each side."""
        sides = {"source": TrainedTokenizer.train(source, sources), "target": TrainedTokenizer.train(target, targets)}
        files = {side: json.loads(tokenizer.json) for side, tokenizer in sides.items()}
        return cls(json.dumps(files, ensure_ascii=False), "tokenizer")

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode each text as a source."""
        return self._source.encode_batch(texts)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text as a source."""
        return self._source.ids(texts)

    def target_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text as a target."""
        return super().ids(texts)

    def source_pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each token of a source."""
        return self._source.pieces(ids)

    @property
    def source_names(self) -> list[str]:
        """The name of each token of a source."""
        return self._source.token_names
