import numpy as np
import pytest

from edgelearn.errors import EdgelearnError
from edgelearn.lab.bench.problem import EPSILON, make_problem
from edgelearn.lab.bench.workloads import DEFAULT, DEFAULT_BATCH, DESCRIPTIONS, KINDS, Workload


@pytest.mark.parametrize("kind", DEFAULT_BATCH)
def test_names_are_read_back(kind):
    assert Workload.parse(kind) == Workload(kind, DEFAULT_BATCH[kind])
    assert Workload.parse(f"{kind}:7").name == f"{kind}:7"
    assert Workload.parse(kind).description == DESCRIPTIONS[kind]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "/" in kind])
def test_ops_are_read_back(kind):
    workload = Workload.parse(f"{kind}:3")
    assert (workload.kind, workload.batch, workload.name) == (kind, 3, f"{kind}:3")
    assert workload.op is not None and workload.trains == kind.startswith("train/")
    assert kind.partition("/")[2] in workload.description


def test_patterns_stand_for_the_kinds_that_match():
    assert [w.name for w in Workload.expand("*/pool:4")] == ["forward/pool:4", "train/pool:4"]
    assert Workload.expand("cached") == [Workload.parse("cached")]
    with pytest.raises(EdgelearnError, match="Choose from"):
        Workload.expand("train/nothing*:3")


def test_defaults_are_the_three_of_the_command():
    assert [workload.name for workload in DEFAULT] == ["forward:1", "train:1", "cached:163"]


@pytest.mark.parametrize(
    "text",
    ["backward", "", "forward:", "forward:0", "forward:-1", "forward:1.5", "forward:x", "cached/pool", "forward/loss"],
)
def test_bad_names_are_refused(text):
    with pytest.raises(EdgelearnError, match=r"Choose from|whole number|1 or more"):
        Workload.parse(text)


def test_same_seed_same_problem():
    first, again, other = (make_problem(Workload("forward", 2, seed)) for seed in (5, 5, 6))
    assert np.array_equal(first.inputs, again.inputs) and np.array_equal(first.layers[3].kernel, again.layers[3].kernel)
    assert not np.array_equal(first.inputs, other.inputs)
    assert not np.array_equal(first.layers[3].kernel, other.layers[3].kernel)


def test_the_network_has_the_parameters_of_mobilenet_v1():
    problem = make_problem(Workload("train", 1))
    batchnorms = sum(4 * layer.gamma.size for layer in problem.layers)
    kernels = sum(layer.kernel.size for layer in problem.layers)
    assert len(problem.layers) == 27
    # Keras's MobileNet has 4,253,864 parameters with its classifier of 1000 classes.
    assert kernels + batchnorms + problem.dense_kernel.size + problem.dense_bias.size == 4_253_864


def test_the_cached_head_is_one_layer_on_features_of_relu6():
    problem = make_problem(Workload("cached", 3))
    assert [layer.kernel.shape for layer in problem.layers] == [(1, 1, 1024, 1024)]
    assert problem.inputs.shape == (3, 7, 7, 1024) and problem.dense_kernel.shape == (1024, 5)
    assert problem.inputs.min() == 0 and problem.inputs.max() <= 6 and set(problem.labels) <= set(range(5))


def test_folding_equals_batchnorm_after_the_convolution():
    problem = make_problem(Workload("cached", 1))
    (layer,) = problem.layers
    pixels = problem.inputs.reshape(49, 1024).astype(np.float64)
    straight = pixels @ layer.kernel[0, 0]
    straight = layer.gamma * (straight - layer.mean) / np.sqrt(layer.variance + EPSILON) + layer.beta
    kernel, bias = layer.folded()
    np.testing.assert_allclose(pixels @ kernel[0, 0] + bias, straight, atol=1e-5)
