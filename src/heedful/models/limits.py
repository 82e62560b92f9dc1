"""Limits of models: their size, and the length of what they read."""

MOST_PARAMETERS = 200_000_000_000  # more is probably a typing error


def check_length(length: int, context: int) -> None:
    """Refuse a sequence that is longer than the model's context."""
    if length > context:
        raise ValueError(f"the sequence has {length} tokens, more than the model's context of {context}")


def refuse_too_large(count: int) -> None:
    """Refuse a number of parameters that must be a mistake."""
    if count > MOST_PARAMETERS:
        raise ValueError(
            f"this model would have about {count / 1e9:,.0f} billion parameters, more than "
            f"{MOST_PARAMETERS / 1e9:,.0f} billion; lower width, hidden, vocab or the number of layers"
        )
