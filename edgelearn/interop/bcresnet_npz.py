"""NumPy archives of weights: of a BC-ResNet the state dict of Qualcomm's network, under PyTorch's names
("BCBlocks.0.1.f1.0.block.0.weight") and in its layouts; of other networks any state dict. No code of the file is run,
and no pickle is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from edgelearn.errors import FormatError
from edgelearn.graph import Network
from edgelearn.ops import Conv2D, Dense, DepthwiseConv2D, SubSpectralNormalization

from .foreign import ArrayFile, open_arrays
from .formats import Format, register, weights_of_a_network
from .state_dict import COUNTER, ROLES, weights_of
from .weights import Weights

AROUND_BLOCKS = {
    "stem": "cnn_head.0", "stem_bn": "cnn_head.1", "tail_depthwise": "classifier.0", "tail": "classifier.1",
    "tail_bn": "classifier.2", "classifier": "classifier.5",
}  # fmt: skip
IN_BLOCKS = {"time": "f1.0.block.0", "time_bn": "f1.0.block.1", "mix": "f1.1",
             "pointwise": "f2.0.block.0", "pointwise_bn": "f2.0.block.1"}  # fmt: skip
BLOCK = re.compile(r"stage(\d)_block(\d)_(\w+)")
WHAT = "an .npz file of plain arrays"


def read_weights(path: str | Path, network: Network, skip: tuple[str, ...] = ()) -> Weights:
    """Read weights of `network`, one of models.bcresnet, as float32; layers named in `skip` are left out, also if
    the network doesn't have them ("classifier", for an embedding or other classes).

    Raises FormatError when the file is damaged, or an array is missing, of another shape, or of no layer.
    """
    with open_arrays(path, "npz", WHAT) as file:
        names = _names(file, network, skip)
        arrays = file.read(names.values())
    found: Weights = {}
    for name, theirs in names.items():
        axes, ordered, _ = _layout(network, name)
        array = arrays[theirs].reshape(ordered).transpose(np.argsort(axes))
        found[name] = np.ascontiguousarray(array.astype(np.float32))
    return found


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Read all arrays of an .npz file by name. Raises FormatError naming the file."""
    with open_arrays(path, "npz", WHAT) as file:
        return file.read()


def _names(file: ArrayFile, network: Network, skip: tuple[str, ...]) -> dict[str, str]:
    """The file's names of the network's parameters. Raises FormatError unless it has these arrays and no other."""
    unread = {name for name in file.arrays if not name.endswith(f".{COUNTER}")}
    unread -= {name for layer in skip for name in file.arrays if name.startswith(f"{_torch_layer(network, layer)}.")}
    names: dict[str, str] = {}
    for parameter in network.parameters.values():
        if parameter.layer in skip:
            continue
        name = f"{_torch_layer(network, parameter.layer)}.{ROLES.get(parameter.role, parameter.role)}"
        if name not in file.arrays:
            raise FormatError(
                f"{file.path} has no '{name}', which '{network.name}' needs for '{parameter.name}'. It is of another "
                f"network: give a file of this one."
            )
        entry, (_, _, expected) = file.arrays[name], _layout(network, parameter.name)
        if entry.shape != expected or entry.dtype.kind not in "fiu":
            raise FormatError(
                f"{file.path}: '{name}' is {entry.dtype} of shape {entry.shape}, but '{network.name}' needs numbers of "
                f"shape {expected}. It is of another network, or another width of this one: give a file of this one."
            )
        names[parameter.name] = name
        unread.discard(name)
    if unread:
        raise FormatError(
            f"{file.path} has {len(unread)} arrays that '{network.name}' has no place for, such as '{min(unread)}'. It "
            f"is of another network: give a file of this one, or name layers to skip."
        )
    return names


def _torch_layer(network: Network, layer: str) -> str:
    """Return PyTorch's name of the module that holds the layer's parameters."""
    block = BLOCK.fullmatch(layer)
    if not block and layer not in AROUND_BLOCKS:
        raise FormatError(f"'{layer}' is no layer of a BC-ResNet: read these files into networks of models.bcresnet.")
    if not block:
        return AROUND_BLOCKS[layer]
    stage, number, part = block.groups()
    where = f"BCBlocks.{int(stage) - 1}.{int(number) - 1}"
    if part in IN_BLOCKS:
        return f"{where}.{IN_BLOCKS[part]}"
    place = int(f"stage{stage}_block{number}_pointwise" in network.nodes)  # behind the one that changes the channels
    return f"{where}.f2.{place}.block.{'1.ssnorm' if part == 'ssn' else '0'}"


def _layout(network: Network, name: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """PyTorch's order of our axes, our shape in that order, and the shape that PyTorch's array has."""
    parameter = network.parameters[name]
    op, shape = network.nodes[parameter.layer].op, parameter.weight.shape
    axes = tuple(range(len(shape)))
    if isinstance(op, Conv2D):
        axes = (3, 2, 0, 1)
    elif isinstance(op, DepthwiseConv2D):
        axes = (2, 3, 0, 1)
    elif len(shape) == 2:
        axes = (1, 0)
    ordered = tuple(shape[axis] for axis in axes)
    if isinstance(op, SubSpectralNormalization):
        return axes, ordered, (ordered[0] * ordered[1],)  # the sub-bands of a channel one after the other
    if isinstance(op, Dense) and len(shape) == 2:
        return axes, ordered, (*ordered, 1, 1)  # a convolution of one pixel
    return axes, ordered, ordered


def _read(path: Path, network: Network, skip: tuple[str, ...], names: Mapping[str, str] | None = None) -> Weights:
    layers = {parameter.layer for parameter in network.parameters.values()}
    if not names and all(layer in AROUND_BLOCKS or BLOCK.fullmatch(layer) for layer in layers):
        return read_weights(path, network, skip)
    return weights_of(path, read_arrays(path), network, skip, names)


register(Format("NumPy archive", (".npz",), b"PK\x03\x04", weights_of_a_network(_read), options=("names",)))
