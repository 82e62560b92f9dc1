"""Language modelling: training on windows of text, perplexity over whole texts, and generated samples."""

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

from heedful.blocks.state import reserve
from heedful.data.formats.sources import Split
from heedful.data.own import OwnData, text
from heedful.data.text.files import Text, collect
from heedful.data.text.lanes import Lanes
from heedful.data.text.text_stream import passages
from heedful.data.text.token_text import TextTokens, TokenizedText
from heedful.data.text.windows import EncodedText, TextBatches, encode_text
from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2BpeFiles, gpt2_tokenizer
from heedful.data.tokenizers.lm_tokenization import (
    LanguageTokenizer,
    codec_of,
    last_split,
    load_tokenizer,
    open_tokenizer,
)
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.decode.settings import TextSettings, WritingConfig
from heedful.errors import UserError
from heedful.hub.loading import no_tokenizer_error, pretrained
from heedful.tasks.base import Codec, Evaluated, Example, HeldOut, Names, Sample, Source, Task
from heedful.tasks.compiled import compile_model, compile_steps
from heedful.tasks.language_model.bidirectional import BidirectionalLanguageModel
from heedful.tasks.language_model.perplexity import (
    LossOf,
    bidirectional_loss,
    bits_per_byte,
    bits_per_character,
    causal_loss,
    document_loss,
    lanes_loss,
    perplexity,
    sliding_loss,
    stateful_loss,
    windows_loss,
    word_perplexity,
)
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.language_model.recipe import LanguageModelRecipe
from heedful.training.metrics import Score

MAX_UNKNOWN = 0.01  # fraction of unknown tokens above which a note warns
EXAMPLES = 8  # prompts from a text that are shown as examples
SAMPLE_TOKENS = 100  # maximum length of a generated sample
THREADED_WEIGHTS = 100_000  # parameters of a model with attention from which several threads pay
PROMPT_TOKENS = 32  # length of a sample's prompt in text without lines
RECORDED_CONTEXT, RECORDED_WEIGHTS = 256, 20_000_000  # larger models gain nothing from recorded steps


