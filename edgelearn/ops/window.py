"""The geometry of a sliding window, shared by convolutions and pooling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import ShapeError

Pair = tuple[int, int]
Padding = str | tuple[Pair, Pair]


def pair(value: int | Pair) -> Pair:
    """(y, x) from an int for both or from two ints. Raises ShapeError for other values."""
    both = (value, value) if isinstance(value, int | np.integer) else value
    if not isinstance(both, tuple | list) or [isinstance(n, int | np.integer) for n in both] != [True, True]:
        raise ShapeError(f"Expected an int or (height, width), got {value!r}.")
    return int(both[0]), int(both[1])


@dataclass(frozen=True)
class Window:
    """A window over an image of `height` x `width`: kernel, strides and dilation as (y, x), padding as
    ((top, bottom), (left, right))."""

    height: int
    width: int
    kernel: Pair
    strides: Pair
    dilation: Pair
    padding: tuple[Pair, Pair]

    @classmethod
    def of(cls, shape, kernel: Pair, strides: Pair, padding: Padding, dilation: Pair = (1, 1)) -> Window:
        """A window over an image of `shape`, with Keras's "same" and "valid" resolved to pixels. Raises ShapeError if
        it does not fit."""
        if len(shape) != 3:
            raise ShapeError(f"A window slides over (height, width, channels), but the input has shape {tuple(shape)}.")
        size = shape[:2]
        if min(*kernel, *strides, *dilation) < 1:
            raise ShapeError(f"Kernel {kernel}, strides {strides} and dilation {dilation} of a window are 1 or more.")
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        if padding == "same":
            total = [max((-(-n // s) - 1) * s + r - n, 0) for n, s, r in zip(size, strides, reach, strict=True)]
            vertical, horizontal = ((t // 2, t - t // 2) for t in total)
        elif padding == "valid":
            vertical = horizontal = (0, 0)
        elif not isinstance(padding, tuple | list) or len(padding) != 2:
            raise ShapeError(f"padding is 'same', 'valid' or ((top, bottom), (left, right)), not {padding!r}.")
        else:
            vertical, horizontal = (pair(p) for p in padding)
            if min(*vertical, *horizontal) < 0:
                raise ShapeError(f"padding is not negative, but it is {padding}.")
        if any(n + sum(p) < r for n, p, r in zip(size, (vertical, horizontal), reach, strict=True)):
            raise ShapeError(f"A {kernel} window (dilation {dilation}) does not fit an image of {tuple(size)}.")
        return cls(size[0], size[1], kernel, strides, dilation, (vertical, horizontal))

    @classmethod
    def pointwise(cls, height: int, width: int) -> Window:
        """A window of one pixel."""
        return cls(height, width, (1, 1), (1, 1), (1, 1), ((0, 0), (0, 0)))

    @property
    def is_pointwise(self) -> bool:
        """True if every output pixel depends only on the input pixel at its place."""
        return self.kernel == self.strides == (1, 1) and self.padding == ((0, 0), (0, 0))

    @property
    def output(self) -> Pair:
        """Height and width of the output."""
        axes = zip((self.height, self.width), self.kernel, self.strides, self.dilation, self.padding, strict=True)
        height, width = ((n + sum(p) - (k - 1) * d - 1) // s + 1 for n, k, s, d, p in axes)
        return height, width

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    def problem(self, images: int, channels: int) -> tuple[int, ...]:
        """The key of a convolution of `images` with this window in tuning results: sizes, kernel and strides."""
        return images, self.height, self.width, channels, *self.kernel, *self.strides

    @property
    def macros(self) -> dict[str, int]:
        """The macros of kernels/include/window.h."""
        (ky, kx), (sy, sx), (dy, dx) = self.kernel, self.strides, self.dilation
        return {
            "kernel_h": ky, "kernel_w": kx, "stride_y": sy, "stride_x": sx,
            "dilation_y": dy, "dilation_x": dx, "pad_top": self.padding[0][0], "pad_left": self.padding[1][0],
        }  # fmt: skip

    def pad(self, x: np.ndarray, value: float = 0.0) -> np.ndarray:
        return np.pad(x, ((0, 0), *self.padding, (0, 0)), constant_values=value)

    def crop(self, x: np.ndarray) -> np.ndarray:
        """Undo `pad`."""
        (top, _), (left, _) = self.padding
        return x[:, top : top + self.height, left : left + self.width]

    def slices(self):
        """(ky, kx, slices of a padded image) for each tap: the pixels that it multiplies, one for each output pixel."""
        for ky in range(self.kernel[0]):
            for kx in range(self.kernel[1]):
                starts = (ky * self.dilation[0], kx * self.dilation[1])
                yield ky, kx, (slice(None), *(
                    slice(start, start + (count - 1) * stride + 1, stride)
                    for start, count, stride in zip(starts, self.output, self.strides, strict=True)
                ))  # fmt: skip
