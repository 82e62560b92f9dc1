"""The speed of the explorer's page in a real browser, for a model of the size of BERT-base.

    python benchmarks/explorer.py    # prints the figures, and writes benchmarks/results/explorer.json

The model has random weights, with queries and keys made larger, so that attention is not uniform and there are lines to
draw. The page is not scripted: the pointer really moves and the slider is really dragged, while the page
notes when each of its frames begins. Without a GPU the browser draws with the CPU that also runs the model. The machine
should have nothing else to do.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src")]

import torch  # noqa: E402

from heedful.data.tokenizers.wordpiece import BertTokenizer  # noqa: E402
from heedful.explore.server.app import application  # noqa: E402
from heedful.explore.server.page import built  # noqa: E402
from heedful.explore.subjects import Explorer  # noqa: E402
from heedful.http.guard import Policy, serving  # noqa: E402
from heedful.hub.model_folder import write_model  # noqa: E402
from heedful.models.bert.config import BertConfig  # noqa: E402
from heedful.models.bert.model import Bert  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "explorer.json"
WORDS, VOCAB = 2000, 30_522
DEEP = BertConfig(vocab=VOCAB, width=256, heads=16, layers=24, hidden=1024)  # narrow: the diagram is as large
FRAME = 1000 / 60 + 0.2  # milliseconds; the clock of the page has steps of a tenth
PACE = 1 / 125  # seconds between two words of a mouse
READY = '[data-figure][data-ready="true"]'
# Notes the frame after the first line, the start of every frame while recording, and long tasks.
NOTES = """
  window.notes = {first: null, frames: [], on: false, tasks: []};
  const stroke = CanvasRenderingContext2D.prototype.stroke;
  CanvasRenderingContext2D.prototype.stroke = function (...given) {
    if (notes.first === null) {
      notes.first = 0;
      requestAnimationFrame(() => setTimeout(() => (notes.first = performance.now())));
    }
    return stroke.apply(this, given);
  };
  const tick = (now) => { if (notes.on) notes.frames.push(now); requestAnimationFrame(tick); };
  requestAnimationFrame(tick);
  new PerformanceObserver((list) => {
    for (const one of list.getEntries()) notes.tasks.push([one.startTime, one.duration]);
  }).observe({type: "longtask", buffered: true});
"""


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="that the pointer and the slider are moved for")
    parser.add_argument("--times", type=int, default=5, help="that a page is opened")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file to write")
    parser.add_argument("--home", action="store_true", help="measure only the diagram of a model of 24 layers")
    args = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    found: dict[str, Any] = json.loads(args.out.read_text()) if args.home and args.out.is_file() else {}
    with tempfile.TemporaryDirectory() as folder:
        if not args.home:
            with opened(bert(Path(folder) / "base", BertConfig(vocab=VOCAB))) as (go, browser):
                found |= {
                    "128 tokens": short(go, args.times, args.seconds),
                    "512 tokens": {view: long(go, view) for view in ("heads", "grid")},
                }
        with opened(bert(Path(folder) / "deep", DEEP)) as (go, browser):
            found["home of 24 layers"] = home(go, args.times, args.seconds)
    found["bundle"] = bundle()
    if not args.home:
        machine = {"processors": os.cpu_count(), "system": platform.platform(), "browser": browser, "gpu": False}
        found["machine"] = machine
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    show(found)


def bert(folder: Path, config: BertConfig) -> Path:
    """A folder with a BERT that has random weights with attention that is not uniform."""
    torch.manual_seed(0)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *(f"word{number}" for number in range(VOCAB - len(special)))]
    model = Bert(config)
    with torch.no_grad():
        for block in model.blocks:
            for name, weight in block.attention.named_parameters():
                if weight.dim() == 2 and "out" not in name:
                    weight.mul_(4)
    settings = {"task": "pretraining", "model": config.model_dump(mode="json")}
    tokenizer = BertTokenizer.from_vocab(pieces, True, "benchmark")
    write_model(folder, json.dumps(settings), model.state_dict(), {"tokenizer.json": tokenizer.json}, {})
    return folder


def text(tokens: int, seed: int) -> str:
    """A text of this many tokens, with the two special tokens around it."""
    return " ".join(f"word{(seed * 7919 + place * 31) % WORDS}" for place in range(tokens - 2))


@contextmanager
def opened(folder: Path) -> Iterator[tuple[Callable[..., Any], str]]:
    """A way to open a view of a model in a fresh page, and the browser's name; the model is loaded by then."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    explorer = Explorer([folder])
    explorer.about()
    with serving(application(explorer), Policy(port=0)) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1280, "height": 860})
        context.add_init_script(NOTES)

        def go(view: str, words: str) -> Any:
            for old in context.pages:
                old.close()
            page = context.new_page()
            page.goto(f"{url}#{urlencode({'view': view, 'text': words})}")
            page.locator(READY).wait_for(timeout=60_000)
            return page

        yield go, f"Chromium {browser.version}"
        browser.close()


def bundle() -> dict[str, int]:
    """Bytes of the page's files, gzipped."""
    return {name: len(gzip.compress(data, 9)) for name, data in sorted(built().items())}


