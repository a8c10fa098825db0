"""Inspect a network, a model or a file."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

from edgelearn.compile import Request, explain, make_plan
from edgelearn.errors import DeviceError, EdgelearnError
from edgelearn.graph import Network, Node
from edgelearn.interop import find_format, import_graph, read_model
from edgelearn.interop.builder import Translation
from edgelearn.ops import SGD, BatchNormalization, LinearOp, Op, SoftmaxCrossEntropy
from edgelearn.ops.tensor import Shape
from edgelearn.runtime import choose_device

from ..model import Model
from .difference import difference
from .report import Inspection, LayerReport

OPEN_SIZE = 96  # of what a file leaves open


def inspect(
    model: Model | Network | str | Path, network: Network | None = None, *, inputs: tuple[str, ...] = (),
    outputs: tuple[str, ...] = (), input_shape: Shape | None = None,
) -> Inspection:  # fmt: skip
    """Report what is in a model, operator by operator, before anything runs.

    >>> print(el.inspect("mobilenet.onnx"))

    Arguments:
    - `model`: a Model, a Network, or a file of any format that is read.
    - `network`: the graph, for files that hold weights alone.
    - `inputs`, `outputs`, `input_shape`: as in edgelearn.load.

    A file with operators that edgelearn doesn't have is reported, too: all of them, with their attributes and what
    works instead. Where a file leaves sizes open, 96 stands for each, and a note says so. Raises FormatError for a
    damaged file.
    """
    if isinstance(model, Model):
        return _inspect(model.network, "")
    if isinstance(model, Network):
        return _inspect(model, "")
    if network is not None or find_format(model).graph is None:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            file = read_model(model, network)
        return _inspect(file.network, Path(model).name, tuple(str(each.message) for each in said))
    translation = import_graph(
        model, inputs=inputs, outputs=outputs, input_shape=input_shape, open_size=OPEN_SIZE
    )  # fmt: skip
    if translation.network is None:
        return _problems(translation, Path(model).name)
    notes = translation.notes
    if not (inputs or outputs or input_shape) and (note := difference(Path(model), translation)):
        notes = (*notes, note)
    return _inspect(translation.network, Path(model).name, notes)


def _inspect(network: Network, source: str, remarks: tuple[str, ...] = ()) -> Inspection:
    saved, notes = _saved_bytes(network)
    layers = tuple(_layer(network, node, saved) for node in network.nodes.values())
    outputs: dict[str, Shape | None] = {name: network.shape_of(name) for name in network.outputs}
    return Inspection(network.name, source, dict(network.inputs), outputs, layers, (), (*remarks, *notes))


def _layer(network: Network, node: Node, saved: Counter[str] | None) -> LayerReport:
    names = [name for name, parameter in network.parameters.items() if parameter.layer == node.name]
    trainable = [name for name in names if network.parameters[name].weight.trainable]
    return LayerReport(
        node.name, type(node.op).__name__, node.inputs, node.shape, network.count(names),
        node.op.flops(*network.input_shapes(node.inputs)) // 2, None if saved is None else saved[node.name], True,
        has_backward(node.op), bool(trainable), any(name in network.trainable for name in names),
    )  # fmt: skip


def has_backward(op: Op) -> bool:
    """True if the engine can train through an op."""
    own = type(op).emit_backward is not Op.emit_backward
    return own or isinstance(op, LinearOp | BatchNormalization)


def _saved_bytes(network: Network) -> tuple[Counter[str] | None, tuple[str, ...]]:
    """Bytes of activations that the backward pass of one example reads, by layer, with all layers trained."""
    trained = Network.from_json(network.to_json()).unfreeze() if network.parameters else network
    try:
        loss = SoftmaxCrossEntropy()
        device = choose_device(None).device
        plan = make_plan(Request(trained, 1, 1, SGD(0.1), "moving", loss), device)
        activations = explain(plan).activations
    except DeviceError:
        return None, ("Bytes saved for the backward pass: unknown without an OpenCL device.",)
    except EdgelearnError as error:
        return None, (f"Bytes saved for the backward pass: unknown, since there is no plan to train it: {error}",)
    saved = Counter[str]()
    for activation in activations:
        saved[activation.layer] += activation.nbytes
    return saved, ()


def _problems(translation: Translation, source: str) -> Inspection:
    """A row for each operator of the file."""
    graph = translation.graph
    missing = {problem.name for problem in translation.problems}
    made = {name: operator.name for operator in graph.operators for name in operator.outputs}
    begins = {info.name: tuple(n or 1 for n in (info.shape or ())[1:]) for info in graph.inputs}
    layers = []
    for operator in graph.operators:
        reads = tuple(made.get(name, name) for name in operator.inputs if name in made or name in begins)
        known = graph.tensors.get(operator.outputs[0]) if operator.outputs else None
        shape = tuple(n or 1 for n in known.shape[1:]) if known and known.shape else None
        supported = operator.name not in missing
        layers.append(LayerReport(operator.name, operator.kind, reads, shape, forward=supported, backward=supported))
    note = "Rows are the file's operators: sizes are known once all of them can be imported."
    outputs: dict[str, Shape | None] = dict.fromkeys(graph.outputs)
    notes = (*translation.notes, note)
    return Inspection(graph.name, source, begins, outputs, tuple(layers), translation.problems, notes)
