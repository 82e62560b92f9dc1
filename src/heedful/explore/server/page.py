"""The files of the explorer's page, which are built from `web/` and part of every wheel."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from heedful.errors import UserError

STATIC = Path(__file__).parents[1] / "static"


def is_built() -> bool:
    """Whether the page has been built."""
    return (STATIC / "index.html").is_file()


@cache
def built() -> dict[str, bytes]:
    """The files by their paths below the page's root."""
    if not is_built():
        raise UserError(
            "the explorer's page has not been built", expected="Node 20.19 or newer to build it",
            todo="install Node and run `make web`, or install a wheel of Heedful",
        )  # fmt: skip
    return {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in STATIC.rglob("*") if path.is_file()}
