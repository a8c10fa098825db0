"""State dicts: weights under PyTorch's names and in its layouts, put onto a network by names, by a table, or by the
order of modules. They come from files of `torch.save`, safetensors files and NumPy archives; no code of a file is
run.

An .npz archive for a BC-ResNet is the state dict of Qualcomm's network ("BCBlocks.0.1.f1.0.block.0.weight").
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby, pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.display import plural
from edgelearn.errors import FormatError
from edgelearn.graph import Network
from edgelearn.graph.rewrites import ancestors
from edgelearn.ops import (
    Conv2D,
    Conv2DTranspose,
    Dense,
    DepthwiseConv2D,
    Flatten,
    Reshape,
    SubSpectralNormalization,
    Transpose,
)
from edgelearn.ops.tensor import Shape

from . import safetensors
from .foreign import NUMBERS, open_arrays
from .formats import FileFormat, register, weights_of_a_network
from .safetensors import ModelFile
from .weights import Weights, check_fit, few

WHAT = "a PyTorch state dict"
COUNTER = "num_batches_tracked"  # of PyTorch's BatchNorm: nothing reads it
ROLES = {
    "kernel": "weight", "gamma": "weight", "beta": "bias", "moving_mean": "running_mean",
    "moving_variance": "running_var", "alpha": "weight", "embeddings": "weight",
}  # fmt: skip
CHANNELS_LAST = "1"  # version of exported files whose linear layers after a Flatten have channels last


def torch_name(name: str) -> str:
    """The name of the parameter "layer/role" in PyTorch."""
    layer, _, role = name.partition("/")
    return f"{layer}.{ROLES.get(role, role)}"


def to_torch_layout(network: Network, name: str, array: np.ndarray) -> np.ndarray:
    """The array of a parameter as PyTorch has it."""
    split, axes, shape = _layout(network, name)
    return np.ascontiguousarray(array.reshape(split).transpose(axes).reshape(shape))


def from_torch_layout(network: Network, name: str, array: np.ndarray, channels_last: bool = False) -> np.ndarray:
    """PyTorch's array of a parameter as the network has it. `channels_last`: a linear layer after a Flatten has its
    inputs in that order already (default False)."""
    split, axes, _ = _layout(network, name, channels_last)
    ordered = array.reshape([split[axis] for axis in axes]).transpose(np.argsort(axes))
    return np.ascontiguousarray(ordered.reshape(network.parameters[name].weight.shape), np.float32)


def weights_of(
    path: str | Path, arrays: Mapping[str, np.ndarray], network: Network, skip: Collection[str] = (),
    names: Mapping[str, str] | None = None, *, ordered: bool = True, channels_last: bool = False,
) -> Weights:  # fmt: skip
    """Put a file's arrays onto a network.

    Arrays under edgelearn's names ("conv/kernel") are taken as they are. Others are PyTorch's: by name ("conv.weight")
    if all fit so, else by the order of the file's modules, in which a layer comes after those it reads from.

    Arguments:
    - `path`: the file, for errors.
    - `arrays`: by name, in the file's order.
    - `network`: the graph that they are for.
    - `skip`: layers whose weights are left out, and modules of the file that are ignored.
    - `names`: modules of the file by layer, or its arrays by "layer/role", for those that aren't found otherwise.
    - `ordered`: the file keeps the order of modules (default). Without it only rows of equal layers whose names differ
      by numbers are told apart.
    - `channels_last`: as in `from_torch_layout`.

    Raises FormatError, naming what is missing or left over, if not every array finds its place.
    """
    table = _table(path, network, arrays, names or {})
    arrays = {
        name: array for name, array in arrays.items()
        if name in table.values() or (not name.endswith(COUNTER)
        and not any(f"{name}.".startswith((f"{s}.", f"{s}/")) for s in skip))
    }  # fmt: skip
    wanted = [name for name, parameter in network.parameters.items() if parameter.layer not in skip]
    if not names and any(name in arrays for name in network.parameters):
        found = {name: array for name, array in arrays.items() if name.partition("/")[0] not in skip}
        check_fit(path, network, found, skip)
        return {name: np.asarray(array, np.float32) for name, array in found.items()}
    by_name = {name: torch_name(name) for name in wanted if name not in table}
    rest = [name for name in arrays if name not in table.values()]
    if set(by_name.values()) != set(rest):
        by_name = _Order(path, network, {name: arrays[name] for name in rest}, skip, ordered).match(table)
    weights = {}
    for name, theirs in (table | by_name).items():
        expected, array = _layout(network, name, channels_last)[2], arrays[theirs]
        if _plain(array.shape) != _plain(expected) or array.dtype.kind not in NUMBERS:
            raise FormatError(
                f"{path}: '{theirs}' is {array.dtype} of shape {array.shape}, but '{name}' of '{network.name}' needs "
                f"numbers of shape {expected}. Give a file of this network, or leave the layer out: "
                f"skip=('{network.parameters[name].layer}',)."
            )
        weights[name] = from_torch_layout(network, name, array, channels_last)
    return weights


def _table(
    path: str | Path, network: Network, arrays: Mapping[str, Any], names: Mapping[str, str]
) -> dict[str, str]:  # fmt: skip
    """The file's names by ours, of the layers and parameters that the user's table has."""
    table = {}
    for ours, theirs in names.items():
        roles = [name for name in network.parameters if ours in (name, name.partition("/")[0])]
        if not roles:
            layers = dict.fromkeys(parameter.layer for parameter in network.parameters.values())
            raise FormatError(f"names has '{ours}', but layers of '{network.name}' with weights are {few(layers)}.")
        for name in roles:
            array = theirs if ours == name else f"{theirs}.{torch_name(name).rpartition('.')[2]}".lstrip(".")
            if array not in arrays:
                raise FormatError(f"{path} has no '{array}', which names gives for '{name}'. It has {few(arrays)}.")
            table[name] = array
    return table


class _Order:
    """Layers of a network and modules of a file, matched by kind, shapes and order.

    Arguments:
    - `path`, `network`, `arrays`, `skip`, `ordered`: as of `weights_of`.
    """

    def __init__(
        self, path: str | Path, network: Network, arrays: Mapping[str, np.ndarray], skip: Collection[str], ordered: bool
    ) -> None:
        self.path, self.network, self.skip, self.ordered = path, network, skip, ordered
        self.modules: dict[str, dict[str, Shape]] = {}
        for name, array in arrays.items():
            module, _, role = name.rpartition(".")
            of_itself = not module and role not in ("bias", *ROLES.values())  # such as a step's number
            self.modules.setdefault(name if of_itself else module, {})[role] = _plain(array.shape)
        self.layers: dict[str, dict[str, Shape]] = {}
        for name, parameter in network.parameters.items():
            role = torch_name(name).rpartition(".")[2]
            self.layers.setdefault(parameter.layer, {})[role] = _plain(_layout(network, name)[2])

    def match(self, table: Mapping[str, str]) -> dict[str, str]:
        """The file's arrays by parameter, of those that aren't in `table`."""
        done = {name.partition("/")[0] for name in table}
        layers = [layer for layer in self.layers if layer not in done]
        kept = [layer for layer in layers if layer not in self.skip]
        modules = list(self.modules)
        found = self._in_order(layers, modules) or self._in_order(kept, modules) if self.ordered else None
        if found is None:
            found = self._as_branches(layers) if self.ordered else self._by_numbers(kept)
        return {
            name: f"{found[parameter.layer]}.{torch_name(name).rpartition('.')[2]}".lstrip(".")
            for name, parameter in self.network.parameters.items()
            if parameter.layer in found and parameter.layer not in self.skip
        }

    def _fits(self, layer: str, module: str) -> bool:
        ours, theirs = self.layers[layer], self.modules[module]
        if layer in self.skip:  # of another size
            return {role: len(shape) for role, shape in ours.items()} == {r: len(s) for r, s in theirs.items()}
        return ours == theirs

    def _in_order(self, layers: Sequence[str], modules: Sequence[str]) -> dict[str, str] | None:
        """The n-th layer has the n-th module, if all of them fit."""
        if len(layers) == len(modules) and all(map(self._fits, layers, modules)):
            return dict(zip(layers, modules, strict=True))
        return None

    def _as_branches(self, layers: Sequence[str]) -> dict[str, str]:
        """Branches, such as a shortcut and what it bypasses, may come in another order than in the network."""
        before = {layer: self._before(layer) & set(layers) for layer in layers}
        found: dict[str, str] = {}
        for module in self.modules:
            ready = [one for one in layers if one not in found and before[one] <= found.keys()]
            fitting = [layer for layer in ready if self._fits(layer, module)]
            last = next(reversed(found), None)
            goes_on = [layer for layer in fitting if last in before[layer]]  # the branch that was begun
            choice = goes_on if len(goes_on) == 1 else fitting
            if len(choice) != 1:
                raise self._misfit(module, choice, ready)
            found[choice[0]] = module
        if left := [layer for layer in layers if layer not in found and layer not in self.skip]:
            raise self._misfit(None, [], left)
        return found

    def _by_numbers(self, layers: Sequence[str]) -> dict[str, str]:
        """Rows of equal layers in the order of the numbers in the modules' names, where nothing but numbers differs."""
        found: dict[str, str] = {}
        free = sorted(self.modules, key=_numbers)
        for _, some in groupby(sorted(layers, key=lambda one: repr(self.layers[one])), lambda one: self.layers[one]):
            row = sorted(some, key=list(self.layers).index)
            fitting = [module for module in free if self._fits(row[0], module)]
            in_a_row = all(a in self._before(b) for a, b in pairwise(row))
            alike = all(_differ_by_number(a, b) for a, b in pairwise(fitting))
            if len(fitting) != len(row) or (len(row) > 1 and not (in_a_row and alike)):
                raise self._misfit(fitting[0] if fitting else None, row, row)
            found |= dict(zip(row, fitting, strict=True))
        left = [module for module in free if module not in found.values()]
        for layer in self.skip:
            fitting = [module for module in left if layer in self.layers and self._fits(layer, module)]
            left = [module for module in left if module not in fitting[:1]]
        if left:
            raise self._misfit(left[0], [], [])
        return found

    def _before(self, layer: str) -> set[str]:
        nodes = self.network.nodes
        return ancestors([layer], lambda name: nodes[name].inputs if name in nodes else ()) - {layer}

    def _misfit(self, module: str | None, choice: Sequence[str], ready: Sequence[str]) -> FormatError:
        def described(what: Mapping[str, dict[str, Shape]], name: str) -> str:
            return f"'{name}' ({', '.join(f'{role} {shape}' for role, shape in what[name].items())})"

        theirs = described(self.modules, module) if module is not None else ""
        ours = " or ".join(described(self.layers, layer) for layer in (choice or ready)[:2])
        if len(choice) > 1:
            what = f"{theirs} fits {few(choice)} alike"
        elif theirs and ours:
            what = f"{theirs} doesn't fit {ours}"
        else:
            what = f"no layer is left for {theirs}" if theirs else f"no module is left for {ours}"
        order = "" if self.ordered else " Safetensors files don't keep the order of modules, .pt files do."
        missing = [torch_name(name) for name in self.network.parameters]
        missing = [name for name in missing if name.rpartition(".")[0] not in (*self.modules, *self.skip)]
        left = [name for name in self.modules if name not in self.layers]
        lacks = f"By name it lacks {few(missing)}" + (f", and has besides {few(left)}. " if left else ". ")
        count = plural(len(self.modules), "module")
        return FormatError(
            f"{self.path} has weights of {count}, '{self.network.name}' has {len(self.layers)} "
            f"layers with weights; by their order, {what}. {lacks if missing else ''}Say which module a layer has: "
            f"names={{'layer': 'module'}}; leave layers or modules out: skip=(…); or import the module with its graph: "
            f"edgelearn.from_torch(module, example).{order}"
        )


