"""Base classes of ops: shapes, weights, cost, a float64 reference, and launches; with checks of the numbers that users
give, so that a wrong type is refused by name, not by Python in the middle of a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from inspect import Signature, signature
from math import inf, isfinite, prod
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np

from edgelearn.errors import EdgelearnError, PlanError, ShapeError

from . import linear
from .block_formats import bytes_shape
from .emit import Emitter, Epilogue, GradientSum
from .formats import KernelView, Stored, is_integers, tensor_of
from .initializers import INITIALIZERS
from .products import Geometry
from .quantize import Residual
from .registry import enter
from .target import Target
from .tensor import LINEAR, Function, Shape, Tensor

# The arguments to use instead of those of Keras and PyTorch that layers and optimizers don't have.
ELSEWHERE = {
    "activation": "an activation is a layer of its own: network.add('relu', ReLU()).",
    "name": "a layer is named where it is added: network.add('name', op).",
    "input_shape": "the network has it: Network('name', (height, width, channels)).",
    "kernel_regularizer": "kernels shrink by the optimizer's weight_decay=….",
    "bias_regularizer": "kernels alone shrink, by the optimizer's weight_decay=….",
    "trainable": "layers are frozen by network.freeze('name').",
    "lr": "it is learning_rate.",
    "bias": "it is use_bias.",
    "padding_mode": "other paddings than with zeros are a layer Pad before it.",
    "nesterov_momentum": "it is nesterov.",
}


class InitSignature:
    """Makes `inspect.signature` of a class that has a `__new__` give the arguments of its `__init__`."""

    def __get__(self, _: object, kind: type) -> Signature:
        found = signature(kind.__init__)
        return found.replace(parameters=list(found.parameters.values())[1:])


def check_arguments(kind: type, given: Iterable[str], error: type[EdgelearnError]) -> None:
    """Raises `error`, which says what to write instead, for an argument that the dataclass `kind` doesn't have."""
    known = [field.name for field in fields(kind) if field.init]
    for name in given:
        if name not in known:
            like = [f"did you mean {each}?" for each in get_close_matches(name, known, 1)]
            hint = ELSEWHERE.get(name, *like or [f"there are {', '.join(known) or 'none'}."])
            raise error(f"{kind.__name__} has no argument {name}: {hint}")


def is_number(value: Any) -> bool:
    """True for a real number that is finite; a bool is none."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:  # an int beyond all floats
        return False


def whole(name: str, value: Any, least: int = 1, error: type[EdgelearnError] = PlanError) -> int:
    """Return `value` as an int. Raises `error` unless it is a whole number of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise error(f"{name} is a whole number of at least {least}, not {value!r:.60}.")
    return int(value)


def number(
    name: str, value: Any, least: float = -inf, below: float = inf, error: type[EdgelearnError] = PlanError
) -> float:
    """Return `value` as a float. Raises `error` unless it is a finite number from `least` to below `below`."""
    if not is_number(value) or not least <= value < below:
        limits = [f"at least {least:g}"] * (least > -inf) + [f"below {below:g}"] * (below < inf)
        raise error(f"{name} is a finite number{''.join(f' {limit}' for limit in limits[:1])}"
                    f"{''.join(f' and {limit}' for limit in limits[1:])}, not {value!r:.60}.")  # fmt: skip
    return float(value)


Arrays = dict[str, np.ndarray]
Gradients = tuple[list[np.ndarray], Arrays]  # of the inputs, and of the trainable weights by role
Targets = list[Target | None]


@dataclass(frozen=True)
class Weight:
    """One weight of an op.

    Arguments:
    - `shape`: as in Keras.
    - `initializer`: one of edgelearn.ops.initializers.INITIALIZERS (default "glorot_uniform").
    - `trainable`: False for statistics.
    - `decays`: True if weight decay shrinks it.
    - `matrix`: shape it is packed from (see `tensor.pack`), if that isn't `shape`.
    - `format`: one of edgelearn.ops.block_formats, whose bytes a frozen matrix is kept in (default "": float32).

    Raises ShapeError for an unknown initializer.
    """

    shape: Shape
    initializer: str = "glorot_uniform"
    trainable: bool = True
    decays: bool = False
    matrix: Shape | None = None
    format: str = ""

    def __post_init__(self) -> None:
        if self.initializer not in INITIALIZERS:
            raise ShapeError(f"Expected an initializer of {', '.join(INITIALIZERS)}, got '{self.initializer}'.")

    @property
    def packed_shape(self) -> Shape:
        return self.matrix or self.shape

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def array_shape(self) -> Shape:
        """Shape of its array, of `dtype`."""
        return bytes_shape(self.shape, self.format) if self.format else self.shape

    @property
    def dtype(self) -> str:
        return "uint8" if self.format else "float32"

    @property
    def nbytes(self) -> int:
        return prod(self.array_shape) if self.format else 4 * self.size

    @property
    def fan_in(self) -> int:
        """Number of inputs that contribute to one output value."""
        return prod(self.packed_shape[:-1])


