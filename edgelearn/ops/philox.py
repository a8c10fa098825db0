"""Random numbers from a counter: the same on the host and on every device."""

from __future__ import annotations

from math import prod
from zlib import crc32

import numpy as np

from .tensor import BLOCK, Shape, ceil_div

FEW_ROUNDS = 7  # the fewest with which the authors' tests find nothing: kernels/include/philox.h


def uniform(name: str, shape: Shape, seed: int, step: int, first: int = 0) -> np.ndarray:
    """The numbers of [0, 1), multiples of 2**-24, that kernels draw for a tensor.

    Arguments:
    - `name`: of the layer or the tensor.
    - `shape`: (examples, ..., channels).
    - `first`: place of the first example in the mini-batch (default 0).
    """
    return (_drawn(name, shape, seed, step, first) >> 8) * 2.0**-24


def rounding_numbers(name: str, shape: Shape, seed: int, step: int, first: int = 0) -> np.ndarray:
    """The numbers of (0, 1), odd multiples of 2**-17, by which stochastic rounding decides for a tensor: a value is
    rounded up with a probability that is off by 2**-17 at most. Arguments as of `uniform`."""
    return _drawn(name, shape, seed, step, first, values=8, rounds=FEW_ROUNDS) * 2.0**-16 + 2.0**-17


def _drawn(name: str, shape: Shape, seed: int, step: int, first: int, values: int = 4, rounds: int = 10) -> np.ndarray:
    """Random bits for each value of a tensor. The four words of a counter serve `values` of them, 4 or 8."""
    channels = ceil_div(shape[-1], BLOCK) * BLOCK
    counter = np.zeros((shape[0], prod(shape[1:-1]) * channels // values, 4), np.uint32)
    counter[..., 0] = np.arange(counter.shape[1])
    counter[..., 1] = np.arange(first, first + shape[0])[:, None]
    counter[..., 2:] = layer_code(name), step
    bits = philox(counter, seed, rounds).astype("<u4").view(f"<u{16 // values}")
    return bits.reshape(*shape[:-1], channels)[..., : shape[-1]]


def layer_code(layer: str) -> int:
    """A hash of 31 bits of a layer's name."""
    return crc32(layer.encode()) & 0x7FFFFFFF


def philox(counter: np.ndarray, seed: int, rounds: int = 10) -> np.ndarray:
    """Philox4x32 (Salmon et al. 2011): four random uint32 for each counter (..., 4), under a key of 64 bits."""
    x, y, z, w = np.moveaxis(np.asarray(counter, np.uint64), -1, 0)
    low, word = seed & 0xFFFFFFFF, np.uint64(0xFFFFFFFF)
    high = seed >> 32
    for _ in range(rounds):
        a, b = x * np.uint64(0xD2511F53), z * np.uint64(0xCD9E8D57)
        x, y = (b >> np.uint64(32)) ^ y ^ np.uint64(low), b & word
        z, w = (a >> np.uint64(32)) ^ w ^ np.uint64(high), a & word
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([x, y, z, w], -1).astype(np.uint32)
