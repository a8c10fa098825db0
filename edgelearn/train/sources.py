"""Sources of examples: anything with a length and a shape whose `[indices]` are examples; a NumPy array is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from edgelearn.errors import PlanError, ShapeError
from edgelearn.graph import Network
from edgelearn.ops import Loss
from edgelearn.ops.tensor import Shape


class Source(Protocol):
    """Examples by number, as a NumPy array (n, height, width, channels) gives them.

    `shape` is (number of examples, *shape of an example); `source[indices]`, with an int array, is an array of numbers
    (len(indices), *shape of an example), channels last. It is called on another thread, ahead of time. A source whose
    examples differ from epoch to epoch also has a method `at_epoch(epoch)`, which returns the source of that epoch.
    """

    @property
    def shape(self) -> Shape: ...

    def __len__(self) -> int: ...

    def __getitem__(self, indices: np.ndarray, /) -> np.ndarray: ...


class PictureSource:
    """Pictures that are loaded when they are needed.

    Arguments:
    - `count`: number of pictures.
    - `size`: height and width in pixels.
    - `load`: `load(indices, size)` returns pictures, uint8 (n, size, size, 3).
    - `preprocess`: makes floats of them, of the same shape.
    """

    def __init__(
        self, count: int, size: int, load: Callable[[np.ndarray, int], np.ndarray],
        preprocess: Callable[[np.ndarray], np.ndarray],
    ) -> None:  # fmt: skip
        self.size, self.load, self.preprocess = size, load, preprocess
        self.shape = (count, size, size, 3)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        return self.preprocess(self.load(indices, self.size))


class VariedSource:
    """Pictures that are augmented anew in every epoch.

    Arguments:
    - `pictures`: uint8 (n, height, width, channels).
    - `vary`: `vary(pictures, indices, epoch)` returns the augmented pictures, which have these indices in the data set.
    - `preprocess`: makes floats of them, of the same shape.
    - `epoch`: number of the epoch (default 0).
    """

    def __init__(
        self, pictures: np.ndarray, vary: Callable[[np.ndarray, np.ndarray, int], np.ndarray],
        preprocess: Callable[[np.ndarray], np.ndarray], epoch: int = 0,
    ) -> None:  # fmt: skip
        self.pictures, self.vary, self.preprocess, self.epoch = pictures, vary, preprocess, epoch
        self.shape = pictures.shape

    def __len__(self) -> int:
        return len(self.pictures)

    def at_epoch(self, epoch: int) -> VariedSource:
        return VariedSource(self.pictures, self.vary, self.preprocess, epoch)

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        return self.preprocess(self.vary(self.pictures[indices], indices, self.epoch))


class Subset:
    """Some examples of another source.

    Arguments:
    - `source`: the other source.
    - `indices`: numbers of its examples, int (n,).
    """

    def __init__(self, source: Source, indices: np.ndarray) -> None:
        self.source, self.indices = source, np.asarray(indices)
        self.shape = (len(self.indices), *source.shape[1:])

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        return self.source[self.indices[indices]]

    def at_epoch(self, epoch: int) -> Subset:
        return Subset(at_epoch(self.source, epoch), self.indices)


def at_epoch(source: Source, epoch: int) -> Source:
    """Return the source of an epoch: `source.at_epoch(epoch)` if it has that method, else `source` itself."""
    method = getattr(source, "at_epoch", None)
    return method(epoch) if method else source


def varies(source: Source) -> bool:
    """True if the examples differ from epoch to epoch."""
    return varies(source.source) if isinstance(source, Subset) else hasattr(source, "at_epoch")


def as_source(x, shape: Shape) -> Source:
    """Return `x` as a source of examples of `shape`; lists become arrays.

    Raises ShapeError when there are no examples, when they have another shape, or when an array holds no numbers.
    """
    try:
        source = x if hasattr(x, "__getitem__") and hasattr(x, "shape") else np.asarray(x)
    except ValueError as error:  # lists of different lengths
        raise ShapeError(f"Examples are an array of numbers (n, ...), and these don't make one: {error}.") from None
    if isinstance(source, np.ndarray) and (source.ndim < 2 or source.dtype.kind not in "fiub"):
        raise ShapeError(
            f"Examples are an array of numbers (n, ...), not {source.dtype} of shape {source.shape}. "
            f"A single example needs a first dimension of 1: x[None]."
        )
    if len(source) == 0:
        raise ShapeError("There are no examples.")
    if tuple(source.shape[1:]) != tuple(shape):
        raise ShapeError(f"The network takes examples of shape {tuple(shape)}, but these have {source.shape[1:]}.")
    return source


def as_labels(y, count: int, outputs: int, loss: Loss) -> np.ndarray:
    """Return `y` as int32 (count,). Raises ShapeError unless it is a class number for each example that `loss`, of a
    network with so many `outputs`, has."""
    labels, name = np.asarray(y), type(loss).__name__
    if labels.ndim == 2 and labels.shape[1] > 1 and _is_one_hot(labels):
        raise ShapeError(f"{name} takes class numbers, not one-hot rows {labels.shape}: give y.argmax(-1).")
    if labels.dtype.kind not in "iu":
        raise ShapeError(
            f"{name} takes class numbers, but these targets are {labels.dtype} of shape {labels.shape}. For whole "
            f"numbers stored as floats give y.astype(int); a loss for other targets doesn't exist here."
        )
    if labels.shape != (count,):
        raise ShapeError(f"{count} examples need int labels of shape ({count},), not {labels.shape}.")
    allowed = loss.labels(outputs)
    if labels.min() < allowed[0] or labels.max() > allowed[-1]:
        raise ShapeError(
            f"With this network and {name}, labels are {allowed[0]} to {allowed[-1]}; "
            f"found {labels.min()} to {labels.max()}."
        )
    return labels.astype(np.int32)


def _is_one_hot(rows: np.ndarray) -> bool:
    return rows.dtype.kind in "fiub" and bool(((rows == 0) | (rows == 1)).all() and (rows.sum(1) == 1).all())


def labeled(x, y, network: Network, loss: Loss) -> tuple[Source, np.ndarray]:
    """Return `as_source(x)` and `as_labels(y)` for a network that is trained with `loss`. Raises ShapeError as these,
    PlanError for a network whose output is not one vector."""
    source, output = as_source(x, network.input_shape), network.output.shape
    if len(output) != 1:
        raise PlanError(f"The network gives {output}, not (classes,): end it with a Dense layer.")
    return source, as_labels(y, len(source), output[0], loss)


def check_whole(loss: Loss, examples: int, size: int) -> None:
    """Raises PlanError unless `examples` are whole episodes of `size`, for a loss of episodes."""
    if loss.ordered and examples % size:
        raise PlanError(
            f"{examples} examples aren't whole episodes of {size}: give as many as make them, or another size."
        )
