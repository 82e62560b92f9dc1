"""What a model is shown at first: texts of its run's own data, or a sentence in a language that it knows."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from heedful.data.formats.sources import Split
from heedful.errors import UserError
from heedful.explore import inspect
from heedful.explore.capabilities import Unknowing
from heedful.explore.views import run
from heedful.runs.evaluate import results
from heedful.runs.load import read_recipe
from heedful.tasks import task_of
from heedful.tasks.answering.predictor import QuestionAnswerer
from heedful.tasks.base import AnyTask, Example
from heedful.tasks.classification.predictor import TextClassifier
from heedful.tasks.tagging.predictor import TokenTagger

MOST = 8  # examples that a reader can choose from
HELD_OUT: tuple[Split, ...] = ("test", "valid")
SHORT, LONG = 12, 200  # characters of a text that is taken in at a glance
PROMPT = 32  # tokens of a text that goes on
PIECES = 20_000  # of a vocabulary that tell its script
LIKED = 0.85  # of the tokens that English takes: a language that takes fewer is the model's own


class Sentence(NamedTuple):
    """The lectures' sentence in one language, and a question that it answers."""

    text: str
    question: str
    prompt: str  # its beginning, for those that go on with it


ENGLISH = Sentence(
    "The animal didn't cross the street because it was too tired",
    "Why didn't the animal cross the street?",
    "The animal didn't cross the street because it was",
)
SENTENCES = {  # by script; of one script, the one that a vocabulary spells with the fewest tokens
    "LATIN": (
        ENGLISH,
        Sentence(
            "Das Tier ging nicht über die Straße, weil es zu müde war",
            "Warum ging das Tier nicht über die Straße?",
            "Das Tier ging nicht über die Straße, weil es",
        ),
        Sentence(
            "L'animal n'a pas traversé la rue parce qu'il était trop fatigué",
            "Pourquoi l'animal n'a-t-il pas traversé la rue ?",
            "L'animal n'a pas traversé la rue parce qu'il était",
        ),
        Sentence(
            "El animal no cruzó la calle porque estaba demasiado cansado",
            "¿Por qué no cruzó la calle el animal?",
            "El animal no cruzó la calle porque estaba",
        ),
    ),
    "CYRILLIC": (
        Sentence(
            "Животное не перешло улицу, потому что оно слишком устало",
            "Почему животное не перешло улицу?",
            "Животное не перешло улицу, потому что оно",
        ),
    ),
    "CJK": (Sentence("那只动物没有过马路，因为它太累了", "那只动物为什么没有过马路？", "那只动物没有过马路，因为它"),),
}
NAMES = "Ada Lovelace was born in London"  # for those that mark names
FOLLOWS = "The animal stayed where it was"
PAIRED = ("entail", "contradict", "equivalent", "duplicate", "paraphrase")  # in the names of classes of pairs


class Shown(NamedTuple):
    """Examples that a model can read, the one to begin with first, and what is right of them called."""

    examples: tuple[Example, ...]
    named: str | None  # None: they are not of the model's own data


def described(folder: Path) -> AnyTask | None:
    """The task of a run, if its recipe can be read."""
    try:
        return task_of(read_recipe(folder))
    except UserError:
        return None


def recorded(task: AnyTask, folder: Path) -> list[Example]:
    """Examples that a run's last evaluation tells of, which costs nothing."""
    return [found for sample in samples(folder) if (found := task.example(sample)) is not None and found.text.strip()]


def read(task: AnyTask) -> list[Example]:
    """Examples of a run's data that were not trained on; none where its files are not here any more."""
    for split in HELD_OUT:
        try:
            found = list(islice((one for one in task.examples(split) if one.text.strip()), MOST))
        except UserError:
            continue
        if found:
            return found
    return []


def ordered(predictor: Any, examples: Sequence[Example]) -> tuple[Example, ...]:
    """Examples that a model can read, first those that are taken in at a glance."""
    return tuple(sorted((cut(predictor, one) for one in examples), key=lambda one: not SHORT <= len(one.text) <= LONG))


