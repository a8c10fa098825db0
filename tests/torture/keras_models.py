"""Whole Keras models, as Keras 2 and Keras 3 write them, and changes of the JSON and the attributes in them."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from .mutations import ODD_VALUES, damage_bytes, damage_json

ROOM = 60_000  # bytes that an attribute of HDF5 holds
LAYERS = [
    ("Conv2D", {"name": "conv", "filters": 4, "kernel_size": [3, 3], "strides": [1, 1], "padding": "same",
                "data_format": "channels_last", "dilation_rate": [1, 1], "activation": "relu", "use_bias": True}),
    ("BatchNormalization", {"name": "norm", "axis": [3], "epsilon": 1e-3, "momentum": 0.99}),
    ("GlobalAveragePooling2D", {"name": "pool", "data_format": "channels_last"}),
    ("Dense", {"name": "dense", "units": 2, "activation": "softmax", "use_bias": True}),
]  # fmt: skip
SHAPES = {"conv": [(3, 3, 3, 4), (4,)], "norm": [(4,)] * 4, "dense": [(4, 2), (2,)]}
# Of the functional model: its nested model's convolution and its classifier
FUNCTIONAL = {"inner": [(3, 3, 3, 4), (4,)], "dense": [(4, 2), (2,)]}


def sequential(folder: Path) -> Path:
    """A Sequential model of Keras 2 in HDF5."""
    first = {"class_name": "InputLayer", "config": {"name": "input", "batch_input_shape": [None, 8, 8, 3]}}
    layers = [first, *({"class_name": kind, "config": config} for kind, config in LAYERS)]
    config = {"class_name": "Sequential", "config": {"name": "small", "layers": layers}}
    return write_hdf5(folder / "model.h5", config, "2.12.0", {config["name"]: SHAPES.get(config["name"], [])
                                                         for _, config in LAYERS})  # fmt: skip


def functional(folder: Path) -> Path:
    """A functional model of Keras 3 in HDF5, with a nested model and functions between the layers."""
    return write_hdf5(folder / "model.h5", structure(), "3.6.0", FUNCTIONAL)


def archive(folder: Path) -> Path:
    """The functional model as a .keras archive."""
    import h5py

    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        for name, group in (("inner/layers/conv2d", "inner"), ("dense", "dense")):
            arrays = file.create_group(f"layers/{name}/vars")
            arrays.attrs["name"] = "conv" if group == "inner" else group
            for number, shape in enumerate(FUNCTIONAL[group]):
                arrays.create_dataset(str(number), data=np.full(shape, 0.5, np.float32))
        file.create_group("layers/inner/vars").attrs["name"] = "inner"
    with zipfile.ZipFile(folder / "model.keras", "w") as members:
        members.writestr("metadata.json", json.dumps({"keras_version": "3.6.0", "date_saved": "2026-01-01"}))
        members.writestr("config.json", json.dumps(structure()))
        members.writestr("model.weights.h5", image.getvalue())
    return folder / "model.keras"


def write_hdf5(path: Path, config: dict[str, Any], version: str, shapes: dict[str, list[tuple[int, ...]]]) -> Path:
    import h5py

    with h5py.File(path, "w") as file:
        file.attrs["model_config"], file.attrs["keras_version"] = json.dumps(config), version
        file.attrs["training_config"], file.attrs["backend"] = json.dumps({"loss": "mse"}), "tensorflow"
        weights = file.create_group("model_weights")
        weights.attrs["layer_names"] = np.array(list(shapes), "S")
        for layer, own in shapes.items():
            group = weights.create_group(layer)
            within = "inner/conv" if layer == "inner" else layer
            names = [f"{within}/{number}" for number in range(len(own))]
            group.attrs["weight_names"] = np.array(names, "S") if names else np.array([], "S1")
            for name, shape in zip(names, own, strict=True):
                group.create_dataset(name, data=np.full(shape, 0.5, np.float32))
    return path


def structure() -> dict[str, Any]:
    def tensor(name: str, *shape: int) -> dict[str, Any]:
        history = {"shape": [None, *shape], "dtype": "float32", "keras_history": [name, 0, 0]}
        return {"class_name": "__keras_tensor__", "config": history}

    def layer(kind: str, name: str, config: dict[str, Any], *args: Any, module: str = "keras.layers", **kwargs: Any):
        policy = {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}}
        nodes = [{"args": list(args), "kwargs": kwargs}] if args else []
        settings = {"name": name, "trainable": True, "dtype": policy, **config}
        return {"module": module, "class_name": kind, "config": settings, "registered_name": None,
                "build_config": {"input_shape": [None, 8, 8, 3]}, "name": name, "inbound_nodes": nodes}  # fmt: skip

    def source(name: str) -> dict[str, Any]:
        return layer("InputLayer", name, {"batch_shape": [None, 8, 8, 3], "dtype": "float32", "sparse": False})

    relu = {"module": "builtins", "class_name": "function", "config": "relu", "registered_name": "relu"}
    same = {"kernel_size": [3, 3], "strides": [1, 1], "padding": "same", "data_format": "channels_last"}
    convolution = layer("Conv2D", "conv", {"filters": 4, **same, "dilation_rate": [1, 1], "groups": 1,
                                           "activation": relu, "use_bias": True})  # fmt: skip
    inner = {"name": "inner", "trainable": True, "build_input_shape": [None, 8, 8, 3],
             "layers": [source("first"), convolution]}  # fmt: skip
    layers = [
        source("image"),
        layer("Sequential", "inner", inner, tensor("image", 8, 8, 3), module="keras"),
        layer("Multiply", "half", {}, tensor("inner", 8, 8, 4), 0.5, module="keras.src.ops.numpy"),
        layer("Add", "sum", {}, [tensor("inner", 8, 8, 4), tensor("half", 8, 8, 4)]),
        layer("Mean", "mean", {"axis": [1, 2], "keepdims": False}, tensor("sum", 8, 8, 4),
              module="keras.src.ops.numpy", axis=[1, 2]),
        layer("Dropout", "drop", {"rate": 0.5, "seed": None, "noise_shape": None}, tensor("mean", 4), training=False),
        layer("Dense", "dense", {"units": 2, "activation": "softmax", "use_bias": True}, tensor("drop", 4)),
    ]  # fmt: skip
    config = {"name": "whole", "trainable": True, "layers": layers, "input_layers": [["image", 0, 0]],
              "output_layers": [["dense", 0, 0]]}  # fmt: skip
    return {"module": "keras.src.models.functional", "class_name": "Functional", "config": config,
            "registered_name": "Functional", "compile_config": {"loss": "mse"}}  # fmt: skip


def edit_json(data: bytes, rng: Random) -> bytes:
    """Edit one to four places of a JSON document, chosen among all of its values, whatever their depth."""
    if rng.random() < 0.02:
        return damage_json(data, rng)
    root = [json.loads(data)]
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = list(_places(root))
        parent, key = rng.choice(places)
        change = rng.choice(_EDITS)
        if change is _remove and parent is root:
            continue
        change(parent, key, places, rng)
    return json.dumps(root[0]).encode()


def _places(root: list[Any]) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value, the root's included; no more than 5,000."""
    waiting, found = [root], 0
    while waiting and found < 5000:
        container = waiting.pop()
        for key in container if isinstance(container, dict) else range(len(container)):
            yield container, key
            found += 1
            if isinstance(container[key], dict | list):
                waiting.append(container[key])


