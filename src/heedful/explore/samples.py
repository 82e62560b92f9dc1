"""The default inputs of a model: examples of its run's data, or a sentence in a language of its vocabulary."""

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
from heedful.explore.capabilities import HasUnknown
from heedful.explore.views import run
from heedful.runs.evaluate import results
from heedful.runs.load import read_recipe
from heedful.tasks import task_of
from heedful.tasks.answering.predictor import QuestionAnswerer
from heedful.tasks.base import AnyTask, Example
from heedful.tasks.classification.predictor import TextClassifier
from heedful.tasks.tagging.predictor import TokenTagger

MOST = 8  # examples to choose from
CORPUS = 64  # texts to search in
HELD_OUT: tuple[Split, ...] = ("test", "valid")
SHORT, LONG = 12, 200  # characters of a text that is easy to read
PROMPT = 32  # tokens of a prompt
PIECES = 20_000  # tokens of a vocabulary by which its script is found
PREFERRED = 0.85  # of the tokens that English takes: a language below is the model's own


class Sentence(NamedTuple):
    """The lectures' sentence in one language, a question that it answers, and its beginning as a prompt."""

    text: str
    question: str
    prompt: str


ENGLISH = Sentence(
    "The animal didn't cross the street because it was too tired",
    "Why didn't the animal cross the street?",
    "The animal didn't cross the street because it was",
)
SENTENCES = {  # by script; of one script, the one with the fewest tokens is used
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
NAMES = "Ada Lovelace was born in London"  # for taggers of names
FOLLOWS = "The animal stayed where it was"
ENGLISH_TOO = (  # a distant subject, and a pronoun
    "The keys to the old cabinet in the hall are on the table",
    "She poured water from the bottle into the cup until it was full",
)
NAMES_TOO = ("Marie Curie worked in Paris with Pierre", "The river Thames flows through London")
ASKED_TOO = (
    ("Where was Ada Lovelace born?", NAMES),
    ("What did Marie Curie study?", "In Paris, Marie Curie studied physics"),
)
PAIRED = ("entail", "contradict", "equivalent", "duplicate", "paraphrase")  # in the names of classes of pairs


class Examples(NamedTuple):
    """Examples that a model can read, the default first, and the name of their targets."""

    examples: tuple[Example, ...]
    target: str | None  # None: they are not from the model's own data


def task_in(folder: Path) -> AnyTask | None:
    """The task of a run, if its recipe can be read."""
    try:
        return task_of(read_recipe(folder))
    except UserError:
        return None


def recorded(task: AnyTask, folder: Path) -> list[Example]:
    """Examples that a run's last evaluation recorded."""
    return [found for sample in samples(folder) if (found := task.example(sample)) is not None and found.text.strip()]


def held_out(task: AnyTask, most: int = MOST) -> list[Example]:
    """Examples of a run's test or validation data; none if its files are gone."""
    for split in HELD_OUT:
        if found := examples_of(task, split, most):
            return found
    return []


def examples_of(task: AnyTask, split: Split, most: int | None = None) -> list[Example]:
    """The examples of a split, or the first of them; none if its files are gone."""
    try:
        return list(islice((one for one in task.examples(split) if one.text.strip()), most))
    except UserError:
        return []


def fitted(predictor: Any, examples: Sequence[Example]) -> tuple[Example, ...]:
    """Examples shortened to a model's context, those of a readable length first."""
    found = (shortened(predictor, one) for one in examples)
    return tuple(sorted(found, key=lambda one: not SHORT <= len(one.text) <= LONG))


def samples(folder: Path) -> list[tuple[str, str, str]]:
    """The samples of a run's test scores, or of its last evaluation."""
    try:
        found = results(folder)
    except UserError:
        found = None
    if found is not None:
        return list(found.samples)
    evaluated = [one["samples"] for one in run.last_evaluations(folder) if one["samples"]]
    return [(given, right, made) for given, right, made in evaluated[-1]] if evaluated else []


def shortened(predictor: Any, example: Example) -> Example:
    """An example cut to the words that fit into a model's context; a prompt is shorter still."""
    words = example.text.strip().split(" ")
    most = PROMPT if inspect.is_language_model(predictor) else None
    count = len(words)
    while count > 1 and not fits(predictor, " ".join(words[:count]), example.other, most=most):
        count -= 1 if most else -(-count // 2)
    rest = [" ".join(words[count:])] if most and count < len(words) else []
    return Example(" ".join(words[:count]), example.other, "\n".join([*rest, example.right]))


def fits(predictor: Any, *texts: str | None, most: int | None = None) -> bool:
    """Whether texts, with their special tokens, fit into a model's context, and into a number of tokens."""
    limits = [limit for limit in (inspect.context_of(predictor), most) if limit is not None]
    ids = predictor.tokenizer.ids([text for text in texts if text is not None])
    return not limits or sum(len(one) + 1 for one in ids) + 1 <= min(limits)


# ------------------------------------------------------------------ models without data
def default(predictor: Any) -> Example:
    """A sentence for a model without data, in the form that its task expects."""
    sentence = best_sentence(predictor)
    if sentence is None:
        return Example(some_words(predictor), None, "")
    if inspect.is_language_model(predictor):
        return Example(sentence.prompt, None, "")
    if isinstance(predictor, QuestionAnswerer):
        return Example(sentence.question, sentence.text, "")
    if isinstance(predictor, TokenTagger) and sentence in SENTENCES["LATIN"]:
        return Example(NAMES, None, "")
    pairs = isinstance(predictor, TextClassifier) and any(
        part in name.lower() for name in predictor.labels for part in PAIRED
    )
    return Example(sentence.text, FOLLOWS if pairs and sentence == ENGLISH else None, "")


def defaults(predictor: Any) -> tuple[Example, ...]:
    """The default of a model without data, and others of its kind that it can read."""
    first, sentence = default(predictor), best_sentence(predictor)
    others: Sequence[tuple[str, str | None]]
    if sentence is None:
        others = [(some_words(predictor, part), None) for part in (3, 4)]
    elif isinstance(predictor, QuestionAnswerer):
        others = ASKED_TOO if sentence == ENGLISH else ()
    elif first.text == NAMES:
        others = [(text, None) for text in NAMES_TOO]
    elif sentence == ENGLISH:
        others = [(text, None) for text in ENGLISH_TOO]
    else:
        others = [(sentence.question, None), (sentence.prompt, None)]
    known = [
        Example(*each, "")
        for each in others
        if sentence is None or all(is_known(predictor, one) for one in each if one)
    ]
    return (first, *(one for one in known if one.text != first.text))


def best_sentence(predictor: Any) -> Sentence | None:
    """The sentence with the fewest tokens per character; None where the vocabulary covers no language."""
    known = [one for one in SENTENCES.get(script(predictor), ()) if is_known(predictor, one.text)]
    cost = {one: len(predictor.tokenizer.ids([one.text])[0]) / len(one.text) for one in known}
    if ENGLISH in cost and min(cost.values()) > PREFERRED * cost[ENGLISH]:
        return ENGLISH
    return min(cost, key=lambda one: cost[one], default=None)


def script(predictor: Any) -> str:
    """The most frequent script of a vocabulary's letters, by its Unicode name."""
    pieces = inspect.vocabulary_of(predictor)[:PIECES]
    letters = Counter(
        unicodedata.name(letter, "").split(" ")[0] for piece in pieces for letter in piece if letter.isalpha()
    )
    return letters.most_common(1)[0][0] if letters else ""


def is_known(predictor: Any, text: str) -> bool:
    """Whether at most a third of a text's tokens are unknown, and it fits into the context."""
    ids = predictor.tokenizer.ids([text])[0]
    unknown = predictor.tokenizer.unk if isinstance(predictor.tokenizer, HasUnknown) else None
    return sum(number == unknown for number in ids) <= len(ids) / 3 and fits(predictor, text)


def some_words(predictor: Any, part: int = 2) -> str:
    """A few words of a vocabulary, from its middle or a third or a quarter of the way."""
    pieces = [piece for piece in inspect.vocabulary_of(predictor) if not piece.startswith("[")]
    whole = [piece for piece in pieces if piece.strip().isalpha() and len(piece.strip()) > 2]
    some = whole if len(whole) > MOST else pieces
    return " ".join(piece.strip() for piece in some[len(some) // part :][:MOST])