def samples(folder: Path) -> list[tuple[str, str, str]]:
    """The samples of a run's test scores, or those of the last evaluation while it trains."""
    try:
        found = results(folder)
    except UserError:
        found = None
    if found is not None:
        return list(found.samples)
    evaluated = [one["samples"] for one in run.last_evaluations(folder) if one["samples"]]
    return [(given, right, made) for given, right, made in evaluated[-1]] if evaluated else []


def cut(predictor: Any, example: Example) -> Example:
    """An example that fits into a model: its first words, where it is too long; a prompt may as well be shorter."""
    words = example.text.strip().split(" ")
    most = PROMPT if inspect.writes(predictor) else None
    count = len(words)
    while count > 1 and not fits(predictor, " ".join(words[:count]), example.other, most=most):
        count -= 1 if most else -(-count // 2)
    rest = [" ".join(words[count:])] if most and count < len(words) else []
    return Example(" ".join(words[:count]), example.other, "\n".join([*rest, example.right]))


def fits(predictor: Any, *texts: str | None, most: int | None = None) -> bool:
    """Whether texts have no more tokens than a model can read, with one around each, and no more than some number."""
    rooms = [room for room in (inspect.room(predictor), most) if room is not None]
    ids = predictor.tokenizer.ids([text for text in texts if text is not None])
    return not rooms or sum(len(one) + 1 for one in ids) + 1 <= min(rooms)


# ------------------------------------------------------------------ of models without data
def usual(predictor: Any) -> Example:
    """A sentence for a model that brings no data: one that it can read, of the kind that it was made for."""
    sentence = best_known(predictor)
    if sentence is None:
        return Example(spelled(predictor), None, "")
    if inspect.writes(predictor):
        return Example(sentence.prompt, None, "")
    if isinstance(predictor, QuestionAnswerer):
        return Example(sentence.question, sentence.text, "")
    if isinstance(predictor, TokenTagger) and sentence in SENTENCES["LATIN"]:
        return Example(NAMES, None, "")
    pairs = isinstance(predictor, TextClassifier) and any(
        part in name.lower() for name in predictor.labels for part in PAIRED
    )
    return Example(sentence.text, FOLLOWS if pairs and sentence == ENGLISH else None, "")


def best_known(predictor: Any) -> Sentence | None:
    """The sentence that a vocabulary spells best; None where it knows none of their words."""
    known = [one for one in SENTENCES.get(script(predictor), ()) if is_known(predictor, one.text)]
    cost = {one: length(predictor, one.text) / len(one.text) for one in known}
    if ENGLISH in cost and min(cost.values()) > LIKED * cost[ENGLISH]:
        return ENGLISH
    return min(cost, key=lambda one: cost[one], default=None)


def script(predictor: Any) -> str:
    """The script of most letters of a vocabulary, as Unicode names it."""
    pieces = predictor.tokenizer.pieces(range(min(predictor.tokenizer.vocab, PIECES)))
    letters = Counter(
        unicodedata.name(letter, "").split(" ")[0] for piece in pieces for letter in piece if letter.isalpha()
    )
    return letters.most_common(1)[0][0] if letters else ""


def length(predictor: Any, text: str) -> int:
    """How many tokens a text has."""
    return len(predictor.tokenizer.ids([text])[0])


def is_known(predictor: Any, text: str) -> bool:
    """Whether a model knows most of the words of a text, and can read all of it."""
    ids = predictor.tokenizer.ids([text])[0]
    unknown = predictor.tokenizer.unk if isinstance(predictor.tokenizer, Unknowing) else None
    return sum(number == unknown for number in ids) <= len(ids) / 3 and fits(predictor, text)


def spelled(predictor: Any) -> str:
    """A few of the words of a vocabulary that has others than ours."""
    pieces = [
        piece for piece in predictor.tokenizer.pieces(range(predictor.tokenizer.vocab)) if not piece.startswith("[")
    ]
    whole = [piece for piece in pieces if piece.strip().isalpha() and len(piece.strip()) > 2]
    some = whole if len(whole) > MOST else pieces
    return " ".join(piece.strip() for piece in some[len(some) // 2 :][:MOST])
