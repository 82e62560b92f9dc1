"""A tokenizer with a token for each target language: "<2de> a house" is `<2de>` and the tokens of "a house"."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from heedful.data.formats.parallel import split_tag
from heedful.data.tokenizers.base import Encoding, parse_json, read_tokenizer_file, require_list
from heedful.data.tokenizers.sentence_pieces import SentencePieceTokenizer
from heedful.data.tokenizers.separate import SeparateTokenizers
from heedful.data.tokenizers.tokenizer import TokenizerConfig, TrainedTokenizer


class MultilingualTokenizer(TrainedTokenizer):
    """A trained tokenizer, and after its own tokens one for each language, which only begins a text."""

    def __init__(self, text: str, where: str) -> None:
        """Parse a file; `where` is its name in errors."""
        data = parse_json(text, where, self.invalid_file)
        languages, inner = data.get("languages"), data.get("tokenizer")
        fine = isinstance(languages, list) and len(set(map(str, languages))) == len(languages) > 1
        if not fine or not all(isinstance(code, str) for code in languages) or not isinstance(inner, dict):
            raise self.invalid_file(where, "a file without its languages or its tokenizer")
        super().__init__(json.dumps(inner, ensure_ascii=False), where)
        self.languages: tuple[str, ...] = tuple(languages)
        self.first = self.vocab  # the id of the first language
        self.vocab += len(languages)
        self.special = TrainedTokenizer.special | frozenset(range(self.first, self.vocab))
        self.json = json.dumps({"languages": languages, "tokenizer": inner}, ensure_ascii=False)

    @classmethod
    def learn(cls, config: TokenizerConfig, texts: Iterable[str], languages: Sequence[str]) -> MultilingualTokenizer:
        """Train a tokenizer on texts, with a token for each language."""
        inner = json.loads(TrainedTokenizer.train(config, texts).json)
        return cls(json.dumps({"languages": list(languages), "tokenizer": inner}), "tokenizer")

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode each text, a language first if it begins with one."""
        split = [split_tag(text, self.languages) for text in require_list(texts)]
        found = []
        for text, (language, rest), one in zip(
            texts, split, super().encode_batch([rest for _, rest in split]), strict=True
        ):
            if language is None:
                found.append(one)
                continue
            tag = len(text) - len(rest)
            spans = [(0, tag), *((start + tag, end + tag) for start, end in one.offsets)]
            ids = [self._id(language), *one.ids]
            found.append(Encoding(ids, spans, self.pieces(ids), one.replaced))
        return found

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; faster than `encode_batch`."""
        split = [split_tag(text, self.languages) for text in require_list(texts)]
        rest = super().ids([text for _, text in split])
        return [ids if code is None else [self._id(code), *ids] for (code, _), ids in zip(split, rest, strict=True)]

    @property
    def token_names(self) -> list[str]:
        """The name of each token, those of the languages last."""
        return [*super().token_names[: self.first], *self._tags]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each token."""
        names = [*super().pieces(range(self.first)), *self._tags]
        return [names[number] for number in ids]

    @property
    def _tags(self) -> list[str]:
        return [f"<2{code}>" for code in self.languages]

    def _id(self, language: str) -> int:
        return self.first + self.languages.index(language)


def open_translation_tokenizer(text: str, where: str) -> TrainedTokenizer:
    """The tokenizer in the text of a file: with languages or without, one for both sides or for each."""
    data = parse_json(text, where, TrainedTokenizer.invalid_file)
    if isinstance(data, dict) and "sentencepiece" in data:
        return SentencePieceTokenizer(text, where)
    if isinstance(data, dict) and "source" in data:
        return SeparateTokenizers(text, where)
    multilingual = isinstance(data, dict) and "languages" in data
    return MultilingualTokenizer(text, where) if multilingual else TrainedTokenizer(text, where)


def load_translation_tokenizer(path: Path) -> TrainedTokenizer:
    """The tokenizer of a file, with languages or without."""
    return open_translation_tokenizer(read_tokenizer_file(path, TrainedTokenizer.invalid_file), str(path))
