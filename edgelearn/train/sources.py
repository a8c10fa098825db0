"""Examples and targets of a training: sources, arrays, and streams of batches, checked against network and loss.

A source is anything with a length and a shape whose `[indices]` are examples; a NumPy array is one. Batches that hold
both come from PyTorch's DataLoader, tf.data or generators.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import islice
from math import floor
from typing import Any, Protocol

import numpy as np

from edgelearn.compile.lower import check_heads
from edgelearn.errors import DataError, PlanError, ShapeError
from edgelearn.graph import Network
from edgelearn.ops import LOSSES, Loss, Losses, SoftmaxCrossEntropy, formula_loss, pack
from edgelearn.ops.loss import rows_of
from edgelearn.ops.tensor import Shape
from edgelearn.runtime.session import OutputTargets


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


class _Sized:
    """As long as its shape says."""

    shape: Shape

    def __len__(self) -> int:
        return self.shape[0]


class PictureSource(_Sized):
    """Pictures that are loaded when they are needed.

    Arguments:
    - `count`: number of pictures.
    - `size`: height and width in pixels.
    - `load`: `load(indices, size)` returns pictures, uint8 (n, size, size, 3).
    - `preprocess`: makes floats of them, of the same shape.
    - `key`: identifies the pictures and what becomes of them: sources of equal keys have the same examples (default
      None: no other source has them).
    """

    def __init__(
        self, count: int, size: int, load: Callable[[np.ndarray, int], np.ndarray],
        preprocess: Callable[[np.ndarray], np.ndarray], key: Hashable = None,
    ) -> None:  # fmt: skip
        self.size, self.load, self.preprocess, self.key = size, load, preprocess, key
        self.shape = (count, size, size, 3)

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        return self.preprocess(self.load(indices, self.size))


class VariedSource(_Sized):
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

    def at_epoch(self, epoch: int) -> VariedSource:
        return VariedSource(self.pictures, self.vary, self.preprocess, epoch)

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        return self.preprocess(self.vary(self.pictures[indices], indices, self.epoch))


class Mixture(Protocol):
    """A way to mix examples in pairs: MixUp and CutMix of edgelearn.data.augmentation, or one of your own.

    `partners(indices, count, epoch)` returns the other examples of the pairs, int (n,), and
    `shares(indices, epoch, shape)` the share of the first one, float32 (n, ...), which multiplies examples of `shape`.
    """

    def partners(self, indices: np.ndarray, count: int, epoch: int, /) -> np.ndarray: ...

    def shares(self, indices: np.ndarray, epoch: int, shape: Shape, /) -> np.ndarray: ...


class MixedSource(_Sized):
    """Examples of another source, mixed in pairs anew in every epoch. Training mixes their targets by the same shares;
    these are one-hot rows or other floats, for a loss such as CategoricalCrossentropy.

    Arguments:
    - `source`: the other source; arrays count, too.
    - `mixture`: draws partners and shares.
    - `epoch`: number of the epoch (default 0).
    """

    def __init__(self, source: Source, mixture: Mixture, epoch: int = 0) -> None:
        self.source, self.mixture, self.epoch = source, mixture, epoch
        self.shape = tuple(source.shape)

    def at_epoch(self, epoch: int) -> MixedSource:
        return MixedSource(at_epoch(self.source, epoch), self.mixture, epoch)

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        own, other = (self.source[part].astype(np.float32) for part in (indices, self._partners(indices)))
        shares = self._shares(indices)
        return shares * own + (1 - shares) * other

    def mixed_targets(self, values: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Return the targets of the mixed examples `indices`, by the mean of their shares, from those of all examples:
        float32 (n, ...)."""
        shares = self._shares(indices)
        means = shares.reshape(len(indices), -1).mean(1, dtype=np.float64).astype(np.float32)
        means = means.reshape(-1, *(1 for _ in values.shape[1:]))
        return means * values[indices] + (1 - means) * values[self._partners(indices)]

    def _partners(self, indices: np.ndarray) -> np.ndarray:
        return self.mixture.partners(indices, len(self), self.epoch)

    def _shares(self, indices: np.ndarray) -> np.ndarray:
        return self.mixture.shares(indices, self.epoch, self.shape[1:])


