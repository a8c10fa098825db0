"""Training examples: clips augmented anew in every epoch, in any order or as episodes."""

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
_BATCH = 512  # clips whose features are computed together


@dataclass(frozen=True, eq=False)
class Recordings:
    """Clips of one or more data sets in memory.

    Arguments:
    - `clips`: int16 (n, samples).
    - `labels`: int32 (n,); the words of each set are numbered after those of the sets before it.
    - `speakers`: int32 (n,).
    """

    clips: np.ndarray
    labels: np.ndarray
    speakers: np.ndarray

    def __len__(self) -> int:
        return len(self.clips)

    def floats(self, numbers: np.ndarray) -> np.ndarray:
        """Clips by index: float32 (n, samples)."""
        return self.clips[numbers].astype(np.float32) / _LARGEST

    @property
    def words(self) -> int:
        """Number of words."""
        return int(self.labels.max()) + 1

    @classmethod
    def load(cls, datasets: tuple[ClipDataset, ...], rate: int, seconds: float) -> Recordings:
        """Read the clips of `datasets`, at `rate` and `seconds` long. Raises DataError for one that can't be read."""
        clips, labels, speakers, words = [], [], [], 0
        for number, dataset in enumerate(datasets):
            sound = load_clips(dataset, None, rate, seconds).clip(-1, 1)  # resampling and decoding may exceed 1
            clips.append((sound * _LARGEST).astype(np.int16))
            labels.append(dataset.labels + words)
            speakers += [f"{number} {name}" for name in dataset.speakers.tolist()]
            words += len(dataset.class_names)
        numbers = np.unique(speakers, return_inverse=True)[1].astype(np.int32)
        return cls(np.concatenate(clips), np.concatenate(labels), numbers)

    def with_reversed(self) -> Recordings:
        """A copy with all clips played backwards as well, as words of their own."""
        return Recordings(
            np.concatenate([self.clips, self.clips[:, ::-1]]),
            np.concatenate([self.labels, self.labels + self.words]),
            np.concatenate([self.speakers, self.speakers]),
        )


@dataclass(frozen=True, eq=False)
class ClipSource:
    """A source of augmented examples.

    Arguments:
    - `recordings`: the clips.
    - `examples`: maps clips float32 (n, samples) to inputs of the network.
    - `example_shape`: of an input.
    - `augment`: functions of (clips, indices, epoch), applied to the samples; see `data.audio.augment`.
    - `mask`: the same, applied to the features; None for none.
    - `order`: maps an epoch to the clip of each example (default: every clip is one example).
    - `epoch`: current epoch, from 0.
    """

    recordings: Recordings
    examples: Callable[[np.ndarray], np.ndarray]
    example_shape: Shape
    augment: tuple[Callable, ...] = ()
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
    def _inputs(self) -> np.ndarray:
        """Inputs of the network for all clips, if these aren't augmented."""
        parts = np.array_split(np.arange(len(self.recordings)), -(-len(self.recordings) // _BATCH))
        return np.concatenate([self.examples(self.recordings.floats(part)) for part in parts])

    def at_epoch(self, epoch: int) -> ClipSource:
        """The same source in another epoch."""
        other = replace(self, epoch=epoch)
        if not self.augment:
            other.__dict__["_inputs"] = self._inputs
        return other

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        if self.augment:
            clips = self.recordings.floats(self._clips[indices])
            for augment in self.augment:
                clips = augment(clips, indices, self.epoch)
            x = self.examples(clips)
        else:
            x = self._inputs[self._clips[indices]]
        if self.mask is not None:
            x = self.mask(x[..., 0], indices, self.epoch)[..., None]
        return x


def augmentations(config: KeywordsConfig, bands_first: bool) -> tuple[tuple[Callable, ...], Callable | None]:
    """The arguments `augment` and `mask` of ClipSource."""
    clips: list[Callable] = [Shift(config.seed, config.shift)] if config.shift else []
    if config.noise:
        clips.append(AddNoise(config.seed, synthetic_noises(config.seed), config.noise))
    mask = SpecAugment(config.seed) if config.mask else None
    if mask is None or not bands_first:
        return tuple(clips), mask

    def transposed(x: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
        return mask(x.transpose(0, 2, 1), indices, epoch).transpose(0, 2, 1)  # its axes are (frames, bands)

    return tuple(clips), transposed


@dataclass(frozen=True, eq=False)
class EpisodeOrder:
    """Clips of the episodes of an epoch. Speakers are mixed, so that the embedding ignores who speaks.

    Arguments:
    - `recordings`: the clips.
    - `num_classes`: words of an episode; its clips are the support, word after word, then the queries likewise.
    - `shots`, `queries`: clips of each word.
    - `unknown`: append as many queries of other words.
    - `count`: episodes in an epoch.
    - `seed`: of the draws.

    Raises DataError if too few words have enough clips.
    """

    recordings: Recordings
    num_classes: int
    shots: int
    queries: int
    unknown: bool
    count: int
    seed: int

    def __post_init__(self) -> None:
        if len(self._by_word) < self.num_classes + self.unknown:
            raise DataError(
                f"{len(self._by_word)} words have {self.shots + self.queries} clips or more: too few for episodes of "
                f"{self.num_classes} words{' and others to reject' if self.unknown else ''}. Ask for fewer classes, "
                f"shots or queries."
            )

    @property
    def size(self) -> int:
        return self.num_classes * (self.shots + self.queries * (1 + self.unknown))

    @property
    def labels(self) -> np.ndarray:
        """Labels of an episode for `ops.Prototypical`: int32 (size,)."""
        words = np.arange(self.num_classes, dtype=np.int32)
        unknown = np.full(self.num_classes * self.queries * self.unknown, self.num_classes, np.int32)
        return np.concatenate([np.repeat(words, self.shots), np.repeat(words, self.queries), unknown])

    def __call__(self, epoch: int) -> np.ndarray:
        """Indices of clips: (count * size,)."""
        rng = np.random.default_rng([self.seed, _EPISODES, epoch])
        return np.concatenate([self._episode(rng) for _ in range(self.count)])

    @cached_property
    def _by_word(self) -> list[np.ndarray]:
        """Clips of each word that has enough of them."""
        words = [np.flatnonzero(self.recordings.labels == word) for word in range(self.recordings.words)]
        return [clips for clips in words if len(clips) >= self.shots + self.queries]

    def _episode(self, rng: np.random.Generator) -> np.ndarray:
        words = [self._by_word[number] for number in rng.permutation(len(self._by_word))]
        draws = [rng.permutation(clips)[: self.shots + self.queries] for clips in words[: self.num_classes]]
        parts = [draw[: self.shots] for draw in draws] + [draw[self.shots :] for draw in draws]
        if self.unknown:
            others = words[self.num_classes :]
            parts.append(
                np.array([rng.choice(others[k % len(others)]) for k in range(self.num_classes * self.queries)])
            )
        return np.concatenate(parts)
