"""The golden runs, and which of them have no graph to export, with the reason."""

from __future__ import annotations

from pathlib import Path

GOLDEN = Path(__file__).parent / "golden" / "runs"
RUNS = sorted(path.name for path in GOLDEN.iterdir())
REFUSED = {
    "tree_classification-tree_lstm": "each tree has a form of its own",
    "dialogue-hred": "utterances of similar lengths",
    "paragraphs-paragraph_captioner": "a plan and a search",
    "pretraining-bigbird": "random blocks by a seed",
}
