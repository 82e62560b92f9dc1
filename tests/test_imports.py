"""Import layers, light start-up, and forbidden calls."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import heedful
from patience import LONG

SOURCE = Path(heedful.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# Each package with the packages that it may import besides itself; imports go down only.
# A dotted name allows one module. The command line and the explorer may import everything.
TOP = {"__init__", "__main__", "cli", "explore", "serve"}
ERRORS_AND_FILES = {"errors", "files"}
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "files": {"errors"},
    "config": {"errors", "files"},
    "http": {"errors", "files"},
    "blocks": set(),
    "blocks.kernels": set(),
    "data": {"config", *ERRORS_AND_FILES},
    "models": {"blocks", "config", "errors"},
    "decode": {"blocks.state", "blocks.kernels", "config"},
    "training": {"decode", "data", "blocks.losses", "blocks.regularizers", "blocks.state", "config", *ERRORS_AND_FILES},
    "hub": {
        "models",
        "decode.settings",
        "blocks.feedforward",
        "blocks.layouts",
        "blocks.linear",
        "data",
        "training",
        "config",
        *ERRORS_AND_FILES,
    },
    "plots": {*ERRORS_AND_FILES},
    "shapes": set(),
    "runs.events": {*ERRORS_AND_FILES},
    "lectures.claims": set(),
}
# A task combines data, models by role, decoding, training and published model folders.
LAYERS["tasks"] = {"blocks", "config", "data", "decode", "hub", "models", "plots", "training", *ERRORS_AND_FILES}
# `TextGenerator.load` is the public `load`.
LAYERS["tasks.predictor"] = {*LAYERS["tasks"], "tasks", "runs.load"}
# Reconstructions of an autoencoder beside those of PCA.
LAYERS["plots.autoencoder_plots"] = {
    "data.images.sources",
    "extras.estimators.pca",
    "plots",
    "tasks.reconstruction.predictor",
}
LAYERS["plots.autoencoder_plots"] |= ERRORS_AND_FILES
# The confusion matrix and the mistakes of an image classifier.
LAYERS["plots.classifier_plots"] = {
    "data.images.labelled_batches",
    "data.images.sources",
    "plots",
    "tasks.image_classification.predictor",
    *ERRORS_AND_FILES,
}
# The figures of any classifier's report.
LAYERS["plots.class_plots"] = {"plots", "training.class_report", *ERRORS_AND_FILES}
# Runs combine all packages; the command line uses them.
LAYERS["runs"] = {*LAYERS}
# The contracts of a model call any of ours by its role, and trees need their own batches.
LAYERS["contracts"] = {"blocks", "config", "data.trees", "hub", "models", "runs.load", "tasks.predictor"}
LAYERS["contracts"] |= ERRORS_AND_FILES
LAYERS["contracts.huggingface"] = {"contracts", *ERRORS_AND_FILES}
# A model's graphs depend on its role, and one folder has all that a predictor needs.
LAYERS["export"] = {*LAYERS["contracts"], "__version__", "decode", "tasks", "tasks.pretraining.predictor"}
# Parts and swaps are made from the classes of recipes, without torch.
LAYERS["catalogue"] = {"config", "models", "runs.recipe", "tasks", "tasks.recipe_parts", "__all__", *ERRORS_AND_FILES}
# Self-contained experiments: no recipe, no run folder.
LAYERS["lectures"] = {"blocks", "config", "decode", "errors", "models", "plots", "training.optim"}
LAYERS["lectures"] |= {"runs.load", "tasks.pretraining.predictor"}  # figures of a trained encoder
LAYERS["lectures"] |= {
    "tasks.reconstruction.predictor",
    "data.images.sources",
}  # figures of an autoencoder
LAYERS["lectures"] |= {"data.embedded"}  # figures with digits or number words
LAYERS["lectures"] |= {"training.metrics"}  # the quiz asks for a BLEU score
LAYERS["extras"] = set()
LAYERS["extras.word2vec_config"] = {"config"}
LAYERS["extras.word2vec"] = {"config", "data", "errors", "extras.word2vec_config"}
# Sweeps of runs, one process each, and their scaling laws.
LAYERS["extras.parallel"] = {"config", "runs.events", "training.checkpoint.ownership", *ERRORS_AND_FILES}
LAYERS["extras.scaling"] = {"config", "plots", "runs.recipe", "runs.events", "tasks.language_model.recipe"}
LAYERS["extras.scaling"] |= {"extras.parallel", *ERRORS_AND_FILES}
# Studies of settings, one process a run.
LAYERS["extras.tuning"] = {"config", "extras.parallel", "plots", "runs", "training.checkpoint.ownership"}
LAYERS["extras.tuning"] |= ERRORS_AND_FILES
# What image models have learned; a probe is that of the lectures.
LAYERS["extras.vision"] = {"blocks", "errors", "models", "lectures.linear_probes"}
# What in a text decides its class, by the same gradients.
LAYERS["extras.saliency"] = {"blocks", "data", "errors", "models", "tasks", "extras.vision"}
# Figures that are computed by models, data, searches and studies.
LAYERS["plots.gallery"] = {*LAYERS, "explore.inspect", "explore.views.beam"}
# Estimators with the interface of scikit-learn.
LAYERS["extras.estimators"] = {*LAYERS} - {"lectures", "lectures.claims"}
LAYERS["sklearn"] = {"extras.estimators"}
# The third-party packages that each package may import.
THIRD_PARTY: dict[str, set[str]] = {
    "errors": set(),
    "files": {"yaml"},
    "config": {"pydantic"},
    "http": {"h11", "numpy", "starlette", "uvicorn"},
    "blocks": {"torch"},
    "blocks.kernels": {"torch", "triton"},
    "data": {"numpy", "torch", "pydantic", "tokenizers", "unicode_rbnf", "PIL", "sklearn", "pyarrow"},
    "models": {"torch", "pydantic", "ctranslate2"},
    "decode": {"torch", "pydantic"},
    "tasks": {"torch", "numpy", "pydantic"},
    "tasks.predictor": {"torch", "numpy"},
    "training": {"torch", "numpy", "pydantic", "safetensors", "sacrebleu", "sklearn"},
    "hub": {"torch", "numpy", "pydantic", "safetensors", "huggingface_hub"},
    "runs": {"torch", "numpy", "pydantic"},
    "runs.events": set(),
    "catalogue": {"pydantic"},
    "contracts": {"torch", "numpy", "pydantic", "safetensors"},
    "contracts.huggingface": {"torch", "transformers"},  # for folders that are checked in it
    "export": {"torch", "onnx", "onnxruntime", "ctranslate2"},
    "lectures": {"torch", "numpy", "pydantic", "sklearn", "matplotlib"},
    "lectures.claims": set(),
    "extras": set(),
    "extras.estimators": {"torch", "numpy", "pydantic", "sklearn"},
    "extras.parallel": set(),
    "extras.saliency": {"torch"},
    "extras.scaling": {"numpy", "matplotlib"},
    "extras.tuning": {"numpy", "scipy", "optuna", "matplotlib"},
    "extras.vision": {"torch"},
    "sklearn": set(),
    "extras.word2vec": {"torch", "numpy"},
    "extras.word2vec_config": {"pydantic"},
    "plots": {"numpy", "PIL", "matplotlib"},
    "plots.autoencoder_plots": {"numpy"},
    "plots.class_plots": {"numpy"},
    "plots.classifier_plots": {"numpy"},
    "plots.gallery": {"torch", "numpy", "pydantic", "matplotlib"},
    "shapes": {"torch"},
}
FORBIDDEN_MODULES = {"transformers", "pickle", "dill", "joblib", "marshal", "shelve"}
HEAVY = {"torch", "sklearn", "sacrebleu", "tokenizers", "scipy", "transformers", "matplotlib", "PIL"}


@cache
def imports(path: Path) -> list[tuple[int, str]]:
    """Every module that a file imports, at the top or inside a function, by line."""
    return list(imported(ast.parse(path.read_text(encoding="utf-8"))))


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names = [f"heedful.{alias.name}" for alias in node.names] if module == "heedful" else [module]
            yield from ((node.lineno, name) for name in names)


def part(path: Path) -> str:
    """The row of the table that a file belongs to; the row of an inner package comes first."""
    outer, *inner = path.relative_to(SOURCE).with_suffix("").parts
    own = ".".join([outer, *inner[:1]])
    return own if own in LAYERS else outer


def allowed(own: str, module: str) -> bool:
    root, _, inner = module.partition(".")
    if root in FORBIDDEN_MODULES - THIRD_PARTY.get(own, set()) or not root:
        return False  # the empty root is a relative import, which hides the layer
    if own in TOP or root in sys.stdlib_module_names or module == "heedful.__version__":
        return True
    if root != "heedful":
        return root in THIRD_PARTY[own]
    return any(inner == name or inner.startswith(name + ".") for name in {own, *LAYERS[own]})


def place(path: Path, line: int, text: str) -> str:
    return f"{path.relative_to(SOURCE).as_posix()}:{line}: {text}"


def test_imports_go_down_only() -> None:
    assert {part(path) for path in FILES} - TOP - LAYERS.keys() == set(), "not in the table of layers"
    found = [(path, *one) for path in FILES for one in imports(path) if not allowed(part(path), one[1])]
    assert [place(*one) for one in found] == []


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
        ("contracts", "transformers", False),
        ("contracts.huggingface", "transformers", True),
    ],
)
def test_layer_rule_on_examples(own: str, module: str, verdict: bool) -> None:
    assert allowed(own, module) is verdict


def test_command_line_is_imported_by_no_other_package() -> None:
    others = [path for path in FILES if part(path) not in ("cli", "__main__")]
    found = [(path, *one) for path in others for one in imports(path) if one[1].startswith("heedful.cli")]
    assert [place(*one) for one in found] == []


# Users of models and predictors rely on roles and capabilities, and call public methods only.
USING = [path for path in FILES if part(path).split(".")[0] in ("cli", "explore", "lectures", "runs", "tasks")]
PUBLIC_UNDERSCORE = {"_asdict", "_replace", "_exit"}  # of named tuples and of `os`


def name_lookups(tree: ast.AST) -> Iterator[str]:
    """Every use of `hasattr`, of `getattr` with a constant name, or of another object's private attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            named = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
            if node.func.id == "hasattr" or (node.func.id == "getattr" and named):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not own and node.attr not in PUBLIC_UNDERSCORE:
                yield f"{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", USING, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_no_getattr_on_models_or_predictors(path: Path) -> None:
    assert list(name_lookups(ast.parse(path.read_text(encoding="utf-8")))) == []


