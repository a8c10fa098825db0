"""Weights in Keras's HDF5 layouts: what keras.applications publishes and `Model.save_weights` writes.

A file of Keras 2 has an attribute `layer_names`; each layer is a group with an attribute `weight_names` that lists
its datasets in the order of the layer's weights. A file of Keras 3 (.weights.h5) has the datasets of a layer in
"layers/CLASS_NUMBER/vars/0" and so on, since 3.6 with the layer's name as an attribute. Published weights are fetched
by Keras itself, in a process of its own: this one never imports TensorFlow.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from itertools import count, takewhile
from pathlib import Path

import numpy as np

from edgelearn import child
from edgelearn.display import plural
from edgelearn.errors import DataError, DownloadError, FormatError
from edgelearn.graph import Network

from .foreign import ArrayFile, open_arrays
from .weights import Weights, in_keras_order, keras_shape

WHAT = "a Keras HDF5 weight file"
OTHER_NAMES = {"dense": "conv_preds"}  # the classifier of MobileNet in keras.applications is a convolution of a pixel


def read_layers(path: str | Path) -> dict[str, list[np.ndarray]]:
    """Read the arrays of every layer that has some, by layer name. Raises FormatError naming the file."""
    with open_arrays(path, "hdf5", WHAT) as file:
        layers = list_layers(file)
        arrays = file.read(name for names in layers.values() for name in names)
    return {layer: [arrays[name] for name in names] for layer, names in layers.items() if names}


def list_layers(file: ArrayFile) -> dict[str, list[str]]:
    """Names of the arrays of each layer, in the order of the layer's weights. Raises FormatError naming the file."""
    if folders := list_folders(file):
        return {file.texts.get(f"{folder}/vars@name", [folder])[0]: names for folder, names in folders.items()}
    root = (
        "model_weights"
        if "model_weights@layer_names" in file.texts or "model_weights@layer_names0" in file.texts
        else ""
    )
    layers: dict[str, list[str]] = {}
    for layer in _texts(file, root, "layer_names"):
        group = f"{root}/{layer}" if root else layer
        layers[layer] = [f"{group}/{name}" for name in _texts(file, group, "weight_names")]
    return layers


def list_folders(file: ArrayFile) -> dict[str, list[str]]:
    """Names of the arrays of each layer of a Keras 3 file, by its group, such as "layers/conv2d_1"."""
    folders: dict[str, list[str]] = {}
    for name in file.arrays:
        folder, _, number = name.partition("/vars/")
        if folder.startswith("layers/") and number == "0":
            places = (f"{folder}/vars/{place}" for place in count())
            folders[folder] = list(takewhile(file.arrays.__contains__, places))
    return folders


def snake_case(kind: str) -> str:
    """A class's name as Keras 3 writes it: "conv2d" for Conv2D."""
    return re.sub(r"(?<=.)(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z])", "_", kind).lower()


def _by_class(network: Network, layers: dict[str, list[str]]) -> dict[str, list[str]]:
    """Layers of a file that doesn't name them, by the number of each among those of its class."""
    found: dict[str, list[str]] = {}
    numbers: dict[str, int] = {}
    for node in network.nodes.values():
        kind = snake_case(type(node.op).__name__)
        number = numbers.get(kind, 0)
        numbers[kind] = number + 1
        names = layers.get(f"layers/{kind}" + (f"_{number}" if number else ""))
        if names:
            found[node.name] = names
    return found


def _divided(network: Network, layers: dict[str, list[str]]) -> dict[str, list[str]]:
    """The layers, with SeparableConv2D as the two that it is here: NAME_depthwise has its first array."""
    parts = {name: f"{name}_depthwise" for name in layers if f"{name}_depthwise" in network.nodes}
    found = dict(layers)
    for name, depthwise in parts.items():
        if name in network.nodes and depthwise not in layers:
            found[depthwise], found[name] = layers[name][:1], layers[name][1:]
    return found


