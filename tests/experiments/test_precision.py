"""Precision of experiments: settings, the trainings that are compared, and traces of ranges."""

import numpy as np
import pytest

from edgelearn import atomic
from edgelearn.errors import PlanError, RunError
from edgelearn.experiments import precision
from edgelearn.experiments.precision import (
    OBSERVERS,
    TRACE,
    PrecisionConfig,
    PrecisionExperiment,
    plot_ranges,
    select,
    variants,
)
from edgelearn.lab.runs import RunStore
from edgelearn.models import mobilenet_v2_cifar
from edgelearn.ops import Float16, Format, InHindsightMinMax
from edgelearn.ops.quantize import FIELDS
from edgelearn.train import RangeTrace


def test_the_precision_is_the_papers():
    precision = PrecisionConfig(weights="4", activations="fp32", observer="current").precision
    assert (precision.weights.bits, precision.weights.symmetric) == (4, True)
    assert precision.activations is None and precision.gradients.rounding == "stochastic"
    assert precision.observer == OBSERVERS["current"] and precision.simulated and not precision.traced
    assert not PrecisionConfig("sample", "fp32", "fp32", "fp32").precision.quantizes


def test_momentum_and_the_first_layer():
    network = mobilenet_v2_cifar(alpha=0.5)
    config = PrecisionConfig("cifar10-mobilenetv2", momentum=0.5, first_in_fp32=True)
    precision = config.precision_of(network)
    assert precision.observer == InHindsightMinMax(0.5) and PrecisionConfig().precision.observer == InHindsightMinMax(
        0.9
    )
    precision.check(network)
    first, second = list(precision.exceptions)
    assert first in network.inputs and second == next(iter(network.nodes)) and len(precision.exceptions) == 2
    assert precision.format("weights", second) is None and precision.format("weights", "dense") == Format(
        8, symmetric=True
    )
    floats = PrecisionConfig("sample", "fp32", "fp32", "fp32", first_in_fp32=True)
    assert floats.precision_of(network) == floats.precision


def test_half_precision_and_inputs_of_batchnorm():
    precision = PrecisionConfig("sample", "fp16", "fp16", "fp16", norm_inputs="8").precision
    assert precision.weights == precision.activations == precision.gradients == Float16()
    assert precision.norm_inputs == Format(8)


def test_all_that_is_compared():
    names = [variant.name for variant in variants()]
    assert len(names) == len(set(names)) == 4 + 3 * len(OBSERVERS) + 2 + 2 + 2 + 3 + 3 * 2 + 2 * 2
    base = PrecisionConfig("cifar10-resnet18", epochs=3)
    configs = [variant.config(base, seed=2) for variant in variants()]
    assert len({PrecisionExperiment.training(config) for config in configs}) == len(configs)
    assert {(c.task, c.epochs, c.seed) for c in configs} == {("cifar10-resnet18", 3, 2)}
    assert [variant.name for variant in select(["fp32", "gradients of *"])] == [names[0], *names[-4:]]
    with pytest.raises(RunError, match=r"'all'.*fp32; tf32"):
        select(["all"])


def test_where_data_lie_and_what_is_traced_changes_no_training():
    training = PrecisionExperiment.training
    assert training(PrecisionConfig(data="here", trace=5)) == training(PrecisionConfig(epochs=6))
    assert training(PrecisionConfig(device="intel")) == training(PrecisionConfig()), "runs say what they ran on"
    assert training(PrecisionConfig(per_channel=True)) != training(PrecisionConfig())


# -- traces of ranges --------------------------------------------------------------------------------------------------


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
