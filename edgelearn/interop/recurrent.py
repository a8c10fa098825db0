"""Recurrent layers of other formats: LSTM and GRU in one or both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.ops import GRU, LSTM, Add, Concatenate, Dropout, Multiply, Op, Rescaling, Reshape, Slice
from edgelearn.ops.recurrent import Recurrent

from .builder import Builder, Value

Array = np.ndarray  # a constant
NATURAL = "tanh and sigmoid, without clipping: what LSTM and GRU have by default."


def recurrent(
    b: Builder, x: Value, weights: dict[str, Array], op: Recurrent, *, steps: int, name: str = ""
) -> str:  # fmt: skip
    """Add a recurrent layer that reads the file's axis `steps` and the last one, and return its name: outputs of every
    step are in the sequence's order."""
    layer = b.add(op, b.laid_out(x, (steps, x.rank - 1)), weights=weights, name=name)
    if op.return_sequences and op.go_backwards:
        layer = b.add(Slice((-1, 0), (-1, -1), (-1, 1)), layer, name=f"{layer}_turned")
    return layer


def _of_keras(kind: Any, settings: dict[str, Any]) -> Recurrent:
    """The op of a layer's settings. Raises UnsupportedError for settings that it doesn't have."""
    usual = {
        "activation": "tanh", "recurrent_activation": "sigmoid", "return_state": False, "stateful": False,
        "reset_after": True, "time_major": False,
    }  # fmt: skip
    if kind not in ("LSTM", "GRU"):
        raise UnsupportedError(f"Bidirectional of {kind!r:.60}.", "Bidirectional of LSTM or GRU.")
    for setting, value in usual.items():
        if settings.get(setting, value) != value:
            raise UnsupportedError(f"{setting}={settings[setting]!r:.60}.", f"{setting}={value!r}.")
    op = {"LSTM": LSTM, "GRU": GRU}[kind]
    flags = {name: bool(settings.get(name, False)) for name in ("return_sequences", "go_backwards")}
    return op(int(settings["units"]), **flags, use_bias=bool(settings.get("use_bias", True)))


def _weights(op: Recurrent, arrays: Sequence[Any]) -> dict[str, Array]:
    roles = ["kernel", "recurrent_kernel", *(["bias"] if op.use_bias else [])]
    if len(arrays) != len(roles):
        raise FormatError(f"A recurrent layer has {len(arrays)} arrays in the file, expected {', '.join(roles)}.")
    return dict(zip(roles, arrays, strict=True))


def result(b: Builder, x: Value, layer: str) -> Value:
    """The file's value of a layer (steps, units) or (units,): the batch first."""
    shape = b.shape(layer)
    return Value.of(layer, shape, tuple(range(len(shape))), x.batch)


def keras_layer(b: Builder, x: Value, arrays: Sequence[Any]) -> Value:
    """An LSTM or GRU of Keras, whose outputs with go_backwards are in the order they are computed."""
    op = _of_keras(b.operator.kind, dict(b.operator.attributes))
    layer = b.add(op, b.laid_out(x, (1, 2)), weights=_weights(op, arrays))
    return result(b, x, layer)


def keras_bidirectional(b: Builder, x: Value, arrays: Sequence[Any]) -> Value:
    """Both directions side by side, or combined as `merge_mode` says."""
    a: Any = b.operator.attributes
    inner, mode = a.get("layer"), a.get("merge_mode", "concat")
    if not isinstance(inner, dict) or not isinstance(inner.get("config"), dict):
        raise FormatError(f"Bidirectional '{b.operator.name}' has no layer in the file.")
    backward = a.get("backward_layer") or inner
    if mode not in ("concat", "sum", "mul", "ave") or backward.get("class_name") != inner.get("class_name"):
        raise UnsupportedError(f"Bidirectional with merge_mode={mode!r:.60}.", "concat, sum, mul or ave.")
    op = _of_keras(inner.get("class_name"), inner["config"])
    half = len(arrays) // 2
    flags = {"return_sequences": op.return_sequences, "use_bias": op.use_bias}
    one, two = (
        recurrent(
            b, x, _weights(op, own), type(op)(op.units, **flags, go_backwards=backwards), steps=1,
            name=f"{b.operator.name}_{direction}",
        )
        for own, backwards, direction in ((arrays[:half], False, "forward"), (arrays[half:], True, "backward"))
    )  # fmt: skip
    combined: Op = {"concat": Concatenate(), "mul": Multiply()}.get(mode, Add())
    layer = b.add(combined, one, two)
    if mode == "ave":
        layer = b.add(Rescaling(0.5), layer, name=f"{layer}_mean")
    return result(b, x, layer)


