"""Normalization within an example: LayerNormalization, RMSNormalization, GroupNormalization and
LocalResponseNormalization."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from edgelearn.errors import ShapeError
from edgelearn.launch import In

from .base import Arrays, Gradients, Op, Targets, Weight, is_count, only
from .emit import Emitter, GradientSum, start_sum
from .shapes import positions
from .target import Target
from .tensor import BLOCK, Shape, Tensor, ceil_div

STATISTICS = 4  # fields of a set in kernels/normalization.cl
ITEMS = 2  # work-items of a core, each with sums of its own for gradients of weights


@dataclass(frozen=True)
class ExampleNormalization(Op):
    """Base of gamma (x - mean) / sqrt(variance + epsilon) + beta with the mean and variance of parts of an example.

    Arguments:
    - `epsilon`: added to the variance (default 1e-3; PyTorch's is 1e-5).
    - `center`, `scale`: there is a beta, a gamma (default True).

    Raises ShapeError for an epsilon that isn't above 0.
    """

    epsilon: float = 1e-3
    center: bool = True
    scale: bool = True

    has_values = True
    subtracts_mean: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise ShapeError(f"{type(self).__name__} needs an epsilon above 0, not {self.epsilon}.")

    def sets(self, shape: Shape) -> tuple[int, int]:
        """(rows, groups of channels) of an example of `shape` by which values share statistics."""
        raise NotImplementedError

    def weight_shape(self, shape: Shape) -> Shape:
        """The shape of gamma and beta."""
        raise NotImplementedError

    def output_shape(self, shape: Shape) -> Shape:
        self.sets(shape)
        return shape

    def weights(self, shape: Shape) -> dict[str, Weight]:
        there_are = {"gamma": (self.scale, "ones"), "beta": (self.center, "zeros")}
        return {
            role: Weight(self.weight_shape(shape), start) for role, (there_is, start) in there_are.items() if there_is
        }

    def flops(self, shape: Shape) -> int:
        return 8 * prod(shape)

    def _by_set(self, x: np.ndarray) -> np.ndarray:
        """(images, spans, rows, groups, channels)"""
        span, groups = self.sets(x.shape[1:])
        return x.reshape(len(x), -1, span, groups, x.shape[-1] // groups)

    def _normal(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By set: values of mean 0 and deviation 1, and 1 / deviation."""
        sets = self._by_set(x)
        centered = sets - sets.mean((2, 4), keepdims=True) if self.subtracts_mean else sets
        inverse = 1 / np.sqrt(np.square(centered).mean((2, 4), keepdims=True) + self.epsilon)
        return centered * inverse, inverse

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        normal = self._normal(inputs[0])[0].reshape(inputs[0].shape)
        return normal * weights.get("gamma", 1) + weights.get("beta", 0)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        (x,) = inputs
        normal, inverse = self._normal(x)
        g = self._by_set(dy * weights.get("gamma", 1))
        mean = g.mean((2, 4), keepdims=True) if self.subtracts_mean else 0
        dx = inverse * (g - mean - normal * (g * normal).mean((2, 4), keepdims=True))
        axes = tuple(range(x.ndim - len(self.weight_shape(x.shape[1:]))))
        products = {"gamma": dy * normal.reshape(x.shape), "beta": dy}
        return [dx.reshape(x.shape)], {role: products[role].sum(axes) for role in self.weights(x.shape[1:])}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        x, weights = inputs[0], self._roles(inputs)
        if self._by_rows(e, x):
            groups, count = e.split_rows(x.rows, 1, least=16)
            e.launch(
                "normalization.cl", "normalize_rows", (groups,), x.read, y.write, x.rows, x.channels, count,
                float(self.epsilon), *(w.read for w in weights.values()), **self._row_macros(x, weights),
            )  # fmt: skip
            return
        statistics = self._emit_statistics(e, x)
        groups, count = e.bands(x.rows, x.blocks)
        e.launch(
            "normalization.cl", "normalize_examples", (groups, x.blocks), x.read, statistics.read, y.write,
            *self._arguments(x), count, *(w.read for w in weights.values()), **x.value_macros,
            **_macros(weights),
        )  # fmt: skip

    def emit_backward(
        self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets
    ) -> list[GradientSum]:
        x, weights = inputs[0], self._roles(inputs)
        dx, dweights = targets[0], dict(zip(weights, targets[1:], strict=True))
        if dx and self._by_rows(e, x):
            return self._emit_backward_rows(e, x, dy, weights, dx, {role: t for role, t in dweights.items() if t})
        statistics = self._emit_statistics(e, x)
        if dx:
            self._emit_backward_data(e, x, dy, statistics, weights.get("gamma"), dx)
        return [self._emit_weight(e, x, dy, statistics, role == "gamma", t) for role, t in dweights.items() if t]

    def _roles(self, inputs: list[Tensor]) -> dict[str, Tensor]:
        return dict(zip(self.weights(inputs[0].shape[1:]), inputs[1:], strict=True))

    def _by_rows(self, e: Emitter, x: Tensor) -> bool:
        """True if sets are rows, and a work-item takes all of one: a core needs no others to keep it busy."""
        return self.sets(x.shape[1:]) == (1, 1) and not e.traits.gpu and not e.traits.bare

    def _row_macros(self, x: Tensor, weights: dict[str, Tensor]) -> dict[str, int]:
        padded = x.channels % BLOCK != 0
        return {"whole": True, "padded": padded, **x.value_macros, **self._centered, **_macros(weights)}

    def _emit_backward_rows(
        self, e: Emitter, x: Tensor, dy: Tensor, weights: dict[str, Tensor], target: Target, totals: dict[str, Target]
    ) -> list[GradientSum]:
        """All gradients in one launch."""
        gamma, add = {role: w for role, w in weights.items() if role == "gamma"}, False
        groups, count = e.split_rows(x.rows, 1, least=16, items=ITEMS if totals else 0)
        sums = {}
        for role, t in totals.items():  # of which all are new, or none
            sums[role], count = start_sum(e, t.tensor, x.rows, groups)
            groups, add = sums[role].groups, t.accumulate
        e.launch(
            "normalization.cl", "normalize_rows_backward", (groups,), x.read, dy.read, x.rows, x.channels, count,
            float(self.epsilon), int(add), *target.arguments, *(w.read for w in gamma.values()),
            *(part.access(add) for part in sums.values()), gamma_sums="gamma" in sums, beta_sums="beta" in sums,
            **(self._row_macros(x, gamma) | target.macros),
        )  # fmt: skip
        return list(sums.values())

    def _arguments(self, x: Tensor) -> tuple[int, ...]:
        """SETS_ARGUMENTS in kernels/normalization.cl."""
        span, groups = self.sets(x.shape[1:])
        return x.rows, span, x.channels, groups, prod(self.weight_shape(x.shape[1:])[:-1])

    def _count(self, x: Tensor) -> int:
        """The number of sets of a micro-batch."""
        span, groups = self.sets(x.shape[1:])
        return x.rows // span * groups

    def _emit_statistics(self, e: Emitter, x: Tensor) -> Tensor:
        statistics = e.tensor("statistics", (1, STATISTICS * self._count(x)))
        e.launch(
            "normalization.cl", "set_statistics", (self._count(x) * e.traits.members,), x.read, statistics.write,
            *self._arguments(x), float(self.epsilon), **x.value_macros, **self._centered,
        )  # fmt: skip
        return statistics

    @property
    def _centered(self) -> dict[str, int]:
        """CENTERED in kernels/normalization.cl."""
        return {} if self.subtracts_mean else {"centered": 0}

    def _emit_backward_data(
        self, e: Emitter, x: Tensor, dy: Tensor, statistics: Tensor, gamma: Tensor | None, target: Target
    ) -> None:
        weights = {"gamma": gamma} if gamma else {}
        reads: list[In] = [w.read for w in weights.values()]
        e.launch(
            "normalization.cl", "set_gradients", (self._count(x) * e.traits.members,), x.read, dy.read,
            statistics.update, *self._arguments(x), *reads, **x.value_macros, **self._centered,
            **_macros(weights),
        )  # fmt: skip
        groups, count = e.bands(x.rows, x.blocks)
        e.launch(
            "normalization.cl", "normalize_examples_backward", (groups, x.blocks), x.read, dy.read, statistics.read,
            *self._arguments(x), count, *target.arguments, *reads, **target.macros, **_macros(weights),
        )  # fmt: skip

    def _emit_weight(
        self, e: Emitter, x: Tensor, dy: Tensor, statistics: Tensor, scaled: bool, target: Target
    ) -> GradientSum:
        total = target.tensor
        repetitions, members = x.rows // total.rows, e.traits.members
        items, _ = e.split_rows(repetitions, total.rows * total.blocks, least=16)
        weight_sum, count = start_sum(e, total, repetitions, ceil_div(items, members), members)
        e.launch(
            "normalization.cl", "weight_gradients", (weight_sum.groups * members, total.blocks, total.rows), x.read,
            dy.read, statistics.read, weight_sum.access(target.accumulate),
            *self._arguments(x), count, int(scaled), int(target.accumulate), **x.value_macros,
        )  # fmt: skip
        return weight_sum


@dataclass(frozen=True)
class LayerNormalization(ExampleNormalization):
    """Normalization over the last axes of each example (Ba et al. 2016), as in Keras and PyTorch.

    Arguments:
    - `epsilon`: added to the variance (default 1e-3; PyTorch's is 1e-5).
    - `center`, `scale`: there is a beta, a gamma (default True).
    - `axis`: the last axis (default -1), or the last ones: (-3, -2, -1) for all of an image.

    Weights: gamma and beta of the shape of these axes. Raises ShapeError for axes that aren't the last ones.
    """

    axis: int | tuple[int, ...] = -1

    def weight_shape(self, shape: Shape) -> Shape:
        axes = sorted(positions(self.axis, shape))
        if axes != list(range(len(shape) - len(axes), len(shape))) or not axes:
            raise ShapeError(f"{type(self).__name__} is over the last axes of {shape}, not {self.axis}.")
        return tuple(shape[axis] for axis in axes)

    def sets(self, shape: Shape) -> tuple[int, int]:
        return prod(self.weight_shape(shape)[:-1]), 1


@dataclass(frozen=True)
class RMSNormalization(LayerNormalization):
    """x / sqrt(mean of x² + epsilon) * gamma over the last axes of each example (Zhang and Sennrich 2019, arXiv
    1910.07467), as in Keras and PyTorch.

    Arguments:
    - `epsilon`: added to the mean of squares (default 1e-6).
    - `center`: there is a beta (default False).
    - `scale`: there is a gamma (default True).
    - `axis`: the last axis (default -1), or the last ones.

    Weights: gamma of the shape of these axes. Raises ShapeError for axes that aren't the last ones.
    """

    epsilon: float = 1e-6
    center: bool = False

    subtracts_mean = False


@dataclass(frozen=True)
class GroupNormalization(ExampleNormalization):
    """Normalization of groups of channels of each example (Wu and He 2018), as in Keras and PyTorch.

    Arguments:
    - `epsilon`: added to the variance (default 1e-3; PyTorch's is 1e-5).
    - `center`, `scale`: there is a beta, a gamma (default True).
    - `groups`: number of groups (default 32); 1 for all channels together; -1 for each by itself, which is instance
      normalization.

    Weights: gamma and beta (channels). Raises ShapeError if `groups` doesn't divide the channels.
    """

    groups: int = 32

    def weight_shape(self, shape: Shape) -> Shape:
        return shape[-1:]

    def sets(self, shape: Shape) -> tuple[int, int]:
        groups = shape[-1] if self.groups == -1 else self.groups
        if groups < 1 or shape[-1] % groups:
            raise ShapeError(f"groups={self.groups} must divide the {shape[-1]} channels, or be -1.")
        return prod(shape[:-1]), groups


def _macros(weights: dict[str, Tensor]) -> dict[str, int]:
    return {"gamma": "gamma" in weights, "beta": "beta" in weights}


@dataclass(frozen=True)
class LocalResponseNormalization(Op):
    """x / (bias + alpha * sum of x² over `size` neighbouring channels) ** beta (Krizhevsky et al. 2012, "AlexNet").

    Arguments:
    - `size`: channels of the window, this one in the middle; of an even size one more lies after it than before it, as
      in ONNX (default 5). TensorFlow's `depth_radius` r is a size of 2 r + 1.
    - `alpha` (default 1e-4), `beta` (default 0.75), `bias` (default 1.0): as above.
    - `average`: False (default) for the sum, as in TensorFlow; True for the sum divided by `size`, as in ONNX and
      PyTorch, also where the window leaves the channels.

    Raises ShapeError for a size below 1, or a bias that isn't above 0.
    """

    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0
    average: bool = False

    def __post_init__(self) -> None:
        if not is_count(self.size) or not self.bias > 0 or self.alpha < 0:
            raise ShapeError(
                f"LocalResponseNormalization takes a size of 1 or more, a bias above 0 and an alpha of 0 or more, not "
                f"{self.size}, {self.bias} and {self.alpha}."
            )

    @property
    def factor(self) -> float:
        """The factor of the sum of squares."""
        return self.alpha / self.size if self.average else self.alpha

    @property
    def reach(self) -> tuple[int, int]:
        """Channels of the window before and after its own."""
        return (self.size - 1) // 2, self.size // 2

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def flops(self, shape: Shape) -> int:
        return 2 * self.size * prod(shape)

    def windows(self, channels: int) -> np.ndarray:
        """(channels, channels): 1 where the window of a row's channel holds a column's."""
        before, after = self.reach
        distance = np.arange(channels) - np.arange(channels)[:, None]
        return ((-before <= distance) & (distance <= after)).astype(float)

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        (x,) = inputs
        return x * (self.bias + self.factor * x**2 @ self.windows(x.shape[-1]).T) ** -self.beta

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        (x,), windows = inputs, self.windows(inputs[0].shape[-1])
        s = self.bias + self.factor * x**2 @ windows.T
        terms = dy * x * s ** (-self.beta - 1)
        return [dy * s**-self.beta - 2 * self.factor * self.beta * x * (terms @ windows)], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (x,) = inputs
        groups, count = e.bands(x.rows, x.blocks)
        e.launch(
            "local_response.cl", "local_response_forward", (groups, x.blocks), x.read, y.write, x.rows, count,
            *self._arguments(x),
        )  # fmt: skip

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        (x,), target = inputs, only(targets)
        terms = e.tensor("terms", x.shape)
        groups, count = e.bands(x.rows, x.blocks)
        e.launch(
            "local_response.cl", "local_response_terms", (groups, x.blocks), x.read, dy.read, terms.write, x.rows,
            count, *self._arguments(x),
        )  # fmt: skip
        e.launch(
            "local_response.cl", "local_response_backward", (groups, x.blocks), x.read, dy.read, terms.read, x.rows,
            count, *self._arguments(x), *target.arguments, **target.macros,
        )  # fmt: skip

    def _arguments(self, x: Tensor) -> tuple[int | float, ...]:
        """RESPONSE_ARGUMENTS in kernels/local_response.cl."""
        return x.channels, *self.reach, float(self.bias), float(self.factor), float(self.beta)
