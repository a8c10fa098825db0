"""Dilated convolutions as TensorFlow spells them: SpaceToBatchND, a convolution, BatchToSpaceND."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .graph import ForeignGraph, Operator

Pair = tuple[int, int]
Sides = tuple[Pair, Pair]
Dilated = Callable[[Operator, Pair, Sides], Mapping[str, Any] | None]  # (convolution, dilation, padding): attributes
BETWEEN = {
    "add", "addv2", "biasadd", "relu", "relu6", "mul", "expanddims", "squeeze", "fusedbatchnorm", "fusedbatchnormv3",
    "identity", "logistic", "tanh", "sigmoid",
}  # fmt: skip


def fuse_dilated(graph: ForeignGraph, convolutions: Mapping[str, Dilated]) -> ForeignGraph:
    """Return the graph with such convolutions as one operator that has a dilation and a padding.

    Arguments:
    - `graph`: of TFLite or TensorFlow.
    - `convolutions`: by kind, a function that returns the attributes of a convolution with strides 1 and no padding of
      its own once it has this dilation and padding; None if it isn't one.

    Operators that belong to no such convolution stay, and are reported when they are translated.
    """
    if all(_plain(operator.kind) != "spacetobatchnd" for operator in graph.operators):
        return graph
    reads = Counter(name for operator in graph.operators for name in operator.inputs) + Counter(graph.outputs)
    readers = {name: operator for operator in graph.operators for name in operator.inputs}
    changed: dict[str, Operator | None] = {}  # by an operator's first output; None: it is left out
    for begin in graph.operators:
        if _plain(begin.kind) != "spacetobatchnd":
            continue
        chain = [begin]
        while _plain(chain[-1].kind) != "batchtospacend":
            output = chain[-1].outputs[0]
            reader = readers.get(output)
            if reader is None or reads[output] != 1 or not _continues(reader, convolutions):
                break
            chain.append(reader)
        fused = _fused(graph, chain, convolutions)
        for operator, new in zip(chain, fused, strict=False):
            changed[operator.outputs[0]] = new
    kept = (changed.get(o.outputs[0], o) if o.outputs else o for o in graph.operators)
    return replace(graph, operators=tuple(o for o in kept if o is not None))


def _continues(operator: Operator, convolutions: Mapping[str, Dilated]) -> bool:
    plain = _plain(operator.kind)
    return operator.kind in convolutions or plain in BETWEEN or plain == "batchtospacend"


def _fused(graph: ForeignGraph, chain: list[Operator], convolutions: Mapping[str, Dilated]) -> list[Operator | None]:
    """Return the operators that replace those of a chain (None: left out); none if it isn't a dilated convolution."""
    places = [place for place, operator in enumerate(chain) if operator.kind in convolutions]
    if _plain(chain[-1].kind) != "batchtospacend" or len(places) != 1:
        return []
    begin, end, (place,) = chain[0], chain[-1], places
    found = [graph.constants.get(name) for name in (*begin.inputs[1:], *end.inputs[1:])]
    if len(found) != 4 or any(array is None for array in found):
        return []
    block, pads, again, crops = (np.asarray(array) for array in found)
    padding = np.reshape(pads, (-1, 2)) - np.reshape(crops, (-1, 2)) if pads.shape == crops.shape else pads
    if block.tolist() != again.tolist() or block.size not in (1, 2) or padding.shape != (block.size, 2):
        return []
    if padding.min() < 0 or block.min() < 1:
        return []
    numbers = [1, *block.tolist()][-2:], [[0, 0], *padding.tolist()][-2:]  # a sequence is an image of height 1
    dilation, sides = tuple(map(int, numbers[0])), tuple((int(before), int(after)) for before, after in numbers[1])
    conv = chain[place]
    attributes = convolutions[conv.kind](conv, (dilation[0], dilation[1]), (sides[0], sides[1]))
    if attributes is None:
        return []
    new = [*chain[1:-1]]
    new[place - 1] = replace(conv, attributes={**conv.attributes, **attributes})
    new[0] = replace(new[0], inputs=(begin.inputs[0], *new[0].inputs[1:]))
    new[-1] = replace(new[-1], outputs=end.outputs)
    return [None, *new, None]


def _plain(kind: str) -> str:
    """The kind as both formats have it."""
    return kind.replace("_", "").lower()
