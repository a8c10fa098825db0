"""LocalResponseNormalization: division by the squares of neighbouring channels."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, Op, Targets, is_count, only
from .emit import Emitter
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class LocalResponseNormalization(Op):
    """x / (bias + alpha * sum of x² over `size` neighbouring channels) ** beta (Krizhevsky et al. 2012, "AlexNet").

    Arguments:
    - `size`: channels of the window, this one in the middle; of an even size one more lies behind it than before it, as
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
        """Channels of the window before and behind its own."""
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
