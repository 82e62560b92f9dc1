"""env.json records what matters to a result, and nothing about the person or the machine's names."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path

import torch

from heedful.training.environment import environment


def test_versions_threads_and_device_are_recorded() -> None:
    facts = environment(torch.device("cpu"))
    assert facts["torch"] == torch.__version__
    assert facts["threads"] == torch.get_num_threads()
    assert facts["device"] == "cpu"


def test_no_personal_data_is_recorded() -> None:
    values = json.loads(json.dumps(environment(torch.device("cpu")))).values()
    assert not {getpass.getuser(), socket.gethostname(), str(Path.home()), str(Path.cwd())} & {str(v) for v in values}
    assert not any("/" in str(value) for value in values)
