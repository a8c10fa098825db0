import pytest

from edgelearn.errors import PlanError
from edgelearn.train import WatchReconstruction
from edgelearn.widgets import plot_reconstruction


def watched(bound: float, **errors: float) -> WatchReconstruction:
    watch = WatchReconstruction(bound)
    watch.errors += [(1, dict.fromkeys(errors, 1.0)), (2, errors)]
    return watch


def test_errors_over_depth():
    watches = {"floats": watched(1e-3, last=1e-7, first=2e-6), "exact": watched(1e-3, last=0.0, first=0.0)}
    (axes,) = plot_reconstruction(watches).axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert drawn["floats, update 2"] == [1e-7, 2e-6] and drawn["exact, update 2"] == [0.0, 0.0]
    assert [1e-3, 1e-3] in drawn.values()
    assert [text.get_text() for text in axes.get_xticklabels()] == ["last", "first"]
    bottom, top = axes.get_ylim()
    assert bottom < 0 and top > 1e-3


@pytest.mark.parametrize("watch", (WatchReconstruction(), watched(1e-3)))
def test_nothing_to_draw(watch):
    with pytest.raises(PlanError, match="'mine'"):
        plot_reconstruction({"mine": watch})
