"""CTranslate2 folders of Transformers, and CTranslate2 to run them.

Both sides search alike: tokens that are never generated have no probability, those of the others sum to 1, and beam
search goes on until no hypothesis could become better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.decode.rules import Renormalize, SuppressTokens
from heedful.decode.search import Paths, beam, drain, greedy
from heedful.errors import UserError
from heedful.export.check import TOLERANCE, Exported, different, seconds
from heedful.models import MODELS
from heedful.models.ctranslate2 import Writable
from heedful.models.own import own_class, settings_of
from heedful.runs.load import AnyPredictor
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.translation.predictor import Translator

LENGTHS = 1, 2, 3, 5, 8, 13  # tokens of the inputs that are compared
STEPS = 12  # tokens that are generated for each
BEAMS = 4
PATIENT = 1000.0  # times the beams: hypotheses that CTranslate2 finishes before it stops
FAR = 0.5  # of the largest log-probability, at which int8 is of no use
TODO = "export it with --to onnx, or keep the run: heedful.load and `heedful serve` read it"
Rows = Sequence[list[int]]


def require_ctranslate2() -> None:
    """Raise an error if the package is missing."""
    if find_spec("ctranslate2") is None:
        raise UserError(
            "export to CTranslate2 needs a package that is not installed", found="no ctranslate2",
            todo="pip install 'heedful[ctranslate2]'",
        )  # fmt: skip


def writable(predictor: AnyPredictor) -> Writable:
    """The module that writes this model; an error says why there is none."""
    config = settings_of(predictor.model)
    module: Any = None
    name = f"heedful.models.{MODELS[config.kind].folder or config.kind}.ctranslate2"
    if own_class(predictor.model):
        reason: str | None = f"{own_class(predictor.model)} is your own module"
    elif not isinstance(predictor, Translator | TextGenerator) or find_spec(name) is None:
        reason = "CTranslate2 runs Transformers that translate, and GPT"
    else:
        module = import_module(name)
        reason = module.reason(config)
        tokens = Tokens.of(predictor)
        if reason is None and any(len(set(names)) < len(names) for names in (tokens.names, tokens.source)):
            reason = "CTranslate2 tells tokens apart by their names, and some are alike here"
    if reason is not None:
        raise UserError("this model cannot be written for CTranslate2: not supported", found=reason, todo=TODO)
    found: Writable = module
    return found


@dataclass(frozen=True)
class Tokens:
    """The tokens of a model as CTranslate2 knows them."""

    names: list[str]
    source: list[str]  # names of the tokens that it reads: of a translator's source
    start: int
    end: int | None  # None: texts have no end
    suppressed: tuple[int, ...]  # never generated
    unknown: int

    @classmethod
    def of(cls, predictor: Translator | TextGenerator) -> Tokens:
        """Those of a predictor."""
        names = predictor.tokenizer.token_names
        if isinstance(predictor, Translator):
            one = predictor.tokenizer
            return cls(names, one.source_names, one.bos, one.eos, one.suppressed, one.unk)
        codec = predictor.codec
        unknown = codec.start_id if codec.unknown_id is None else codec.unknown_id
        return cls(names, names, codec.start_id, codec.end_id, codec.suppressed, unknown)

    @property
    def stop(self) -> int:
        """The end token; where texts have no end, one that is never generated."""
        return self.suppressed[0] if self.end is None else self.end

    def spell(self, rows: Rows) -> list[list[str]]:
        """The names of tokens that it writes."""
        return [[self.names[number] for number in row] for row in rows]

    def spell_source(self, rows: Rows) -> list[list[str]]:
        """The names of tokens that it reads."""
        return [[self.source[number] for number in row] for row in rows]

    @property
    def options(self) -> dict[str, Any]:
        """What a search of CTranslate2 is called with, so that it is ours."""
        return {"suppress_sequences": self.spell([[number] for number in self.suppressed])}


class Side:
    """A model and its CTranslate2 folder: the same searches, and the same log-probabilities, of both."""

    def __init__(self, predictor: Translator | TextGenerator, folder: Path) -> None:
        import ctranslate2

        model: Any = predictor.model
        self.model, self.context = model, int(model.config.context)
        self.tokens, self.translates = Tokens.of(predictor), isinstance(predictor, Translator)
        kind = ctranslate2.Translator if self.translates else ctranslate2.Generator
        self.engine: Any = kind(str(folder), device="cpu", intra_threads=torch.get_num_threads())
        self.steps = min(STEPS, self.context // 2)

    def inputs(self, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
        """Random tokens of these numbers, or as many as fit into the context."""
        random, tokens = torch.Generator().manual_seed(seed), self.tokens
        shared = min(len(tokens.names), len(tokens.source))  # ids that are both of a source and of a target
        ordinary = [number for number in range(shared) if number not in {*tokens.suppressed, tokens.stop}]
        room = self.context - self.steps
        last = [tokens.stop] if self.translates else []
        return [
            [ordinary[int(at)] for at in torch.randint(len(ordinary), (min(length, room),), generator=random)] + last
            for length in lengths
        ]

    @torch.no_grad()
    def start(self, rows: Rows) -> tuple[Any, Tensor]:
        """The state of the decoder, and the tokens that it reads first, for rows of one length."""
        given = torch.tensor(rows)
        if not self.translates:
            return self.model.start(len(rows), given.device), given
        return self.model.start(given), torch.full((len(rows), 1), self.tokens.start)

    def ours(self, rows: Rows, beams: int) -> list[list[int]]:
        """The best tokens after rows of one length."""
        tokens = self.tokens
        rules = (
            SuppressTokens((*tokens.suppressed, *range(len(tokens.names), self.model.config.vocab))),
            Renormalize(),
        )
        limit, stop = torch.full((len(rows),), self.steps), -1 if tokens.end is None else tokens.end
        start = (self.model, *self.start(rows), limit, stop)
        if beams == 1:
            paths: Paths = drain(greedy(*start, rules))
        else:
            paths = drain(beam(*start, beams, exact=True, rules=rules))
        found = zip(paths.tokens[:, 0].tolist(), paths.lengths[:, 0].tolist(), strict=True)
        return [ids[:length] for ids, length in found]

    def theirs(self, rows: Rows, beams: int) -> list[list[int]]:
        """The same by CTranslate2; prompts of a language model have one length."""
        options = {**self.tokens.options, "beam_size": beams, "patience": PATIENT, "return_end_token": True}
        given = self.tokens.spell_source(rows)
        if self.translates:
            found = self.engine.translate_batch(
                given, max_decoding_length=self.steps, min_decoding_length=0, **options
            )  # fmt: skip
            numbers = {name: number for number, name in enumerate(self.tokens.names)}
            return [[numbers[name] for name in one.hypotheses[0]] for one in found]
        found = self.engine.generate_batch(given, max_length=self.steps, include_prompt_in_result=False, **options)
        return [list(one.sequences_ids[0]) for one in found]

    @torch.no_grad()
    def our_logs(self, row: list[int], target: list[int]) -> Tensor:
        """log p of each token of a target after a row."""
        state, first = self.start([row])
        read = torch.cat([first, torch.tensor([target])], 1)[:, :-1]  # (1, T)
        logits = self.model(read, state)[0][0, -len(target) :, : len(self.tokens.names)]  # (T, V)
        logs: Tensor = logits.log_softmax(-1).gather(1, torch.tensor(target)[:, None])[:, 0]
        return logs

    def their_logs(self, rows: Rows, targets: Rows) -> list[Tensor]:
        """The same by CTranslate2, for rows of any lengths."""
        if self.translates:
            found = self.engine.score_batch(self.tokens.spell_source(rows), self.tokens.spell(targets))
        else:
            whole = [row + target for row, target in zip(rows, targets, strict=True)]
            found = self.engine.score_batch(self.tokens.spell(whole))
        logs = [torch.tensor(one.log_probs) for one in found]  # of a translation with its end, of a prompt as well
        at = slice(None, -1) if self.translates else slice(-self.steps, None)
        return [one[at] for one in logs]

    def difference(self) -> float:
        """The largest difference of log-probabilities, as a part of the largest one."""
        rows = self.inputs(LENGTHS)
        targets = [row[: self.steps] for row in self.inputs([self.steps] * len(rows), seed=1)]  # without an end
        ours = torch.cat([self.our_logs(row, target) for row, target in zip(rows, targets, strict=True)])
        theirs = torch.cat(self.their_logs(rows, targets))
        if not bool(theirs.isfinite().all()):
            return float("inf")
        return float((ours - theirs).abs().max() / ours.abs().max())

    def run(self, search: Callable[[Rows, int], list[list[int]]], rows: Rows) -> dict[str, Tensor]:
        """A greedy search, to measure its time."""
        search(rows, 1)
        return {}

    def equal(self, beams: int) -> int:
        """How many of the searches find the same tokens."""
        rows = self.inputs(LENGTHS, seed=2)
        whole = self.theirs(rows, beams) if self.translates else [self.theirs([row], beams)[0] for row in rows]
        return sum(self.ours([row], beams) == [found] for row, found in zip(rows, whole, strict=True))


def write_ctranslate2(
    predictor: AnyPredictor, folder: Path, int8: bool, say: Callable[[str], None]
) -> list[tuple[Exported, dict[str, Any]]]:
    """Write CTranslate2's files, compared with the model."""
    module = writable(predictor)
    assert isinstance(predictor, Translator | TextGenerator)
    say("model.bin: writing and comparing ...")
    tokens = Tokens.of(predictor)
    save(module.specification(predictor.model, len(tokens.names)), tokens, folder, int8)
    side = Side(predictor, folder)
    off, equal = side.difference(), {"greedy": side.equal(1), "beams": side.equal(BEAMS)}
    if not off <= (FAR if int8 else TOLERANCE):
        raise different("model.bin", f"log-probabilities that differ by {off:.2g} of the largest one")
    if not int8 and min(equal.values()) < len(LENGTHS):
        raise different("model.bin", f"the same tokens in {min(equal.values())} of {len(LENGTHS)} searches")
    rows = side.inputs([16] * 8, seed=3)
    ours, theirs = seconds((lambda _: side.run(side.ours, rows), lambda _: side.run(side.theirs, rows)), {})
    found = Exported("model.bin", (folder / "model.bin").stat().st_size, off, ours, theirs)
    about = {
        "searches": len(LENGTHS), "equal_searches": equal, "start": tokens.names[tokens.start],
        "end": None if tokens.end is None else tokens.names[tokens.end], "options": tokens.options,
    }  # fmt: skip
    return [(found, about)]


def save(spec: Any, tokens: Tokens, folder: Path, int8: bool) -> None:
    """Write a specification with its vocabulary."""
    config = spec.config
    config.bos_token, config.eos_token = tokens.names[tokens.start], tokens.names[tokens.stop]
    config.unk_token = tokens.names[tokens.unknown]
    if hasattr(spec, "register_vocabulary"):
        spec.register_vocabulary(tokens.names)
    else:
        config.decoder_start_token = config.bos_token
        spec.register_source_vocabulary(tokens.source)
        spec.register_target_vocabulary(tokens.names)
    spec.validate()
    spec.optimize("int8" if int8 else None)
    spec.save(str(folder))
