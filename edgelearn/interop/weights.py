"""Weights by name: checked against a network, in Keras's order of axes, and BatchNormalization folded into kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.display import plural
from edgelearn.errors import FormatError
from edgelearn.graph import Network, Node
from edgelearn.ops import (
    BatchNormalization,
    Conv1DTranspose,
    Conv2DTranspose,
    DepthwiseConv1D,
    DepthwiseConv2D,
    LinearOp,
    LogSoftmax,
    Op,
    Softmax,
)
from edgelearn.ops.arithmetic import Elementwise, WithWeight
from edgelearn.ops.elementwise import Activation
from edgelearn.ops.tensor import Shape

Weights = dict[str, np.ndarray]


def _refuse(*_: Any, **__: Any) -> Any:
    raise FormatError(
        "model.weights is a copy: a change in it would not reach the model. Assign new weights: "
        "model.weights = {**model.weights, 'dense/bias': array}."
    )


class ReadOnlyWeights(Weights):
    """Weights that can be read and copied but not changed: a change would not reach the device.

    Its arrays are read-only, too. Raises FormatError when an array is set or removed.
    """

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        views = {name: array.view() for name, array in weights.items()}
        for view in views.values():
            view.flags.writeable = False
        super().__init__(views)

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple:
        return dict, (dict(self),)

    __copy__ = copy = lambda self: dict(self)


def copied(weights: Mapping[str, np.ndarray]) -> Weights:
    """Return copies, which later changes of the originals don't reach. Bytes that can't change, as of a file that is
    mapped into memory, are returned as they are."""
    shared = {name for name, array in weights.items() if array.dtype == np.uint8 and not array.flags.writeable}
    return {name: array if name in shared else array.copy() for name, array in weights.items()}


def check_weights(network: Network, weights: Mapping[str, np.ndarray]) -> Weights:
    """Return the network's weights as float32 (or bytes, see `Weight.format`), by name; ignore arrays of other names.

    Raises FormatError when an array is missing, has another shape, holds no real numbers, or a NaN or an infinity.
    """
    if not isinstance(weights, Mapping):
        raise FormatError(
            f"Weights are arrays by name, such as model.weights returns, not {type(weights).__name__}; "
            f"edgelearn.load reads files."
        )
    missing = [name for name in network.parameters if name not in weights]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise FormatError(f"The weights lack '{missing[0]}'{more}: they belong to another network than {network.name}.")
    checked = {}
    for name, parameter in network.parameters.items():
        given = np.asarray(weights[name])
        if given.dtype.kind in "cOSUmM":
            raise FormatError(f"'{name}' is an array of {given.dtype}; weights are real numbers.")
        weight = parameter.weight
        if weight.format and given.dtype != weight.dtype:
            raise FormatError(f"'{name}' is an array of {given.dtype}; blocks of {weight.format} are uint8.")
        array = np.asarray(given, weight.dtype)
        if array.shape != weight.array_shape:
            raise FormatError(
                f"'{name}' has shape {array.shape}; '{network.name}' needs "
                f"{weight.array_shape}: use the weights of that network."
            )
        if not weight.format and not np.isfinite(array).all():
            raise FormatError(f"'{name}' holds a NaN or an infinity: use weights from before training went wrong.")
        checked[name] = array
    return checked


def check_fit(
    path: str | Path, network: Network, weights: Mapping[str, np.ndarray], skip: Collection[str] = (),
    factors_may_be_missing: bool = False,
) -> None:  # fmt: skip
    """Compare the names and shapes of a file's weights with the network's.

    Arguments:
    - `path`: the file, for errors.
    - `network`, `weights`: what is compared.
    - `skip`: layers that may be missing.
    - `factors_may_be_missing`: a gamma or beta that isn't trained may be missing, as of Keras's
      BatchNormalization(scale=False) (default False).

    Raises FormatError that lists what is missing, left over or of another shape.
    """
    needed = {name: p.weight.shape for name, p in network.parameters.items() if p.layer not in skip}
    missing = [name for name in needed if name not in weights]
    if factors_may_be_missing:
        missing = [n for n in missing if n in network.trainable or not n.endswith(("/gamma", "/beta"))]
    left = [name for name in weights if name not in network.parameters]
    shapes = {name: np.shape(weights[name]) for name in needed if name in weights}
    others = [f"{name} {shape}, not {needed[name]}" for name, shape in shapes.items() if shape != needed[name]]
    if not (missing or left or others):
        return
    problems = [f"lacks {len(missing)} of {plural(len(needed), 'weight')} ({few(missing)})"] if missing else []
    problems += [f"has {len(left)} that the network has no place for ({few(left)})"] if left else []
    problems += [f"has {len(others)} of another shape ({few(others)})"] if others else []
    layers = tuple(dict.fromkeys(name.partition("/")[0] for name in [*missing, *left, *others]))[:2]
    raise FormatError(
        f"{path} doesn't fit '{network.name}': it {', and '.join(problems)}. Give a file of this network, or leave "
        f"layers out, of either: skip={layers}."
    )


def not_finite(weights: Mapping[str, np.ndarray]) -> str:
    """Return a sentence on weights that hold a NaN or an infinity; "" if none does."""
    found = [name for name, array in weights.items() if array.dtype.kind == "f" and not np.isfinite(array).all()]
    if not found:
        return ""
    first = weights[found[0]]
    return (
        f"{len(found)} of {len(weights)} weights hold NaN or infinite values; the first is '{found[0]}', with "
        f"{np.count_nonzero(~np.isfinite(first)):,} of {first.size:,}. The file is damaged, or its training went wrong."
    )


def few(names: Iterable[str], most: int = 3) -> str:
    """The first names of a row, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"'{name}'" for name in names[:most]) + more


