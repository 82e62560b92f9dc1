"""Autoencoders by the conventions of scikit-learn: rows of features to codes and back, dense or convolutional.

They are trained by the same blocks as a recipe is. With the same settings, and an integer as `random_state` that is the
recipe's seed, the weights are those of `heedful train`. n samples, d features, k dimensions of a code.
"""

from __future__ import annotations

import json
import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ValidationError
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from heedful.data.images.batches import EncodedImages, ImageBatches
from heedful.data.images.image_spec import ImageSpec
from heedful.errors import UserError
from heedful.files.reading import is_folder
from heedful.hub.model_folder import write_model
from heedful.models import build
from heedful.models.autoencoder.config import AutoencoderConfig, dense
from heedful.models.autoencoder.layers import Activation, AnyLayer, Conv, MaxPool, Upsample
from heedful.models.autoencoder.network import ACTIVATIONS, Network
from heedful.tasks.reconstruction.predictor import AT_ONCE, Noise, reconstruction_loss
from heedful.tasks.reconstruction.recipe import ReconstructionTaskConfig
from heedful.tasks.reconstruction.task import WORTH_A_THREAD
from heedful.training.configs import Budget, TrainConfig
from heedful.training.loop import Counters, Epoch, fit, in_steps
from heedful.training.optim import AdamW, Constant, RMSprop

Array = npt.NDArray[Any]
Image = tuple[int, int, int]  # channels, rows, columns

SOLVERS = ("rmsprop", "adam")
DEVICES = ("auto", "cpu", "cuda")
WORTH_RECORDING = 200  # steps from which on recording them pays


