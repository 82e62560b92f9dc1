"""Claims that are shown in the page use the explorer's trained models and its browser."""

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("explored", Path(__file__).parents[1] / "explore" / "conftest.py")
assert _spec is not None and _spec.loader is not None
_explored = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_explored)

browse, chromium, chemist, minilm, run = (
    getattr(_explored, name) for name in ("browse", "chromium", "chemist", "minilm", "run")
)
