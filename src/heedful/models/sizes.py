"""What the settings of several models share: how many parameters a part has, and checks of sizes; needs no torch."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo

from heedful.config import FieldError

Score = Literal["dot", "scaled_dot", "cosine", "general", "additive", "location"]
HeadScore = Annotated[  # without location, which is that of a memory whose keys do not move
    Literal["scaled_dot", "dot", "cosine", "general", "additive"],
    Field(description="how a query and a key are compared"),
]
AnyHeadScore = Annotated[
    Literal["scaled_dot", "depth_scaled_dot", "dot", "cosine", "general", "additive"],
    Field(description="how a query and a key are compared; depth_scaled_dot also divides by the number of the block"),
]
Normalizer = Annotated[
    Literal["softmax", "sparsemax", "entmax15"], Field(description="how scores become attention weights")
]


Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "swish", "mish", "tanh"]
WordOutput = Annotated[
    Literal["tied", "untied"],
    Field(
        exclude_if=lambda output: output == "tied",  # recipes and folders without it stay as they are
        description="the matrix of the logits of masked tokens: that of the embedding, or one of its own",
    ),
]
Output = Annotated[
    Literal["tied", "biased", "untied", "untied_biased"],
    Field(
        exclude_if=lambda output: output == "tied",  # recipes and folders without it stay as they are
        description="the matrix of the logits: that of the embedding or one of its own, each also with a bias",
    ),
]


def has_kernel(score: AnyHeadScore, normalize: Normalizer) -> bool:
    """Whether kernels compute such attention, also over sequences packed into one row."""
    return score == "scaled_dot" and normalize == "softmax"


def score_parameters(score: Score | Literal["depth_scaled_dot"], query_width: int, key_width: int, longest: int) -> int:
    """The number of parameters of a score."""
    counts: dict[str, int] = {
        "general": query_width * key_width,
        "additive": query_width * (query_width + key_width + 1),
        "location": query_width * longest,
    }
    return counts.get(score, 0)


def output_parameters(output: Output, vocab: int, width: int) -> int:
    """The number of parameters of the logits, without those of the embedding."""
    return {"tied": 0, "biased": vocab, "untied": vocab * width, "untied_biased": vocab * width + vocab}[output]


def require_words(output: WordOutput, masked_words: bool) -> None:
    """Check that there is a head for a matrix of the logits."""
    if output == "untied" and not masked_words:
        raise FieldError("there is no head for a matrix of its own; write masked_words: true or output: tied", "output")


def attention_parameters(width: int, heads: int = 1, score: AnyHeadScore = "scaled_dot") -> int:
    """The number of parameters of multi-head attention, whose heads share the score's."""
    return 4 * (width * width + width) + score_parameters(score, width // heads, width // heads, 0)


def block_parameters(width: int, hidden: int, heads: int = 1, score: AnyHeadScore = "scaled_dot") -> int:
    """The number of parameters of a Transformer's encoder block: attention, feed-forward layer and two norms."""
    return attention_parameters(width, heads, score) + 2 * width * hidden + hidden + width + 4 * width


def share_width(heads: int, info: ValidationInfo) -> int:
    """Check that the width is a multiple of the number of heads."""
    width = info.data.get("width")
    if width is not None and width % heads:
        fitting = min((n for n in range(1, width + 1) if width % n == 0), key=lambda n: (abs(n - heads), -n))
        wider = width + heads - width % heads
        raise ValueError(
            f"a width of {width} cannot be shared by {heads} heads; write heads: {fitting} or width: {wider}"
        )
    return heads


def check_positions(positions: str, info: ValidationInfo) -> str:
    """Check that the width is even where the position encoding needs pairs of dimensions."""
    width, heads = info.data.get("width"), info.data.get("heads")
    if positions in ("sinusoid", "sinusoid_halves") and width is not None and width % 2:
        raise ValueError(f"sinusoids need an even width; write width: {width + 1} or positions: learned")
    if positions == "rotary" and width is not None and heads is not None and width // heads % 2:
        raise ValueError(
            f"rotary positions need an even width for each head, and {width} / {heads} is odd; "
            f"write width: {width + heads}"
        )
    return positions


CellKind = Literal["lstm", "gru", "rnn"]


GATES: dict[CellKind, tuple[int, int]] = {"lstm": (4, 1), "gru": (3, 2), "rnn": (1, 0)}  # products, and their biases


def layer_parameters(cell: CellKind, width: int, hidden: int) -> int:
    """The number of parameters of one recurrent layer."""
    gates, biases = GATES[cell]
    return gates * hidden * (width + hidden + biases)


def gated_parameters(width: int, size: int) -> int:
    """The number of parameters of a gated convolution over a text: values and gates."""
    return 2 * width * (width * size + 1)


def has_a_middle(size: int) -> int:
    """A number of tokens that a filter covers, if one of them is its middle."""
    if size % 2 == 0:
        raise ValueError(f"a filter of {size} tokens has none in its middle; write size: {size + 1}")
    return size


Label = Annotated[str, Field(min_length=1, max_length=1000)]


def unique_labels(labels: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Names, if none stands twice."""
    seen = Counter(labels or ())
    twice = next((label for label, count in seen.items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"the label {twice!r} stands here more than once; write each once")
    return labels


# ------------------------------------------------------------------ ConvNets
Filters = Annotated[int, Field(ge=1, le=65_536)]


def conv_parameters(channels: int, filters: int, size: int, per_filter: int = 2) -> int:
    """The number of parameters of a convolution; a filter has more than its weights: a bias, or two of its norm."""
    return filters * (channels * size * size + per_filter)


def windows(side: int, size: int, stride: int = 1, padding: int = 0, partial: bool = False) -> int:
    """The number of windows along a side of an image; `partial`: the last one may stand over its edge."""
    count, rest = divmod(side + 2 * padding - size, stride)
    return count + 1 + (partial and rest > 0 and (count + 1) * stride < side + padding)


def refuse_too_small(size: tuple[int, int], grid: tuple[int, int], todo: str) -> None:
    """Refuse images of which the convolutions and pools of a net leave nothing."""
    if min(grid) < 1:
        raise FieldError(f"images of {size[0]} x {size[1]} are too small for this net; {todo}", "size")
