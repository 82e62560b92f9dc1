"""Counters and histograms in Prometheus's text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
Labels = tuple[tuple[str, str], ...]


class Histogram:
    """The distribution of some seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one value."""
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds

    def lines(self, name: str, labels: Labels) -> Iterable[str]:
        """Its lines, without those of its type."""
        below = 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self.counts, strict=True):
            below += count
            yield sample(f"{name}_bucket", (*labels, ("le", bound)), below)
        yield sample(f"{name}_sum", labels, self.total)
        yield sample(f"{name}_count", labels, below)


class Metrics:
    """What the server counts itself; models are counted where they compute."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # by path and status
        self.seconds: dict[str, Histogram] = {}  # of whole requests, by path
        self.first = Histogram()  # until the first token
        self.open = 0

    def ended(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests[path, status] += 1
        self.seconds.setdefault(path, Histogram()).add(seconds)

    def text(self, gauges: Mapping[str, tuple[str, str, Mapping[str, float]]]) -> str:
        """All metrics; `gauges` has others: by name the type, the help, and the value of each model."""
        lines = head("heedful_requests_total", "counter", "Requests that have ended.")
        for (path, status), count in sorted(self.requests.items()):
            lines.append(sample("heedful_requests_total", (("path", path), ("status", str(status))), count))
        lines += head("heedful_request_seconds", "histogram", "Seconds from a request to the end of its answer.")
        for path, histogram in sorted(self.seconds.items()):
            lines += histogram.lines("heedful_request_seconds", (("path", path),))
        lines += head("heedful_first_token_seconds", "histogram", "Seconds from a request to its first token.")
        lines += self.first.lines("heedful_first_token_seconds", ())
        lines += head("heedful_open_requests", "gauge", "Requests that are being answered.")
        lines.append(sample("heedful_open_requests", (), self.open))
        for name, (kind, about, values) in gauges.items():
            lines += head(name, kind, about)
            lines += [sample(name, (("model", model),), value) for model, value in values.items()]
        return "\n".join(lines) + "\n"


def head(name: str, kind: str, about: str) -> list[str]:
    """The help and the type of a metric."""
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def sample(name: str, labels: Labels, value: float) -> str:
    """One line."""
    inside = ",".join(f'{key}="{escaped(text)}"' for key, text in labels)
    return f"{name}{{{inside}}} {value!r}" if labels else f"{name} {value!r}"


def escaped(text: str) -> str:
    """A label's value, as the format wants it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
