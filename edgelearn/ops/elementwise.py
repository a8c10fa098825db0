"""Functions applied to each value: activations, powers, and a scale and an offset that are constants.

A function is a class with a `formula` (see formula.py), and two inline functions in OpenCL C by the name `kernel`:
NAME_forward and NAME_backward (kernels/include/activation.h and functions.h). Functions that keep 0 and whose
derivative follows from the output are fused into the layer before. Those that multiply x by a gate aren't monotonic:
their input is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from math import inf, pi, sqrt
from typing import Any, ClassVar

import numpy as np

from edgelearn.errors import ShapeError
from edgelearn.launch import In

from .base import Arrays, Gradients, Op, Targets, only
from .emit import Emitter
from .formula import NUMPY, differentiate
from .tensor import BLOCK, LINEAR, RELU, RELU6, Function, Shape, Tensor, ceil_div


@dataclass(frozen=True)
class Activation(Op):
    """Base of functions applied to each value. A subclass has a `formula` and a `kernel`, and says what differs from
    the class variables here."""

    has_values = True
    source: ClassVar[str] = "activation.cl"
    kernel: ClassVar[str]  # the name of two functions in `source`, whose parameters are the op's fields
    needs_input: ClassVar[bool] = False  # the derivative doesn't follow from the output
    fills: ClassVar[bool] = False  # its derivative follows from the output, and other kernels know it (activation.h)
    keeps_zero: ClassVar[bool] = True  # 0 becomes 0, with a finite derivative, so that padding needs no care

    def formula(self, xp: Any, x: Any) -> Any:
        """The function as an expression of a namespace `xp` such as `torch` or `keras.ops`: see formula.py."""
        raise NotImplementedError

    @property
    def function(self) -> Function:
        """The pair of functions in `source`, and its parameters."""
        return Function(self.kernel, astuple(self), of_input=self.needs_input)

    def value(self, x: np.ndarray) -> np.ndarray:
        """The function in NumPy."""
        return self.formula(NUMPY, x)

    def derivative(self, x: np.ndarray) -> np.ndarray:
        """Its derivative at `x`."""
        return np.broadcast_to(differentiate(self.formula, x)[0], x.shape)

    @property
    def epilogue(self) -> Function:
        fuses = self.keeps_zero and not self.needs_input and self.source == Activation.source
        return self.function if fuses else LINEAR

    @property
    def filled(self) -> Function:
        return self.function if self.fills else LINEAR

    @property
    def gate(self) -> Function:
        """The function if its derivative follows from its input, and kernels can apply both that know this: those of
        BatchNorms with batch statistics, and of dense layers on CPUs; else LINEAR."""
        gates = self.keeps_zero and self.needs_input and self.source == Activation.source
        return self.function if gates else LINEAR

    def activation_of_integers(self, shapes: Sequence[Shape]) -> Function | None:
        return self.epilogue if self.epilogue.two_slopes and not self.invertible else None

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return self.value(inputs[0])

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        return [dy * self.derivative(inputs[0])], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (x,) = inputs
        groups, count = e.bands(x.rows, x.blocks, 64, several=True)
        channels, padded = self._padding(x)
        e.launch(
            self.source, "activation_forward", (groups, x.blocks), x.read, y.write, x.rows, count, *channels,
            padded=padded, **self.function.macros("own"), **y.value_macros,
        )  # fmt: skip

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        target = only(targets)
        groups, count = e.bands(y.rows, y.blocks, 64, several=True)
        channels, padded = self._padding(y)
        e.launch(
            self.source, "activation_backward", (groups, y.blocks), self._derived_from(inputs[0], y, dy), dy.read,
            y.rows, count, *channels, *target.arguments, padded=padded, **self.function.macros("own"),
            **target.macros,
        )  # fmt: skip

    def _derived_from(self, x: Tensor, y: Tensor, dy: Tensor) -> In:
        """The tensor that the derivative is computed from."""
        return x.read if self.needs_input else y.read_output_of(self.function)

    def _padding(self, x: Tensor) -> tuple[tuple[int, ...], bool]:
        """(the number of channels if kernels must keep padding zero, whether they must)"""
        padded = not self.keeps_zero and x.channels % x.block != 0
        return ((x.channels,) if padded else ()), padded


@dataclass(frozen=True)
class ReLU(Activation):
    """max(x, 0), and at most `max_value`. The derivative at the corners is 0, as in TensorFlow.

    Arguments:
    - `max_value`: above 0; 6 for ReLU6 (default None: no maximum).

    Raises ShapeError for another max_value.
    """

    max_value: float | None = None

    def __post_init__(self) -> None:
        if self.max_value is not None and not self.max_value > 0:
            raise ShapeError(f"The max_value of ReLU is above 0, or None, not {self.max_value}.")

    @property
    def function(self) -> Function:
        if self.max_value in (None, 6):
            return RELU if self.max_value is None else RELU6
        return Function("clip", (0.0, self.max_value), two_slopes=self.max_value > 1)

    def formula(self, xp: Any, x: Any) -> Any:
        return xp.clip(x, 0.0, inf if self.max_value is None else self.max_value)


@dataclass(frozen=True)
class Clip(Activation):
    """x within a range: min(max(x, min_value), max_value). The derivative at the ends of the range is 0.

    Arguments:
    - `min_value`: lowest value (default None: none).
    - `max_value`: highest value (default None: none).

    Raises ShapeError if min_value isn't below max_value.
    """

    min_value: float | None = None
    max_value: float | None = None

    def __post_init__(self) -> None:
        if not self._bounds[0] < self._bounds[1]:
            raise ShapeError(f"Clip needs min_value below max_value, not {self.min_value} and {self.max_value}.")

    @property
    def _bounds(self) -> tuple[float, float]:
        return (
            -inf if self.min_value is None else self.min_value,
            inf if self.max_value is None else self.max_value,
        )

    @property
    def function(self) -> Function:
        return Function("clip", self._bounds)

    @property
    def keeps_zero(self) -> bool:  # type: ignore[override]
        return self._bounds[0] <= 0 <= self._bounds[1]

    def formula(self, xp: Any, x: Any) -> Any:
        return xp.clip(x, *self._bounds)


@dataclass(frozen=True)
class LeakyReLU(Activation):
    """x where it is positive, else negative_slope * x (Maas et al. 2013).

    Arguments:
    - `negative_slope`: 0 or more (default 0.3, as in Keras; PyTorch has 0.01).

    Raises ShapeError for a negative slope below 0.
    """

    negative_slope: float = 0.3

    def __post_init__(self) -> None:
        if not self.negative_slope >= 0:
            raise ShapeError(f"The negative_slope of LeakyReLU is 0 or more, not {self.negative_slope}.")

    @property
    def function(self) -> Function:
        return Function("leaky_relu", (self.negative_slope,), two_slopes=True)

    def formula(self, xp: Any, x: Any) -> Any:
        return xp.where(x > 0, x, x * self.negative_slope)


@dataclass(frozen=True)
class ELU(Activation):
    """x where it is positive, else alpha * (exp(x) - 1) (Clevert et al. 2016).

    Arguments:
    - `alpha`: minus the limit for low values, 0 or more (default 1).

    Raises ShapeError for an alpha below 0.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not self.alpha >= 0:
            raise ShapeError(f"The alpha of {type(self).__name__} is 0 or more, not {self.alpha}.")

    @property
    def scale(self) -> float:
        return 1.0

    @property
    def function(self) -> Function:
        return Function("elu", (self.alpha, self.scale))

    def formula(self, xp: Any, x: Any) -> Any:
        return self.scale * xp.where(x > 0, x, self.alpha * xp.expm1(xp.where(x > 0, xp.zeros_like(x), x)))


