"""Objects as the last line of a notebook's cell: short, whatever they hold."""

import re
from html import escape

import numpy as np
import pytest

import edgelearn as el
from edgelearn.display import Displayed, plural
from edgelearn.experiments.memory_plans import Measured
from edgelearn.lab.bench.report import BenchReport
from edgelearn.lab.profile import Projection, Roofline
from edgelearn.lab.runs import RunStore, compare
from edgelearn.models import mobilenet_v2_cifar
from edgelearn.ops import Dense, Softmax


@pytest.fixture(scope="module")
def model():
    network = el.Network("tiny", (6,))
    for index in range(40):
        network.add(f"dense{index}", Dense(6))
    network.add("softmax", Softmax())
    return el.Model(network).compile(el.SGD(0.1))


def test_what_a_model_gives_is_short(model):
    x, y = np.zeros((4, 6), np.float32), np.zeros(4, np.int32)
    plan = model.plan(4)
    shown = [
        model, model.network, plan, model.phases(4), el.explain(plan), model.fit(x, y, 4), model.context,
        model.kernels, plan.request, *plan.programs.values(),
    ]  # fmt: skip
    with model.trainer(4) as trainer:
        shown.append(trainer)
        for each in shown:
            assert len(repr(each)) < 600 and " at 0x" not in repr(each), type(each)
    assert "tiny" in repr(model) and "1,680 parameters" in repr(model)
    assert "dense39" in model._repr_html_() and f"{plan.peak_bytes / 1e6:.2f} MB" in repr(plan)
    assert "<pre>" in plan._repr_html_() and "all device memory" in plan._repr_html_()


def test_a_model_is_a_table_of_its_layers():
    """It was text of fixed width, whose lines wrapped in a narrow window."""
    network = el.Network("a<b", (6,))
    network.add("dense", Dense(6))
    network.add("classifier", Dense(3))
    network.add("softmax", Softmax())
    network.freeze("dense")
    model = el.Model(network)
    html = model._repr_html_()
    assert "<pre>" not in html and "<details" not in html and "tabindex='0'" in html, "the keyboard scrolls it"
    assert "a&lt;b" in html and escape(model.device.id) in html
    assert "63 parameters (0.00026 MB), 21 of them trainable" in html
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in html.split("<tr>")[2:]]
    assert cells == [
        ["dense", "Dense", "6", "42", "no"],
        ["classifier", "Dense", "3", "21", "yes"],
        ["softmax", "Softmax", "3", "0", ""],
    ]


def test_the_table_of_a_long_network_is_folded():
    html = el.Model(mobilenet_v2_cifar(alpha=0.25))._repr_html_()
    before, folded = html.split("<details>")
    assert "<table" not in before and "parameters" in before and "<summary>" in folded and "conv" in folded
    assert "<details open" not in html


def test_a_comparison_of_runs(tmp_path):
    store = RunStore(tmp_path)
    runs = []
    for seed in (0, 1):
        with store.create("toys", {"seed": seed}) as run:
            for epoch in range(200):
                run.append_epoch({"epoch": epoch + 1, "loss": 1.0})
            run.finish({"accuracy": 0.5})
        runs.append(store.open(run.id))
    found = compare(runs)
    assert len(repr(found)) < 200 and runs[0].id in repr(found) and "seed" in found._repr_html_()


def test_what_the_laboratory_measures():
    measured = Measured("keep_all", np.array([0.002, 0.001, 0.003]), 1, 2.0, network="tiny")
    assert repr([measured]) == "[<Measured 'keep_all' of tiny: 2.0 ms a step>]"
    for kind in BenchReport, Projection, Roofline:
        assert issubclass(kind, Displayed) and kind.__repr__ is Displayed.__repr__


def test_a_drawing_whose_package_is_missing_leaves_the_text():
    class Drawn(Displayed):
        drawn_by = "edgelearn_package_that_is_missing:draw"
        headline = "of <two>"

    assert Drawn()._repr_html_() == "<pre>&lt;Drawn of &lt;two&gt;&gt;</pre>"


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(1, "seed", "1 seed"), (0, "seed", "0 seeds"), (1200, "class", "1,200 classes"), (2, "batch", "2 batches"),
     (2, "epoch", "2 epochs"), (2, "depth", "2 depths")],
)  # fmt: skip
def test_plurals(count, noun, text):
    assert plural(count, noun) == text
