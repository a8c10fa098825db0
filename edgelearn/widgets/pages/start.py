"""The tour: devices, a small task, a training, its plan, micro-batches, freezing, the feature cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgelearn.compile import Plan
from edgelearn.display import Displayed
from edgelearn.experiments.memory_plans import plot_roles, plot_timeline
from edgelearn.graph import Network
from edgelearn.ops import SGD, Adam, Conv2D, Dense, GlobalAveragePooling2D, ReLU, Softmax
from edgelearn.runtime import choose_device, self_test
from edgelearn.tables import Table
from edgelearn.train import Model
from edgelearn.widgets.pictures import Waiting, contact_sheet, device_table, plot_prediction

from .shown import Shown

DIRECTIONS = ("horizontal", "rising", "vertical", "falling")
_SIDE = 32  # pixels


def devices(device: str | None = None) -> Shown:
    """Show the machine's devices, the chosen one first, and its self-test: two kernels compared with NumPy, and timed.

    Arguments:
    - `device`: part of a device's name (default: the best one).
    """
    choice = choose_device(device)
    with Waiting("Testing the device"):
        test = self_test(choice.device)
    rows = [
        ("self-test", "passed" if test.passed else "failed"),
        ("memory bandwidth", f"{test.bandwidth / 1e9:.1f} GB/s"),
        ("multiply-adds", f"{test.flops / 1e9:.0f} GFLOP/s"),
    ]
    return Shown(f"{choice.device.id}: {rows[0][1]}", device_table(choice), Table((), rows))


@dataclass(frozen=True, repr=False)
class Stripes(Displayed):
    """Pictures of stripes under noise; the class is their direction.

    Arguments:
    - `pictures`, `test_pictures`: uint8 (n, 32, 32, 3).
    - `y`, `test_y`: int labels.
    """

    pictures: np.ndarray
    y: np.ndarray
    test_pictures: np.ndarray
    test_y: np.ndarray

    @property
    def train(self) -> tuple[np.ndarray, np.ndarray]:
        """(x, y) to train with, x float32 in -1..1."""
        return self.pictures / np.float32(127.5) - 1, self.y

    @property
    def test(self) -> tuple[np.ndarray, np.ndarray]:
        """(x, y) to test with."""
        return self.test_pictures / np.float32(127.5) - 1, self.test_y

    @property
    def headline(self) -> str:
        return f"{len(self.y)} to train and {len(self.test_y)} to test with, in {len(DIRECTIONS)} directions"

    def _repr_html_(self) -> str:
        sheet = contact_sheet(list(self.pictures[:8]), [DIRECTIONS[label] for label in self.y[:8]])
        return f"{sheet.data}<p>{self.headline}</p>"


def stripes(count: int = 800, test: int = 200, seed: int = 0) -> Stripes:
    """Draw stripes in four directions, `count` pictures to train and `test` to test with."""
    return Stripes(*_draw(count, seed), *_draw(test, seed + 1))


def _draw(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(DIRECTIONS), count)
    angle, phase, wavelength = labels * np.pi / 4, rng.uniform(0, 2 * np.pi, count), rng.uniform(5, 9, count)
    down, right = np.mgrid[:_SIDE, :_SIDE]
    across = np.cos(angle)[:, None, None] * down + np.sin(angle)[:, None, None] * right
    wave = np.sin(2 * np.pi * across / wavelength[:, None, None] + phase[:, None, None])
    colors = rng.uniform(0.2, 1, (count, 1, 1, 3))
    noisy = 0.5 + 0.3 * wave[..., None] * colors + rng.normal(0, 0.2, (count, _SIDE, _SIDE, 1))
    return (255 * noisy.clip(0, 1)).astype(np.uint8), labels


def tiny_model(seed: int = 0) -> Model:
    """A network of three convolutions for the stripes, compiled with Adam at 0.001."""
    network = Network("tiny", (_SIDE, _SIDE, 3))
    for block, filters in enumerate((16, 32, 64), start=1):
        network.add(f"conv_{block}", Conv2D(filters, 3, strides=2, padding="same"))
        network.add(f"relu_{block}", ReLU())
    network.add("pool", GlobalAveragePooling2D())
    network.add("dense", Dense(len(DIRECTIONS)))
    network.add("softmax", Softmax())
    return Model(network, seed=seed).compile(Adam(0.001))


def prediction(model: Model, examples: Stripes, number: int = 0) -> Shown:
    """Name a test picture: the picture, and the probability of each class."""
    probabilities = model.predict(examples.test[0][number : number + 1])[0]
    truth, named = DIRECTIONS[examples.test_y[number]], DIRECTIONS[probabilities.argmax()]
    figure = plot_prediction(examples.test_pictures[number], DIRECTIONS, probabilities, f"in truth: {truth}")
    return Shown(f"named {named}, in truth {truth}", figure)


def timeline(plan: Plan) -> Shown:
    """Draw the memory of a plan over its step."""
    return Shown(repr(plan), plot_timeline(plan))


def micro_batches(model: Model, batch_size: int, parts: Sequence[int]) -> Shown:
    """Plan a mini-batch as micro-batches of each of these sizes; show the memory by role."""
    plans = {f"{batch_size} as {batch_size // part} × {part}": model.plan(batch_size, part) for part in parts}
    return Shown(", ".join(plans), plot_roles(plans))


def same_gradients(examples: Stripes, whole: int = 8, part: int = 1) -> Table:
    """Compare the gradients of a mini-batch of `whole` examples with those of micro-batches of `part`: one step of SGD
    at learning rate 1 changes each weight by its gradient."""

    def gradients(micro_batch: int) -> dict[str, np.ndarray]:
        model = tiny_model().compile(SGD(1.0))
        before, (x, y) = dict(model.weights), examples.train
        model.fit(x[:whole], y[:whole], batch_size=whole, micro_batch=micro_batch, verbose=0)
        return {name: before[name] - model.weights[name] for name in model.network.trainable}

    one, many = gradients(whole), gradients(part)
    rows = [
        (name, f"{abs(one[name]).max():.4f}", f"{abs(one[name] - many[name]).max():.1e}")
        for name in tiny_model().network.parameters
    ]
    return Table(("parameter", "largest gradient", "largest difference"), rows)


def _frozen(model: Model, layers: Sequence[str]) -> Model:
    frozen = Model(tiny_model().network, model.weights).compile(SGD(0.01, momentum=0.9))
    frozen.network.freeze().unfreeze(*layers)
    return frozen


def freezing(model: Model, *layers: str, batch_size: int = 40) -> Shown:
    """Plan the training of all layers, and of `layers` alone: memory by role, launches and trained parameters."""
    plans = {
        "everything trained": model.plan(batch_size),
        f"{', '.join(layers)} trained": _frozen(model, layers).plan(batch_size),
    }
    rows = []
    for name, plan in plans.items():
        network = plan.request.network
        trained = sum(network.parameters[each].weight.size for each in network.trainable)
        rows.append((name, len(plan.step_launches), trained))
    return Shown(", ".join(plans), plot_roles(plans), Table(("", "launches a step", "trained parameters"), rows))


def feature_cache(model: Model, examples: Stripes, *layers: str, epochs: int = 10) -> Table:
    """Train `layers` alone with and without keeping the features of the frozen ones: time of an epoch, and whether the
    weights are equal."""

    def trained(cache: str | None) -> tuple[Model, float]:
        copy = _frozen(model, layers)
        history = copy.fit(*examples.train, batch_size=40, epochs=epochs, cache=cache, verbose=0)
        return copy, float(np.median(history.history["seconds"]))

    with Waiting("Training twice", model.device):
        (plain, slow), (cached, fast) = trained(None), trained("fp32")
    same = all(np.array_equal(plain.weights[name], cached.weights[name]) for name in plain.weights)
    rows = [("an epoch without the cache", f"{1e3 * slow:.1f} ms"), ("an epoch with it", f"{1e3 * fast:.1f} ms"),
            ("weights equal to the bit", "yes" if same else "no")]  # fmt: skip
    return Table((), rows)
