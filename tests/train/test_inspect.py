"""Reports on models and plans for budgets, before anything runs."""

import json
from dataclasses import replace
from importlib.util import find_spec
from xml.etree import ElementTree

import numpy as np
import pytest

import edgelearn as el
from edgelearn.cli import main
from edgelearn.compile import Compress, account
from edgelearn.compile.planner import shares_of_layers
from edgelearn.compile.search import Budget, budgets
from edgelearn.errors import EdgelearnError, PlanError
from edgelearn.graph import reversible
from edgelearn.models import mobilenet_v2_cifar
from edgelearn.ops import Add, BatchNormalization, Conv2D, Dense, GlobalAveragePooling2D, ReLU
from edgelearn.train.inspection import BLOCKS, draw_folded, has_backward


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
    rows = {line.split()[0]: line.split()[3:6] for line in str(el.inspect(el.models.vgg16())).splitlines() if line}
    assert rows["block1_conv1"] == ["1.79k", "86.7M", "12.8M"] and rows["fc1"] == ["103M", "103M", "16.4k"]
    assert rows["block1_conv2"][1] == "1.85G"


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
@pytest.mark.parametrize("make", [el.models.revnet164, lambda: mobilenet_v2_cifar(alpha=0.25)])
def test_a_large_graph_is_folded_into_blocks_with_every_layer(make):
    found = el.inspect(make())
    html = found._repr_html_()
    graph = ElementTree.fromstring(html[html.index("<section") : html.index("</section>") + len("</section>")])
    blocks = graph.findall("details")
    assert 5 < len(blocks) <= BLOCKS and not any("open" in block.attrib for block in blocks)
    assert sum(int(block.findtext("summary").partition(": ")[2].split()[0]) for block in blocks) == len(found.layers)
    texts = {text.text for text in graph.iter("{http://www.w3.org/2000/svg}text")}
    assert {layer.name[:28] for layer in found.layers} <= texts
    assert "<details" not in draw_folded(el.inspect(small()).layers, ("input",))


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


BATCH = 8


def network():
    net = el.Network("rows", (12, 12, 3))
    last = net.add("stem", Conv2D(16, 3, padding="same"))
    for block in range(3):
        net.add(f"conv{block}", Conv2D(16, 3, padding="same", use_bias=False), last)
        net.add(f"norm{block}", BatchNormalization())
        net.add(f"relu{block}", ReLU())
        last = net.add(f"add{block}", Add(), last, f"relu{block}")
    net.add("pool", GlobalAveragePooling2D())
    net.add("dense", Dense(4))
    return net


@pytest.fixture(scope="module")
def whole():
    return el.Model(network()).plan(BATCH)


@pytest.mark.parametrize(("count", "share"), [("peak", 0.3), ("stored", 0.2), ("device", 0.5)])
def test_what_fits_is_planned_and_allocated_as_it_says(whole, count, share):
    limit = Budget(int(Budget(0, count).used_by(whole) * share), count)
    fitting = el.plan_for(network(), f"{limit.nbytes} {count}", BATCH)
    assert fitting.combinations and all(limit.fits(each.plan) for each in fitting.combinations)
    assert [each.seconds for each in fitting.combinations] == sorted(each.seconds for each in fitting.combinations)
    kinds = {(each.combination.precision, each.combination.trained) for each in fitting.combinations}
    assert len(kinds) + len(fitting.refused) == 3 * 3
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(BATCH, 12, 12, 3)).astype(np.float32), rng.integers(0, 4, BATCH)
    chosen = dict.fromkeys((fitting.best, fitting.combinations[0], fitting.combinations[-1]))
    for each in chosen:
        model = el.combined(network(), each.combination, el.SGD(0.01))
        model.context.ledger.restart_peak()
        model.fit(x, y, BATCH, **each.combination.fit_arguments)
        assert model.context.ledger.peak == each.device_bytes == each.plan.peak_bytes
        assert limit.fits(model.plan(BATCH, **each.combination.fit_arguments))
    text = " ".join(str(fitting).split())  # its lines end at 80 columns
    assert fitting.int8_speed and fitting.int8_speed in text
    assert str(fitting.largest_micro_batch) in text and len(repr(fitting)) < 120


def test_the_best_changes_least(whole):
    size = account(whole).peak
    same = el.plan_for(network(), f"{size} peak", BATCH).best
    assert same.differs == () and same.combination == el.Combination() and same.activation_bytes == size
    less = el.plan_for(network(), f"{int(0.7 * size)} peak", BATCH, precision=["fp32"], trained=[()])
    assert less.best.combination.activation_memory.endswith("peak") and less.best.differs == ()
    smaller = el.plan_for(network(), f"{size // 7} peak", BATCH, precision=["fp32"], trained=[()]).best
    assert smaller.differs == ("BatchNorm",) and smaller.combination.micro_batch < BATCH