def in_keras_order(network: Network, name: str, array: np.ndarray) -> np.ndarray:
    """The array of a parameter with its axes as in Keras; applied again, it leads back. Only the kernels of transposed
    convolutions differ."""
    return array.swapaxes(-1, -2) if _is_swapped(network, name) else array


def keras_shape(network: Network, name: str) -> Shape:
    """The shape of a parameter's array in Keras."""
    shape = network.parameters[name].weight.shape
    return (*shape[:-2], shape[-1], shape[-2]) if _is_swapped(network, name) else shape


def _is_swapped(network: Network, name: str) -> bool:
    parameter = network.parameters[name]
    return (
        isinstance(network.nodes[parameter.layer].op, Conv1DTranspose | Conv2DTranspose) and parameter.role == "kernel"
    )


def fold_batchnorm(network: Network, weights: Mapping[str, np.ndarray]) -> tuple[Network, dict[str, np.ndarray]]:
    """The network without the BatchNormalization layers whose input a convolution or Dense alone gives, and weights
    with which it infers the same: kernels times the scale, and the shift as a bias."""
    shared = {name for node in network.nodes.values() if node.shares for name in (node.name, node.shares)}
    norms = {
        node.inputs[0]: node for node in network.nodes.values()
        if _folds(network, node) and shared.isdisjoint((node.name, node.inputs[0]))
    }  # fmt: skip
    folded, found = Network(network.name, network.inputs), dict(weights)
    renamed: dict[str, str] = {}
    for node in network.nodes.values():
        op = node.op
        if node.name in norms:
            op = replace(op, use_bias=True)  # type: ignore[call-arg]  a LinearOp of the package
            _fold(found, node, norms[node.name])
        elif node.name in renamed:
            continue
        folded.add(node.name, op, *(renamed.get(name, name) for name in node.inputs), shares=node.shares)
        if node.name in norms:
            renamed[norms[node.name].name] = node.name
    folded.take_outputs(network, renamed)
    return folded, {name: found[name] for name in folded.parameters}


def _folds(network: Network, node: Node) -> bool:
    if type(node.op) is not BatchNormalization or node.inputs[0] not in network.nodes:
        return False
    before = network.nodes[node.inputs[0]]
    return (
        isinstance(before.op, LinearOp)
        and network.consumers(before.name) == [node]
        and before.name not in network.outputs
    )


def _fold(weights: dict[str, np.ndarray], node: Node, norm: Node) -> None:
    gamma, beta, mean, variance = (
        weights[f"{norm.name}/{role}"] for role in ("gamma", "beta", "moving_mean", "moving_variance")
    )
    assert isinstance(norm.op, BatchNormalization)
    scale = gamma / np.sqrt(variance + gamma.dtype.type(norm.op.epsilon))
    kernel, bias = weights[f"{node.name}/kernel"], weights.get(f"{node.name}/bias", 0)
    by_kernel = scale.reshape(kernel.shape[-2:]) if isinstance(node.op, DepthwiseConv1D | DepthwiseConv2D) else scale
    weights[f"{node.name}/kernel"] = kernel * by_kernel
    weights[f"{node.name}/bias"] = (bias - mean) * scale + beta


def without_softmax(network: Network) -> tuple[list[Node], tuple[str, ...]]:
    """The layers without a Softmax or LogSoftmax at an output that no other layer reads; the layers that give the
    outputs then."""
    ends = {
        name: network.nodes[name].inputs[0]
        for name in network.outputs
        if isinstance(network.nodes[name].op, LogSoftmax | Softmax) and not network.consumers(name)
    }
    nodes = [node for node in network.nodes.values() if node.name not in ends]
    return nodes, tuple(ends.get(name, name) for name in network.outputs)


def only_or_all(outputs: dict[str, Any]) -> Any:
    """The only output, or all by name."""
    return outputs if len(outputs) > 1 else next(iter(outputs.values()))


def formula_of(op: Op) -> Callable[..., Any] | None:
    """The formula of an op that computes each value by itself (see edgelearn.ops.formula); None for others, and for a
    class that inherits a formula and computes something else."""
    for kind in type(op).__mro__:
        if "formula" in vars(kind):
            return None if kind in (Activation, Elementwise, WithWeight) else getattr(op, "formula")  # noqa: B009
        if {"reference_forward", "value"} & vars(kind).keys():
            return None
    return None
