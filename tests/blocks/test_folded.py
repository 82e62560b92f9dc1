"""ConvNets folded for the CPU: the same outputs without batch norms, in float32 and nearly so in bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heedful.blocks.convolution import ConvNorm, ConvNormRelu
from heedful.blocks.folded import FoldedConvolution, fold
from heedful.data.images.image_spec import ImageSpec
from heedful.errors import UserError
from heedful.models import build, config_class, kinds_of
from heedful.tasks.image_classification.predictor import ImageClassifier
from tolerance import close


def trained(kind: str) -> Any:
    """A model with running statistics of its own."""
    torch.manual_seed(1)
    model = build(config_class(kind).tiny())
    with torch.no_grad():
        for _ in range(2):
            model.train()(torch.randn(5, *model.config.input) + 1)
    return model.eval()


@pytest.mark.parametrize("kind", kinds_of("image_encoder"))
def test_outputs_are_the_same(kind: str) -> None:
    model = trained(kind)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(3, *model.config.input)
    with torch.inference_mode():
        truth, folded = model(x), fold(model, torch.float32)
        close(folded(x), truth)
        half = fold(model, torch.bfloat16)(x.bfloat16()).float()
        assert float((half - truth).abs().max()) < 0.03 * float(truth.abs().max())
    assert not any(type(part) in (ConvNorm, ConvNormRelu) for part in folded.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_classifier_for_the_cpu_predicts_the_same(tmp_path: Path) -> None:
    model = trained("resnet")
    channels, rows, columns = model.config.input
    spec = ImageSpec((channels, rows, columns), ("a", "b", "c"), (0.5,), (0.2,))
    classifier = ImageClassifier(model, spec, torch.device("cpu"))
    images = list(np.random.default_rng(0).integers(0, 256, (4, rows, columns), np.uint8))
    for other, most in ((classifier.for_cpu(), 1e-5), (classifier.for_cpu(bf16=True), 0.03)):
        for one, two in zip(classifier.predict(images), other.predict(images), strict=True):
            assert all(abs(two.probabilities[name] - share) < most for name, share in one.probabilities.items())
        assert any(isinstance(part, FoldedConvolution) for part in other.model.modules())
        with pytest.raises(UserError, match="cannot be saved"):
            other.save(tmp_path / "model")
