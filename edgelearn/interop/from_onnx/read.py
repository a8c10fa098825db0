"""Read an ONNX file. Sizes are compared with the bytes there are before an array is made.

Format: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.errors import FormatError

from ..importing import ForeignGraph, Operator, TensorInfo
from ..importing.graph import gives_channels_first, takes_channels_first
from .fuse import fuse_gelu

LARGEST_FILE = 2 << 30  # of the protocol buffers themselves; weights beyond that lie in files of their own
DOMAINS = ("", "ai.onnx")
POINTWISE = {"Add", "Cast", "Div", "Identity", "Mul", "Sub"}  # that may stand before, such as a scale of pixels
CHANNELS_FIRST = {
    "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool",
    "GroupNormalization", "InstanceNormalization", "LRN", "MaxPool",
}  # fmt: skip
PASSING = POINTWISE | {
    "Clip", "Concat", "Dropout", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "LogSoftmax", "Max", "Min",
    "Mish", "Pad", "PRelu", "Relu", "Resize", "Selu", "Sigmoid", "Slice", "Softmax", "Softplus", "Softsign", "Sum",
    "Tanh",
}  # fmt: skip
TO_IMAGES = [0, 3, 1, 2]  # from channels last to channels first


def read_graph(path: str | Path) -> ForeignGraph:
    """Read the graph and the weights of a file; weights in files of their own are read from its folder.

    Raises FormatError if the file is damaged, or if `onnx` is missing.
    """
    path = Path(path)
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError:
        raise FormatError(f"{path} is an ONNX file. Reading it needs: pip install 'edgelearn[formats]'.") from None
    model = onnx.ModelProto()
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise FormatError(f"{path} has more than {LARGEST_FILE:,} bytes: store its weights as external data.")
        model.ParseFromString(path.read_bytes())
    except OSError as error:
        raise FormatError(f"{path} can't be read ({error.strerror}). Give the path of an ONNX file.") from None
    except (DecodeError, RecursionError, ValueError) as error:
        raise FormatError(f"{path} is not an ONNX file, or is damaged ({error!s:.100}). Fetch it again.") from None
    try:
        return fuse_gelu(graph_of(model, path))
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path} is damaged ({type(error).__name__}: {error!s:.200}). Fetch it again.") from None


def graph_of(model: Any, path: Path = Path("model.onnx")) -> ForeignGraph:
    """The graph of an `onnx.ModelProto`; `path`: its file, for external data and errors."""
    if model.functions:
        from onnx.inliner import inline_local_functions

        model = inline_local_functions(model)
    graph = model.graph
    if not graph.node:
        raise FormatError(f"{path} holds no operators: it is not an ONNX model, or is damaged.")
    if graph.sparse_initializer:
        raise FormatError(f"{path} has sparse weights. Save it with dense ones.")
    versions = {entry.domain: entry.version for entry in model.opset_import}
    version = next((versions[domain] for domain in DOMAINS if domain in versions), 1)
    constants = {tensor.name: _array(tensor, path) for tensor in graph.initializer}
    operators = tuple(_operator(node, n, version, versions, path) for n, node in enumerate(graph.node))
    texts = {entry.key: entry.value for entry in model.metadata_props}
    preprocessing, names = _json(texts, "preprocessing", dict), _json(texts, "class_names", list)
    given = [value for value in graph.input if value.name not in constants]
    read = {name for operator in operators for name in operator.inputs} | {value.name for value in graph.output}
    unread = [value.name for value in given if value.name not in read]  # constants that tf2onnx folded, for example
    if unread and len(unread) < len(given):
        texts["inputs that nothing reads"] = ", ".join(unread)
        given = [value for value in given if value.name in read]
    inputs = tuple(_input(value, operators) for value in given)
    return ForeignGraph(
        "ONNX", graph.name or path.stem, inputs, tuple(value.name for value in graph.output), operators, constants,
        {value.name: _info(value) for value in graph.value_info} | _outputs(graph.output, operators, inputs),
        preprocessing or {}, tuple(map(str, names or ())),
        {key: text for key, text in texts.items() if key not in ("preprocessing", "class_names")},
    )  # fmt: skip


def _operator(node: Any, number: int, version: int, versions: dict[str, int], path: Path) -> Operator:
    kind = node.op_type if node.domain in DOMAINS else f"{node.domain}.{node.op_type}"
    attributes = {a.name: _attribute(a, path) for a in node.attribute}
    parameter = node.input[1] if len(node.input) > 1 else ""
    name = node.name.strip("/") or f"{node.op_type}_{number}"
    if parameter.endswith((".weight", ".kernel")):  # PyTorch's own name of the module
        name = parameter.rpartition(".")[0]
    version = version if node.domain in DOMAINS else versions.get(node.domain, 1)
    return Operator(kind, name, tuple(node.input), tuple(node.output), attributes, version)


def _attribute(attribute: Any, path: Path) -> Any:
    """The value as Python has it; "subgraph" for graphs, which no handler reads."""
    import onnx

    kind = attribute.type
    if kind == onnx.AttributeProto.TENSOR:
        return _array(attribute.t, path)
    if kind in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
        return "subgraph"
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list | tuple) or hasattr(value, "extend"):
        return tuple(v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value)
    return value


def _array(tensor: Any, path: Path) -> np.ndarray:
    """A tensor of the file, whose size is checked first."""
    import onnx

    shape = tuple(tensor.dims)
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if any(n < 0 for n in shape):
        raise FormatError(f"{path}: '{tensor.name}' has the shape {shape}. The file is damaged.")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _external(tensor, shape, kind, path)
    stored = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data)
    count = max(len(tensor.raw_data), *map(len, stored), len(tensor.string_data))
    if prod(shape) > 2 * count:  # two 4-bit numbers in a byte are the densest
        raise FormatError(f"{path}: '{tensor.name}' of shape {shape} has only {count} bytes. The file is damaged.")
    return np.asarray(onnx.numpy_helper.to_array(tensor))


def _external(tensor: Any, shape: tuple[int, ...], kind: np.dtype, path: Path) -> np.ndarray:
    """A tensor in another file of the same folder."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    folder = path.parent.resolve()
    file = (folder / entries.get("location", "")).resolve()
    if not file.is_relative_to(folder) or not file.is_file():
        raise FormatError(
            f"{path}: '{tensor.name}' lies in '{entries.get('location', '')!s:.200}', which isn't in its folder."
        )
    offset, nbytes = int(entries.get("offset", 0)), prod(shape) * kind.itemsize
    if offset < 0 or int(entries.get("length", nbytes)) != nbytes or offset + nbytes > file.stat().st_size:
        raise FormatError(f"{path}: '{tensor.name}' needs {nbytes:,} bytes of {file.name} that aren't there.")
    return np.fromfile(file, kind.newbyteorder("<"), prod(shape), offset=offset).reshape(shape)


