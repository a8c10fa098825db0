"""Model files made of protocol buffers: a good one, and changes that fit its structure."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np

from .graphdef import varint
from .mutations import damage_bytes

DEPTH = 12  # of messages in messages
INTEGERS = (0, 1, 2, 3, 7, 255, 65536, 2**31 - 1, 2**31, 2**62, 2**63, 2**64 - 1)
NAMES = (b"", b"x", b"y", b"Conv", b"Reshape", b"Loop", b"../../etc/passwd", b"a" * 1000)


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


def damage_protobuf(data: bytes, rng: Random) -> bytes:
    """Change one field of a protocol buffer, at any depth; the lengths of the messages around it fit."""
    return _damaged(data, rng, DEPTH) or damage_bytes(data, rng)


def _damaged(data: bytes, rng: Random, depth: int) -> bytes | None:
    """The message with one field changed, None if it isn't a message."""
    fields = _fields(data)
    if not fields:
        return None
    place = rng.randrange(len(fields))
    key, content = fields[place]
    action = rng.random()
    if action < 0.05:
        fields.pop(place)
    elif action < 0.1:
        fields.append(fields[place])
    elif key & 7 == 2:
        inner = _damaged(content, rng, depth - 1) if depth and rng.random() < 0.9 else None
        other = rng.choice(NAMES) if rng.random() < 0.3 else damage_bytes(content, rng)
        fields[place] = (key, other if inner is None else inner)
    else:
        fields[place] = (key, varint(rng.choice(INTEGERS)) if key & 7 == 0 else content)
    return b"".join(varint(key) + (varint(len(content)) if key & 7 == 2 else b"") + content for key, content in fields)


def _fields(data: bytes) -> list[tuple[int, bytes]] | None:
    """(key, content) of each field, None if the bytes aren't a message."""
    fields, at = [], 0
    while at < len(data):
        key, at = _varint(data, at)
        kind, begin = key & 7, at
        if kind == 2:
            length, begin = _varint(data, at)
            at = begin + length
        elif kind == 0:
            _, at = _varint(data, at)
        else:
            at += {1: 8, 5: 4}.get(kind, len(data))
        if not key >> 3 or at > len(data):
            return None
        fields.append((key, data[begin:at]))
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and the place behind it; behind the end if it is cut off."""
    number = shift = 0
    while at < len(data):
        number |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return number, at
    return 0, len(data) + 1
