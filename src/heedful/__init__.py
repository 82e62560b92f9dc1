"""Models of the attention era, built from one small set of blocks.

    >>> import heedful
    >>> events = list(heedful.train(heedful.load_recipe("numbers"), "runs/numbers"))
    >>> translator = heedful.load("runs/numbers", heedful.Translator)
    >>> translator.predict(["twenty-one"])

`load` returns a predictor, whose class depends on the task: `Translator`, `TextGenerator`, `TextEncoder` and others,
which have `predict`, `evaluate`, `save` and `to`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = [
    "PCA",
    "Action",
    "Agent",
    "Alignment",
    "Answer",
    "AnyPredictor",
    "Autoencoder",
    "BidirectionalLanguageModel",
    "Caption",
    "Choice",
    "Classification",
    "ConvAutoencoder",
    "Dataset",
    "DecodedSentence",
    "DenoisingAutoencoder",
    "Description",
    "DialogueModel",
    "Embedding",
    "Entity",
    "Episode",
    "Evaluation",
    "GeneratedText",
    "GlimpseClassification",
    "GlimpseClassifier",
    "ImageAutoencoder",
    "ImageCaptioner",
    "ImageClassification",
    "ImageClassifier",
    "ImageDescriber",
    "JointPrediction",
    "MaskPredictions",
    "MonoText",
    "MultiHead",
    "MultiLabelClassifier",
    "MultiRegressor",
    "MultipleChoiceAnswerer",
    "PairedText",
    "ParallelText",
    "Predictor",
    "QuestionAnswerer",
    "Reconstruction",
    "Regression",
    "Reply",
    "Report",
    "Run",
    "SentenceAutoencoder",
    "StoryAnswer",
    "StoryAnswerer",
    "StyledText",
    "TablePredictor",
    "TaggedText",
    "TextClassifier",
    "TextEncoder",
    "TextGenerator",
    "TextLabels",
    "TextNumbers",
    "TextRegressor",
    "TextStyleTransfer",
    "TokenEmbeddings",
    "TokenPrediction",
    "TokenTagger",
    "Translation",
    "Translator",
    "TreeClassification",
    "TreeClassifier",
    "UserError",
    "WordVectors",
    "__version__",
    "attend",
    "build",
    "doctor",
    "entmax15",
    "figure",
    "fit",
    "load",
    "load_glove",
    "load_recipe",
    "load_vectors",
    "load_word2vec",
    "pipeline",
    "show",
    "softmax",
    "sparsemax",
    "summary",
    "train",
    "watch",
]

if TYPE_CHECKING:
    from heedful.blocks.attention import MultiHead, attend
    from heedful.blocks.normalizers import entmax15, softmax, sparsemax
    from heedful.blocks.taps import watch
    from heedful.contracts.doctor import doctor
    from heedful.contracts.report import Report
    from heedful.data.keyed import MonoText, PairedText, ParallelText
    from heedful.data.own import Dataset
    from heedful.data.word_vectors import WordVectors, load_glove, load_vectors, load_word2vec
    from heedful.errors import UserError
    from heedful.explore.export import show
    from heedful.explore.run import Run
    from heedful.extras.estimators.autoencoder import Autoencoder, ConvAutoencoder, DenoisingAutoencoder
    from heedful.extras.estimators.pca import PCA
    from heedful.models import build
    from heedful.models.tracing import summary
    from heedful.plots.gallery import figure
    from heedful.runs.fit import fit
    from heedful.runs.load import AnyPredictor, load
    from heedful.runs.pipelines import pipeline
    from heedful.runs.recipe import load_recipe
    from heedful.runs.train import train
    from heedful.tasks.answering.predictor import Answer, QuestionAnswerer
    from heedful.tasks.captioning.predictor import Caption, ImageCaptioner
    from heedful.tasks.classification.numbers import MultiRegressor, TextNumbers
    from heedful.tasks.classification.predictor import Classification, Regression, TextClassifier, TextRegressor
    from heedful.tasks.control.predictor import Action, Agent, Episode
    from heedful.tasks.dialogue.predictor import DialogueModel, Reply
    from heedful.tasks.image_classification.glimpses import GlimpseClassification, GlimpseClassifier
    from heedful.tasks.image_classification.predictor import ImageClassification, ImageClassifier
    from heedful.tasks.language_model.bidirectional import BidirectionalLanguageModel
    from heedful.tasks.language_model.predictor import GeneratedText, TextGenerator
    from heedful.tasks.multi_label.predictor import MultiLabelClassifier, TextLabels
    from heedful.tasks.multiple_choice.predictor import Choice, MultipleChoiceAnswerer
    from heedful.tasks.paragraphs.predictor import Description, ImageDescriber
    from heedful.tasks.predictor import Evaluation, Predictor
    from heedful.tasks.pretraining.predictor import (
        Embedding,
        JointPrediction,
        MaskPredictions,
        TextEncoder,
        TokenEmbeddings,
        TokenPrediction,
    )
    from heedful.tasks.reconstruction.predictor import ImageAutoencoder, Reconstruction
    from heedful.tasks.story_answering.predictor import StoryAnswer, StoryAnswerer
    from heedful.tasks.style_transfer.predictor import StyledText, TextStyleTransfer
    from heedful.tasks.tabular.predictor import TablePredictor
    from heedful.tasks.tagging.predictor import Entity, TaggedText, TokenTagger
    from heedful.tasks.text_autoencoding.predictor import DecodedSentence, SentenceAutoencoder
    from heedful.tasks.translation.predictor import Alignment, Translation, Translator
    from heedful.tasks.tree_classification.predictor import TreeClassification, TreeClassifier

# Where each public name is defined; it is imported when it is first used.
_MODULES = {
    "blocks.attention": ("MultiHead", "attend"),
    "blocks.normalizers": ("entmax15", "softmax", "sparsemax"),
    "blocks.taps": ("watch",),
    "contracts.doctor": ("doctor",),
    "contracts.report": ("Report",),
    "data.keyed": ("MonoText", "PairedText", "ParallelText"),
    "data.own": ("Dataset",),
    "data.word_vectors": ("WordVectors", "load_glove", "load_vectors", "load_word2vec"),
    "errors": ("UserError",),
    "explore.export": ("show",),
    "explore.run": ("Run",),
    "extras.estimators.autoencoder": ("Autoencoder", "ConvAutoencoder", "DenoisingAutoencoder"),
    "extras.estimators.pca": ("PCA",),
    "models": ("build",),
    "models.tracing": ("summary",),
    "plots.gallery": ("figure",),
    "runs.fit": ("fit",),
    "runs.load": ("AnyPredictor", "load"),
    "runs.pipelines": ("pipeline",),
    "runs.recipe": ("load_recipe",),
    "runs.train": ("train",),
    "tasks.answering.predictor": ("Answer", "QuestionAnswerer"),
    "tasks.captioning.predictor": ("Caption", "ImageCaptioner"),
    "tasks.classification.numbers": ("MultiRegressor", "TextNumbers"),
    "tasks.classification.predictor": ("Classification", "Regression", "TextClassifier", "TextRegressor"),
    "tasks.control.predictor": ("Action", "Agent", "Episode"),
    "tasks.dialogue.predictor": ("DialogueModel", "Reply"),
    "tasks.image_classification.glimpses": ("GlimpseClassification", "GlimpseClassifier"),
    "tasks.image_classification.predictor": ("ImageClassification", "ImageClassifier"),
    "tasks.language_model.bidirectional": ("BidirectionalLanguageModel",),
    "tasks.language_model.predictor": ("GeneratedText", "TextGenerator"),
    "tasks.multi_label.predictor": ("MultiLabelClassifier", "TextLabels"),
    "tasks.multiple_choice.predictor": ("Choice", "MultipleChoiceAnswerer"),
    "tasks.paragraphs.predictor": ("Description", "ImageDescriber"),
    "tasks.predictor": ("Evaluation", "Predictor"),
    "tasks.pretraining.predictor": (
        "Embedding", "JointPrediction", "MaskPredictions", "TextEncoder", "TokenEmbeddings", "TokenPrediction",
    ),
    "tasks.reconstruction.predictor": ("ImageAutoencoder", "Reconstruction"),
    "tasks.tabular.predictor": ("TablePredictor",),
    "tasks.style_transfer.predictor": ("StyledText", "TextStyleTransfer"),
    "tasks.story_answering.predictor": ("StoryAnswer", "StoryAnswerer"),
    "tasks.tagging.predictor": ("Entity", "TaggedText", "TokenTagger"),
    "tasks.text_autoencoding.predictor": ("DecodedSentence", "SentenceAutoencoder"),
    "tasks.translation.predictor": ("Alignment", "Translation", "Translator"),
    "tasks.tree_classification.predictor": ("TreeClassification", "TreeClassifier"),
}  # fmt: skip
_HOMES = {name: f"heedful.{module}" for module, names in _MODULES.items() for name in names}
_RENAMED = {
    "Chooser": "MultipleChoiceAnswerer",
    "Judge": "TreeClassifier",
    "Labeller": "TextClassifier",
    "Marker": "TokenTagger",
    "Painter": "ImageAutoencoder",
    "Rater": "TextRegressor",
    "Reader": "TextEncoder",
    "Responder": "QuestionAnswerer",
    "TextReader": "BidirectionalLanguageModel",
    "Writer": "TextGenerator",
}


def __dir__() -> list[str]:
    """The public names, which `globals()` has only once they are used."""
    return sorted(__all__)


def __getattr__(name: str) -> object:
    """Public names are imported when they are first used, so that `import heedful` is fast."""
    if name in _HOMES:
        found: object = getattr(import_module(_HOMES[name]), name)
        return found
    advice = f"; it is now heedful.{_RENAMED[name]}" if name in _RENAMED else ""
    raise AttributeError(f"module 'heedful' has no attribute {name!r}{advice}")