TORCH_ORDERS = {"LSTM": (0, 1, 2, 3), "GRU": (1, 0, 2)}  # of PyTorch's gates, as Keras has them


def torch_layer(b: Builder, x: Value, rest: Sequence[Any]) -> tuple[Value, Value]:
    """PyTorch's LSTM and GRU of one layer or more, in one or both directions: (outputs of all steps of the last layer,
    h of each layer and direction after its last step)."""
    a: Any = b.operator.attributes
    kind = b.operator.kind.upper()
    count, batch_first, biased = (2 if kind == "LSTM" else 1), a.get("batch_first"), bool(a.get("has_biases"))
    states, arrays = rest[:count], rest[count:]
    layers, directions = int(a.get("num_layers", 1)), 1 + bool(a.get("bidirectional"))
    size = 4 if biased else 2
    if any(isinstance(state, Value) or state.any() for state in states):
        raise UnsupportedError(f"{kind} with a state of its own.", "A state of zeros to begin with.")
    if batch_first is None or len(arrays) != layers * directions * size:
        raise UnsupportedError(f"{kind} of packed sequences, or with projections.", "Sequences of equal length.")
    if x.rank != 3 or x.batch_axis != (0 if batch_first else 1):
        raise UnsupportedError(f"{kind} of {x.shape}.", "batch_first=True, and the batch as first axis.")
    value, steps, ends = x, 1 if batch_first else 0, []
    for number in range(layers):
        both = []
        for backwards in (False, True)[:directions]:
            begin = (number * directions + backwards) * size
            weights = _torch_weights(kind, arrays[begin : begin + size])
            units = weights["recurrent_kernel"].shape[0]
            op = {"LSTM": LSTM, "GRU": GRU}[kind](units, True, go_backwards=backwards, use_bias=biased)
            name = b.operator.name + (f"_{number}" if layers > 1 else "") + ("_backward" if backwards else "")
            both.append(recurrent(b, value, weights, op, steps=steps, name=name))
            ends.append(b.add(Slice((0 if backwards else -1, 0), (1, -1)), both[-1], name=f"{name}_last"))
        layer = b.add(Concatenate(), *both) if directions > 1 else both[0]
        if a.get("dropout") and number < layers - 1:
            layer = b.add(Dropout(float(a["dropout"])), layer)
        value, steps = result(b, x, layer), 1
    last = b.add(Reshape((len(ends), -1)), b.add(Concatenate(), *ends)) if len(ends) > 1 else ends[0]
    h = result(b, x, last)
    return value if batch_first else value.transposed((1, 0, 2)), h.transposed((1, 0, 2))


def _torch_weights(kind: str, arrays: Sequence[Array]) -> dict[str, Array]:
    """Weights of a layer from PyTorch's, whose rows are gates."""
    order = TORCH_ORDERS[kind]
    turned = [np.concatenate([np.split(array, len(order))[gate] for gate in order]).T for array in arrays]
    weights = {"kernel": turned[0], "recurrent_kernel": turned[1]}
    if len(turned) > 2:
        weights["bias"] = turned[2] + turned[3] if kind == "LSTM" else np.stack(turned[2:])
    return weights


def tflite_layer(b: Builder, x: Value, rest: Sequence[Array | None]) -> Value:
    """TFLite's LSTM over a sequence: outputs of all steps. It begins with a state of zeros, as an interpreter after
    reset_all_variables."""
    a: Any = b.operator.attributes
    parts = [*rest, *[None] * (23 - len(rest))]
    kernels, turned, peepholes, biases = parts[:4], parts[4:8], parts[8:11], parts[11:15]
    others = [*peepholes, *parts[15:17], *parts[19:23]]
    if any(array is None for array in (*kernels, *turned, *biases)) or any(array is not None for array in others):
        raise UnsupportedError("LSTM with coupled gates, peepholes, a projection or normalization.", "A plain LSTM.")
    if a["cell_activation"] != "tanh" or a["cell_clip"] or a["projection_clip"]:
        raise UnsupportedError(f"LSTM with {a['cell_activation']}, or a clip.", NATURAL)
    steps = 0 if a["time_major"] else 1
    if x.rank != 3 or x.batch_axis != 1 - steps:
        raise UnsupportedError(f"LSTM of {x.shape}.", "(batch, steps, channels).")
    weights = {
        "kernel": np.concatenate(kernels).T, "recurrent_kernel": np.concatenate(turned).T,
        "bias": np.concatenate(biases),
    }  # fmt: skip
    layer = recurrent(b, x, weights, LSTM(len(biases[0]), True), steps=steps)
    y = result(b, x, layer)
    return y if steps else y.transposed((1, 0, 2))


