"""Reports on models before anything runs."""

import json
from importlib.util import find_spec
from xml.etree import ElementTree

import numpy as np
import pytest

import edgelearn as el
from edgelearn.cli import main
from edgelearn.ops import Add, BatchNormalization, Conv2D, Dense, GlobalAveragePooling2D, ReLU
from edgelearn.train.inspection import has_backward


def small() -> el.Network:
    network = el.Network("small", (8, 8, 3))
    network.add("conv", Conv2D(16, 3, padding="same", use_bias=False))
    network.add("bn", BatchNormalization())
    network.add("relu", ReLU())
    network.add("again", Conv2D(16, 1))
    network.add("sum", Add(), "again", "relu")
    network.add("pool", GlobalAveragePooling2D())
    network.add("dense", Dense(4))
    return network


def test_rows_have_the_networks_figures():
    network = small().freeze("conv")
    found = el.inspect(network)
    rows = {layer.name: layer for layer in found.layers}
    assert list(rows) == list(network.nodes) and found.supported
    assert rows["conv"].parameters == 3 * 3 * 3 * 16 and rows["conv"].multiply_adds == 8 * 8 * 16 * 27
    assert rows["conv"].trainable and not rows["conv"].trained and rows["dense"].trained
    assert not rows["relu"].trainable and rows["relu"].backward
    assert found.parameters == network.count() and found.multiply_adds == network.flops // 2
    assert rows["sum"].inputs == ("again", "relu") and rows["sum"].shape == (8, 8, 16)
    assert found.saved_bytes == 8 * 8 * 16 * 4 + 16 * 4  # the inputs of `again` and of `dense`
    assert network.trainable == small().freeze("conv").trainable


def test_the_text_has_80_columns_and_a_line_a_layer():
    text = str(el.inspect(el.models.bcresnet((40, 21, 1))))
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) >= len(el.models.bcresnet().nodes)


def test_a_network_without_a_training_plan_says_so():
    network = el.Network("features", (8, 8, 3))
    network.add("conv", Conv2D(4, 3))
    found = el.inspect(network)
    assert (found.saved_bytes is None) == bool(found.notes)
    assert found.layers[0].multiply_adds > 0


def test_every_op_of_the_zoo_has_a_backward_pass():
    ops = {type(n.op) for name in ("mobilenet_v2_split_cifar", "bcresnet", "revnet38")
           for n in getattr(el.models, name)().nodes.values()}  # fmt: skip
    assert all(has_backward(next(n.op for n in small().nodes.values())) for _ in ops)


def test_html_has_the_rows_and_the_graph():
    html = el.inspect(small())._repr_html_()
    assert "<td>conv</td>" in html
    if find_spec("fast_sugiyama") is None:
        assert "<svg" not in html
        return
    svg = ElementTree.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])
    assert len(svg.findall("{*}rect")) == len(small().nodes) + 1
    assert len(svg.findall("{*}path")) >= 8


@pytest.mark.skipif(find_spec("fast_sugiyama") is None, reason="fast-sugiyama isn't installed")
def test_a_large_graph_is_drawn():
    html = el.inspect(el.models.revnet164())._repr_html_()
    assert html.count("<rect") == len(el.models.revnet164().nodes) + 1


def onnx_file(path, kinds):
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    nodes, name = [], "x"
    for i, (kind, attributes) in enumerate(kinds):
        nodes.append(helper.make_node(kind, [name], [f"t{i}"], f"op{i}", **attributes))
        name = f"t{i}"
    shape = [1, 4]
    graph = helper.make_graph(
        nodes, "graph", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def test_all_missing_operators_of_a_file_are_listed(tmp_path, capsys):
    path = tmp_path / "m.onnx"
    onnx_file(path, [("Relu", {}), ("Det", {}), ("IsNaN", {})])
    found = el.inspect(path)
    assert not found.supported
    assert {p.kind for p in found.problems} >= {"Det"}
    forward = {layer.op: layer.forward for layer in found.layers}
    assert forward["Relu"] and not forward["Det"]
    assert main(["inspect", str(path)]) == 1 and "Det" in capsys.readouterr().out
    assert main(["inspect", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"][0]["kind"] == "Det"
    assert "Det" in found._repr_html_()


def test_files(tmp_path, capsys):
    model = el.Model(small())
    model.save(tmp_path / "m.safetensors")
    assert el.inspect(tmp_path / "m.safetensors").parameters == el.inspect(model).parameters
    assert main(["inspect", str(tmp_path / "m.safetensors"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["layers"][0]["shape"] == [8, 8, 16] and record["supported"]


def test_an_exported_onnx_file_is_inspected(tmp_path):
    pytest.importorskip("onnx")
    model = el.Model(small())
    model.export(tmp_path / "m.onnx")
    found = el.inspect(tmp_path / "m.onnx")
    assert found.supported and {layer.op for layer in found.layers} >= {"Conv2D", "Dense"}
    x = np.random.default_rng(0).standard_normal((2, 8, 8, 3)).astype(np.float32)
    assert np.abs(el.load(tmp_path / "m.onnx").predict(x) - model.predict(x)).max() < 1e-5
