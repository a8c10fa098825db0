from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from edgelearn.errors import ShapeError
from edgelearn.graph import Network
from edgelearn.ops import Conv2D, Dense, DepthwiseConv2D
from edgelearn.ops.initializers import CUT_DEVIATION

CASES = {  # op, input shape, what makes one output
    "convolution": (Conv2D(64, 3), (8, 8, 32), 9 * 32),
    "grouped": (Conv2D(64, 3, groups=4), (8, 8, 32), 9 * 8),
    "depthwise": (DepthwiseConv2D(5), (8, 8, 800), 25),
    "dense": (Dense(100), (200,), 200),
}


def kernel(op, shape, seed=0):
    net = Network("one", shape)
    net.add("layer", op)
    return net.initialize(seed)["layer/kernel"]


@pytest.mark.parametrize("case", CASES)
def test_he_normal_is_a_normal_distribution_cut_at_two_deviations(case):
    op, shape, fan_in = CASES[case]
    op = replace(op, kernel_initializer="he_normal")
    drawn = kernel(op, shape)
    deviation = np.sqrt(2 / fan_in)
    assert drawn.dtype == np.float32
    assert stats.kstest(drawn.ravel() * CUT_DEVIATION / deviation, stats.truncnorm(-2, 2).cdf).pvalue > 1e-3
    assert drawn.std() == pytest.approx(deviation, rel=0.03)
    assert (drawn == kernel(op, shape)).all() and (drawn != kernel(op, shape, 1)).mean() > 0.99


def test_the_deviation_of_the_cut_distribution():
    assert abs(CUT_DEVIATION - stats.truncnorm(-2, 2).std()) < 1e-12


def test_glorot_uniform_is_the_default():
    drawn, limit = kernel(Dense(100), (200,)), np.sqrt(6 / 300)
    assert stats.kstest(drawn.ravel(), stats.uniform(-limit, 2 * limit).cdf).pvalue > 1e-3


def test_an_unknown_initializer():
    with pytest.raises(ShapeError, match=r"glorot_uniform.*magic"):
        kernel(Dense(2, kernel_initializer="magic"), (3,))
