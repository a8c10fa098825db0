"""A labelled set of audio clips, decoded or synthesised on demand."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from edgelearn.data.threads import each
from edgelearn.errors import DataError, ShapeError

from . import RATE
from .decode import decode, describe, fit, resample

# Encoded bytes, a file, samples at RATE (int16 or float32), or a function that synthesises the clip: rate -> (n,).
Item = bytes | Path | np.ndarray | Callable[[int], np.ndarray]

_PART = re.compile(r"^[\d,]+ of: ")  # a part of a part is described as a part of the whole

SILENCE, UNKNOWN = "_silence_", "_unknown_"  # class names of Speech Commands: no speech, other words


@dataclass(frozen=True, eq=False)
class ClipDataset:
    """Labelled clips. It holds what was given: encoded bytes, paths, samples or functions.

    Arguments:
    - `name`: short name, such as "speech_commands_v0.02".
    - `origin`: where the clips come from: "EDGELEARN_DATA" (data in a folder the user named), "tfds" (TensorFlow
      Datasets' own folder), "folder" or "embedded sample".
    - `description`: the origin as one sentence for a reader.
    - `class_names`: names in the order of the labels: the words.
    - `labels`: int32 (n,), each from 0 to len(class_names) - 1.
    - `speakers`: n names of who speaks; "" where that isn't known, or nobody does.
    - `items`: n clips.
    - `skipped`: (path, reason) of each file that was left out (default none).

    Raises DataError if the numbers of clips, labels and speakers differ, or a label has no name.
    """

    name: str
    origin: str
    description: str
    class_names: tuple[str, ...]
    labels: np.ndarray = field(repr=False)
    speakers: np.ndarray = field(repr=False)
    items: Sequence[Item] = field(repr=False)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self):
        object.__setattr__(self, "labels", np.asarray(self.labels, np.int32))
        object.__setattr__(self, "speakers", np.asarray(self.speakers, np.str_))
        for what in ("labels", "speakers"):
            shape = getattr(self, what).shape
            if shape != (len(self.items),):
                raise DataError(f"{self.name}: {len(self.items)} clips need as many {what}, got shape {shape}.")
        if self.labels.size and not 0 <= self.labels.min() <= self.labels.max() < len(self.class_names):
            raise DataError(
                f"{self.name}: labels run from {self.labels.min()} to {self.labels.max()}, but "
                f"{len(self.class_names)} class names allow 0 to {len(self.class_names) - 1}."
            )

    def __len__(self) -> int:
        return len(self.items)

    @property
    def words(self) -> np.ndarray:
        """The class name of every clip: str of shape (n,)."""
        return np.asarray(self.class_names, np.str_)[self.labels]

    def recording(self, i: int, rate: int = RATE) -> np.ndarray:
        """All of clip `i`: float32 of shape (samples,). Raises DataError if unreadable."""
        item = self.items[i]
        if callable(item):
            return item(rate)
        if isinstance(item, np.ndarray):
            samples = item.astype(np.float32) / 32768 if item.dtype == np.int16 else item
            return resample(samples, RATE, rate)
        return decode(item, describe(item, i), rate)

    def clip(self, i: int, rate: int = RATE, seconds: float = 1.0) -> np.ndarray:
        """Clip `i`, padded or cut to `seconds` (see decode.fit): float32 of shape (rate · seconds,)."""
        return fit(self.recording(i, rate), round(rate * seconds))

    def take(self, indices: Sequence[int] | np.ndarray) -> "ClipDataset":
        """The clips at `indices` (integers, or a mask), with the same class names."""
        chosen = np.arange(len(self))[np.asarray(indices)] if len(indices) else np.empty(0, int)
        return replace(
            self,
            description=f"{len(chosen):,} of: {_PART.sub('', self.description)}",
            labels=self.labels[chosen],
            speakers=self.speakers[chosen],
            items=[self.items[i] for i in chosen],
        )

    def only(self, words: Sequence[str]) -> "ClipDataset":
        """The clips of `words`, which become the class names in this order. Raises DataError for an unknown word."""
        if missing := [word for word in words if word not in self.class_names]:
            raise DataError(f"{self.name} has no word {missing[0]!r}. It has {', '.join(self.class_names)}.")
        number = {word: label for label, word in enumerate(words)}
        some = self.take(np.isin(self.words, words))
        return replace(some, class_names=tuple(words), labels=[number[word] for word in some.words])


def load_clips(
    dataset: ClipDataset,
    indices: Sequence[int] | np.ndarray | None = None,
    rate: int = RATE,
    seconds: float = 1.0,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """The clips at `indices` (all, if None), decoded on a few threads: float32 of shape (n, rate · seconds), into `out`
    if given.

    Raises DataError for a clip that cannot be read, ShapeError if `out` doesn't fit.
    """
    chosen = np.arange(len(dataset)) if indices is None else np.asarray(indices)
    shape = (len(chosen), round(rate * seconds))
    if out is None:
        out = np.empty(shape, np.float32)
    elif out.shape != shape or out.dtype != np.float32:
        raise ShapeError(f"out must be float32 of shape {shape}, got {out.dtype} of shape {out.shape}.")

    def decode_into(row: int):
        out[row] = dataset.clip(int(chosen[row]), rate, seconds)

    each(decode_into, range(len(chosen)))
    return out
