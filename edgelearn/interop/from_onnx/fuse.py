"""Patterns of operators that are one operator: GELU as exporters before opset 20 spell it, with Erf."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import isclose, sqrt

import numpy as np

from ..importing import ForeignGraph, Operator


def fuse_gelu(graph: ForeignGraph) -> ForeignGraph:
    """Return the graph with x * 0.5 * (1 + erf(x / sqrt(2))), multiplied in any order, as Gelu."""
    if all(operator.kind != "Erf" for operator in graph.operators):
        return graph
    pattern = _Pattern(graph)
    found = [gelu for operator in graph.operators if operator.kind == "Erf" and (gelu := pattern.gelu(operator))]
    replaced = {gelu.outputs[0]: gelu for gelu, _ in found}
    gone = {name for _, inner in found for name in inner}
    operators = [
        replaced.get(operator.outputs[0], operator)
        for operator in graph.operators
        if operator.outputs[:1] and operator.outputs[0] not in gone
    ]
    return replace(graph, operators=tuple(operators))


class _Pattern:
    """Operators by the tensors that they make and read."""

    def __init__(self, graph: ForeignGraph) -> None:
        self.graph = graph
        self.makers = {name: operator for operator in graph.operators for name in operator.outputs}
        self.reads = Counter(name for operator in graph.operators for name in operator.inputs) + Counter(graph.outputs)
        self.readers = {name: operator for operator in graph.operators for name in operator.inputs}

    def gelu(self, erf: Operator) -> tuple[Operator, tuple[str, ...]] | None:
        """The operator that the pattern around `erf` is, and the tensors that are gone; None if it isn't one."""
        x = self._scaled(erf.inputs[0], sqrt(0.5))
        plus = self._only_reader(erf.outputs[0])
        if x is None or plus is None or plus.kind != "Add" or self._number(plus) != 1:
            return None
        inner, product, half = [erf.outputs[0]], plus.outputs[0], False
        remaining = {x}
        while remaining or not half:
            times = self._only_reader(product)
            if times is None or times.kind not in ("Mul", "Div"):
                return None
            inner.append(product)
            number = self._number(times)
            other = next((name for name in times.inputs if name != product), product)
            if number is not None and not half and isclose(number, 0.5 if times.kind == "Mul" else 2):
                half = True
            elif times.kind == "Mul" and other in remaining:
                remaining.clear()
            elif times.kind == "Mul" and remaining and not half and self._scaled(other, 0.5) in remaining:
                remaining.clear()
                half = True
            else:
                return None
            product = times.outputs[0]
        return Operator("Gelu", erf.name, (x,), (product,), {}, erf.version), tuple(inner)

    def _scaled(self, tensor: str, factor: float) -> str | None:
        """The tensor that `tensor` is `factor` times of, None if there is none."""
        maker = self.makers.get(tensor)
        number = None if maker is None else self._number(maker)
        if maker is None or number is None or maker.kind not in ("Mul", "Div"):
            return None
        is_it = isclose(number, factor if maker.kind == "Mul" else 1 / factor, rel_tol=1e-4)
        return next((name for name in maker.inputs if self._constant(name) is None), None) if is_it else None

    def _only_reader(self, tensor: str) -> Operator | None:
        return self.readers[tensor] if self.reads[tensor] == 1 and tensor in self.readers else None

    def _number(self, operator: Operator) -> float | None:
        """The constant that it adds or multiplies by, or divides by."""
        names = operator.inputs[1:] if operator.kind == "Div" else operator.inputs
        numbers = [number for name in names if (number := self._constant(name)) is not None]
        return numbers[0] if len(numbers) == 1 else None

    def _constant(self, name: str) -> float | None:
        array = self.graph.constants.get(name)
        maker = self.makers.get(name)
        if array is None and maker is not None and maker.kind == "Constant":
            array = maker.attributes.get("value", maker.attributes.get("value_float"))
        found = None if array is None else np.asarray(array)
        return float(found.reshape(())) if found is not None and found.size == 1 else None
