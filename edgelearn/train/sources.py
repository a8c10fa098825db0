"""Sources of examples: anything with a length and a shape whose `[indices]` are examples; a NumPy array is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from edgelearn.errors import PlanError, ShapeError
from edgelearn.graph import Network
from edgelearn.ops import Loss, Losses
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


def varies(source: Any) -> bool:
    """True if the examples differ from epoch to epoch."""
    if isinstance(source, NamedSources):
        return any(map(varies, source.sources.values()))
    return varies(source.source) if isinstance(source, Subset) else hasattr(source, "at_epoch")


class NamedSources:
    """Examples of several inputs. `[indices]` is a dictionary of arrays.

    Arguments:
    - `sources`: a source for each input, by its name, all of the same length.
    """

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self.sources = dict(sources)
        self.shape = (len(next(iter(self.sources.values()))),)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, indices: np.ndarray) -> Any:
        return {name: source[indices] for name, source in self.sources.items()}

    def at_epoch(self, epoch: int) -> NamedSources:
        return NamedSources({name: at_epoch(source, epoch) for name, source in self.sources.items()})


def as_source(x, network: Network) -> Source:
    """Return `x` as a source of examples of `network`: for several inputs, a dictionary by name or a list in their
    order. Lists of a single input's examples become arrays.

    Raises ShapeError when there are no examples, when they have another shape, or when an array holds no numbers.
    """
    names = list(network.inputs)
    if not isinstance(x, Mapping):
        if len(names) == 1:
            return _as_source(x, network.input_shape)
        if not isinstance(x, Sequence) or len(x) != len(names):
            raise ShapeError(
                f"The network has the inputs {', '.join(names)}: give x as a dictionary of them, or as a list in this "
                f"order."
            )
        x = dict(zip(names, x, strict=True))
    if x.keys() != network.inputs.keys():
        raise ShapeError(f"The network has the inputs {', '.join(names)}, but x has {', '.join(map(str, x))}.")
    sources = {name: _as_source(x[name], shape, f"of '{name}' ") for name, shape in network.inputs.items()}
    if len({len(source) for source in sources.values()}) > 1:
        lengths = ", ".join(f"{len(source)} of '{name}'" for name, source in sources.items())
        raise ShapeError(f"Each input needs as many examples as the others, but there are {lengths}.")
    return NamedSources(sources) if len(sources) > 1 else sources[names[0]]


def _as_source(x, shape: Shape, of: str = "") -> Source:
    try:
        source = x if hasattr(x, "__getitem__") and hasattr(x, "shape") else np.asarray(x)
    except ValueError as error:  # lists of different lengths
        raise ShapeError(f"Examples {of}are an array of numbers (n, ...), and these make none: {error}.") from None
    if isinstance(source, np.ndarray) and (source.ndim < 2 or source.dtype.kind not in "fiub"):
        raise ShapeError(
            f"Examples {of}are an array of numbers (n, ...), not {source.dtype} of shape {source.shape}. "
            f"A single example needs a first dimension of 1: x[None]."
        )
    if len(source) == 0:
        raise ShapeError(f"There are no examples{f' {of}'.rstrip()}.")
    if tuple(source.shape[1:]) != tuple(shape):
        raise ShapeError(f"The network takes examples {of}of shape {tuple(shape)}, but these have {source.shape[1:]}.")
    return source


def check_whole(loss: Loss | Losses, examples: int, size: int) -> None:
    """Raises PlanError unless `examples` are whole episodes of `size`, for a loss of episodes."""
    if loss.ordered and examples % size:
        raise PlanError(
            f"{examples} examples aren't whole episodes of {size}: give as many as make them, or another size."
        )
