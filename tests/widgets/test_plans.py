import pytest

import edgelearn as el
from edgelearn.ops import Dense, Softmax
from edgelearn.widgets import plot_roles, plot_timeline

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


def test_timeline_is_the_explanations(model):
    plan = model.plan(32)
    (axes,) = plot_timeline(plan, "two layers").axes
    timeline = plan.explain().timeline
    drawn = [sum(bars[place].get_height() for bars in axes.containers) for place in range(len(timeline))]
    assert drawn == pytest.approx([moment.nbytes / 1e6 for moment in timeline])
    assert [text.get_text() for text in axes.get_xticklabels()] == [moment.layer for moment in timeline]
    assert set(axes.lines[0].get_ydata()) == {plan.arena_bytes / 1e6}
    assert max(moment.nbytes for moment in timeline) <= plan.arena_bytes
    assert [text.get_text() for text in axes.texts][1:] == ["backward pass →"]


def test_timeline_of_a_prediction(model):
    (axes,) = plot_timeline(model.forward_plan(32)).axes
    assert len(axes.texts) == 1 and axes.containers
