"""Initial values of weights, by Keras's names: functions of the weight's shape, the number of inputs of an output value
(`fan_in`) and a random generator, which return float32 of that shape."""

from __future__ import annotations

from math import prod, sqrt

import numpy as np

Shape = tuple[int, ...]
AT_ONCE = 1 << 13  # numbers drawn in float64 at a time


def zeros(shape: Shape, fan_in: int, rng: np.random.Generator) -> np.ndarray:
    return np.zeros(shape, np.float32)


def ones(shape: Shape, fan_in: int, rng: np.random.Generator) -> np.ndarray:
    return np.ones(shape, np.float32)


def glorot_uniform(shape: Shape, fan_in: int, rng: np.random.Generator) -> np.ndarray:
    """Glorot and Bengio 2010, equation 16; the fans are those that Keras reads from the shape."""
    receptive = prod(shape[:-2])
    limit = sqrt(6 / ((shape[-2] + shape[-1]) * receptive))
    drawn = np.empty(prod(shape), np.float32)
    for start in range(0, len(drawn), AT_ONCE):  # all doubles at once would take twice the memory of the weight
        part = drawn[start : start + AT_ONCE]
        part[:] = rng.uniform(-limit, limit, len(part))
    return drawn.reshape(shape)


def he_normal(shape: Shape, fan_in: int, rng: np.random.Generator) -> np.ndarray:
    """He et al. 2015, equation 10: variance 2 / fan_in, of a normal distribution cut off at two deviations. Unlike
    in Keras, the fan of a depthwise kernel is only its taps, since an output depends on one channel."""
    cut = rng.standard_normal(shape)
    while (beyond := np.abs(cut) > 2).any():
        cut[beyond] = rng.standard_normal(np.count_nonzero(beyond))
    return (cut * sqrt(2 / fan_in) / CUT_DEVIATION).astype(np.float32)


def orthogonal(shape: Shape, fan_in: int, rng: np.random.Generator) -> np.ndarray:
    """A matrix with orthonormal rows or columns (Saxe et al. 2014), of all axes but the last and of the last one."""
    rows, columns = prod(shape[:-1]), shape[-1]
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q = q * np.sign(np.diag(r))
    return np.ascontiguousarray(q if rows >= columns else q.T, np.float32).reshape(shape)


def unit_forget_bias(shape: Shape, fan_in: int, rng: np.random.Generator) -> np.ndarray:
    """1 for the forget gates of an LSTM, the second quarter, and 0 for the others (Jozefowicz et al. 2015)."""
    bias = np.zeros(shape, np.float32)
    quarter = shape[-1] // 4
    bias[..., quarter : 2 * quarter] = 1
    return bias


CUT_DEVIATION = 0.8796256610342398  # of the standard normal distribution between -2 and 2
INITIALIZERS = {
    function.__name__: function for function in (zeros, ones, glorot_uniform, he_normal, orthogonal, unit_forget_bias)
}
