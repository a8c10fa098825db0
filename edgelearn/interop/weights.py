"""Weights by name, and the check that they fit a network."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgelearn.errors import FormatError
from edgelearn.graph import Network
from edgelearn.ops import Conv2DTranspose
from edgelearn.ops.tensor import Shape

Weights = dict[str, np.ndarray]


def check_weights(network: Network, weights: Mapping[str, np.ndarray]) -> Weights:
    """Return the network's weights as float32, by name; ignore arrays of other names.

    Raises FormatError when an array is missing, has another shape, or holds a NaN or an infinity.
    """
    missing = [name for name in network.parameters if name not in weights]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise FormatError(f"The weights lack '{missing[0]}'{more}: they belong to another network than {network.name}.")
    checked = {}
    for name, parameter in network.parameters.items():
        array = np.asarray(weights[name], np.float32)
        if array.shape != parameter.weight.shape:
            raise FormatError(
                f"'{name}' has shape {array.shape}; '{network.name}' needs "
                f"{parameter.weight.shape}: use the weights of that network."
            )
        if not np.isfinite(array).all():
            raise FormatError(f"'{name}' holds a NaN or an infinity: use weights from before training went wrong.")
        checked[name] = array
    return checked


def in_keras_order(network: Network, name: str, array: np.ndarray) -> np.ndarray:
    """The array of a parameter with its axes as in Keras; applied again, it leads back. Only the kernels of transposed
    convolutions differ."""
    return array.swapaxes(2, 3) if _is_swapped(network, name) else array


def keras_shape(network: Network, name: str) -> Shape:
    """The shape of a parameter's array in Keras."""
    shape = network.parameters[name].weight.shape
    return (*shape[:2], shape[3], shape[2]) if _is_swapped(network, name) else shape


def _is_swapped(network: Network, name: str) -> bool:
    parameter = network.parameters[name]
    return isinstance(network.nodes[parameter.layer].op, Conv2DTranspose) and parameter.role == "kernel"
