"""Resize, UpSampling2D and AdaptiveAveragePooling2D."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import ShapeError

from .linear_map import LinearMap, Matrices
from .tensor import Shape
from .window import Pair, pair

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
