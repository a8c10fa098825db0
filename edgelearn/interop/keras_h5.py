"""Weights in Keras's legacy HDF5 layout: what keras.applications publishes and `Model.save_weights("x.h5")` wrote.

The file has an attribute `layer_names`; each layer is a group with an attribute `weight_names` that lists its datasets
in the order of the layer's weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.errors import FormatError
from edgelearn.graph import Network

from .formats import Format, register, weights_of_a_network
from .weights import Weights, in_keras_order


def read_layers(path: str | Path) -> dict[str, list[np.ndarray]]:
    """Read the arrays of every layer that has some, by layer name. Raises FormatError naming the file."""
    import h5py

    if not Path(path).is_file():
        raise FormatError(f"There is no weight file {path}. Give the path of a Keras HDF5 file.")
    try:
        with h5py.File(path, "r") as file:
            root: Any = file.get("model_weights", file)
            names = [_text(name) for name in root.attrs["layer_names"]]
            layers = {n: [np.asarray(root[n][_text(w)]) for w in root[n].attrs["weight_names"]] for n in names}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"{path} is not a Keras HDF5 weight file, or is damaged ({_first_line(error)}). Fetch it again, or give "
            f"another file."
        ) from None
    return {name: arrays for name, arrays in layers.items() if arrays}


def read_weights(path: str | Path, network: Network, skip: tuple[str, ...] = ()) -> Weights:
    """Read weights for the layers of `network` by Keras's layer names; layers named in `skip` are left out.

    Raises FormatError when a layer is missing or has other shapes.
    """
    layers = read_layers(path)
    weights: Weights = {}
    for layer in dict.fromkeys(p.layer for p in network.parameters.values()):
        if layer in skip:
            continue
        roles = [p.role for p in network.parameters.values() if p.layer == layer]
        arrays = layers.get(layer)
        if arrays is None or len(arrays) != len(roles):
            have = "no such layer" if arrays is None else f"{len(arrays)} arrays"
            raise FormatError(
                f"{path} has {have} for layer '{layer}', which needs {len(roles)} ({', '.join(roles)}). It is of "
                f"another network: give a file of '{network.name}'."
            )
        for role, array in zip(roles, arrays, strict=True):
            expected = network.parameters[f"{layer}/{role}"].weight.shape
            array = in_keras_order(network, f"{layer}/{role}", array) if array.ndim == len(expected) else array
            if array.shape != expected:
                raise FormatError(
                    f"{path}: '{layer}/{role}' has shape {array.shape}, but '{network.name}' needs {expected}. It is "
                    f"of another network, or another width of this one: give a file of '{network.name}'."
                )
            weights[f"{layer}/{role}"] = array.astype(np.float32)
    return weights


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


register(Format("Keras HDF5", (".h5", ".hdf5"), b"\x89HDF\r\n\x1a\n", weights_of_a_network(read_weights)))
