"""One thread, passive waiting and default signal handlers, so that tests are reproducible on any machine."""

import gc
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

from claim_marks import (
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_make_collect_report,
    pytest_runtest_makereport,
)

__all__ = [
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_make_collect_report",
    "pytest_runtest_makereport",
]

torch.set_num_threads(1)

# torch.compile caches machine code between processes, even for a CPU without the same instructions.
CODE = f"heedful-compiled-{os.getuid()}-{torch.__version__}-{torch.backends.cpu.get_cpu_capability()}".replace(" ", "-")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), CODE))

# Signals that a shell or a scheduler may ignore or block; programs started by tests inherit these.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGPIPE):
    signal.signal(number, signal.SIG_DFL if number != signal.SIGPIPE else signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_SETMASK, ())


@pytest.fixture(autouse=True)
def _seeded() -> None:
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # torch.manual_seed also formats the whole stack, to remember who seeded a GPU that there is not
        torch.default_generator.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Files are written, and not waited for: no test cuts the power of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _coarse_reports() -> Iterator[None]:
    """The pictures of a run's report have few dots; those that a test asks for have all."""
    from heedful.runs import finish

    def coarse(*given: Any, report: Callable[..., Iterator[Any]] = finish._report) -> Iterator[Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("heedful.plots.style.encode.__defaults__", (30,))
            yield from report(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "_report", coarse)
        yield


@pytest.fixture(scope="module")
def no_loss_curve() -> Iterator[None]:
    """Runs end without a picture of their losses, which takes longer than their steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("heedful.runs.finish.curve", lambda run, unit: None)
        yield


def pytest_collection() -> None:
    """Collecting keeps almost all that it makes: the garbage collector waits until it is done."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Tests and modules stay until the end: the garbage collector need not look at their 1.5 million objects again."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 50)  # graphs of tensors have many small objects, and few cycles
