"""A run's model, ready for a verb."""

from __future__ import annotations

from pathlib import Path

import torch
import typer

from heedful.errors import printable
from heedful.loading import few_threads, load
from heedful.tasks.translation import Translator


def load_run(run: Path) -> Translator:
    """The translator of a run folder, with as many CPU threads as its size is worth."""
    translator = load(run)
    torch.set_num_threads(few_threads(translator.model, translator.device))
    for note in translator.notes:
        typer.echo(f"note: {printable(note)}", err=True)
    return translator
