"""Checks of weights: each gets a gradient, and a file keeps them all, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from heedful.contracts.comparison import Loaded
from heedful.contracts.refusals import RefusedError, user_code
from heedful.contracts.report import Finding
from heedful.contracts.subject import Subject, copied, distance, lively_copy

NAMED = 5  # names in a message
TRIALS = 4  # batches whose gradients are added up


def listed(names: list[str]) -> str:
    """The first few names."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


# ------------------------------------------------------------------ gradients
def check_gradient(name: str, loaded: Loaded) -> Finding:
    """A gradient, finite and not zero, for every weight that is trained."""
    about = "every weight that is trained gets a gradient"
    if not any(weight.requires_grad for weight in loaded.module.parameters()):
        return Finding(name, about, "not applicable", "no weight is trained")
    module = lively_copy(loaded.module)
    if module is None:
        return Finding(name, about, "not applicable", "the module cannot be copied")
    try:
        for subject in loaded.subjects:
            backward(subject.of(module))
    except RefusedError as error:
        return Finding(name, about, "failed", f"the model {error}", cause="it cannot be trained as it is called")
    weights = {key: weight for key, weight in module.named_parameters() if weight.requires_grad}
    broken = [key for key, weight in weights.items() if weight.grad is not None and not weight.grad.isfinite().all()]
    if broken:
        return Finding(
            name, about, "failed", f"the gradient is NaN or infinite: {listed(broken)}",
            cause="sqrt or a norm at 0, a division by 0, or torch.where around an infinity",
            advice="add eps inside the sqrt; mask before the function, not after it",
        )  # fmt: skip
    none = [key for key, weight in weights.items() if weight.grad is None or not bool(weight.grad.any())]
    if not none:
        return Finding(name, about, "passed")
    cut = [key for key in none if weights[key].grad is not None]
    return Finding(
        name, about, "failed", f"no gradient: {listed(none)}",
        cause="the gradient is zero: a detach, a no_grad, an argmax, or dead units" if cut == none
        else "it is not used in forward, or only through a detach, a no_grad or an argmax",
        advice="use it, remove it, or set requires_grad_(False) if it is meant to be frozen; if an optional argument "
        "uses it, pass that as an example",
    )  # fmt: skip


def backward(subject: Subject) -> None:
    """Add up the gradients of a random weighting of all outputs, for rows as long as there are."""
    random = torch.Generator().manual_seed(2)
    for seed in range(TRIALS):
        rows = subject.rows([subject.longest] * 3, seed)
        inputs, real = subject.batch(rows)
        with torch.enable_grad():
            found = replace(subject, call=subject.every or subject.call).read(inputs, real)
            if found.requires_grad:
                weighted = found * torch.randn(found.shape, generator=random).to(found)
                with user_code():
                    weighted[found.isfinite() | found.isnan()].sum().backward()


# ------------------------------------------------------------------ files
def ties(module: nn.Module) -> set[frozenset[str]]:
    """The groups of names that share one weight."""
    names = dict[int, set[str]]()
    for name, weight in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), set()).add(name)
    return {frozenset(group) for group in names.values() if len(group) > 1}


def check_save(name: str, loaded: Loaded) -> Finding:
    """The same outputs, bit for bit, from a model that is built again and loads what was saved."""
    about = "a saved and loaded model gives the same, bit for bit"
    module = lively_copy(loaded.module)
    if module is None:
        return Finding(name, about, "not applicable", "the module cannot be copied")
    other = loaded.rebuild().to(next(iter(loaded.subjects)).device).eval() if loaded.rebuild else forgetful_copy(module)
    before = ties(module)
    state = {key: value for key, value in module.state_dict().items() if isinstance(value, Tensor)}
    try:
        read = load(save({key: value.detach().cpu().clone().contiguous() for key, value in state.items()}))
        other.load_state_dict(read)
    except (RuntimeError, KeyError, ValueError) as error:
        return Finding(
            name, about, "failed",
            f"load_state_dict raised {type(error).__name__}: {str(error).splitlines()[-1].strip()}",
            cause="what is saved is not what is loaded: names or shapes differ",
            advice="let state_dict and load_state_dict mirror each other",
        )  # fmt: skip
    untied = [group for group in before if group not in ties(other)]
    if untied:
        return Finding(
            name, about, "failed", f"these were one weight, and are two after loading: {listed(sorted(untied[0]))}",
            cause="loading makes a new parameter in place of the shared one",
            advice="copy into the weight (weight.copy_), or tie again after loading",
        )  # fmt: skip
    return compared(name, about, loaded, module, other)


def compared(name: str, about: str, loaded: Loaded, module: nn.Module, other: nn.Module) -> Finding:
    """The finding for outputs before and after."""
    worst = 0.0
    for subject in loaded.subjects:
        rows = subject.rows([min(5, subject.longest)] * 2)
        found, expected = subject.of(other).outputs(rows), subject.of(module).outputs(rows)
        worst = max(worst, float(distance(found, expected).max()))
    if not worst:
        how = "" if loaded.rebuild else " (in a copy: name a function that builds it to check its buffers too)"
        return Finding(name, about + how, "passed", difference=0.0)
    lost = list(unsaved(module, other))
    return Finding(
        name, about, "failed", f"not in the file: {listed(lost)}" if lost else "outputs differ", worst, 0.0,
        cause="a random buffer with persistent=False, a tensor or module that is no parameter, buffer or submodule, or "
        "a state_dict or load_state_dict of its own that leaves it out",
        advice="register_buffer(..., persistent=True), nn.Parameter, nn.ModuleList instead of a list",
    )  # fmt: skip


def unsaved(module: nn.Module, other: nn.Module) -> Iterator[str]:
    """The tensors of a module that the other one, which loaded its file, has with other values."""
    for (path, one), two in zip(module.named_modules(), other.modules(), strict=False):
        for key, value in kept(one).items():
            its = kept(two).get(key)
            where = f"{path}.{key}".lstrip(".")
            if isinstance(value, Tensor) and not (isinstance(its, Tensor) and torch.equal(value, its)):
                yield where
            elif isinstance(value, list | tuple) and any(isinstance(item, nn.Module | Tensor) for item in value):
                yield f"{where} (a {type(value).__name__})"


def kept(module: nn.Module) -> dict[str, object]:
    """What a module itself has: attributes, weights and buffers."""
    return {**vars(module), **dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}


def forgetful_copy(module: nn.Module) -> nn.Module:
    """A copy with other values in all that a file keeps."""
    other = copied(module)
    assert other is not None
    with torch.no_grad():
        for value in other.state_dict().values():
            if isinstance(value, Tensor) and value.is_floating_point():
                value.normal_()
    return other
