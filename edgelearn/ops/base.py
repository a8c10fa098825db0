"""What an op is: shapes, weights, cost, a float64 reference, and launches."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from math import prod
from typing import Any, ClassVar, Self

import numpy as np

from edgelearn.errors import ShapeError

from .emit import Emitter, Epilogue, GradientTarget
from .initializers import INITIALIZERS
from .sums import Sum
from .tensor import Shape, Tensor
from .transpose import KernelView, emit_prepared

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Weight:
    """A weight as Keras shapes it, and `matrix`: the shape it is packed from (see tensor.pack). Raises ShapeError for
    an unknown initializer (see `initialize`)."""

    shape: Shape
    initializer: str = "glorot_uniform"
    trainable: bool = True
    decays: bool = False
    matrix: Shape | None = None

    def __post_init__(self) -> None:
        if self.initializer not in INITIALIZERS:
            raise ShapeError(f"An initializer is one of {', '.join(INITIALIZERS)}, not '{self.initializer}'.")

    @property
    def packed_shape(self) -> Shape:
        return self.matrix or self.shape

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def fan_in(self) -> int:
        """How many inputs a value of the layer's output is made from."""
        return prod(self.packed_shape[:-1])


@dataclass(frozen=True)
class Op:
    """A layer's computation, as data: its fields are its configuration. Shapes are without the batch."""

    registry: ClassVar[dict[str, type[Op]]] = {}
    random: ClassVar[bool] = False  # whether training draws random numbers in it
    selects: ClassVar[bool] = False  # whether every output is one of the inputs, or 0: then it is as quantized as they
    compares: ClassVar[bool] = False  # whether its backward pass looks for the output among the inputs
    invertible: ClassVar[bool] = False  # whether `emit_inverse` has the first input back
    inverts_exactly: ClassVar[bool] = True  # whether that has the bits of what was there

    def __init_subclass__(cls, **kwargs) -> None:
        super().__init_subclass__(**kwargs)
        Op.registry[cls.__name__] = cls

    @property
    def config(self) -> dict:
        return asdict(self)

    def plain(self) -> Self:
        """The same with Python's numbers where NumPy's were given, and tuples for lists: what JSON, kernels and
        dictionaries take."""
        return replace(self, **{field.name: _plain(getattr(self, field.name)) for field in fields(self)})

    def output_shape(self, *shapes: Shape) -> Shape:
        """Shape of the output; raises ShapeError when the inputs don't fit."""
        raise NotImplementedError

    def weights(self, *shapes: Shape) -> dict[str, Weight]:
        return {}

    def flops(self, *shapes: Shape) -> int:
        """Floating-point operations of the forward pass of one example; a multiply-add counts two."""
        return 0

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        """The definition, in the arrays' own precision (float64 in tests). Arrays have the batch first."""
        raise NotImplementedError

    def reference_backward(
        self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray
    ) -> tuple[list[np.ndarray], Arrays]:
        """Gradients of sum(y * dy) to the inputs and to the trainable weights."""
        raise NotImplementedError


def is_count(value: Any) -> bool:
    """Whether there can be so many of something that there must be."""
    return isinstance(value, int) and value >= 1


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


@dataclass(frozen=True)
class PlainOp(Op):
    """An op without trainable weights, lowered as a whole."""

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        raise NotImplementedError

    def emit_backward(
        self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: list[GradientTarget | None]
    ) -> None:
        """Write the gradient of each input that has a target. Kernels that read `inputs` or `y` keep them alive."""
        raise NotImplementedError

    def emit_inverse(self, e: Emitter, y: Tensor, others: list[Tensor], x: Tensor) -> None:
        """The first input, from the output and the other inputs, where the op is invertible."""
        raise NotImplementedError


@dataclass(frozen=True)
class LinearOp(Op):
    """An op that is linear in its input and has a kernel: the anchor that BatchNorm and an activation fuse into."""

    def emit_forward(self, e: Emitter, x: Tensor, kernel: Tensor, y: Tensor, epilogue: Epilogue) -> None:
        raise NotImplementedError

    def view(self, x: Tensor, kernel: Tensor, scale: Tensor | None) -> KernelView:
        """The kernel as `emit_backward_data` wants it, each output channel times its scale."""
        raise NotImplementedError

    def emit_prepared(self, e: Emitter, x: Tensor, kernel: Tensor, scale: Tensor | None) -> Tensor:
        """The same as a tensor; once a mini-batch."""
        return emit_prepared(e, self.view(x, kernel, scale))

    def emit_backward_data(self, e: Emitter, x: Tensor, prepared: Tensor, dy: Tensor, target: GradientTarget) -> None:
        raise NotImplementedError

    def emit_backward_weights(
        self, e: Emitter, x: Tensor, dy: Tensor, gradient: Tensor, sums: Tensor | None, add: bool
    ) -> tuple[Sum, Sum | None]:
        """Add the gradient of the kernel to `gradient`, and where `sums` is given, dy summed over its rows to that:
        both once `finish` has completed the sums returned. Without `add` they start anew."""
        raise NotImplementedError
