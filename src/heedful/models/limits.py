"""Limits of models: their size, and the size of what they read."""

from collections.abc import Sequence

MOST_PARAMETERS = 200_000_000_000  # more is probably a typing error


def check_length(length: int, context: int) -> None:
    """Refuse a sequence that is longer than the model's context."""
    if length > context:
        raise ValueError(f"the sequence has {length} tokens, more than the model's context of {context}")


def check_image(shape: Sequence[int], expected: tuple[int, int, int], any_size: bool = False) -> None:
    """Refuse images (B, C, Y, X) of other channels, rows and columns than the model is built for.

    With `any_size`, only the channels count.
    """
    if tuple(shape[1:]) != expected and not (any_size and len(shape) == 4 and shape[1] == expected[0]):
        found, wanted = (" x ".join(map(str, sizes)) for sizes in (shape[1:], expected))
        raise ValueError(f"the images are {found} (channels, rows, columns), but the model reads {wanted}")


def refuse_too_large(count: int) -> None:
    """Refuse a number of parameters that must be a mistake."""
    if count > MOST_PARAMETERS:
        raise ValueError(
            f"this model would have about {count / 1e9:,.0f} billion parameters, more than "
            f"{MOST_PARAMETERS / 1e9:,.0f} billion; lower width, hidden, vocab or the number of layers"
        )
