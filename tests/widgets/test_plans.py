from dataclasses import replace

import pytest

import edgelearn as el
from edgelearn.graph import Compress, Page, Recompute, make_plan
from edgelearn.ops import Dense, Softmax
from edgelearn.widgets import plot_purposes, plot_roles, plot_timeline

MIB = 1 << 20


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
        assert drawn == pytest.approx(plan.peak_bytes / MIB, rel=0.02)  # but for what is too little to see
    texts = [text.get_text().strip() for text in axes.texts]
    assert texts == [f"{plan.peak_bytes / MIB:,.2f} MiB" for plan in plans.values()]


def test_timeline_is_the_plans(model):
    plan = model.plan(32)
    figure = plot_timeline(plan)
    (axes,) = figure.axes
    live = plan.live_bytes()
    assert [bar.get_height() for bar in axes.patches] == [nbytes / MIB for _, nbytes in live]
    assert [label.get_text() for label in axes.get_xticklabels()] == [layer for layer, _ in live]
    assert set(axes.lines[0].get_ydata()) == {plan.arena_bytes / MIB}
    assert max(nbytes for _, nbytes in live) <= plan.arena_bytes


@pytest.mark.parametrize("way", (Compress(), Page(), Recompute()))
def test_purposes_are_the_explanations(model, way):
    request = model.plan(32).request
    plan = make_plan(replace(request, saving=dict.fromkeys(request.network.nodes, way)), model.device)
    (axes,) = plot_purposes(plan, "two layers").axes
    timeline = plan.explain().timeline
    assert [list(line.get_ydata()) for line in axes.lines if "paged" in str(line.get_label())] == (
        [[moment.paged / 1e6 for moment in timeline]] if way == Page() else []
    )
    drawn = [sum(bars[place].get_height() for bars in axes.containers) for place in range(len(timeline))]
    assert drawn == pytest.approx([moment.nbytes / 1e6 for moment in timeline])
    assert [text.get_text() for text in axes.get_xticklabels()] == [moment.layer for moment in timeline]
