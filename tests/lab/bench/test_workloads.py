import numpy as np
import pytest

from edgelearn.errors import EdgelearnError, PlanError, RunError, UsageError
from edgelearn.lab.bench.engine import make_request
from edgelearn.lab.bench.workloads import DEFAULT, DEFAULT_BATCH, KINDS, OPS, Workload, make_network, make_problem


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_read_back(kind):
    workload = Workload.parse(f"{kind}:3")
    assert (workload.kind, workload.batch, workload.name) == (kind, 3, f"{kind}:3")
    assert Workload.parse(kind) == Workload(kind, DEFAULT_BATCH.get(kind, 1)) and "MobileNet V1" in workload.description
    assert workload.trains != kind.startswith("forward") and (workload.op is None) == (kind in DEFAULT_BATCH)
    assert workload.op is None or kind.partition("/")[2] in workload.description


def test_patterns_and_defaults():
    assert [w.name for w in Workload.expand("*/pool:4")] == ["forward/pool:4", "train/pool:4"]
    assert Workload.expand("cached") == [Workload.parse("cached")]
    with pytest.raises(UsageError, match="nothing"):
        Workload.expand("train/nothing*:3")
    assert [workload.name for workload in DEFAULT] == ["forward:1", "train:1", "cached:163"]


BAD = ("backward", "", "forward:", "forward:0", "forward:-1", "forward:1.5", "forward:x", "cached/pool", "forward/loss")


@pytest.mark.parametrize("text", [*BAD, "train:" + "9" * 5000], ids=range(len(BAD) + 1))
def test_bad_names_are_refused(text):
    with pytest.raises(EdgelearnError, match=r"[Ww]orkload"):
        Workload.parse(text)


def test_workloads_of_other_networks():
    workload = Workload.parse("resnet18/train:16")
    assert workload == Workload.parse("train:16", network="resnet18") == Workload("train", 16, network="resnet18")
    assert workload.name == "resnet18/train:16" and "resnet18" in workload.description
    with pytest.raises(EdgelearnError, match="mobilenet_v1"):
        Workload.parse("train/pool", network="resnet18")
    with pytest.raises(RunError, match="lenet"):
        make_network(Workload.parse("lenet/train"))
    weights = make_problem(Workload("forward", 1, network="resnet18_cifar")).weights
    ends, begins = weights["conv2_block1_2_bn/gamma"], weights["conv2_block1_1_bn/gamma"]
    assert ends.max() < 0.3 < begins.min(), "small scales end residual branches"


def test_same_seed_same_problem():
    first, again, other = (make_problem(Workload("forward", 2, seed)) for seed in (5, 5, 6))
    for numbers in (lambda p: p.inputs, lambda p: p.weights["conv_pw_2/kernel"]):
        assert np.array_equal(numbers(first), numbers(again)) and not np.array_equal(numbers(first), numbers(other))


def test_problems_of_mobilenet():
    problem = make_problem(Workload("train", 1))
    assert set(problem.weights) == set(problem.network.parameters)
    # Keras's MobileNet has 4,253,864 parameters with its classifier of 1000 classes.
    assert sum(array.size for array in problem.weights.values()) == 4_253_864
    cached = make_problem(Workload("cached", 3))  # one layer on features of ReLU6
    assert cached.network.trainable == {"conv_pw_13/kernel", "dense/kernel", "dense/bias"}
    assert cached.weights["conv_pw_13/kernel"].shape == (1, 1, 1024, 1024)
    assert cached.inputs.shape == (3, 7, 7, 1024) and cached.weights["dense/kernel"].shape == (1024, 5)
    assert cached.inputs.min() == 0 and cached.inputs.max() <= 6 and set(cached.labels) <= set(range(5))


def test_single_ops():
    assert OPS["conv1"].output_shape == (112, 112, 32) and OPS["conv_dw_2"].output_shape == (56, 56, 64)
    assert OPS["conv_pw_13"].network().parameters["op/kernel"].weight.shape == (1, 1, 1024, 1024)
    assert OPS["loss"].output_shape == ()
    with pytest.raises(PlanError, match="train/pool"):
        make_request(Workload.parse("train/pool"), 1)
