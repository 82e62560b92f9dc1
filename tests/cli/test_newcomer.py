"""From a CSV to a served classifier, by the commands of the tutorial."""

from __future__ import annotations

import csv
import json
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from heedful.data.embedded import NumberLanguages

HEEDFUL = [sys.executable, "-m", "heedful"]


@pytest.mark.slow
def test_from_a_csv_to_a_service_in_five_commands(tmp_path: Path) -> None:
    """The column of the class is neither the first nor the last, and there are others."""
    items = NumberLanguages(train=1500).read("train").items
    with (tmp_path / "spelled.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerow(["id", "language", "spelled out", "when"])
        writer.writerows([n, one.label, one.text, f"2024-01-{n % 28 + 1}"] for n, one in enumerate(items))
    for line in (
        "init classify --data spelled.csv", "check classify.yaml", "train classify.yaml",
        "predict runs/classify spelled.csv -o out.csv",
    ):  # fmt: skip
        done = subprocess.run([*HEEDFUL, *line.split()], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        if line.startswith("init"):
            assert "text is 'spelled out', label is 'language'" in done.stdout
    with (tmp_path / "out.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1500 and sum(row["language"] == row["prediction"] for row in rows) > 1300
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve = [*HEEDFUL, "serve", "runs/classify", "--port", str(port)]
    with subprocess.Popen(serve, cwd=tmp_path, stdout=subprocess.DEVNULL) as server:
        try:
            assert answer(server, port) == "de"
        finally:
            server.terminate()


def answer(server: subprocess.Popen[bytes], port: int) -> str:
    """The label that the server answers, once it does."""
    body = json.dumps({"inputs": ["vierhundertzwölf"]}).encode()
    request = Request(f"http://127.0.0.1:{port}/v1/predict", body, {"Content-Type": "application/json"})
    while server.poll() is None:
        with suppress(OSError), urlopen(request) as found:
            return str(json.load(found)["predictions"][0]["label"])
        time.sleep(0.1)
    raise AssertionError("the server ended")
