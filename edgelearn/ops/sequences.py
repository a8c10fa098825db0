"""Convolutions and pooling over sequences, (steps, channels): those of an image of height 1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, LinearOp, Op, Targets, Weight, is_count
from .convolution import Conv2D, Conv2DTranspose, DepthwiseConv2D
from .emit import Emitter, Epilogue, GradientSum
from .formats import KernelView, QuantizedTensor, Stored
from .pooling import AveragePooling2D, GlobalAveragePooling2D, GlobalMaxPooling2D, MaxPooling2D
from .products import Geometry
from .quantize import Residual
from .resize import UpSampling2D
from .target import Target
from .tensor import Shape, Tensor
from .window import Pair

Padding1D = str | Pair
WINDOWS = ("kernel_size", "pool_size", "strides", "dilation_rate", "output_padding", "size")  # of both axes in 2-D


def as_image(x: Any) -> Any:
    """A tensor of sequences, or what holds one, as one of images of height 1: (n, steps, channels) -> (n, 1, steps,
    channels). Tensors of other ranks are returned as they are."""
    if isinstance(x, Tensor):
        return replace(x, shape=(x.shape[0], 1, *x.shape[1:])) if len(x.shape) == 3 else x
    if isinstance(x, QuantizedTensor):
        return replace(x, tensor=as_image(x.tensor))
    return replace(x, y=as_image(x.y)) if isinstance(x, Target) else x


class OverSteps:
    """Base of ops on sequences: `plane` is the op on images of height 1 that computes the same."""

    twin: ClassVar[type[Any]]  # the op on images

    @property
    def plane(self) -> Any:
        """The op on images. Raises ShapeError for a size that isn't a whole number, or an unknown padding."""
        settings = {field.name: getattr(self, field.name) for field in fields(self)}  # pyright: ignore[reportArgumentType]
        for name in WINDOWS:
            if settings.get(name) is not None:
                if not is_count(settings[name]) and not (name == "output_padding" and settings[name] == 0):
                    raise ShapeError(f"{name} is a whole number of at least 1, not {settings[name]!r:.60}.")
                settings[name] = (0 if name == "output_padding" else 1, settings[name])
        if "padding" in settings:
            settings["padding"] = self._padding(settings["padding"])
        return self.twin(**settings)

    def _padding(self, padding: Any) -> Any:
        if padding == "causal" and hasattr(self, "dilation_rate"):
            return ((0, 0), ((self.kernel_size - 1) * self.dilation_rate, 0))  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(padding, tuple | list) and len(padding) == 2 and all(isinstance(n, int) for n in padding):
            return ((0, 0), tuple(padding))
        if padding in ("same", "valid"):
            return padding
        causal = ", 'causal'" if hasattr(self, "dilation_rate") else ""
        raise ShapeError(f"padding is 'same', 'valid'{causal} or (before, after), not {padding!r:.60}.")

    def _image(self, shape: Shape) -> Shape:
        if len(shape) != 2:
            raise ShapeError(f"{type(self).__name__} takes sequences (steps, channels), not {shape}.")
        return (1, *shape)

    def output_shape(self, shape: Shape) -> Shape:
        found = self.plane.output_shape(self._image(shape))
        return found[1:] if len(found) == 3 else found

    def flops(self, shape: Shape) -> int:
        return self.plane.flops(self._image(shape))