def _swap_type(parent: Any, key: Any, places: list[Any], rng: Random) -> None:
    """A value of the same meaning and another type."""
    value = parent[key]
    if isinstance(value, dict):
        others: list[Any] = [list(value), list(value.values()), json.dumps(value), len(value)]
    elif isinstance(value, list):
        others = [dict(enumerate(value)), json.dumps(value), len(value), value[0] if value else None]
    elif isinstance(value, str):
        others = [[value], list(value), {value: value}, len(value), value[::-1]]
    else:
        others = [str(value), [value], {"value": value}, value is None, float("nan")]
    parent[key] = rng.choice(others)


def _remove(parent: Any, key: Any, places: list[Any], rng: Random) -> None:
    del parent[key]


def _replace(parent: Any, key: Any, places: list[Any], rng: Random) -> None:
    parent[key] = rng.choice(ODD_VALUES)


def _nest(parent: Any, key: Any, places: list[Any], rng: Random) -> None:
    for _ in range(rng.choice((1, 2, 20, 400))):
        parent[key] = [parent[key]] if rng.random() < 0.5 else {"config": parent[key], "class_name": "Dense"}


def _copy(parent: Any, key: Any, places: list[Any], rng: Random) -> None:
    """The value of another place; of one with the same key, if there is one."""
    alike = [(other, name) for other, name in places if name == key and other is not parent]
    other, name = rng.choice(alike if alike and rng.random() < 0.7 else places)
    parent[key] = json.loads(json.dumps(other[name]))


