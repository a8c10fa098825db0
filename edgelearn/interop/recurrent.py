"""Recurrent layers of other formats: LSTM and GRU in one or both directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.ops import GRU, LSTM, Add, Concatenate, Dropout, Multiply, Op, Rescaling, Reshape, Slice
from edgelearn.ops.recurrent import Recurrent

from . import shapes
from .builder import BATCH, Builder, Value

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


def torch_layer(b: Builder, x: Value, rest: Sequence[Any]) -> tuple[Value | None, ...]:
    """PyTorch's LSTM and GRU of one layer or more, in one or both directions: (outputs of all steps of the last layer,
    h of each layer and direction after its last step, of an LSTM c). None for what nothing reads."""
    a: Any = b.operator.attributes
    kind = b.operator.kind.upper()
    count, batch_first, biased = (2 if kind == "LSTM" else 1), a.get("batch_first"), bool(a.get("has_biases"))
    states, arrays = rest[:count], rest[count:]
    layers, directions = int(a.get("num_layers", 1)), 1 + bool(a.get("bidirectional"))
    size = 4 if biased else 2
    if batch_first is None or len(arrays) != layers * directions * size:
        raise UnsupportedError(f"{kind} of packed sequences, or with projections.", "Sequences of equal length.")
    value = with_batch_axis(x.transposed((1, 0, 2)) if batch_first and x.rank == 3 else x, 1)
    reads_all, *reads_rows = (b.readers[name] > 0 for name in b.operator.outputs)
    reads_cell = len(reads_rows) > 1 and reads_rows[1]
    ends: list[list[Value]] = []
    for number in range(layers):
        both = []
        for backwards in (False, True)[:directions]:
            place = number * directions + backwards
            weights = _torch_weights(kind, arrays[place * size : (place + 1) * size])
            units = weights["recurrent_kernel"].shape[0]
            op = {"LSTM": LSTM, "GRU": GRU}[kind](units, go_backwards=backwards, use_bias=biased)
            name = b.operator.name + (f"_{number}" if layers > 1 else "") + ("_backward" if backwards else "")
            layer, rows = with_ends(
                b, value, weights, op, first_state(b, states, place, value, 0), steps=0, name=name,
                all_steps=reads_all or number < layers - 1, all_rows=reads_cell,
            )  # fmt: skip
            both.append(layer)
            ends.append([Value.of(row, b.shape(row), (None, len(b.shape(row)) - 1), x.batch) for row in rows])
        if reads_all or number < layers - 1:
            layer = b.add(Concatenate(), *both) if directions > 1 else both[0]
            if a.get("dropout") and number < layers - 1:
                layer = b.add(Dropout(float(a["dropout"])), layer)
            value = result(b, x, layer).transposed((1, 0, 2))
    turned = [[row.transposed((1, 0, 2)) for row in rows] for rows in zip(*ends, strict=True)]
    last = [
        shapes.concatenate(b, rows, axis=0) if read else None for rows, read in zip(turned, reads_rows, strict=False)
    ]
    y = (value.transposed((1, 0, 2)) if batch_first else value) if reads_all else None
    return y, *last  # type: ignore[return-value]


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
) -> tuple[Value | None, ...]:  # fmt: skip
    """ONNX's LSTM and GRU: (outputs of all steps, the last h, of an LSTM the last c), with an axis for directions.
    None for the first where nothing reads it; the last c is left out then."""
    a, kind = b.operator.attributes, b.operator.kind
    direction, units = a.get("direction", "forward"), int(a.get("hidden_size", recurrent_kernel.shape[-1]))
    directions = 2 if direction == "bidirectional" else 1
    functions = a.get("activations", ONNX_ACTIVATIONS[kind] * directions)
    if list(functions) != ONNX_ACTIVATIONS[kind] * directions or a.get("clip") or a.get("input_forget"):
        raise UnsupportedError(f"{kind} with activations {functions}, or a clip.", NATURAL)
    if kind == "GRU" and not a.get("linear_before_reset"):
        raise UnsupportedError("GRU with linear_before_reset=0.", "linear_before_reset=1, as PyTorch writes it.")
    op = {"LSTM": LSTM, "GRU": GRU}[kind](units, use_bias=bias is not None)
    states, peepholes = states[: op.sets], states[op.sets :]
    if isinstance(lengths, Value) or any(isinstance(p, Value) or (p is not None and p.any()) for p in peepholes):
        raise UnsupportedError(f"{kind} with lengths or peepholes.", "Sequences of equal length, and no peepholes.")
    x = with_batch_axis(x, 0 if layout else 1)
    layers, ends = [], []
    outputs = (*b.operator.outputs, *[""] * 3)
    reads_all, reads_cell = (bool(name) and b.readers[name] > 0 for name in (outputs[0], outputs[2]))
    for number in range(directions):
        backwards = number == 1 or direction == "reverse"
        both = {"kernel": kernel, "recurrent_kernel": recurrent_kernel}
        weights = {role: _gates(array[number], kind, units) for role, array in both.items()}
        if bias is not None:
            biases = _gates(bias[number].reshape(2, -1).T, kind, units)
            weights["bias"] = biases.sum(0) if kind == "LSTM" else biases
        layer, last = with_ends(
            b, x, weights, replace(op, go_backwards=backwards), first_state(b, states, number, x, layout),
            steps=1 if layout else 0, name=b.operator.name + ("_backward" if backwards and directions == 2 else ""),
            all_steps=reads_all, all_rows=reads_cell,
        )  # fmt: skip
        layers.append(layer)
        ends.append(last)
    rows = [_side_by_side(b, row, "last") for row in zip(*ends, strict=True)]
    several = directions > 1
    found = [Value.of(row, b.shape(row), (1, 2) if several else (None, len(b.shape(row)) - 1), x.batch) for row in rows]
    y = None
    if reads_all:
        layer = _side_by_side(b, layers, "both")
        y = Value.of(layer, b.shape(layer), (0, 1, 2) if several else (0, None, 1), x.batch)
    if not layout:
        found, y = [row.transposed((1, 0, 2)) for row in found], y and y.transposed((1, 2, 0, 3))
    return y, *found


def with_batch_axis(x: Value, axis: int) -> Value:
    """A sequence or a state of three axes with the batch as `axis`, as recurrent operators have them. A batch of 1 that
    the file has dropped is taken to be there. Raises UnsupportedError if it is another axis."""
    if x.rank == 3 and x.batch == 1 and x.batch_axis is None and x.shape[axis] == 1:
        return replace(x, axes=(*x.axes[:axis], (BATCH,), *x.axes[axis + 1 :]))
    if x.rank != 3 or x.batch_axis != axis:
        raise UnsupportedError(
            f"{x.shape} with the batch as axis {x.batch_axis}.",
            "(steps, batch, channels) for sequences and (layers, batch, units) for states, or with batch_first and "
            "layout the batch first. Where a file's first axis is the time, input_shape=… with as many numbers as its "
            "input has axes reads it so.",
        )
    return x


def first_state(b: Builder, states: Sequence[Any], number: int, x: Value, layout: int) -> str | None:
    """The layer (rows, units) of the state that a layer begins with, None for zeros.

    Arguments:
    - `states`: h and of an LSTM c, (directions, batch, units), or with `layout` (batch, directions, units); None or
      zeros for none.
    - `number`: of the direction.
    - `x`: the sequence.
    """
    if not any(isinstance(state, Value) or (state is not None and state.any()) for state in states):
        return None
    place, rows = 1 if layout else 0, []
    size = next(state.shape[-1] for state in states if state is not None)
    for state in states:
        if isinstance(state, Value):
            state = with_batch_axis(state, 1 - place)
            row = shapes.slice_axis(b, state, place, number, number + 1)
        else:
            same = np.zeros((1, 1, size), np.float32) if state is None else np.take(state, [number], place)
            if (same != same[:1, :1]).any():
                raise UnsupportedError("A constant state for each example of the batch.", "One for all examples.")
            row = b.constant(same[:1, :1], x)
        rows.append(row)
    with b.part("state"):
        whole = shapes.concatenate(b, rows, axis=place)
    assert isinstance(whole, Value)
    return b.laid_out(whole, (place, 2))


def with_ends(
    b: Builder, x: Value, weights: dict[str, Array], op: Recurrent, state: str | None, *, steps: int, name: str,
    all_steps: bool, all_rows: bool,
) -> tuple[str, list[str]]:  # fmt: skip
    """Add a recurrent layer, and return that of all steps in the sequence's order and those of its last state: h, (1,
    units) or (units,), or every row, (1, units).

    Arguments:
    - `x`, `weights`, `steps`, `name`: as of `recurrent`; `op` has its units, direction and bias.
    - `state`: the layer (rows, units) that it begins with, None for zeros.
    - `all_steps`: outputs of all steps are read.
    - `all_rows`: all rows of the last state are read.
    """
    op = replace(op, return_sequences=all_steps, return_state=all_rows)
    read = [b.laid_out(x, (steps, x.rank - 1)), *([state] if state else [])]
    whole = layer = b.add(op, *read, weights=weights, name=name)
    if not all_steps and not all_rows:
        return whole, [whole]
    count = x.shape[steps] if all_steps else 0
    places = range(count, count + op.sets) if all_rows else [count - 1]
    if all_steps and op.go_backwards:
        layer = b.add(Slice((count - 1, 0), (count, -1), (-1, 1)), whole, name=f"{name}_turned")
    elif all_steps and all_rows:
        layer = b.add(Slice((0, 0), (count, -1)), whole, name=f"{name}_steps")
    parts = zip(places, ("last", "cell"), strict=False)
    return layer, [b.add(Slice((place, 0), (1, -1)), whole, name=f"{name}_{part}") for place, part in parts]


def _side_by_side(b: Builder, layers: Sequence[str], name: str) -> str:
    """A layer of both directions, (steps, 2, units), of layers (steps, units) or (units,); that of one as it is."""
    if len(layers) == 1:
        return layers[0]
    *steps, units = b.shape(layers[0])
    layer = b.add(Concatenate(), *layers, name=f"{b.operator.name}_{name}")
    return b.add(Reshape((*(steps or [1]), len(layers), units)), layer, name=f"{b.operator.name}_{name}_directions")


def _gates(weight: Array, kind: str, units: int) -> Array:
    """Rows of gates, (gates x units, inputs), as columns in Keras's order."""
    parts = weight.reshape(len(ORDERS[kind]), units, -1)[list(ORDERS[kind])]
    return np.ascontiguousarray(parts.reshape(-1, weight.shape[-1]).T)
