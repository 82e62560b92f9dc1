"""What a view makes of an open model once, such as its test data."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

Made = TypeVar("Made")


class OncePerModel(Generic[Made]):
    """What a function makes of each open model."""

    def __init__(self, make: Callable[[Subject], Made]) -> None:
        self.make, self._making = make, Lock()
        self._found: WeakKeyDictionary[Subject, Made] = WeakKeyDictionary()

    def of(self, subject: Subject) -> Made:
        """That of a model, made once."""
        with self._making:
            if subject not in self._found:
                self._found[subject] = self.make(subject)
            return self._found[subject]
