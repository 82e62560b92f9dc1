"""Write the page of the catalogue from the code: `python docs/catalogue.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from heedful.catalogue.page import page

PAGE = Path(__file__).parent / "reference" / "catalogue.md"


def main() -> int:
    """Rewrite the page if it differs; 1 if it did."""
    fresh = page()
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == fresh:
        return 0
    PAGE.write_text(fresh, encoding="utf-8")
    sys.stdout.write("wrote reference/catalogue.md\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
