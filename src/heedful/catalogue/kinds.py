"""The kinds of parts, and which kind the roles of models and the keys of recipes belong to; readable without torch.

B batch, T tokens, D width, V vocabulary, N texts or images, C classes.
"""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """What the parts of a kind are called together, what they are, take and give; a role or a part may say more."""

    title: str
    about: str
    takes: str
    gives: str


KINDS = {
    "application": Kind("Applications", "what a model is trained for", "data", "a trained model, ready for use"),
    "data": Kind("Data", "where examples come from", "files, or a generator", "the examples of a split"),
    "tokenizer": Kind("Tokenizers", "how a text becomes tokens", "text", "tokens (T,)"),
    "embedder": Kind("Embedders", "how tokens or patches become vectors", "tokens (B, T)", "vectors (B, T, D)"),
    "encoder": Kind("Encoders", "what reads the input", "tokens (B, T)", "vectors (B, T, D)"),
    "decoder": Kind("Decoders", "what writes token by token", "tokens (B, T), state", "logits (B, T, V), state"),
    "encoder_decoder": Kind("Encoder-decoders", "what reads a source and writes a target", "source", "target"),
    "connector": Kind("Connectors", "what leads from encoder to decoder", "encoder state", "decoder state"),
    "memory": Kind("Memories", "what is stored and looked up", "query, memory", "vectors"),
    "classifier": Kind("Classifiers", "what predicts classes or numbers", "tokens (B, T)", "logits (N, C)"),
    "policy": Kind("Policies", "what chooses actions", "observations", "probabilities of actions"),
    "q_network": Kind("Q-networks", "what values actions", "observations", "values of actions"),
    "attention": Kind("Attention", "how queries find values", "queries, keys, values", "vectors"),
    "positions": Kind("Position encodings", "how positions enter", "positions (B, T)", "vectors or biases"),
    "layer": Kind("Layers", "what networks are made of", "vectors", "vectors"),
    "activation": Kind("Activations", "functions of one number", "x", "f(x)"),
    "loss": Kind("Losses", "what training minimizes", "outputs, targets", "a sum and a count"),
    "regularizer": Kind(
        "Regularizers", "what keeps weights and outputs small", "weights, outputs", "a term of the loss"
    ),
    "optimizer": Kind("Optimizers", "how gradients change weights", "gradients", "changes of the weights"),
    "schedule": Kind("Schedules", "how the learning rate changes", "step", "factor of the learning rate"),
    "trainer": Kind("Trainers", "what runs the steps", "model, batches, loss", "events, checkpoints"),
    "agent": Kind("Agents", "what learns from rewards", "rewards", "gradients of a policy"),
    "metric": Kind("Metrics", "how predictions are scored", "predictions, targets", "a score"),
    "choice": Kind("Choices inside a part", "variants that a part offers", "", ""),
}

ROLE_KINDS: dict[str, str] = {
    "encoder": "encoder",
    "two_streams": "encoder",
    "left_encoder": "encoder",
    "causal": "decoder",
    "bidirectional": "embedder",
    "seq2seq": "encoder_decoder",
    "classifier": "classifier",
    "regressor": "classifier",
    "multi_label": "classifier",
    "multiple_choice": "classifier",
    "tagger": "classifier",
    "answerer": "classifier",
    "word_classifier": "classifier",
    "tree_classifier": "classifier",
    "autoencoder": "encoder_decoder",
    "image_encoder": "encoder",
    "glimpse_classifier": "classifier",
    "captioner": "encoder_decoder",
    "paragraph_captioner": "encoder_decoder",
    "hierarchical": "encoder_decoder",
    "text_autoencoder": "encoder_decoder",
    "style_transfer": "encoder_decoder",
    "story_answerer": "memory",
    "tabular": "classifier",
    "policy": "policy",
    "q_network": "q_network",
}

# The last name of a recipe key, where that is not the name of a kind itself.
KEY_KINDS = {
    "task": "application",
    "read_fn": "embedder",
    "reader": "layer",
    "pooling": "layer",
    "block": "layer",
    "cell": "layer",
    "objective": "loss",
    "baseline": "loss",
    "reward": "metric",
    "anneal": "schedule",
    "regularize": "regularizer",
    "regularizers": "regularizer",
    "score": "attention",
    "normalize": "attention",
    "span": "attention",
    "feed": "attention",
}


# Settings that are numbers, and parts all the same.
NUMBER_KINDS = {
    "clip": "trainer",
    "accumulate": "trainer",
    "average": "trainer",
    "weight_decay": "regularizer",
    "label_smoothing": "regularizer",
    "confidence_penalty": "regularizer",
    "dropout": "regularizer",
    "coverage": "regularizer",
}


def kind_of_key(key: str, is_group: bool) -> str:
    """The kind of the parts that a recipe key selects; `key` has no `.kind` at its end.

    What stands in a list of a model is one of its layers; a choice in `train` is the trainer's.
    """
    names = key.split(".")
    last = names[-1].removesuffix("[]")
    kind = KEY_KINDS.get(last) or NUMBER_KINDS.get(last, last)
    if names[0] == "model" and names[-1].endswith("[]"):
        return "layer"
    if kind in KINDS:
        return kind
    if names[0] == "data" and is_group:
        return "data"
    return "trainer" if names[:-1] == ["train"] else "choice"
