"""Time what Model and Trainer add to a session's own steps: `python tools/time_overheads.py`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from statistics import median
from time import perf_counter

import numpy as np

import edgelearn as el
from edgelearn.ops import Conv2D, Dense, GlobalAveragePooling2D, ReLU
from edgelearn.runtime import Session

WARM_UP = 5


def milliseconds(call: Callable[[], object], times: int) -> float:
    """Median time of `times` calls after a warm-up."""
    for _ in range(WARM_UP):
        call()
    seconds = []
    for _ in range(times):
        start = perf_counter()
        call()
        seconds.append(perf_counter() - start)
    return 1e3 * median(seconds)


def predictions(rng: np.random.Generator) -> None:
    """Compare a warm `predict` of one example with the session's own step."""
    network = el.Network("small", (16, 16, 3))
    network.add("conv1", Conv2D(32, 3, padding="same"))
    network.add("relu", ReLU())
    network.add("conv2", Conv2D(26, 3, padding="same"))
    network.add("pool", GlobalAveragePooling2D())
    network.add("dense", Dense(10))
    x = rng.standard_normal((1, 16, 16, 3), dtype=np.float32)
    model = el.Model(network)
    predict = milliseconds(lambda: model.predict(x), 500)
    session = Session(model.forward_plan(1), model.context, model.kernels)
    session.load(model.weights)
    packed = session.pack(x)
    step = milliseconds(lambda: session.predict(packed, 1), 500)
    print(f"{network.count():,} parameters: predict {predict:.3f} ms, the session's step {step:.3f} ms")


def trainer(rng: np.random.Generator) -> None:
    """Compare loading other weights of MobileNet V1 and a step with the two on their own."""
    model = el.Model(el.models.mobilenet_v1(classes=5)).compile(el.SGD(0.001, momentum=0.9), batchnorm="moving")
    x, y = rng.standard_normal((1, 224, 224, 3), dtype=np.float32), np.array([1])
    sets = cycle([dict(model.weights), dict(model.weights)])
    with model.trainer(batch_size=1) as opened:
        load = milliseconds(lambda: opened.load(next(sets)), 25)
        step = milliseconds(lambda: opened.step(x, y), 25)
        both = milliseconds(lambda: (opened.load(next(sets)), opened.step(x, y)), 25)
    print(f"MobileNet V1, batch 1: load {load:.1f} ms, step {step:.1f} ms, load and step {both:.1f} ms")


if __name__ == "__main__":
    generator = np.random.default_rng(0)
    predictions(generator)
    trainer(generator)
