"""Which columns of a table a task reads, guessed from their names and their first rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from heedful.data.tables.reading import text_of
from heedful.data.tables.source import ColumnNames
from heedful.errors import UserError, shown

OneOrSeveral: TypeAlias = str | Sequence[str]

# Names that columns often have, by setting.
USUAL = {
    "text": (
        "sentence", "review", "comment", "message", "content", "body", "tweet", "post", "document", "utterance",
        "description", "question", "query", "title", "subject",
    ),
    "label": (
        "labels", "class", "category", "target", "sentiment", "verdict", "intent", "language", "tag", "tags", "topic",
        "rating", "stars", "score", "answer", "y",
    ),
    "source": ("src", "original", "input", "english", "en"),
    "target": ("tgt", "translation", "output"),
    "words": ("words",),
    "tags": ("labels", "ner_tags", "ner", "pos"),
    "style": ("label", "register", "tone"),
    "choices": ("endings", "options", "answers"),
    "passage": ("context", "paragraph", "text", "document"),
    "question": ("query",),
    "answer": ("answers", "answer_text", "label"),
    "story": ("passage", "context", "text"),
    "image": ("file", "path", "filename", "file_name", "photo", "picture"),
    "caption": ("text", "description", "title"),
    "dialogue": ("dialogue_id", "dialog", "dialog_id", "conversation", "conversation_id", "id"),
    "tree": ("parse", "sentence", "text"),
}  # fmt: skip
NUMBERS = ("price", "value", "amount", "outcome")  # names of columns that are predicted
LONG = ("text", "passage", "story")  # settings of columns with the longest texts
FEW = ("label", "style")  # settings of columns with few values
SEVERAL = "; or several columns of numbers: data.columns.label=[NAME,NAME]"
CLASSES = 100  # values of such a column at most


def guess_columns(
    columns: ColumnNames, rows: Sequence[Mapping[str, object]], where: str, given: Mapping[str, OneOrSeveral],
    numbers: bool,
) -> dict[str, OneOrSeveral]:  # fmt: skip
    """The column of each setting, or its columns; `given` are known ones, `numbers`: the label is a number."""
    names = list(dict.fromkeys(name for row in rows for name in row if name))  # an index may have none
    texts = {name: [text_of(row.get(name)).strip() for row in rows] for name in names}
    settings = dict.fromkeys([*(setting.split(".")[0] for setting in columns.names), *given])
    found = dict(given)
    for setting in settings:
        left = _others(names, found)
        if setting not in found and (name := _by_name(setting, columns, left)) is not None:
            found[setting] = name
    for setting in [one for one in settings if one not in found]:
        left = _others(names, found)
        if setting in FEW:
            fitting = [name for name in left if (are_numbers if numbers else are_classes)(texts[name])]
            if len(fitting) > 1 and not numbers:  # rather words than dates and codes
                fitting = [name for name in fitting if any(map(str.isalpha, "".join(texts[name])))] or fitting
        else:
            fitting = sorted(left, key=lambda name: -sum(map(len, texts[name])))[:1] if setting in LONG else []
        if len(fitting) != 1:
            raise UserError(
                f"it is not clear which column is the {setting}", where=where,
                found="the columns " + ", ".join(map(shown, fitting if len(fitting) > 1 else names)),
                todo=f"name it: data.columns.{setting}=NAME" + (SEVERAL if numbers and setting in FEW else ""),
            )  # fmt: skip
        found[setting] = fitting[0]
    return {setting: found[setting] for setting in settings}


def guess_target(rows: Sequence[Mapping[str, object]], where: str) -> str:
    """The column to predict from all others."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    known = {name.strip().casefold(): name for name in reversed(names)}
    found = next(
        (known[one] for one in ("predict", "target", "label", *USUAL["label"], *NUMBERS) if one in known), None
    )
    if found is None:
        raise UserError(
            "it is not clear which column is to be predicted", where=where,
            found="the columns " + ", ".join(map(shown, names)), todo="name it: task.predict=NAME",
        )  # fmt: skip
    return found


def row_numbers(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """The columns that count the rows, and say nothing about them."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    counts = [[str(start + place) for place in range(len(rows))] for start in (0, 1)]
    return [name for name in names if len(rows) > 2 and [text_of(row.get(name)).strip() for row in rows] in counts]


def _others(names: Sequence[str], found: Mapping[str, OneOrSeveral]) -> list[str]:
    """The columns that no setting has yet."""
    taken = {name for some in found.values() for name in ([some] if isinstance(some, str) else some)}
    return [name for name in names if name not in taken]


def _by_name(setting: str, columns: ColumnNames, names: Sequence[str]) -> str | None:
    """The column whose name says that it is this setting's."""
    usual = dict(columns.names).get(setting, setting)
    known = {name.strip().casefold(): name for name in reversed(names)}
    return next((known[one] for one in (usual, setting, *USUAL.get(setting, ())) if one in known), None)


def are_classes(values: Sequence[str]) -> bool:
    """Whether there are few different values, each in two rows or more on average."""
    return 2 <= len({*values}) <= min(CLASSES, len(values) / 2)


def are_numbers(values: Sequence[str]) -> bool:
    """Whether there are numbers, and not all are equal."""
    with suppress(ValueError):
        return len({float(value) for value in values if value}) > 1
    return False