@dataclass(frozen=True)
class Op:
    """A layer's computation as data: fields are its configuration, methods its shapes, its reference and its launches.

    A new op is a frozen dataclass in one file. It overrides `output_shape`, `weights` if it has any,
    `reference_forward`, `reference_backward`, `emit_forward` and `emit_backward`. Shapes have no batch axis.
    """

    registry: ClassVar[dict[str, type[Op]]] = {}
    random: ClassVar[bool] = False  # training draws random numbers
    selects: ClassVar[bool] = False  # every output value is one of the inputs or 0, so it has their number format
    selects_integers: ClassVar[bool] = False  # its kernels select among 8-bit integers as they are stored, too
    passes_gradient: ClassVar[bool] = False  # the gradient of each input of the output's shape is that of the output
    masks_sums: ClassVar[bool] = False  # its kernels write gradients by gradient.h, and so know `Target.masks_sum`
    compares: ClassVar[bool] = False  # the backward pass searches the inputs for the output's values
    invertible: ClassVar[bool] = False  # `emit_inverse` restores the first input
    has_values: ClassVar[bool] = False  # its kernels read and write VALUES, halves too (kernels/include/values.h)
    takes_numbers: ClassVar[tuple[int, ...]] = ()  # places of inputs that number rows or steps
    has_epilogue: ClassVar[bool] = False  # its kernels can apply an activation as they write (see `Epilogue`)

    __signature__ = InitSignature()

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        check_arguments(cls, settings, ShapeError)
        return super().__new__(cls)

    def __init_subclass__(cls, **kwargs) -> None:
        super().__init_subclass__(**kwargs)
        enter(Op.registry, cls.__name__, cls, "the op")
        if "emit_backward" in vars(cls):  # a gradient of its own, not that of the op it is derived from
            cls.passes_gradient = vars(cls).get("passes_gradient", False)
        if "emit_backward_data" in vars(cls):
            cls.masks_sums = vars(cls).get("masks_sums", False)

    @property
    def config(self) -> dict:
        return asdict(self)

    def plain(self) -> Self:
        """The same op with Python numbers for NumPy's and tuples for lists, as JSON, kernels and dict keys need, and
        padding in lower case, as in Keras."""
        plain = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        if isinstance(plain.get("padding"), str):
            plain["padding"] = plain["padding"].lower()
        return replace(self, **plain)

    def output_shape(self, *shapes: Any, **_: Any) -> Shape:
        """Shape of the output for inputs of `shapes`. Raises ShapeError if they don't fit."""
        raise NotImplementedError

    def weights(self, *shapes: Any, **_: Any) -> dict[str, Weight]:
        """Weights by role ("kernel", "bias"), for inputs of `shapes`."""
        return {}

    def flops(self, *shapes: Any, **_: Any) -> int:
        """Floating-point operations of the forward pass of one example; a multiply-add counts two."""
        return 0

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        """The definition in NumPy, in the precision of the arrays (float64 in tests). The first axis is the batch."""
        raise NotImplementedError

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        """Gradients of sum(y * dy) with respect to the inputs and to the trainable weights."""
        raise NotImplementedError

    def takes_halves(self, *shapes: Shape) -> bool:
        """True if its kernels read and write halves, for inputs of `shapes`."""
        return self.has_values

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        """Emit the launches that write `y`.

        Arguments:
        - `inputs`: the layer's inputs, then its weights in the order of `weights`.
        """
        raise NotImplementedError

    def emit_backward(
        self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets
    ) -> Iterable[GradientSum] | None:
        """Emit the launches that write the gradient of each of `inputs` that has a target.

        Kernels that read `inputs` or `y` keep them in memory until then. The target of a weight accumulates over the
        micro-batches of a mini-batch. An op that adds up a weight's gradient in parts (see `start_sum`) returns the
        Sums, which are completed at the end of the mini-batch.
        """
        raise NotImplementedError

    @property
    def inverts_exactly(self) -> bool:
        """True if `emit_inverse` restores the bits."""
        return True

    def emit_inverse(self, e: Emitter, y: Tensor, others: list[Tensor], x: Tensor) -> None:
        """Emit the launches that restore the first input `x` from the output and the other inputs, if `invertible`."""
        raise NotImplementedError

    @property
    def epilogue(self) -> Function:
        """The function if an epilogue can apply this op, else LINEAR."""
        return LINEAR

    @property
    def filled(self) -> Function:
        """The function if an epilogue can apply this op where channels fill whole blocks, though it doesn't keep the
        zeros of padding; else LINEAR."""
        return LINEAR

    @property
    def gate(self) -> Function:
        """The function if the kernels before can apply this op, and those of their gradients its derivative; else
        LINEAR."""
        return LINEAR

    def activation_of_integers(self, shapes: Sequence[Shape]) -> Function | None:
        """The activation by which `emit_integer_sum` computes this op from inputs of these shapes: that of an op which
        only selects between its input and constants, or none of a sum of two. None if it can't."""
        return None

    def fuses_after(self, before: Op) -> bool:
        """True if the kernels of `before` can apply this op as they write, if no other layer reads `before`."""
        return self.epilogue != LINEAR and before.has_epilogue


