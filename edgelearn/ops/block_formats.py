"""Block formats of GGUF, in which frozen weights take 4 to 16 bits: 32 neighbouring values of a row share a scale.

Specification: github.com/ggml-org/ggml, docs/gguf.md and src/ggml-common.h. A row of a matrix is a row of blocks:

    F16   32 halves
    Q8_0  scale d (a half), 32 signed bytes q:                   d q
    Q4_0  scale d (a half), 16 bytes of two nibbles q:           d (q - 8)
    Q4_1  scale d and minimum m (halves), 16 bytes of nibbles q: d q + m

The lower nibbles are the block's first 16 values, the upper ones the others.
"""

from __future__ import annotations

import numpy as np

from edgelearn.errors import ShapeError

VALUES = 32  # of a block
BLOCK_BYTES = {"F16": 64, "Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
Matrix = tuple[int, ...]


def bytes_shape(shape: Matrix, name: str) -> Matrix:
    """Shape of the bytes of a matrix (rows, columns) in a format. Raises ShapeError for an unknown format, or columns
    that are no multiple of 32."""
    if name not in BLOCK_BYTES:
        raise ShapeError(f"Weights are in blocks of {', '.join(BLOCK_BYTES)}, not {name!r:.60}.")
    rows, columns = shape
    if columns % VALUES:
        raise ShapeError(f"A row of {name} has a multiple of {VALUES} values, not {columns}.")
    return rows, columns // VALUES * BLOCK_BYTES[name]


def decode(words: np.ndarray, name: str) -> np.ndarray:
    """The values, float32 (rows, columns), of a matrix's bytes, uint8 (rows, bytes)."""
    blocks = np.ascontiguousarray(words).reshape(len(words), -1, BLOCK_BYTES[name])

    def halves(start: int, stop: int) -> np.ndarray:
        return np.ascontiguousarray(blocks[..., start:stop]).view(np.float16).astype(np.float32)

    if name == "F16":
        values = halves(0, BLOCK_BYTES[name])
    elif name == "Q8_0":
        values = halves(0, 2) * blocks[..., 2:].view(np.int8)
    else:
        packed = blocks[..., BLOCK_BYTES[name] - VALUES // 2 :]
        nibbles = np.concatenate([packed & 15, packed >> 4], -1).astype(np.float32)
        values = halves(0, 2) * nibbles + halves(2, 4) if name == "Q4_1" else halves(0, 2) * (nibbles - 8)
    return values.reshape(len(words), -1)


def encode(matrix: np.ndarray, name: str) -> np.ndarray:
    """The bytes, uint8 (rows, bytes), of the nearest values to a matrix (rows, columns). Raises ShapeError as
    `bytes_shape`."""
    shape = bytes_shape(matrix.shape, name)
    values = np.ascontiguousarray(matrix, np.float32).reshape(len(matrix), -1, VALUES)
    if name == "F16":
        return values.astype(np.float16).reshape(len(matrix), -1).view(np.uint8)
    if name == "Q4_1":
        low = values.min(-1, keepdims=True)
        scale, heads = (values.max(-1, keepdims=True) - low) / 15, [low]
    else:
        low, heads = 0, []
        most = np.take_along_axis(values, np.abs(values).argmax(-1, keepdims=True), -1)
        scale = np.abs(most) / 127 if name == "Q8_0" else most / -8
    q = np.divide(values - low, scale, out=np.zeros_like(values), where=scale != 0)
    if name == "Q8_0":
        packed = np.rint(q).astype(np.int8).view(np.uint8)
    else:
        nibbles = np.clip(np.rint(q + (8 if name == "Q4_0" else 0)), 0, 15).astype(np.uint8)
        packed = nibbles[..., : VALUES // 2] | nibbles[..., VALUES // 2 :] << 4
    parts = [part.astype(np.float16).view(np.uint8) for part in (scale, *heads)]
    return np.concatenate([*parts, packed], -1).reshape(shape)
