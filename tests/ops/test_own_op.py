"""An op and its kernels in files of one's own, outside the package, trained like any other."""

import numpy as np
import pytest

from edgelearn.compile import Request, make_plan
from edgelearn.graph import Network
from edgelearn.ops import SGD, Add, Conv2D, Dense, GlobalAveragePooling2D, ReLU, pack
from edgelearn.runtime import Session
from tests.compile.reference import train_step
from tests.own_files import import_own

from .harness import close

OP = '''
from dataclasses import dataclass
from pathlib import Path

from edgelearn.ops import Op, Weight
from edgelearn.ops.emit import start_sum

SOURCE = str(Path(__file__).with_suffix(".cl"))


@dataclass(frozen=True)
class Bend(Op):
    """x + curvature * x^2, with a curvature for each channel."""

    def output_shape(self, shape):
        return shape

    def weights(self, shape):
        return {"curvature": Weight(shape[-1:], "ones")}

    def reference_forward(self, inputs, weights):
        return inputs[0] + weights["curvature"] * inputs[0] ** 2

    def reference_backward(self, inputs, weights, dy):
        (x,) = inputs
        dx = dy * (1 + 2 * weights["curvature"] * x)
        return [dx], {"curvature": (dy * x**2).sum(tuple(range(x.ndim - 1)))}

    def emit_forward(self, e, inputs, y):
        x, curvature = inputs
        grid = (x.rows * 16, x.blocks)
        e.launch(SOURCE, "bend_forward", grid, x.read, curvature.read, y.write, x.rows, whole=True)

    def emit_backward(self, e, inputs, y, dy, targets):
        (x, curvature), (dx, dcurvature) = inputs, targets
        if dx:
            e.launch(
                SOURCE, "bend_backward", (x.rows * 16, x.blocks), x.read, curvature.read, dy.read, x.rows,
                *dx.arguments, whole=True, **dx.macros,
            )
        if not dcurvature:
            return []
        total, rows = start_sum(e, dcurvature.tensor, x.rows, 3)
        e.launch(
            SOURCE, "bend_weights", (16, x.blocks, total.groups), x.read, dy.read,
            total.target.update if dcurvature.accumulate else total.target.write, x.rows, rows,
            whole=True, accumulate=dcurvature.accumulate,
        )
        return [total]
'''

KERNELS = """
#include "blocked.h"
#include "bend.h"

KERNEL bend_forward(INPUT(x), INPUT(curvature), OUTPUT(y), const int m) {
  const int i = get_global_id(0), block = get_global_id(1);
  if (i >= m * BLOCK) return;
  const float v = AT(x)[block * m * BLOCK + i];
  AT(y)[block * m * BLOCK + i] = v + AT(curvature)[block * BLOCK + i % BLOCK] * v * v;
}

KERNEL bend_backward(INPUT(x), INPUT(curvature), INPUT(dy), const int m, OUTPUT(dx)
#if MASK
                     , INPUT(activation)
#endif
) {
  const int i = get_global_id(0), block = get_global_id(1), at = block * m * BLOCK + i;
  if (i >= m * BLOCK) return;
  float g = AT(dy)[at] * (1 + 2 * AT(curvature)[block * BLOCK + i % BLOCK] * AT(x)[at]);
#if MASK
  g = AT(activation)[at] > 0 ? g : 0;
#endif
  AT(dx)[at] = ACCUMULATE ? AT(dx)[at] + g : g;
}

KERNEL bend_weights(INPUT(x), INPUT(dy), OUTPUT(sums), const int m, const int count) {
  const int lane = get_global_id(0), block = get_global_id(1), group = get_global_id(2);
  if (lane >= BLOCK) return;
  float sum = 0;
  for (int row = group * count; row < (group + 1) * count && row < m; row++) {
    const int at = (block * m + row) * BLOCK + lane;
    sum += AT(dy)[at] * AT(x)[at] * AT(x)[at];
  }
  const int at = (group * get_global_size(1) + block) * BLOCK + lane;
  AT(sums)[at] = ACCUMULATE ? AT(sums)[at] + sum : sum;
}
"""
HEADER = "#define AT(x) (x##_memory + (size_t)x##_start * BLOCK)\n"
RATE, MICRO, EXAMPLES = 0.1, 2, 5


@pytest.fixture(scope="module")
def bend(tmp_path_factory):
    """The module of an op that was written outside the package."""
    return import_own(tmp_path_factory.mktemp("own"), "bend", py=OP, cl=KERNELS, h=HEADER)


def network(bend) -> Network:
    """The op's input is a fused ReLU's output with a second reader: its gradient is masked, and added to."""
    net = Network("bent", (5, 4, 3))
    net.add("conv", Conv2D(20, 3, padding="same"))
    x = net.add("relu", ReLU())
    net.add("bend", bend.Bend())
    net.add("more", Conv2D(20, 1))
    net.add("add", Add(), "more", x)
    net.add("bend_again", bend.Bend())
    net.add("pool", GlobalAveragePooling2D())
    net.add("dense", Dense(4))
    return net


@pytest.mark.parametrize("frozen", ("", "bend", "conv"))
def test_an_own_op_is_trained(kernels, bend, rng, frozen):
    net = network(bend)
    if frozen:
        net.freeze(frozen)
    x, labels = np.float32(rng.uniform(-1, 1, (EXAMPLES, 5, 4, 3))), np.int32(rng.integers(0, 4, EXAMPLES))
    weights = net.initialize(1)
    request = Request(net, EXAMPLES, MICRO, SGD(RATE))
    plan = make_plan(request, kernels.context.device)
    session = Session(plan, kernels.context, kernels)
    session.load(weights)
    block = plan.storage.input.block
    parts = [(pack(x[i : i + MICRO], block), labels[i : i + MICRO]) for i in range(0, EXAMPLES, MICRO)]
    for step in (1, 2, 3):
        assert session.train(parts, EXAMPLES, RATE, step)[2]
        expected = train_step(request, weights, x, labels, step).gradients
        found = session.gradients()
        assert set(found) == net.trainable
        for name in net.trainable:
            close(found[name], expected[name], 5e-5)
            weights[name] = weights[name] - RATE * expected[name]
    found = session.weights()
    session.close()
    for name in net.trainable:
        close(found[name], weights[name], 5e-5)


def test_an_own_op_is_saved_with_its_network(bend):
    net = network(bend)
    assert Network.from_json(net.to_json()).nodes == net.nodes
