import numpy as np
import pytest

from edgelearn.errors import EdgelearnError, RunError, UsageError
from edgelearn.lab.bench.workloads import DEFAULT, DEFAULT_BATCH, KINDS, Workload, make_network, make_problem


@pytest.mark.parametrize("kind", DEFAULT_BATCH)
def test_names_are_read_back(kind):
    assert Workload.parse(kind) == Workload(kind, DEFAULT_BATCH[kind])
    assert Workload.parse(f"{kind}:7").name == f"{kind}:7"
    assert "MobileNet V1" in Workload.parse(kind).description


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "/" in kind])
def test_ops_are_read_back(kind):
    workload = Workload.parse(f"{kind}:3")
    assert (workload.kind, workload.batch, workload.name) == (kind, 3, f"{kind}:3")
    assert workload.op is not None and workload.trains == kind.startswith("train/")
    assert kind.partition("/")[2] in workload.description


def test_patterns_stand_for_the_kinds_that_match():
    assert [w.name for w in Workload.expand("*/pool:4")] == ["forward/pool:4", "train/pool:4"]
    assert Workload.expand("cached") == [Workload.parse("cached")]
    with pytest.raises(UsageError, match="nothing"):
        Workload.expand("train/nothing*:3")


def test_defaults_are_the_three_of_the_command():
    assert [workload.name for workload in DEFAULT] == ["forward:1", "train:1", "cached:163"]


@pytest.mark.parametrize(
    "text",
    [
        "backward",
        "",
        "forward:",
        "forward:0",
        "forward:-1",
        "forward:1.5",
        "forward:x",
        "cached/pool",
        "forward/loss",
        "train:" + "9" * 5000,
    ],
)
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


def test_same_seed_same_problem():
    first, again, other = (make_problem(Workload("forward", 2, seed)) for seed in (5, 5, 6))
    assert np.array_equal(first.inputs, again.inputs) and not np.array_equal(first.inputs, other.inputs)
    name = "conv_pw_2/kernel"
    assert np.array_equal(first.weights[name], again.weights[name])
    assert not np.array_equal(first.weights[name], other.weights[name])


def test_the_network_has_the_parameters_of_mobilenet_v1():
    problem = make_problem(Workload("train", 1))
    assert set(problem.weights) == set(problem.network.parameters)
    # Keras's MobileNet has 4,253,864 parameters with its classifier of 1000 classes.
    assert sum(array.size for array in problem.weights.values()) == 4_253_864


def test_the_cached_head_is_one_layer_on_features_of_relu6():
    problem = make_problem(Workload("cached", 3))
    assert problem.network.trainable == {"conv_pw_13/kernel", "dense/kernel", "dense/bias"}
    assert problem.weights["conv_pw_13/kernel"].shape == (1, 1, 1024, 1024)
    assert problem.inputs.shape == (3, 7, 7, 1024) and problem.weights["dense/kernel"].shape == (1024, 5)
    assert problem.inputs.min() == 0 and problem.inputs.max() <= 6 and set(problem.labels) <= set(range(5))


def test_small_scales_end_residual_branches():
    weights = make_problem(Workload("forward", 1, network="resnet18_cifar")).weights
    assert weights["conv2_block1_2_bn/gamma"].max() < 0.3 < weights["conv2_block1_1_bn/gamma"].min()
