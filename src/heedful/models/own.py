"""Modules of a user's own in the roles of ours: plain tensors in, plain tensors out, with no cache and no layout.

A task calls the models of the library with states and layouts. A user's module has the `forward` that one writes first,
and is wrapped here into what the task calls; while it decodes, it reads all tokens again for each new one.

B batch, R rows (texts times hypotheses), S source tokens or tokens so far, T tokens, V vocabulary, C classes or
channels, Y rows, X columns, N classes of images.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from heedful.blocks.losses import Loss, cross_entropy
from heedful.errors import UserError
from heedful.models.roles import ModelConfig

if TYPE_CHECKING:
    from heedful.models.roles import Role

OwnModel = nn.Module | Callable[[ModelConfig], nn.Module]  # a module, or what makes one from the model's settings


class Logits(NamedTuple):
    """In place of an output embedding: what the module returns are logits already."""

    weight: None = None
    bias: None = None

    def loss(self, x: Tensor, targets: Tensor, ignore: int = -100, smoothing: float = 0.0) -> Loss:
        """-sum log p(target) for logits (N, V) and targets (N,)."""
        return cross_entropy(x, targets, smoothing, ignore)

    def logits(self, x: Tensor) -> Tensor:
        """The logits, which x (B, T, V) are."""
        return x


class Plain(nn.Module):
    """A user's module as a task calls it; its weights have the names that they have in the module."""

    form: ClassVar[str]  # the `forward` that is asked for
    arguments: ClassVar[int] = 1
    tokens: ClassVar = Logits()

    def __init__(self, module: nn.Module, config: Any) -> None:
        super().__init__()
        self.module, self.config = module, config
        self.settings: Any = config  # as folders keep them

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The weights of the module."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Put weights into the module."""
        return self.module.load_state_dict(state_dict, strict, assign)

    @abstractmethod
    def forward(self, *args: Any) -> Any:
        """What the task asks for."""

    def check_shape(self, out: Tensor, *shape: int | None) -> Tensor:
        """What the module returned, if it has this shape; None: any size."""
        fits = isinstance(out, Tensor) and out.dim() == len(shape)
        if not fits or any(size not in (None, there) for size, there in zip(shape, out.shape, strict=True)):
            raise UserError(
                f"{type(self.module).__name__} returned something else than the task needs",
                where=f"{type(self.module).__name__}.forward",
                found=f"a tensor of shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__,
                expected=f"{self.form}, here ({', '.join('any' if size is None else str(size) for size in shape)})",
            )
        return out


@dataclass(frozen=True)
class History:
    """The tokens (R, S) that a module has read so far; the first `skip` (R,) of each row are padding."""

    tokens: Tensor
    skip: Tensor


