"""How large a model may be."""

MOST_PARAMETERS = 200_000_000_000  # beyond it, a typing error is likelier than a plan


def refuse_too_large(count: int) -> None:
    """Refuse a size that must be a mistake."""
    if count > MOST_PARAMETERS:
        raise ValueError(
            f"this model would have about {count / 1e9:,.0f} billion parameters, more than "
            f"{MOST_PARAMETERS / 1e9:,.0f} billion; lower width, hidden, vocab or the number of layers"
        )
