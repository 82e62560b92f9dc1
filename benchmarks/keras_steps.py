"""The same training steps in Heedful and Keras, from the same weights and batches, and how far they differ.

    python benchmarks/keras_steps.py --data FOLDER --keras PYTHON

FOLDER holds the files of MNIST. PYTHON has keras and jax: `pip install keras "jax[cpu]"`. Keras draws the weights of
each of the lecture's nets and trains on batches of 128 in the order of the file; Heedful is given the same weights, and
its own loop goes through the same images. Reported are the greatest differences of losses and of weights, beside how
far the weights have moved.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent)]
from lecture_nets import PARAMETERS, given_to_keras, keras_net, keras_rmsprop, mnist  # noqa: E402

BATCH, PLACES = 128, ("under_root", "after_root")


def by_keras(net: str, eps_place: str, data: Path, steps: int, file: Path) -> None:
    """Keep the weights before and after, and the loss of each step."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    batches = given_to_keras(net, mnist(data, "train")[: steps * BATCH]).reshape(steps, BATCH, -1)
    model = keras_net(net)
    model.compile(optimizer=keras_rmsprop(eps_place), loss="mean_squared_error")
    found = {f"before {number}": weight for number, weight in enumerate(model.get_weights())}
    given = [batch.reshape(-1, *model.input_shape[1:]) for batch in batches]
    found["losses"] = np.array([float(model.train_on_batch(x, x)) for x in given])
    found |= {f"after {number}": weight for number, weight in enumerate(model.get_weights())}
    np.savez(file, **found)


def ours(weight: Any) -> Any:
    """A weight of Keras as torch lays it out."""
    import torch

    return torch.from_numpy(weight.transpose({1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}[weight.ndim]).copy())


def compare(net: str, eps_place: str, data: Path, steps: int, file: Path) -> dict[str, float]:
    """Take the same steps, and return the differences from those of Keras."""
    import numpy as np
    import torch

    from heedful.data.images.batches import EncodedImages, ImageBatches
    from heedful.models import build
    from heedful.runs.recipe import load_recipe
    from heedful.tasks import task_of
    from heedful.training.loop import Counters, Step, fit

    class InOrder(ImageBatches):
        def _order(self, epoch: int) -> Any:
            return torch.arange(len(self.encoded))

    theirs = np.load(file)
    settings = [f"train.optimizer.eps_place={eps_place}", f"train.budget={{steps: {steps}}}"]
    recipe = load_recipe(f"mnist-{net}", ["task.noise=0", *settings])
    task: Any = task_of(recipe)
    model: Any = build(recipe.model)
    weights = list(model.parameters())
    with torch.no_grad():
        for number, weight in enumerate(weights):
            weight.copy_(ours(theirs[f"before {number}"]))
    images = torch.from_numpy(mnist(data, "train")[: steps * BATCH, None].copy())
    batches, loss_of = InOrder(EncodedImages(images), 0, BATCH), task.loss_of(model, False)
    cpu = torch.device("cpu")
    events = fit(model, loss_of, batches, recipe.train, cpu, None, {}, Counters(), records=task.records)
    losses = [event.loss for event in events if isinstance(event, Step)]
    ends = [ours(theirs[f"after {number}"]) for number in range(len(weights))]
    starts = [ours(theirs[f"before {number}"]) for number in range(len(weights))]
    return {
        "steps": steps,
        "first loss": losses[0],
        "last loss": losses[-1],
        "losses apart": float(np.abs(np.array(losses) - theirs["losses"]).max()),
        "weights apart": max(float((a.detach() - b).abs().max()) for a, b in zip(weights, ends, strict=True)),
        "weights moved": max(float((a - b).abs().max()) for a, b in zip(starts, ends, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the files of MNIST")
    parser.add_argument("--keras", metavar="PYTHON", default=sys.executable, help="a Python with keras and jax")
    parser.add_argument("--only", nargs="+", default=list(PARAMETERS), choices=list(PARAMETERS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        net, place, file = options.worker
        by_keras(net, place, options.data, options.steps, Path(file))
        return
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for net in options.only:
            for place in PLACES:
                file = Path(folder, f"{net}-{place}.npz")
                words = [options.keras, __file__, "--data", str(options.data), "--steps", str(options.steps)]
                settings = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
                subprocess.run([*words, "--worker", net, place, str(file)], check=True, env=os.environ | settings)
                found[f"{net}, epsilon {place}"] = compare(net, place, options.data, options.steps, file)
                print(f"{net}, epsilon {place}: {found[f'{net}, epsilon {place}']}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
