"""Networks as data: a list of named ops and which of their weights are trained."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from inspect import isclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypedDict, Union, get_args, get_origin, get_type_hints

import numpy as np
from psutil import virtual_memory

import edgelearn.ops as ops
from edgelearn import records
from edgelearn.display import Displayed, megabytes, plural
from edgelearn.errors import FormatError, PlanError, ShapeError
from edgelearn.ops import Op, Weight
from edgelearn.ops.block_formats import encode
from edgelearn.ops.initializers import INITIALIZERS
from edgelearn.ops.tensor import Shape

INPUT = "input"
VERSION = 2  # of the graph model, for networks with shared layers; others are of version 1


@dataclass(frozen=True)
class Node:
    """One layer.

    Arguments:
    - `name`: unique in the network.
    - `op`: its operation.
    - `inputs`: names of the nodes or of the network's inputs that it reads.
    - `shape`: of its output, without the batch.
    - `shares`: name of the layer whose weights it uses, too (default "": it has its own, if any).
    """

    name: str
    op: Op
    inputs: tuple[str, ...]
    shape: Shape
    shares: str = ""

    @property
    def owner(self) -> str:
        """Name of the layer that its weights are called by."""
        return self.shares or self.name


@dataclass(frozen=True)
class Parameter:
    """One weight of one layer; its name is "layer/role".

    Arguments:
    - `layer`: name of the layer.
    - `role`: the op's name for it, such as "kernel".
    - `weight`: shape and initializer.
    """

    layer: str
    role: str
    weight: Weight

    @property
    def name(self) -> str:
        return f"{self.layer}/{self.role}"


class SharedRecord(TypedDict, total=False):
    """Optional entry of a layer."""

    shares: str


class LayerRecord(SharedRecord):
    """A layer in the graph model."""

    name: str
    op: str
    config: dict[str, Any]
    inputs: list[str]


class OptionalRecord(TypedDict, total=False):
    """Optional entries of the graph model. One of `input_shape` and `inputs` is required."""

    version: int
    input_shape: list[int]
    inputs: dict[str, list[int]]
    outputs: list[str]


class NetworkRecord(OptionalRecord):
    """The graph model: a network in JSON."""

    name: str
    layers: list[LayerRecord]
    trainable: list[str]


class Network(Displayed):
    """A directed acyclic graph of layers. It has one input, "input", and one output, the last layer added, unless it is
    given several.

    >>> net = Network("tiny", (8, 8, 3))
    >>> net.add("conv", Conv2D(16, 3, padding="same"))
    >>> net.add("pool", GlobalAveragePooling2D())
    >>> net.add("dense", Dense(10))

    >>> net = Network("two", {"picture": (8, 8, 3), "place": (4,)})
    >>> net.add("pool", GlobalAveragePooling2D(), "picture")
    >>> net.add("both", Concatenate(), "pool", "place")
    >>> net.add("kind", Dense(10), "both")
    >>> net.add("age", Dense(1), "both")
    >>> net.outputs = ("kind", "age")

    Arguments:
    - `name`: of the network, for tables and errors.
    - `input_shape`: of an example, without the batch: (height, width, channels) or (features,); for several inputs, a
      dictionary of their names and shapes.

    Raises ShapeError for a shape that isn't positive whole numbers, or for a name with a slash.
    """

    def __init__(self, name: str, input_shape: Shape | Mapping[str, Shape]) -> None:
        self.name = name
        inputs = input_shape if isinstance(input_shape, Mapping) else {INPUT: input_shape}
        if not inputs:
            raise ShapeError("A network has at least one input.")
        self.inputs: dict[str, Shape] = {key: _checked(key, shape) for key, shape in inputs.items()}
        self.nodes: dict[str, Node] = {}
        self.parameters: dict[str, Parameter] = {}
        self.trainable: set[str] = set()
        self._outputs: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        values = sum(parameter.weight.size for parameter in self.parameters.values())
        return f"'{self.name}': {plural(len(self.nodes), 'layer')}, {plural(values, 'parameter')}"

    @property
    def input_shape(self) -> Shape:
        """Shape of an example of the only input. Raises PlanError if there are several."""
        if len(self.inputs) > 1:
            raise PlanError(
                f"This needs a network with one input, but '{self.name}' has {', '.join(self.inputs)}. Their shapes "
                f"are network.inputs."
            )
        return next(iter(self.inputs.values()))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the layers whose outputs the network gives (default: the last layer added). Assign others in their
        order. Raises PlanError for unknown layers, for a layer named twice, and while there is no layer."""
        return self._outputs or (self._last.name,)

    @outputs.setter
    def outputs(self, names: str | Iterable[str]) -> None:
        outputs = (names,) if isinstance(names, str) else tuple(names)
        unknown = [name for name in outputs if name not in self.nodes]
        if unknown or not outputs or len(set(outputs)) < len(outputs):
            raise PlanError(
                f"outputs are different layers of '{self.name}', got {outputs}. It has: {', '.join(self.nodes)}."
            )
        self._outputs = outputs

    def take_outputs(self, other: Network, renamed: Mapping[str, str] | None = None) -> None:
        """Assign the outputs that were assigned to `other`, if any. `renamed`: names of its layers here."""
        if other._outputs:
            self.outputs = [(renamed or {}).get(name, name) for name in other._outputs]

    @property
    def output(self) -> Node:
        """The only output. Raises PlanError if there are several, or while there is no layer."""
        first, *others = self.outputs
        if others:
            raise PlanError(
                f"This needs a network with one output, but '{self.name}' has {', '.join(self.outputs)}: choose one, "
                f"such as network.outputs = ('{first}',)."
            )
        return self.nodes[first]

    @property
    def _last(self) -> Node:
        if not self.nodes:
            raise PlanError(f"The network '{self.name}' has no layers.")
        return next(reversed(self.nodes.values()))

    def add(self, name: str, op: Op | None = None, *inputs: str, shares: str = "") -> str:
        """Add a layer that reads `inputs` (default: the previous layer) and return its name. `shares`: see `share`.

        Raises ShapeError if the name is taken, an input is unknown, or the op does not accept the shapes.
        """
        if not isinstance(name, str) or not isinstance(op, Op):
            given = next((one for one in (name, op) if isinstance(one, Op) or isclass(one)), None)
            kind = "ReLU" if given is None else (given if isclass(given) else type(given)).__name__
            raise ShapeError(
                f"A layer is a name and an op, such as add('{kind.lower()}', {kind}(…)), not {name!r:.60}, {op!r:.60}."
            )
        if odd := [each for each in inputs if not isinstance(each, str)]:
            raise ShapeError(f"Layer '{name}' reads layers or inputs by their names, not {odd[0]!r:.60}.")
        if not inputs:
            if not self.nodes and len(self.inputs) > 1:
                raise ShapeError(f"Layer '{name}' is the first: say which input it reads, of {', '.join(self.inputs)}.")
            inputs = (self._last.name if self.nodes else next(iter(self.inputs)),)
        if name in self.nodes or name in self.inputs or "/" in name:
            raise ShapeError(f"'{name}' cannot name a new layer: names are unique and contain no slash.")
        unknown = [i for i in inputs if i not in self.nodes and i not in self.inputs]
        if unknown:
            raise ShapeError(f"Layer '{name}' reads '{unknown[0]}', which the network does not have.")
        op, shapes = op.plain(), self.input_shapes(inputs)
        try:
            shape = op.output_shape(*shapes)
        except ShapeError as error:
            raise ShapeError(f"Layer '{name}' ({type(op).__name__}): {error}") from None
        if shares:
            self._check_shared(name, shares, op.weights(*shapes))
        self.nodes[name] = Node(name, op, tuple(inputs), shape, shares)
        for role, weight in op.weights(*shapes).items() if not shares else ():
            parameter = Parameter(name, role, weight)
            self.parameters[parameter.name] = parameter
            if weight.trainable:
                self.trainable.add(parameter.name)
        return name

    def _check_shared(self, name: str, owner: str, weights: Mapping[str, Weight]) -> None:
        """Raises ShapeError unless the layer `owner` has just these weights of its own."""
        own = {p.role: p.weight.shape for p in self.parameters.values() if p.layer == owner}
        wanted = {role: weight.shape for role, weight in weights.items()}
        if own != wanted or not own:
            raise ShapeError(
                f"Layer '{name}' shares the weights of '{owner}', which {own or 'has none of its own'}, but for its "
                f"input it has {wanted or 'none'}."
            )

    def share(self, name: str, layer: str, *inputs: str) -> str:
        """Add a layer that computes what `layer` does, by the same weights, from other inputs (default: the previous
        layer), and return its name. There is one set of weights, called by `layer`; the gradients of all its uses add
        up.

        Raises ShapeError as `add`, and if there is no such layer or its weights don't fit the inputs.
        """
        if layer not in self.nodes:
            raise ShapeError(
                f"'{layer}' is no layer whose weights could be shared. There are: {', '.join(self.nodes)}."
            )
        node = self.nodes[layer]
        return self.add(name, node.op, *inputs, shares=node.owner if self._has_weights(node) else "")

    def repeat(self, output: str, prefix: str, inputs: Mapping[str, str]) -> str:
        """Add again, with the same weights, all layers that lead from `inputs` to the layer `output`, as the second
        tower of a Siamese network, and return the name of the last.

        >>> net.repeat("embedding", "right_", {"left": "right"})

        Arguments:
        - `output`: the layer that the tower ends in.
        - `prefix`: begins the names of the new layers.
        - `inputs`: for each layer or input that the tower reads, the one to read instead.

        Raises ShapeError as `share`.
        """
        renamed, needed = dict(inputs), set[str]()
        waiting = [output]
        while waiting:
            name = waiting.pop()
            if name in self.nodes and name not in needed and name not in inputs:
                needed.add(name)
                waiting += self.nodes[name].inputs
        for node in [node for node in self.nodes.values() if node.name in needed]:
            reads = (renamed.get(name, name) for name in node.inputs)
            renamed[node.name] = self.share(f"{prefix}{node.name}", node.name, *reads)
        return renamed[output]

    def add_like(self, node: Node, *inputs: str) -> str:
        """Add a layer of another network, of the same name, and with shared weights if it has those there and their
        layer is here, too."""
        return self.add(node.name, node.op, *inputs, shares=node.shares if node.shares in self.nodes else "")

    def weights_of(self, node: Node) -> list[str]:
        """Names of the parameters that a layer uses."""
        return [name for name, parameter in self.parameters.items() if parameter.layer == node.owner]

    def _has_weights(self, node: Node) -> bool:
        return bool(node.op.weights(*self.input_shapes(node.inputs)))

    def shape_of(self, name: str) -> Shape:
        return self.inputs[name] if name in self.inputs else self.nodes[name].shape

    def input_shapes(self, inputs: Iterable[str]) -> list[Shape]:
        return [self.shape_of(i) for i in inputs]

    def consumers(self, name: str) -> list[Node]:
        return [node for node in self.nodes.values() if name in node.inputs]

    def match(self, *patterns: str) -> list[str]:
        """Names of the parameters that match any pattern ("conv_pw_13", "conv_pw_*/kernel", "*/gamma"); a pattern
        without a slash matches layers. Raises PlanError for a pattern that matches nothing."""
        matches: list[str] = []
        for pattern in patterns:
            full = pattern if "/" in pattern else f"{pattern}/*"
            names = [name for name in self.parameters if fnmatchcase(name, full)]
            if not names:
                layers = ", ".join(dict.fromkeys(p.layer for p in self.parameters.values()))
                raise PlanError(f"No parameter matches '{pattern}'. Layers with parameters: {layers}.")
            matches += names
        return list(dict.fromkeys(matches))

    def freeze(self, *patterns: str) -> Network:
        """Stop training the parameters that match (default: all). Returns the network."""
        self.trainable -= set(self.match(*patterns or ("*",)))
        return self

    def unfreeze(self, *patterns: str) -> Network:
        """Train the parameters that match (default: all), except BatchNorm's moving statistics. Returns the network."""
        names = self.match(*patterns or ("*",))
        self.trainable |= {name for name in names if self.parameters[name].weight.trainable}
        return self

    def initialize(self, seed: int = 0, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Draw weights from their initializers, by name; each depends on the seed and its name only. `names`: of those
        to draw (default: all).

        Raises PlanError before anything is drawn if the machine hasn't the memory for them.
        """
        drawn_ones = {name: self.parameters[name] for name in (self.parameters if names is None else names)}
        self._require_memory(drawn_ones)
        found = {}
        for name, p in drawn_ones.items():
            draw, rng = INITIALIZERS[p.weight.initializer], np.random.default_rng([seed, *name.encode()])
            drawn = draw(p.weight.shape, p.weight.fan_in, rng)
            found[name] = encode(drawn, p.weight.format) if p.weight.format else drawn
        return found

    def _require_memory(self, drawn: Mapping[str, Parameter]) -> None:
        needed, free = sum(parameter.weight.nbytes for parameter in drawn.values()), virtual_memory().available
        if needed > free:
            largest = max(self.parameters.values(), key=lambda parameter: parameter.weight.size)
            raise PlanError(
                f"'{self.name}' has {self.count():,} weights, which take {megabytes(needed)}; {megabytes(free)} of "
                f"this machine's memory are free. The largest is '{largest.name}' of shape {largest.weight.shape}: use "
                f"fewer channels or units."
            )

    def count(self, names: Iterable[str] | None = None) -> int:
        """Number of values in the named parameters (default: all)."""
        names = self.parameters if names is None else names
        return sum(self.parameters[name].weight.size for name in names)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(parameter.weight.nbytes for parameter in self.parameters.values())

    @property
    def flops(self) -> int:
        """Floating-point operations of a forward pass of one example."""
        return sum(node.op.flops(*self.input_shapes(node.inputs)) for node in self.nodes.values())

    def copy(self) -> Network:
        """Another network of the same layers, to freeze, unfreeze and extend by itself."""
        copy = Network(self.name, self.inputs)
        copy.nodes, copy.parameters, copy.trainable = dict(self.nodes), dict(self.parameters), set(self.trainable)
        copy._outputs = self._outputs
        return copy

    def to_json(self) -> str:
        """Return the graph model, the network's text form: see docs/guides/graph-model.md."""
        layers = [
            {"name": n.name, "op": type(n.op).__name__, "config": n.op.config, "inputs": list(n.inputs)}
            | ({"shares": n.shares} if n.shares else {})
            for n in self.nodes.values()
        ]
        plain = list(self.inputs) == [INPUT]
        inputs = {"input_shape": self.input_shape} if plain else {"inputs": self.inputs}
        outputs = {"outputs": self._outputs} if self._outputs else {}
        ends = {**outputs, "trainable": sorted(self.trainable)}
        version = VERSION if any(n.shares for n in self.nodes.values()) else 1
        return json.dumps({"version": version, "name": self.name, **inputs, "layers": layers, **ends}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Network:
        """Read what `to_json` wrote. Raises FormatError for other text, and for a newer version."""
        try:
            record = records.parse(text, NetworkRecord)
            if (version := record.get("version", 1)) not in range(1, VERSION + 1):
                raise ValueError(f"version {version}, and this edgelearn reads up to {VERSION}: update edgelearn")
            inputs = record.get("inputs") or {INPUT: record.get("input_shape", [])}
            network = cls(record["name"], {name: tuple(shape) for name, shape in inputs.items()})
            for layer in record["layers"]:
                kind, settings = Op.registry[layer["op"]], layer["config"]
                records.convert(settings, kind)  # checks types; it would make floats of ints
                op = kind(**{name: _tuples(value) for name, value in settings.items()})
                network.add(layer["name"], op, *layer["inputs"], shares=layer.get("shares", ""))
            network.trainable = {n for n in record["trainable"] if network.parameters[n].weight.trainable}
            if "outputs" in record:
                network.outputs = tuple(record["outputs"])
        except (PlanError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise FormatError(f"This is not a network that edgelearn wrote: {error!r}.") from None
        return network


def _checked(name: str, shape: Shape) -> Shape:
    """The shape of an input as Python numbers."""
    if "/" in name:
        raise ShapeError(f"'{name}' cannot name an input: names contain no slash.")
    if (
        not isinstance(shape, tuple | list)
        or not shape
        or any(not isinstance(n, int | np.integer) or n < 1 for n in shape)
    ):
        raise ShapeError(f"The shape of '{name}' must be integers of at least 1, got {shape}.")
    return tuple(int(n) for n in shape)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


FILE = Path(__file__).parent / "network.schema.json"
TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", NoneType: "null"}
NAME = {"type": "string", "pattern": "^[^/]*$"}
SHAPE = {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1}


def network_schema() -> dict[str, Any]:
    """Return the schema. Ops that edgelearn doesn't have, such as your own, may have any settings."""
    known = sorted(name for name, op in Op.registry.items() if getattr(ops, name, None) is op)
    layer = {
        "type": "object",
        "required": ["name", "op", "config", "inputs"],
        "properties": {
            "name": {**NAME, "description": "Unique in the network."},
            "op": {"type": "string", "description": "Name of the operation."},
            "config": {"type": "object", "description": "Its settings."},
            "inputs": {
                "type": "array", "items": NAME, "minItems": 1,
                "description": "Names of earlier layers or of the network's inputs.",
            },
            "shares": {**NAME, "description": "Name of the layer whose weights it uses, since version 2."},
        },
        "additionalProperties": False,
        "allOf": [
            {"if": {"properties": {"op": {"const": name}}}, "then": {"properties": {"config": _config(name)}}}
            for name in known
        ],
    }  # fmt: skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "edgelearn graph model",
        "description": "A network: layers in the order they run, without weights.",
        "type": "object",
        "required": ["version", "name", "layers", "trainable"],
        "oneOf": [{"required": ["input_shape"]}, {"required": ["inputs"]}],
        "properties": {
            "version": {"enum": list(range(1, VERSION + 1))},
            "name": {"type": "string"},
            "input_shape": {**SHAPE, "description": "Of an example, channels last; of the only input, 'input'."},
            "inputs": {"type": "object", "additionalProperties": SHAPE, "propertyNames": NAME, "minProperties": 1},
            "layers": {"type": "array", "items": layer},
            "outputs": {
                "type": "array", "items": NAME, "minItems": 1, "uniqueItems": True,
                "description": "Default: the last layer.",
            },
            "trainable": {
                "type": "array", "items": {"type": "string", "pattern": "^[^/]*/[^/]+$"},
                "description": "Names of the trained parameters, layer/role.",
            },
        },
        "additionalProperties": False,
    }  # fmt: skip


def _config(name: str) -> dict[str, Any]:
    op = Op.registry[name]
    hints = get_type_hints(op)
    return {
        "properties": {each.name: _type(hints[each.name]) for each in fields(op)},
        "required": [each.name for each in fields(op)],
        "additionalProperties": False,
    }


def _type(hint: Any) -> dict[str, Any]:
    if hint in TYPES:
        return {"type": TYPES[hint]}
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return {"anyOf": [_type(part) for part in parts]}
    if kind is tuple and parts[1:] == (...,):
        return {"type": "array", "items": _type(parts[0])}
    if kind is tuple:
        sizes = {"minItems": len(parts), "maxItems": len(parts)}
        return {"type": "array", "prefixItems": [_type(part) for part in parts], **sizes}
    return {}
