"""The bytes of a small GraphDef, written by hand: a product and a ReLU."""

import numpy as np


def varint(n: int) -> bytes:
    found = b""
    while n > 127:
        found, n = found + bytes([n & 127 | 128]), n >> 7
    return found + bytes([n])


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def node(name: str, kind: str, inputs: tuple[str, ...] = (), **attributes: bytes) -> bytes:
    body = field(1, name) + field(2, kind) + b"".join(field(3, i) for i in inputs)
    return field(1, body + b"".join(field(5, field(1, key) + field(2, value)) for key, value in attributes.items()))


def shape(*sizes: int) -> bytes:
    return b"".join(field(2, field(1, n % (1 << 64))) for n in sizes)


def small() -> bytes:
    kernel = np.arange(12, dtype=np.float32).reshape(4, 3)
    tensor = field(1, 1) + field(2, shape(4, 3)) + field(4, kernel.tobytes())
    return (
        node("x", "Placeholder", dtype=field(6, 1), shape=field(7, shape(-1, 4)))
        + node("kernel", "Const", dtype=field(6, 1), value=field(8, tensor))
        + node("product", "MatMul", ("x", "kernel"))
        + node("relu", "Relu", ("product",))
    )
