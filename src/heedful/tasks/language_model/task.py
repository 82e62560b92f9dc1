"""Language modelling: running text in windows, perplexity over whole texts, and generated samples."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from heedful.data.formats.sources import Split
from heedful.data.own import OwnData, text
from heedful.data.text.files import Text, collect
from heedful.data.text.lanes import Lanes
from heedful.data.text.text_stream import passages
from heedful.data.text.token_text import TextTokens, TokenizedText
from heedful.data.text.windows import EncodedText, TextBatches, encode_text
from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2BpeFiles, gpt2_tokenizer
from heedful.data.tokenizers.lm_tokenization import (
    ByteCodec,
    LanguageTokenizer,
    codec_of,
    load_tokenizer,
    open_tokenizer,
)
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.decode.settings import TextSettings, WritingConfig
from heedful.errors import UserError
from heedful.hub.loading import no_tokenizer_error, pretrained
from heedful.tasks.base import Codec, Evaluated, Example, HeldOut, Names, Sample, Source, Task
from heedful.tasks.compiled import compiled
from heedful.tasks.language_model.perplexity import (
    LossOf,
    ahead_loss,
    bits_per_byte,
    bits_per_character,
    both_ways_loss,
    document_loss,
    exp,
    lanes_loss,
    onward_loss,
    sliding_loss,
    text_loss,
    windows_loss,
    word_perplexity,
)
from heedful.tasks.language_model.predictor import BidirectionalLanguageModel, TextGenerator
from heedful.tasks.language_model.recipe import LanguageModelRecipe
from heedful.training.metrics import Score

MUCH_UNKNOWN = 0.01  # of the tokens of a text, above which a note says so
SHOWN = 8  # positions in a text that are shown as examples
MOST_SHOWN = 100  # tokens that are generated for a sample
SHARED = 100_000  # parameters of a gpt from which on threads share its work
GIVEN = 32  # tokens of a sample's prompt, where there are no lines
RECORDED_CONTEXT, RECORDED_WEIGHTS = 256, 20_000_000  # at most; beyond them torch's own threads do as well


class LanguageModelTask(
    Task[Text | TextTokens, LanguageTokenizer, EncodedText, TextGenerator | BidirectionalLanguageModel]
):
    """Each token of a text from those before it, or from those on either side."""

    words: ClassVar = Names(
        examples="tokens of text",
        tokens="different ones",
        too_long="tokens that are too long",
        blank="blank lines",
        learning="training the tokenizer",
        encoding="turning text into tokens",
        testing="reading the {} set",
        sample=("prompt", "text", "generated"),
    )
    decoding: ClassVar = WritingConfig
    artifacts: ClassVar = {"tokenizer.json": Codec(open_tokenizer, load_tokenizer)}
    searches: ClassVar = False

    def __init__(self, recipe: LanguageModelRecipe) -> None:
        super().__init__(recipe)
        ahead: LossOf = document_loss if recipe.model.fixed_context else ahead_loss
        self.task_loss = both_ways_loss if recipe.model.role == "bidirectional" else ahead

    @property
    def decode(self) -> WritingConfig:
        """Generation settings."""
        return self.recipe.decode

    def read(self, split: Split) -> Text | TextTokens:
        """The text of a split, or its tokens."""
        data = self.recipe.data
        if isinstance(data, TokenizedText | OwnData):
            return data.read(split)
        text = collect(data.stream(split))
        if not text.lines:
            raise UserError(
                f"there is no text for {split}", where="data", found="blank lines, or too few documents",
                todo="name more files, or files of their own under data.valid",
            )  # fmt: skip
        return text

    collect = staticmethod(text)

    def learn(self, read: Text | TextTokens) -> LanguageTokenizer:
        """The tokenizer of the text, or the one that token files bring with them."""
        if isinstance(read, TextTokens):
            return read.tokenizer
        config = self.recipe.tokenizer
        assert config is not None, "text needs one"
        if isinstance(config, Gpt2Bpe | Gpt2BpeFiles):
            return gpt2_tokenizer(config, (passage.text for passage in passages(read.documents, ByteCodec.split_point)))
        return TrainedTokenizer.train(config, read.lines)

    def elsewhere(self, folder: Path) -> Source:
        """A published GPT."""
        found = pretrained(folder, role="causal")
        if found.tokenizer is None:
            raise no_tokenizer_error(found, folder)
        return Source(found.tokenizer, found.tensors, folder)

    def encode(self, read: Text | TextTokens, vocabulary: LanguageTokenizer) -> EncodedText:
        """The text as ids, in windows as long as the model's context.

        Only a gpt distinguishes documents; for the others a text is one document.
        """
        context = self.recipe.model.context
        if isinstance(read, Text):
            found = encode_text(read, vocabulary, context)
        elif read.tokenizer.sha256 == vocabulary.sha256:
            found = EncodedText(read.ids, read.starts, context, read.amounts, read.sha256)
        else:
            raise UserError(
                "these token files were made with another tokenizer",
                where="data.folder",
                found=f"{read.tokenizer.vocab:,} tokens of SHA-256 {read.tokenizer.sha256[:16]}...",
                expected=f"the model's own {vocabulary.vocab:,}, of SHA-256 {vocabulary.sha256[:16]}...",
            )
        one = replace(found, starts=np.zeros(1, np.int64))
        return found if self.recipe.model.fixed_context else one

    def notes(self, encoded: EncodedText) -> list[str]:
        """How much of the text the tokenizer does not know, where that is much, and whether it fills a window."""
        share, found = encoded.unknown / len(encoded), []
        if share > MUCH_UNKNOWN:
            found.append(
                f"{share:.1%} of the tokens of the training text are unknown: a larger tokenizer.vocab may know them"
            )
        if len(encoded) < encoded.context:
            found.append(
                f"the training text has {len(encoded):,} tokens, fewer than a window of {encoded.context:,}: "
                "what model.context has beyond that is never trained"
            )
        return found

    def batches(self, encoded: EncodedText, packed: bool, even: bool) -> TextBatches | Lanes:
        """Windows from all over the text side by side, or the next ones of lanes that each read on."""
        kind = Lanes if self.recipe.task.carry else TextBatches
        return kind(encoded, self.recipe.train.seed, self.recipe.train.batch_tokens)

    def loss_of(self, model: Any, packed: bool) -> Callable[..., Any]:
        """The cross-entropy of the tokens of each window, which stands alone or continues from a state."""
        if self.recipe.task.carry:
            return partial(onward_loss, model)
        learner: Any = compiled(model, dynamic=False) if self.recipe.train.compile else model
        return partial(self.task_loss, learner)

    def first_carry(self, model: Any, batches: Any, device: torch.device) -> Any:
        """What the model knows before the first token of each lane."""
        return model.start(batches.lanes, device) if self.recipe.task.carry else None

    @property
    def records(self) -> bool:
        """Whether a step on a CPU is worth being recorded: that of a small gpt, whose attention fits into memory."""
        model = self.recipe.model
        return model.fixed_context and model.context <= RECORDED_CONTEXT and model.parameters(0) <= RECORDED_WEIGHTS

    def threads(self, model: Any, cores: int) -> int:
        """The number of CPU threads for training: a gpt has large products, even where it is small."""
        size = sum(weight.numel() for weight in model.parameters())
        return cores if self.recipe.model.fixed_context and size >= SHARED else super().threads(model, cores)

    @staticmethod
    def predictor(
        model: Any,
        config: Any,
        vocabulary: LanguageTokenizer,
        decode: WritingConfig,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> TextGenerator | BidirectionalLanguageModel:
        """The generator of a trained model; or of a bidirectional one, the predictor that gives vectors."""
        if config.role == "bidirectional":
            assert isinstance(vocabulary, TrainedTokenizer), "the recipe asks for it"
            return BidirectionalLanguageModel(model, vocabulary, device, config.context, notes)
        return TextGenerator(model, vocabulary, device, TextSettings.of(decode), notes)

    def loss(self, predictor: TextGenerator | BidirectionalLanguageModel, encoded: EncodedText) -> float:
        """The mean loss of a token of the whole text; a bidirectional model reads it in windows."""
        if self.recipe.model.fixed_context:
            model: Any = predictor.model
            return sliding_loss(model, encoded, predictor.device, self.stride, self.recipe.train.batch_tokens)
        if isinstance(predictor, TextGenerator):
            return text_loss(predictor.model, encoded, predictor.device)
        return self.quick_loss(predictor, encoded)

    @property
    def stride(self) -> int:
        """The number of tokens that a gpt predicts in each window of an evaluation."""
        return self.recipe.task.stride or -(-self.recipe.model.context // 2)

    def quick_loss(self, predictor: TextGenerator | BidirectionalLanguageModel, encoded: EncodedText) -> float:
        """The mean loss of a token in windows, as in training."""
        if self.recipe.task.carry:
            return lanes_loss(predictor.model, encoded, predictor.device, self.recipe.train.batch_tokens)
        return windows_loss(self.task_loss, predictor.model, encoded, predictor.device, self.recipe.train.batch_tokens)

    def evaluate(
        self, predictor: TextGenerator | BidirectionalLanguageModel, held_out: HeldOut[Text | TextTokens, EncodedText]
    ) -> Evaluated:
        """Perplexity of tokens and of words, bits per byte and per character, and generated samples."""
        encoded, loss, windows = held_out.encoded, held_out.loss, ""
        counts = encoded.amounts
        if self.recipe.model.fixed_context:  # in training, where beams are given, the quick loss is used
            windows = f"|context:{encoded.context}|stride:{self.stride if held_out.beams is None else encoded.context}"

        def score(name: str, value: float, counted: str = "") -> Score:
            return Score(name, value, f"tokens:{len(encoded)}|unknown:{counts.unknown}{counted}{windows}")

        scores = (
            score("perplexity", exp(loss)),
            score("word_perplexity", word_perplexity(loss, encoded), f"|words:{counts.words}|lines:{counts.lines}"),
            score("bits_per_byte", bits_per_byte(loss, encoded), f"|bytes:{counts.bytes}"),
            score("bits_per_character", bits_per_character(loss, encoded), f"|characters:{counts.characters}"),
        )
        if not isinstance(predictor, TextGenerator):
            return held_out.result(scores)
        return held_out.result(scores, self._samples(predictor, held_out.read, held_out.step))

    def _samples(self, generator: TextGenerator, read: Text | TextTokens, step: int) -> list[Sample]:
        """Prompts from a text, what follows them there, and the generated completions."""
        rows = list(_places(read, random.Random(step), self.recipe.train.samples))
        length = min(generator.settings.length, MOST_SHOWN)
        found = generator.generate([given for given, _ in rows], length=length, seed=step)
        return [
            (given.removesuffix("\n"), right[: len(one.completion)], one.completion)
            for (given, right), one in zip(rows, found, strict=True)
        ]

    def examples(self, split: Split) -> Iterator[Example]:
        """Prompts from the text of a split, and what follows them."""
        rows = _places(self.read(split), random.Random(0), SHOWN)
        return (Example(given.removesuffix("\n"), None, right) for given, right in rows)

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """To generate text, or to get vectors."""
        run = shlex.quote(str(folder))
        if self.recipe.model.role == "bidirectional":
            return [f'in Python: heedful.load("{folder}").layers(["..."])']
        sample = test.samples[0][0] if test and test.samples else "Once upon a time"
        return [f"heedful generate {run} {shlex.quote(sample)} --temperature 0.8", f"heedful eval {run} --split valid"]


def _places(read: Text | TextTokens, rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Some prompts from a text, and what follows each."""
    return _after_lines(read, rng, count) if isinstance(read, Text) else _after_tokens(read, rng, count)


def _after_lines(text: Text, rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Some lines of a text, and those that follow."""
    places = [place for place, line in enumerate(text.lines[:-1]) if line.strip()]
    for row in rng.sample(places, min(count, len(places))):
        yield text.lines[row] + "\n", "\n".join(text.lines[row + 1 : row + 9])


def _after_tokens(read: TextTokens, rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """The beginnings of some documents, and what follows."""
    codec, starts = codec_of(read.tokenizer), read.starts
    for row in rng.sample(range(len(starts)), min(count, len(starts))):
        begin, end = int(starts[row]) + 1, int(starts[row + 1]) if row + 1 < len(starts) else len(read.ids) - 1
        middle = min(begin + GIVEN, end)
        given, right = read.ids[begin:middle], read.ids[middle : min(middle + MOST_SHOWN, end)]
        yield codec.decode(given.tolist()), codec.decode(right.tolist())