@dataclass(frozen=True)
class SELU(ELU):
    """ELU times 1.0507, with an alpha of 1.6733: outputs tend to mean 0 and variance 1 (Klambauer et al. 2017).

    Arguments:
    - `alpha`: of the ELU (default 1.6733).
    """

    alpha: float = 1.6732632423543772

    @property
    def scale(self) -> float:
        return 1.0507009873554805


@dataclass(frozen=True)
class Tanh(Activation):
    """The hyperbolic tangent."""

    kernel = "tanh"

    def formula(self, xp: Any, x: Any) -> Any:
        return xp.tanh(x)


@dataclass(frozen=True)
class Softsign(Activation):
    """x / (1 + |x|)."""

    kernel = "softsign"

    def formula(self, xp: Any, x: Any) -> Any:
        return x / (1 + xp.abs(x))


@dataclass(frozen=True)
class Sigmoid(Activation):
    """1 / (1 + exp(-x))."""

    kernel = "sigmoid"
    fills = True
    keeps_zero = False

    def formula(self, xp: Any, x: Any) -> Any:
        return xp.sigmoid(x)


@dataclass(frozen=True)
class HardSigmoid(Activation):
    """min(max(alpha * x + beta, 0), 1): a sigmoid of three straight lines.

    Arguments:
    - `alpha`: slope (default 1/6, as in Keras and PyTorch; ONNX has 0.2).
    - `beta`: value at 0 (default 0.5).
    """

    alpha: float = 1 / 6
    beta: float = 0.5

    kernel = "hard_sigmoid"
    fills = True
    keeps_zero = False

    def formula(self, xp: Any, x: Any) -> Any:
        return xp.clip(self.alpha * x + self.beta, 0.0, 1.0)


@dataclass(frozen=True)
class Softplus(Activation):
    """log(1 + exp(x))."""

    kernel = "softplus"
    keeps_zero = False

    def formula(self, xp: Any, x: Any) -> Any:
        return _softplus(xp, x)

    def derivative(self, x: np.ndarray) -> np.ndarray:
        return NUMPY.sigmoid(x)  # that of the formula is 0 at its corner


@dataclass(frozen=True)
class SiLU(Activation):
    """x * sigmoid(x), also known as swish (Elfwing et al. 2018; Ramachandran et al. 2017)."""

    kernel = "silu"
    needs_input = True

    def formula(self, xp: Any, x: Any) -> Any:
        return x * xp.sigmoid(x)


