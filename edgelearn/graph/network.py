"""Networks as data: a list of named ops and which of their weights are trained."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from edgelearn.errors import FormatError, PlanError, ShapeError
from edgelearn.ops import Op, Weight
from edgelearn.ops.initializers import INITIALIZERS
from edgelearn.ops.tensor import Shape

INPUT = "input"


@dataclass(frozen=True)
class Node:
    """One layer.

    Arguments:
    - `name`: unique in the network.
    - `op`: its operation.
    - `inputs`: names of the nodes it reads; `INPUT` is the network's input.
    - `shape`: of its output, without the batch.
    """

    name: str
    op: Op
    inputs: tuple[str, ...]
    shape: Shape


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


class Network:
    """A directed acyclic graph of layers with one input and one output (the last layer added).

    >>> net = Network("tiny", (8, 8, 3))
    >>> net.add("conv", Conv2D(16, 3, padding="same"))
    >>> net.add("pool", GlobalAveragePooling2D())
    >>> net.add("dense", Dense(10))

    Arguments:
    - `name`: of the network, for tables and errors.
    - `input_shape`: of an example, without the batch: (height, width, channels) or (features,).

    Raises ShapeError for a shape that isn't positive whole numbers.
    """

    def __init__(self, name: str, input_shape: Shape) -> None:
        if (
            not isinstance(input_shape, tuple | list)
            or not input_shape
            or any(not isinstance(n, int | np.integer) or n < 1 for n in input_shape)
        ):
            raise ShapeError(f"The input shape must be integers of at least 1, got {input_shape}.")
        self.name = name
        self.input_shape = tuple(int(n) for n in input_shape)
        self.nodes: dict[str, Node] = {}
        self.parameters: dict[str, Parameter] = {}
        self.trainable: set[str] = set()

    @property
    def output(self) -> Node:
        """The last layer added. Raises PlanError while there is none."""
        if not self.nodes:
            raise PlanError(f"The network '{self.name}' has no layers.")
        return next(reversed(self.nodes.values()))

    def add(self, name: str, op: Op, *inputs: str) -> str:
        """Add a layer that reads `inputs` (default: the previous layer) and return its name.

        Raises ShapeError if the name is taken, an input is unknown, or the op does not accept the shapes.
        """
        if not isinstance(name, str) or not isinstance(op, Op):
            raise ShapeError(f"A layer is a name and an op, such as add('relu', ReLU()), not {name!r}, {op!r:.60}.")
        if not inputs:
            inputs = (self.output.name if self.nodes else INPUT,)
        if name in self.nodes or name == INPUT or "/" in name:
            raise ShapeError(f"'{name}' cannot name a new layer: names are unique and contain no slash.")
        unknown = [i for i in inputs if i not in self.nodes and i != INPUT]
        if unknown:
            raise ShapeError(f"Layer '{name}' reads '{unknown[0]}', which the network does not have.")
        op, shapes = op.plain(), self.input_shapes(inputs)
        try:
            shape = op.output_shape(*shapes)
        except ShapeError as error:
            raise ShapeError(f"Layer '{name}' ({type(op).__name__}): {error}") from None
        self.nodes[name] = Node(name, op, tuple(inputs), shape)
        for role, weight in op.weights(*shapes).items():
            parameter = Parameter(name, role, weight)
            self.parameters[parameter.name] = parameter
            if weight.trainable:
                self.trainable.add(parameter.name)
        return name

    def shape_of(self, name: str) -> Shape:
        return self.input_shape if name == INPUT else self.nodes[name].shape

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

    def initialize(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Draw float32 weights from their initializers, by name; each depends on the seed and its name only."""
        return {
            name: INITIALIZERS[p.weight.initializer](
                p.weight.shape, p.weight.fan_in, np.random.default_rng([seed, *name.encode()])
            )
            for name, p in self.parameters.items()
        }

    def count(self, names: Iterable[str] | None = None) -> int:
        """Number of values in the named parameters (default: all)."""
        names = self.parameters if names is None else names
        return sum(self.parameters[name].weight.size for name in names)

    @property
    def flops(self) -> int:
        """Floating-point operations of a forward pass of one example."""
        return sum(node.op.flops(*self.input_shapes(node.inputs)) for node in self.nodes.values())

    def to_json(self) -> str:
        layers = [
            {"name": n.name, "op": type(n.op).__name__, "config": n.op.config, "inputs": list(n.inputs)}
            for n in self.nodes.values()
        ]
        record = {"name": self.name, "input_shape": self.input_shape, "layers": layers}
        return json.dumps({**record, "trainable": sorted(self.trainable)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Network:
        """Read what `to_json` wrote. Raises FormatError for other text."""
        try:
            record = json.loads(text)
            network = cls(record["name"], tuple(record["input_shape"]))
            for layer in record["layers"]:
                op = Op.registry[layer["op"]](**{k: _tuples(v) for k, v in layer["config"].items()})
                network.add(layer["name"], op, *layer["inputs"])
            network.trainable = {n for n in record["trainable"] if network.parameters[n].weight.trainable}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FormatError(f"This is not a network that edgelearn wrote: {error!r}.") from None
        return network


def _tuples(value):
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