class _MixedRows:
    """The targets of a MixedSource for one output, as an array of them. `values`: of the examples that are mixed."""

    def __init__(self, values: np.ndarray, source: MixedSource) -> None:
        self._values, self._source, self.dtype = values, source, values.dtype

    def at_epoch(self, epoch: int) -> _MixedRows:
        return _MixedRows(self._values, self._source.at_epoch(epoch))

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        return self._source.mixed_targets(self._values, indices)


class Subset(_Sized):
    """Some examples of another source.

    Arguments:
    - `source`: the other source.
    - `indices`: numbers of its examples, int (n,).
    """

    def __init__(self, source: Source, indices: np.ndarray) -> None:
        self.source, self.indices = source, np.asarray(indices)
        self.shape = (len(self.indices), *source.shape[1:])

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        return self.source[self.indices[indices]]

    def at_epoch(self, epoch: int) -> Subset:
        return Subset(at_epoch(self.source, epoch), self.indices)


def same(one: Any, other: Any) -> bool:
    """True if two sources are known to have the same examples."""
    if isinstance(one, Subset) and isinstance(other, Subset):
        return np.array_equal(one.indices, other.indices) and same(one.source, other.source)
    if isinstance(one, PictureSource) and isinstance(other, PictureSource) and one.key is not None:
        return (one.key, one.shape) == (other.key, other.shape)
    return one is other


def at_epoch(source: Any, epoch: int) -> Any:
    """Return the source, or the targets, of an epoch: `source.at_epoch(epoch)` if it has that method, else itself."""
    method = getattr(source, "at_epoch", None)
    return method(epoch) if method else source


def varies(source: Any) -> bool:
    """True if the examples differ from epoch to epoch."""
    if isinstance(source, NamedSources):
        return any(map(varies, source.sources.values()))
    return varies(source.source) if isinstance(source, Subset) else hasattr(source, "at_epoch")


class NamedSources(_Sized):
    """Examples of several inputs. `[indices]` is a dictionary of arrays.

    Arguments:
    - `sources`: a source for each input, by its name, all of the same length.
    """

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self.sources = dict(sources)
        self.shape = (len(next(iter(self.sources.values()))),)

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


class Targets:
    """The targets of a data set. `targets[indices]` is what a session takes for these examples.

    Arguments:
    - `values`: targets of each output that has a loss, by its name: int32 class numbers or float32, (n, ...).
      Values that differ from epoch to epoch have `at_epoch`, as sources do.
    - `weights`: float32 (n, rows) by output; None if all count alike (default).
    """

    def __init__(self, values: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray] | None = None) -> None:
        self.values, self.weights = values, weights

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def at_epoch(self, epoch: int) -> Targets:
        """The targets of an epoch."""
        return Targets({name: at_epoch(values, epoch) for name, values in self.values.items()}, self.weights)

    def part(self, start: int, stop: int) -> Targets:
        """The targets of consecutive examples."""
        weights = self.weights and {name: rows[start:stop] for name, rows in self.weights.items()}
        return Targets({name: values[start:stop] for name, values in self.values.items()}, weights)

    def __getitem__(self, indices: np.ndarray) -> list[OutputTargets]:
        return [
            OutputTargets(_packed(values[indices]), None if self.weights is None else self.weights[name][indices])
            for name, values in self.values.items()
        ]