def _numbers(name: str) -> list[tuple[str, int]]:
    """Sorts names with numbers in them by these: "layer2" before "layer10"."""
    return [(word, int(number or 0)) for word, number in re.findall(r"([^0-9]+|(?<![0-9])(?=[0-9]))([0-9]*)", name)]


def _differ_by_number(a: str, b: str) -> bool:
    """True if the first parts in which two names of modules differ, differ by numbers alone."""
    parts = zip(a.split("."), b.split("."), strict=False)
    first = next(((x, y) for x, y in parts if x != y), ("", "-"))
    return re.sub("[0-9]+", "0", first[0]) == re.sub("[0-9]+", "0", first[1])


def _plain(shape: Sequence[int]) -> Shape:
    """A shape without axes of size 1 after the first two: a linear layer and a convolution of one pixel are alike."""
    return (*shape[:2], *(n for n in shape[2:] if n != 1))


def _layout(
    network: Network, name: str, channels_last: bool = False
) -> tuple[Shape, tuple[int, ...], Shape]:  # fmt: skip
    """(our shape, some axes divided; the order of these axes in PyTorch; the shape that PyTorch's array has)"""
    parameter = network.parameters[name]
    op, shape = network.nodes[parameter.layer].op, parameter.weight.shape
    kernel = parameter.role == "kernel"
    if kernel and isinstance(op, DepthwiseConv2D):
        height, width, channels, multiplier = shape
        return shape, (2, 3, 0, 1), (channels * multiplier, 1, height, width)
    if kernel and isinstance(op, Conv2DTranspose):
        height, width, channels, filters = shape
        split = (height, width, channels, op.groups, filters // op.groups)
        return split, (3, 2, 4, 0, 1), (channels * op.groups, filters // op.groups, height, width)
    if kernel and isinstance(op, Conv2D):
        return shape, (3, 2, 0, 1), (shape[3], shape[2], shape[0], shape[1])
    features = () if channels_last else _flattened(network, network.nodes[parameter.layer].inputs[0])
    if features and shape[0] == prod(features) and (kernel or not isinstance(op, Dense)):
        last = len(features) - 1
        split = (*features, *shape[1:])
        return split, (*range(last + 1, len(split)), last, *range(last)), tuple(reversed(shape))
    axes = {2: (1, 0)}.get(len(shape), ()) if kernel else {3: (2, 0, 1)}.get(len(shape), ())
    axes = axes or tuple(range(len(shape)))
    return shape, axes, tuple(shape[axis] for axis in axes)


def _flattened(network: Network, name: str) -> Shape:
    """The shape (..., channels) whose values `name` has in a row, whose order is another in PyTorch; () for features
    that are in the same order there.

    Raises FormatError where that can't be told.
    """
    node = network.nodes.get(name)
    if node is None or len(node.shape) > 1 or isinstance(node.op, Dense):
        return ()
    shapes = [network.shape_of(source) for source in node.inputs]
    if isinstance(node.op, Flatten) and len(shapes[0]) > 1:
        before = network.nodes.get(node.inputs[0])
        if prod(shapes[0][:-1]) == 1:
            return ()
        if before is None or not isinstance(before.op, Reshape | Transpose):
            return shapes[0]
    else:
        found = {_flattened(network, source) for source in node.inputs}
        if found == {()}:
            return ()
        if len(found) == 1 and set(shapes) == {node.shape}:
            return found.pop()
    raise FormatError(
        f"In which order PyTorch has the features of '{name}' of '{network.name}' can't be told. Import the module "
        f"with its graph, edgelearn.from_torch(module, example), or write another format, such as ONNX."
    )


def _read_torch(
    path: Path, network: Network | None, skip: tuple[str, ...], names: Mapping[str, str] | None = None
) -> ModelFile:
    if network is None:
        raise FormatError(
            f"{path} holds weights without a graph: say of which network, with network=…, or import the module with "
            f"its graph: edgelearn.from_torch(module, example)."
        )
    with open_arrays(path, "torch", WHAT) as file:
        arrays, texts = file.read(), file.texts
    channels_last = texts.get("version") == CHANNELS_LAST
    weights = weights_of(path, arrays, network, skip, names, channels_last=channels_last)
    about = {name: json.loads(texts.get(name, "{}")) for name in ("preprocessing", "metadata")}
    return ModelFile(network, weights, **about, class_names=tuple(json.loads(texts.get("class_names", "[]"))))


register(FileFormat("PyTorch state dict", (".pt", ".pth", "pytorch_model.bin"), b"", _read_torch, options=("names",)))


AROUND_BLOCKS = {
    "stem": "cnn_head.0", "stem_bn": "cnn_head.1", "tail_depthwise": "classifier.0", "tail": "classifier.1",
    "tail_bn": "classifier.2", "classifier": "classifier.5",
}  # fmt: skip
IN_BLOCKS = {"time": "f1.0.block.0", "time_bn": "f1.0.block.1", "mix": "f1.1",
             "pointwise": "f2.0.block.0", "pointwise_bn": "f2.0.block.1"}  # fmt: skip
BLOCK = re.compile(r"stage(\d)_block(\d)_(\w+)")
NPZ = "an .npz file of plain arrays"


def read_bcresnet(path: str | Path, network: Network, skip: tuple[str, ...] = ()) -> Weights:
    """Read weights of `network`, one of models.bcresnet, as float32; layers named in `skip` are left out, also if
    the network doesn't have them ("classifier", for an embedding or other classes).

    Raises FormatError when the file is damaged, or an array is missing, of another shape, or of no layer.
    """
    left_out = {_torch_layer(network, layer) for layer in skip}
    parameters = {name: one for name, one in network.parameters.items() if one.layer not in skip}
    modules = {one.layer: _torch_layer(network, one.layer) for one in parameters.values()}
    names = {n: f"{modules[one.layer]}.{torch_name(n).rpartition('.')[2]}" for n, one in parameters.items()}
    arrays = {name: a for name, a in read_arrays(path).items() if name.rpartition(".")[0] not in left_out}
    for name, theirs in names.items():
        shape, array = parameters[name].weight.shape, arrays.get(theirs)
        banded = isinstance(network.nodes[parameters[name].layer].op, SubSpectralNormalization)
        if banded and array is not None and array.size == prod(shape):  # the sub-bands of a channel one after the other
            arrays[theirs] = array.reshape(shape[::-1]).T
    return weights_of(path, arrays, network, skip, names)


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Read all arrays of an .npz file by name. Raises FormatError naming the file."""
    with open_arrays(path, "npz", NPZ) as file:
        return file.read()


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
    place = int(f"stage{stage}_block{number}_pointwise" in network.nodes)  # after the one that changes the channels
    return f"{where}.f2.{place}.block.{'1.ssnorm' if part == 'ssn' else '0'}"


def _read_npz(path: Path, network: Network, skip: tuple[str, ...], names: Mapping[str, str] | None = None) -> Weights:
    layers = {parameter.layer for parameter in network.parameters.values()}
    if not names and all(layer in AROUND_BLOCKS or BLOCK.fullmatch(layer) for layer in layers):
        return read_bcresnet(path, network, skip)
    return weights_of(path, read_arrays(path), network, skip, names)


register(FileFormat("NumPy archive", (".npz",), b"PK\x03\x04", weights_of_a_network(_read_npz), options=("names",)))


def _plain_weights(
    path: Path, network: Network, skip: tuple[str, ...], names: Mapping[str, str] | None = None
) -> Weights:
    return weights_of(path, safetensors.read_weights(path), network, skip, names, ordered=False)


def _read_safetensors(
    path: Path, network: Network | None, skip: tuple[str, ...], names: Mapping[str, str] | None = None
) -> ModelFile:
    if not safetensors.is_model(path):
        return weights_of_a_network(_plain_weights)(path, network, skip, names=names)
    if names:
        raise FormatError(f"{path} is an edgelearn model, which says which weights a layer has: leave names out.")
    file = safetensors.read_model_file(path)
    if network is None and not skip:
        return file
    kept = {name: array for name, array in file.weights.items() if name.partition("/")[0] not in skip}
    return ModelFile(network or file.network, kept, preprocessing=file.preprocessing, metadata=file.metadata)


register(FileFormat("safetensors", (".safetensors",), b"", _read_safetensors, options=("names",)))
