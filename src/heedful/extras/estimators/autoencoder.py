"""Autoencoders as scikit-learn estimators: dense, convolutional and denoising.

Training uses the same code as `heedful train`: with the same settings, and the recipe's seed as `random_state`, the
weights are the same. n samples, d features, k dimensions of a code.
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
from numbers import Real
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ValidationError
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from heedful.data.images.batches import EncodedImages, ImageBatches
from heedful.data.images.image_spec import ImageSpec
from heedful.errors import UserError
from heedful.extras.estimators.settings import (
    DEVICES,
    isolated,
    require_one_of,
    require_positive_integer,
    require_positive_integers,
    seed_of,
    store_arguments,
)
from heedful.files.reading import is_folder
from heedful.hub.model_folder import write_model
from heedful.models import build
from heedful.models.autoencoder.config import AutoencoderConfig, dense
from heedful.models.autoencoder.layers import Activation, AnyLayer, Conv, MaxPool, Upsample
from heedful.models.autoencoder.network import ACTIVATIONS, Network
from heedful.tasks.reconstruction.predictor import BATCH_SIZE, Noise, reconstruction_loss
from heedful.tasks.reconstruction.recipe import ReconstructionTaskConfig
from heedful.tasks.reconstruction.task import PRODUCTS_PER_THREAD
from heedful.training.configs import Budget, TrainConfig
from heedful.training.loop import Counters, Epoch, epochs_to_steps, fit
from heedful.training.optim import AdamW, Constant, RMSprop

Array = npt.NDArray[Any]
Image = tuple[int, int, int]  # channels, rows, columns

SOLVERS = ("rmsprop", "adam")
WORTH_RECORDING = 200  # steps above which recording a step to replay it is faster


class BaseAutoencoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """The base class of all autoencoders: training, encoding and decoding.

    `model_` is the network, with a `summary()` of its layers, an `encoder` and a `decoder`. `loss_curve_` has the mean
    squared error of each epoch, measured during training, and `loss_` is the last of them. Weights are float32; outputs
    are computed in the dtype of the data.
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
        """The image shape of d features."""

    @abstractmethod
    def _config(self, image: Image) -> AutoencoderConfig:
        """The network for images of this shape."""

    def _task(self) -> ReconstructionTaskConfig:
        """The task: to reconstruct the data, for a denoising autoencoder from a noisy copy."""
        return ReconstructionTaskConfig()

    # ------------------------------------------------------------------ fitting
    def fit(self, X: npt.ArrayLike, y: object = None) -> Self:
        """Train the network to reconstruct X (n, d)."""
        self._require_settings()
        data = self._read(X, reset=True)
        with np.errstate(over="ignore"):
            rows = check_array(data, dtype=np.float32, input_name="X", estimator=self)
        image = self._image(rows.shape[1])
        with within_limits():
            config, task, budget = self._config(image), self._task(), Budget(epochs=int(self.max_iter))
        seed = seed_of(self.random_state)
        settings = TrainConfig(
            seed=seed, budget=budget, optimizer=self._optimizer(), schedule=Constant(), clip=None, precision="fp32"
        )
        batches = ImageBatches(EncodedImages(_tensor(rows).view(-1, *image)), seed, self.batch_size)
        try:
            self.model_, self.loss_curve_ = self._train(config, Noise(task.noise, task.clip, seed), batches, settings)
        except UserError as error:
            raise ValueError(f"training diverged ({error.message}): scale X, or lower learning_rate_init") from error
        self.image_shape_, self.n_components_ = image, math.prod(config.code)
        self.loss_, self.n_iter_ = self.loss_curve_[-1], len(self.loss_curve_)
        return self

    def _train(
        self, config: AutoencoderConfig, noise: Noise, batches: Any, settings: TrainConfig
    ) -> tuple[Any, list[float]]:
        """Train a model; returns it with its mean loss in each epoch."""
        device = self._device()
        records = batches.count * self.max_iter >= WORTH_RECORDING
        losses: list[float] = []
        with isolated(device, config.products * batches.size // PRODUCTS_PER_THREAD):
            torch.default_generator.manual_seed(settings.seed)
            model: Any = build(config).to(device)
            for event in fit(
                model, partial(reconstruction_loss, model, noise=noise), batches, epochs_to_steps(settings, batches),
                device, saver=None, about={}, counters=Counters(), records=records,
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
        require_positive_integer("batch_size", self.batch_size)
        require_positive_integer("max_iter", self.max_iter)
        rate = self.learning_rate_init
        if not (isinstance(rate, Real) and 0 < rate < math.inf):
            raise ValueError(f"learning_rate_init must be a number above 0, got {rate!r}")

    def _optimizer(self) -> RMSprop | AdamW:
        """The optimizer; without weight decay, AdamW is Adam."""
        rate = float(self.learning_rate_init)
        if self.solver == "adam":
            return AdamW(lr=rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
        return RMSprop(lr=rate)

    def _device(self) -> torch.device:
        """The device to compute on."""
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device='cuda', but torch finds no GPU here: use device='auto'")
        return torch.device("cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu")

    # ------------------------------------------------------------------ use
    def transform(self, X: npt.ArrayLike) -> Array:
        """The codes of samples X (n, d), (n, k)."""
        check_is_fitted(self)
        return self._apply(self.model_.encoder, self._read(X, reset=False))

    def inverse_transform(self, X: npt.ArrayLike) -> Array:
        """The reconstructions (n, d) of codes X (n, k)."""
        check_is_fitted(self)
        codes = check_array(X, dtype=[np.float64, np.float32], input_name="X", estimator=self)
        if codes.shape[1] != self.n_components_:
            raise ValueError(
                f"X has {codes.shape[1]} features, but codes of this {type(self).__name__} have {self.n_components_}"
            )
        return self._apply(self.model_.decoder, codes)

    def reconstruct(self, X: npt.ArrayLike) -> Array:
        """The reconstructions (n, d) of samples X (n, d)."""
        return self._reconstruct(X)[1]

    def error(self, X: npt.ArrayLike) -> float:
        """The mean squared error of the reconstruction of X, over samples and features."""
        data, reconstructions = self._reconstruct(X)
        return float(np.square(reconstructions - data, dtype=np.float64).mean())

    def score(self, X: npt.ArrayLike, y: object = None) -> float:
        """Minus the mean squared error of the reconstruction of X, so that higher is better, and 0 is best."""
        return -self.error(X)

    def _reconstruct(self, X: npt.ArrayLike) -> tuple[Array, Array]:
        """Samples and their reconstructions."""
        check_is_fitted(self)
        data = self._read(X, reset=False)
        codes = self._apply(self.model_.encoder, data)
        return data, self._apply(self.model_.decoder, codes)

    def _apply(self, network: Network, rows: Array) -> Array:
        """The output of a network for rows, in their own dtype."""
        device, x = self._device(), _tensor(rows).view(-1, *network.shape)
        used = deepcopy(network).to(device, x.dtype)
        with torch.inference_mode():
            parts = [used(part.to(device)).flatten(1).cpu() for part in x.split(BATCH_SIZE)]
        return torch.cat(parts).numpy()

    def _read(self, X: npt.ArrayLike, reset: bool) -> Array:
        """X as a table of finite numbers."""
        return validate_data(self, X, dtype=[np.float64, np.float32], reset=reset)

    # ------------------------------------------------------------------ saving
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save the model as a new folder for `heedful.load` and the command line.

        These scale the bytes of images by 1/255, so fit a model for images on values from 0 to 1.
        """
        check_is_fitted(self)
        target = Path(folder)
        if os.path.lexists(target):
            raise UserError(
                "the target already exists", where=str(target), expected="a new name for the model's folder"
            )
        if not is_folder(target.parent):
            raise UserError(
                "there is no such folder", where=str(target.parent), todo="create it, or name another folder"
            )
        settings = {
            "task": "reconstruction", "model": self.model_.config.model_dump(), "decode": self._task().model_dump(),
        }  # fmt: skip
        about = {"estimator": repr(self)}
        spec = ImageSpec(self.image_shape_).json
        config = json.dumps(settings, indent=2) + "\n"
        write_model(target, config, self.model_.state_dict(), {"images.json": spec}, about)

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle, with the model as its settings and weights."""
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


class Autoencoder(BaseAutoencoder):
    """An autoencoder of dense layers: from d features through `hidden_layer_sizes` to `n_components`, and back.

    `activation` is that of all layers but the last one, `output_activation` that of the last one: relu, sigmoid, tanh
    or linear. If all are linear, it finds the subspace of PCA.

    `solver` is rmsprop or adam, `max_iter` the number of epochs, `batch_size` the number of samples in a
    step. With an integer `random_state`, results on a CPU are reproducible bit for bit. `device` is auto, cpu or cuda.
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
        require_positive_integer("n_components", self.n_components)
        require_positive_integers("hidden_layer_sizes", self.hidden_layer_sizes)


class BaseConvAutoencoder(BaseAutoencoder):
    """The base class of convolutional autoencoders: pooling after each convolution, and upsampling in the decoder."""

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
        cropping, excess = crop(sides, len(widths))
        encoder: list[AnyLayer] = []
        for width in widths:
            encoder += [Conv(filters=width, activation=self.activation), MaxPool()]
        decoder: list[AnyLayer] = []
        for number, width in enumerate([*reversed(widths), channels]):
            activation = self.output_activation if number == len(widths) else self.activation
            if excess and number == cropping:
                decoder.append(Conv(filters=width, size=excess + 1, padding="valid", activation=activation))
            else:
                decoder.append(Conv(filters=width, activation=activation))
            decoder.append(Upsample())
        decoder.pop()  # no upsampling after the last convolution
        return AutoencoderConfig(input=image, encoder=tuple(encoder), decoder=tuple(decoder))

    def _require_settings(self) -> None:
        super()._require_settings()
        require_positive_integers("filters", self.filters)
        if not len(self.filters):
            raise ValueError("filters must not be empty")
        if self.image_shape is not None:
            require_positive_integers("image_shape", self.image_shape)
            if len(self.image_shape) not in (2, 3):
                raise ValueError(
                    f"image_shape must be (rows, columns), (channels, rows, columns) or None, got {self.image_shape!r}"
                )


class ConvAutoencoder(BaseConvAutoencoder):
    """A convolutional autoencoder: for each of `filters`, a 3 x 3 convolution and 2 x 2 max pooling, and the reverse.

    A row of X is a flattened image of `image_shape`, (rows, columns) or (channels, rows, columns). With None, a square
    number of features is an image with one channel, and any other number the channels of a single pixel.
    `image_shape_` is the shape that was used. A code is the flattened output of the last pooling.

    Upsampling must give the original size, as it does for all square images, whose decoder crops in one convolution if
    needed. The other settings are those of `Autoencoder`.
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


class DenoisingAutoencoder(BaseConvAutoencoder):
    """A convolutional autoencoder that is trained to remove noise.

    In training, new Gaussian noise N(0, `noise`^2) is added to every value in every epoch, and the result is clipped to
    `clip`, if set. No noise is added by `transform`, `reconstruct` and `score`. The other settings are those of
    `ConvAutoencoder`.
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


def square(d: int) -> Image | None:
    """The square image of one channel with d pixels, if there is one."""
    side = math.isqrt(d)
    return (1, side, side) if side * side == d else None


def crop(sides: list[int], times: int) -> tuple[int, int]:
    """The index of the decoder's convolution that crops its image, and by how much, after `times` halvings.

    Halves are rounded up: 28 becomes 14, 7 and 4, and 4 becomes 8, 16 and 32. Cropped by 2 after the second
    doubling, it is 14 and 28 again. Where there is a choice, the crop is even and as early as possible.
    """
    crops: dict[int, int] = {}
    for layer in range(times + 1):
        remaining = 2 ** (times - layer)  # the factor of the doublings after this layer
        excess = {-(-side // 2**times) * 2**layer - side // remaining for side in sides}
        if len(excess) == 1 and all(side % remaining == 0 for side in sides):
            crops[layer] = excess.pop()
    if not crops:
        raise ValueError(
            f"images of {sides[0]} x {sides[1]} do not have the same size after {times} halvings and doublings: "
            f"crop or pad them to multiples of {2**times}, or use fewer filters"
        )
    return min(crops.items(), key=lambda one: (one[1] % 2, one[0]))


@contextmanager
def within_limits() -> Iterator[None]:
    """Report settings outside of their limits as a ValueError, as scikit-learn does."""
    try:
        yield
    except ValidationError as error:
        messages = ", ".join(f"{problem['loc'][-1]}: {problem['msg']}" for problem in error.errors() if problem["loc"])
        raise ValueError(f"invalid network or training settings: {messages or error.errors()[0]['msg']}") from None


def _tensor(rows: Array) -> torch.Tensor:
    """The rows as a tensor, without a copy where the memory is writable."""
    return torch.from_numpy(np.require(rows, requirements=["C", "W"]))