def labeled(
    x, y, network: Network, loss: Loss | Losses, sample_weight=None, class_weight: Mapping[int, float] | None = None
) -> tuple[Source, Targets]:
    """Return the examples as a source, and their targets, for a network that is trained with `loss`.

    Arguments:
    - `x`: an array or Source; for several inputs a dictionary by name, or a list in their order.
    - `y`: an array; for several outputs a dictionary by name, or a list in their order.
    - `sample_weight`: a number for each example, (n,), or for each row of one, such as (n, height, width); for several
      outputs also a dictionary (default: 1 each).
    - `class_weight`: a number for each class (default: 1 each).

    Raises ShapeError for what doesn't fit, PlanError for weights that the loss has no use for, and for a head that is
    reshaped to other rows.
    """
    source = as_source(x, network)
    losses = loss if isinstance(loss, Losses) else Losses(dict.fromkeys(network.outputs, loss))
    check_heads(network, losses)
    given = _by_output(y, network, losses)
    values = {
        name: as_targets(given[name], len(source), network.nodes[name].shape, each)
        for name, each in losses.by_output.items()
    }
    parts = source.sources.values() if isinstance(source, NamedSources) else [getattr(source, "source", None)]
    if any(isinstance(part, MixedSource) for part in parts):
        raise PlanError("A MixedSource is the only input, and outermost: mix a Subset, not a Subset of mixed examples.")
    if isinstance(source, MixedSource):
        return source, Targets(_mixed(values, source, losses, sample_weight is None and class_weight is None))
    if sample_weight is None and class_weight is None:
        return source, Targets(values)
    weights = _weights(values, network, losses, sample_weight, class_weight)
    return source, Targets(values, weights)


def _mixed(values: Mapping[str, np.ndarray], source: MixedSource, losses: Losses, equal: bool) -> dict[str, Any]:
    """Targets of mixed examples. `equal`: all have the same weight."""
    if not equal:
        raise PlanError("Mixed examples have no weights of their own: leave out sample_weight and class_weight.")
    for name, loss in losses.by_output.items():
        if values[name].dtype == np.int32:
            raise ShapeError(
                f"{type(loss).__name__} takes class numbers, which can't be mixed: give one-hot rows, such as "
                f"np.eye(classes)[y], and train with CategoricalCrossentropy."
            )
    return {name: _MixedRows(each, source) for name, each in values.items()}


def as_targets(y, count: int, shape: Shape, loss: Loss) -> np.ndarray:
    """Return `y` as `loss` takes it for an output of `shape`: int32 (count, ...) or float32 (count, *shape).

    Raises ShapeError if it doesn't fit, naming shapes, types and what to give instead.
    """
    values = np.asarray(y)
    if values.dtype.kind not in "fiub":
        raise ShapeError(f"Targets are numbers, but these are {values.dtype} of shape {values.shape}.")
    read = _class_numbers if loss.target_dtype == "int32" else _values
    return read(values, count, shape, loss)


def _class_numbers(labels: np.ndarray, count: int, shape: Shape, loss: Loss) -> np.ndarray:
    name, wanted = type(loss).__name__, (count, *shape[:-1])
    if labels.ndim == len(wanted) + 1 and labels.shape[-1] > 1 and _is_one_hot(labels):
        raise ShapeError(
            f"{name} takes class numbers {wanted}, not one-hot rows {labels.shape}: give y.argmax(-1), or train with "
            f"CategoricalCrossentropy."
        )
    if labels.dtype.kind not in "iu":
        raise ShapeError(
            f"{name} takes class numbers {wanted}, but these targets are {labels.dtype} of shape {labels.shape}. For "
            f"whole numbers stored as floats give y.astype(int); for probabilities train with "
            f"CategoricalCrossentropy, for measurements with MeanSquaredError."
        )
    labels = loss.arranged(labels, shape)
    if labels.shape != wanted:
        more = (
            f", since the network gives {shape}: for one label each, end it with a Flatten and a Dense layer"
            if shape[1:]
            else ""
        )
        raise ShapeError(f"{count} examples need int labels of shape {wanted}, not {labels.shape}{more}.")
    allowed = loss.labels(shape[-1])
    if labels.min() < allowed[0] or labels.max() > allowed[-1]:
        raise ShapeError(
            f"With this network and {name}, labels are {allowed[0]} to {allowed[-1]}; "
            f"found {labels.min()} to {labels.max()}."
        )
    return labels.astype(np.int32)