class LanguageModelTask(
    Task[Text | TextTokens, LanguageTokenizer, EncodedText, TextGenerator | BidirectionalLanguageModel]
):
    """Predict each token of a text from the earlier ones, or from those on either side."""

    words: ClassVar = Names(
        examples="tokens of text",
        tokens="different tokens",
        too_long="tokens that are too long",
        blank="blank lines",
        learning="training the tokenizer",
        encoding="tokenizing the text",
        testing="evaluating the {} set",
        sample=("prompt", "text", "generated"),
    )
    decoding: ClassVar = WritingConfig
    artifacts: ClassVar = {"tokenizer.json": Codec(open_tokenizer, load_tokenizer)}
    searches: ClassVar = False

    def __init__(self, recipe: LanguageModelRecipe) -> None:
        super().__init__(recipe)
        causal: LossOf = document_loss if recipe.model.attends else causal_loss
        self.task_loss = bidirectional_loss if recipe.model.role == "bidirectional" else causal

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
        """A tokenizer trained on the text, or that of the token files."""
        if isinstance(read, TextTokens):
            return read.tokenizer
        config = self.recipe.tokenizer
        assert config is not None, "text needs one"
        if isinstance(config, Gpt2Bpe | Gpt2BpeFiles):
            return gpt2_tokenizer(config, (passage.text for passage in passages(read.documents, last_split)))
        return TrainedTokenizer.train(config, read.lines)

    def elsewhere(self, folder: Path) -> Source:
        """A pre-trained causal language model."""
        found = pretrained(folder, role="causal")
        if found.tokenizer is None:
            raise no_tokenizer_error(found, folder)
        return Source(found.tokenizer, found.tensors, folder)

    def encode(self, read: Text | TextTokens, vocabulary: LanguageTokenizer) -> EncodedText:
        """The token ids of the text, in windows as long as the model's context.

        Only a model with attention distinguishes documents; for other models the text is one document.
        """
        context = self.recipe.model.context
        if isinstance(read, Text):
            found = encode_text(read, vocabulary, context)
        elif read.tokenizer.sha256 == vocabulary.sha256:
            found = EncodedText(read.ids, read.starts, context, read.amounts, read.sha256)
        else:
            raise UserError(
                "these token files were written with another tokenizer",
                where="data.folder",
                found=f"{read.tokenizer.vocab:,} tokens of SHA-256 {read.tokenizer.sha256[:16]}...",
                expected=f"the model's own {vocabulary.vocab:,}, of SHA-256 {vocabulary.sha256[:16]}...",
            )
        one = replace(found, starts=np.zeros(1, np.int64))
        return found if self.recipe.model.attends else one

    def notes(self, encoded: EncodedText) -> list[str]:
        """Warnings about many unknown tokens, and about a text shorter than a window."""
        share, found = encoded.unknown / len(encoded), []
        if share > MAX_UNKNOWN:
            found.append(f"{share:.1%} of the tokens of the training text are unknown: try a larger tokenizer.vocab")
        if len(encoded) < encoded.context:
            found.append(
                f"the training text has {len(encoded):,} tokens, fewer than a window of {encoded.context:,}: "
                "positions beyond that are never trained"
            )
        return found

    def batches(self, encoded: EncodedText, packed: bool, even: bool) -> TextBatches | Lanes:
        """Windows from random places of the text, or with `carry` the next window of each lane."""
        kind = Lanes if self.recipe.task.carry else TextBatches
        return kind(encoded, self.recipe.train.seed, self.recipe.train.batch_tokens)

    def loss_of(self, model: Any, packed: bool) -> Callable[..., Any]:
        """The cross-entropy of the tokens of each window, with `carry` given the state of its lane."""
        compiles = self.recipe.train.compile
        if self.recipe.task.carry:
            return partial(stateful_loss, compile_steps(model) if compiles else model)
        trained: Any = compile_model(model, dynamic=False) if compiles else model
        return partial(self.task_loss, trained)

    def first_carry(self, model: Any, batches: Any, device: torch.device) -> Any:
        """The initial state of each lane."""
        return reserve(model.start(batches.lanes, device), 0) if self.recipe.task.carry else None

    @property
    def records(self) -> bool:
        """Whether recording a step pays on a CPU: for a small gpt with a short context."""
        model = self.recipe.model
        return model.fixed_context and model.context <= RECORDED_CONTEXT and model.parameters(0) <= RECORDED_WEIGHTS

    def threads(self, model: Any, cores: int) -> int:
        """The number of CPU threads for training: attention has large matrix products even if it is small."""
        size = sum(weight.numel() for weight in model.parameters())
        return cores if self.recipe.model.attends and size >= THREADED_WEIGHTS else super().threads(model, cores)

    @staticmethod
    def predictor(
        model: Any,
        config: Any,
        vocabulary: LanguageTokenizer,
        decode: WritingConfig,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> TextGenerator | BidirectionalLanguageModel:
        """The text generator of a causal model, or the predictor of a bidirectional one, which gives embeddings."""
        if config.role == "bidirectional":
            assert isinstance(vocabulary, TrainedTokenizer), "the recipe asks for it"
            return BidirectionalLanguageModel(model, vocabulary, device, config.context, notes)
        return TextGenerator(model, vocabulary, device, TextSettings.of(decode), notes)

    def loss(self, predictor: TextGenerator | BidirectionalLanguageModel, encoded: EncodedText) -> float:
        """The mean loss per token over the whole text; for a bidirectional model, in windows."""
        if self.recipe.model.fixed_context:
            model: Any = predictor.model
            return sliding_loss(model, encoded, predictor.device, self.stride, self.recipe.train.batch_tokens)
        if isinstance(predictor, TextGenerator):
            return predictor.encoded_loss(encoded)
        return self.quick_loss(predictor, encoded)

    @property
    def stride(self) -> int:
        """The number of tokens that a gpt predicts in each window during evaluation."""
        return self.recipe.task.stride or -(-self.recipe.model.context // 2)

    def quick_loss(self, predictor: TextGenerator | BidirectionalLanguageModel, encoded: EncodedText) -> float:
        """The mean loss per token in windows, as in training."""
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
        memory = predictor.settings.memory if isinstance(predictor, TextGenerator) else None
        if memory is not None and held_out.beams is None:
            windows = f"|memory:{memory}"

        def score(name: str, value: float, counted: str = "") -> Score:
            return Score(name, value, f"tokens:{len(encoded)}|unknown:{counts.unknown}{counted}{windows}")

        scores = (
            score("perplexity", perplexity(loss)),
            score("word_perplexity", word_perplexity(loss, encoded), f"|words:{counts.words}|lines:{counts.lines}"),
            score("bits_per_byte", bits_per_byte(loss, encoded), f"|bytes:{counts.bytes}"),
            score("bits_per_character", bits_per_character(loss, encoded), f"|characters:{counts.characters}"),
        )
        if not isinstance(predictor, TextGenerator):
            return held_out.result(scores)
        return held_out.result(scores, self._samples(predictor, held_out.read, held_out.step))

    def _samples(self, generator: TextGenerator, read: Text | TextTokens, step: int) -> list[Sample]:
        """Prompts from a text, their continuations in the text, and the generated completions."""
        rows = list(_prompts(read, random.Random(step), self.recipe.train.samples))
        length = min(generator.settings.length, SAMPLE_TOKENS)
        found = generator.generate([given for given, _ in rows], length=length, seed=step)
        return [
            (given.removesuffix("\n"), right[: len(one.completion)], one.completion)
            for (given, right), one in zip(rows, found, strict=True)
        ]

    def examples(self, split: Split) -> Iterator[Example]:
        """Prompts from the text of a split, and their continuations."""
        rows = _prompts(self.read(split), random.Random(0), EXAMPLES)
        return (Example(given.removesuffix("\n"), None, right) for given, right in rows)

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """Commands that generate text and evaluate; for a bidirectional model, how to get embeddings."""
        run = shlex.quote(str(folder))
        if self.recipe.model.role == "bidirectional":
            return [f'in Python: heedful.load("{folder}").layers(["..."])']
        sample = test.samples[0][0] if test and test.samples else "Once upon a time"
        return [f"heedful generate {run} {shlex.quote(sample)} --temperature 0.8", f"heedful eval {run} --split valid"]


def _prompts(read: Text | TextTokens, rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Random prompts from a text, each with its continuation."""
    return _after_lines(read, rng, count) if isinstance(read, Text) else _after_tokens(read, rng, count)


def _after_lines(text: Text, rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Random lines of a text, each with the lines after it."""
    candidates = [index for index, line in enumerate(text.lines[:-1]) if line.strip()]
    for row in rng.sample(candidates, min(count, len(candidates))):
        yield text.lines[row] + "\n", "\n".join(text.lines[row + 1 : row + 9])


def _after_tokens(read: TextTokens, rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """The first tokens of random documents, each with the tokens after them."""
    codec, starts = codec_of(read.tokenizer), read.starts
    for row in rng.sample(range(len(starts)), min(count, len(starts))):
        begin, end = int(starts[row]) + 1, int(starts[row + 1]) if row + 1 < len(starts) else len(read.ids) - 1
        middle = min(begin + PROMPT_TOKENS, end)
        given, right = read.ids[begin:middle], read.ids[middle : min(middle + SAMPLE_TOKENS, end)]
        yield codec.decode(given.tolist()), codec.decode(right.tolist())
