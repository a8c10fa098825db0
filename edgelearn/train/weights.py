"""Weights by name, and whether they are a network's."""

from __future__ import annotations

import numpy as np

from edgelearn.errors import FormatError
from edgelearn.graph import Network

Weights = dict[str, np.ndarray]


def checked(network: Network, weights: Weights) -> Weights:
    """`weights` as float32 under the network's names. Raises FormatError when some are missing, of another shape, or
    not finite."""
    missing = [name for name in network.parameters if name not in weights]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise FormatError(f"The weights lack '{missing[0]}'{more}: they are not of the network '{network.name}'.")
    found = {}
    for name, parameter in network.parameters.items():
        array = np.asarray(weights[name], np.float32)
        if array.shape != parameter.weight.shape:
            raise FormatError(
                f"'{name}' has shape {array.shape}; '{network.name}' needs "
                f"{parameter.weight.shape}: use the weights of that network."
            )
        if not np.isfinite(array).all():
            raise FormatError(f"'{name}' holds a NaN or an infinity: use weights from before training went wrong.")
        found[name] = array
    return found
