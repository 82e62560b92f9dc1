"""The summary of any model: its modules with the shapes that pass through them, from one small input of its role.

B batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from heedful.blocks.layouts import Unpadded
from heedful.models import build
from heedful.models.layer_graph import receptive_fields
from heedful.models.roles import ModelConfig, Role
from heedful.models.summary import Row, Summary

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKENS = 10  # of the input


def summary(model: nn.Module | ModelConfig, depth: int = 1) -> Summary:
    """The layers of a model with their output shapes and parameters, as a table that prints as Keras's does.

    `depth` says how far modules are unfolded, the layers of a stack counting one by one; 0 unfolds all. Shared weights
    count once, so that the total is the config's own. A config is built with random weights.

        >>> heedful.summary(heedful.load("runs/numbers").model)
    """
    if isinstance(model, ModelConfig):
        with torch.random.fork_rng(devices=[]):
            model = build(model)
    if not isinstance(model, nn.Module):
        raise TypeError(f"summary takes a model or its settings, not a {type(model).__name__}; pass its .model")
    net: Any = model
    config: ModelConfig = net.config
    if config.role == "autoencoder" and depth == 1:
        layers: Summary = net.summary()
        return layers
    shapes, inputs = trace_calls(model, lambda: RUNS[config.role](net, config))
    groups, modules = dict[str, list[nn.Parameter]](), dict(model.named_modules())
    fields = receptive_fields(model) if config.role == "image_encoder" else {}
    for name, weights in _owners(model):
        groups.setdefault(folded(model, name, depth), []).extend(weights)
    calls = {group: [name for name in shapes if f"{name}.".startswith(f"{group}.")] for group in groups}
    order = list(shapes)
    rows = []
    for group in sorted(groups, key=lambda one: order.index(calls[one][0]) if calls[one] else len(order)):
        shape = shapes.get(group) or (shapes[calls[group][-1]] if calls[group] else ())
        kind = type(modules[group]).__name__ if group in modules else "Parameter"
        trained, frozen = ([w.numel() for w in groups[group] if w.requires_grad is on] for on in (True, False))
        read = [folded(model, name, depth) for name in inputs.get(group, ())]
        reads = next((one for one in reversed(read) if one in groups and one != group), "")
        sizes = [field.size for name, field in fields.items() if f"{name}.".startswith(f"{group}.")]
        rows.append(Row(group, kind, shape, sum(trained) + sum(frozen), sum(frozen), reads, max(sizes, default=0)))
    return Summary(rows)


def _owners(model: nn.Module) -> Iterator[tuple[str, list[nn.Parameter]]]:
    """The modules that have weights of their own, each weight once; those of the model itself go by their names."""
    seen = set[int]()
    for name, module in model.named_modules():
        own = {key: weight for key, weight in module.named_parameters(recurse=False) if id(weight) not in seen}
        seen.update(map(id, own.values()))
        if own and name:
            yield name, list(own.values())
        elif own:
            yield from ((key, [weight]) for key, weight in own.items())


def folded(model: nn.Module, name: str, depth: int) -> str:
    """The module in which another one is shown: that `depth` levels down, lists of modules being no level."""
    path, module, level = list[str](), model, 0
    for part in name.split("."):
        path.append(part)
        if part not in dict(module.named_children()):
            break  # a weight of the model itself
        module = module.get_submodule(part)
        level += not isinstance(module, nn.ModuleList | nn.ModuleDict)
        if depth and level == depth:
            break
    return ".".join(path)


def trace_calls(model: nn.Module, run: Callable[[], object]) -> tuple[dict[str, tuple[int, ...]], dict[str, list[str]]]:
    """The shape of each module's first output without the batch, features first, in the order of the calls.

    And, for modules whose first input is the output of others, or a part of it, the names of these.
    """
    shapes, inputs = dict[str, tuple[int, ...]](), dict[str, list[str]]()
    outputs = list[tuple[str, Tensor]]()  # kept, so that no other tensor takes their memory
    names = {module: name for name, module in model.named_modules()}

    def before(module: nn.Module, given: Any) -> None:
        first = next(_tensors(given), None)
        if first is not None:
            made = [name for name, output in outputs if _memory(output) == _memory(first)]
            inputs.setdefault(names[module], made)

    def after(module: nn.Module, given: Any, output: Any) -> None:
        first = next(_tensors(output), None)
        if first is not None:
            *others, last = first.shape[1:] or (1,)
            shapes.setdefault(names[module], (last, *others) if first.dim() != 4 else tuple(first.shape[1:]))
            outputs.append((names[module], first))

    hooks = [module.register_forward_hook(after) for module in names if module is not model]
    hooks += [module.register_forward_pre_hook(before) for module in names if module is not model]
    training = model.training
    try:
        with torch.no_grad():
            model.eval()
            run()
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return shapes, inputs


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(one)


# ------------------------------------------------------------------ an input for each role
@dataclass(frozen=True)
class OneTree:
    """A root with two leaves, as `Forest` has it."""

    words: Tensor
    inner: Tensor
    parents: Tensor
    places: Tensor
    leaf_counts: tuple[int, ...] = (2, 0)
    inner_counts: tuple[int, ...] = (0, 1)
    widest: int = 2


def _ids(model: nn.Module, count: int = TOKENS) -> Tensor:
    return torch.zeros(1, count, dtype=torch.long, device=next(model.parameters()).device)


def _causal(model: Any, config: Any) -> None:
    model(_ids(model), model.start(1, _ids(model).device))


def _encoder(model: Any, config: Any) -> None:
    x = model(_ids(model))
    if config.pooler:
        model.summarize(x, Unpadded(_ids(model)))
    if config.masked_words:
        model.words(x[:, 0])
    if config.pairs:
        model.follows(x[:, 0])


def _tagger(model: Any, config: Any) -> None:
    ids = _ids(model)
    model(ids, torch.zeros_like(ids), Unpadded(ids), torch.arange(ids.shape[1], device=ids.device))


def _answerer(model: Any, config: Any) -> None:
    ids = _ids(model)
    one = torch.ones(1, dtype=torch.long, device=ids.device)
    model(ids, torch.zeros_like(ids), Unpadded(ids), one, one, 1)


def _tree(model: Any, config: Any) -> None:
    ids = _ids(model, 2)[0]
    model(OneTree(ids, ids[:0], torch.zeros_like(ids), torch.arange(2, device=ids.device)))


def _text(model: Any, config: Any) -> None:
    model(_ids(model))


def _style_transfer(model: Any, config: Any) -> None:
    ids = _ids(model)
    model(ids, model.start(ids, ids[:, 0]))
    model.discriminator(ids, ids == 0)


def _story(model: Any, config: Any) -> None:
    ids = _ids(model, 2)
    model(ids, ids[:, :1], ids)


def _seq2seq(model: Any, config: Any) -> None:
    model(_ids(model), model.start(_ids(model)))


def _text_autoencoder(model: Any, config: Any) -> None:
    model(_ids(model), model.start(model.encode(_ids(model)).mean))


def _agent(model: Any, config: Any) -> None:
    seen = torch.zeros(1, config.inputs)
    model(seen)
    if config.estimates:
        model.value(seen)
    if config.role == "q_network":
        model.target_values(seen)


def _hierarchical(model: Any, config: Any) -> None:
    ids = _ids(model)
    model(ids, model.start(ids[None], torch.ones_like(ids[None], dtype=torch.bool), ids[:, :2]))


def _image(model: Any, config: Any) -> None:
    model(torch.zeros(1, *config.input, device=next(model.parameters()).device))


def _captioner(model: Any, config: Any) -> None:
    images = torch.zeros(1, *config.encoder.input, device=next(model.parameters()).device)
    model(_ids(model), model.start(images))


def _paragraph_captioner(model: Any, config: Any) -> None:
    device = next(model.parameters()).device
    boxes, real = torch.tensor([[[0.0, 0.0, 1.0, 1.0]] * 2], device=device), torch.ones(1, 2, dtype=torch.bool)
    regions = model.look(torch.zeros(1, *config.encoder.input, device=device), boxes, real.to(device))
    words = torch.ones(1, 2, 3, dtype=torch.long, device=device)
    memory = model.remember(regions, words, words > 0)
    plan, _ = model.plan(memory, real.to(device), model.begin_paragraph(memory, real.to(device)))
    model(_ids(model), model.start(plan.topic))


def _tabular(model: Any, config: Any) -> None:
    device = next(model.parameters()).device
    shapes: dict[str, Callable[[Any], Tensor]] = {
        "text": lambda column: torch.ones(1, min(TOKENS, column.longest), dtype=torch.long, device=device),
        "numbers": lambda column: torch.zeros(1, column.size, device=device),
        "class": lambda column: torch.zeros(1, dtype=torch.long, device=device),
        "image": lambda column: torch.zeros(1, column.channels, *column.size, device=device),
    }
    model([shapes[column.kind](column) for column in config.columns])


RUNS: dict[Role, Callable[[Any, Any], None]] = {
    "encoder": _encoder,
    "causal": _causal,
    "bidirectional": _text,
    "seq2seq": _seq2seq,
    "hierarchical": _hierarchical,
    "classifier": _text,
    "regressor": _text,
    "multi_label": _text,
    "multiple_choice": _text,
    "tagger": _tagger,
    "answerer": _answerer,
    "word_classifier": _text,
    "style_transfer": _style_transfer,
    "story_answerer": _story,
    "tree_classifier": _tree,
    "tabular": _tabular,
    "autoencoder": _image,
    "text_autoencoder": _text_autoencoder,
    "image_encoder": _image,
    "glimpse_classifier": _image,
    "captioner": _captioner,
    "paragraph_captioner": _paragraph_captioner,
    "policy": _agent,
    "q_network": _agent,
}
