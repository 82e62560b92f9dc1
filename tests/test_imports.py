"""Who may import whom, what stays light, and which calls never appear."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import heedful

SOURCE = Path(heedful.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# Each part of the package with the parts that it may import, apart from itself, arrows going down only.
# A dotted name allows that one module. The command line and what stands beside it may import everything.
TOP = {"__init__", "__main__", "cli", "explore", "serve"}
FILES_OF_OURS = {"errors", "files"}
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "files": {"errors"},
    "config": {"errors", "files"},
    "blocks": set(),
    "blocks.kernels": set(),
    "data": {"config", *FILES_OF_OURS},
    "models": {"blocks", "config", "errors"},
    "decode": {"blocks.state", "blocks.kernels", "config"},
    "training": {"decode", "data", "blocks.losses", "blocks.state", "config", *FILES_OF_OURS},
    "hub": {"models", "blocks.layouts", "blocks.linear", "data", "training", "config", *FILES_OF_OURS},
    "plots": {*FILES_OF_OURS},
    "shapes": set(),
    "runs.events": {*FILES_OF_OURS},
    "lectures.claims": set(),
}
# A task brings all that it takes together: data, models by their roles, decoding, training and folders of others.
LAYERS["tasks"] = {"blocks", "config", "data", "decode", "hub", "models", "plots", "training", *FILES_OF_OURS}
# `TextGenerator.load` is the public `load`.
LAYERS["tasks.predictor"] = {*LAYERS["tasks"], "tasks", "runs.load"}
# What an autoencoder makes of images, and what PCA does.
LAYERS["plots.autoencoder_plots"] = {
    "data.images.sources",
    "extras.estimators.pca",
    "plots",
    "tasks.reconstruction.predictor",
}
LAYERS["plots.autoencoder_plots"] |= FILES_OF_OURS
# What brings all parts together may import every one; the command line stands on it.
LAYERS["runs"] = {*LAYERS}
# Small experiments that stand for themselves: no recipe, no run folder.
LAYERS["lectures"] = {"blocks", "config", "decode", "errors", "models", "plots", "training.optim"}
LAYERS["lectures"] |= {"runs.load", "tasks.pretraining.predictor"}  # of those that look into a trained encoder
LAYERS["lectures"] |= {
    "tasks.reconstruction.predictor",
    "data.images.sources",
}  # of those that look into an autoencoder
LAYERS["lectures"] |= {"data.embedded"}  # of those that show a digit, or learn numbers in words
LAYERS["extras"] = set()
LAYERS["extras.word2vec_config"] = {"config"}
LAYERS["extras.word2vec"] = {"config", "data", "errors", "extras.word2vec_config"}
# Sweeps of runs, each in a process of its own, and the laws that they follow.
LAYERS["extras.scaling"] = {"config", "plots", "runs.recipe", "runs.events", "tasks.language_model.recipe"}
LAYERS["extras.scaling"] |= {"training.checkpoint.ownership", *FILES_OF_OURS}
# Estimators by the conventions of scikit-learn.
LAYERS["extras.estimators"] = {*LAYERS} - {"lectures", "lectures.claims"}
# The packages of others that each part may import.
FOREIGN: dict[str, set[str]] = {
    "errors": set(),
    "files": {"yaml"},
    "config": {"pydantic"},
    "blocks": {"torch"},
    "blocks.kernels": {"torch", "triton"},
    "data": {"numpy", "torch", "pydantic", "tokenizers", "unicode_rbnf", "PIL", "sklearn"},
    "models": {"torch", "pydantic"},
    "decode": {"torch", "pydantic"},
    "tasks": {"torch", "numpy", "pydantic"},
    "tasks.predictor": {"torch", "numpy"},
    "training": {"torch", "numpy", "pydantic", "safetensors", "sacrebleu", "sklearn"},
    "hub": {"torch", "numpy", "pydantic", "safetensors"},
    "runs": {"torch", "numpy", "pydantic"},
    "runs.events": set(),
    "lectures": {"torch", "numpy", "pydantic", "sklearn", "matplotlib"},
    "lectures.claims": set(),
    "extras": set(),
    "extras.estimators": {"torch", "numpy", "pydantic", "sklearn"},
    "extras.scaling": {"numpy", "matplotlib"},
    "extras.word2vec": {"torch", "numpy"},
    "extras.word2vec_config": {"pydantic"},
    "plots": {"numpy", "PIL", "matplotlib"},
    "plots.autoencoder_plots": {"numpy"},
    "shapes": {"torch"},
}
NOWHERE = {"transformers", "pickle", "dill", "joblib", "marshal", "shelve"}
HEAVY = {"torch", "sklearn", "sacrebleu", "tokenizers", "scipy", "transformers", "matplotlib", "PIL"}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, at the top or inside a function, by line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names = [f"heedful.{alias.name}" for alias in node.names] if module == "heedful" else [module]
            yield from ((node.lineno, name) for name in names)


def part(path: Path) -> str:
    """The row of the table that a file belongs to, an inner package's own row coming first."""
    outer, *inner = path.relative_to(SOURCE).with_suffix("").parts
    own = ".".join([outer, *inner[:1]])
    return own if own in LAYERS else outer