def _texts(file: ArrayFile, group: str, attribute: str) -> list[str]:
    """The texts of an attribute; Keras divides long ones into NAME0, NAME1 and so on."""
    if (name := f"{group}@{attribute}") in file.texts:
        return file.texts[name]
    parts = list(takewhile(bool, (file.texts.get(f"{name}{i}", []) for i in count())))
    if not parts:
        raise FormatError(
            f"{file.path} is not {WHAT}, or is damaged ('{group or '/'}' lacks the texts '{attribute}'). Fetch it "
            f"again, or give another file."
        )
    return [text for part in parts for text in part]


def read_weights(path: str | Path, network: Network, skip: tuple[str, ...] = ()) -> Weights:
    """Read weights for the layers of `network` by Keras's layer names; layers named in `skip` are left out.

    Raises FormatError when a layer is missing or has other shapes.
    """
    with open_arrays(path, "hdf5", WHAT) as file:
        layers = list_layers(file)
        if any(name.startswith("layers/") for name in layers):
            layers = _by_class(network, layers)
        layers = _divided(network, layers)
        found: dict[str, str] = {}  # the file's names by ours
        for layer in dict.fromkeys(p.layer for p in network.parameters.values()):
            if layer in skip:
                continue
            roles = [p.role for p in network.parameters.values() if p.layer == layer]
            names = layers.get(layer, layers.get(OTHER_NAMES.get(layer, "")))
            if names and len(names) < len(roles):  # BatchNormalization(scale=False) has no gamma
                roles = [r for r in roles if r not in ("gamma", "beta") or f"{layer}/{r}" in network.trainable]
            if names is None or len(names) != len(roles):
                have = "no such layer" if names is None else plural(len(names), "array")
                raise FormatError(
                    f"{path} has {have} for layer '{layer}', which needs {len(roles)} ({', '.join(roles)}). It is of "
                    f"another network: give a file of '{network.name}'."
                )
            found |= {f"{layer}/{role}": name for role, name in zip(roles, names, strict=True)}
        for name, theirs in found.items():
            shape, expected = file.entry(theirs).shape, keras_shape(network, name)
            if shape not in (expected, (1, 1, *expected)):
                raise FormatError(
                    f"{path}: '{name}' has shape {shape}, but '{network.name}' needs {expected}. It is of another "
                    f"network, or another width of this one: give a file of '{network.name}'."
                )
        arrays = file.read(found.values())
    return {
        name: in_keras_order(network, name, arrays[theirs].reshape(keras_shape(network, name))).astype(np.float32)
        for name, theirs in found.items()
    }


SECONDS_TO_CONNECT = 8
SECONDS = 300
URL = "https://storage.googleapis.com/tensorflow/keras-applications/mobilenet/mobilenet_1_0_224_tf.h5"
CONNECT = "import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1], method='HEAD'))"
SCRIPT = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
keras.applications.MobileNet(weights="imagenet")
"""
REMEDY = (
    "Give a Keras HDF5 file (--weights FILE; in Python weights=FILE), set EDGELEARN_DATA to a folder that has "
    "weights/mobilenet_1_0_224_tf.h5, or use the package's small network (--weights sample; weights='sample')."
)


def published_path() -> Path:
    """Where Keras keeps MobileNet's published weights once it has downloaded them."""
    return Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "models" / URL.rsplit("/")[-1]


def fetch_published(download: bool = True) -> Path:
    """Path of MobileNet's published weights, downloaded by Keras if they aren't in its folder yet.

    Raises DownloadError within ten seconds where there is no network, DataError when Keras is missing or may not
    download.
    """
    path = published_path()
    if path.exists():
        return path
    if not download:
        raise DataError(f"{path} is not there, and downloading is off. {REMEDY}")
    if find_spec("keras") is None:
        raise DataError(f"Downloading needs Keras: pip install 'edgelearn[tensorflow]'. Or: {REMEDY}")
    # Processes of their own can be ended whatever they wait for: looking up a name has no limit.
    for script, seconds, problem in (
        (CONNECT, SECONDS_TO_CONNECT, f"{URL} cannot be reached"),
        (SCRIPT, SECONDS, "Keras could not download its weights"),
    ):
        if reason := child.run("-c", script, URL, clock=seconds):
            raise DownloadError(f"{problem} ({reason}). {REMEDY}")
    if not path.exists():
        raise DownloadError(f"Keras did not leave its weights in {path}. {REMEDY}")
    return path