def _info(value: Any) -> TensorInfo:
    import onnx

    kind = value.type.tensor_type
    dims = [d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in kind.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name if kind.elem_type else "float32"
    return TensorInfo(value.name, tuple(dims) if kind.HasField("shape") else None, dtype)


def _input(value: Any, operators: tuple[Operator, ...]) -> TensorInfo:
    """An input; an image has channels first, unless all that is done with it is to put them there, and so has a
    sequence that convolutions and their like read."""
    info = _info(value)
    if info.shape is not None and len(info.shape) == 3:
        first = takes_channels_first(info.name, operators, CHANNELS_FIRST, PASSING)
        return replace(info, layout="NCHW" if first else "")
    if info.shape is None or len(info.shape) != 4:
        return info
    names, readers = {value.name}, []
    for operator in operators:  # in the order in which they run
        if names.isdisjoint(operator.inputs):
            continue
        if operator.kind in POINTWISE:
            names.update(operator.outputs)
        else:
            readers.append(operator)
    last = readers and all(o.kind == "Transpose" and list(o.attributes.get("perm", ())) == TO_IMAGES for o in readers)
    return TensorInfo(info.name, info.shape, info.dtype, "NHWC" if last else "NCHW")


def _outputs(
    values: Iterable[Any], operators: tuple[Operator, ...], inputs: tuple[TensorInfo, ...]
) -> dict[str, TensorInfo]:  # fmt: skip
    """The outputs by name, which know whether they have channels first."""
    begins = {info.name for info in inputs if info.layout == "NCHW"}
    first = {value.name for value in values
             if gives_channels_first(value.name, operators, CHANNELS_FIRST, PASSING, begins)}  # fmt: skip
    return {value.name: replace(_info(value), layout="NCHW" if value.name in first else "") for value in values}


def _json(texts: dict[str, str], key: str, kind: type) -> Any:
    """An entry that edgelearn writes, None if it isn't there or is another program's."""
    try:
        found = json.loads(texts.get(key, "null"))
    except (RecursionError, ValueError):
        return None
    return found if isinstance(found, kind) else None
