"""The tasks that BERT was evaluated on, and its published results (Devlin et al., 2019).

A column of the table is a task, MNLI's two test sets being two columns; its last one is the mean of all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


class GlueTask(NamedTuple):
    """A task: its kind, input, metric and number of training examples."""

    kind: Literal["classification", "regression", "multiple_choice", "tagging", "answering"]
    reads: Literal["text", "pair"]
    metric: str
    examples: int  # for training


TASKS: dict[str, GlueTask] = {
    "MNLI": GlueTask("classification", "pair", "accuracy", 392_000),
    "QQP": GlueTask("classification", "pair", "f1", 363_000),
    "QNLI": GlueTask("classification", "pair", "accuracy", 108_000),
    "SST-2": GlueTask("classification", "text", "accuracy", 67_000),
    "CoLA": GlueTask("classification", "text", "matthews", 8_500),
    "STS-B": GlueTask("regression", "pair", "spearman", 5_700),
    "MRPC": GlueTask("classification", "pair", "f1", 3_500),
    "RTE": GlueTask("classification", "pair", "accuracy", 2_500),
    "SQuAD v1.1": GlueTask("answering", "pair", "f1", 88_000),
    "SQuAD v2.0": GlueTask("answering", "pair", "f1", 130_000),
    "SWAG": GlueTask("multiple_choice", "pair", "accuracy", 73_000),
    "CoNLL-2003": GlueTask("tagging", "text", "f1", 14_000),
}
COLUMNS = ("MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE")
RESULTS: dict[str, tuple[float, ...]] = {  # of GLUE's test sets, in the order of the columns
    "Pre-OpenAI SOTA": (80.6, 80.1, 66.1, 82.3, 93.2, 35.0, 81.0, 86.0, 61.7),
    "BiLSTM+ELMo+Attn": (76.4, 76.1, 64.8, 79.9, 90.4, 36.0, 73.3, 84.9, 56.8),
    "OpenAI GPT": (82.1, 81.4, 70.3, 88.1, 91.3, 45.4, 80.0, 82.3, 56.0),
    "BERT-base": (84.6, 83.4, 71.2, 90.1, 93.5, 52.1, 85.8, 88.9, 66.4),
    "BERT-large": (86.7, 85.9, 72.1, 91.1, 94.9, 60.5, 86.5, 89.3, 70.1),
}


def glue_average(scores: Mapping[str, float]) -> float:
    """The last column: the mean of all nine, each test set counted once."""
    if missing := [column for column in COLUMNS if column not in scores]:
        raise ValueError(f"there is no average without {', '.join(missing)}")
    return sum(scores[column] for column in COLUMNS) / len(COLUMNS)