def _values(values: np.ndarray, count: int, shape: Shape, loss: Loss) -> np.ndarray:
    name, wanted = type(loss).__name__, (count, *shape)
    if values.shape == wanted[:-1] and shape[-1] == 1:
        values = values[..., None]  # one number an example, as Keras has it
    if values.shape != wanted:
        numbers = values.dtype.kind in "iu" and values.shape == wanted[:-1]
        more = f" For class numbers give np.eye({shape[-1]})[y], or train with SoftmaxCrossEntropy." if numbers else ""
        raise ShapeError(
            f"{name} takes a target for each output, {wanted}, but these are {values.dtype} of shape {values.shape}."
            f"{more}"
        )
    if loss.head and not (values.min() >= 0 and values.max() <= 1):
        raise ShapeError(
            f"{name} takes targets from 0 to 1, but these are {values.min():g} to {values.max():g}: for other numbers "
            f"train with MeanSquaredError."
        )
    return np.asarray(values, np.float32)


def _is_one_hot(rows: np.ndarray) -> bool:
    return bool(((rows == 0) | (rows == 1)).all() and (rows.sum(-1) == 1).all())


def _by_output(given: Any, network: Network, losses: Losses, what: str = "y") -> dict[str, Any]:
    """Values for each output that has a loss, given by name, in the order of the outputs, or for the only one."""
    names = list(losses.by_output)
    if isinstance(given, Mapping):
        if missing := [name for name in names if name not in given]:
            raise ShapeError(f"{what} lacks the output '{missing[0]}'; it has {', '.join(map(str, given))}.")
        if odd := [name for name in given if name not in network.outputs]:
            raise ShapeError(f"{what} names '{odd[0]}', but outputs are {', '.join(network.outputs)}.")
        return {name: given[name] for name in names}
    if len(network.outputs) == 1:
        return {names[0]: given}
    if not isinstance(given, Sequence) or len(given) != len(network.outputs):
        raise ShapeError(
            f"The network has the outputs {', '.join(network.outputs)}: give {what} as a dictionary of them, or as a "
            f"list in this order."
        )
    return {name: one for name, one in zip(network.outputs, given, strict=True) if name in names}


def _weights(
    values: Mapping[str, np.ndarray], network: Network, losses: Losses, sample_weight, class_weight
) -> dict[str, np.ndarray]:
    """A weight for each row of each output."""
    if isinstance(sample_weight, Mapping | list):
        given = _by_output(sample_weight, network, losses, "sample_weight")
    else:
        given = dict.fromkeys(values, sample_weight)
    if class_weight is not None and len(values) > 1:
        raise PlanError("class_weight is for networks with one loss: give sample_weight, by output, instead.")
    weights = {}
    for name, y in values.items():
        shape, loss = network.nodes[name].shape, losses.by_output[name]
        rows = np.ones((len(y), *shape[:-1]), np.float32)
        if given[name] is not None:
            rows *= _sample_weights(given[name], rows.shape)
        if class_weight is not None:
            rows *= _class_weights(class_weight, y, shape, loss)
        weights[name] = rows.reshape(len(y), rows_of(shape))
    return weights


def _sample_weights(given, shape: Shape) -> np.ndarray:
    """Weights in a shape that multiplies rows of `shape`."""
    weights = np.asarray(given)
    if weights.dtype.kind not in "fiub" or weights.shape not in (shape, shape[:1]):
        raise ShapeError(
            f"sample_weight is a number for each example, {shape[:1]}{f' or {shape}' if len(shape) > 1 else ''}, but "
            f"this is {weights.dtype} of shape {weights.shape}."
        )
    if not (np.isfinite(weights).all() and weights.min() >= 0):
        raise ShapeError("sample_weight holds numbers of at least 0; this one has others.")
    return weights.reshape(weights.shape + (1,) * (len(shape) - weights.ndim)).astype(np.float32)


