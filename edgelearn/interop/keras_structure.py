"""The structure of a Keras model from its JSON: layers and what they are called with, nested models taken apart.

Keras 2 and Keras 3 write calls differently; both become `Call`s. Nothing is imported and no code of the file is run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.errors import FormatError

MODELS = {"Functional", "Model", "Sequential"}
DEPTH = 16  # models in models
CALLS = 100_000  # of models: those that are called twice in models that are called twice multiply
SEVERAL, RESULTS = {"ops.Split", "ops.Unstack"}, 64  # functions with several results, and how many at most
OPERATION = ("keras.src.ops", "keras.ops")  # modules of functions, which have no weights


def _array(config: Mapping[str, Any]) -> np.ndarray:
    """Raises TypeError for a type that isn't one of numbers."""
    kind = np.dtype(config["dtype"])
    if kind.kind not in "fiub":
        raise TypeError(f"an array of {kind}")
    return np.asarray(config["value"], kind)


def _slice(config: Mapping[str, Any]) -> slice:
    ends = tuple(config.get(name) for name in ("start", "stop", "step"))
    if any(end is not None and type(end) is not int for end in ends) or ends[2] == 0:
        raise TypeError(f"a slice of {ends!r:.60}")
    return slice(*ends)


# Arguments of calls that JSON has no form for, by Keras's name of their class
PLAIN: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "__ellipsis__": lambda config: Ellipsis, "__numpy__": _array, "__slice__": _slice, "__tensor__": _array,
}  # fmt: skip


@dataclass(frozen=True)
class Slot:
    """Stands for a tensor among the arguments of a call.

    Arguments:
    - `index`: of the call's inputs.
    """

    index: int


@dataclass(frozen=True)
class Call:
    """One use of a layer.

    Arguments:
    - `kind`: name of the layer's class; "ops.Add" for a function of Keras.
    - `path`: names of the models around it, and its own.
    - `config`: its settings.
    - `inputs`: names of tensors.
    - `outputs`: names of its results.
    - `arguments`, `keywords`: as it is called, with a Slot for each tensor (default none).
    - `is_custom`: True for a class that isn't Keras's own (default False).
    """

    kind: str
    path: tuple[str, ...]
    config: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    is_custom: bool = False


@dataclass(frozen=True)
class Structure:
    """A model's calls, each after those that it reads.

    Arguments:
    - `name`: of the model.
    - `inputs`: (tensor, shape with the batch, type) of each input.
    - `outputs`: names of tensors.
    - `calls`: the uses of layers.
    """

    name: str
    inputs: tuple[tuple[str, tuple[int | None, ...], str], ...]
    outputs: tuple[str, ...]
    calls: tuple[Call, ...]


def filled(value: Any, inputs: Sequence[Any]) -> Any:
    """An argument with the call's inputs in place of its slots."""
    if isinstance(value, Slot):
        return inputs[value.index]
    return [filled(part, inputs) for part in value] if isinstance(value, list) else value


