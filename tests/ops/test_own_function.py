"""A new element-wise function: a class of a few lines and its pair in OpenCL C. Reference, gradient and conversions
follow from its formula, and an entry in a format's table reads and writes it."""

from dataclasses import dataclass

import numpy as np
import pytest

import edgelearn as el
from edgelearn.interop import read_model, read_onnx
from edgelearn.interop.forms import forms
from edgelearn.ops import Activation, Dense, Op

from .harness import check_op

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
    class Curve(Activation):
        """x + curvature * x²."""

        curvature: float = 0.5

        kernel = "bend"
        source = str(tmp_path / "bend.cl")
        needs_input = True

        def formula(self, xp, x):
            return x + self.curvature * xp.square(x)

    yield Curve
    del Op.registry["Curve"]


@pytest.mark.parametrize("channels", (3, 33))
def test_it_computes_its_formula(bench, rng, bend, channels):
    check_op(bend(0.25), bench, rng, (4, 5, channels))
    x = rng.standard_normal(7)
    assert np.allclose(bend(0.25).derivative(x), 1 + 0.5 * x)


def test_it_leaves_for_onnx_and_comes_back(bend, rng, tmp_path, monkeypatch):
    """Out by its formula; in, and out as an operator, by one entry in the table of the format."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    network = el.Network("bent", (6,))
    network.add("dense", Dense(5))
    network.add("bend", bend(0.25))
    model, x = el.Model(network, seed=1), rng.standard_normal((3, 6)).astype(np.float32)
    model.export(tmp_path / "out.onnx")
    session = runtime.InferenceSession(tmp_path / "out.onnx")
    (y,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(y, model.predict(x), atol=1e-5)

    monkeypatch.setitem(read_onnx.HANDLERS, "Bend", forms({"Bend": "Curve"})["Bend"])
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, 6]) for name in "xy"]
    node = onnx.helper.make_node("Bend", ["x"], ["y"], curvature=0.75)
    graph = onnx.helper.make_graph([node], "bent", value[:1], value[1:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "in.onnx")
    (read,) = read_model(tmp_path / "in.onnx").network.nodes.values()
    assert read.op == bend(0.75)

    model.export(tmp_path / "own.onnx")  # the same entry writes it
    (node,) = (node for node in onnx.load(tmp_path / "own.onnx").graph.node if node.op_type == "Bend")
    assert [(a.name, a.f) for a in node.attribute] == [("curvature", 0.25)]
    again = read_model(tmp_path / "own.onnx")
    assert [type(n.op) for n in again.network.nodes.values()] == [Dense, bend]
    np.testing.assert_array_equal(el.Model(again.network, again.weights).predict(x), model.predict(x))