def only(targets: Targets) -> Target:
    """The target of an op with one input, whose backward pass runs only if it has one."""
    (target,) = targets
    assert target is not None
    return target


def is_count(value: Any) -> bool:
    """True for an int of 1 or more."""
    return isinstance(value, int) and value >= 1


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


class LinearOp(Op):
    """An op that multiplies its input by a kernel, and adds a bias. Its launches also apply a BatchNorm and an
    activation.

    A subclass is a frozen dataclass with these two settings among its own, `kernel`, `product` and `slopes`.
    """

    use_bias: bool
    kernel_initializer: str

    has_epilogue: ClassVar[bool] = True

    def kernel(self, shape: Shape) -> Weight:
        """The kernel for an input of `shape`; its last axis as packed is the output's."""
        raise NotImplementedError

    def product(self, x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        """The output without bias."""
        raise NotImplementedError

    def slopes(self, x: np.ndarray, kernel: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradients of the input and of the kernel."""
        raise NotImplementedError

    def weights(self, shape: Shape) -> dict[str, Weight]:
        kernel = self.kernel(shape)
        bias = {"bias": Weight(kernel.packed_shape[-1:], "zeros")} if self.use_bias else {}
        return {"kernel": kernel} | bias

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        y = self.product(inputs[0], weights["kernel"])
        return y + weights["bias"] if self.use_bias else y

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        dx, dkernel = self.slopes(inputs[0], weights["kernel"], dy)
        bias = {"bias": dy.sum(tuple(range(dy.ndim - 1)))} if self.use_bias else {}
        return [dx], {"kernel": dkernel} | bias

    def geometry(self, x: Tensor) -> Geometry:
        """Return the shape of its product, for an input like `x`."""
        raise NotImplementedError

    @property
    def has_integer_kernels(self) -> bool:
        """True if its launches also take 8-bit integers."""
        return False

    def _checked_geometry(self, x: Stored) -> Geometry:
        if is_integers(x) and not self.has_integer_kernels:
            raise PlanError(f"{type(self).__name__} has no integer kernels: keep it in fp32, or simulate the integers.")
        return self.geometry(tensor_of(x))

    def emit_linear(
        self, e: Emitter, x: Stored, kernel: Stored, y: Tensor | Target, epilogue: Epilogue,
        residual: Residual | None = None,
    ) -> None:  # fmt: skip
        """Emit y = epilogue(x * kernel), where `kernel` is as `forward_view` says; or, of integers, its sum with a
        `residual` where `adds_residuals`."""
        linear.emit_forward(e, self._checked_geometry(x), x, kernel, y, epilogue, residual)

    def view(self, x: Tensor, kernel: Tensor, scale: Tensor | None) -> KernelView:
        """The kernel as `emit_backward_data` reads it unless products read rows along the depth (`Compute`)."""
        raise NotImplementedError

    def forward_view(self, e: Emitter, x: Tensor, kernel: Tensor) -> KernelView:
        """The kernel as `emit_linear` reads it."""
        return self.view(x, kernel, None) if e.compute.depth_rows else KernelView(kernel)

    def backward_view(self, e: Emitter, x: Tensor, kernel: Tensor, scale: Tensor | None) -> KernelView:
        """The kernel as `emit_backward_data` reads it, each output channel multiplied by its scale."""
        view = self.view(x, kernel, scale)
        return replace(view, taps=0) if e.compute.depth_rows else view

    def emit_backward_data(self, e: Emitter, x: Tensor, prepared: Stored, dy: Stored, target: Target) -> None:
        """Emit the gradient of `x` from the prepared kernel."""
        linear.emit_backward_data(e, self._checked_geometry(x), prepared, dy, target)

    def emit_backward_weights(
        self, e: Emitter, x: Stored, dy: Stored, gradient: Tensor, sums: Tensor | None, add: bool
    ) -> tuple[GradientSum, GradientSum | None]:
        """Emit the gradient of the kernel and, if `sums` is given, the sum of dy over its rows (the bias's gradient).

        `add`: add to what earlier micro-batches wrote. `finish` completes the sums returned.
        """
        return linear.emit_backward_weights(e, self._checked_geometry(x), x, dy, gradient, sums, add)
