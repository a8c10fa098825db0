"""Translates a foreign graph: one handler an operator, all problems at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, ShapeError, UnsupportedError
from edgelearn.graph import INPUT, Network

from ..model_file import ModelFile
from ..weights import Weights, not_finite
from .builder import Builder
from .graph import ForeignGraph, Operator, Quantization, TensorInfo
from .problems import Problem, unsupported
from .value import Value

Result = Value | np.ndarray | None | tuple[Value | np.ndarray | None, ...]
Handler = Callable[..., Result]  # handler(builder, operator, *inputs): inputs are values, constants, or None


@dataclass(frozen=True)
class Translation:
    """The result of translating a foreign graph.

    Arguments:
    - `graph`: the file's own operators.
    - `network`: None if there are problems.
    - `weights`: float32 arrays by "layer/role".
    - `layers`: names of the network's layers by name of the operator that they come from; operators that became part of
      another layer, or nothing, have none.
    - `outputs`: layer by name of the tensor that it holds, where it holds one.
    - `problems`: every operator that has no counterpart.
    - `notes`: oddities of the file, and how they were read, as sentences (default none).
    """

    graph: ForeignGraph
    network: Network | None
    weights: Weights
    layers: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, str]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()

    @property
    def quantization(self) -> dict[str, Quantization]:
        """Scales and zero points that the file has for layers' outputs, by layer."""
        found = {}
        for tensor, layer in self.outputs.items():
            info = self.graph.tensors.get(tensor)
            if info and info.quantization:
                found[layer] = info.quantization
        return found

    def model_file(self) -> ModelFile:
        """The network with its weights. Raises UnsupportedError, which lists all problems, if there are any."""
        if self.network is None:
            raise unsupported(f"'{self.graph.name}' ({self.graph.format})", self.problems)
        metadata = {"imported from": self.graph.format, **self.graph.metadata}
        return ModelFile(
            self.network, self.weights, preprocessing=dict(self.graph.preprocessing),
            class_names=self.graph.class_names, metadata=metadata,
        )  # fmt: skip


def translate(
    graph: ForeignGraph, handlers: Mapping[str, Handler], nearest: Mapping[str, str] | None = None
) -> Translation:
    """Translate operator by operator.

    Arguments:
    - `graph`: what to translate.
    - `handlers`: `handler(builder, operator, *inputs)` by kind; returns the output, or a tuple of outputs.
    - `nearest`: for kinds without a handler, what works instead (default nothing).

    An operator that can't be translated is a problem; those behind it are still tried, with the shapes that the file
    tells. Raises FormatError for a damaged graph.
    """
    graph.check_ends()
    layout = next((tensor.layout for tensor in graph.inputs if tensor.layout), "NHWC")
    walk = _Walk(
        graph,
        Builder(graph.name, layout),
        {n: np.asarray(a) for n, a in graph.constants.items()},
        handlers,
        nearest or {},
        [],
    )
    for tensor in graph.inputs:
        name = tensor.name if len(graph.inputs) > 1 else INPUT
        walk.found[tensor.name] = walk.once(walk.builder.input(tensor, name), tensor.name)
        if tensor.shape and len(tensor.shape) == 1:
            walk.builder.notes.append(
                f"'{tensor.name}' has the shape {tensor.shape}, without a batch: it is read as one example. Give "
                f"arrays of the shape (n, {tensor.shape[0]})."
            )
        if tensor.layout == "NCHW" and tensor.shape and len(tensor.shape) == 3:
            walk.builder.notes.append(
                f"'{tensor.name}' is a sequence, (channels, length) in the file and (length, channels) here."
            )
    for operator in graph.operators:
        walk.step(operator)
    return walk.finish()