def allowed(own: str, module: str) -> bool:
    root, _, inner = module.partition(".")
    if root in NOWHERE or not root:
        return False  # the empty root is a relative import, which hides the layer
    if own in TOP or root in sys.stdlib_module_names or module == "heedful.__version__":
        return True
    if root != "heedful":
        return root in FOREIGN[own]
    return any(inner == name or inner.startswith(name + ".") for name in {own, *LAYERS[own]})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_imports_go_down_only(path: Path) -> None:
    own = part(path)
    assert own in TOP or own in LAYERS, f"{own} has no place in the table of layers"
    assert [f"{line}: {module}" for line, module in imports(path) if not allowed(own, module)] == []


@pytest.mark.parametrize(
    ("own", "module", "verdict"),
    [
        ("blocks", "torch.nn", True),
        ("blocks", "numpy", False),
        ("blocks", "triton", False),
        ("blocks.kernels", "triton.language", True),
        ("blocks.kernels", "heedful.blocks.attention", False),
        ("blocks", "heedful.config", False),
        ("decode", "heedful.blocks.state", True),
        ("decode", "heedful.blocks.statement", False),
        ("models", "heedful.data.pairs.batches", False),
        ("data", ".sources", False),
        ("tasks", "heedful.training.metrics", True),
        ("tasks", "heedful.runs.recipe", False),
        ("training", "heedful.runs.recipe", False),
        ("runs", "heedful.tasks.base", True),
        ("runs", "heedful.cli.app", False),
        ("cli", "heedful.runs.train", True),
        ("explore", "heedful.runs.load", True),
        ("runs", "heedful.cli", False),
        ("cli", "transformers", False),
    ],
)
def test_layer_rule_on_examples(own: str, module: str, verdict: bool) -> None:
    assert allowed(own, module) is verdict


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_command_line_is_imported_by_no_other_package(path: Path) -> None:
    if part(path) in ("cli", "__main__"):
        return
    assert [f"{line}: {name}" for line, name in imports(path) if name.startswith("heedful.cli")] == []


# What uses models and predictors asks for roles and capabilities, and calls what is public.
USING = [path for path in FILES if part(path).split(".")[0] in ("cli", "explore", "lectures", "runs", "tasks")]
PUBLIC_ANYWAY = {"_asdict", "_replace", "_exit"}  # of named tuples, and of the operating system


def asked_for(tree: ast.AST) -> Iterator[str]:
    """Every place that asks an object by name what it has, or reaches for what is private to it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            named = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
            if node.func.id == "hasattr" or (node.func.id == "getattr" and named):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not own and node.attr not in PUBLIC_ANYWAY:
                yield f"{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", USING, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_no_getattr_on_models_or_predictors(path: Path) -> None:
    assert list(asked_for(ast.parse(path.read_text(encoding="utf-8")))) == []


def test_getattr_detection_on_examples() -> None:
    text = "hasattr(x, 'y')\ngetattr(x, 'y', None)\nx._y(1)\nself._y\ngetattr(x, name)\nx._asdict()"
    assert [one.split(":")[0] for one in asked_for(ast.parse(text))] == ["1", "2", "3"]


LIGHT = [
    ("--help",),
    ("show", "numbers"),
    ("check", "numbers"),
    ("schema",),
    ("recipes",),
    ("show", "--help"),
    ("runs",),
]
LIGHT += [("train", "--help"), ("translate", "--help"), ("demo", "--help"), ("claims",), ("figure",)]


@pytest.mark.parametrize("words", LIGHT, ids=" ".join)
def test_light_verbs_load_nothing_heavy(words: tuple[str, ...]) -> None:
    script = (
        "import sys\nfrom heedful.cli.app import main\n"
        f"sys.argv = ['heedful', *{words!r}]\n"
        "try:\n    main()\nexcept SystemExit as left:\n    assert not left.code, left.code\n"
        f"print('LOADED', sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("LOADED []\n")


def test_init_loads_nothing_heavy(tmp_path: Path) -> None:
    test_light_verbs_load_nothing_heavy(("init", "translate", str(tmp_path)))


FORBIDDEN = re.compile(
    r"pickle\.loads?|weights_only\s*=\s*False|(?<![\w.])eval\(|(?<![\w.])exec\(|yaml\.(unsafe_|full_)?load\(|shell\s*=\s*True"
    r"|extractall|trust_remote_code|allow_pickle\s*=\s*True|os\.system|(?<![\w.])print\((?!.*file=)"
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_dangerous_calls_are_absent(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [f"{number}: {line}" for number, line in enumerate(lines, 1) if FORBIDDEN.search(line)] == []


def test_dangerous_call_pattern_on_examples() -> None:
    for line in (
        "torch.load(f, weights_only=False)",
        "eval(x)",
        "yaml.load(f)",
        "subprocess.run(x, shell=True)",
        "print(1)",
    ):
        assert FORBIDDEN.search(line)
    for line in ("model.eval()", "load_yaml(path)", "yaml.safe_load(x)", "fingerprint(x)"):
        assert not FORBIDDEN.search(line)
