"""Targets of any shape, with weights of examples and classes: checked once, handed to sessions in micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgelearn.compile.lower.heads import check_heads
from edgelearn.errors import PlanError, ShapeError
from edgelearn.graph import Network
from edgelearn.ops import Loss, Losses, pack
from edgelearn.ops.loss import rows_of
from edgelearn.ops.tensor import Shape
from edgelearn.runtime.feed import OutputTargets

from .sources import Source, as_source


class Targets:
    """The targets of a data set. `targets[indices]` is what a session takes for these examples.

    Arguments:
    - `values`: targets of each output that has a loss, by its name: int32 class numbers or float32, (n, ...).
    - `weights`: float32 (n, rows) by output; None if all count alike (default).
    """

    def __init__(self, values: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray] | None = None) -> None:
        self.values, self.weights = values, weights

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

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
    if sample_weight is None and class_weight is None:
        return source, Targets(values)
    weights = _weights(values, network, losses, sample_weight, class_weight)
    return source, Targets(values, weights)


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
    if labels.shape != wanted:
        more = f", since the network gives {shape}: for one label each, end it with a Dense layer" if shape[1:] else ""
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
