"""How the page formats numbers."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).parents[2] / "web"

WRITTEN = [
    ("fixed(-0.0001, 3)", "0.000"),
    ("fixed(-0, 3)", "0.000"),
    ("fixed(-1.25, 3)", "−1.250"),
    ("fixed(NaN, 2)", "–"),
    ("fixed(-Infinity, 2)", "−∞"),
    ("change(0.004, 2)", "0.00"),
    ("change(-0.004, 2)", "0.00"),
    ("change(0.006, 2)", "+0.01"),
    ("change(-0.006, 2)", "−0.01"),
    ("change(0.0102332)", "+0.01023"),
    ("change(-2.22e-17)", "0"),
    ("format(-0)", "0"),
    ("format(-0.01234)", "−0.01234"),
    ("format(0.00002)", "2.00e−5"),
    ("format(1234567)", "1.23e+6"),
    ("share(0.0001)", "<0.001"),
    ("share(0)", "0.000"),
    ("percent(0)", "0.0 %"),
    ("percent(1e-9)", "<0.01 %"),
    ("percent(0.0002)", "0.02 %"),
    ("percent(0.5)", "50.0 %"),
    ("percent(1)", "100.0 %"),
]


def test_numbers_are_formatted_consistently() -> None:
    """No zero below nothing, and no share that takes more room than the whole."""
    if shutil.which("node") is None or not (WEB / "node_modules" / "esbuild").is_dir():
        pytest.skip("what turns the page's code into JavaScript is not here: make web")
    script = f"""
        const {{ code }} = require("esbuild").transformSync(
          require("fs").readFileSync("src/lib/numbers.ts", "utf8"), {{ loader: "ts", format: "esm" }});
        import("data:text/javascript," + encodeURIComponent(code)).then(({{ format, fixed, change, share, percent }}) =>
          console.log(JSON.stringify([{", ".join(call for call, _ in WRITTEN)}])));
    """
    done = subprocess.run(["node", "-e", script], cwd=WEB, capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout) == [written for _, written in WRITTEN]
    assert max(len(written) for call, written in WRITTEN if call.startswith("percent")) == len("100.0 %")


def test_views_use_the_shared_number_format() -> None:
    """What is left are the coordinates of lines."""
    for file in [*(WEB / "src").rglob("*.svelte"), *(WEB / "src").rglob("*.ts")]:
        if file.name != "numbers.ts":
            for line in file.read_text(encoding="utf-8").splitlines():
                assert ".toExponential(" not in line and ".toPrecision(" not in line, file
                assert ".toFixed(" not in line or "`" in line, f"{file}: {line.strip()}"
