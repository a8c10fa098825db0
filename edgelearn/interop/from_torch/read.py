"""Read the graph of a PyTorch module, as torch.export writes it: ATen operators, parameters by their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgelearn.errors import FormatError

from ..importing import ForeignGraph, Operator, TensorInfo
from ..importing.graph import gives_channels_first, takes_channels_first

VIEWS = {"view", "reshape", "flatten", "transpose", "permute", "slice", "select", "squeeze", "unsqueeze", "chunk",
         "split", "split_with_sizes", "narrow", "expand", "unflatten", "getitem"}  # fmt: skip


SEQUENCES = {
    "adaptive_avg_pool1d", "avg_pool1d", "batch_norm", "conv1d", "conv_transpose1d", "group_norm", "instance_norm",
    "max_pool1d",
}  # fmt: skip
PASSING = {
    "add", "cat", "clamp", "clone", "contiguous", "div", "dropout", "elu", "feature_dropout", "gelu", "hardsigmoid",
    "hardswish", "hardtanh", "leaky_relu", "log_softmax", "mul", "pad", "relu", "relu6", "sigmoid", "silu", "softmax",
    "softplus", "sub", "tanh",
}  # fmt: skip


def graph_of_module(module: Any, example: Any, name: str = "") -> ForeignGraph:
    """The graph of a module and its weights.

    Arguments:
    - `module`: an nn.Module; it is left as it is.
    - `example`: an input, or a tuple of them, with the batch as first axis; a tensor of 4 axes is (n, channels, height,
      width), one of 3 axes that convolutions read (n, channels, length).
    - `name`: of the network (default the class of the module).

    Raises FormatError if PyTorch can't export it.
    """
    import torch

    inputs = example if isinstance(example, tuple) else (example,)
    training = {part: part.training for part in module.modules()}
    dropouts = {
        path: part.p for path, part in module.named_modules() if type(part).__name__ in ("Dropout", "Dropout2d")
    }
    try:
        module.eval()
        with torch.no_grad():
            program = torch.export.export(module, inputs)
    except Exception as error:
        raise FormatError(
            f"PyTorch can't export {type(module).__name__} ({type(error).__name__}: {error!s:.300}). Remove what "
            f"depends on values of tensors from its forward method."
        ) from error
    finally:
        for part, mode in training.items():
            part.training = mode
    leaves = {path for path, part in module.named_modules() if path and not any(part.children())}
    return _graph(program, name or type(module).__name__, dropouts, leaves)


def _graph(program: Any, name: str, dropouts: dict[str, float], leaves: set[str]) -> ForeignGraph:
    """The graph of an exported program; `dropouts`: rates by path of the module; `leaves`: paths of modules without
    others inside."""
    signature = program.graph_signature
    stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers,
              **signature.inputs_to_lifted_tensor_constants}  # fmt: skip
    tensors = {**dict(program.named_parameters()), **dict(program.named_buffers()), **program.constants}
    reader = _Reader(dropouts, leaves)
    constants = {key: tensors[path].detach().cpu().numpy() for key, path in stored.items()}
    fixed = {path for path, parameter in program.named_parameters() if not parameter.requires_grad}
    reader.fixed = {key for key, path in signature.inputs_to_parameters.items() if path in fixed}
    reader.trained = set(signature.inputs_to_parameters) - reader.fixed
    reader.paths = {key: path.rpartition(".")[0] for key, path in stored.items()}
    inputs: list[Any] = []
    outputs: list[str] = []
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name not in stored:
            inputs.append(_info(node))
        elif node.op == "call_function":
            reader.read(node)
        elif node.op == "get_attr":
            constants[node.name] = program.constants[node.target].detach().cpu().numpy()
        elif node.op == "output":
            values = node.args[0] if isinstance(node.args[0], tuple | list) else node.args
            ends = (value.name for value in values if hasattr(value, "name"))
            outputs = [reader.names.get(end) or end for end in ends]
    changed = set(signature.buffers_to_mutate)
    outputs = [output for output in outputs if output not in changed]
    if not inputs or any(info is None for info in inputs):
        raise FormatError(f"{name} needs tensors as inputs.")
    known = {info.name: info for info in map(_info, program.graph.nodes) if info is not None}
    operators = tuple(reader.operators)
    inputs = [_as_sequence(info, takes_channels_first(info.name, operators, SEQUENCES, PASSING)) for info in inputs]
    begins = {info.name for info in inputs if info.layout}
    for end in set(outputs) & known.keys():
        known[end] = _as_sequence(known[end], gives_channels_first(end, operators, SEQUENCES, PASSING, begins))
    return ForeignGraph(
        "PyTorch", name, tuple(inputs), tuple(outputs), operators, constants | reader.constants, known
    )  # fmt: skip


def _as_sequence(info: TensorInfo, channels_first: bool) -> TensorInfo:
    """The tensor; a sequence (n, channels, length) says that it has channels first."""
    return replace(info, layout="NCHW") if channels_first and info.shape and len(info.shape) == 3 else info


class _Reader:
    """Collects operators. An operator that works in place gives its input another name from then on."""

    def __init__(self, dropouts: dict[str, float], leaves: set[str]) -> None:
        self.dropouts, self.leaves = dropouts, leaves
        self.operators: list[Operator] = []
        self.constants: dict[str, np.ndarray] = {}
        self.names: dict[str, str] = {}
        self.paths: dict[str, str] = {}  # of the module that a parameter belongs to
        self.fixed: set[str] = set()  # parameters that don't require gradients
        self.trained: set[str] = set()  # those that do

    def read(self, node: Any) -> None:
        kind = _kind(node)
        if kind == "getitem":
            return  # an output of the operator before
        in_place = kind.endswith("_") and not kind.endswith("__")
        inputs, attributes = self._arguments(node)
        outputs = _outputs(node)
        if kind.rstrip("_") in ("dropout", "feature_dropout"):
            attributes["p"] = self.dropouts.get(_module(node), 0.0)
        module = next((self.paths[name] for name in inputs if self.paths.get(name)), _module(node))
        name = module if module in self.leaves else node.name
        parameters = [key for key in inputs if key in self.fixed or key in self.trained]
        places = tuple(place for place, key in enumerate(parameters) if key in self.fixed)
        frozen = len(places) == len(parameters) or places if places else ()
        self.operators.append(Operator(kind.rstrip("_"), name, tuple(inputs), outputs, attributes, frozen=frozen))
        if in_place:
            self._rename(node, kind)

    def _rename(self, node: Any, kind: str) -> None:
        source = node.args[0]
        if source.op == "call_function" and _kind(source) in VIEWS and len(source.args[0].users) > 1:
            raise FormatError(f"{kind} '{node.name}' changes a view in place, and the whole is read: copy it.")
        for name in [key for key, value in self.names.items() if value == source.name]:
            self.names[name] = node.name
        self.names[source.name] = node.name

    def _arguments(self, node: Any) -> tuple[list[str], dict[str, Any]]:
        """Names of tensors, in the order of the operator's schema, and its other arguments by name."""
        given = dict(node.kwargs)
        inputs, attributes = [], {}
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return [], {"target": str(node.target)}
        for position, argument in enumerate(schema.arguments):
            value = (
                node.args[position] if position < len(node.args) else given.get(argument.name, argument.default_value)
            )
            kind = str(argument.type)
            if hasattr(value, "op"):
                inputs.append(self.names.get(value.name, value.name))
            elif "Tensor" in kind and isinstance(value, Sequence):
                inputs += ["" if part is None else self.names.get(part.name, part.name) for part in value]
            elif "Tensor" in kind:
                inputs.append("" if value is None else self._number(node, value))
            else:
                attributes[argument.name] = _plain(value)
        while inputs and not inputs[-1]:
            inputs.pop()
        return inputs, attributes

    def _number(self, node: Any, value: float) -> str:
        name = f"{node.name}:{len(self.constants)}"
        self.constants[name] = np.asarray(value, np.float32)
        return name


def _kind(node: Any) -> str:
    """The name of an operator, without its overload."""
    schema = getattr(node.target, "_schema", None)
    return schema.name.rpartition("::")[2] if schema is not None else getattr(node.target, "__name__", str(node.target))


def _module(node: Any) -> str:
    """The path of the module that a node was traced in."""
    stack = node.meta.get("nn_module_stack") or {}
    return list(stack.values())[-1][0] if stack else ""


def _outputs(node: Any) -> tuple[str, ...]:
    """Names of an operator's outputs; where it has several, those of the nodes that take them apart."""
    taken = {user.args[1]: user.name for user in node.users if _kind(user) == "getitem"}
    if not taken:
        return (node.name,)
    return tuple(taken.get(n, f"{node.name}:{n}") for n in range(max(taken) + 1))


def _info(node: Any) -> TensorInfo | None:
    value = node.meta.get("val") if hasattr(node, "meta") else None
    if value is None or not hasattr(value, "shape"):
        return None
    shape = tuple(int(n) if str(n).isdigit() else None for n in value.shape)
    return TensorInfo(node.name, shape, str(value.dtype).rpartition(".")[2], "NCHW" if len(shape) == 4 else "")


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value
