"""Objects as the last line of a notebook's cell: short, whatever they hold."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.display import Displayed, plural
from edgelearn.experiments.memory_plans import Measured
from edgelearn.lab.bench.report import BenchReport
from edgelearn.lab.profile import Projection, Roofline
from edgelearn.lab.runs import RunStore, compare
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