def test_getattr_detection_on_examples() -> None:
    text = "hasattr(x, 'y')\ngetattr(x, 'y', None)\nx._y(1)\nself._y\ngetattr(x, name)\nx._asdict()"
    assert [one.split(":")[0] for one in name_lookups(ast.parse(text))] == ["1", "2", "3"]


LIGHT = [
    ("--help",),
    ("show", "numbers"),
    ("check", "numbers"),
    ("schema",),
    ("recipes",),
    ("show", "--help"),
    ("runs",),
]
LIGHT += [("train", "--help"), ("claims",), ("figure",), ("catalogue", "--swap", "numbers"), ("lectures",)]
ALIKE = [("translate", "--help"), ("demo", "--help"), ("catalogue",), ("catalogue", "--stack")]
ALIKE += [("lectures", "bert", "--json")]


@pytest.mark.parametrize(
    "words", [*LIGHT, *(pytest.param(words, marks=pytest.mark.slow) for words in ALIKE)], ids=" ".join
)
def test_light_verbs_load_nothing_heavy(words: tuple[str, ...]) -> None:
    script = (
        "import sys\nfrom heedful.cli.app import main\n"
        f"sys.argv = ['heedful', *{words!r}]\n"
        "try:\n    main()\nexcept SystemExit as left:\n    assert not left.code, left.code\n"
        f"print('LOADED', sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("LOADED []\n")


def test_init_loads_nothing_heavy(tmp_path: Path) -> None:
    test_light_verbs_load_nothing_heavy(("init", "translate", str(tmp_path)))


FORBIDDEN = re.compile(
    r"pickle\.loads?|weights_only\s*=\s*False|(?<![\w.])eval\(|(?<![\w.])exec\(|yaml\.(unsafe_|full_)?load\(|shell\s*=\s*True"
    r"|extractall|trust_remote_code(?!.: False)|allow_pickle\s*=\s*True|os\.system|(?<![\w.])print\((?!.*file=)"
)


def test_dangerous_calls_are_absent() -> None:
    every = ((path, enumerate(path.read_text(encoding="utf-8").splitlines(), 1)) for path in FILES)
    assert [place(path, *line) for path, lines in every for line in lines if FORBIDDEN.search(line[1])] == []


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
