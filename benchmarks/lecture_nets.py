"""The lecture's autoencoders in Keras, and MNIST's images as numpy reads them, for the baselines of benchmarks."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

PARAMETERS = {"dense": 161_804, "conv": 1_185, "denoising": 28_353}
FILES = {"train": "train-images-idx3-ubyte.gz", "test": "t10k-images-idx3-ubyte.gz"}


def mnist(folder: Path, split: str) -> Any:
    """The images of a split as bytes, (N, 28, 28)."""
    import numpy as np

    with gzip.open(folder / FILES[split]) as file:
        content = file.read()
    assert content[:4] == b"\0\0\x08\x03", folder / FILES[split]  # bytes in three dimensions
    return np.frombuffer(content, np.uint8, offset=16).reshape(-1, 28, 28)


def given_to_keras(name: str, images: Any) -> Any:
    """Pixels from 0 to 1 in the shape of a network's input: vectors, or images with the channel last."""
    return (images.astype("float32") / 255).reshape(len(images), *((784,) if name == "dense" else (28, 28, 1)))


def keras_net(name: str) -> Any:
    """One of the networks, layer by layer as in the lecture."""
    import keras
    from keras.layers import Conv2D, Dense, Input, MaxPooling2D, UpSampling2D

    def conv(filters: int, padding: str = "same") -> Any:
        return Conv2D(filters, (3, 3), activation="relu", padding=padding)

    def pool() -> Any:
        return MaxPooling2D((2, 2), padding="same")

    def larger() -> Any:
        return UpSampling2D((2, 2))

    layers = {
        "dense": lambda: [Input((784,)), *(Dense(width, activation="relu") for width in (100, 20, 100, 784))],
        "conv": lambda: [
            Input((28, 28, 1)), conv(8), pool(), conv(4), pool(), conv(4), pool(),
            conv(4), larger(), conv(4), larger(), conv(8, "valid"), larger(), conv(1),
        ],
        "denoising": lambda: [
            Input((28, 28, 1)), conv(32), pool(), conv(32), pool(),
            conv(32), larger(), conv(32), larger(), conv(1),
        ],
    }  # fmt: skip
    net = keras.Sequential(layers[name]())
    assert net.count_params() == PARAMETERS[name], (name, net.count_params())
    return net


def keras_rmsprop(eps_place: str) -> Any:
    """Its optimizer with epsilon under the root, as it is, or after the root, as it was up to Keras 2.10."""
    import keras
    from keras import ops

    class Former(keras.optimizers.RMSprop):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            average = self._velocities[self._get_variable_index(variable)]
            self.assign(average, self.rho * average + (1 - self.rho) * ops.square(gradient))
            self.assign_sub(variable, learning_rate * gradient / (ops.sqrt(average) + self.epsilon))

    return Former() if eps_place == "after_root" else keras.optimizers.RMSprop()
