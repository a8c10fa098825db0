"""Random choices that a seed reproduces: splits, the order of an epoch, augmentation of pictures, clips and features.

The augmentation of example i in an epoch depends only on the seed, the epoch and i (see `draws`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import floor
from typing import Literal

import numpy as np

from edgelearn.errors import DataError

from . import RATE

Padding = Literal["constant", "reflect"]

# Separate the random streams of one seed.
_SPLIT, _EPOCH = 1, 2


def stratified_split(labels: np.ndarray, fraction: float = 0.8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Split each class of n pictures into floor(fraction * n) for training and the others for testing.

    Returns the sorted indices (train, test). Raises DataError if the fraction isn't between 0 and 1, or leaves a class
    without a training or a test picture.
    """
    if not 0 < fraction < 1:
        raise DataError(f"The training fraction must be between 0 and 1, got {fraction}. Usual is 0.8.")
    exact = Fraction(str(fraction))  # 0.29 * 100 is 28.999... in binary, and floor() would take one too few
    labels = np.asarray(labels)
    train, test = [], []
    for label in np.unique(labels):
        members = np.random.default_rng([seed, _SPLIT, int(label)]).permutation(np.flatnonzero(labels == label))
        count = floor(exact * len(members))
        if count in (0, len(members)):
            raise DataError(
                f"Class {label} has {len(members)} picture(s): a fraction of {fraction} leaves none for "
                f"{'testing' if count else 'training'}. Add pictures or change the fraction."
            )
        train.append(members[:count])
        test.append(members[count:])
    if not train:
        raise DataError("There are no pictures to split. Check the data set.")
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def epoch_order(n: int, seed: int, epoch: int) -> np.ndarray:
    """Permutation of `n` examples for one epoch; it depends only on the arguments."""
    return np.random.default_rng([seed, _EPOCH, epoch]).permutation(n)


def draws(seed: int, stream: int, epoch: int, indices: np.ndarray, count: int) -> np.ndarray:
    """Draw `count` numbers in 0..1 for each of `indices`: float64 (n, count).

    They depend only on the seed, the stream (a number for each purpose), the epoch and the index, not on the number of
    examples, their order or the batch size. So a resumed training sees the same numbers as an uninterrupted one.
    """
    indices = np.asarray(indices, np.int64)
    if not len(indices):
        return np.empty((0, count))
    return _table(seed, stream, epoch, count, capacity(indices))[indices]


def capacity(indices: np.ndarray) -> int:
    """Number of examples to draw for: a power of two above all `indices`, so that few tables per epoch are needed."""
    return 1 << int(indices.max()).bit_length()


@lru_cache(maxsize=8)
def _table(seed: int, stream: int, epoch: int, count: int, capacity: int) -> np.ndarray:
    """Numbers drawn in order: a larger `capacity` keeps the first ones."""
    return np.random.default_rng([seed, stream, epoch]).random((capacity, count))


_AUGMENT = 3  # keeps this random stream of a seed apart from those of edgelearn.data.draws


