"""Image files that cannot be read: the error speaks of the image, not of the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.data.images.image_files import read_image_file
from heedful.errors import UserError


def test_file_that_is_no_image_is_named_without_internals(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("hello")
    with pytest.raises(UserError, match="cannot be read") as error:
        read_image_file(tmp_path / "a.png", 1)
    assert error.value.where == str(tmp_path / "a.png") and error.value.found == "no known image format"
