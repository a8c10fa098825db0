import numpy as np
import pytest

from edgelearn.errors import PlanError
from edgelearn.ops.quantise import FIELDS
from edgelearn.train import RangeTrace
from edgelearn.widgets import plot_ranges


def trace() -> RangeTrace:
    records = np.zeros((4, 3, 16), np.float32)
    records[:, :, FIELDS.index("count")] = 10
    records[:, :, FIELDS.index("clipped")] = np.arange(12).reshape(4, 3) / 2
    return RangeTrace(["a/activations", "b/gradients", "a/gradients"], np.array([1, 11, 21, 31]), records)


def test_rows_are_layers_and_columns_steps():
    axes = plot_ranges(trace(), "clipped").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "a"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "11", "21", "31"]
    drawn = np.asarray(axes.images[0].get_array())
    assert drawn == pytest.approx(np.arange(12).reshape(4, 3)[:, 1:].T / 20)


def test_what_a_trace_does_not_have():
    with pytest.raises(PlanError, match="cosine"):
        plot_ranges(trace(), "speed")
    with pytest.raises(PlanError, match="no weights"):
        plot_ranges(trace(), "clipped", "weights")
