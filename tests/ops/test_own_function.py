"""A new element-wise function: a class of a few lines and its pair in OpenCL C. Reference, gradient and conversions
follow from its formula."""

from dataclasses import dataclass

import numpy as np
import pytest

from edgelearn.ops import Activation, Op

from .plain import check_plain

SOURCE = """
#include "blocked.h"
INLINE V bend_forward(const V v, const float a, const float b) { return v * v * a + v; }
INLINE V bend_backward(const V x, const V g, const float a, const float b) { return g * (x * (2 * a) + (V)1); }
#include "activation_layer.h"
"""


@pytest.fixture
def bend(tmp_path):
    (tmp_path / "bend.cl").write_text(SOURCE)

    @dataclass(frozen=True)
    class Bend(Activation):
        """x + curvature * x²."""

        curvature: float = 0.5

        kernel = "bend"
        source = str(tmp_path / "bend.cl")
        needs_input = True

        def formula(self, xp, x):
            return x + self.curvature * xp.square(x)

    yield Bend
    del Op.registry["Bend"]


@pytest.mark.parametrize("channels", (3, 33))
def test_it_computes_its_formula(bench, rng, bend, channels):
    check_plain(bend(0.25), bench, rng, (4, 5, channels))
    x = rng.standard_normal(7)
    assert np.allclose(bend(0.25).derivative(x), 1 + 0.5 * x)