class PlainCausal(Plain):
    """tokens (B, T) -> logits (B, T, V) of the token after each."""

    form: ClassVar = "forward(tokens (B, T)) -> logits (B, T, V)"

    def start(self, rows: int, device: torch.device) -> History:
        """No tokens yet."""
        none = torch.zeros(rows, 0, dtype=torch.long, device=device)
        return History(none, none.new_zeros(rows))

    def forward(self, tokens: Tensor, state: History) -> tuple[Tensor, History]:
        return self.features(tokens, state)

    def features(self, tokens: Tensor, state: History, real: Tensor | None = None) -> tuple[Tensor, History]:
        """The logits, in place of the last layer; rows that are padded in front are read from their first token on."""
        skip = state.skip if real is None else state.skip + (~real).sum(1)  # (R,)
        whole = torch.cat([state.tokens, tokens], 1)  # (R, S + T)
        at = torch.arange(whole.shape[1], device=whole.device)  # (S + T,)
        shifted = whole.gather(1, (at + skip[:, None]).clamp(max=len(at) - 1))  # (R, S + T), without the padding
        logits = self.read(shifted)  # (R, S + T, V)
        back = (at[-tokens.shape[1] :] - skip[:, None]).clamp(min=0)  # (R, T)
        return logits.gather(1, back[..., None].expand(-1, -1, logits.shape[-1])), History(whole, skip)  # (R, T, V)

    def read(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        """The logits (B, T, V) of whole windows; the module does not see where documents begin."""
        return self.check_shape(self.module(tokens), *tokens.shape, self.config.vocab)


@dataclass(frozen=True)
class PairState:
    """The source (R, S) of each row, and the target tokens (R, T) so far."""

    source: Tensor
    target: Tensor


class PlainSeq2Seq(Plain):
    """source (B, S), target (B, T) -> logits (B, T, V) of the target token after each."""

    form: ClassVar = "forward(source (B, S), target (B, T)) -> logits (B, T, V)"
    arguments: ClassVar = 2

    def start(self, source: Tensor, layout: object = None) -> PairState:
        """The source, and no target yet."""
        return PairState(source, source[:, :0])

    def forward(self, target: Tensor, state: PairState) -> tuple[Tensor, PairState]:
        return self.features(target, state)

    def features(self, target: Tensor, state: PairState) -> tuple[Tensor, PairState]:
        """The logits, in place of the last layer."""
        whole = torch.cat([state.target, target], 1)  # (R, S + T)
        return self.read(state.source, whole)[:, -target.shape[1] :], PairState(state.source, whole)

    def read(self, source: Tensor, target: Tensor, layout: object = None) -> Tensor:
        """The logits (B, T, V) of whole targets."""
        return self.check_shape(self.module(source, target), *target.shape, self.config.vocab)


class PlainClassifier(Plain):
    """tokens (B, T) -> logits (B, C), a row for each text."""

    form: ClassVar = "forward(tokens (B, T)) -> logits (B, C)"

    def forward(
        self, tokens: Tensor, segments: Tensor | None = None, layout: object = None, first: Tensor | None = None
    ) -> Tensor:
        return self.check_shape(self.module(tokens), len(tokens), None)


class PlainRegressor(PlainClassifier):
    """tokens (B, T) -> a number (B,) for each text."""

    form: ClassVar = "forward(tokens (B, T)) -> numbers (B,)"

    def forward(
        self, tokens: Tensor, segments: Tensor | None = None, layout: object = None, first: Tensor | None = None
    ) -> Tensor:
        return self.check_shape(self.module(tokens), len(tokens))


class Shapes(NamedTuple):
    """The shape of an image, and that of its code."""

    input: tuple[int, ...]
    code: tuple[int, ...]


class PlainAutoencoder(Plain):
    """images (B, ...) -> the same shape; its parts `encoder` and `decoder` make the code, and the image of a code."""

    form: ClassVar = "forward(images (B, ...)) -> images (B, ...), with parts named encoder and decoder"

    def __init__(self, module: nn.Module, config: Any) -> None:
        super().__init__(module, config)
        parts = dict(module.named_children())
        if missing := [name for name in ("encoder", "decoder") if name not in parts]:
            raise wrong_role(module, f"no part named {missing[0]}", self.form)
        weight = next(module.parameters())
        with torch.inference_mode():
            code = parts["encoder"](torch.zeros(1, *config.input, device=weight.device, dtype=weight.dtype))
        self.config = Shapes(config.input, tuple(code.shape[1:]))

    @property
    def encoder(self) -> nn.Module:
        """images -> codes."""
        return self.module.get_submodule("encoder")

    @property
    def decoder(self) -> nn.Module:
        """codes -> images."""
        return self.module.get_submodule("decoder")

    def forward(self, images: Tensor) -> Tensor:
        return self.check_shape(self.module(images), *images.shape)


class PlainImageEncoder(Plain):
    """images (B, C, Y, X) -> logits (B, N)."""

    form: ClassVar = "forward(images (B, C, Y, X)) -> logits (B, N), one for each class"

    def forward(self, images: Tensor) -> Tensor:
        return self.check_shape(self.module(images), len(images), self.config.classes)

    def training_logits(self, images: Tensor) -> list[tuple[float, Tensor]]:
        """The logits, with a weight of 1."""
        return [(1.0, self(images))]


PLAIN: dict[Role, type[Plain]] = {
    "seq2seq": PlainSeq2Seq,
    "causal": PlainCausal,
    "classifier": PlainClassifier,
    "word_classifier": PlainClassifier,
    "regressor": PlainRegressor,
    "autoencoder": PlainAutoencoder,
    "image_encoder": PlainImageEncoder,
}


def wrap_module(module: nn.Module, config: ModelConfig) -> nn.Module:
    """A user's module as the tasks of a role call it; one that has our settings as `config` is called as ours are."""
    if isinstance(settings := vars(module).get("config"), ModelConfig):
        if settings.role != config.role:
            raise wrong_role(module, f"a model in the role {settings.role}", f"one in the role {config.role}")
        return module
    if config.role not in PLAIN:
        raise wrong_role(
            module, "no settings of ours as `config`", f"a subclass of the library's models in the role {config.role}"
        )
    plain = PLAIN[config.role]
    try:
        inspect.signature(module.forward).bind(*[None] * plain.arguments)
    except TypeError:
        raise wrong_role(module, f"forward{inspect.signature(module.forward)}", plain.form) from None
    if config.role == "causal" and not config.fixed_context:
        raise UserError(
            "a module without a state reads windows", where="model.kind", found=config.kind,
            expected="gpt, whose context is the length of a window", todo="write model.kind: gpt and model.context",
        )  # fmt: skip
    return plain(module, config)


def settings_of(model: Any) -> Any:
    """The settings of a model, as folders keep them."""
    return model.settings if isinstance(model, Plain) else model.config


def own_class(model: nn.Module) -> str:
    """The class of a user's own model; of the library's models, nothing."""
    own = model.module if isinstance(model, Plain) else model
    return "" if type(own).__module__.startswith("heedful.") else type(own).__name__


def wrong_role(module: nn.Module, found: str, expected: str) -> UserError:
    """The error for a module that does not do what the task asks for."""
    name = type(module).__name__
    return UserError(
        f"{name} is no model for this task", where=f"model={name}", found=found, expected=expected,
        todo="docs/how-to/own-model.md shows a module for each role",
    )  # fmt: skip
