"""Clips as training hears them: a little different every epoch, one by one or as episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from edgelearn.data.audio.augment import AddNoise, Shift, SpecAugment, synthetic_noises
from edgelearn.data.audio.clips import ClipDataset, load_clips
from edgelearn.errors import DataError
from edgelearn.ops.tensor import Shape

from .config import KeywordsConfig

_EPISODES = 35  # keeps this random stream of a seed apart from others
_LARGEST = 32767
_TOGETHER = 512  # clips whose features are computed at once


@dataclass(frozen=True, eq=False)
class Recordings:
    """clips int16 (n, samples); labels int32 (n,), words of all sets one after the other; speakers int32 (n,)."""

    clips: np.ndarray
    labels: np.ndarray
    speakers: np.ndarray

    def __len__(self) -> int:
        return len(self.clips)

    def floats(self, numbers: np.ndarray) -> np.ndarray:
        """Clips by their numbers: float32 (n, samples)."""
        return self.clips[numbers].astype(np.float32) / _LARGEST

    @property
    def words(self) -> int:
        return int(self.labels.max()) + 1

    @classmethod
    def of(cls, datasets: tuple[ClipDataset, ...], rate: int, seconds: float) -> Recordings:
        clips, labels, speakers, words = [], [], [], 0
        for number, dataset in enumerate(datasets):
            heard = load_clips(dataset, None, rate, seconds).clip(-1, 1)  # resampling and decoding may go a bit beyond
            clips.append((heard * _LARGEST).astype(np.int16))
            labels.append(dataset.labels + words)
            speakers += [f"{number} {name}" for name in dataset.speakers.tolist()]
            words += len(dataset.class_names)
        numbers = np.unique(speakers, return_inverse=True)[1].astype(np.int32)
        return cls(np.concatenate(clips), np.concatenate(labels), numbers)

    def with_reversed(self) -> Recordings:
        """And all of them played backwards, as words of their own."""
        return Recordings(
            np.concatenate([self.clips, self.clips[:, ::-1]]),
            np.concatenate([self.labels, self.labels + self.words]),
            np.concatenate([self.speakers, self.speakers]),
        )


@dataclass(frozen=True, eq=False)
class Heard:
    """A source of examples: clip `order(epoch)[i]` is example i. Without an order, every clip is once, under its own
    number. `vary_clips` and `mask` are called as edgelearn.data.audio.augment has them."""

    recordings: Recordings
    examples: Callable[[np.ndarray], np.ndarray]  # clips float32 (n, samples) to what the network takes
    example_shape: Shape
    vary_clips: tuple[Callable, ...] = ()
    mask: Callable | None = None
    order: Callable[[int], np.ndarray] | None = None
    epoch: int = 0

    @property
    def shape(self) -> Shape:
        return (len(self), *self.example_shape)

    def __len__(self) -> int:
        return len(self._clips)

    @cached_property
    def _clips(self) -> np.ndarray:
        return np.arange(len(self.recordings)) if self.order is None else self.order(self.epoch)

    @cached_property
    def _unvaried(self) -> np.ndarray:
        """All clips as the network takes them."""
        every = np.array_split(np.arange(len(self.recordings)), -(-len(self.recordings) // _TOGETHER))
        return np.concatenate([self.examples(self.recordings.floats(some)) for some in every])

    def at_epoch(self, epoch: int) -> Heard:
        found = replace(self, epoch=epoch)
        if not self.vary_clips:
            found.__dict__["_unvaried"] = self._unvaried
        return found

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        if self.vary_clips:
            clips = self.recordings.floats(self._clips[indices])
            for vary in self.vary_clips:
                clips = vary(clips, indices, self.epoch)
            x = self.examples(clips)
        else:
            x = self._unvaried[self._clips[indices]]
        if self.mask is not None:
            x = self.mask(x[..., 0], indices, self.epoch)[..., None]
        return x


def variations(config: KeywordsConfig, bands_first: bool) -> dict:
    """How clips vary, as Heard takes it."""
    clips: list[Callable] = [Shift(config.seed, config.shift)] if config.shift else []
    if config.noise:
        clips.append(AddNoise(config.seed, synthetic_noises(config.seed), config.noise))
    mask = SpecAugment(config.seed) if config.mask else None
    if mask and bands_first:  # it names its axes (frames, bands)
        upright = mask
        mask = lambda x, indices, epoch: upright(x.transpose(0, 2, 1), indices, epoch).transpose(0, 2, 1)  # noqa: E731
    return {"vary_clips": tuple(clips), "mask": mask}


@dataclass(frozen=True, eq=False)
class EpisodeOrder:
    """Which clips make up the episodes of an epoch: of each, the support of `ways` words, way after way, then `queries`
    of each, then as many of other words if `unknown`. Speakers are mixed, so that words are learned whoever says them.

    Raises DataError when too few words have clips enough."""

    recordings: Recordings
    ways: int
    shots: int
    queries: int
    unknown: bool
    count: int
    seed: int

    def __post_init__(self) -> None:
        if len(self._by_word) < self.ways + self.unknown:
            raise DataError(
                f"{len(self._by_word)} words have {self.shots + self.queries} clips or more: too few for episodes of "
                f"{self.ways} words{' and others to reject' if self.unknown else ''}. Ask for fewer ways, shots or "
                f"queries."
            )

    @property
    def size(self) -> int:
        return self.ways * (self.shots + self.queries * (1 + self.unknown))

    @property
    def labels(self) -> np.ndarray:
        """int32 (size,) of any episode, for ops.Prototypical."""
        ways = np.arange(self.ways, dtype=np.int32)
        unknown = np.full(self.ways * self.queries * self.unknown, self.ways, np.int32)
        return np.concatenate([np.repeat(ways, self.shots), np.repeat(ways, self.queries), unknown])

    def __call__(self, epoch: int) -> np.ndarray:
        """Numbers of clips: (count * size,)."""
        rng = np.random.default_rng([self.seed, _EPISODES, epoch])
        return np.concatenate([self._episode(rng) for _ in range(self.count)])

    @cached_property
    def _by_word(self) -> list[np.ndarray]:
        """The clips of each word that has enough of them."""
        labels, need = self.recordings.labels, self.shots + self.queries
        found = [np.flatnonzero(labels == word) for word in range(self.recordings.words)]
        return [clips for clips in found if len(clips) >= need]

    def _episode(self, rng: np.random.Generator) -> np.ndarray:
        words = [self._by_word[number] for number in rng.permutation(len(self._by_word))]
        drawn = [rng.permutation(clips)[: self.shots + self.queries] for clips in words[: self.ways]]
        parts = [clips[: self.shots] for clips in drawn] + [clips[self.shots :] for clips in drawn]
        if self.unknown:
            others = words[self.ways :]
            parts.append([rng.choice(others[k % len(others)]) for k in range(self.ways * self.queries)])
        return np.concatenate(parts)