def _class_weights(given: Mapping[int, float], y: np.ndarray, shape: Shape, loss: Loss) -> np.ndarray:
    """The weight of the class of each row."""
    if loss.target_dtype == "int32":
        numbers, classes = y, shape[-1]
    elif loss.head == "Softmax":
        numbers, classes = y.argmax(-1), shape[-1]
    elif loss.head and shape[-1] == 1:
        numbers, classes = (y[..., 0] > 0.5).astype(int), 2
    else:
        raise PlanError(f"class_weight is for losses of classes, not for {type(loss).__name__}: give sample_weight.")
    odd = [number for number in given if not (isinstance(number, int | np.integer) and 0 <= number < classes)]
    if odd or not all(weight >= 0 for weight in given.values()):
        raise PlanError(f"class_weight has a number of at least 0 for classes 0 to {classes - 1}, not {given}.")
    table = np.ones(classes, np.float32)
    for number, weight in given.items():
        table[number] = weight
    return table[numbers]


def _packed(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1) if values.dtype == np.int32 else pack(values)


def output_losses(loss: Any, loss_weights: Any, network: Network) -> Loss | Losses:
    """Return the losses of the outputs.

    Arguments:
    - `loss`: a loss, Keras's name of one, or a function (see `formula_loss`), for every output; a dictionary of these
      by output, or a list in their order, with None for an output that isn't trained. None alone is softmax
      cross-entropy.
    - `loss_weights`: factors in the sum, as a dictionary or a list (default: 1 each).

    Raises PlanError for unknown outputs, or for something else than losses.
    """
    loss = SoftmaxCrossEntropy() if loss is None else _named(loss)
    several = isinstance(loss, Mapping | list)
    if isinstance(loss, Losses) or (loss_weights is None and not several):
        return loss
    outputs = network.outputs
    losses = _losses_by_output(loss, outputs, "loss") if several else dict.fromkeys(outputs, loss)
    weights = {} if loss_weights is None else _losses_by_output(loss_weights, outputs, "loss_weights")
    if not (found := {name: one for name, one in losses.items() if one is not None}):
        raise PlanError("Training minimizes a loss: give at least one output one.")
    return Losses(found, weights)


def _named(loss: Any) -> Any:
    """Replace Keras's names of losses, such as "mse", and functions by the losses themselves."""
    if isinstance(loss, Mapping):
        return {output: _named(one) for output, one in loss.items()}
    if isinstance(loss, list | tuple):
        return [_named(one) for one in loss]
    if isinstance(loss, str) and loss not in LOSSES:
        raise PlanError(f"'{loss}' is no name of a loss: there are {', '.join(LOSSES)}, and the classes of el.losses.")
    if callable(loss) and not isinstance(loss, Loss | type):
        return formula_loss(loss)
    return LOSSES[loss]() if isinstance(loss, str) else loss


def _losses_by_output(given: Any, outputs: tuple[str, ...], what: str) -> dict[str, Any]:
    if isinstance(given, Mapping):
        if odd := [name for name in given if name not in outputs]:
            raise PlanError(f"{what} names '{odd[0]}', but outputs of the network are {', '.join(outputs)}.")
        return dict(given)
    if not isinstance(given, list | tuple) or len(given) != len(outputs):
        raise PlanError(f"{what} has an entry for each of the outputs {', '.join(outputs)}, got {given!r:.60}.")
    return dict(zip(outputs, given, strict=True))


def check_examples(loss: Loss | Losses, network: Network, examples: int, micro_batch: int) -> None:
    """Raises PlanError if a loss doesn't fit its output, or `examples` in micro-batches of this size."""
    losses = loss if isinstance(loss, Losses) else Losses(dict.fromkeys(network.outputs, loss))
    losses.check({name: node.shape for name, node in network.nodes.items()}, micro_batch)
    check_whole(loss, examples, micro_batch)


Batch = tuple[dict[str, np.ndarray], Targets]


def is_stream(x: Any) -> bool:
    """True for an iterable of batches, or a function that returns one; False for arrays and sources."""
    if isinstance(x, np.ndarray | Mapping | str | type) or (hasattr(x, "shape") and hasattr(x, "__getitem__")):
        return False
    return hasattr(x, "__iter__") or callable(x)


