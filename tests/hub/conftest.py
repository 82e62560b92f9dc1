"""Tests here share the models in `bert_folders.py` and `gpt_folders.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
