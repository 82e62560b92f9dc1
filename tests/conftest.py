"""One thread, passive waiting and default signal handlers, so that tests are reproducible on any machine."""

import gc
import os
import signal
import tempfile

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
    torch.manual_seed(0)


def pytest_collection_finish() -> None:
    """Tests and modules stay until the end: the garbage collector need not look at their 1.5 million objects again."""
    gc.collect()
    gc.freeze()
