"""Convert pixels to a network's input."""

from collections.abc import Sequence

import numpy as np

from edgelearn.errors import ShapeError

# MobileNet's input range: x / SCALE - OFFSET takes 0..255 to -1..1.
SCALE = 127.5
OFFSET = 1.0


def normalize(images: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """MobileNet's preprocessing, x / 127.5 - 1: uint8 of any shape to float32 of the same shape in -1..1.

    Arguments:
    - `out`: array for the result (default: a new one).

    Raises ShapeError if `images` isn't uint8 or `out` has another shape or type.
    """
    _check_pixels(images)
    if out is None:
        out = np.empty(images.shape, np.float32)
    elif out.shape != images.shape or out.dtype != np.float32:
        raise ShapeError(f"out must be float32 of shape {images.shape}, got {out.dtype} of shape {out.shape}.")
    np.divide(images, np.float32(SCALE), out=out, dtype=np.float32)
    out -= np.float32(OFFSET)
    return out


def standardize(images: np.ndarray, mean: Sequence[float], deviation: Sequence[float]) -> np.ndarray:
    """Standardize each channel, (x / 255 - mean) / deviation: uint8 (..., channels) to float32 of the same shape.
    Raises ShapeError if `images` isn't uint8."""
    _check_pixels(images)
    scale = 1 / (255 * np.asarray(deviation))
    offset = np.asarray(mean) / np.asarray(deviation)
    return images * scale.astype(np.float32) - offset.astype(np.float32)


def _check_pixels(images: np.ndarray) -> None:
    if images.dtype != np.uint8:
        raise ShapeError(f"Pixels must be uint8 in 0..255, got {images.dtype}. Pass pictures without preprocessing.")
