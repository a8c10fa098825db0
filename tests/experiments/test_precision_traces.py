import numpy as np
import pytest

from edgelearn import atomic
from edgelearn.errors import PlanError, RunError
from edgelearn.experiments import precision
from edgelearn.experiments.precision import TRACE, plot_ranges
from edgelearn.lab.runs import RunStore
from edgelearn.ops.quantize import FIELDS
from edgelearn.train import RangeTrace


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


def test_the_worst_of_each_tensor():
    found = trace()
    for name, values in {"signal": 1, "product": [1, 0.5, 0.25, 1], "result": 1, "noise": 0.01}.items():
        found.records[:, 2, FIELDS.index(name)] = values
    assert precision.trace_table(found, "gradients").rows == [
        ("b/gradients", "", "", "", "50.00%", ""),
        ("a/gradients", "0.2500", "21", "20.0", "55.00%", ""),
    ]
    with pytest.raises(PlanError, match="weights"):
        precision.trace_table(found, "weights")


def test_traces_of_runs(tmp_path):
    store = RunStore(tmp_path / "runs")
    with pytest.raises(RunError, match="runs"):
        precision.of_run(store)
    with store.create("precision", {}) as first:
        atomic.write_bytes(first.folder / TRACE, trace().to_bytes())
    with store.create("precision", {}) as second:
        pass
    assert precision.of_run(store)[0].id == first.id and precision.of_run(store, first.id)[1].tensors == trace().tensors
    with pytest.raises(RunError, match=second.id):
        precision.of_run(store, second.id)


def test_what_a_trace_does_not_have():
    with pytest.raises(PlanError, match="cosine"):
        plot_ranges(trace(), "speed")
    with pytest.raises(PlanError, match="weights"):
        plot_ranges(trace(), "clipped", "weights")
