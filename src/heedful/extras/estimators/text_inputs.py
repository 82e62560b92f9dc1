"""What estimators of texts are given: lists, arrays, or columns of a table; mistakes are a ValueError with the row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.utils.validation import check_consistent_length

from heedful.errors import UserError, shown

Text = str | tuple[str, str]  # a text, or a pair of texts


def texts_of(X: Any) -> list[Text]:
    """The texts, or pairs of texts, of a list, an array, a column, or a table of one column or two."""
    found: list[Text] = []
    for number, row in enumerate(rows_of(X, "X")):
        if isinstance(row, np.ndarray) and row.size == 1:
            row = row.flat[0]
        if isinstance(row, str):
            found.append(str(row))
        elif isinstance(row, tuple | list | np.ndarray) and len(row) == 2 and all(isinstance(one, str) for one in row):
            found.append((str(row[0]), str(row[1])))
        else:
            raise ValueError(
                f"X[{number}] is {shown(row, 40)}, not a text or a pair of texts: pass a column, as frame['text'], and "
                "fill missing values, as frame['text'].fillna('')"
            )
    return found


def single_texts_of(X: Any) -> list[str]:
    """The texts, none of which is a pair."""
    found = [text for text in texts_of(X) if isinstance(text, str)]
    if len(found) < len(texts_of(X)):
        raise ValueError("X has pairs of texts: pass one column, as frame['text']")
    return found


def words_of(X: Any) -> list[list[str]]:
    """The words of sentences, which are lists of words, or texts with spaces between them."""
    return [_strings(row, f"X[{number}]", "a sentence") for number, row in enumerate(rows_of(X, "X"))]


def tags_of(y: Any) -> list[list[str]]:
    """The tags of the words of sentences."""
    rows = rows_of(require_target(y), "y")
    return [_strings(row, f"y[{number}]", "the tags of a sentence") for number, row in enumerate(rows)]


def _strings(row: Any, where: str, what: str) -> list[str]:
    if isinstance(row, str):
        return row.split()
    if isinstance(row, Sequence | np.ndarray) and all(isinstance(one, str) for one in row):
        return [str(one) for one in row]
    raise ValueError(f"{where} is {shown(row, 40)}, not {what}: pass a list of strings")


def rows_of(X: Any, name: str) -> list[Any]:
    """The rows of a list, an array, a column or a table."""
    given = X
    if not isinstance(X, list | tuple | np.ndarray | str | bytes | Mapping):
        X = np.asarray(X, dtype=object)
    if isinstance(X, str | bytes | Mapping) or (isinstance(X, np.ndarray) and X.ndim == 0):
        raise ValueError(
            f"{name} is {shown(given, 40)}, not a list: pass a list of texts, or a column, as frame['text']"
        )
    rows = list(X)
    if not rows:
        raise ValueError(f"found array with 0 sample(s): {name} is empty, and at least one is needed")
    return rows


def require_target(y: Any) -> Any:
    """What is to be predicted, which cannot be left out."""
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    return y


def names_of_columns(y: Any) -> list[str]:
    """The names of the columns of a table, or their numbers from 0."""
    shape = np.shape(y)
    names = [str(name) for name in getattr(y, "columns", range(shape[1] if len(shape) > 1 else 0))]
    return names if len(set(names)) == len(names) and all(names) else [str(place) for place in range(len(names))]


def require_same_lengths(sentences: Sequence[Sequence[str]], tags: Sequence[Sequence[str]]) -> None:
    """Refuse sentences with more or fewer tags than words."""
    check_consistent_length(sentences, tags)
    for number, (words, of_words) in enumerate(zip(sentences, tags, strict=True)):
        if len(words) != len(of_words):
            raise ValueError(f"X[{number}] has {len(words)} words, but y[{number}] has {len(of_words)} tags")


def units_of(texts: Sequence[Text]) -> list[str]:
    """What tells texts apart when some are held out: equal ones stay together."""
    return ["\0".join(parts_of(text)).casefold() for text in texts]


def parts_of(text: Text) -> tuple[str, ...]:
    """The one text or the two of a pair."""
    return (text,) if isinstance(text, str) else text


@contextmanager
def value_errors() -> Iterator[None]:
    """Report mistakes as ValueError, as scikit-learn does."""
    try:
        yield
    except UserError as error:
        raise ValueError(str(error)) from error
