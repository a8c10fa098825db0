"""The numbers a workload works on, made from its seed: every contender gets the same ones.

The network is MobileNet V1 1.0/224 (Howard et al. 2017, arXiv:1704.04861) as Keras publishes it: padding "same",
which for stride 2 adds one row below and one column to the right, and BatchNorm with epsilon 1e-3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .ops import OpProblem, make_op_problem
from .workloads import Workload

EPSILON = 1e-3
MOVING_AVERAGE = 0.99  # how much of the kept statistics stays at a step with batch statistics
BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)) + ((512, 1),) * 5 + ((1024, 2), (1024, 1))


@dataclass(frozen=True)
class ConvBatchNorm:
    """A convolution without bias, BatchNorm, ReLU6.

    `kernel` is (height, width, in, out), for a depthwise convolution (height, width, channels).
    """

    name: str
    stride: int
    kernel: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    @property
    def depthwise(self) -> bool:
        return self.kernel.ndim == 3

    def folded(self) -> tuple[np.ndarray, np.ndarray]:
        """Kernel and bias of the one convolution that equals this one and its BatchNorm."""
        scale = self.gamma / np.sqrt(self.variance + np.float32(EPSILON))
        return self.kernel * scale, self.beta - self.mean * scale


@dataclass(frozen=True)
class Problem:
    """Layers in order, then the mean over the pixels, then a dense layer (in, classes); inputs are NHWC."""

    layers: list[ConvBatchNorm]
    dense_kernel: np.ndarray
    dense_bias: np.ndarray
    inputs: np.ndarray
    labels: np.ndarray


def make_problem(workload: Workload) -> Problem | OpProblem:
    """Weights, inputs and labels of `workload`, of an op by itself an OpProblem. Same workload, same numbers."""
    if workload.op:
        return make_op_problem(workload.op, workload.batch, workload.seed, workload.learning_rate)
    random = np.random.default_rng([workload.seed, 1])
    inputs = np.random.default_rng([workload.seed, 2])
    classes = 5 if workload.kind == "cached" else 1000
    if workload.kind == "cached":
        layers = [_layer(random, "conv_pw_13", (1, 1, 1024, 1024))]
        data = np.clip(inputs.standard_normal((workload.batch, 7, 7, 1024), np.float32), 0, 6)
    else:
        layers = _mobilenet(random)
        data = inputs.random((workload.batch, 224, 224, 3), np.float32) * 2 - 1
    kernel = random.standard_normal((1024, classes), np.float32) * np.float32(1024**-0.5)
    labels = inputs.integers(0, classes, workload.batch)
    return Problem(layers, kernel, np.zeros(classes, np.float32), data, labels)


def _mobilenet(random: np.random.Generator) -> list[ConvBatchNorm]:
    layers = [_layer(random, "conv1", (3, 3, 3, 32), 2)]
    channels = 32
    for i, (filters, stride) in enumerate(BLOCKS, 1):
        layers.append(_layer(random, f"conv_dw_{i}", (3, 3, channels), stride))
        layers.append(_layer(random, f"conv_pw_{i}", (1, 1, channels, filters)))
        channels = filters
    return layers


def _layer(random: np.random.Generator, name: str, shape: tuple[int, ...], stride: int = 1) -> ConvBatchNorm:
    """He's initialization keeps the second moment near 1 through ReLU6, so statistics near 0 and 1 are fitting."""
    fan_in = int(np.prod(shape[:3] if len(shape) == 4 else shape[:2]))
    channels = shape[-1]
    kernel = random.standard_normal(shape, np.float32) * np.float32((2 / fan_in) ** 0.5)

    def around(center: float, width: float) -> np.ndarray:
        return random.uniform(center - width, center + width, channels).astype(np.float32)

    return ConvBatchNorm(name, stride, kernel, around(1, 0.1), around(0, 0.1), around(0, 0.1), around(1, 0.1))
