"""The ops that are measured each on its own, as MobileNet V1 1.0/224 has them: the one table that contenders read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class OpSpec:
    """An op on inputs of `shape` (without the batch).

    `kind` is convolution, depthwise or dense (the last with a bias); batchnorm (with the batch's statistics); pool (the
    mean over all pixels); loss (softmax cross-entropy with integer labels); update (plain SGD). Convolutions have
    `filters`, a square kernel of `size` pixels, a `stride` and padding "same", as problem.py has it.
    """

    kind: str
    shape: tuple[int, ...]
    filters: int = 0
    size: int = 1
    stride: int = 1

    @property
    def reads_pictures(self) -> bool:
        """Whether its input is the network's, whose gradient nobody wants."""
        return self.shape[-1] == 3

    @property
    def weights(self) -> dict[str, tuple[int, ...]]:
        """The shapes of what is trained, as Keras has them."""
        channels = self.shape[-1]
        return {
            "convolution": {"kernel": (self.size, self.size, channels, self.filters)},
            "depthwise": {"kernel": (self.size, self.size, channels, 1)},
            "dense": {"kernel": (channels, self.filters), "bias": (self.filters,)},
            "batchnorm": {"gamma": (channels,), "beta": (channels,)},
        }.get(self.kind, {})

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the output, without the batch; of the loss (), of an update that of the parameters."""
        channels = self.filters or self.shape[-1]
        if self.kind in ("convolution", "depthwise"):
            return -(-self.shape[0] // self.stride), -(-self.shape[1] // self.stride), channels
        return {"dense": (channels,), "pool": (channels,), "loss": ()}.get(self.kind, self.shape)


OPS = {
    "conv1": OpSpec("convolution", (224, 224, 3), 32, 3, 2),
    "conv_dw_1": OpSpec("depthwise", (112, 112, 32), size=3),
    "conv_pw_1": OpSpec("convolution", (112, 112, 32), 64),
    "conv_pw_1_bn": OpSpec("batchnorm", (112, 112, 64)),
    "conv_dw_2": OpSpec("depthwise", (112, 112, 64), size=3, stride=2),
    "conv_pw_3": OpSpec("convolution", (56, 56, 128), 128),
    "conv_dw_7": OpSpec("depthwise", (14, 14, 512), size=3),
    "conv_pw_7": OpSpec("convolution", (14, 14, 512), 512),
    "conv_pw_13": OpSpec("convolution", (7, 7, 1024), 1024),
    "pool": OpSpec("pool", (7, 7, 1024)),
    "dense": OpSpec("dense", (1024,), 1000),
    "loss": OpSpec("loss", (1000,)),
    "update": OpSpec("update", (4_231_976,)),
}


@dataclass(frozen=True)
class OpProblem:
    """What an op works on: inputs `x` (batch, ...), `weights` in Keras's shapes, `dy` the gradient of its output, and
    `labels` of the loss. An update takes `learning_rate` times `dy` from `x`."""

    spec: OpSpec
    x: np.ndarray
    weights: dict[str, np.ndarray]
    dy: np.ndarray
    labels: np.ndarray
    learning_rate: float


def make_op_problem(spec: OpSpec, batch: int, seed: int, learning_rate: float) -> OpProblem:
    """Normal numbers; kernels by He's initialization. Same arguments, same numbers."""
    random = np.random.default_rng([seed, 4])

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        return random.standard_normal(shape, np.float32)

    x, dy = draw((batch, *spec.shape)), draw((batch, *spec.output_shape))
    weights = {name: draw(shape) for name, shape in spec.weights.items()}
    if "kernel" in weights:
        kernel = weights["kernel"]
        weights["kernel"] = kernel * np.float32((2 * kernel.shape[-1] / kernel.size) ** 0.5)
    return OpProblem(spec, x, weights, dy, random.integers(0, spec.shape[-1], batch), learning_rate)


def digest(*arrays: np.ndarray) -> list[float]:
    """Two numbers for each array, by which contenders are compared: the logarithm of its size, and its share in a
    direction that depends on its place and shape alone. Arrays are in Keras's layouts."""
    numbers = []
    for place, array in enumerate(arrays):
        flat = np.asarray(array, np.float64).ravel()
        direction = np.random.default_rng([place, flat.size]).standard_normal(flat.size)
        size = float(np.linalg.norm(flat))
        numbers += [float(np.log(size)), float(flat @ direction) / size if size else 0.0]
    return numbers