class SlidingOverSteps(OverSteps, LinearOp):
    """Base of convolutions over sequences."""

    def kernel(self, shape: Shape) -> Weight:
        weight = self.plane.kernel(self._image(shape))
        return replace(weight, shape=weight.shape[1:], matrix=weight.matrix or weight.shape[1:])

    def product(self, x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        return self.plane.product(x[:, None], kernel[None])[:, 0]

    def slopes(self, x: np.ndarray, kernel: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        dx, dkernel = self.plane.slopes(x[:, None], kernel[None], dy[:, None])
        return dx[:, 0], dkernel[0]

    def geometry(self, x: Tensor) -> Geometry:
        return self.plane.geometry(as_image(x))

    @property
    def has_integer_kernels(self) -> bool:
        return self.plane.has_integer_kernels

    def view(self, x: Tensor, kernel: Tensor, scale: Tensor | None) -> KernelView:
        return self.plane.view(as_image(x), kernel, scale)

    def emit_linear(
        self, e: Emitter, x: Stored, kernel: Stored, y: Tensor | Target, epilogue: Epilogue,
        residual: Residual | None = None,
    ) -> None:  # fmt: skip
        self.plane.emit_linear(e, as_image(x), kernel, as_image(y), epilogue, residual)

    def emit_backward_data(self, e: Emitter, x: Tensor, prepared: Stored, dy: Stored, target: Target) -> None:
        self.plane.emit_backward_data(e, as_image(x), prepared, as_image(dy), as_image(target))

    def emit_backward_weights(
        self, e: Emitter, x: Stored, dy: Stored, gradient: Tensor, sums: Tensor | None, add: bool
    ) -> tuple[GradientSum, GradientSum | None]:
        return self.plane.emit_backward_weights(e, as_image(x), as_image(dy), gradient, sums, add)


@dataclass(frozen=True)
class Conv1D(SlidingOverSteps):
    """Convolution (cross-correlation) over (steps, channels), as in Keras.

    Arguments:
    - `filters`: output channels.
    - `kernel_size`, `strides`, `dilation_rate`: steps (defaults 1 for the last two).
    - `padding`: `"valid"` (default); `"same"`; `"causal"`, zeros before the first step alone, so that no output depends
      on later steps; or (before, after).
    - `groups`: divides input channels and filters (default 1).
    - `use_bias`: add a bias to each filter (default True).
    - `kernel_initializer`: one of edgelearn.ops.initializers.INITIALIZERS (default "glorot_uniform").

    Kernel: (steps, channels / groups, filters). Raises ShapeError if arguments and input don't fit.
    """

    filters: int
    kernel_size: int
    strides: int = 1
    padding: Padding1D = "valid"
    dilation_rate: int = 1
    groups: int = 1
    use_bias: bool = True
    kernel_initializer: str = "glorot_uniform"

    twin = Conv2D
    has_values = True
    masks_sums = True


@dataclass(frozen=True)
class DepthwiseConv1D(SlidingOverSteps):
    """Convolution over (steps, channels) of each channel with its own kernel, as in Keras.

    Arguments:
    - `kernel_size`, `strides`, `dilation_rate`: steps (defaults 1 for the last two).
    - `padding`: `"valid"` (default), `"same"`, `"causal"` or (before, after), as of Conv1D.
    - `use_bias`: add a bias for each channel (default True).
    - `kernel_initializer`: one of edgelearn.ops.initializers.INITIALIZERS (default "glorot_uniform").
    - `depth_multiplier`: outputs of each channel, which follow each other (default 1, by far the fastest).

    Weights: kernel (steps, channels, depth_multiplier), as in Keras; bias (channels x depth_multiplier). Raises
    ShapeError if arguments and input don't fit.
    """

    kernel_size: int
    strides: int = 1
    padding: Padding1D = "valid"
    dilation_rate: int = 1
    use_bias: bool = True
    kernel_initializer: str = "glorot_uniform"
    depth_multiplier: int = 1

    twin = DepthwiseConv2D
    has_values = True
    masks_sums = True


@dataclass(frozen=True)
class Conv1DTranspose(SlidingOverSteps):
    """Transposed convolution over (steps, channels), as in Keras and PyTorch: each input step adds the kernel, times
    its value, to the output.

    Arguments:
    - `filters`: output channels.
    - `kernel_size`, `strides`, `dilation_rate`: steps (defaults 1 for the last two).
    - `padding`: `"valid"` (default); `"same"`, for an output of input steps x strides; or (before, after), the steps
      cut off the output's ends, as in PyTorch.
    - `output_padding`: steps added at the end, below the strides (default None: as in Keras).
    - `use_bias`: add a bias to each filter (default True).
    - `kernel_initializer`: one of edgelearn.ops.initializers.INITIALIZERS (default "glorot_uniform").
    - `groups`: divides input channels and filters (default 1, by far the fastest).

    Kernel: (steps, channels / groups, filters), as Conv1D's. Raises ShapeError if arguments and input don't fit.
    """

    filters: int
    kernel_size: int
    strides: int = 1
    padding: Padding1D = "valid"
    output_padding: int | None = None
    dilation_rate: int = 1
    use_bias: bool = True
    kernel_initializer: str = "glorot_uniform"
    groups: int = 1

    twin = Conv2DTranspose

    def _padding(self, padding: Any) -> Any:
        if padding == "causal":
            raise ShapeError("padding is 'same', 'valid' or (before, after), not 'causal'.")
        return super()._padding(padding)


class MovingOverSteps(OverSteps, Op):
    """Base of ops on sequences without weights."""

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        y = self.plane.reference_forward([inputs[0][:, None]], {})
        return y[:, 0] if y.ndim == 4 else y

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        dy = dy[:, None] if dy.ndim == 3 else dy
        (dx,), _ = self.plane.reference_backward([inputs[0][:, None]], {}, dy)
        return [dx[:, 0]], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        self.plane.emit_forward(e, [as_image(inputs[0])], as_image(y))

    def emit_backward(
        self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets
    ) -> Iterable[GradientSum] | None:
        images = [as_image(target) for target in targets]
        return self.plane.emit_backward(e, [as_image(inputs[0])], as_image(y), as_image(dy), images)


@dataclass(frozen=True)
class MaxPooling1D(MovingOverSteps):
    """The maximum of each window of steps. As in TensorFlow its gradient goes to the first step that holds the maximum.

    Arguments:
    - `pool_size`: steps of a window (default 2).
    - `strides`: steps from window to window (default `pool_size`).
    - `padding`: "valid" (default), "same" or (before, after); padding is ignored in maximum and mean.

    Raises ShapeError if the windows don't fit the input, or if one would hold only padding.
    """

    pool_size: int = 2
    strides: int | None = None
    padding: Padding1D = "valid"

    twin = MaxPooling2D
    has_values = True
    selects = True
    compares = True

    @property
    def selects_integers(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.plane.selects_integers


@dataclass(frozen=True)
class AveragePooling1D(MovingOverSteps):
    """The mean of each window of steps, without padding, as in Keras.

    Arguments:
    - `pool_size`: steps of a window (default 2).
    - `strides`: steps from window to window (default `pool_size`).
    - `padding`: "valid" (default), "same" or (before, after); padding is ignored in maximum and mean.

    Raises ShapeError if the windows don't fit the input, or if one would hold only padding.
    """

    pool_size: int = 2
    strides: int | None = None
    padding: Padding1D = "valid"

    twin = AveragePooling2D
    has_values = True


@dataclass(frozen=True)
class GlobalAveragePooling1D(MovingOverSteps):
    """(steps, channels) -> (channels,): the mean over all steps."""

    twin = GlobalAveragePooling2D
    has_values = True


@dataclass(frozen=True)
class GlobalMaxPooling1D(MovingOverSteps):
    """(steps, channels) -> (channels,): the maximum over all steps."""

    twin = GlobalMaxPooling2D
    selects = True
    compares = True


@dataclass(frozen=True)
class UpSampling1D(MovingOverSteps):
    """Each step `size` times in a row, as in Keras.

    Arguments:
    - `size`: repetitions (default 2).

    Raises ShapeError for a size below 1.
    """

    size: int = 2

    twin = UpSampling2D
    selects = True


OVER_STEPS = (AveragePooling1D, Conv1D, Conv1DTranspose, DepthwiseConv1D, GlobalAveragePooling1D, GlobalMaxPooling1D,
              MaxPooling1D, UpSampling1D)  # fmt: skip