class Autoencoding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """What all autoencoders share: training, and the way to codes and back.

    `model_` is the network, whose `summary()` is a table of its layers, and whose `encoder` and `decoder` are its two
    halves. `loss_curve_` has the mean squared error of each pass over the data, measured while the weights moved, and
    `loss_` is the last of them. Weights are of float32. What goes through them is computed in the type of the data.
    """

    activation: Activation
    output_activation: Activation
    solver: str
    learning_rate_init: float
    batch_size: int
    max_iter: int
    random_state: int | np.random.RandomState | None
    device: str
    verbose: bool

    @abstractmethod
    def _image(self, d: int) -> Image:
        """The image that d features are."""

    @abstractmethod
    def _config(self, image: Image) -> AutoencoderConfig:
        """The network for images of this shape."""

    def _task(self) -> ReconstructionTaskConfig:
        """The task: to reconstruct the data, from themselves or from a noisy copy."""
        return ReconstructionTaskConfig()

    # ------------------------------------------------------------------ fitting
    def fit(self, X: npt.ArrayLike, y: object = None) -> Self:
        """Learn to reconstruct X (n, d) from its codes."""
        self._require_settings()
        data = self._read(X, reset=True)
        with np.errstate(over="ignore"):
            rows = check_array(data, dtype=np.float32, input_name="X", estimator=self)
        image = self._image(rows.shape[1])
        with within_limits():
            config, task, budget = self._config(image), self._task(), Budget(epochs=int(self.max_iter))
        seed = self._seed()
        settings = TrainConfig(
            seed=seed, budget=budget, optimizer=self._optimizer(), schedule=Constant(), clip=None, precision="fp32"
        )
        batches = ImageBatches(EncodedImages(_tensor(rows).view(-1, *image)), seed, self.batch_size)
        try:
            self.model_, self.loss_curve_ = self._trained(config, Noise(task.noise, task.clip, seed), batches, settings)
        except UserError as error:
            raise ValueError(
                f"training did not stay finite ({error.message}): scale X, or lower learning_rate_init"
            ) from error
        self.image_shape_, self.n_components_ = image, math.prod(config.code)
        self.loss_, self.n_iter_ = self.loss_curve_[-1], len(self.loss_curve_)
        return self

    def _trained(
        self, config: AutoencoderConfig, noise: Noise, batches: Any, settings: TrainConfig
    ) -> tuple[Any, list[float]]:
        """Train a model; returns it with its mean loss in each epoch."""
        place = self._place()
        records = batches.count * self.max_iter >= WORTH_RECORDING
        losses: list[float] = []
        with isolated(place, config.products * batches.size // WORTH_A_THREAD):
            torch.default_generator.manual_seed(settings.seed)
            model: Any = build(config).to(place)
            for event in fit(
                model, partial(reconstruction_loss, model, noise=noise), batches, in_steps(settings, batches), place,
                saver=None, about={}, counters=Counters(), records=records,
            ):  # fmt: skip
                if isinstance(event, Epoch):
                    losses.append(event.loss)
                    if self.verbose:
                        sys.stdout.write(f"Iteration {event.epoch}, loss = {event.loss:.8f}\n")
        return model.cpu().eval(), losses

    def _require_settings(self) -> None:
        """Check the settings."""
        for name in ("activation", "output_activation"):
            require_one_of(name, getattr(self, name), tuple(ACTIVATIONS))
        require_one_of("solver", self.solver, SOLVERS)
        require_one_of("device", self.device, DEVICES)
        require_whole("batch_size", self.batch_size)
        require_whole("max_iter", self.max_iter)
        rate = self.learning_rate_init
        if not (isinstance(rate, Real) and 0 < rate < math.inf):
            raise ValueError(f"learning_rate_init must be a number above 0, got {rate!r}")

    def _optimizer(self) -> RMSprop | AdamW:
        """How gradients move the weights; without decay, AdamW is Adam."""
        rate = float(self.learning_rate_init)
        if self.solver == "adam":
            return AdamW(lr=rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
        return RMSprop(lr=rate)

    def _seed(self) -> int:
        """`random_state` where it is an integer, else a random one."""
        drawn = check_random_state(self.random_state)
        given = self.random_state
        return int(given) if isinstance(given, Integral) else int(drawn.randint(2**31 - 1))

    def _place(self) -> torch.device:
        """The device to compute on."""
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device='cuda', but torch finds no GPU here: use device='auto'")
        return torch.device("cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu")

    # ------------------------------------------------------------------ use
    def transform(self, X: npt.ArrayLike) -> Array:
        """The codes of samples X (n, d), (n, k)."""
        check_is_fitted(self)
        return self._through(self.model_.encoder, self._read(X, reset=False))

    def inverse_transform(self, X: npt.ArrayLike) -> Array:
        """The samples (n, d) that codes X (n, k) stand for."""
        check_is_fitted(self)
        codes = check_array(X, dtype=[np.float64, np.float32], input_name="X", estimator=self)
        if codes.shape[1] != self.n_components_:
            raise ValueError(
                f"X has {codes.shape[1]} features, but codes of this {type(self).__name__} have {self.n_components_}"
            )
        return self._through(self.model_.decoder, codes)

    def reconstruct(self, X: npt.ArrayLike) -> Array:
        """The reconstructions (n, d) of samples X (n, d)."""
        return self._again(X)[1]

    def error(self, X: npt.ArrayLike) -> float:
        """The mean squared error of the reconstruction of X, over samples and features."""
        data, made = self._again(X)
        return float(np.square(made - data, dtype=np.float64).mean())

    def score(self, X: npt.ArrayLike, y: object = None) -> float:
        """Minus the mean squared error of the reconstruction of X, so that greater is better, and 0 best."""
        return -self.error(X)

    def _again(self, X: npt.ArrayLike) -> tuple[Array, Array]:
        """Samples and their reconstructions."""
        check_is_fitted(self)
        data = self._read(X, reset=False)
        codes = self._through(self.model_.encoder, data)
        return data, self._through(self.model_.decoder, codes)

    def _through(self, network: Network, rows: Array) -> Array:
        """The output of a network for rows, in their own dtype."""
        place, x = self._place(), _tensor(rows).view(-1, *network.shape)
        used = deepcopy(network).to(place, x.dtype)
        with torch.inference_mode():
            parts = [used(part.to(place)).flatten(1).cpu() for part in x.split(AT_ONCE)]
        return torch.cat(parts).numpy()

    def _read(self, X: npt.ArrayLike, reset: bool) -> Array:
        """X as a table of finite numbers."""
        return validate_data(self, X, dtype=[np.float64, np.float32], reset=reset)

    # ------------------------------------------------------------------ keeping
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model as a new folder that `heedful.load` and the command line read.

        These scale bytes by 1/255: fit on values from 0 to 1 what is to be used on images.
        """
        check_is_fitted(self)
        target = Path(folder)
        if os.path.lexists(target):
            raise UserError(
                "the target already exists", where=str(target), expected="a new name for the model's folder"
            )
        if not is_folder(target.parent):
            raise UserError("there is no such folder", where=str(target.parent), todo="make it, or name another place")
        settings = {
            "task": "reconstruction", "model": self.model_.config.model_dump(), "decode": self._task().model_dump(),
        }  # fmt: skip
        about = {"estimator": repr(self)}
        canvas = ImageSpec(self.image_shape_).json
        config = json.dumps(settings, indent=2) + "\n"
        write_model(target, config, self.model_.state_dict(), {"images.json": canvas}, about)

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle: of the model, its settings and weights."""
        state = dict(super().__getstate__())
        if "model_" in state:
            weights = {name: tensor.numpy() for name, tensor in state["model_"].state_dict().items()}
            state["model_"] = (state["model_"].config.model_dump_json(), weights)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "model_" in state:
            settings, weights = state["model_"]
            model = build(AutoencoderConfig.model_validate_json(settings))
            model.load_state_dict({name: torch.from_numpy(np.array(weight)) for name, weight in weights.items()})
            state = {**state, "model_": model.eval()}
        super().__setstate__(state)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class Autoencoder(Autoencoding):
    """An autoencoder of dense layers: d features, the widths of `hidden_layer_sizes`, `n_components`, and back.

    `activation` is what all layers but the last one end with, that of the code included, and `output_activation` what
    the last one does: relu, sigmoid, tanh or linear. With linear layers alone it finds the plane that PCA finds.

    `solver` is rmsprop or adam, `max_iter` the number of epochs, `batch_size` the number of samples in a
    step. An integer as `random_state` makes results repeat bit for bit, on a CPU. `device` is auto, cpu or cuda.
    """

    n_components: int
    hidden_layer_sizes: tuple[int, ...]

    def __init__(
        self,
        n_components: int = 20,
        *,
        hidden_layer_sizes: tuple[int, ...] = (100,),
        activation: Activation = "relu",
        output_activation: Activation = "linear",
        solver: str = "rmsprop",
        learning_rate_init: float = 0.001,
        batch_size: int = 128,
        max_iter: int = 50,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        store_arguments(self, locals())

    def _image(self, d: int) -> Image:
        return square(d) or (1, 1, d)

    def _config(self, image: Image) -> AutoencoderConfig:
        widths = map(int, (*self.hidden_layer_sizes, self.n_components))
        return dense(math.prod(image), *widths, activation=self.activation, output=self.output_activation)

    def _require_settings(self) -> None:
        super()._require_settings()
        require_whole("n_components", self.n_components)
        require_all_whole("hidden_layer_sizes", self.hidden_layer_sizes)


class Convolutional(Autoencoding):
    """What convolutional autoencoders share: rows as images, halved after each convolution, and back."""

    image_shape: tuple[int, ...] | None
    filters: tuple[int, ...]

    def _image(self, d: int) -> Image:
        if self.image_shape is None:
            return square(d) or (d, 1, 1)
        *channels, rows, columns = map(int, self.image_shape)
        image = (*(channels or [1]), rows, columns)
        if math.prod(image) != d:
            raise ValueError(
                f"image_shape={tuple(self.image_shape)} has {math.prod(image)} pixels, but X has {d} features"
            )
        return image  # type: ignore[return-value]

    def _config(self, image: Image) -> AutoencoderConfig:
        channels, *sides = image
        widths = [int(width) for width in self.filters]
        turn, lost = crop(sides, len(widths))
        encoder: list[AnyLayer] = []
        for width in widths:
            encoder += [Conv(filters=width, activation=self.activation), MaxPool()]
        decoder: list[AnyLayer] = []
        for number, width in enumerate([*reversed(widths), channels]):
            activation = self.output_activation if number == len(widths) else self.activation
            if lost and number == turn:
                decoder.append(Conv(filters=width, size=lost + 1, padding="valid", activation=activation))
            else:
                decoder.append(Conv(filters=width, activation=activation))
            decoder.append(Upsample())
        decoder.pop()  # there is no doubling after the last one
        return AutoencoderConfig(input=image, encoder=tuple(encoder), decoder=tuple(decoder))

    def _require_settings(self) -> None:
        super()._require_settings()
        require_all_whole("filters", self.filters)
        if not len(self.filters):
            raise ValueError("filters must not be empty")
        if self.image_shape is not None:
            require_all_whole("image_shape", self.image_shape)
            if len(self.image_shape) not in (2, 3):
                raise ValueError(
                    f"image_shape must be (rows, columns), (channels, rows, columns) or None, got {self.image_shape!r}"
                )


class ConvAutoencoder(Convolutional):
    """An autoencoder of convolutions: 3 x 3 filters and a halving for each of `filters`, and the same way back.

    A row of X is an image of `image_shape`, (rows, columns) or (channels, rows, columns), channel by channel and row
    by row. None takes a square number of features for an image of one channel, and any other number for the channels of
    a single pixel. `image_shape_` is the shape that was used. A code is what the last halving leaves, as one row.

    The sides must come out again when they are doubled, as all squares do; one convolution of the way back may cut
    what is too much at both alike. The other settings are those of `Autoencoder`.
    """

    def __init__(
        self,
        image_shape: tuple[int, ...] | None = None,
        *,
        filters: tuple[int, ...] = (8, 4, 4),
        activation: Activation = "relu",
        output_activation: Activation = "linear",
        solver: str = "rmsprop",
        learning_rate_init: float = 0.001,
        batch_size: int = 128,
        max_iter: int = 50,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        store_arguments(self, locals())


class DenoisingAutoencoder(Convolutional):
    """A convolutional autoencoder that learns to undo noise: `reconstruct` restores what is noisy.

    In training, N(0, `noise`^2) is added to every value, new each time, and the result is clipped to the bounds of
    `clip`, or left as it is with None. Nothing is added to what is transformed, reconstructed or scored. The other
    settings are those of `ConvAutoencoder`.
    """

    noise: float
    clip: tuple[float, float] | None

    def __init__(
        self,
        image_shape: tuple[int, ...] | None = None,
        *,
        noise: float = 0.5,
        clip: tuple[float, float] | None = (0.0, 1.0),
        filters: tuple[int, ...] = (32, 32),
        activation: Activation = "relu",
        output_activation: Activation = "linear",
        solver: str = "rmsprop",
        learning_rate_init: float = 0.001,
        batch_size: int = 128,
        max_iter: int = 50,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        store_arguments(self, locals())

    def _task(self) -> ReconstructionTaskConfig:
        bounds = None if self.clip is None else (float(self.clip[0]), float(self.clip[1]))
        return ReconstructionTaskConfig(noise=float(self.noise), clip=bounds)

    def _require_settings(self) -> None:
        super()._require_settings()
        if not (isinstance(self.noise, Real) and 0 <= self.noise <= 100):
            raise ValueError(f"noise must be a number from 0 to 100, got {self.noise!r}")
        clip = self.clip
        pair = isinstance(clip, tuple | list) and len(clip) == 2 and all(isinstance(bound, Real) for bound in clip)
        if clip is not None and not (pair and -math.inf < clip[0] < clip[1] < math.inf):
            raise ValueError(f"clip must be two numbers, the lower one first, or None, got {clip!r}")


def store_arguments(estimator: BaseEstimator, given: dict[str, Any]) -> None:
    """Store the arguments of an estimator under their own names, as scikit-learn requires."""
    for name in type(estimator)._get_param_names():
        setattr(estimator, name, given[name])


def square(d: int) -> Image | None:
    """The square image of one channel with d pixels, if there is one."""
    side = math.isqrt(d)
    return (1, side, side) if side * side == d else None


def crop(sides: list[int], times: int) -> tuple[int, int]:
    """Which convolution of the decoder crops its image, and by how much, after `times` halvings.

    Halves are rounded up: 28 becomes 14, 7 and 4, and 4 becomes 8, 16 and 32. Cropped by 2 after the second
    doubling, it is 14 and 28 again. Where there is a choice, the crop is even and as early as possible.
    """
    cuts: dict[int, int] = {}
    for turn in range(times + 1):
        whole = 2 ** (times - turn)  # doublings that are still to come
        lost = {-(-side // 2**times) * 2**turn - side // whole for side in sides}
        if len(lost) == 1 and all(side % whole == 0 for side in sides):
            cuts[turn] = lost.pop()
    if not cuts:
        raise ValueError(
            f"images of {sides[0]} x {sides[1]} do not have the same size after {times} halvings and doublings: "
            f"crop or pad them to multiples of {2**times}, or use fewer filters"
        )
    return min(cuts.items(), key=lambda found: (found[1] % 2, found[0]))


@contextmanager
def isolated(device: torch.device, threads: int) -> Iterator[None]:
    """Torch with at most this many threads; its seed and threads are restored afterwards."""
    before = torch.get_num_threads()
    with torch.random.fork_rng([torch.cuda.current_device()] if device.type == "cuda" else []):
        torch.set_num_threads(max(1, min(before, threads)))
        try:
            yield
        finally:
            torch.set_num_threads(before)


@contextmanager
def within_limits() -> Iterator[None]:
    """Report settings outside of their limits as a ValueError, as scikit-learn does."""
    try:
        yield
    except ValidationError as error:
        told = ", ".join(f"{problem['loc'][-1]}: {problem['msg']}" for problem in error.errors() if problem["loc"])
        raise ValueError(f"invalid network or training settings: {told or error.errors()[0]['msg']}") from None


def require_one_of(name: str, found: object, known: tuple[str, ...]) -> None:
    if found not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {found!r}")


def require_whole(name: str, found: object) -> None:
    if not isinstance(found, Integral) or isinstance(found, bool) or int(found) < 1:
        raise ValueError(f"{name} must be a positive integer, got {found!r}")


def require_all_whole(name: str, found: object) -> None:
    if not isinstance(found, tuple | list | np.ndarray):
        raise ValueError(f"{name} must be a tuple of integers, got {found!r}")
    for one in found:
        require_whole(f"each of {name}", one)


def _tensor(rows: Array) -> torch.Tensor:
    """The rows as a tensor, without a copy where the memory is writable."""
    return torch.from_numpy(np.require(rows, requirements=["C", "W"]))
