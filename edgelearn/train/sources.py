"""Where examples come from: arrays, pictures decoded on demand, features of a frozen prefix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from edgelearn.errors import ShapeError
from edgelearn.ops import pack
from edgelearn.ops.tensor import Shape


class Source(Protocol):
    """Examples by number. `packed(indices, block)` gives the words that the device wants: float32
    [channels / block][examples x pixels][block]. A source whose examples differ from epoch to epoch has a method
    `at_epoch(epoch)` besides, which gives the source of that epoch."""

    shape: Shape

    def __len__(self) -> int: ...

    def packed(self, indices: np.ndarray, block: int) -> np.ndarray: ...


class ArraySource:
    """Examples of a float array (n, ...)."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = np.asarray(array)
        if self.array.ndim < 2 or self.array.dtype.kind not in "fiub":
            raise ShapeError(
                f"Examples are an array of numbers (n, ...), not {self.array.dtype} of shape {self.array.shape}. "
                f"A single example needs a first dimension of 1: x[None]."
            )
        self.shape = self.array.shape[1:]

    def __len__(self) -> int:
        return len(self.array)

    def packed(self, indices: np.ndarray, block: int) -> np.ndarray:
        return pack(self.array[indices], block)


class PictureSource:
    """Pictures by number from `load(indices, size) -> uint8 (n, size, size, 3)`, as floats by `preprocess`."""

    def __init__(
        self, count: int, size: int, load: Callable[[np.ndarray, int], np.ndarray],
        preprocess: Callable[[np.ndarray], np.ndarray],
    ) -> None:  # fmt: skip
        self.count, self.size, self.load, self.preprocess = count, size, load, preprocess
        self.shape = (size, size, 3)

    def __len__(self) -> int:
        return self.count

    def packed(self, indices: np.ndarray, block: int) -> np.ndarray:
        return pack(self.preprocess(self.load(indices, self.size)), block)


class VariedSource:
    """Pictures uint8 (n, height, width, channels) that look different every epoch: `vary(pictures, indices, epoch)`
    gives those of the data set at `indices` as they look then, `preprocess` makes floats of them."""

    def __init__(
        self, pictures: np.ndarray, vary: Callable[[np.ndarray, np.ndarray, int], np.ndarray],
        preprocess: Callable[[np.ndarray], np.ndarray], epoch: int = 0,
    ) -> None:  # fmt: skip
        self.pictures, self.vary, self.preprocess, self.epoch = pictures, vary, preprocess, epoch
        self.shape = pictures.shape[1:]

    def __len__(self) -> int:
        return len(self.pictures)

    def at_epoch(self, epoch: int) -> VariedSource:
        return VariedSource(self.pictures, self.vary, self.preprocess, epoch)

    def packed(self, indices: np.ndarray, block: int) -> np.ndarray:
        return pack(self.preprocess(self.vary(self.pictures[indices], indices, self.epoch)), block)


class Subset:
    """Some of the examples of another source, by their numbers there."""

    def __init__(self, source: Source, indices: np.ndarray) -> None:
        self.source, self.indices = source, np.asarray(indices)
        self.shape = source.shape

    def __len__(self) -> int:
        return len(self.indices)

    def packed(self, indices: np.ndarray, block: int) -> np.ndarray:
        return self.source.packed(self.indices[indices], block)

    def at_epoch(self, epoch: int) -> Subset:
        return Subset(at_epoch(self.source, epoch), self.indices)


def at_epoch(source: Source, epoch: int) -> Source:
    """`source` as it is in an epoch: itself, unless it has a method `at_epoch` that says otherwise."""
    return source.at_epoch(epoch) if hasattr(source, "at_epoch") else source


def varies(source: Source) -> bool:
    """Whether the examples differ from epoch to epoch."""
    return varies(source.source) if isinstance(source, Subset) else hasattr(source, "at_epoch")


def as_source(x, shape: Shape) -> Source:
    """`x` itself if it is a source, else a source of the array. Raises ShapeError when there are no examples, or they
    are not of `shape`."""
    source = x if hasattr(x, "packed") else ArraySource(x)
    if len(source) == 0:
        raise ShapeError("There are no examples.")
    if tuple(source.shape) != tuple(shape):
        raise ShapeError(f"The network takes examples of shape {tuple(shape)}, but these have {tuple(source.shape)}.")
    return source


def as_labels(y, count: int, allowed: range) -> np.ndarray:
    """`y` as int32. Raises ShapeError when it isn't one of the `allowed` class numbers for each of `count` examples."""
    labels = np.asarray(y)
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise ShapeError(
            f"{count} examples need int labels of shape ({count},), not {labels.dtype} of shape {labels.shape}. "
            f"Class numbers from one-hot rows: y.argmax(-1)."
        )
    if labels.min() < allowed[0] or labels.max() > allowed[-1]:
        raise ShapeError(
            f"With this network and loss, labels are {allowed[0]} to {allowed[-1]}; "
            f"found {labels.min()} to {labels.max()}."
        )
    return labels.astype(np.int32)
