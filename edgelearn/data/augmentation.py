"""Augmentation of pictures: geometry, colour, cut-out, and chains of these; mixtures of two. Beside FlipAndCrop
(data/draws.py).

Each is called with pictures (n, height, width, channels), their indices in the data set and the epoch, and returns
pictures of the same shape and type. MixUp and CutMix, which mix targets too, are for a MixedSource. The result for
picture i depends only on the seed, the epoch and i, so a resumed training sees the same pictures as an uninterrupted
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edgelearn.errors import DataError

from .draws import draws

_GEOMETRY, _COLOUR, _HOLES, _PARTNERS, _SHARES, _BOXES = (
    30,
    31,
    32,
    33,
    34,
    35,
)  # separate these random streams of a seed from others
GRAY = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601

Augmentation = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


@dataclass(frozen=True)
class Chain:
    """Several augmentations, one after the other.

    Arguments:
    - `parts`: called as `part(pictures, indices, epoch)`.
    """

    parts: Sequence[Augmentation]

    def __call__(self, pictures: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
        """Augment `pictures` (n, height, width, channels), which have these `indices` (n,) in the data set."""
        for part in self.parts:
            pictures = part(pictures, indices, epoch)
        return pictures


@dataclass(frozen=True)
class RotateShiftZoom:
    """Random rotation, translation and zoom about the centre, bilinear; what comes from outside is `fill`. Each is
    drawn uniformly.

    Arguments:
    - `seed`: of the random numbers.
    - `degrees`: largest rotation in either direction (default 15).
    - `translation`: largest shift in either direction, as a share of height and width (default 0.1).
    - `zoom`: range of the magnification (default 0.9 to 1.1).
    - `fill`: value of pixels outside of the picture (default 0).

    Raises DataError for values out of range.
    """

    seed: int
    degrees: float = 15.0
    translation: float = 0.1
    zoom: tuple[float, float] = (0.9, 1.1)
    fill: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.degrees <= 180 and 0 <= self.translation <= 1 and 0 < self.zoom[0] <= self.zoom[1]):
            raise DataError(
                f"Expected degrees in 0..180, translation in 0..1 and a zoom from low to high above 0, got "
                f"{self.degrees}, {self.translation} and {self.zoom}."
            )

    def __call__(self, pictures: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
        """See Chain."""
        u = draws(self.seed, _GEOMETRY, epoch, indices, 4)
        angles = np.radians(self.degrees) * (2 * u[:, 0] - 1)
        shifts = self.translation * (2 * u[:, 1:3] - 1) * np.array(pictures.shape[1:3])
        zooms = self.zoom[0] + (self.zoom[1] - self.zoom[0]) * u[:, 3]
        out = np.empty_like(pictures)
        for row, picture in enumerate(pictures):
            out[row] = transformed(picture, angles[row], shifts[row], zooms[row], self.fill)
        return out


def transformed(
    picture: np.ndarray, angle: float, shift: np.ndarray | Sequence[float], zoom: float, fill: float = 0.0
) -> np.ndarray:
    """Rotate a picture (height, width, channels) counter-clockwise by `angle` radians, magnify it by `zoom` about its
    centre, and shift it by (down, right) pixels."""
    height, width, _ = picture.shape
    centre = (height - 1) / 2, (width - 1) / 2
    y, x = np.mgrid[:height, :width]
    y, x = (y - centre[0] - shift[0]) / zoom, (x - centre[1] - shift[1]) / zoom
    rows = np.cos(angle) * y + np.sin(angle) * x + centre[0]
    columns = -np.sin(angle) * y + np.cos(angle) * x + centre[1]
    padded = np.pad(picture.astype(np.float32), ((1, 1), (1, 1), (0, 0)), constant_values=fill)
    rows, columns = np.clip(rows + 1, 0, height + 1), np.clip(columns + 1, 0, width + 1)
    top, left = np.minimum(rows.astype(int), height), np.minimum(columns.astype(int), width)
    down, right = (rows - top)[..., None].astype(np.float32), (columns - left)[..., None].astype(np.float32)
    above = padded[top, left] * (1 - right) + padded[top, left + 1] * right
    below = padded[top + 1, left] * (1 - right) + padded[top + 1, left + 1] * right
    return _as(above * (1 - down) + below * down, picture.dtype)


@dataclass(frozen=True)
class Colour:
    """Random brightness, contrast, saturation and hue of RGB pictures, in this order, each drawn uniformly.

    Arguments:
    - `seed`: of the random numbers.
    - `brightness`: largest change of all values, as a share of `most` (default 0.2).
    - `contrast`: largest change of the factor of differences from the picture's mean gray (default 0.2).
    - `saturation`: largest change of the factor of differences from each pixel's gray (default 0.2).
    - `hue`: largest turn in either direction, as a share of the whole circle (default 0.05).
    - `most`: the value of white (default 255).

    Raises DataError for values below 0, or pictures that aren't RGB.
    """

    seed: int
    brightness: float = 0.2
    contrast: float = 0.2
    saturation: float = 0.2
    hue: float = 0.05
    most: float = 255.0

    def __post_init__(self) -> None:
        if min(self.brightness, self.contrast, self.saturation, self.hue) < 0 or self.most <= 0:
            raise DataError("Expected brightness, contrast, saturation and hue of at least 0, and most above 0.")

    def __call__(self, pictures: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
        """See Chain."""
        if pictures.shape[-1] != 3:
            raise DataError(f"Colours are of RGB pictures (n, height, width, 3), not {pictures.shape}.")
        limits = np.array([self.brightness, self.contrast, self.saturation, self.hue])
        changes = (2 * draws(self.seed, _COLOUR, epoch, indices, 4) - 1) * limits
        brightness, contrast, saturation, hue = changes.T[:, :, None, None, None]
        found = np.clip(pictures / self.most + brightness, 0, 1)
        mean = (found @ GRAY).mean((1, 2))[:, None, None, None]
        found = np.clip(mean + (found - mean) * (1 + contrast), 0, 1)
        gray = (found @ GRAY)[..., None]
        found = np.clip(gray + (found - gray) * (1 + saturation), 0, 1)
        return _as(turned(found, hue[..., 0]) * self.most, pictures.dtype)


def turned(rgb: np.ndarray, share: np.ndarray | float) -> np.ndarray:
    """Turn the hue of colours (..., 3) from 0 to 1 by a share of the circle; value and saturation stay (HSV)."""
    value, least = rgb.max(-1), rgb.min(-1)
    spread = value - least
    safe = np.where(spread > 0, spread, 1)
    r, g, b = np.moveaxis(rgb, -1, 0)
    hue = np.where(value == r, (g - b) / safe, np.where(value == g, 2 + (b - r) / safe, 4 + (r - g) / safe)) / 6
    places = (np.stack([np.full_like(hue, 5), np.full_like(hue, 3), np.full_like(hue, 1)], -1)
              + ((hue + share) % 1)[..., None] * 6) % 6  # fmt: skip
    return value[..., None] - spread[..., None] * np.clip(np.minimum(places, 4 - places), 0, 1)


@dataclass(frozen=True)
class CutOut:
    """Squares of `fill` at random places, which may reach over the border (DeVries and Taylor 2017, "Improved
    regularization of convolutional neural networks with cutout").

    Arguments:
    - `seed`: of the random numbers.
    - `size`: side of a square in pixels (default 16, as published for CIFAR-10).
    - `holes`: number of squares (default 1).
    - `fill`: their value (default 0).

    Raises DataError for a size or a number below 1.
    """

    seed: int
    size: int = 16
    holes: int = 1
    fill: float = 0.0

    def __post_init__(self) -> None:
        if self.size < 1 or self.holes < 1:
            raise DataError(f"Expected a size and holes of at least 1, got {self.size} and {self.holes}.")

    def __call__(self, pictures: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
        """See Chain."""
        u = draws(self.seed, _HOLES, epoch, indices, 2 * self.holes).reshape(-1, self.holes, 2)
        inside = []
        for axis, length in enumerate(pictures.shape[1:3]):
            first = np.floor(u[..., axis] * length).astype(int)[..., None] - self.size // 2
            inside.append((np.arange(length) >= first) & (np.arange(length) < first + self.size))
        holes = (inside[0][:, :, :, None] & inside[1][:, :, None, :]).any(1)
        return np.where(holes[..., None], np.asarray(self.fill, pictures.dtype), pictures)


@dataclass(frozen=True)
class MixUp:
    """Weighted means of two examples and of their targets (Zhang et al. 2018, "mixup: Beyond empirical risk
    minimization"). An example's partner is any one of the data set; its own share is drawn from Beta(alpha, alpha).

    Arguments:
    - `seed`: of the random numbers.
    - `alpha`: near 0, one of the two has nearly all; at 1, all shares are equally likely (default 0.2, as published for
      ImageNet; 1 for CIFAR-10).

    Raises DataError unless `alpha` is above 0.
    """

    seed: int
    alpha: float = 0.2

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)

    def partners(self, indices: np.ndarray, count: int, epoch: int) -> np.ndarray:
        """Return the examples, of `count`, that those of `indices` are mixed with: int (n,)."""
        return _partners(self.seed, indices, count, epoch)

    def shares(self, indices: np.ndarray, epoch: int, shape: Sequence[int]) -> np.ndarray:
        """Return the share of the example itself, in 0..1, for examples of `shape`: float32 (n, 1, ...)."""
        found = _beta(self.alpha, draws(self.seed, _SHARES, epoch, indices, 1)[:, 0])
        return found.astype(np.float32).reshape(-1, *(1 for _ in shape))


@dataclass(frozen=True)
class CutMix:
    """Pictures with a rectangle of another one, and targets mixed by the areas (Yun et al. 2019, "CutMix:
    Regularization strategy to train strong classifiers with localizable features"). Any picture of the data set may be
    the partner. The rectangle has the picture's proportions and a uniform centre; it ends at the border.

    Arguments:
    - `seed`: of the random numbers.
    - `alpha`: of Beta(alpha, alpha), from which the picture's own share of the area is drawn (default 1, as published).

    Raises DataError unless `alpha` is above 0, or for examples that aren't pictures.
    """

    seed: int
    alpha: float = 1.0

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)

    def partners(self, indices: np.ndarray, count: int, epoch: int) -> np.ndarray:
        """See MixUp."""
        return _partners(self.seed, indices, count, epoch)

    def shares(self, indices: np.ndarray, epoch: int, shape: Sequence[int]) -> np.ndarray:
        """Return 1 where a picture keeps its own pixel and 0 in the rectangle: float32 (n, height, width, 1)."""
        if len(shape) != 3:
            raise DataError(f"CutMix is of pictures (height, width, channels), not of examples {tuple(shape)}.")
        u = draws(self.seed, _BOXES, epoch, indices, 3)
        side = np.sqrt(1 - _beta(self.alpha, u[:, 0]))
        inside = []
        for axis, length in enumerate(shape[:2]):
            centre, size = np.floor(u[:, 1 + axis] * length).astype(int), np.floor(side * length).astype(int)
            first = (centre - size // 2)[:, None]
            inside.append((np.arange(length) >= first) & (np.arange(length) < first + size[:, None]))
        box = inside[0][:, :, None] & inside[1][:, None, :]
        return (~box)[..., None].astype(np.float32)


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < np.inf:
        raise DataError(f"alpha of Beta(alpha, alpha) is a number above 0, got {alpha}.")


def _partners(seed: int, indices: np.ndarray, count: int, epoch: int) -> np.ndarray:
    return np.floor(draws(seed, _PARTNERS, epoch, indices, 1)[:, 0] * count).astype(int)


def _beta(alpha: float, u: np.ndarray) -> np.ndarray:
    """Numbers of Beta(alpha, alpha), from uniform ones."""
    from scipy.special import betaincinv  # slow to import

    return np.clip(betaincinv(alpha, alpha, u), 0, 1)


def _as(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Rounded to whole numbers for pictures of these."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values = np.clip(np.rint(values), limits.min, limits.max)
    return values.astype(dtype)