ONNX_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}
ORDERS = {"LSTM": (0, 2, 3, 1), "GRU": (0, 1, 2)}  # of ONNX's gates, as Keras has them


def onnx_layer(
    b: Builder, x: Value, kernel: Array, recurrent_kernel: Array, bias: Array | None = None, lengths: Any = None,
    states: Sequence[Any] = (), *, layout: int = 0,
) -> tuple[Value, Value]:  # fmt: skip
    """ONNX's LSTM and GRU: (outputs of all steps, the last h), with an axis for directions."""
    a, kind = b.operator.attributes, b.operator.kind
    direction, units = a.get("direction", "forward"), int(a.get("hidden_size", recurrent_kernel.shape[-1]))
    directions = 2 if direction == "bidirectional" else 1
    functions = a.get("activations", ONNX_ACTIVATIONS[kind] * directions)
    if list(functions) != ONNX_ACTIVATIONS[kind] * directions or a.get("clip") or a.get("input_forget"):
        raise UnsupportedError(f"{kind} with activations {functions}, or a clip.", NATURAL)
    if kind == "GRU" and not a.get("linear_before_reset"):
        raise UnsupportedError("GRU with linear_before_reset=0.", "linear_before_reset=1, as PyTorch writes it.")
    if isinstance(lengths, Value) or any(
        isinstance(state, Value) or (state is not None and state.any()) for state in states
    ):
        raise UnsupportedError(
            f"{kind} with lengths, a computed state or peepholes.", "A state of zeros to begin with."
        )
    if x.rank != 3 or x.batch_axis != (0 if layout else 1):
        raise UnsupportedError(f"{kind} of {x.shape}.", "(steps, batch, channels).")
    steps, layers, ends = 1 if layout else 0, [], []
    for number in range(directions):
        backwards = number == 1 or direction == "reverse"
        op = {"LSTM": LSTM, "GRU": GRU}[kind](units, True, go_backwards=backwards, use_bias=bias is not None)
        both = {"kernel": kernel, "recurrent_kernel": recurrent_kernel}
        weights = {role: _gates(array[number], kind, units) for role, array in both.items()}
        if bias is not None:
            biases = _gates(bias[number].reshape(2, -1).T, kind, units)
            weights["bias"] = biases.sum(0) if kind == "LSTM" else biases
        name = b.operator.name + ("_backward" if backwards and directions == 2 else "")
        layer = recurrent(b, x, weights, op, steps=steps, name=name)
        last = b.add(Slice((0 if backwards else -1, 0), (1, -1)), layer, name=f"{name}_last")
        layers.append(layer)
        ends.append(last)
    several = directions > 1
    if several:
        layers, ends = ([_side_by_side(b, both)] for both in (layers, ends))
    axes = (0, 1, 2) if several else (0, None, 1)
    y, h = (Value.of(layer, b.shape(layer), axes, x.batch) for layer in (layers[0], ends[0]))
    h = h.squeezed((1,))
    return (y, h) if layout else (y.transposed((1, 2, 0, 3)), h.transposed((1, 0, 2)))


def _side_by_side(b: Builder, layers: Sequence[str]) -> str:
    """A layer of both directions, (steps, 2, units)."""
    steps, units = b.shape(layers[0])
    layer = b.add(Concatenate(), *layers, name=f"{b.operator.name}_both")
    return b.add(Reshape((steps, len(layers), units)), layer, name=f"{b.operator.name}_directions")


def _gates(weight: Array, kind: str, units: int) -> Array:
    """Rows of gates, (gates x units, inputs), as columns in Keras's order."""
    parts = weight.reshape(len(ORDERS[kind]), units, -1)[list(ORDERS[kind])]
    return np.ascontiguousarray(parts.reshape(-1, weight.shape[-1]).T)