@dataclass(frozen=True)
class FlipAndCrop:
    """Random horizontal flips (probability 1/2) and random crops of the zero-padded picture (He et al. 2016, section
    4.2). The result for picture i depends only on the seed, the epoch and i (see edgelearn.data.draws).

    Arguments:
    - `seed`: of the random numbers.
    - `padding`: pixels on each side (default 4).
    - `mode`: what they hold: "constant" (default), zeros; "reflect", the picture mirrored at its edge, which leaves the
      statistics of a network's features those of whole pictures.
    """

    seed: int
    padding: int = 4
    mode: Padding = "constant"

    def __call__(self, images: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
        """Augment `images` (n, height, width, channels), which have these `indices` (n,) in the data set."""
        indices = np.asarray(indices)
        if not len(indices):
            return images
        mirrored, top, left = _choices(self.seed, epoch, self.padding, capacity(indices))[indices].T
        n, height, width, _ = images.shape
        p = self.padding
        padded = np.pad(images, ((0, 0), (p, p), (p, p), (0, 0)), self.mode)
        rows = top[:, None] + np.arange(height)
        columns = np.where(mirrored[:, None], np.arange(width)[::-1], np.arange(width)) + left[:, None]
        return padded[np.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]


@lru_cache(maxsize=2)
def _choices(seed: int, epoch: int, padding: int, count: int) -> np.ndarray:
    """(mirrored, top, left) of each of `count` pictures, drawn in order: a larger `count` keeps the first ones."""
    rng = np.random.default_rng([seed, _AUGMENT, epoch])
    return rng.integers(0, [2, 2 * padding + 1, 2 * padding + 1], (count, 3))


_SHIFT, _NOISE, _MASKS, _SPEED, _ROOM = 20, 21, 22, 25, 26  # separate these random streams of a seed from others


@dataclass(frozen=True)
class Shift:
    """Random shifts in time, padded with zeros.

    Arguments:
    - `seed`: of the random numbers.
    - `limit`: largest shift in either direction, as a share of the length (default 0.1).

    Raises DataError for a limit outside 0..1.
    """

    seed: int
    limit: float = 0.1

    def __post_init__(self):
        _check_limit(self.limit, 1, "length")

    def __call__(self, clips: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
        """Augment `clips` (n, samples), which have these `indices` (n,) in the data set."""
        n, samples = clips.shape
        reach = int(self.limit * samples)
        later = np.floor(draws(self.seed, _SHIFT, epoch, indices, 1)[:, 0] * (2 * reach + 1)).astype(int) - reach
        padded = np.pad(clips, ((0, 0), (reach, reach)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, samples, axis=1)
        return windows[np.arange(n), reach - later]


def _check_limit(limit: float, most: float, of: str) -> None:
    if not 0 <= limit <= most:
        raise DataError(f"limit is a share of a clip's {of}, from 0 to {most:g}, got {limit}.")


@dataclass(frozen=True, eq=False)
class AddNoise:
    """Mix noise into clips and clip the sum to -1..1. Silent clips, which have no signal-to-noise ratio, are unchanged.

    Arguments:
    - `seed`: of the random numbers.
    - `noises`: recordings (samples,) at the clips' rate, such as those of load_noises or synthetic_noises.
    - `probability`: of noise in a clip (default 0.8).
    - `low`, `high`: range of the signal-to-noise ratio in decibels, drawn uniformly (default 0 and 20).

    Raises DataError without noises, or for an invalid probability or range.
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
        """See Shift."""
        out = clips.copy()
        for row, (chance, which, where, ratio) in enumerate(draws(self.seed, _NOISE, epoch, indices, 4)):
            if chance < self.probability:
                noise = stretch(self.noises[int(which * len(self.noises))], clips.shape[1], where)
                out[row] = mix(clips[row], noise, self.low + ratio * (self.high - self.low))
        return out


@dataclass(frozen=True)
class Speed:
    """Random changes of speed, and with it of pitch (Ko et al. 2015, "Audio augmentation for speech recognition"),
    about the middle of a clip; linear interpolation, padded with zeros.

    Arguments:
    - `seed`: of the random numbers.
    - `limit`: largest change in either direction, as a share of the speed (default 0.1).

    Raises DataError for a limit outside 0..0.5.
    """

    seed: int
    limit: float = 0.1

    def __post_init__(self):
        _check_limit(self.limit, 0.5, "speed")

    def __call__(self, clips: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
        """See Shift."""
        time = np.arange(clips.shape[1]) - clips.shape[1] / 2
        speeds = 1 + self.limit * (2 * draws(self.seed, _SPEED, epoch, indices, 1)[:, 0] - 1)
        rows = [np.interp(time * speed, time, clip, 0, 0) for clip, speed in zip(clips, speeds, strict=True)]
        return np.array(rows, np.float32).reshape(clips.shape)


@dataclass(frozen=True)
class Reverberate:
    """Put clips into rooms: see `in_room`.

    Arguments:
    - `seed`: of the random numbers.
    - `probability`: of a room (default 0.3).
    - `low`, `high`: range of the seconds until the reverberation has fallen by 60 dB, drawn uniformly (default 0.1 and
      0.8).

    Raises DataError for an invalid probability or range.
    """

    seed: int
    probability: float = 0.3
    low: float = 0.1
    high: float = 0.8

    def __post_init__(self):
        if not (0 <= self.probability <= 1 and 0 < self.low <= self.high):
            raise DataError(
                f"Expected probability in 0..1 and 0 < low <= high, got {self.probability}, {self.low} and {self.high}."
            )

    def __call__(self, clips: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
        """See Shift."""
        out = clips.copy()
        for row, (chance, length) in enumerate(draws(self.seed, _ROOM, epoch, indices, 2)):
            if chance < self.probability:
                rng = np.random.default_rng([self.seed, _ROOM, epoch, int(indices[row])])
                out[row] = in_room(clips[row], self.low + length * (self.high - self.low), rng)
        return out


@dataclass(frozen=True)
class SpecAugment:
    """Mask frames and bands of features (Park et al. 2019, "SpecAugment", without time warping). Width and position of
    masks are drawn uniformly.

    Arguments:
    - `seed`: of the random numbers.
    - `times`, `frames`: number of masks in time, and their largest width in frames (default 2 and 20).
    - `frequencies`, `bands`: number of masks in frequency, and their largest width in bands (default 2 and 7).
    - `fill`: value of masked features (default: the clip's mean, which is 0 in the paper).
    """

    seed: int
    times: int = 2
    frames: int = 20
    frequencies: int = 2
    bands: int = 7
    fill: float | None = None

    def __call__(self, features: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
        """Augment `features` (n, frames, bands), which have these `indices` (n,) in the data set."""
        n, frames, bands = features.shape
        count = self.times + self.frequencies
        width, place = draws(self.seed, _MASKS, epoch, indices, 2 * count).reshape(n, 2, count).transpose(1, 0, 2)
        masked_frames = _masked(width[:, : self.times], place[:, : self.times], self.frames, frames)
        masked_bands = _masked(width[:, self.times :], place[:, self.times :], self.bands, bands)
        fill = features.mean((1, 2), keepdims=True) if self.fill is None else np.float32(self.fill)
        return np.where(masked_frames[:, :, None] | masked_bands[:, None, :], fill, features)


def synthetic_noises(seed: int = 0, seconds: float = 10.0, rate: int = RATE) -> list[np.ndarray]:
    """White, pink and brown noise: power proportional to 1 / frequency to the 0, 1 and 2; RMS 0.1."""
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


def in_room(clip: np.ndarray, seconds: float, rng: np.random.Generator, rate: int = RATE) -> np.ndarray:
    """Convolve a clip with an impulse and Gaussian noise of its power that has fallen by 60 dB after `seconds`, and
    scale it to its power (Polack's model of late reverberation)."""
    length = round(seconds * rate)
    room = rng.standard_normal(length) * 10 ** (-3 * np.arange(length) / length)
    room /= np.linalg.norm(room)
    room[0] += 1
    size = 1 << (len(clip) + length).bit_length()
    heard = np.fft.irfft(np.fft.rfft(clip, size) * np.fft.rfft(room, size), size)[: len(clip)]
    power = np.sqrt(np.mean(np.square(heard)) or 1.0)
    return np.clip(heard * np.sqrt(np.mean(np.square(clip))) / power, -1, 1).astype(np.float32)


def _masked(width: np.ndarray, place: np.ndarray, limit: int, size: int) -> np.ndarray:
    """Masks as bool (n, size), from widths and places in 0..1, each (n, masks); `limit` is the largest width."""
    widths = np.floor(width * (min(limit, size) + 1)).astype(int)
    first = np.floor(place * (size - widths + 1)).astype(int)
    position = np.arange(size)
    inside = (position >= first[..., None]) & (position < (first + widths)[..., None])
    return np.any(inside, axis=1)
