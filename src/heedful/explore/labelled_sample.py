"""A bounded sample of the labelled texts that a classifier was tested on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heedful.explore import samples
from heedful.explore.once import OncePerModel
from heedful.tasks.base import Example

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

MOST = 2000  # texts, evenly spaced


class LabelledSample:
    """Texts of a run's test or validation data with a known class, evenly spaced where there are many."""

    def __init__(self, subject: Subject) -> None:
        self.split, self.of, self.examples = "", 0, list[Example]()
        labels = set(subject.predictor.labels)
        task = samples.task_in(subject.folder) if subject.is_run else None
        for split in samples.HELD_OUT:
            if task is None:
                return
            every = [one for one in samples.examples_of(task, split) if one.right in labels]
            if every:
                step = max(1.0, len(every) / MOST)
                self.split, self.of = split, len(every)
                self.examples = [every[int(number * step)] for number in range(min(MOST, len(every)))]
                return


labelled_samples = OncePerModel(LabelledSample)
