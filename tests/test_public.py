"""The public names, their types, and basic use."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import heedful
from patience import LONG

CHANGELOG = (Path(__file__).parents[1] / "CHANGELOG.md").read_text(encoding="utf-8")
NAMES = [
    "PCA", "Action", "Agent", "Alignment", "Answer", "AnyPredictor", "Autoencoder", "BidirectionalLanguageModel",
    "Caption", "Choice", "Classification", "ConvAutoencoder", "Dataset", "DecodedSentence", "DenoisingAutoencoder",
    "Description", "DialogueModel", "Embedding", "Entity", "Episode", "Evaluation", "GeneratedText",
    "GlimpseClassification", "GlimpseClassifier", "ImageAutoencoder", "ImageCaptioner", "ImageClassification",
    "ImageClassifier", "ImageDescriber", "JointPrediction", "MaskPredictions", "MonoText", "MultiHead",
    "MultiLabelClassifier", "MultiRegressor",
    "MultipleChoiceAnswerer", "PairedText", "ParallelText", "Predictor", "QuestionAnswerer", "Reconstruction",
    "Regression", "Reply", "Report", "Run", "SentenceAutoencoder", "StoryAnswer", "StoryAnswerer", "StyledText",
    "TablePredictor", "TaggedText", "TextClassifier", "TextEncoder", "TextGenerator", "TextLabels",
    "TextNumbers", "TextRegressor",
    "TextStyleTransfer", "TokenEmbeddings", "TokenPrediction", "TokenTagger", "Translation", "Translator",
    "TreeClassification", "TreeClassifier", "UserError", "WordVectors", "__version__", "attend", "build", "doctor",
    "entmax15", "figure", "fit", "load", "load_glove", "load_recipe", "load_vectors", "load_word2vec", "pipeline",
    "show",
    "softmax", "sparsemax", "summary", "train", "watch",
]  # fmt: skip
RENAMED = {"Reader": "TextEncoder", "Writer": "TextGenerator", "Labeller": "TextClassifier", "Judge": "TreeClassifier"}
TINY = [
    "data.train=200", "data.valid=10", "data.test=10", "tokenizer.vocab=90", "model.width=16", "model.heads=2",
    "model.hidden=32", "train.budget.steps=3",
]  # fmt: skip


def test_public_names() -> None:
    assert heedful.__all__ == NAMES
    assert all(getattr(heedful, name) is not None for name in NAMES)
    with pytest.raises(AttributeError, match=r"has no attribute 'lode'$"):
        heedful.lode  # noqa: B018


@pytest.mark.parametrize("old", RENAMED)
def test_old_name_error_gives_the_new_name(old: str) -> None:
    with pytest.raises(AttributeError, match=f"it is now heedful.{RENAMED[old]}"):
        getattr(heedful, old)


def test_dir_lists_public_names_without_importing_torch() -> None:
    script = "import sys, heedful; print(sorted(heedful.__all__) == dir(heedful), 'torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=LONG)
    assert found.stdout == "True False\n"


def test_help_lists_public_names_and_py_typed_exists() -> None:
    text = pydoc.render_doc(heedful, renderer=pydoc.plaintext)
    assert all(name in text for name in NAMES if name != "__version__") and "translator.predict" in text
    assert Path(heedful.__file__).with_name("py.typed").is_file()


RENAMES = re.findall(
    r"^\| `[^`]+` \| `([\w.]+)` \|$",
    CHANGELOG.partition("### Renamed in Python")[2].partition("\n### ")[0],
    re.MULTILINE,
)


def test_new_names_of_the_changelog_exist() -> None:
    assert len(RENAMES) > 150
    for name in RENAMES:
        assert pkgutil.resolve_name(f"heedful.{name}") is not None, name


# ------------------------------------------------------------------ types
def is_any(annotation: ast.expr | None) -> bool:
    """Whether an annotation is missing or contains `Any`."""
    return annotation is None or "Any" in {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}


def untyped(node: ast.stmt) -> list[str]:
    """The public parameters, results and fields of a function or class without a type, or with `Any`."""
    if isinstance(node, ast.ClassDef):
        return [f"{node.name}.{one}" for part in node.body for one in untyped(part)]
    if isinstance(node, ast.AnnAssign):
        name = ast.unparse(node.target)
        return [name] if is_any(node.annotation) and not name.startswith("_") else []
    if not isinstance(node, ast.FunctionDef) or (node.name.startswith("_") and node.name != "__init__"):
        return []
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    types = {one.arg: one.annotation for one in every if one is not None and one.arg not in ("self", "cls")}
    return [f"{node.name}: {name}" for name, found in [*types.items(), ("return", node.returns)] if is_any(found)]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("__version__", "AnyPredictor")])
def test_no_public_signature_has_any(name: str) -> None:
    home = importlib.import_module(getattr(heedful, name).__module__)
    tree = ast.parse(inspect.getsource(home))
    nodes = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name]
    assert nodes and [one for node in nodes for one in untyped(node)] == []


def test_any_detection_on_examples() -> None:
    source = "class A:\n    x: Any\n    def f(self, a: list[Any], b) -> None: ...\n    def _g(self, a: Any): ...\n"
    assert untyped(ast.parse(source).body[0]) == ["A.x", "A.f: a", "A.f: b"]
    assert untyped(ast.parse("def f(*a: int, **b: Any) -> int: ...").body[0]) == ["f: b"]


def test_train_load_translate_watch(tmp_path: Path) -> None:
    events = list(heedful.train(heedful.load_recipe("numbers", TINY), tmp_path / "run"))
    assert [type(event).__name__ for event in events].count("Step") == 3
    translator = heedful.load(tmp_path / "run", heedful.Translator)
    texts = ["three", "ninety-nine"]
    assert translator.translate(texts) == [found[0].text for found in translator.search(texts)]
    with heedful.watch(translator.model, "*.weights") as seen:
        translator.translate(["three"])
    assert "decoder.0.cross.weights" in seen
    with pytest.raises(heedful.UserError, match="no such folder"):
        heedful.load(tmp_path / "none")
