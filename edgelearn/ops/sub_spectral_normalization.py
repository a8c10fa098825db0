"""BatchNormalization by sub-bands of frequencies; the launches are those of batchnorm.py."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import ShapeError

from .batchnorm import BatchNormalization
from .tensor import Shape


@dataclass(frozen=True)
class SubSpectralNormalization(BatchNormalization):
    """BatchNormalization with statistics, scales and shifts for each sub-band of (frequency, time, channels): Chang et
    al. 2021, "SubSpectral normalization for neural audio data processing" (arXiv 2103.13620).

    Arguments:
    - `sub_bands`: number of equal parts of the first axis (default 5).

    Weights: (sub_bands, channels). Raises ShapeError if `sub_bands` doesn't divide the first axis.
    """

    sub_bands: int = 5

    per_channel = False

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3 or self.sub_bands < 1 or shape[0] % self.sub_bands:
            raise ShapeError(
                f"SubSpectralNormalization takes (frequency, time, channels) with a frequency of equal parts, not "
                f"{shape} in {self.sub_bands}: choose a number of sub_bands that divides the first size."
            )
        return shape

    def _parts(self, shape: Shape) -> Shape:
        return (self.sub_bands, shape[-1])

    def _to_rows(self, x: np.ndarray) -> np.ndarray:
        images, height, width, channels = x.shape
        parts = x.reshape(images, self.sub_bands, height // self.sub_bands * width, channels)
        return parts.swapaxes(1, 2).reshape(-1, self.sub_bands, channels)

    def _from_rows(self, rows: np.ndarray, shape: Shape) -> np.ndarray:
        return rows.reshape(shape[0], -1, *rows.shape[1:]).swapaxes(1, 2).reshape(shape)
