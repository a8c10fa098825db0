"""Ops by themselves in tinygrad."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from edgelearn.lab.bench.ops import OpProblem, OpSpec, digest
from edgelearn.lab.bench.problem import EPSILON

if TYPE_CHECKING:
    from tinygrad import Tensor

Step = Callable[[], Callable[[], list[float]]]


def prepare(problem: OpProblem, trains: bool, synchronize: Callable[[], None]) -> Step:
    """The step of an op, its kernels generated once and replayed; `synchronize` waits for the device."""
    from tinygrad import Context, Tensor, TinyJit

    spec = problem.spec
    x, dy = _forth(problem.x), _forth(problem.dy)
    labels = Tensor(problem.labels.astype(np.int32)).realize()
    weights = [_weight_forth(array, spec) for array in problem.weights.values()]

    def compute(x: Tensor, dy: Tensor) -> list[Tensor]:
        if spec.kind == "update":
            return [x.assign(x - problem.learning_rate * dy).realize()]
        y = x.sparse_categorical_crossentropy(labels) if spec.kind == "loss" else _forward(spec, x, weights)
        if not trains:
            return [y.realize()]
        wanted = weights if spec.reads_pictures else [x, *weights]
        results = [y, *y.gradient(*wanted, gradient=None if spec.kind == "loss" else dy)]
        Tensor.realize(*results)
        return results

    jitted = TinyJit(compute)

    def step() -> Callable[[], list[float]]:
        with Context(TRAINING=1):
            results = jitted(x, dy)
        synchronize()
        return lambda: digest(*_back(results, spec))

    return step


def _forward(spec: OpSpec, x: Tensor, weights: list[Tensor]) -> Tensor:
    if spec.kind == "pool":
        return x.mean((2, 3))
    if spec.kind == "dense":
        return x @ weights[0] + weights[1]
    if spec.kind == "batchnorm":
        mean = x.mean((0, 2, 3))
        variance = (x - mean.reshape(1, -1, 1, 1)).square().mean((0, 2, 3))
        return x.batchnorm(*weights, mean, (variance + EPSILON).rsqrt())
    edge = spec.size // 2
    padding = (0, edge, 0, edge) if spec.stride == 2 else edge  # "same": below and to the right
    groups = spec.shape[-1] if spec.kind == "depthwise" else 1
    return x.conv2d(weights[0], None, groups, spec.stride, padding=padding)


def _forth(array: np.ndarray) -> Tensor:
    """Keras's layout to tinygrad's."""
    from tinygrad import Tensor

    return Tensor(np.ascontiguousarray(array.transpose(0, 3, 1, 2) if array.ndim == 4 else array)).realize()


def _weight_forth(array: np.ndarray, spec: OpSpec) -> Tensor:
    from tinygrad import Tensor

    order = (2, 3, 0, 1) if spec.kind == "depthwise" else (3, 2, 0, 1)
    return Tensor(np.ascontiguousarray(array.transpose(order) if array.ndim == 4 else array)).realize()


def _back(results: list[Tensor], spec: OpSpec) -> list[np.ndarray]:
    """Output, gradient of the input where there is one, gradients of the weights: in Keras's layouts."""
    arrays = [tensor.numpy() for tensor in results]
    weights = len(arrays) - len(spec.weights) if len(arrays) > 1 else 1
    order = (2, 3, 0, 1) if spec.kind == "depthwise" else (2, 3, 1, 0)
    pictures = [a.transpose(0, 2, 3, 1) if a.ndim == 4 else a for a in arrays[:weights]]
    return pictures + [a.transpose(order) if a.ndim == 4 else a for a in arrays[weights:]]
