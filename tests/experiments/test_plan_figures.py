from dataclasses import replace

import pytest

import edgelearn as el
from edgelearn.compile import Compress, Offload, Recompute, make_plan
from edgelearn.compile.plan import explain
from edgelearn.experiments.memory_plans import plot_roles, plot_timeline
from edgelearn.ops import Dense, Softmax

MB = 10**6


@pytest.fixture(scope="module")
def model():
    network = el.Network("wide", (64,))
    for name in ("first", "second"):
        network.add(name, Dense(256))
    network.add("softmax", Softmax())
    return el.Model(network).compile(el.Adam(0.01))


def test_roles_add_up(model):
    plans = {"whole": model.plan(32), "in parts": model.plan(32, 4)}
    axes = plot_roles(plans).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(plans)
    for row, plan in enumerate(plans.values()):
        drawn = sum(bar.get_width() for bars in axes.containers for bar in [bars[row]])
        assert drawn == pytest.approx(plan.peak_bytes / MB, rel=0.02)  # but for what is too little to see
    texts = [text.get_text().strip() for text in axes.texts]
    assert texts == [f"{plan.peak_bytes / MB:,.2f} MB" for plan in plans.values()]


@pytest.mark.parametrize("way", (None, Compress(), Offload(), Recompute()))
def test_timeline_is_the_explanations(model, way):
    request = model.plan(32).request
    plan = make_plan(
        replace(request, activation_memory=dict.fromkeys(request.network.nodes, way) if way else {}), model.device
    )
    (axes,) = plot_timeline(plan, "two layers").axes
    timeline = explain(plan).timeline
    assert [list(line.get_ydata()) for line in axes.lines if line.get_label() == "offloaded"] == (
        [[moment.paged / 1e6 for moment in timeline]] if way == Offload() else []
    )
    drawn = [sum(bars[place].get_height() for bars in axes.containers) for place in range(len(timeline))]
    assert drawn == pytest.approx([moment.nbytes / 1e6 for moment in timeline])
    assert [text.get_text() for text in axes.get_xticklabels()] == [moment.layer for moment in timeline]
    assert {plan.arena_bytes / 1e6} in [set(line.get_ydata()) for line in axes.lines]
    assert max(moment.nbytes for moment in timeline) <= plan.arena_bytes
    assert [text.get_text() for text in axes.texts][1:] == ["backward pass →"]


def test_timeline_of_a_prediction(model):
    (axes,) = plot_timeline(model.forward_plan(32)).axes
    assert len(axes.texts) == 1 and axes.containers