def parse(text: str, path: Path) -> Structure:
    """Read the JSON of a model's configuration. Raises FormatError naming the file."""
    try:
        record = json.loads(text)
        return _Parser(path).model(record)
    except FormatError:
        raise
    except (ArithmeticError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise FormatError(
            f"{path}: the model's configuration can't be read ({type(error).__name__}: {error!s:.200}). The file is "
            f"damaged: restore it."
        ) from None


class _Parser:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[Call] = []
        self.found: dict[str, str] = {}  # a tensor of a nested model by its name in the model around it
        self.paths: set[tuple[str, ...]] = set()  # of layers that are called
        self.made: set[str] = set()  # names of their results
        self.models = 0  # calls of models
        self.inputs: list[tuple[str, tuple[int | None, ...], str]] = []

    def model(self, record: Mapping[str, Any]) -> Structure:
        kind: str = record["class_name"]
        config: Any = record["config"]
        if kind not in MODELS and not (isinstance(config, dict) and isinstance(config.get("layers"), list)):
            raise FormatError(
                f"{self.path}: the model is of the class '{kind!s:.100}', whose code isn't in the file. Build it as a "
                f"Functional or Sequential model, or export it to TFLite or ONNX."
            )
        layers = _layers(config)
        name = str(config.get("name", "model")) if isinstance(config, dict) else "model"
        if kind == "Sequential":
            outputs = self._sequential(layers, config, (), None)
        else:
            self._layers(layers, ())
            outputs = [self._resolve((), ref) for ref in _references(config["output_layers"])]
        return Structure(name, tuple(self.inputs), tuple(outputs), tuple(self.calls))

    def _layers(self, layers: list[Any], path: tuple[str, ...], given: list[str] | None = None) -> None:
        """The layers of a functional model. `given`: tensors that its inputs stand for, in a nested one."""
        sources = iter(given or ())
        waiting = [(layer, number, node) for layer in layers for number, node in enumerate(_nodes(layer))]
        for layer in layers:
            if layer["class_name"] == "InputLayer":
                self._input(layer, path, next(sources, None) if given is not None else None)
        # Keras lists layers in an order that nodes of shared layers may break: go on with what is ready.
        while waiting:
            rest = []
            for layer, number, node in waiting:
                name = _name(layer)
                if all(self._key(path, ref) in self.found for ref in _references(node)):
                    self._call(layer, (*path, name), number, node)
                else:
                    rest.append((layer, number, node))
            if len(rest) == len(waiting):
                raise FormatError(
                    f"{self.path}: layer '{'/'.join((*path, _name(rest[0][0]))):.200}' reads what no layer makes. The "
                    f"file is damaged."
                )
            waiting = rest

    def _sequential(self, layers: list[Any], config: Any, path: tuple[str, ...], given: str | None) -> list[str]:
        """The layers of a Sequential model, each of which reads the one before."""
        tensor = given
        for layer in layers:
            name = _name(layer)
            if layer["class_name"] == "InputLayer":
                if tensor is None:
                    tensor = self._input(layer, path, None)
                continue
            if tensor is None:
                shape = layer["config"].get("batch_input_shape") or config.get("build_input_shape")
                tensor = self._declare((*path, "input"), shape, "float32")
            tensor = self._apply(layer, (*path, name), [tensor], 0)[0]
        if tensor is None:
            raise FormatError(f"{self.path}: the model has no layers.")
        return [tensor]

    def _input(self, layer: Mapping[str, Any], path: tuple[str, ...], given: str | None) -> str:
        config = layer["config"]
        key = self._key(path, (_name(layer), 0, 0))
        if given is None:
            given = self._declare(
                (*path, _name(layer)), config.get("batch_shape") or config.get("batch_input_shape"),
                config.get("dtype", "float32"),
            )  # fmt: skip
        self.found[key] = given
        return given

    def _declare(self, path: tuple[str, ...], shape: Any, dtype: Any) -> str:
        if not isinstance(shape, list) or any(not (n is None or isinstance(n, int)) for n in shape):
            raise FormatError(
                f"{self.path}: the input '{'/'.join(path):.200}' has the shape {shape!r:.100}. Build the model with an "
                f"Input, and save it again."
            )
        name = "/".join(path)
        self.inputs.append((name, tuple(shape), dtype if isinstance(dtype, str) else "float32"))
        return name

    def _call(self, layer: Any, path: tuple[str, ...], number: int, node: Any) -> None:
        inputs = [self._resolve(path[:-1], ref) for ref in _references(node)]
        outputs = self._apply(layer, path, inputs, number, node)
        for index, output in enumerate(outputs):
            self.found[self._key(path[:-1], (path[-1], number, index))] = output

    def _apply(
        self, layer: Mapping[str, Any], path: tuple[str, ...], inputs: list[str], number: int, node: Any = None
    ) -> list[str]:
        """Add a call, or those of a nested model; return the names of its results. What is called again has the same
        path."""
        kind: str = layer["class_name"]
        config: Any = layer["config"]
        if kind in MODELS:
            self.models += 1
            if len(path) > DEPTH or self.models > CALLS:
                reason = f"more than {DEPTH} models deep" if len(path) > DEPTH else f"one of more than {CALLS:,} calls"
                raise FormatError(f"{self.path}: the model '{'/'.join(path):.200}' is {reason}. Take it apart first.")
            layers, inside = _layers(config), "/".join(path)
            before = (f"{inside}|", f"{inside}/")  # of an earlier call
            self.found = {key: name for key, name in self.found.items() if not key.startswith(before)}
            if kind == "Sequential":
                return self._sequential(layers, config, path, inputs[0])
            self._layers(layers, path, inputs)
            return [self._resolve(path, ref) for ref in _references(config["output_layers"])]
        module = str(layer.get("module") or "keras")
        if module.startswith(OPERATION):
            kind = f"ops.{kind}"
        elif kind == "TFOpLambda":
            kind = f"tf.{config['function']}"
        again = path in self.paths
        self.paths.add(path)
        output = next(name for n in count(number) if (name := _numbered_call(path, n)) not in self.made)
        self.made.add(output)
        parts = RESULTS if kind in SEVERAL else 1
        outputs = (output, *(f"{output}#{n}" for n in range(1, parts)))
        arguments, keywords = _arguments(node)
        is_custom = ">" in str(layer.get("registered_name")) or not module.startswith(
            ("keras", "tensorflow", "tf_keras")
        )
        settings = {**config, "called again": True} if again else config
        self.calls.append(Call(kind, path, settings, tuple(inputs), outputs, arguments, keywords, is_custom))
        return list(outputs)

    def _key(self, path: tuple[str, ...], reference: tuple[str, int, int]) -> str:
        return f"{'/'.join(path)}|{reference[0]}|{reference[1]}|{reference[2]}"

    def _resolve(self, path: tuple[str, ...], reference: tuple[str, int, int]) -> str:
        key = self._key(path, reference)
        if key not in self.found:
            raise FormatError(f"{self.path}: '{reference[0]:.200}' has no result {reference[2]}. The file is damaged.")
        return self.found[key]


def _layers(config: Any) -> list[Any]:
    """The layers of a model; the first Keras wrote a Sequential's without anything around them. Raises TypeError for
    a layer whose class or settings are of another type."""
    layers = config if isinstance(config, list) else config["layers"]
    for place, layer in enumerate(layers):
        kind, own = layer["class_name"], layer["config"]
        if not isinstance(kind, str) or not isinstance(own, dict | list if kind in MODELS else dict):
            raise TypeError(f"layer {place} has the class {kind!r:.60} and the settings {own!r:.60}")
    return layers


def _name(layer: Mapping[str, Any]) -> str:
    name = layer.get("name") or layer["config"]["name"]
    if not isinstance(name, str) or not name:
        raise ValueError(f"a layer's name is {name!r:.60}")
    return name


def _numbered_call(path: tuple[str, ...], number: int) -> str:
    return "/".join(path) + (f":{number}" if number else "")


def _nodes(layer: Mapping[str, Any]) -> list[Any]:
    return [] if layer["class_name"] == "InputLayer" else layer["inbound_nodes"]


def _references(node: Any) -> list[tuple[str, int, int]]:
    """The tensors in a structure, in order: of Keras 3 {"class_name": "__keras_tensor__"}, of Keras 2 [name, 0, 0]."""
    return list(_walk(node))


def _walk(node: Any) -> Iterator[tuple[str, int, int]]:
    reference = _reference(node)
    if reference:
        yield reference
        if isinstance(node, list) and len(node) == 4:
            yield from _walk(node[3])
    elif isinstance(node, dict):
        for value in node.values():
            yield from _walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from _walk(value)


def _reference(node: Any) -> tuple[str, int, int] | None:
    if isinstance(node, dict) and node.get("class_name") == "__keras_tensor__":
        node = node["config"]["keras_history"]
    if (
        isinstance(node, list) and len(node) in (3, 4) and isinstance(node[0], str)
        and type(node[1]) is int and type(node[2]) is int and node[0] != "_CONSTANT_VALUE"
    ):  # fmt: skip
        return node[0], node[1], node[2]
    return None


def _arguments(node: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and keywords of a call, with Slots for tensors."""
    slots = iter(range(1 << 30))

    def replaced(value: Any) -> Any:
        if _reference(value):
            return Slot(next(slots))
        if isinstance(value, list):
            if value[:1] == ["_CONSTANT_VALUE"]:
                return value[2]
            return [replaced(part) for part in value]
        if isinstance(value, dict) and value.get("class_name") in PLAIN:
            return PLAIN[value["class_name"]](value["config"])
        if isinstance(value, dict):
            return {key: replaced(part) for key, part in value.items()}
        return value

    if isinstance(node, dict):
        return tuple(replaced(node.get("args", []))), replaced(node.get("kwargs", {}))
    found: list[Any] = []
    keywords: dict[str, Any] = {}
    for part in node or []:
        found.append(replaced(part[:3]) if _reference(part) else replaced(part))
        if isinstance(part, list) and len(part) == 4 and isinstance(part[3], dict):
            keywords |= replaced(part[3])
    return tuple(found), keywords