def short(go: Callable[..., Any], times: int, seconds: float) -> dict[str, Any]:
    """128 tokens: from the navigation to the first frame with lines, then the frames of pointing and of sliding."""
    go("heads", text(128, 99))  # the first pass through a model takes longer
    fresh, again = [], []
    for number in range(times):
        fresh.append(first_frame(go("heads", text(128, number))))
        page = go("heads", text(128, number))
        again.append(first_frame(page))
    pointing = frames(page, lambda end: point(page, end), seconds)
    page.mouse.move(5, 5)
    page.wait_for_timeout(2000)  # neighbouring layers are prefetched meanwhile
    sliding = frames(page, lambda end: slide(page, end), seconds)
    return {
        "first frame with lines, ms": {"median": statistics.median(fresh), "slowest": max(fresh)},
        "the same for a text read before, ms": {"median": statistics.median(again), "slowest": max(again)},
        "pointing": pointing,
        "sliding through the layers": sliding,
    }


def home(go: Callable[..., Any], times: int, seconds: float) -> dict[str, Any]:
    """The diagram of a model: its first paint, and the frames of pointing at its parts, unfolded, and at its layers."""
    go("home", text(16, 99))
    paints = [round(first_paint(go("home", text(16, number))), 1) for number in range(times)]
    page = go("home", text(16, 0))
    page.locator('[data-figure] button[aria-expanded="false"]').evaluate_all("all => all.forEach((one) => one.click())")
    parts = [one.bounding_box() for one in page.locator("[data-figure] button").all() if one.is_visible()]
    places = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in parts if box and box["y"] < 800]

    def move(end: float) -> None:
        while time.monotonic() < end:
            for at in (*places, *reversed(places)):
                page.mouse.move(*at)
                time.sleep(PACE)

    return {
        "first paint, ms": {"median": statistics.median(paints), "slowest": max(paints)},
        "pointing": frames(page, move, seconds),
        "parts": len(places),
        "load average": round(os.getloadavg()[0], 1),
    }


def first_paint(page: Any) -> float:
    return float(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))


def first_frame(page: Any) -> float:
    return round(page.evaluate("notes.first"), 1)


def frames(page: Any, move: Callable[[float], None], seconds: float) -> dict[str, float]:
    """What the frames' times were while something moved."""
    page.evaluate("() => { notes.frames = []; notes.on = true; }")
    move(time.monotonic() + seconds)
    began: list[float] = page.evaluate("() => { notes.on = false; return notes.frames; }")
    took = sorted(after - before for before, after in pairwise(began))
    return {
        "frames a second": round(1000 * len(took) / (began[-1] - began[0]), 1),
        "median, ms": round(statistics.median(took), 1),
        "p95, ms": round(took[int(0.95 * (len(took) - 1))], 1),
        "slowest, ms": round(took[-1], 1),
    }


def point(page: Any, end: float) -> None:
    """Move the pointer over the tokens, up and down on both sides."""
    boxes = [page.get_by_test_id(f"{side}-{place}").bounding_box() for side in ("ask", "see") for place in range(18)]
    places = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes]
    while time.monotonic() < end:
        for at in (*places, *reversed(places)):
            page.mouse.move(*at)
            time.sleep(PACE)
            if time.monotonic() > end:
                break


def slide(page: Any, end: float) -> None:
    """Drag the slider of the layers to and fro."""
    box = page.get_by_test_id("layer").bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 8, y)
    page.mouse.down()
    steps = [box["x"] + 8 + (box["width"] - 16) * step / 60 for step in range(61)]
    while time.monotonic() < end:
        for x in (*steps, *reversed(steps)):
            page.mouse.move(x, y)
            time.sleep(PACE)
            if time.monotonic() > end:
                break
    page.mouse.up()


def long(go: Callable[..., Any], view: str) -> dict[str, float]:
    """512 tokens: the longest task of the page, from its start until nothing changes any more."""
    page = go(view, text(512, 1))
    ready = page.evaluate("performance.now()")
    page.wait_for_timeout(3000)
    return {"longest task, ms": max((took for _, took in page.evaluate("notes.tasks")), default=0), "ready, ms": ready}


def show(found: dict[str, Any]) -> None:
    """The measurements compared with their limits."""
    deep = found["home of 24 layers"]
    rows = [
        ("page, gzipped, KB", sum(found["bundle"].values()) / 1000, 200.0),
        ("first paint, home of 24 layers, median ms", deep["first paint, ms"]["median"], 1000.0),
        ("pointing at it, p95 of the frames, ms", deep["pointing"]["p95, ms"], FRAME),
    ]
    if "128 tokens" in found:
        few, many = found["128 tokens"], found["512 tokens"]
        rows += [
            ("first frame with lines, 128 tokens, median ms", few["first frame with lines, ms"]["median"], 1000.0),
            ("pointing, p95 of the frames, ms", few["pointing"]["p95, ms"], FRAME),
            ("slider, p95 of the frames, ms", few["sliding through the layers"]["p95, ms"], FRAME),
            ("heads, 512 tokens, longest task ms", many["heads"]["longest task, ms"], 200.0),
            ("grid, 512 tokens, longest task ms", many["grid"]["longest task, ms"], 200.0),
        ]
    for name, value, most in rows:
        print(f"{name:<48} {value:9.1f}   at most {most:7.1f}   {'held' if value <= most else 'NOT HELD'}")


if __name__ == "__main__":
    main()
