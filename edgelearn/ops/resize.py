"""Linear maps of images, one matrix along the height and one along the width: Resize, UpSampling2D and
AdaptiveAveragePooling2D."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from edgelearn.errors import ShapeError
from edgelearn.launch import In

from .base import Arrays, Gradients, Op, Targets, only
from .emit import Emitter, Row
from .target import Target
from .tensor import Shape, Tensor
from .window import Pair, pair

Matrices = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class LinearMap(Op):
    """Base of linear maps of (height, width, channels) that are the product of one of rows and one of columns."""

    def matrices(self, shape: Shape) -> Matrices:
        """(height of the output, height), (width of the output, width) for an input of `shape`; mostly zeros."""
        raise NotImplementedError

    def flops(self, shape: Shape) -> int:
        rows, columns = (int(np.count_nonzero(matrix)) for matrix in self.matrices(shape))
        return 2 * rows * columns * shape[-1]

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        rows, columns = self.matrices(inputs[0].shape[1:])
        return np.einsum("yh,nhwc,xw->nyxc", rows, inputs[0], columns, optimize=True)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        rows, columns = self.matrices(inputs[0].shape[1:])
        return [np.einsum("yh,nyxc,xw->nhwc", rows, dy, columns, optimize=True)], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (x,) = inputs
        rows, columns = self.matrices(x.shape[1:])
        _emit(e, x, rows, columns, Target(y))

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        rows, columns = self.matrices(inputs[0].shape[1:])
        _emit(e, dy, rows.T, columns.T, only(targets))


def _emit(e: Emitter, x: Tensor, rows: np.ndarray, columns: np.ndarray, target: Target) -> None:
    y = target.tensor
    groups, count = e.bands(y.rows, y.blocks)
    tables = (In(e.table(_sparse(matrix))) for matrix in (rows, columns))
    e.launch(
        "linear_map.cl", "map_image", (groups, y.blocks), x.read, *tables, y.rows, count, x.height, x.width, y.height,
        y.width, *target.arguments, **target.macros,
    )  # fmt: skip


def _sparse(matrix: np.ndarray) -> tuple[Row, ...]:
    """The table of a matrix in kernels/linear_map.cl."""
    places = [np.flatnonzero(row) for row in matrix]
    ends = list(accumulate(map(len, places), initial=len(matrix)))
    entries = (
        (int(place), int(np.float32(row[place]).view(np.int32)))
        for row, found in zip(matrix, places, strict=True)
        for place in found
    )
    return (*pairwise(ends), *entries)


INTERPOLATIONS = ("nearest", "bilinear")
COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
ROUNDINGS = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda place: np.ceil(place - 0.5),
    "round_prefer_ceil": lambda place: np.floor(place + 0.5),
}


@dataclass(frozen=True)
class Resize(LinearMap):
    """Resizes images, with the conventions of Keras, TFLite, ONNX and PyTorch.

    Arguments:
    - `size`: int or (height, width) of the output.
    - `interpolation`: `"bilinear"` (default) or `"nearest"`.
    - `coordinates`: where output pixel i lies in the input, for a ratio of input size to output size:
      `"half_pixel"` (default; Keras, PyTorch), (i + 0.5) * ratio - 0.5;
      `"pytorch_half_pixel"`, the same, and 0 for an output of one pixel;
      `"asymmetric"`, i * ratio (old TensorFlow and TFLite; PyTorch's nearest);
      `"align_corners"`, i * (input - 1) / (output - 1).
    - `rounding`: of that place to the nearest pixel: `"round_prefer_ceil"` (default: Keras, TFLite), `"floor"`
      (PyTorch's, and TFLite's with asymmetric coordinates), `"ceil"`, `"round_prefer_floor"` (ONNX's default).
    - `scale`: output size by input size, where it isn't the ratio of the sizes: a number or (vertical, horizontal)
      (default None).

    Raises ShapeError for other names, or an input that is no image.
    """

    size: int | Pair
    interpolation: str = "bilinear"
    coordinates: str = "half_pixel"
    rounding: str = "round_prefer_ceil"
    scale: float | tuple[float, float] | None = None

    @property
    def selects(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.interpolation == "nearest"

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise ShapeError(f"Resize takes (height, width, channels), not {shape}.")
        for name, options in (
            ("interpolation", INTERPOLATIONS), ("coordinates", COORDINATES), ("rounding", tuple(ROUNDINGS))
        ):  # fmt: skip
            if getattr(self, name) not in options:
                raise ShapeError(f"{name} is one of {', '.join(options)}, not '{getattr(self, name)}'.")
        size = pair(self.size)
        if min(size) < 1 or any(scale is not None and scale <= 0 for scale in self._scales()):
            raise ShapeError(f"Sizes are 1 or more and scales above 0, not {self.size} and {self.scale}.")
        return (*size, shape[-1])

    def _scales(self) -> tuple[float | None, float | None]:
        return self.scale if isinstance(self.scale, tuple) else (self.scale, self.scale)

    def matrices(self, shape: Shape) -> Matrices:
        rows, columns = map(self._matrix, shape[:2], pair(self.size), self._scales())
        return rows, columns

    def _matrix(self, n: int, size: int, scale: float | None) -> np.ndarray:
        """(size, n): what each output pixel takes of each of `n` input pixels."""
        places, matrix, index = self._places(n, size, scale), np.zeros((size, n)), np.arange(size)
        if self.interpolation == "nearest":
            matrix[index, np.clip(ROUNDINGS[self.rounding](places), 0, n - 1).astype(int)] = 1
            return matrix
        places = np.clip(places, 0, n - 1)
        low = np.floor(places).astype(int)
        np.add.at(matrix, (index, low), 1 - (places - low))
        np.add.at(matrix, (index, np.minimum(low + 1, n - 1)), places - low)
        return matrix

    def _places(self, n: int, size: int, scale: float | None) -> np.ndarray:
        """Where the output pixels lie in the input; multiplied first, so that whole places are exact."""
        index = np.arange(size)
        over, under = (n, size) if scale is None else (1, scale)
        if self.coordinates == "asymmetric":
            return index * over / under
        if self.coordinates == "align_corners":
            return index * (n - 1) / max(size - 1, 1)
        if self.coordinates == "pytorch_half_pixel" and size == 1:
            return np.zeros(1)
        return (2 * index + 1) * over / (2 * under) - 0.5


@dataclass(frozen=True)
class UpSampling2D(LinearMap):
    """Images with each side as many times as large, as in Keras.

    Arguments:
    - `size`: int or (vertical, horizontal) factor (default 2).
    - `interpolation`: `"nearest"`, which repeats pixels (default), or `"bilinear"`.

    Raises ShapeError for factors below 1, or an input that is no image.
    """

    size: int | Pair = 2
    interpolation: str = "nearest"

    @property
    def selects(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.interpolation == "nearest"

    def as_resize(self, shape: Shape) -> Resize:
        """The Resize of images of this shape that computes the same."""
        if len(shape) != 3:
            raise ShapeError(f"UpSampling2D takes (height, width, channels), not {shape}.")
        vertical, horizontal = pair(self.size)
        return Resize((vertical * shape[0], horizontal * shape[1]), self.interpolation)

    def output_shape(self, shape: Shape) -> Shape:
        return self.as_resize(shape).output_shape(shape)

    def matrices(self, shape: Shape) -> Matrices:
        return self.as_resize(shape).matrices(shape)


@dataclass(frozen=True)
class AdaptiveAveragePooling2D(LinearMap):
    """Means over windows whose sizes follow from the output's: PyTorch's AdaptiveAvgPool2d. Output pixel i is the mean
    of the input's pixels from floor(i * input / output) up to but without ceil((i + 1) * input / output).

    Arguments:
    - `size`: int or (height, width) of the output.

    Raises ShapeError for sizes below 1, or an input that is no image.
    """

    size: int | Pair

    def output_shape(self, shape: Shape) -> Shape:
        size = pair(self.size)
        if len(shape) != 3 or min(size) < 1:
            raise ShapeError(
                f"AdaptiveAveragePooling2D takes (height, width, channels) and sizes of 1 or more, not {shape} and "
                f"{self.size}."
            )
        return (*size, shape[-1])

    def matrices(self, shape: Shape) -> Matrices:
        rows, columns = (_means(n, size) for n, size in zip(shape[:2], pair(self.size), strict=True))
        return rows, columns


def _means(n: int, size: int) -> np.ndarray:
    matrix = np.zeros((size, n))
    for i in range(size):
        start, stop = i * n // size, -(-(i + 1) * n // size)
        matrix[i, start:stop] = 1 / (stop - start)
    return matrix
