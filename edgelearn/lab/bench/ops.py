"""Single ops that can be measured, with the shapes they have in MobileNet V1 1.0/224."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.graph import Network
from edgelearn.ops import (
    SGD,
    BatchNormalization,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    GlobalAveragePooling2D,
    Loss,
    Op,
    Optimizer,
    SoftmaxCrossEntropy,
)
from edgelearn.ops.tensor import Shape

NAME = "op"  # of the layer in a network of one op


@dataclass(frozen=True)
class OpSpec:
    """An op on inputs of `shape`, without the batch; an update is one of parameters of this shape."""

    op: Op | Loss | Optimizer
    shape: Shape

    @property
    def reads_pictures(self) -> bool:
        """True if its input is the network's, whose gradient nobody needs."""
        return self.shape[-1] == 3

    @property
    def output_shape(self) -> Shape:
        """Without the batch; () of a loss, the parameters' of an update."""
        if isinstance(self.op, Op):
            return self.op.output_shape(self.shape)
        return () if isinstance(self.op, Loss) else self.shape

    def network(self) -> Network:
        """The op as a network of one layer."""
        assert isinstance(self.op, Op)
        network = Network(NAME, self.shape)
        network.add(NAME, self.op)
        return network


def _conv(filters: int, size: int = 1, strides: int = 1) -> Conv2D:
    return Conv2D(filters, size, strides, "same", use_bias=False)


def _depthwise(strides: int = 1) -> DepthwiseConv2D:
    return DepthwiseConv2D(3, strides, "same", use_bias=False)


OPS = {
    "conv1": OpSpec(_conv(32, 3, 2), (224, 224, 3)),
    "conv_dw_1": OpSpec(_depthwise(), (112, 112, 32)),
    "conv_pw_1": OpSpec(_conv(64), (112, 112, 32)),
    "conv_pw_1_bn": OpSpec(BatchNormalization(), (112, 112, 64)),  # with the batch's statistics
    "conv_dw_2": OpSpec(_depthwise(2), (112, 112, 64)),
    "conv_pw_3": OpSpec(_conv(128), (56, 56, 128)),
    "conv_dw_7": OpSpec(_depthwise(), (14, 14, 512)),
    "conv_pw_7": OpSpec(_conv(512), (14, 14, 512)),
    "conv_pw_13": OpSpec(_conv(1024), (7, 7, 1024)),
    "pool": OpSpec(GlobalAveragePooling2D(), (7, 7, 1024)),
    "dense": OpSpec(Dense(1000), (1024,)),
    "loss": OpSpec(SoftmaxCrossEntropy(), (1000,)),
    "update": OpSpec(SGD(), (4_231_976,)),
}


@dataclass(frozen=True)
class OpProblem:
    """Numbers for a single op.

    - `x`: inputs (batch, ...); of an update the parameters.
    - `weights`: by role ("kernel"), in the network's shapes; moving statistics among them.
    - `dy`: gradient of the output; of an update that of the parameters.
    - `labels`: of the loss.
    """

    spec: OpSpec
    x: np.ndarray
    weights: dict[str, np.ndarray]
    dy: np.ndarray
    labels: np.ndarray
    learning_rate: float

    @property
    def trained(self) -> dict[str, np.ndarray]:
        """The weights that have gradients."""
        return {role: array for role, array in self.weights.items() if not role.startswith("moving")}

    @property
    def named_weights(self) -> dict[str, np.ndarray]:
        """Weights by their names in the network of one layer."""
        return {f"{NAME}/{role}": array for role, array in self.weights.items()}


def make_op_problem(spec: OpSpec, batch: int, seed: int, learning_rate: float) -> OpProblem:
    """Normally distributed numbers; kernels by He's initialization. Same arguments, same numbers."""
    random = np.random.default_rng([seed, 4])

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        return random.standard_normal(shape, np.float32)

    x, dy = draw((batch, *spec.shape)), draw((batch, *spec.output_shape))
    weights = {}
    if isinstance(spec.op, Op):
        for role, weight in spec.op.weights(spec.shape).items():
            if not weight.trainable:
                weights[role] = np.full(weight.shape, float(role == "moving_variance"), np.float32)
            else:
                scale = (2 / weight.fan_in) ** 0.5 if role == "kernel" else 1.0
                weights[role] = draw(weight.shape) * np.float32(scale)
    return OpProblem(spec, x, weights, dy, random.integers(0, spec.shape[-1], batch), learning_rate)


def digest(*arrays: np.ndarray) -> list[float]:
    """Two numbers for each array, by which contenders are compared: the logarithm of its norm, and its cosine to a
    direction that depends on its place and size alone. Arrays are in the network's layouts."""
    numbers = []
    for place, array in enumerate(arrays):
        flat = np.asarray(array, np.float64).ravel()
        direction = np.random.default_rng([place, flat.size]).standard_normal(flat.size)
        norm = float(np.linalg.norm(flat))
        numbers += [float(np.log(norm)), float(flat @ direction) / norm if norm else 0.0]
    return numbers
