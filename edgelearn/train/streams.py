"""Examples and targets that come together, batch by batch: PyTorch's DataLoader, tf.data, generators."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from edgelearn.errors import DataError, PlanError
from edgelearn.graph import Network
from edgelearn.ops import Loss, Losses
from edgelearn.runtime.feed import OutputTargets

from .sources import NamedSources, Source
from .targets import Targets, labeled

Batch = tuple[dict[str, np.ndarray], Targets]


def is_stream(x: Any) -> bool:
    """True for an iterable of batches, or a function that returns one; False for arrays and sources."""
    if isinstance(x, np.ndarray | Mapping | str | type) or (hasattr(x, "shape") and hasattr(x, "__getitem__")):
        return False
    return hasattr(x, "__iter__") or callable(x)


def examples_of(
    x, y, network: Network, loss: Loss | Losses, sample_weight=None, class_weight: Mapping[int, float] | None = None,
    steps: int | None = None,
) -> tuple[Source, Any]:  # fmt: skip
    """Return examples and targets of arrays, or of a stream of both; see `labeled` and `Stream`."""
    if y is None and is_stream(x):
        if sample_weight is not None:
            raise PlanError("A stream of batches has weights of examples in them: (x, y, sample_weight).")
        stream = Stream(x, network, loss, class_weight, steps)
        return stream, stream.targets
    if steps is not None:
        raise PlanError(
            "Steps are for a DataLoader, a tf.data.Dataset or a generator, given without y: an epoch of arrays is all "
            "of them."
        )
    return labeled(x, y, network, loss, sample_weight, class_weight)


class Stream:
    """A source of examples that come with their targets, read in order while training needs them, a few at a time.

    A batch is (x, y) or (x, y, sample_weight), of arrays or tensors. PyTorch's images, with channels first, are turned
    where the network's input isn't of that shape. An epoch is a pass over all batches, or `steps` of them; these go on
    where the epoch before ended.

    Arguments:
    - `batches`: an iterable of batches, or a function that returns one.
    - `network`, `loss`: what they are for.
    - `class_weight`: as in Model.fit.
    - `steps`: batches of an epoch; needed for what can be read once only, such as a generator (default: all).

    Raises PlanError for a generator without `steps`, DataError for batches of another kind or none, ShapeError for
    examples that don't fit.
    """

    def __init__(
        self, batches: Any, network: Network, loss: Loss | Losses, class_weight: Mapping[int, float] | None = None,
        steps: int | None = None,
    ) -> None:  # fmt: skip
        self._batches, self._network, self._loss, self._class_weight = batches, network, loss, class_weight
        self._lock, self._steps = threading.Lock(), steps
        if steps is None and (_once(batches) or _is_endless(batches)):
            raise PlanError(
                f"Where an epoch of this {type(batches).__name__} ends isn't known: give steps_per_epoch (in "
                f"evaluate: steps), or something that can be read again, such as a function that returns a generator."
            )
        self._iterator = self._passes()
        first = self._read()
        self._kept: list[Batch] = [first]  # those that were read last, from example `_start` on
        self._start = self._base = 0
        self.batch_size = len(first[1])
        count = steps * self.batch_size if steps is not None else self._count()
        self.shape = (count, *(network.input_shape if len(network.inputs) == 1 else ()))
        self.targets = _StreamTargets(self, first[1])
        self._fresh = True  # nothing of this pass was asked for yet

    def __len__(self) -> int:
        return self.shape[0]

    def at_epoch(self, epoch: int) -> Stream:
        """Begin another pass, or the next steps."""
        with self._lock:
            if not self._fresh:
                if self._steps is None:
                    self._iterator, self._kept, self._start = self._passes(), [], 0
                else:
                    self._base += len(self)
                self._fresh = True
        return self

    def __getitem__(self, indices: np.ndarray) -> Any:
        arrays = self.rows(indices, lambda batch: batch[0])
        return arrays if len(self._network.inputs) > 1 else next(iter(arrays.values()))

    def rows(self, indices: np.ndarray, part: Callable[[Batch], Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """The examples `indices`, in a row and not far before those that were read last, of a part of batches."""
        with self._lock:
            self._fresh = False
            first, end = self._base + int(indices[0]), self._base + int(indices[-1]) + 1
            ends = self._start + sum(len(batch[1]) for batch in self._kept)
            while ends < end:
                self._kept.append(self._read())
                ends += len(self._kept[-1][1])
            behind = first - 2 * max(self.batch_size, end - first)  # the device may still ask for these targets
            while self._start + len(self._kept[0][1]) <= behind:
                self._start += len(self._kept.pop(0)[1])
            names = part(self._kept[0])
            whole = {name: [part(batch)[name] for batch in self._kept] for name in names}
            return {name: np.concatenate(each)[first - self._start : end - self._start] for name, each in whole.items()}

    def _passes(self) -> Iterator[Any]:
        """Batches of one pass; with `steps`, of passes one after the other."""
        while True:
            batches: Any = self._batches() if callable(self._batches) else self._batches
            number = 0
            for number, batch in enumerate(batches, start=1):  # noqa: B007
                yield batch
            if self._steps is None or not number or _once(self._batches):
                return

    def _read(self) -> Batch:
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise DataError(
                f"This {type(self._batches).__name__} ended before the epoch did: give fewer steps_per_epoch, or "
                f"something that can be read again."
            ) from None
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            what = f"{len(batch)} of them" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
            raise DataError(f"A batch is (x, y) or (x, y, sample_weight), not {what}.")
        x, y, *weights = batch
        names, shapes = list(self._network.inputs), self._network.inputs
        given = dict(zip(names, x, strict=True)) if isinstance(x, tuple | list) and len(names) > 1 else x
        given = given if isinstance(given, Mapping) else {names[0]: given}
        arrays = {name: _as_input(array, shapes.get(name, ())) for name, array in given.items()}
        source, targets = labeled(
            arrays, _as_arrays(y), self._network, self._loss, *map(_as_arrays, weights), class_weight=self._class_weight
        )  # fmt: skip
        sources = source.sources if isinstance(source, NamedSources) else {names[0]: source}
        return {name: np.asarray(each) for name, each in sources.items()}, targets

    def _count(self) -> int:
        """Examples of a pass: what a DataLoader says of itself, else what a pass has."""
        sampler, drops = getattr(self._batches, "sampler", None), getattr(self._batches, "drop_last", None)
        if drops is not None and getattr(self._batches, "batch_size", None) == self.batch_size:
            try:
                examples = len(sampler)  # type: ignore[arg-type]
                return examples // self.batch_size * self.batch_size if drops else examples
            except TypeError:  # of a data set without a length
                pass
        count = sum(len(_first(batch)) for batch in self._passes())
        self._iterator, self._kept = self._passes(), []
        return count


class _StreamTargets:
    """The targets of a stream, as Targets of a data set. `first`: those of the first batch."""

    def __init__(self, stream: Stream, first: Targets) -> None:
        self._stream = stream
        self.values = {name: _Rows(self, name, values.dtype) for name, values in first.values.items()}
        self.weights = first.weights and dict.fromkeys(first.weights)  # that there are some

    def __len__(self) -> int:
        return len(self._stream)

    def __getitem__(self, indices: np.ndarray) -> list[OutputTargets]:
        return self.of(indices)[np.arange(len(indices))]

    def of(self, indices: np.ndarray) -> Targets:
        values = self._stream.rows(indices, lambda batch: batch[1].values)
        weights = self._stream.rows(indices, lambda batch: batch[1].weights or {}) if self.weights else None
        return Targets(values, weights)

    def part(self, start: int, stop: int) -> Targets:
        raise PlanError("A stream of batches can't be split: give validation_data, another one, in place of a share.")


class _Rows:
    """The targets of one output."""

    def __init__(self, targets: _StreamTargets, name: str, dtype: np.dtype) -> None:
        self._targets, self._name, self.dtype = targets, name, dtype

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        return self._targets.of(indices).values[self._name]


def _once(batches: Any) -> bool:
    """True for what can be read once only."""
    return isinstance(batches, Iterator)


def _is_endless(batches: Any) -> bool:
    """True for a tf.data.Dataset that repeats without end."""
    cardinality = getattr(batches, "cardinality", None)
    return callable(cardinality) and int(cardinality()) == -1  # type: ignore[call-overload]


def _first(batch: Any) -> Any:
    """An array of a batch."""
    while isinstance(batch, tuple | list | Mapping):
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return batch


def _as_arrays(values: Any) -> Any:
    """Tensors of other frameworks as NumPy's, alone or by output."""
    if isinstance(values, Mapping):
        return {name: _as_arrays(each) for name, each in values.items()}
    if isinstance(values, tuple | list):
        several = any(hasattr(each, "__array__") for each in values)
        return [_as_arrays(each) for each in values] if several else np.asarray(values)
    if hasattr(values, "detach"):  # PyTorch's, of any device
        return values.detach().cpu().numpy()
    return np.asarray(values)


def _as_input(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    """An array of examples of `shape`, channels last."""
    array = _as_arrays(values)
    turned = np.moveaxis(array, 1, -1) if array.ndim > 2 else array
    of_torch = hasattr(values, "detach")
    return turned if of_torch and array.shape[1:] != shape and turned.shape[1:] == shape else array
