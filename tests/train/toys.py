"""Networks and examples small enough to train in a blink."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edgelearn import ops
from edgelearn.compile import Precision
from edgelearn.graph import Network
from edgelearn.train import Callback, Model

SHAPE, CLASSES = (6, 6, 3), 3
INT8 = Precision(
    ops.Format(8, True, per_channel=True), ops.Format(8), ops.Format(8, rounding="stochastic"),
    ops.InHindsightMinMax(0.9), exceptions={"dense": None}, traced=True,
)  # fmt: skip


def toy_network(stem: int = 20, dropout: float = 0.0, ceiling: float | None = 6) -> Network:
    """Two convolutions with BatchNorm, of which "stem" makes `stem` channels, and a Dense layer."""
    net = Network("toy", SHAPE)
    for name, op in {"stem": ops.Conv2D(stem, 3, padding="same", use_bias=False), "body": ops.Conv2D(18, 1)}.items():
        net.add(name, op)
        net.add(f"{name}_bn", ops.BatchNormalization(momentum=0.9))
        net.add(f"{name}_relu", ops.ReLU(ceiling))
    net.add("pool", ops.GlobalAveragePooling2D())
    if dropout:
        net.add("dropout", ops.Dropout(dropout))
    net.add("dense", ops.Dense(CLASSES))
    net.add("softmax", ops.Softmax())
    return net


def frozen_stem(**options) -> Network:
    net = toy_network(**options)
    net.freeze("stem", "stem_bn")
    return net


def examples(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noise, brighter in the channel of the class."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, count)
    x = rng.normal(0, 1, (count, *SHAPE))
    x[np.arange(count), :, :, y] += 1
    return x.astype(np.float32), y


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    """Whether two sets of arrays are the same to the bit."""
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


class StopAfter(Callback):
    """Asks to stop at update `updates`."""

    def __init__(self, updates: int) -> None:
        self.updates = updates

    def on_train_batch_end(self, batch, logs) -> None:
        if self.model.position.updates == self.updates:
            self.model.stop_training = True


class Log(Callback):
    """Notes every call, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]

    def on_train_begin(self, logs) -> None:
        self.calls.append(("on_train_begin", dict(logs)))

    def on_epoch_begin(self, epoch, logs) -> None:
        self.calls.append(("on_epoch_begin", epoch))

    def on_train_batch_end(self, batch, logs) -> None:
        self.calls.append(("on_train_batch_end", batch, dict(logs)))

    def on_epoch_end(self, epoch, logs) -> None:
        self.calls.append(("on_epoch_end", epoch, dict(logs)))

    def on_train_end(self, logs) -> None:
        self.calls.append(("on_train_end",))

    def on_compile(self, done, total) -> None:
        self.calls.append(("on_compile", done, total))

    def on_extract(self, done, total) -> None:
        self.calls.append(("on_extract", done, total))


def weights_after(model: Model, *, epochs: int = 2, **options) -> dict[str, np.ndarray]:
    """The weights after training on ten examples in mini-batches of 4, 4 and 2, as micro-batches of 3 and 1, and 2."""
    x, y = examples(10)
    model.fit(x, y, 4, epochs, micro_batch=3, **options)
    return model.weights


def moved(model, other):
    """`other` where `model` stands, through what a file can hold."""
    tensors, state = model.state()
    other.restore({name: array.copy() for name, array in tensors.items()}, json.loads(json.dumps(state)))
    return other


def check_resumed(make, updates: int, **options) -> Model:
    """A training that stops after `updates` has the bits of one that doesn't, continued by the same model and from what
    a file holds. Returns the stopped one, continued."""
    whole, stopped = weights_after(make(), **options), make()
    weights_after(stopped, callbacks=[StopAfter(updates)], **options)
    assert stopped.position.updates == updates
    assert same(weights_after(moved(stopped, make()), **options), whole)
    assert same(weights_after(stopped, **options), whole)
    return stopped


def kept_and_new(optimizer, change, **settings):
    """State before and after `change` of the trained layers between two fits."""
    network = toy_network()
    network.freeze("stem", "stem_bn")
    model = Model(network).compile(optimizer, batchnorm="moving", **settings)
    x, y = examples(10)
    model.fit(x, y, 5)
    before = model.state()[0]
    change(network)
    states = []

    class Look(Callback):
        def on_train_begin(self, logs):
            states.append(self.model.state()[0])

    with pytest.warns(UserWarning, match="frozen or unfrozen") as warned:
        model.fit(x, y, 5, 2, callbacks=[Look()])
    assert len(warned) == 1
    assert np.isfinite(model.evaluate(x, y)["loss"])
    return before, states[0]