def to_predict(x: Any, network: Network, steps: int | None = None) -> Iterator[Source]:
    """Yield the examples of `x` as sources: all at once, or batch by batch for a stream, whose batches are x, or tuples
    (x, y, ...) of which the rest isn't read. `steps`: most batches of a stream (default: all).

    Raises PlanError for `steps` of arrays, DataError for a stream without batches, ShapeError as `as_source`.
    """
    if isinstance(x, list | tuple) or not is_stream(x):
        if steps is not None:
            raise PlanError("Steps are for a DataLoader, a tf.data.Dataset or a generator: arrays are predicted whole.")
        yield as_source(x, network)
        return
    if steps is None and _is_endless(x):
        raise PlanError(f"This {type(x).__name__} has no end: give predict the number of its batches, steps.")
    batches: Any = x() if callable(x) else x
    batch = None
    for batch in islice(batches, steps):
        arrays = _as_inputs(batch[0] if isinstance(batch, tuple) else batch, network)
        yield as_source(arrays if len(network.inputs) > 1 else next(iter(arrays.values())), network)
    if batch is None:
        raise DataError(f"This {type(x).__name__} has no batches to predict.")


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


def fit_examples(
    x, y, network: Network, loss: Loss | Losses, sample_weight, class_weight: Mapping[int, float] | None,
    validation_data: Any, share: float, steps: int | None, validation_steps: int | None,
) -> list[tuple[Source, Any]]:  # fmt: skip
    """Return the examples to train on and, if there are any, those to validate with: others, or a `share` of all.

    Raises ShapeError for what doesn't fit, PlanError for both kinds of validation, or a share that leaves none.
    """
    data: Any = validation_data
    if is_stream(data) and not isinstance(data, tuple | list):
        data = data, None
    elif data is not None and (not isinstance(data, tuple | list) or len(data) not in (2, 3)):
        what = f"{len(data)} of them" if isinstance(data, tuple | list) else type(data).__name__
        raise ShapeError(f"validation_data is (x, y) or (x, y, sample_weight), not {what}.")
    if data is not None and share:
        raise PlanError("Give validation_data or validation_split, not both.")
    x, y = examples_of(x, y, network, loss, sample_weight, class_weight, steps)
    if data is not None:
        return [(x, y), examples_of(data[0], data[1], network, loss, *data[2:], steps=validation_steps)]
    if not share:
        return [(x, y)]
    kept = floor(len(x) * (1 - share))  # as Keras
    if kept == len(x) or not kept:
        raise PlanError(f"A validation_split of {share:g} of {len(x)} examples leaves none.")
    if isinstance(x, MixedSource):
        raise PlanError("Parts of mixed examples would have partners in each other: give validation_data, unmixed.")
    parts = (0, kept), (kept, len(x))
    return [(x[a:b] if isinstance(x, np.ndarray) else Subset(x, np.arange(a, b)), y.part(a, b)) for a, b in parts]


class Stream(_Sized):
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
        source, targets = labeled(
            _as_inputs(x, self._network), _as_arrays(y), self._network, self._loss, *map(_as_arrays, weights),
            class_weight=self._class_weight,
        )  # fmt: skip
        sources = source.sources if isinstance(source, NamedSources) else {next(iter(self._network.inputs)): source}
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


def _as_inputs(x: Any, network: Network) -> dict[str, np.ndarray]:
    """The examples of a batch as arrays by input. `x`: a dictionary, a list in the inputs' order, or the only one's."""
    names = list(network.inputs)
    if isinstance(x, tuple | list) and len(names) > 1:
        x = dict(zip(names, x, strict=True))
    given = x if isinstance(x, Mapping) else {names[0]: x}
    return {name: _channels_last(values, network.inputs.get(name, ())) for name, values in given.items()}


def _channels_last(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Examples of `shape` as an array: PyTorch's images have their channels first."""
    array = _as_arrays(values)
    turned = np.moveaxis(array, 1, -1) if array.ndim > 2 else array
    of_torch = hasattr(values, "detach")
    return turned if of_torch and array.shape[1:] != shape and turned.shape[1:] == shape else array