@dataclass
class _Walk:
    graph: ForeignGraph
    builder: Builder
    found: dict[str, Value | np.ndarray | None]
    handlers: Mapping[str, Handler]
    nearest: Mapping[str, str]
    problems: list[Problem]

    def __post_init__(self) -> None:
        self.readers: dict[str, int] = {}
        for name in (*self.graph.outputs, *(name for op in self.graph.operators for name in op.inputs)):
            self.readers[name] = self.readers.get(name, 0) + 1
        self.unknown: set[str] = set()  # results whose shape isn't known, behind a problem

    def step(self, operator: Operator) -> None:
        """Translate one operator."""
        states = [name for name in operator.inputs if name in self.graph.tensors and self.graph.tensors[name].is_state]
        if states:
            reason = f"It keeps a state between calls, '{states[0]}', and recurrent state isn't read yet."
            self._problem(operator, reason, self.nearest.get(operator.kind, ""))
            return
        handler = self.handlers.get(operator.kind)
        if handler is None:
            self._problem(operator, "edgelearn has no such operator.", self.nearest.get(operator.kind, ""))
            return
        missing = [name for name in operator.inputs if name and name not in self.found and name not in self.unknown]
        if missing:
            raise FormatError(
                f"{operator.kind} '{operator.name}' reads '{missing[0]}', which the file doesn't have. It is damaged."
            )
        if any(name in self.unknown for name in operator.inputs):
            self.unknown.update(operator.outputs)
            return
        self.builder.operator = operator
        before = set(self.builder.layers)
        try:
            results = handler(self.builder, operator, *(self.found[name] if name else None for name in operator.inputs))
        except (UnsupportedError, ShapeError) as error:
            self._problem(operator, str(error), getattr(error, "nearest", ""))
            return
        except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"{operator.kind} '{operator.name}' can't be read ({type(error).__name__}: {error!s:.200}). The "
                f"file is damaged, or of a kind that isn't known: check it with its own framework."
            ) from error
        if operator.frozen:
            for layer in [layer for name, layer in self.builder.layers.items() if name not in before]:
                layer.frozen = (*layer.frozen, *(operator.frozen_roles(tuple(layer.weights))))
        results = results if isinstance(results, tuple) else (results,)
        for name, result in zip(operator.outputs, results, strict=False):
            self.found[name] = self.once(result, name)
        self.unknown.update(operator.outputs[len(results) :])

    def once(self, result: Value | np.ndarray | None, name: str) -> Value | np.ndarray | None:
        """The result as the tensor `name` holds it, which knows whether more than one operator reads it."""
        if not isinstance(result, Value):
            return None if result is None else np.asarray(result)
        if (info := self.graph.tensors.get(name)) and info.quantization:
            result = self.builder.saturated(result, name, info.quantization)
        return replace(result, sole=result.sole and self.readers.get(name, 0) <= 1)

    def finish(self) -> Translation:
        layers: dict[str, tuple[str, ...]] = {}
        network, weights = None, {}
        if not self.problems:
            missing = [name for name in self.graph.outputs if not isinstance(self.found.get(name), Value)]
            if missing:
                raise FormatError(f"The output '{missing[0]}' doesn't depend on the inputs: nothing is left to train.")
            self.builder.operator = replace(self.builder.operator, name="output", kind="output")
            try:
                layouts = {name: info.layout for name, info in self.graph.tensors.items()}
                ends = tuple(
                    self.builder.output(self.found[name], layouts.get(name) == "NCHW")  # type: ignore[arg-type]
                    for name in self.graph.outputs
                )
                network, weights = self.builder.finish(ends)
            except (UnsupportedError, ShapeError) as error:
                output = Operator("output", self.graph.outputs[0], (), ())
                self._problem(output, str(error), getattr(error, "nearest", ""))
        if network is not None:
            for name in network.nodes:
                origin = self.builder.layers[name].operator
                layers[origin] = (*layers.get(origin, ()), name)
        known = {*network.nodes, *self.builder.inputs} if network else set()
        held = {name: x.layer for name, x in self.found.items() if isinstance(x, Value) and x.layer in known}
        notes = (*self.graph.notes, *self.builder.notes, *_ranges(self.builder))
        notes += tuple(filter(None, [not_finite(weights)]))
        return Translation(self.graph, network, weights, layers, held, tuple(self.problems), notes)

    def _problem(self, operator: Operator, reason: str, nearest: str) -> None:
        """Note a problem, and go on behind it with the shapes that the file tells."""
        self.problems.append(Problem(operator.kind, operator.name, operator.attributes, reason, nearest))
        for name in operator.outputs:
            info = self.graph.tensors.get(name)
            if info is None or info.shape is None or not info.shape or None in info.shape[1:]:
                self.unknown.add(name)
                continue
            self.found[name] = self._stand_in(info)

    def _stand_in(self, info: TensorInfo) -> Value:
        """A value of the shape that the file tells, for the operators behind a problem."""
        shape: Any = info.shape
        if len(shape) == 4 and self.builder.layout == "NCHW":
            info = replace(info, layout="NCHW")
        return self.builder.input(info, "stand_in")


def _ranges(b: Builder) -> list[str]:
    """Return notes on the ranges of quantized tensors: which became clamps, which were taken as calibrated."""
    notes = []
    if b.clamped:
        notes.append(
            f"{len(b.clamped)} clamps that the file has in the ranges of its integers alone became layers, such as "
            f"'{b.clamped[0]}'."
        )
    if b.cut:
        notes.append(
            f"The ranges of {len(b.cut)} tensors, such as '{b.cut[0]}', end where values were expected to: its own "
            f"runtime cuts off what is outside, and this network doesn't."
        )
    return notes