@dataclass(frozen=True)
class HardSwish(Activation):
    """x * min(max(x / 6 + 0.5, 0), 1), also known as hard SiLU (Howard et al. 2019, "Searching for MobileNetV3")."""

    needs_input = True

    @property
    def function(self) -> Function:
        return Function("hard_swish", (1 / 6, 0.5), of_input=True)

    def formula(self, xp: Any, x: Any) -> Any:
        return x * xp.clip(1 / 6 * x + 0.5, 0.0, 1.0)


@dataclass(frozen=True)
class GELU(Activation):
    """x times the share of a standard normal distribution below x (Hendrycks and Gimpel 2016).

    Arguments:
    - `approximate`: compute it by tanh, as the first publications did (default False, as in Keras and PyTorch).
    """

    approximate: bool = False

    needs_input = True

    @property
    def function(self) -> Function:
        return Function("gelu_tanh" if self.approximate else "gelu", of_input=True)

    def formula(self, xp: Any, x: Any) -> Any:
        if self.approximate:
            return 0.5 * x * (1 + xp.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + xp.erf(x * sqrt(0.5)))


@dataclass(frozen=True)
class Mish(Activation):
    """x * tanh(softplus(x)) (Misra 2019)."""

    kernel = "mish"
    needs_input = True

    def formula(self, xp: Any, x: Any) -> Any:
        return x * xp.tanh(_softplus(xp, x))


@dataclass(frozen=True)
class Rescaling(Activation):
    """scale * x + offset, with constants, as in Keras. For trained ones, or one for each channel, there are Scale and
    Bias.

    Arguments:
    - `scale`: factor.
    - `offset`: added to the product (default 0).
    """

    scale: float = 1.0
    offset: float = 0.0

    kernel = "affine"

    @property
    def keeps_zero(self) -> bool:  # type: ignore[override]
        return self.offset == 0

    @property
    def epilogue(self) -> Function:
        return LINEAR

    def _derived_from(self, x: Tensor, y: Tensor, dy: Tensor) -> In:
        return dy.read  # any tensor: the derivative is constant

    def formula(self, xp: Any, x: Any) -> Any:
        return self.scale * x + self.offset


@dataclass(frozen=True)
class Abs(Activation):
    """The absolute value. The derivative at 0 is 0."""

    kernel = "abs"
    needs_input = True

    def formula(self, xp: Any, x: Any) -> Any:
        return xp.abs(x)


@dataclass(frozen=True)
class Square(Activation):
    """x * x."""

    kernel = "square"
    needs_input = True

    def formula(self, xp: Any, x: Any) -> Any:
        return xp.square(x)


@dataclass(frozen=True)
class Log(Activation):
    """The natural logarithm."""

    kernel = "log"
    needs_input = True
    keeps_zero = False

    def formula(self, xp: Any, x: Any) -> Any:
        return xp.log(x)


@dataclass(frozen=True)
class Exp(Activation):
    """The exponential function."""

    kernel = "exp"
    keeps_zero = False

    def formula(self, xp: Any, x: Any) -> Any:
        return xp.exp(x)


@dataclass(frozen=True)
class Sqrt(Activation):
    """The square root."""

    kernel = "sqrt"
    keeps_zero = False

    def formula(self, xp: Any, x: Any) -> Any:
        return xp.sqrt(x)


@dataclass(frozen=True)
class Rsqrt(Activation):
    """1 / the square root."""

    kernel = "rsqrt"
    keeps_zero = False

    def formula(self, xp: Any, x: Any) -> Any:
        return xp.rsqrt(x)


@dataclass(frozen=True)
class Reciprocal(Activation):
    """1 / x."""

    kernel = "reciprocal"
    keeps_zero = False

    def formula(self, xp: Any, x: Any) -> Any:
        return 1 / x


def _softplus(xp: Any, x: Any) -> Any:
    return xp.clip(x, 0.0, inf) + xp.log1p(xp.exp(-xp.abs(x)))


def new_bits(e: Emitter, x: Tensor) -> Tensor:
    """A new tensor for the bits of `x`: a word of 16 bits for each row and block of channels."""
    return e.tensor("bits", (ceil_div(x.rows * x.blocks, BLOCK), BLOCK), dtype="uint16")


def emit_packed_bits(e: Emitter, x: Tensor, y: Tensor, function: Function) -> None:
    """Emit y = the bits of `x`, the output of a function of two slopes."""
    groups, count = e.bands(x.rows, x.blocks, 64)
    e.launch(
        "bits.cl", "pack_bits", (groups, x.blocks), x.read_output_of(function), y.write, x.rows, count, whole=True,
        **function.macros(),
    )  # fmt: skip


def emit_unpacked_bits(e: Emitter, y: Tensor, x: Tensor) -> None:
    """Emit x = 1 for bits that are set, 0 for others: these have the same derivatives under such functions."""
    groups, count = e.bands(x.rows, x.blocks, 64)
    e.launch("bits.cl", "unpack_bits", (groups, x.blocks), y.read, x.write, x.rows, count)
