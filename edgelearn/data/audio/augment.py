"""Reproducible augmentation of clips and features.

The result for clip i in an epoch depends only on the seed, the epoch and i (see edgelearn.data.draws).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgelearn.data.draws import draws
from edgelearn.errors import DataError

from . import RATE

_SHIFT, _NOISE, _MASKS = 20, 21, 22  # separate these random streams of a seed from others


@dataclass(frozen=True)
class Shift:
    """Clips moved in time by up to `limit` of their length in either direction, zeros coming in. Raises DataError for a
    limit outside 0..1."""

    seed: int
    limit: float = 0.1

    def __post_init__(self):
        if not 0 <= self.limit <= 1:
            raise DataError(f"limit is a fraction of a clip's length, from 0 to 1, got {self.limit}.")

    def __call__(self, clips: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
        """`clips` (n, samples), of which each is clip `indices[...]` of the data set, as they sound in `epoch`."""
        n, samples = clips.shape
        reach = int(self.limit * samples)
        later = np.floor(draws(self.seed, _SHIFT, epoch, indices, 1)[:, 0] * (2 * reach + 1)).astype(int) - reach
        padded = np.pad(clips, ((0, 0), (reach, reach)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, samples, axis=1)
        return windows[np.arange(n), reach - later]


@dataclass(frozen=True, eq=False)
class AddNoise:
    """Mix noise into clips. The sum is cut at -1 and 1. A clip without any signal stays as it is: it has no such ratio.

    Arguments:
    - `seed`: draws who gets which noise, and how much.
    - `noises`: recordings (samples,) at the clips' rate, such as those of load_noises or synthetic_noises.
    - `probability`: of a clip to get noise (default 0.8).
    - `low`, `high`: signal-to-noise ratios in decibels, between which one is drawn evenly (default 0 and 20).

    Raises DataError when there are no noises, or for a probability or a range that can't be.
    """

    seed: int
    noises: Sequence[np.ndarray]
    probability: float = 0.8
    low: float = 0.0
    high: float = 20.0

    def __post_init__(self):
        if not self.noises or not all(len(noise) for noise in self.noises):
            raise DataError("noises is empty or has an empty recording. Use load_noises or synthetic_noises.")
        if not (0 <= self.probability <= 1 and self.low <= self.high):
            raise DataError(
                f"Expected probability in 0..1 and low <= high, got {self.probability}, {self.low} and {self.high}."
            )

    def __call__(self, clips: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
        """As Shift's."""
        out = clips.copy()
        for row, (chance, which, where, ratio) in enumerate(draws(self.seed, _NOISE, epoch, indices, 4)):
            if chance < self.probability:
                noise = stretch(self.noises[int(which * len(self.noises))], clips.shape[1], where)
                out[row] = mix(clips[row], noise, self.low + ratio * (self.high - self.low))
        return out


@dataclass(frozen=True)
class SpecAugment:
    """Frames and bands of features masked (Park et al. 2019, "SpecAugment", without its time warping): `times` masks of
    up to `frames` frames and `frequencies` masks of up to `bands` bands, of evenly drawn width and place.

    Masked features get `fill`, or if None the mean of the clip's: the paper's zero, since its features have mean zero.
    """

    seed: int
    times: int = 2
    frames: int = 20
    frequencies: int = 2
    bands: int = 7
    fill: float | None = None

    def __call__(self, features: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
        """`features` (n, frames, bands), each of clip `indices[...]` of the data set, as they are in `epoch`."""
        n, frames, bands = features.shape
        count = self.times + self.frequencies
        width, place = draws(self.seed, _MASKS, epoch, indices, 2 * count).reshape(n, 2, count).transpose(1, 0, 2)
        masked_frames = _masked(width[:, : self.times], place[:, : self.times], self.frames, frames)
        masked_bands = _masked(width[:, self.times :], place[:, self.times :], self.bands, bands)
        fill = features.mean((1, 2), keepdims=True) if self.fill is None else np.float32(self.fill)
        return np.where(masked_frames[:, :, None] | masked_bands[:, None, :], fill, features)


def synthetic_noises(seed: int = 0, seconds: float = 10.0, rate: int = RATE) -> list[np.ndarray]:
    """White, pink and brown noise: power falling with frequency to the power of 0, 1 and 2, root mean square 0.1."""
    rng = np.random.default_rng([seed, _NOISE])
    length = round(rate * seconds)
    frequency = np.maximum(np.fft.rfftfreq(length), 20 / rate)
    noises = []
    for slope in (0, 1, 2):
        spectrum = np.fft.rfft(rng.standard_normal(length)) / frequency ** (slope / 2)
        noise = np.fft.irfft(spectrum, length)
        noises.append((0.1 * noise / np.sqrt(np.mean(noise**2))).astype(np.float32))
    return noises


def stretch(noise: np.ndarray, length: int, where: float) -> np.ndarray:
    """Cut `length` samples from a recording; `where` in 0..1 is the position. A shorter recording is repeated."""
    if len(noise) < length:
        noise = np.tile(noise, -(-length // len(noise)))
    start = int(where * (len(noise) - length + 1))
    return noise[start : start + length]


def mix(clip: np.ndarray, noise: np.ndarray, decibels: float) -> np.ndarray:
    """Add `noise`, scaled to a power `decibels` below that of `clip`, and clip the sum to -1..1."""
    signal, disturbance = np.mean(np.square(clip, dtype=np.float64)), np.mean(np.square(noise, dtype=np.float64))
    if not signal or not disturbance:
        return clip
    gain = np.sqrt(signal / disturbance / 10 ** (decibels / 10))
    return np.clip(clip + np.float32(gain) * noise, -1, 1)


def _masked(width: np.ndarray, place: np.ndarray, limit: int, size: int) -> np.ndarray:
    """Masks as bool (n, size), from widths and places in 0..1, each (n, masks); `limit` is the largest width."""
    widths = np.floor(width * (min(limit, size) + 1)).astype(int)
    first = np.floor(place * (size - widths + 1)).astype(int)
    position = np.arange(size)
    inside = (position >= first[..., None]) & (position < (first + widths)[..., None])
    return np.any(inside, axis=1)
