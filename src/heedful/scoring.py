"""How good a translator is: scores on a split, and what a run folder keeps of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from heedful.data.batches import encode
from heedful.data.sources import Pair, Split
from heedful.errors import UserError
from heedful.recipe import Recipe
from heedful.tasks.translation import Translator, perplexity_loss
from heedful.training.metrics import Score, bleu, chrf, exact_match


@dataclass(frozen=True)
class Evaluated:
    """How good the model is on a split, with a few translations."""

    step: int
    split: Split
    loss: float
    scores: tuple[Score, ...]
    samples: tuple[tuple[str, str, str], ...]  # source, reference, translation
    unread: int  # sources too long for the model, whose translation counts as empty


def evaluate(
    translator: Translator,
    pairs: Sequence[Pair],
    step: int,
    split: Split,
    loss: float,
    samples: int,
    beams: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluated:
    """BLEU, chrF and exact match of a translator on pairs, and a few samples spread over them."""
    fits = [length <= translator.context for length in translator.lengths([pair.source for pair in pairs])]
    texts = [pair.source for pair, fit in zip(pairs, fits, strict=True) if fit]
    translations = iter(translator.search(texts, beams, progress=progress))
    found = [next(translations)[0].text if fit else "" for fit in fits]
    references = [pair.target for pair in pairs]
    shown = random.Random(step).sample(range(len(pairs)), min(samples, len(pairs)))
    return Evaluated(
        step,
        split,
        loss,
        (bleu(found, references), chrf(found, references), exact_match(found, references)),
        tuple((pairs[row].source, references[row], found[row]) for row in shown),
        fits.count(False),
    )


def scored(
    translator: Translator,
    recipe: Recipe,
    split: Split,
    step: int = 0,
    beams: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluated:
    """Scores of a trained model on one split of its recipe's data, with the recipe's beams if none are given."""
    pairs = recipe.data.pairs(split)
    encoded = encode(pairs, translator.tokenizer, translator.context)
    loss = perplexity_loss(translator.model, encoded, translator.device, recipe.train.batch_tokens)
    return evaluate(translator, pairs, step, split, loss, recipe.train.samples, beams, progress)


def results(run: Path) -> Evaluated | None:
    """The test scores of a run that is complete."""
    path = run / "results.json"
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        scores = tuple(Score(name, score["value"], score["signature"]) for name, score in data["scores"].items())
        samples = tuple((source, reference, found) for source, reference, found in data["samples"])
        return Evaluated(data["step"], data["split"], data["loss"], scores, samples, data["unread"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            "the test scores cannot be read", where=str(path), found=repr(error),
            todo="delete the file, and train again with the same command: the model is scored anew",
        ) from error  # fmt: skip


def plain(event: Evaluated) -> dict[str, Any]:
    """An evaluation as it is written to JSON."""
    scores = {score.name: {"value": score.value, "signature": score.signature} for score in event.scores}
    return {"kind": "evaluated", **asdict(event), "scores": scores}
