"""The predictor of causal language models: text generation.

B batch, T tokens, V vocabulary, N tokens of a text, P tokens of a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from heedful.blocks.state import Cache, Ragged, WindowCache
from heedful.blocks.taps import watched
from heedful.data.text.windows import EncodedText
from heedful.data.tokenizers.base import require_list
from heedful.data.tokenizers.byte_pairs import Gpt2Tokenizer
from heedful.data.tokenizers.lm_tokenization import LanguageTokenizer, TextCodec, codec_of
from heedful.decode.graphs import Graphs
from heedful.decode.rules import (
    ForcedPrefix,
    MinLength,
    NoRepeatNgram,
    RepetitionPenalty,
    Rule,
    SuppressTokens,
    VocabLimit,
    sampling_rules,
)
from heedful.decode.search import Decoder, Paths, Prompt, Search, Step, beam, drain, greedy, sample
from heedful.decode.settings import TextSettings, WritingConfig
from heedful.errors import UserError
from heedful.models.own import Plain
from heedful.tasks.language_model.perplexity import (
    STRIDE,
    bits_per_character,
    perplexity,
    sliding_loss,
    text_loss,
)
from heedful.tasks.language_model.scores import encode_whole, read_text, text_scores
from heedful.tasks.language_model.streaming import StreamDecoder
from heedful.tasks.predictor import Evaluation, Predictor, Result

BATCH_SIZE = 64  # texts generated in one batch
NO_END = -1  # not a token: texts of models without an end token do not end
PAD_MULTIPLE = 64  # prompts are padded to a multiple of this for the rules, so that few shapes occur


@dataclass(frozen=True, repr=False)
class GeneratedText(Result):
    """A prompt and its completion, with the log-probability and the token ids of the completion."""

    prompt: str
    completion: str
    log_probability: float
    ids: list[int] = field(repr=False)
    ended: bool = field(default=False, repr=False)  # whether the model ended the text, not the length limit

    @property
    def text(self) -> str:
        """The prompt and what follows it."""
        return self.prompt + self.completion


@runtime_checkable
class RowByRow(Protocol):
    """A model with kernels that compute the rows of a batch independently; None where the device is not supported."""

    def row_by_row(self) -> Any: ...


@dataclass
class PartialText:
    """A text during generation: the tokens of its prompt, its random seed, and the tokens generated so far."""

    prompt: list[int]
    seed: int = 0
    generated: list[int] = field(default_factory=list)
    log_prob: float = 0.0
    done: bool = False
    special_tokens: int = 1  # at the beginning of the prompt

    @property
    def ids(self) -> list[int]:
        """All tokens so far."""
        return [*self.prompt, *self.generated]


@dataclass
class TextGenerator(Predictor[str, GeneratedText, str | tuple[str, str]]):
    """Generates text with a causal language model.

    `settings` are the defaults of `generate`. A text may be longer than the model's context: when the context is full,
    its older half is dropped, and the newer half is read again as if the text started there. What the model sees
    depends only on the length of the text.

    With `start_token`, the start token is put before a text, as in training; an empty text always gets it. An example
    to evaluate on is a text, or a prompt with its expected completion.
    """

    task: ClassVar = "language_model"

    model: nn.Module
    tokenizer: LanguageTokenizer
    device: torch.device
    settings: TextSettings = field(default_factory=TextSettings)
    notes: tuple[str, ...] = ()
    graphs: Graphs | None = field(init=False)
    codec: TextCodec = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        captures = self.device.type == "cuda" and not isinstance(self.model, Plain)
        self.graphs = Graphs(self.model) if captures else None
        self.codec = codec_of(self.tokenizer)

    @property
    def decode_settings(self) -> WritingConfig:
        """The default generation settings; a temperature of 0, which recipes do not allow, is left out."""
        known = self.settings.model_dump(include=set(WritingConfig.model_fields))
        return WritingConfig(**{name: value for name, value in known.items() if name != "temperature" or value})

    def predict(self, inputs: Sequence[str]) -> list[GeneratedText]:
        """One completion of each prompt."""
        return self.generate(inputs, samples=1)

    @torch.inference_mode()
    def _evaluate(self, data: Path | Sequence[str | tuple[str, str]]) -> Evaluation:
        if isinstance(data, Path):
            return self._score_text("\n".join(read_text(data).lines) + "\n")
        if all(isinstance(example, str) for example in data):
            return self._score_text("\n".join(map(str, data)) + "\n")
        total, count = 0.0, 0
        for example in data:
            prompt, expected = ("", example) if isinstance(example, str) else example
            given, whole = self.prompt_ids(prompt), self.prompt_ids(prompt + expected)
            ids = whole[len(given) :] if whole[: len(given)] == given else self.codec.encode(expected)
            given = given[self.context_start(len(given) + len(ids)) :] or given[-1:]
            total, count = total - self._log_prob(given, ids), count + len(ids)
        return Evaluation({"perplexity": perplexity(total / count)}, total / count, count)

    def _score_text(self, text: str) -> Evaluation:
        return text_scores(self.loss(text), self._encode(text))

    @property
    def start_token(self) -> bool:
        """Whether the start token is put before a text."""
        return self.settings.start_token

    @start_token.setter
    def start_token(self, wanted: bool) -> None:
        self.settings = self.settings.but(start_token=wanted)

    @property
    def context(self) -> int | None:
        """The maximum number of tokens that the model sees; None: no limit."""
        context: int = self._net.config.context
        return context if self._net.config.fixed_context else None

    def bfloat16(self) -> Self:
        """Convert the weights to bfloat16, in which a GPU generates about twice as fast, and return this predictor."""
        self.model.to(torch.bfloat16)
        return self

    def generate(
        self,
        prompts: Sequence[str],
        settings: TextSettings | None = None,
        *,
        first: int = 0,
        special: bool = False,
        **changes: float | None,
    ) -> list[GeneratedText]:
        """`samples` completions of each prompt, with `settings`; single settings may be passed by name.

        Tokens are sampled, or chosen greedily with temperature 0; beam search returns the `samples` best completions,
        best first. Prompt n gives the same result for the same seed, whatever else is in the batch; `first` is the
        number of the first prompt, for prompts that are passed in several calls. Special tokens in a prompt are
        ordinary text, unless `special`.
        """
        settings, rows = (settings or self.settings).but(**changes), list(enumerate(require_list(prompts), first))
        samples = settings.samples
        if settings.beams > 1 and samples > settings.beams:
            raise ValueError(f"{settings.beams} beams cannot give {samples} texts")
        each, texts = (1 if settings.beams > 1 else samples), list[tuple[str, PartialText]]()
        for number, prompt in rows:
            texts += [
                (prompt, self._text(prompt, special, seed_of(settings.seed, number, sample))) for sample in range(each)
            ]
        found: list[GeneratedText] = []
        size = max(1, BATCH_SIZE // settings.beams)
        for start in range(0, len(texts), size):
            some = texts[start : start + size]
            if settings.beams > 1:
                found += self._search(some, settings, samples)
            else:
                for _ in self._sample([text for _, text in some], settings):
                    pass
                found += [self._result(prompt, text) for prompt, text in some]
        return found

    def stream(
        self, prompt: str, settings: TextSettings | None = None, *, special: bool = False, **changes: float | None
    ) -> Iterator[str]:
        """The completion of a prompt as it is generated, one piece of text per token, then the rest.

        A piece is empty if later tokens may still change it.
        """
        settings = (settings or self.settings).but(**changes)
        if settings.beams > 1:
            yield self.generate([prompt], settings, special=special)[0].completion
            return
        text = self._text(prompt, special, seed_of(settings.seed, 0))
        decoder = StreamDecoder(self.tokenizer, self.text_after, text.prompt)
        for step in self._sample([text], settings):
            token = int(step.tokens[0, 0])
            if not bool(step.done[0]) and token != self.codec.end_id:
                yield decoder.add(token)
        if piece := decoder.rest():
            yield piece

    @torch.inference_mode()
    def steps(
        self,
        prompt: str,
        beams: int,
        top: int = 1,
        length_penalty: float = 1.0,
        limit: int | None = None,
        prefix: Sequence[int] = (),
    ) -> Search:
        """A beam search for completions of a prompt, step by step: at most `limit` tokens, starting with `prefix`."""
        ids = self._visible_ids(prompt)
        most = self.room(prompt) if limit is None else min(limit, self.room(prompt))
        rules = [*self.rules(TextSettings(beams=beams)), *([ForcedPrefix(tuple(prefix))] if prefix else [])]
        return beam(
            *self._prefill([ids], most, self.settings, beams), torch.tensor([most]), self._end, beams, top,
            length_penalty, rules=rules, graphs=self._graphs(),
        )  # fmt: skip

    def room(self, prompt: str) -> int:
        """The maximum number of tokens that can be generated without dropping tokens of the prompt from the context."""
        most = self.settings.length
        return most if self.context is None else min(most, self.context + 1 - len(self._visible_ids(prompt)))

    def start(self, rows: int, settings: TextSettings | None = None) -> object:
        """The model's state before the first token of this many texts, with a memory as long as the settings say."""
        memory = (settings or self.settings).memory
        if memory is None:
            return self._net.start(rows, self.device)
        if not self._net.config.max_memory:
            raise UserError("this model has no memory of tokens", where="memory", todo="leave it out")
        return self._net.start(rows, self.device, memory)

    def loss(self, text: str) -> float:
        """The mean loss per token of a text, in nats, given all earlier tokens or at least half a context of them.

        Without the start token, the first token has no context, and its loss is not counted.
        """
        if self.context is None:
            return self.encoded_loss(self._encode(text))
        return sliding_loss(self._net, self._encode(text), self.device, -(-self.context // 2), STRIDE)

    def encoded_loss(self, text: EncodedText) -> float:
        """The mean loss a token, in nats, of a whole text, each given all before it; of a model without a context."""
        return text_loss(self.model, text, self.device, self.start(1), self._net.config.segment or STRIDE)

    def perplexity(self, text: str) -> float:
        """exp(loss): the number of equally probable tokens to choose from at each position."""
        return math.exp(self.loss(text))

    def bits_per_character(self, text: str) -> float:
        """The loss of a text in bits per character."""
        return bits_per_character(self.loss(text), self._encode(text))

    def context_start(self, count: int) -> int:
        """The index of the first token that is in the model's context, for a text of `count` tokens."""
        if self.context is None or count <= self.context:
            return 0
        step = self.context + 1 - max(1, self.context // 2)
        return step * -(-(count - self.context) // step)

    def tokens_of(self, prompt: str, special: bool = False) -> int:
        """The number of tokens of a prompt, the start token included."""
        return len(self.prompt_ids(prompt, special))

    def prompt_ids(self, prompt: str, special: bool = False) -> list[int]:
        """The token ids of a prompt, with the start token if it is used."""
        ids = self._ids(prompt, special)
        return [self.codec.start_id, *ids] if self.adds_start_token(ids) else ids

    def adds_start_token(self, ids: Sequence[int]) -> bool:
        """Whether the start token is put before these tokens; it always is if there are none."""
        return self.start_token or not ids

    def complete(self, given: list[int], tokens: Sequence[int], length: int) -> list[str]:
        """For each token after the ids `given`, its text with a greedy completion of `length` tokens."""
        texts = [PartialText([*given, token]) for token in tokens]
        for _ in self._sample(texts, TextSettings(length=length, temperature=0.0, memory=self.settings.memory)):
            pass
        return [self.text_after(given, [*text.prompt[len(given) :], *text.generated]) for text in texts]

    # -------------------------------------------------------------- from texts to searches
    def _ids(self, prompt: str, special: bool) -> list[int]:
        if not special:
            return self.codec.encode(prompt)
        if not isinstance(self.tokenizer, Gpt2Tokenizer):
            raise UserError(
                "this tokenizer cannot encode special tokens in a text", where="special", todo="leave it out",
                expected="a model with a byte-level BPE tokenizer, such as GPT-2",
            )  # fmt: skip
        return self.tokenizer.encode_special(prompt)

    def _text(self, prompt: str, special: bool, seed: int) -> PartialText:
        """A prompt before generation."""
        given = self.prompt_ids(prompt, special)
        return PartialText(given, seed, special_tokens=len(given) - len(self._ids(prompt, special)))

    def _encode(self, text: str) -> EncodedText:
        """The token ids of a text, of which all but the first are predicted."""
        whole = encode_whole(text, self.tokenizer, self.context or STRIDE)
        if self.start_token:
            return whole
        ids = self.codec.encode(text)
        if len(ids) < 2:
            raise ValueError("a text of one token has no perplexity without the start token")
        return replace(whole, ids=np.array(ids, np.int32), starts=np.zeros(1, np.int64))

    def _visible_ids(self, prompt: str) -> list[int]:
        """The tokens of a prompt that are in the model's context."""
        ids = self.prompt_ids(prompt)
        return ids[self.context_start(len(ids)) :]

    def rules(self, settings: TextSettings | None = None) -> list[Rule]:
        """The rules that suppress tokens which are never generated, and those of the settings, in the usual order."""
        settings = settings or TextSettings()
        suppressed, end, rows = self.codec.suppressed, self.codec.end_id, self._net.config.vocab
        rules: list[Rule] = [SuppressTokens(suppressed)] if suppressed else []
        rules += [VocabLimit(self.tokenizer.vocab)] if rows > self.tokenizer.vocab else []
        rules += [] if settings.repetition_penalty == 1 else [RepetitionPenalty(settings.repetition_penalty)]
        rules += [] if settings.no_repeat_ngram is None else [NoRepeatNgram(settings.no_repeat_ngram)]
        rules += [] if end is None or not settings.min_length else [MinLength(settings.min_length, end)]
        return [*rules, *(sampling_rules(settings) if settings.is_sampled else [])]

    def _graphs(self) -> Graphs | None:
        """Captured CUDA graphs, unless the model has hooks, which a graph would not call."""
        return None if watched(self.model) else self.graphs

    @property
    def _end(self) -> int:
        return NO_END if self.codec.end_id is None else self.codec.end_id

    @torch.inference_mode()
    def _sample(self, texts: Sequence[PartialText], settings: TextSettings) -> Iterator[Step]:
        """Generate the texts token by token, with a new prefill whenever the context is full."""
        unfinished, rules = list(texts), self.rules(settings)
        while unfinished:
            visible = [text.ids[self.context_start(len(text.ids)) :] for text in unfinished]
            budget = [settings.length - len(text.generated) for text in unfinished]
            if self.context is not None:
                budget = [min(tokens, self.context + 1 - len(ids)) for tokens, ids in zip(budget, visible, strict=True)]
            limit, given = torch.tensor(budget), self._rule_prompt(unfinished, settings)  # (B,)
            start = (*self._prefill(visible, max(budget), settings), limit, self._end)
            if settings.is_sampled:
                seeds = [text.seed for text in unfinished]
                paths = yield from sample(*start, seeds, rules, self._graphs(), given)
            else:
                paths = yield from greedy(*start, rules, self._graphs(), given)
            parts = (unfinished, visible, _path_ids(paths), paths.logs[:, 0].tolist(), budget)
            for text, before, (ids,), log, allowed in zip(*parts, strict=True):
                # Where the rules allow no token, the text is not extended.
                text.log_prob += log if math.isfinite(log) else self._log_prob(before, ids, settings)
                text.generated += ids
                text.done = len(text.generated) >= settings.length or len(ids) < allowed or ids[-1] == self._end
            unfinished = [text for text in unfinished if not text.done]

    @torch.inference_mode()
    def _search(
        self, texts: Sequence[tuple[str, PartialText]], settings: TextSettings, top: int
    ) -> list[GeneratedText]:
        """The `top` best completions of each prompt by beam search."""
        given = [text.prompt for _, text in texts]
        longest = max(map(len, given))
        if self.context is not None and longest + settings.length - 1 > self.context:
            raise UserError(
                "beam search needs prompt and completion within the model's context", where="length",
                found=f"a prompt of {longest:,} tokens and {settings.length:,} to generate",
                expected=f"at most {self.context + 1:,} together",
                todo="reduce the length, shorten the prompt, or leave the beams out",
            )  # fmt: skip
        limit = torch.full((len(texts),), settings.length)  # (B,)
        paths = drain(
            beam(
                *self._prefill(given, settings.length, settings, settings.beams), limit, self._end, settings.beams, top,
                settings.length_penalty, rules=self.rules(settings), graphs=self._graphs(),
                given=self._rule_prompt([text for _, text in texts], settings),
            )
        )  # fmt: skip
        found: list[GeneratedText] = []
        for (prompt, text), ids, logs in zip(texts, _path_ids(paths), paths.logs.tolist(), strict=True):
            for one, log in zip(ids, logs, strict=True):
                # A penalty changes the scores of the search; the result has the model's own probability.
                own = log if settings.repetition_penalty == 1 else self._log_prob(text.prompt, one, settings)
                found += (
                    [self._result(prompt, replace(text, generated=one, log_prob=own))] if math.isfinite(log) else []
                )
        return found

    def _prefill(
        self, ids: list[list[int]], room: int, settings: TextSettings, beams: int = 1
    ) -> tuple[Decoder, Any, Tensor]:
        """Run the model on all tokens of each text but the last: a decoder, its state then, and the last tokens (B, 1).

        At most `room` tokens will be generated.
        """
        graphs = self._graphs()
        if graphs is not None and isinstance(self.model, RowByRow) and (decoder := self._net.row_by_row()) is not None:
            return decoder, *decoder.begin(ids, max(map(len, ids)) + room, beams, graphs.run)
        rows, lengths = len(ids), [len(row) - 1 for row in ids]
        prefix = torch.tensor([row[-1:] for row in ids], device=self.device)  # (B, 1)
        longest, state = max(lengths), self.start(rows, settings)
        if not longest:
            return self._net, state, prefix
        before = torch.tensor(
            [[row[0]] * (longest - length) + row[:-1] for row, length in zip(ids, lengths, strict=True)]
        )
        before, skip = before.to(self.device), longest - torch.tensor(lengths, device=self.device)  # (B, T), (B,)
        if min(lengths) == longest:
            return self._net, self._net.features(before, state)[1], prefix
        if isinstance(state, Cache | WindowCache):
            assert self.context is not None
            return self._net, self._net.features(before, replace(state, ragged=Ragged(skip, self.context)))[1], prefix
        real = torch.arange(longest, device=self.device) >= skip[:, None]  # (B, T)
        return self._net, self._net.features(before, state, real)[1], prefix

    def _rule_prompt(self, texts: Sequence[PartialText], settings: TextSettings) -> Prompt:
        """The tokens so far without the start token, for the rules."""
        chosen = torch.tensor([len(text.generated) for text in texts])  # (B,)
        if not settings.uses_history:
            return Prompt(torch.zeros(len(texts), 0, dtype=torch.long), torch.zeros_like(chosen), chosen)
        rows = [text.ids[text.special_tokens :] for text in texts]
        longest = -(-max(map(len, rows)) // PAD_MULTIPLE) * PAD_MULTIPLE
        tokens = torch.tensor([[self.codec.start_id] * (longest - len(row)) + row for row in rows])  # (B, P)
        return Prompt(tokens.long(), torch.tensor([len(row) for row in rows]), chosen)

    def _log_prob(self, given: list[int], ids: list[int], settings: TextSettings | None = None) -> float:
        """log p(ids | given)."""
        tokens = torch.tensor([[*given, *ids[:-1]]], device=self.device)  # (1, T)
        logits, _ = self._net(tokens, self.start(1, settings))
        logs = logits[0, len(given) - 1 :].float().log_softmax(-1)  # (L, V)
        return float(logs.gather(1, torch.tensor(ids, device=self.device)[:, None]).sum())

    # -------------------------------------------------------------- from ids to texts
    def _result(self, prompt: str, text: PartialText) -> GeneratedText:
        ended = text.generated[-1:] == [self._end]
        return GeneratedText(prompt, self.text_after(text.prompt, text.generated), text.log_prob, text.generated, ended)

    def text_after(self, before: list[int], ids: list[int]) -> str:
        """The text of ids that follow others; some tokens are decoded differently at the start of a word."""
        if isinstance(self.tokenizer, Gpt2Tokenizer):
            return self.codec.decode(ids)
        ordinary = next(number for number in range(self.tokenizer.vocab) if number not in self.tokenizer.special)
        before = [ordinary if number == self.codec.unknown_id else number for number in before]
        head, whole = self.codec.decode(before), self.codec.decode([*before, *ids])
        return whole[len(head) :] if whole.startswith(head) else self.codec.decode(ids)


def seed_of(seed: int, number: int, sample: int = 0) -> int:
    """The random seed of one sample of a prompt. Generators use only the last 32 bits."""
    return (seed * 1_000_003 + number + sample * 2_654_435_761) % 2**63


def _path_ids(paths: Paths) -> list[list[list[int]]]:
    """The token ids of each path of each text."""
    return [
        [ids[:length] for ids, length in zip(some, lengths, strict=True)]
        for some, lengths in zip(paths.tokens.tolist(), paths.lengths.tolist(), strict=True)
    ]
