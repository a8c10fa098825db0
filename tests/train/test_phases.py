import pytest

from edgelearn.errors import PlanError
from edgelearn.models import mobilenet_v1
from edgelearn.ops import SGD
from edgelearn.train import Model


@pytest.fixture(scope="module")
def model():
    network = mobilenet_v1((32, 32, 3), 0.25, 5).freeze().unfreeze("conv_pw_13", "dense")
    return Model(network).compile(SGD(0.01, momentum=0.9))


def test_phases(model):
    phases = model.phases(12, 5, cache="fp32")
    assert list(phases) == ["extract", "train"]
    assert phases.peak_bytes == max(plan.peak_bytes for plan in phases.values())
    record = phases.to_dict()
    assert record["peak_bytes"] == phases.peak_bytes
    assert record["phases"]["train"]["micro_batch"] == 5
    text = str(phases)
    assert "mini-batch 12 as micro-batches of 5" in text
    assert "(phase: extract, 16 at a time)" in text
    assert text.splitlines()[-1].split() == [
        "most", "device", "memory", "of", "the", "whole", "job", f"{phases.peak_bytes / 1e6:.2f}", "MB"
    ]  # fmt: skip
    assert list(model.phases(12, 5)) == ["train"]
    assert model.phases(12, 5)["train"].peak_bytes > phases["train"].peak_bytes


def test_the_most_that_fit_are_run_at_a_time(model):
    sizes = {n: model.forward_plan(n).peak_bytes for n in (16, 8, 4, 2, 1)}
    assert sorted(sizes.values(), reverse=True) == list(sizes.values())
    for n, needed in sizes.items():
        assert model.forward_plan(budget=needed).request.micro_batch == n
    with pytest.raises(PlanError):
        model.forward_plan(budget=sizes[1] - 1)
