"""Translation: one tokenizer for both sides; BLEU, chrF and exact match."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from heedful.data.formats.parallel import AlignedCorpora, split_tag
from heedful.data.formats.sources import Examples, Pair, Split
from heedful.data.own import pairs
from heedful.data.pairs.batches import EncodedPairs, PairBatches, encode_pairs
from heedful.data.tokenizers.multilingual import (
    MultilingualTokenizer,
    load_translation_tokenizer,
    open_translation_tokenizer,
)
from heedful.data.tokenizers.sentence_pieces import SentencePieceTokenizer
from heedful.data.tokenizers.separate import SeparateTokenizers
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.decode.settings import DecodeConfig, TranslationSettings
from heedful.errors import UserError
from heedful.hub.folder import is_external
from heedful.hub.loading import no_tokenizer_error, pretrained
from heedful.models import build
from heedful.models.heads.config import with_vocab
from heedful.tasks.base import Codec, Evaluated, Example, HeldOut, Names, Source, Task
from heedful.tasks.compiled import compile_model
from heedful.tasks.translation.predictor import (
    Translator,
    aligns,
    mean_loss,
    reinforce_loss,
    translation_loss,
)
from heedful.tasks.translation.recipe import PolicyGradient, RewardObjective, TranslationRecipe
from heedful.tasks.translation.rewards import Generator, TextReward, baseline_of, reward_loss
from heedful.training.metrics import MAX_NGRAM, Score, bleu_applies, exact_match, translation_scores


class TranslationTask(Task[Examples, TrainedTokenizer, EncodedPairs, Translator]):
    """Predict a target sentence from a source sentence."""

    words: ClassVar = Names(
        examples="pairs",
        tokens="tokens",
        too_long="pairs longer than the model's context, left out",
        blank="pairs with a blank side, left out",
        learning="training the tokenizer",
        encoding="tokenizing the text",
        testing="translating the {} set",
        sample=("source", "reference", "translation"),
    )
    decoding: ClassVar = DecodeConfig
    artifacts: ClassVar = {"tokenizer.json": Codec(open_translation_tokenizer, load_translation_tokenizer)}
    searches: ClassVar = True

    recipe: TranslationRecipe
    tokenizer: TrainedTokenizer  # of the encoded pairs
    reward: TextReward  # of the translations of the training pairs, where they have rewards

    @property
    def decode(self) -> DecodeConfig:
        """The settings of the beam search."""
        return self.recipe.decode

    def read(self, split: Split) -> Examples:
        """The pairs of a split."""
        return self.recipe.data.read(split)

    collect = staticmethod(pairs)

    def learn(self, read: Examples) -> TrainedTokenizer:
        """A tokenizer trained on both sides, or one on each; of several languages, with a token for each target."""
        data = self.recipe.data
        if isinstance(data, AlignedCorpora):
            texts = (text for pair in read.pairs for text in (split_tag(pair.source, data.codes)[1], pair.target))
            return MultilingualTokenizer.learn(self.recipe.tokenizer, texts, data.codes)
        if (source := self.recipe.source_tokenizer) is not None:
            sides = [pair.source for pair in read.pairs], [pair.target for pair in read.pairs]
            return SeparateTokenizers.learn(source, self.recipe.tokenizer, *sides)
        return TrainedTokenizer.train(self.recipe.tokenizer, (text for pair in read.pairs for text in pair))

    @staticmethod
    def fitted(config: Any, vocabulary: TrainedTokenizer, where: str) -> Any:
        """The settings of a model whose source has a vocabulary of its own if the tokenizer has one for it."""
        if isinstance(vocabulary, SeparateTokenizers) and dict(config).get("source_vocab", 0) is None:
            config = config.model_copy(update={"source_vocab": vocabulary.source_vocab})
        if (found := dict(config).get("source_vocab")) != vocabulary.source_vocab:
            known = vocabulary.source_vocab
            raise UserError(
                "the model's vocabulary of the source is not the tokenizer's", where=f"{where}.source_vocab",
                found="null" if found is None else f"{found:,}",
                expected="null: one vocabulary for both sides" if known is None else f"{known:,}",
                todo="leave it out; only a model that starts from a Marian folder with two vocabularies has it"
                if known is None else f"write source_vocab: {known}",
            )  # fmt: skip
        if isinstance(vocabulary, SentencePieceTokenizer) and config.vocab not in (None, vocabulary.vocab):
            raise UserError(
                "the model's vocabulary is not the tokenizer's", where=f"{where}.vocab", found=f"{config.vocab:,}",
                expected=f"{vocabulary.vocab:,}", todo="leave model.vocab out",
            )  # fmt: skip
        return Task.fitted(config, vocabulary, where)

    def elsewhere(self, folder: Path) -> Source | None:
        """The weights and the tokenizer of a published translator, whose settings the recipe must have."""
        if not is_external(folder):
            return None
        found = pretrained(folder, role="seq2seq")
        if found.tokenizer is None:
            raise no_tokenizer_error(found, folder)
        there, here = found.config.model_dump(mode="json"), self.recipe.model.model_dump(mode="json")
        wrong = [name for name in there if name != "vocab" and "dropout" not in name and there[name] != here.get(name)]
        if wrong:
            raise UserError(
                "the model of this folder has other settings than the recipe", where="model",
                found=", ".join(f"{name}: {here.get(name)}" for name in wrong),
                expected=", ".join(f"{name}: {there[name]}" for name in wrong), todo="write these under model",
            )  # fmt: skip
        return Source(found.tokenizer, found.tensors, folder)

    def encode(self, read: Examples, vocabulary: TrainedTokenizer) -> EncodedPairs:
        """Pairs of token ids, without those that are too long."""
        self.tokenizer = vocabulary
        return encode_pairs(read.pairs, vocabulary, self.recipe.model.context)

    def notes(self, encoded: EncodedPairs) -> list[str]:
        """A remark about sentence BLEU as the reward of short sentences."""
        objective = self.recipe.task.objective
        if not isinstance(objective, RewardObjective) or objective.reward != "bleu" or bleu_applies(encoded.references):
            return []
        return [f"most references have fewer than {MAX_NGRAM} words, whose BLEU says little: use reward: chrf"]

    def batches(self, encoded: EncodedPairs, packed: bool, even: bool) -> PairBatches:
        """Padded batches of pairs of similar lengths, or packed batches."""
        objective = self.recipe.task.objective
        if isinstance(objective, RewardObjective):
            self.reward = TextReward.of(objective.reward, encoded.references, self.tokenizer.decode)
            even = False  # a search cannot be captured with the step
        return PairBatches(encoded, self.recipe.train.seed, self.recipe.train.batch_tokens, packed, even)

    def loss_of(self, model: Any, packed: bool) -> Callable[..., Any]:
        """The cross-entropy of the target, or the loss of a reward; with hard attention, also that of its choices."""
        smoothing, config, objective = self.recipe.task.label_smoothing, self.recipe.model, self.recipe.task.objective
        if isinstance(objective, RewardObjective):
            generator = Generator(model, self.reward, config.context, self.decode.max_length, smoothing)
            return reward_loss(generator, objective)
        if config.hard:
            return partial(reinforce_loss, model, label_smoothing=smoothing)
        trained: Any = compile_model(model, dynamic=not packed) if self.recipe.train.compile else model
        return partial(
            translation_loss, trained, label_smoothing=smoothing, penalty=self.recipe.task.confidence_penalty
        )

    @property
    def packs(self) -> bool:
        """Not where each step generates translations."""
        return not isinstance(self.recipe.task.objective, RewardObjective)

    def first_carry(self, model: Any, batches: Any, device: torch.device) -> Tensor | None:
        """The baseline of a policy gradient, a row for each process; None with other objectives."""
        objective = self.recipe.task.objective
        if not isinstance(objective, PolicyGradient):
            return None
        weight = model.tokens.weight  # a user's own model has none, and its last layer are the logits
        return baseline_of(objective.baseline).first(model.config.vocab if weight is None else weight.shape[1], device)

    @staticmethod
    def predictor(
        model: Any,
        config: Any,
        vocabulary: TrainedTokenizer,
        decode: DecodeConfig,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> Translator:
        """The translator of a trained model."""
        return Translator(model, vocabulary, config.context, device, TranslationSettings.of(decode), notes)

    def loss(self, predictor: Translator, encoded: EncodedPairs) -> float:
        """The mean loss per target token."""
        model: Any = predictor.model
        return mean_loss(model, encoded, predictor.device, self.recipe.train.batch_tokens)

    def evaluate(self, predictor: Translator, held_out: HeldOut[Examples, EncodedPairs]) -> Evaluated:
        """BLEU where references are long enough, chrF, exact match, and a few sample translations."""
        pairs = held_out.read.pairs
        found, unread = predictor.hypotheses([pair.source for pair in pairs], held_out.beams, held_out.progress)
        references = [pair.target for pair in pairs]
        rows = held_out.rows(len(pairs), self.recipe.train.samples)
        samples = [(pairs[row].source, references[row], found[row]) for row in rows]
        scores = [*translation_scores(found, references), *self._direction_scores(pairs, found)]
        return held_out.result(scores, samples, unread)

    def _direction_scores(self, pairs: Sequence[Pair], found: Sequence[str]) -> Iterator[Score]:
        """The exact match of the translations into each language, of several languages."""
        data = self.recipe.data
        codes = data.codes if isinstance(data, AlignedCorpora) else ()
        for code in codes:
            rows = [row for row, pair in enumerate(pairs) if split_tag(pair.source, codes)[0] == code]
            if rows:
                score = exact_match([found[row] for row in rows], [pairs[row].target for row in rows])
                yield replace(score, name=f"exact_match_{code}")

    def examples(self, split: Split) -> Iterator[Example]:
        """The pairs of a split."""
        return (Example(pair.source, None, pair.target) for pair in self.read(split).pairs)

    @property
    def metric(self) -> str:
        """chrF."""
        return "chrf"

    def in_words(self, loss: float) -> str:
        """The loss and the perplexity."""
        perplexity = f"{math.exp(loss):.4f}" if loss < 100 else "inf"
        return f"loss {loss:.5f}, perplexity {perplexity}"

    def remarks(self, result: Evaluated) -> list[str]:
        """Remarks about BLEU on short references, and about sources that are too long."""
        remarks, values = list[str](), {score.name: score.value for score in result.scores}
        if "bleu" not in values:
            remarks.append(f"BLEU is left out: it counts {MAX_NGRAM}-grams, and most references are shorter")
        elif values["bleu"] == 0:
            remarks.append(f"BLEU is 0 because no {MAX_NGRAM}-gram matches: use the other scores for short lines")
        if result.unread:
            remarks.append(f"{result.unread:,} sources exceed the model's context; their translations are empty")
        return remarks

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """Commands that translate, with alignment if there is attention, and that evaluate with beam search."""
        run = shlex.quote(str(folder))
        sample = test.samples[0][0] if test and test.samples else "some text"
        with torch.device("meta"):  # the modules without their weights
            model = build(with_vocab(self.recipe.model, self.recipe.tokenizer.vocab))
        data, target = self.recipe.data, ""
        if isinstance(data, AlignedCorpora):
            code, sample = split_tag(sample, data.codes)
            target = f" --to {code or data.codes[0]}"
        commands = [f"heedful translate {run} {shlex.quote(sample)}{target}{' --align' * aligns(model)}"]
        return [*commands, f"heedful eval {run} --beams 4"] if test else commands
