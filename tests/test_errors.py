from __future__ import annotations

import copy

from heedful.errors import UserError, printable, shown


def test_only_given_fields_are_shown() -> None:
    error = UserError("no such key", where="a.yaml:3", found="'sed'", todo="did you mean seed?")
    assert str(error) == "a.yaml:3: no such key\n  found:    'sed'\n  to do:    did you mean seed?"
    assert error.exit_code == 2


def test_problems_are_listed_below_the_message() -> None:
    error = UserError("2 problems", problems=[UserError("one", found="x\ny"), UserError("two")])
    assert str(error) == "2 problems\n  one\n    found:    x\n              y\n  two"


def test_control_characters_are_escaped() -> None:
    assert str(UserError("bad", where="\x1b[31mred\r\ud800")) == "\\x1b[31mred\\r\\ud800: bad"
    assert printable("Grüße, 世界\n") == "Grüße, 世界\n"


def test_copy_and_pickle_keep_the_fields() -> None:  # as when an error is sent to another process
    error = copy.copy(UserError("bad", where="here", exit_code=74))
    assert (error.message, error.where, error.exit_code) == ("bad", "here", 74)


def test_long_values_are_shortened_in_the_middle() -> None:
    assert shown("a") == "'a'"
    assert len(shown("a" * 1000)) <= 80
    assert shown("a" * 1000).endswith("aaaaaa'")
