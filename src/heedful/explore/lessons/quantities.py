"""The quantities that a lesson can name, each computed from the packets that the views themselves show.

A number is put into a sentence. A ranking is a list of names with numbers: its choices are a question, and in a
sentence it is the name with the largest number. All indices count from 0, as in the page's address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from heedful.explore.lessons import of_attention, of_images, of_predictions
from heedful.explore.lessons.state import Page, Value

NUMBERS = (
    "layer", "head", "temperature", "k", "place", "size", "near", "layers", "step", "noise", "top", "image", "block",
    "keep", "word", "p", "column", "width",
)  # fmt: skip


class Quantity(NamedTuple):
    """A function of a page, its arguments, and what it is in one sentence."""

    compute: Callable[[Page], Value]
    takes: Sequence[str]
    about: str
    ranks: bool = False


LOOK = ("look", "layer", "head", "heads", "from", "text", "other")
TREE = ("k", "t", "text", "other")
HEADS = ("off", "place", "text", "other")
STEPS = ("layer", "step", "text")
IMAGE = ("image", "block")
QUANTITIES: Mapping[str, Quantity] = {
    "parameters": Quantity(lambda page: page.parameters, (), "the parameters of the model"),
    "tokens": Quantity(of_attention.token_count, ("look", "text", "other"), "the tokens that the attention sees"),
    "heads": Quantity(of_attention.head_count, ("look", "text"), "the heads of a layer"),
    "layers": Quantity(of_attention.layer_count, ("look", "text"), "the layers with attention"),
    "weight": Quantity(of_attention.weight, (*LOOK, "to"), "the attention weight from one token to another"),
    "weights": Quantity(of_attention.weights, LOOK, "tokens by the weight that one token gives each", True),
    "entropy": Quantity(of_attention.entropy, LOOK, "the entropy of one token's weights, in nats"),
    "uniform-entropy": Quantity(
        of_attention.uniform_entropy, LOOK, "the entropy of equal weights on all tokens, in nats"
    ),
    "sharpest": Quantity(of_attention.sharpest, LOOK, "heads by the largest weight that each gives", True),
    "entropies": Quantity(of_attention.entropies, LOOK, "heads by the entropy of the weights that each gives", True),
    "pattern": Quantity(of_attention.pattern, ("look", "layer", "head"), "the pattern of a head"),
    "patterns": Quantity(of_attention.patterns, ("look",), "patterns by how many heads have each", True),
    "pattern-heads": Quantity(of_attention.pattern_heads, ("look", "of"), "the heads with the pattern of=..."),
    "heads-on": Quantity(of_attention.heads_on, (*LOOK, "to"), "heads by the weight that each gives one token", True),
    "heads-choosing": Quantity(
        of_attention.heads_choosing, (*LOOK, "to"), "the heads of a layer that give one token their largest weight"
    ),
    "dot": Quantity(of_attention.dot, (*LOOK, "to"), "the dot product of a query and a key"),
    "score": Quantity(of_attention.score, (*LOOK, "to"), "the score of a query and a key: their product divided by √d"),
    "spread": Quantity(
        of_attention.spread, (*LOOK, "of"), "the standard deviation of a head's products, or of=scores, over all pairs"
    ),
    "head-width": Quantity(of_attention.head_width, LOOK, "d, the width of a query"),
    "largest-weight": Quantity(of_attention.largest_weight, LOOK, "the largest weight of one query"),
    "undivided": Quantity(of_attention.undivided, LOOK, "the largest weight of one query without the division by √d"),
    "masked": Quantity(of_attention.masked_count, LOOK, "the keys that the mask takes from one query"),
    "prediction": Quantity(of_predictions.prediction, HEADS, "what the model predicts without the heads of off=2.0.1"),
    "loss": Quantity(of_predictions.loss, HEADS, "its loss without these heads"),
    "token-losses": Quantity(
        of_predictions.token_losses, ("off", "text", "other"), "tokens of the target by their loss", True
    ),
    "missed": Quantity(
        of_predictions.missed, ("look", "layer", *HEADS[1:]), "heads by how much the loss rises without each", True
    ),
    "next": Quantity(
        of_predictions.next_token, ("temperature", "top", "then", "text"), "the most probable next tokens", True
    ),
    "next-probability": Quantity(
        of_predictions.next_probability,
        ("temperature", "then", "text"),
        "the probability of the most probable next token",
    ),
    "tail": Quantity(
        of_predictions.tail,
        ("keep", "temperature", "then", "text"),
        "the probability of all tokens but the first keep=10",
    ),
    "nucleus": Quantity(
        of_predictions.nucleus, ("p", "temperature", "then", "text"), "the tokens that top-p keeps, by default p=0.9"
    ),
    "filled": Quantity(of_predictions.filled, ("hidden", "text"), "the most probable tokens for a masked one", True),
    "original": Quantity(of_predictions.original, ("hidden", "text"), "the probability of the token that is masked"),
    "hypothesis": Quantity(of_predictions.hypothesis, TREE, "the best text of a beam search"),
    "hypotheses": Quantity(of_predictions.hypotheses, TREE, "the texts of a beam search by score", True),
    "log-probability": Quantity(of_predictions.log_probability, TREE, "log p of the best text of a beam search"),
    "candidates": Quantity(of_predictions.candidates, TREE, "the candidates that a beam search compares"),
    "gradient-ratio": Quantity(
        of_predictions.gradient_ratio,
        (*STEPS, "of"),
        "the gradient's norm at the first step, divided by that at the step that predicts; of=cell for the cell state",
    ),
    "kept": Quantity(of_predictions.kept, STEPS, "the part of the first cell state that the forget gates leave"),
    "steps": Quantity(of_predictions.step_count, ("text",), "the steps of a recurrent layer"),
    "error": Quantity(of_images.error, ("of", "noise"), "the mean squared error of the model, or of=PCA, or of=noisy"),
    "worse": Quantity(of_images.worse, ("noise",), "PCA and the model by mean squared error", True),
    "code-width": Quantity(of_images.code_width, (), "the dimensions of an autoencoder's code"),
    "pixels": Quantity(of_images.pixel_count, (), "the pixels of an autoencoder's images"),
    "classes": Quantity(of_images.classes, ("image",), "the classes of an image by probability", True),
    "patches": Quantity(of_images.patches, ("image",), "the patches of an image"),
    "patch-heads": Quantity(
        of_images.patch_heads, IMAGE, "heads by the weight that each gives its favourite patch", True
    ),
    "patch-peak": Quantity(
        of_images.patch_peak, (*IMAGE, "of"), "the weight of the favourite patch: of=mean, of=heads or of=rollout"
    ),
    "patch-place": Quantity(of_images.patch_place, (*IMAGE, "of"), "where the favourite patch is"),
    "caption": Quantity(of_images.caption, ("image",), "the best caption of an image"),
    "caption-peaks": Quantity(of_images.caption_peaks, ("image",), "words of a caption by their largest weight", True),
    "caption-entropies": Quantity(
        of_images.caption_entropies, ("image",), "words of a caption by the entropy of their weights", True
    ),
    "caption-word": Quantity(of_images.caption_word, ("image", "word"), "the word at a place of a caption"),
    "caption-peak": Quantity(of_images.caption_peak, ("image", "word"), "the largest weight of the word at a place"),
    "caption-place": Quantity(of_images.caption_place, ("image", "word"), "the region that has it"),
    "regions": Quantity(of_images.regions, ("image",), "the regions that a captioner attends to"),
    "position-value": Quantity(
        of_attention.position_value, ("of", "place", "column", "width"), "one number of the vector of a position"
    ),
    "position-product": Quantity(
        of_attention.position_product, ("of", "from", "to", "width"), "the dot product of the vectors of two positions"
    ),
    "allowed": Quantity(of_attention.allowed, ("kind", "size", "near"), "the pairs of tokens that a mask allows"),
    "reach": Quantity(
        of_attention.reach, ("kind", "size", "near", "layers"), "the tokens that the last one depends on after layers"
    ),
}
