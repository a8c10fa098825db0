"""Long recordings to listen to, made of clips and noise."""

from __future__ import annotations

import os
import wave
from collections.abc import Iterator, Sequence

import numpy as np

from edgelearn import atomic
from edgelearn.data.audio import RATE
from edgelearn.data.audio.augment import synthetic_noises
from edgelearn.data.audio.clips import ClipDataset
from edgelearn.errors import DataError

from .judge import Occurrence

_STREAM = 37  # keeps this random stream of a seed apart from others
_FRAME = 0.01  # seconds
_HEADER, _SAMPLE, _LARGEST = 44, 2, 32767  # bytes of a WAV file's header and of a sample; what 1 is written as


class LongRecording:
    """The clips of `dataset` in random order, each after a pause, over noise that goes on throughout.

    keywords: the words that `timeline` lists; the others are there to be ignored (default: all are keywords).
    pauses: the shortest and the longest, in seconds. noises: recordings (n,), put one after the other and repeated.
    level: of the noise, root mean square in decibels relative to full scale: 0 is as loud as can be, -45 is quiet.

    The same arguments make the same samples; one clip is in memory at a time. Raises DataError when there are no clips,
    or one can't be read, and for a level or seed that can't be.
    """

    def __init__(
        self, dataset: ClipDataset, keywords: Sequence[str] | None = None, seed: int = 0,
        pauses: tuple[float, float] = (0.3, 1.5), noises: Sequence[np.ndarray] | None = None, level: float = -45.0,
        rate: int = RATE,
    ) -> None:  # fmt: skip
        if not len(dataset) or not 0 <= pauses[0] <= pauses[1]:
            raise DataError(
                f"A long recording needs clips, and pauses from shorter to longer: {len(dataset)}, {pauses}."
            )
        if not level <= 0 or seed < 0:
            raise DataError(f"The noise's level is at most 0 decibels, the seed at least 0; got {level} and {seed}.")
        self.dataset, self.rate = dataset, rate
        self.keywords = dataset.class_names if keywords is None else tuple(keywords)
        noise = np.concatenate(synthetic_noises(seed, rate=rate) if noises is None else list(noises))
        self._noise = (noise * 10 ** (level / 20) / max(1e-9, np.sqrt(np.mean(noise**2)))).astype(np.float32)
        rng = np.random.default_rng([seed, _STREAM])
        self._order = rng.permutation(len(dataset))
        self._pauses = np.round(rate * rng.uniform(*pauses, len(dataset) + 1)).astype(int)
        self.timeline, self.seconds = self._read_through()

    def __iter__(self) -> Iterator[np.ndarray]:
        """The samples, float32 (n,) in -1..1: a pause and a clip at a time, and a last pause."""
        start = 0
        for clip, pause in zip((*self._order, None), self._pauses, strict=True):
            sound = np.empty(0, np.float32) if clip is None else self.dataset.clip(int(clip), self.rate)
            piece = np.take(self._noise, np.arange(start, start + pause + len(sound)), mode="wrap")
            piece[pause:] += sound
            start += len(piece)
            yield piece.clip(-1, 1)

    def write(self, path: str | os.PathLike) -> None:
        """As a WAV file of 16 bits, in one step. Raises RunError where it can't be written; what was there stays."""
        size = _HEADER + _SAMPLE * round(self.seconds * self.rate)
        with atomic.replacing(path, size) as whole, wave.open(whole, "wb") as file:
            file.setparams((1, _SAMPLE, self.rate, 0, "NONE", ""))
            for piece in self:
                file.writeframes(np.round(piece * _LARGEST).astype("<i2").tobytes())

    def _read_through(self) -> tuple[list[Occurrence], float]:
        timeline, start = [], 0
        words = self.dataset.words
        for clip, pause in zip(self._order, self._pauses, strict=False):
            sound = self.dataset.clip(int(clip), self.rate)
            start += pause
            if words[clip] in self.keywords:
                first, last = spoken(sound, self.rate)
                at = float(start) / self.rate
                timeline.append(Occurrence(str(words[clip]), at + first, at + last))
            start += len(sound)
        return timeline, float(start + self._pauses[-1]) / self.rate


def spoken(clip: np.ndarray, rate: int = RATE) -> tuple[float, float]:
    """Where the word in a clip begins and ends, in seconds: the frames within 20 decibels of the loudest."""
    size = round(rate * _FRAME)
    frames = clip[: len(clip) // size * size].reshape(-1, size)
    energy = np.square(frames, dtype=np.float64).mean(1)
    loud = np.flatnonzero(energy >= energy.max() / 100)
    return int(loud[0]) * size / rate, int(loud[-1] + 1) * size / rate
