"""The data of the lecture on autoencoders."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from heedful.data.images.sources import IdxImages, ImageFiles, scale_pixels

MNIST = Path(os.environ.get("HEEDFUL_DATA", "../shared/data"), "mnist")


@pytest.mark.claim("K3")
@pytest.mark.skipif(not MNIST.is_dir(), reason=f"no MNIST in {MNIST}; set HEEDFUL_DATA")
def test_mnist_shapes_and_labels() -> None:
    data = IdxImages(
        root=str(MNIST),
        train=ImageFiles(images="train-images-idx3-ubyte.gz", labels="train-labels-idx1-ubyte.gz"),
        test=ImageFiles(images="t10k-images-idx3-ubyte.gz", labels="t10k-labels-idx1-ubyte.gz"),
    )
    assert data.problems() == []
    for split, count, first in (("train", 60_000, [5, 0, 4, 1, 9]), ("test", 10_000, [7, 2, 1, 0, 4])):
        images = data.read(split)  # type: ignore[arg-type]
        assert images.pixels.shape == (count, 1, 28, 28)
        assert images.vectors.shape == (count, 784)
        assert images.labels is not None and images.labels.shape == (count,)
        assert np.unique(images.labels).tolist() == list(range(10))
        assert images.labels[:5].tolist() == first
        assert images.names == tuple("0123456789")
        vectors = scale_pixels(images.vectors)
        assert (vectors.min(), vectors.max(), vectors.dtype) == (0, 1, np.float32)