def test_the_largest_micro_batch_is_the_largest(whole):
    """Against every size that it could be."""
    for share in (0.2, 0.45):
        limit = f"{int(share * account(whole).peak)} peak"
        fitting = el.plan_for(network(), limit, BATCH, precision=["fp32"], trained=[()])
        sizes = []
        for size in (8, 4, 2, 1):
            try:
                el.Model(network()).plan(BATCH, size, limit)
            except PlanError:
                continue
            sizes.append(size)
        assert fitting.largest_micro_batch == max(sizes)


def test_where_nothing_fits():
    none = el.plan_for(network(), "20 kB", BATCH)
    assert not none.combinations and len(none.refused) == 9 and none.largest_micro_batch == 0
    assert none.refused[0].nbytes == min(each.nbytes for each in none.refused)
    assert "0.02 MB peak" in " ".join(str(none).split())  # the weights alone take more
    with pytest.raises(PlanError, match="rows"):
        _ = none.best
    assert el.plan_for(network(), "1 kB stored", BATCH, precision=["fp8"]).refused[0].nbytes == ()
    for wrong in ("a lot", "5 apples"):
        with pytest.raises(PlanError, match="MB"):
            el.plan_for(network(), wrong)
    with pytest.raises(EdgelearnError, match="lenet"):
        el.plan_for("lenet", "1 MB")


def test_settings_of_a_model_hold(whole):
    model = el.Model(network(), seed=1).compile(el.Adam(0.01), batchnorm="moving", allow=[Compress()])
    fitting = el.plan_for(model, f"{account(whole).stored // 30} stored", BATCH, precision=["fp32"], trained=["dense"])
    request = fitting.best.plan.request
    assert request.optimizer == el.Adam(0.01) and request.batchnorm == "moving" and request.seed == 1
    assert request.trainable == {"dense/kernel", "dense/bias"} and len(model.network.trainable) > 2
    assert model.optimizer == el.Adam(0.01) and fitting.best.differs == ("layers",)


def test_refusals_of_fit_name_what_fits(whole):
    """The largest micro-batch, and the nearest combination at the whole mini-batch."""
    model = el.Model(network())
    limit = f"{int(0.3 * account(whole).peak)} peak"
    with pytest.raises(PlanError, match=r"largest micro-batch that fits is (\d) ") as refused:
        model.plan(BATCH, budget=limit)
    size = int(str(refused.value).split("that fits is ")[1][0])
    model.plan(BATCH, size, limit)
    with pytest.raises(PlanError):
        model.plan(BATCH, size + 1, limit)
    name = str(refused.value).split("What fits: ")[1].split(".\n")[0]
    precision, _, rest = name.partition(", trained ")
    other = el.combined(network(), {"precision": precision, "trained": rest or ()})
    assert budgets(limit)[0].fits(other.plan(BATCH, budget=limit))


def test_layers_from_one_on():
    net = network()
    assert shares_of_layers(net) == [(), ("from conv1",), ("from dense",)]
    trained = el.Combination(trained="from conv2").network(net).trainable
    assert trained == {"conv2/kernel", "norm2/gamma", "norm2/beta", "dense/kernel", "dense/bias"}
    assert len(net.trainable) > len(trained)
    with pytest.raises(PlanError, match="'conv9'"):
        el.Combination(trained="from conv9").network(net)
    coupled = el.Combination(activation_memory="invertible").network(mobilenet_v2_cifar(alpha=0.25))
    assert set(coupled.nodes) == set(reversible(mobilenet_v2_cifar(alpha=0.25)).nodes)
    for wrong in {"precision": "fp7"}, {"activation_memory": "magic"}:
        with pytest.raises(PlanError, match=r"fp7|magic"):
            el.combined(net, wrong)


def test_the_best_of_an_untrained_network_leaves_no_layer_random(whole):
    size = account(whole).peak
    model = el.Model(network())
    assert model.untrained and not el.Model(network(), network().initialize(0)).untrained
    fitting = el.plan_for(model, f"{size // 7} peak", BATCH)
    last = next(each for each in fitting.combinations if "layers" in each.differs)
    few = min(len(each.differs) for each in fitting.combinations)
    fewer = replace(fitting, combinations=[replace(last, differs=("layers",)), *fitting.combinations])
    assert few == 1 and "layers" not in fitting.best.differs and "layers" not in fewer.best.differs
    assert replace(fewer, untrained=False).best.differs == ("layers",), "the faster of those that change as much"
    assert "random" not in str(fitting)
    few = el.plan_for(network(), f"{size // 7} peak", BATCH, trained=[("dense",)])
    assert "layers" in few.best.differs and "weights are random" in str(few)
    loaded = el.plan_for(el.Model(network(), network().initialize(0)), f"{size // 7} peak", BATCH, trained=[("dense",)])
    assert "weights are random" not in str(loaded)