def _repeat(parent: Any, key: Any, places: list[Any], rng: Random) -> None:
    if isinstance(parent, list):
        parent.insert(key, parent[key])
    else:
        parent[f"{key}_1"] = parent[key]


_EDITS = (_swap_type, _swap_type, _remove, _replace, _nest, _copy, _repeat)


def damage_attributes(data: bytes, rng: Random) -> bytes:
    """Change one attribute of an HDF5 file: the JSON in it, the type that it has, or its names."""
    import h5py

    content = io.BytesIO(data)
    with h5py.File(content, "r+") as file:
        objects: list[Any] = [file]
        file.visititems(lambda _, each: objects.append(each))
        places = [(each.attrs, name) for each in objects for name in each.attrs]
        attributes, name = rng.choice([place for place in places if place[1] == "model_config"] or places
                                      if rng.random() < 0.6 else places)  # fmt: skip
        value = attributes[name]
        text = value.decode() if isinstance(value, bytes) else value
        if isinstance(text, str) and text.startswith("{") and rng.random() < 0.9:
            new: Any = edit_json(text.encode(), rng).decode("utf-8", "replace").replace("\0", "")
        elif isinstance(value, np.ndarray) and value.dtype.kind in "SO" and rng.random() < 0.6:
            names = [*value.tolist()]
            names = [
                rng.choice([b"x", b"../x", b"", b"\xff", *names]) for _ in range(rng.choice((0, 1, len(names) + 1)))
            ]
            new = np.array(names, "S64") if names else h5py.Empty("S1")
        else:
            new = rng.choice(_odd_attributes(text))
        if np.asarray(new).nbytes < ROOM:
            attributes[name] = new
    return content.getvalue()


def _odd_attributes(text: Any) -> list[Any]:
    import h5py

    return [3, -1.5, float("nan"), True, np.arange(5), np.zeros((2, 3)), np.array([b"a", b"b"], "S1"), b"\xff\xfe",
            h5py.Empty("f"), h5py.Empty("S1"), "", str(text) * 2, f"[{text}]",
            np.array([[str(text)[:9].encode()]], "S9"), np.array(["a", "b"], h5py.string_dtype())]  # fmt: skip


def damage_archive(data: bytes, rng: Random) -> bytes:
    """Damage one member of a zip archive, whose checksums fit again: the values of JSON, attributes of HDF5, bytes."""
    content, out = io.BytesIO(data), io.BytesIO()
    with zipfile.ZipFile(content) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        names = old.namelist()
        chosen = rng.choice(names)
        for name in names:
            member = old.read(name)
            if name == chosen:
                damage: Callable[[bytes, Random], bytes] = damage_bytes
                if rng.random() < 0.8:
                    damage = edit_json if name.endswith(".json") else damage
                    damage = damage_attributes if name.endswith(".h5") else damage
                member = damage(member, rng)
            new.writestr(name, member)
    return out.getvalue()
