"""Tests here share the models in `made.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
