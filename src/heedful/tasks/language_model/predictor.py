"""Language models: each token of a text from those before it, or from those on either side.

B batch, T tokens, D width, V vocabulary, L layers, N tokens of a text, P tokens given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from heedful.blocks.state import Cache, Ragged
from heedful.blocks.taps import watched
from heedful.data.text.files import Text
from heedful.data.text.windows import EncodedText, encode_text
from heedful.data.tokenizers.base import require_list
from heedful.data.tokenizers.byte_pairs import Gpt2Tokenizer
from heedful.data.tokenizers.lm_tokenization import LanguageTokenizer, TextCodec, codec_of
from heedful.data.tokenizers.tokenizer import SPECIAL, TrainedTokenizer
from heedful.decode.graphs import Graphs
from heedful.decode.rules import AtLeast, Begins, Below, Never, NoRepeat, Penalty, Rule, sampling_rules
from heedful.decode.search import Decoder, Given, Paths, Search, Step, beam, drain, greedy, sample
from heedful.decode.settings import TextSettings
from heedful.errors import UserError
from heedful.models.own import Plain
from heedful.tasks.language_model.perplexity import (
    STRIDE,
    bits_per_character,
    both_ways_loss,
    sliding_loss,
    text_loss,
    windows_loss,
)

TOGETHER = 64  # texts that are gone on with at a time
ENDLESS = -1  # an end that no token is: what is written goes on over the ends of lines
MULTIPLE = 64  # what rules see of prompts is padded to it, so that few shapes occur
LATE = 12  # characters at the end of a line that further word pieces may change
NEAR = 16  # ids that tell how the next one is spelled


@dataclass(frozen=True)
class GeneratedText:
    """What was written after a prompt, the two together as one text, its log-probability and its token ids."""

    prompt: str
    completion: str
    log_probability: float
    ids: list[int]
    ended: bool = False  # whether the model ended the text, not the length

    @property
    def text(self) -> str:
        """The prompt and what follows it."""
        return self.prompt + self.completion


@runtime_checkable
class ByRows(Protocol):
    """A model that has kernels in which each row of a batch is computed alone, where they suit it."""

    def row_by_row(self) -> Any: ...


@dataclass
class Running:
    """A text that is being gone on with: the tokens that are given, the seed of its chance, and what was written."""

    given: list[int]
    seed: int = 0
    written: list[int] = field(default_factory=list)
    log: float = 0.0
    over: bool = False
    begun: int = 1  # tokens at the beginning that stand for no text

    @property
    def ids(self) -> list[int]:
        """All tokens so far."""
        return [*self.given, *self.written]


@dataclass
class TextGenerator:
    """A language model with its tokenizer, ready to go on with texts.

    What `settings` say is what `generate` does where it is not told otherwise. A text may be longer than the model's
    context: when that is full, the model forgets the older half, and reads the newer one again as if the text began
    there. What it sees depends on the text's length alone.

    A text is read after the start token, as in training, if `start_token` says so; where there is no text at all, it is
    always read after it.
    """

    model: Any  # a module that is Ahead
    tokenizer: LanguageTokenizer
    device: torch.device
    settings: TextSettings = field(default_factory=TextSettings)
    notes: tuple[str, ...] = ()  # what whoever loads it should know
    graphs: Graphs | None = field(init=False)
    script: TextCodec = field(init=False)

    def __post_init__(self) -> None:
        self.model.to(self.device).eval()
        captures = self.device.type == "cuda" and not isinstance(self.model, Plain)
        self.graphs = Graphs(self.model) if captures else None
        self.script = codec_of(self.tokenizer)

    @property
    def start_token(self) -> bool:
        """Whether a text is read after the start token."""
        return self.settings.start_token

    @start_token.setter
    def start_token(self, wanted: bool) -> None:
        self.settings = self.settings.but(start_token=wanted)

    @property
    def context(self) -> int | None:
        """How many tokens the model sees at once; None, where there is no limit."""
        context: int = self.model.config.context
        return context if self.model.config.limited else None

    def bfloat16(self) -> Self:
        """The same with its weights in bfloat16: half the memory to go through for a token, which a GPU waits for."""
        self.model.to(torch.bfloat16)
        return self

    def generate(
        self,
        prompts: Sequence[str],
        settings: TextSettings | None = None,
        *,
        first: int = 0,
        special: bool = False,
        **changes: Any,
    ) -> list[GeneratedText]:
        """Go on with each prompt, `samples` times, by `settings`, single ones of which may be given by their names.

        A token is drawn by chance each time, or with temperature 0 the likeliest taken; with beams, the `samples`
        likeliest texts that are found come best first. Prompt n of a seed gives the same, whatever else is in the
        batch; `first` is the number of the first prompt, for prompts that come in parts. Text that spells a special
        token is ordinary text, unless `special` is said.
        """
        how, rows = (settings or self.settings).but(**changes), list(enumerate(require_list(prompts), first))
        samples = how.samples
        if how.beams > 1 and samples > how.beams:
            raise ValueError(f"{how.beams} beams cannot give {samples} texts")
        each, texts = (1 if how.beams > 1 else samples), list[tuple[str, Running]]()
        for number, prompt in rows:
            texts += [
                (prompt, self._text(prompt, special, seed_of(how.seed, number, sample))) for sample in range(each)
            ]
        found: list[GeneratedText] = []
        size = max(1, TOGETHER // how.beams)
        for start in range(0, len(texts), size):
            some = texts[start : start + size]
            if how.beams > 1:
                found += self._searched(some, how, samples)
            else:
                for _ in self._drawn([text for _, text in some], how):
                    pass
                found += [self._writing(prompt, text) for prompt, text in some]
        return found

    def stream(
        self, prompt: str, settings: TextSettings | None = None, *, special: bool = False, **changes: Any
    ) -> Iterator[str]:
        """What `generate` adds to a prompt, as soon as it is sure: a piece of whole characters a token, and the rest.

        A piece is empty where the next tokens may still change it.
        """
        how = (settings or self.settings).but(**changes)
        if how.beams > 1:
            yield self.generate([prompt], how, special=special)[0].completion
            return
        text = self._text(prompt, special, seed_of(how.seed, 0))
        spelling = Spelling(self, text.given)
        for step in self._drawn([text], how):
            token = int(step.tokens[0, 0])
            if not bool(step.done[0]) and token != self.script.ends:
                yield spelling.add(token)
        if piece := spelling.rest():
            yield piece

    @torch.inference_mode()
    def steps(
        self,
        prompt: str,
        beams: int,
        top: int = 1,
        length_penalty: float = 1.0,
        limit: int | None = None,
        begins: Sequence[int] = (),
    ) -> Search:
        """The beam search for what follows a prompt, step by step, of at most `limit` tokens.

        Every path begins with some tokens, where these are given.
        """
        ids = self._seen(prompt)
        most = self.room(prompt) if limit is None else min(limit, self.room(prompt))
        rules = [*self.rules(TextSettings(beams=beams)), *([Begins(tuple(begins))] if begins else [])]
        return beam(
            *self._begun([ids], most, beams), torch.tensor([most]), self._end, beams, top, length_penalty,
            rules=rules, graphs=self._graphs(),
        )  # fmt: skip

    def room(self, prompt: str) -> int:
        """How many tokens are written after a prompt at the most, without forgetting any of what is seen of it."""
        most = self.settings.length
        return most if self.context is None else min(most, self.context + 1 - len(self._seen(prompt)))

    def loss(self, text: str) -> float:
        """The mean loss a token, in nats, of a whole text, each given all before it or at least half a context.

        Without the start token, nothing is given before the first token, and its loss does not count.
        """
        if self.context is None:
            return text_loss(self.model, self._encoded(text), self.device)
        return sliding_loss(self.model, self._encoded(text), self.device, -(-self.context // 2), STRIDE)

    def perplexity(self, text: str) -> float:
        """e to that loss: as if the model had so many tokens to choose from at each place."""
        return math.exp(self.loss(text))

    def bits_per_character(self, text: str) -> float:
        """The loss of a whole text over its characters, in bits."""
        return bits_per_character(self.loss(text), self._encoded(text))

    def forgotten(self, count: int) -> int:
        """How many tokens at the beginning of a text of so many the model has forgotten."""
        if self.context is None or count <= self.context:
            return 0
        step = self.context + 1 - max(1, self.context // 2)
        return step * -(-(count - self.context) // step)

    def tokens_of(self, prompt: str, special: bool = False) -> int:
        """How many tokens the model reads of a prompt, the start token counted."""
        return len(self.read_ids(prompt, special))

    def read_ids(self, prompt: str, special: bool = False) -> list[int]:
        """The tokens that the model reads of a prompt: its own, after the start token where it is read so."""
        ids = self._ids(prompt, special)
        return [self.script.begins, *ids] if self.starts(ids) else ids

    def starts(self, ids: Sequence[int]) -> bool:
        """Whether a text of these tokens is read after the start token; one without any always is."""
        return self.start_token or not ids

    def completed(self, given: list[int], tokens: Sequence[int], length: int) -> list[str]:
        """What each of some tokens adds to a text, with the likeliest tokens that follow it."""
        texts = [Running([*given, token]) for token in tokens]
        for _ in self._drawn(texts, TextSettings(length=length, temperature=0.0)):
            pass
        return [self.text_after(given, [*text.given[len(given) :], *text.written]) for text in texts]

    # -------------------------------------------------------------- from texts to searches
    def _ids(self, prompt: str, special: bool) -> list[int]:
        if not special:
            return self.script.text_ids(prompt)
        if not isinstance(self.tokenizer, Gpt2Tokenizer):
            raise UserError(
                "no text spells a special token of this model", where="special", todo="leave it out",
                expected="a model with byte pairs, as GPT-2",
            )  # fmt: skip
        return self.tokenizer.allowing(prompt)

    def _text(self, prompt: str, special: bool, seed: int) -> Running:
        """A prompt that is to be gone on with."""
        given = self.read_ids(prompt, special)
        return Running(given, seed, begun=len(given) - len(self._ids(prompt, special)))

    def _encoded(self, text: str) -> EncodedText:
        """A text as a row of tokens of which all but the first are predicted."""
        whole = _encoded(text, self.tokenizer, self.context or STRIDE)
        if self.start_token:
            return whole
        ids = self.script.text_ids(text)
        if len(ids) < 2:
            raise ValueError("a text of one token has no perplexity without the start token")
        return replace(whole, ids=np.array(ids, np.int32), starts=np.zeros(1, np.int64))

    def _seen(self, prompt: str) -> list[int]:
        """The tokens of a prompt that the model has not forgotten."""
        ids = self.read_ids(prompt)
        return ids[self.forgotten(len(ids)) :]

    def rules(self, settings: TextSettings | None = None) -> list[Rule]:
        """The rules about what is never written, and those of settings, in the order that is usual elsewhere too."""
        how = settings or TextSettings()
        banned, ends, rows = self.script.unwritten, self.script.ends, self.model.config.vocab
        always: list[Rule] = [Never(banned)] if banned else []
        always += [Below(self.tokenizer.vocab)] if rows > self.tokenizer.vocab else []
        always += [] if how.repetition_penalty == 1 else [Penalty(how.repetition_penalty)]
        always += [] if how.no_repeat_ngram is None else [NoRepeat(how.no_repeat_ngram)]
        always += [] if ends is None or not how.min_length else [AtLeast(how.min_length, ends)]
        return [*always, *(sampling_rules(how) if how.drawn else [])]

    def _graphs(self) -> Graphs | None:
        """Captured steps, unless somebody watches: a graph neither hears taps nor forgets what an edit did."""
        return None if watched(self.model) else self.graphs

    @property
    def _end(self) -> int:
        return ENDLESS if self.script.ends is None else self.script.ends

    @torch.inference_mode()
    def _drawn(self, texts: Sequence[Running], how: TextSettings) -> Iterator[Step]:
        """Write one token after another to each text, in as many searches as the context asks for."""
        going, rules = list(texts), self.rules(how)
        while going:
            seen = [text.ids[self.forgotten(len(text.ids)) :] for text in going]
            left = [how.length - len(text.written) for text in going]
            if self.context is not None:
                left = [min(one, self.context + 1 - len(ids)) for one, ids in zip(left, seen, strict=True)]
            limit, given = torch.tensor(left), self._given(going, how)  # (B,)
            start = (*self._begun(seen, max(left)), limit, self._end)
            if how.drawn:
                seeds = [text.seed for text in going]
                paths = yield from sample(*start, seeds, rules, self._graphs(), given)
            else:
                paths = yield from greedy(*start, rules, self._graphs(), given)
            parts = (going, seen, _ids_of(paths), paths.logs[:, 0].tolist(), left)
            for text, before, (ids,), log, most in zip(*parts, strict=True):
                # Where the rules leave nothing to write, what there is stays.
                text.log += log if math.isfinite(log) else self._log(before, ids)
                text.written += ids
                text.over = len(text.written) >= how.length or len(ids) < most or ids[-1] == self._end
            going = [text for text in going if not text.over]

    @torch.inference_mode()
    def _searched(self, texts: Sequence[tuple[str, Running]], how: TextSettings, top: int) -> list[GeneratedText]:
        """The `top` likeliest ways to go on with each text that beams find."""
        given = [text.given for _, text in texts]
        longest = max(map(len, given))
        if self.context is not None and longest + how.length - 1 > self.context:
            raise UserError(
                "beams compare whole texts, and these do not fit into the model's context", where="length",
                found=f"a prompt of {longest:,} tokens and {how.length:,} to write",
                expected=f"at most {self.context + 1:,} together",
                todo="ask for a shorter length, cut the prompt, or leave the beams out",
            )  # fmt: skip
        limit = torch.full((len(texts),), how.length)  # (B,)
        paths = drain(
            beam(
                *self._begun(given, how.length, how.beams), limit, self._end, how.beams, top, how.length_penalty,
                rules=self.rules(how), graphs=self._graphs(), given=self._given([text for _, text in texts], how),
            )
        )  # fmt: skip
        found: list[GeneratedText] = []
        for (prompt, text), ids, logs in zip(texts, _ids_of(paths), paths.logs.tolist(), strict=True):
            for one, log in zip(ids, logs, strict=True):
                # A penalty changes what beams compare; what is told is the model's own probability.
                own = log if how.repetition_penalty == 1 else self._log(text.given, one)
                found += [self._writing(prompt, replace(text, written=one, log=own))] if math.isfinite(log) else []
        return found

    def _begun(self, ids: list[list[int]], room: int, beams: int = 1) -> tuple[Decoder, Any, Tensor]:
        """What every search starts from: a decoder, its state before the last token of each text, and these tokens.

        At most `room` tokens are going to follow.
        """
        graphs = self._graphs()
        if graphs is not None and isinstance(self.model, ByRows) and (decoder := self.model.row_by_row()) is not None:
            return decoder, *decoder.begin(ids, max(map(len, ids)) + room, beams, graphs.run)
        rows, lengths = len(ids), [len(row) - 1 for row in ids]
        prefix = torch.tensor([row[-1:] for row in ids], device=self.device)  # (B, 1)
        longest, state = max(lengths), self.model.start(rows, self.device)
        if not longest:
            return self.model, state, prefix
        before = torch.tensor(
            [[row[0]] * (longest - length) + row[:-1] for row, length in zip(ids, lengths, strict=True)]
        )
        before, skip = before.to(self.device), longest - torch.tensor(lengths, device=self.device)  # (B, T), (B,)
        if min(lengths) == longest:
            return self.model, self.model.features(before, state)[1], prefix
        if isinstance(state, Cache):
            assert self.context is not None
            return self.model, self.model.features(before, replace(state, ragged=Ragged(skip, self.context)))[1], prefix
        real = torch.arange(longest, device=self.device) >= skip[:, None]  # (B, T)
        return self.model, self.model.features(before, state, real)[1], prefix

    def _given(self, texts: Sequence[Running], how: TextSettings) -> Given:
        """What the rules know of texts so far: their tokens, but for the one that they begin with."""
        chosen = torch.tensor([len(text.written) for text in texts])  # (B,)
        if not how.looks_back:
            return Given(torch.zeros(len(texts), 0, dtype=torch.long), torch.zeros_like(chosen), chosen)
        rows = [text.ids[text.begun :] for text in texts]
        longest = -(-max(map(len, rows)) // MULTIPLE) * MULTIPLE
        tokens = torch.tensor([[self.script.begins] * (longest - len(row)) + row for row in rows])  # (B, P)
        return Given(tokens.long(), torch.tensor([len(row) for row in rows]), chosen)

    def _log(self, given: list[int], ids: list[int]) -> float:
        """The log-probability of ids after those that are given."""
        tokens = torch.tensor([[*given, *ids[:-1]]], device=self.device)  # (1, T)
        logits, _ = self.model(tokens, self.model.start(1, self.device))
        logs = logits[0, len(given) - 1 :].float().log_softmax(-1)  # (L, V)
        return float(logs.gather(1, torch.tensor(ids, device=self.device)[:, None]).sum())

    # -------------------------------------------------------------- from ids to texts
    def _writing(self, prompt: str, text: Running) -> GeneratedText:
        ended = text.written[-1:] == [self._end]
        return GeneratedText(prompt, self.text_after(text.given, text.written), text.log, text.written, ended)

    def text_after(self, before: list[int], ids: list[int]) -> str:
        """What some ids add to a text: pieces read differently inside a word than at its beginning.

        What follows an unknown word joins on to it as to any other, but only known ones can be read.
        """
        if isinstance(self.tokenizer, Gpt2Tokenizer):
            return self.script.ids_text(ids)
        before = [number if number != TrainedTokenizer.unk else len(SPECIAL) for number in before]
        head, whole = self.script.ids_text(before), self.script.ids_text([*before, *ids])
        return whole[len(head) :] if whole.startswith(head) else self.script.ids_text(ids)


def seed_of(seed: int, number: int, sample: int = 0) -> int:
    """The seed of the chance of one text: a sample of a prompt. Generators look at the last 32 bits alone."""
    return (seed * 1_000_003 + number + sample * 2_654_435_761) % 2**63


def _ids_of(paths: Paths) -> list[list[list[int]]]:
    """The ids of each path of each text."""
    return [
        [ids[:length] for ids, length in zip(some, lengths, strict=True)]
        for some, lengths in zip(paths.tokens.tolist(), paths.lengths.tolist(), strict=True)
    ]


class Spelling:
    """The text of ids that come one by one, as soon as it is sure.

    What may be part of a character is held back, and of word pieces the end of a line: those that follow may join on.
    """

    def __init__(self, writer: TextGenerator, before: Sequence[int]) -> None:
        self.writer, self.before, self.ids, self.told = writer, list(before), list[int](), 0
        pieces = (
            ()
            if isinstance(writer.tokenizer, Gpt2Tokenizer)
            else writer.tokenizer.pieces(range(writer.tokenizer.vocab))
        )
        self.late = LATE if any(piece.startswith("##") for piece in pieces) else 0

    def add(self, number: int) -> str:
        """What is sure now, after one more id, and was not before."""
        self.ids.append(number)
        text = self.writer.text_after(self.before, self.ids)
        sure = text if text.endswith("\n") else text[: max(0, len(text) - self.late)].rstrip("\ufffd")
        piece, self.told = sure[self.told :], max(self.told, len(sure))
        if sure == text:  # all is told: what follows needs to know the last ids alone
            self.before, self.ids, self.told = [*self.before, *self.ids][-NEAR:], [], 0
        return piece

    def rest(self) -> str:
        """What was held back."""
        return self.writer.text_after(self.before, self.ids)[self.told :]


@dataclass
class BidirectionalLanguageModel:
    """A language model of both directions with its tokenizer: vectors of the tokens of texts, each in its sentence."""

    model: Any  # a module that is BothWays
    tokenizer: TrainedTokenizer
    device: torch.device
    context: int
    notes: tuple[str, ...] = ()  # what whoever loads it should know

    def __post_init__(self) -> None:
        self.model.to(self.device).eval()

    @torch.inference_mode()
    def layers(self, texts: Sequence[str]) -> list[Tensor]:
        """The embedding and every layer (L + 1, T, 2 D) of each text's T tokens; `tokenizer.encode` names them."""
        script = codec_of(self.tokenizer)
        rows = [[script.begins, *script.text_ids(text), script.begins] for text in require_list(texts)]
        if not rows:
            return []
        lengths = torch.tensor([len(row) for row in rows])  # (B,)
        real = torch.arange(int(lengths.max())) < lengths[:, None]  # (B, T + 2)
        ids = torch.full(real.shape, TrainedTokenizer.pad)  # (B, T + 2)
        ids[real] = torch.tensor([number for row in rows for number in row])
        found = self.model.layers(ids.to(self.device), real.to(self.device))  # (B, L + 1, T + 2, 2 D)
        return [found[place, :, 1 : len(row) - 1] for place, row in enumerate(rows)]

    def loss(self, text: str) -> float:
        """The mean loss a token, in nats and of both directions, of a text in windows as in training."""
        encoded = _encoded(text, self.tokenizer, self.context)
        return windows_loss(both_ways_loss, self.model, encoded, self.device, STRIDE)

    def perplexity(self, text: str) -> float:
        """e to that loss."""
        return math.exp(self.loss(text))


def _encoded(text: str, tokenizer: LanguageTokenizer, context: int = STRIDE) -> EncodedText:
    """A text, its last line given an end where it has none."""
    if not text:
        raise ValueError("an empty text has no perplexity")
    return encode_text(Text(text.removesuffix("\n").split("\n")), tokenizer, context)
