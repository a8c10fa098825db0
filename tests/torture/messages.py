"""Model files made of protocol buffers: a good one, and changes that fit its structure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

INTEGERS = (0, 1, 2, -1, 3, 7, 255, 65536, 2**31 - 1, 2**31, 2**62, -(2**63))
NUMBERS = (0.0, -1.0, 1e38, float("inf"), float("nan"))


def make_onnx(folder: Path) -> Path:
    """A small network with many kinds of operators."""
    from onnx import TensorProto, helper, numpy_helper

    arrays = {
        "k": np.ones((4, 3, 3, 3), np.float32), "d": np.ones((4, 1, 3, 3), np.float32), "v": np.ones(4, np.float32),
        "m": np.ones((5, 64), np.float32), "b": np.ones(5, np.float32),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "three": np.float32(3), "six": np.float32(6), "zero": np.float32(0),
        "sizes": np.array([1, 4, 8, 8]), "groups": np.array([0, 2, 2, 4, 4]), "image": np.array([0, -1, 4, 4]),
        "front": np.array([0]), "rest": np.array([-1]), "nought": np.array(0), "ones": np.array([1, 4]),
    }  # fmt: skip
    nodes = [
        ("Pad", ["x", "pads"], ["p"], {}), ("Conv", ["p", "k"], ["c"], {"strides": [2, 2]}),
        ("BatchNormalization", ["c", "v", "v", "v", "v"], ["n"], {}), ("Add", ["n", "three"], ["a"], {}),
        ("Clip", ["a", "zero", "six"], ["r"], {}), ("Mul", ["n", "r"], ["h"], {}), ("Div", ["h", "six"], ["s"], {}),
        ("Conv", ["s", "d"], ["e"], {"group": 4, "auto_pad": "SAME_UPPER"}),
        ("Reshape", ["e", "groups"], ["g"], {}), ("Transpose", ["g"], ["t"], {"perm": [0, 2, 1, 3, 4]}),
        ("Reshape", ["t", "image"], ["i"], {}), ("Split", ["i"], ["y1", "y2"], {"axis": 1}),
        ("Concat", ["y2", "y1"], ["j"], {"axis": 1}), ("Resize", ["j", "", "", "sizes"], ["u"], {"mode": "linear"}),
        ("MaxPool", ["u"], ["o"], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("ConstantOfShape", ["ones"], ["w"], {}), ("Shape", ["o"], ["q"], {}),
        ("Gather", ["q", "nought"], ["q0"], {"axis": 0}), ("Unsqueeze", ["q0", "front"], ["q1"], {}),
        ("Concat", ["q1", "rest"], ["q2"], {"axis": 0}), ("Reshape", ["o", "q2"], ["f"], {}),
        ("Gemm", ["f", "m", "b"], ["z"], {"transB": 1}), ("Softmax", ["z"], ["y"], {}),
    ]  # fmt: skip
    made = [helper.make_node(kind, inputs, outputs, **more) for kind, inputs, outputs, more in nodes]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in (("x", ["N", 3, 8, 8]), ("y", ["N", 5]))]  # fmt: skip
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    graph = helper.make_graph(made, "small", ends[:1], ends[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


def damage_onnx(data: bytes, rng: Random) -> bytes:
    """Change some numbers, names and lists of the model, and write it as a good file."""
    from onnx import ModelProto

    model = ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        _damage(rng.choice(list(_messages(model))), rng)
    return model.SerializeToString()


def _messages(message: Any) -> Iterator[Any]:
    """A message, and all that it holds."""
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for part in value if _is_list(value) else [value]:
                yield from _messages(part)


def _damage(message: Any, rng: Random) -> None:
    fields = message.ListFields()
    if not fields:
        return
    field, value = rng.choice(fields)
    if _is_list(value):
        place = rng.randrange(len(value))
        if rng.random() < 0.3:
            del value[place]
        elif field.type == field.TYPE_MESSAGE:
            value.add().CopyFrom(value[place])
        else:
            value[place] = _other(value[place], rng)
    elif field.type != field.TYPE_MESSAGE:
        try:
            setattr(message, field.name, _other(value, rng))
        except ValueError:  # too large for the field, or no value of the enumeration
            message.ClearField(field.name)


def _other(value: Any, rng: Random) -> Any:
    if isinstance(value, str):
        return rng.choice(("", "x", "y", "Conv", "Reshape", "Loop", "../../etc/passwd", "a" * 1000))
    if isinstance(value, bytes):
        return value[: rng.randrange(len(value) + 1)]
    return rng.choice(NUMBERS) if isinstance(value, float) else rng.choice(INTEGERS)


def _is_list(value: Any) -> bool:
    return hasattr(value, "add") or hasattr(value, "append")
