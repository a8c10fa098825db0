"""Give a classifier a new head, for other classes."""

from __future__ import annotations

from edgelearn.ops import Activation, Conv2D, Dense, Flatten, GlobalAveragePooling2D, LogSoftmax, Softmax

from .ancestors import ancestors
from .network import Network, Node


def replace_head(network: Network, classes: int, name: str = "head") -> Network:
    """Copy `network` with a new Dense layer and a Softmax in place of its classifier.

    The classifier is the last layer with weights, a Dense or a 1 x 1 convolution, and what follows it. A network that
    doesn't end in one keeps all its layers, and the new ones follow. Images before the new layer are averaged.

    Arguments:
    - `network`: a classifier or a feature extractor with one output.
    - `classes`: outputs of the new layer.
    - `name`: of the new layer (default "head"); with a number behind it if a layer is called so.

    Raises PlanError for a network with several outputs. The new layer's name is that of the last but one layer.
    """
    old = _classifier(network)
    if old is None:
        body, end = list(network.nodes.values()), network.output.name
    else:
        (end,) = old.inputs
        needed = ancestors([end], lambda node: network.nodes[node].inputs if node in network.nodes else ())
        body = [node for node in network.nodes.values() if node.name in needed]
    result = Network(network.name, network.inputs)
    for node in body:
        result.add(node.name, node.op, *node.inputs)
    result.trainable = network.trainable & set(result.parameters)

    def free(wanted: str) -> str:
        taken = (*result.nodes, *result.inputs)
        return next(n for n in (wanted, *(f"{wanted}_{i}" for i in range(2, len(taken) + 3))) if n not in taken)

    shape = result.shape_of(end)
    if len(shape) > 1:
        whole = len(shape) != 3 or shape[:2] == (1, 1)
        end = result.add(free(f"{name}_features"), Flatten() if whole else GlobalAveragePooling2D(), end)
    result.add(free(name), Dense(classes), end)
    result.add(free(f"{name}_softmax"), Softmax())
    return result


def _classifier(network: Network) -> Node | None:
    """The last layer with weights, if it is a Dense or a 1 x 1 convolution that gives scores: a Softmax follows it, or
    no activation does."""
    node, passed = network.output, []
    while len(node.inputs) == 1:
        shapes = network.input_shapes(node.inputs)
        if isinstance(node.op, Dense | Conv2D):
            pointwise = isinstance(node.op, Dense) or node.op.window(shapes[0]).is_pointwise
            single = isinstance(node.op, Dense) or shapes[0][:2] == (1, 1)
            scores = any(isinstance(op, LogSoftmax | Softmax) for op in passed)
            plain = single and not any(isinstance(op, Activation) for op in passed)
            return node if pointwise and (scores or plain) else None
        if node.op.weights(*shapes) or node.inputs[0] not in network.nodes:
            return None
        passed.append(node.op)
        node = network.nodes[node.inputs[0]]
    return None
