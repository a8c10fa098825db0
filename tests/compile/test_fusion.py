"""Fusions: steps with them are as exact as without, and what they are said to save is what plans without them take."""

from dataclasses import replace

import pytest

import edgelearn as el
from edgelearn.compile import Precision, Request, fusions, make_plan
from edgelearn.compile.policies import checkpoints, nested
from edgelearn.errors import PlanError
from edgelearn.graph import Network
from edgelearn.ops import (
    GELU,
    SGD,
    Add,
    BatchNormalization,
    Conv2D,
    DepthwiseConv2D,
    Format,
    GlobalAveragePooling2D,
    HardSigmoid,
    HardSwish,
    Losses,
    Multiply,
    ReLU,
    Reshape,
    Sigmoid,
    SiLU,
    SoftmaxCrossEntropy,
    Traits,
    batchnorm,
)
from edgelearn.ops.emit import FUSIONS
from edgelearn.ops.observers import InHindsightMinMax

from .steps import first_step, same, same_bits, steps
from .test_networks import EXAMPLES, NETWORKS, check_step, head, residual, separable, unit

CPU = Traits(compute_units=2, vector_width=16)


def summed() -> Network:
    """A depthwise convolution writes the gradient of a sum with a ReLU behind it, which a BatchNorm takes over."""
    net = Network("summed", (6, 7, 3))
    x = unit(net, "stem", Conv2D(20, 3, padding="same", use_bias=False))
    y = unit(net, "one", Conv2D(20, 1, use_bias=False), relu=None)
    net.add("sum", Add(), y, x)
    net.add("relu", ReLU())
    unit(net, "depthwise", DepthwiseConv2D(3, padding="same", use_bias=False), relu=ReLU(6))
    unit(net, "two", DepthwiseConv2D(3, 2, padding="same", use_bias=False))
    return head(net)


def bottlenecks() -> Network:
    """Sandler et al. 2018: pixels enough for sums of BatchNorms, and two sums of streams."""
    net = Network("bottlenecks", (16, 16, 3))
    x = unit(net, "stem", Conv2D(16, 3, 2, "same", use_bias=False), relu=ReLU(6))
    for name in "ab":
        unit(net, f"{name}_expand", Conv2D(48, 1, use_bias=False), x, relu=ReLU(6))
        unit(net, f"{name}_depthwise", DepthwiseConv2D(3, padding="same", use_bias=False), relu=ReLU(6))
        y = unit(net, f"{name}_project", Conv2D(16, 1, use_bias=False), relu=None)
        x = net.add(f"{name}_add", Add(), x, y)
    return head(net)


def gated() -> Network:
    """Activations whose derivative follows from their input: after a depthwise convolution whose output two layers read
    (Hu et al. 2018), after a projection that a shortcut joins, and after layers that aren't BatchNorms with batch
    statistics alone."""
    net = Network("gated", (6, 7, 3))
    x = unit(net, "stem", Conv2D(20, 3, padding="same"), relu=SiLU())
    y = unit(net, "depthwise", DepthwiseConv2D(3, padding="same", use_bias=False), relu=HardSwish())
    net.add("mean", GlobalAveragePooling2D(), y)
    net.add("pixel", Reshape((1, 1, 20)))
    net.add("narrow", Conv2D(4, 1))
    net.add("narrow_silu", SiLU())
    net.add("weights", Conv2D(20, 1))
    weights = net.add("sigmoid", Sigmoid())
    net.add("weighed", Multiply(), y, weights)
    y = unit(net, "wide", Conv2D(32, 1, use_bias=False), relu=HardSigmoid())
    net.add("mean_of_blocks", GlobalAveragePooling2D(), y)
    net.add("pixel_of_blocks", Reshape((1, 1, 32)))
    net.add("weights_of_blocks", Conv2D(32, 1))
    weights = net.add("sigmoid_of_blocks", Sigmoid())
    net.add("weighed_blocks", Multiply(), y, weights)
    y = unit(net, "project", Conv2D(20, 1, use_bias=False), relu=GELU())
    net.add("sum", Add(), y, x)
    net.add("norm", BatchNormalization())
    net.add("norm_silu", SiLU())
    return head(net)


@pytest.fixture
def always(monkeypatch):
    """Launches take sums of BatchNorms however few rows there are."""
    monkeypatch.setattr(batchnorm, "CACHED_ROWS", 0)
    monkeypatch.setattr(batchnorm, "SMALL_GROUP", 1)


def macros(plan, name):
    return [launch.layer for launch in plan.step_launches if (name, 1) in launch.macros]


@pytest.mark.parametrize("micro", (1, 3))
@pytest.mark.parametrize("make", [*(NETWORKS[name] for name in ("residual", "entangled", "streams", "preactivation")),
                                  separable, summed])  # fmt: skip
def test_sums_of_batch_statistics(kernels, always, make, micro):
    check_step(kernels, make(), micro, "batch", seed=1, traits=CPU)


def test_launches_that_take_sums(kernels, always):
    """All that write what is normalized; and depthwise convolutions, of gradients whose mask is the BatchNorm's own."""
    request = Request(summed(), EXAMPLES, EXAMPLES, SGD(0.05), "batch")
    plan = make_plan(request, kernels.context.device, traits=CPU)
    assert macros(plan, "MOMENTS") == ["stem", "one", "depthwise", "two"]
    assert macros(plan, "NORM_SUMS") == ["two"]  # the gradient of "depthwise"
    assert {launch.kernel for launch in plan.step_launches}.isdisjoint({"whole_forward", "group_statistics"})
    assert not macros(make_plan(request.without("moments"), kernels.context.device, traits=CPU), "MOMENTS")
    rounds = Precision(activations=Format(8), observer=InHindsightMinMax(0.5))
    assert not macros(make_plan(replace(request, precision=rounds), kernels.context.device, traits=CPU), "NORM_SUMS")


def test_few_rows_are_read_once_more(kernels):
    plan = make_plan(Request(residual(), 1, 1, SGD(0.05), "batch"), kernels.context.device, traits=CPU)
    assert not macros(plan, "MOMENTS")


@pytest.mark.parametrize("policy", (checkpoints, nested))
@pytest.mark.parametrize("make", (residual, separable, summed))
def test_recomputed_launches_change_no_sums(start, always, make, policy):
    request = Request(make(), EXAMPLES, 2, SGD(0.05), "batch", seed=7)
    same(steps(start, replace(request, activation_memory=policy)), steps(start, request))


@pytest.mark.parametrize(
    ("make", "traits"),
    [*((make, CPU) for make in (residual, NETWORKS["entangled"], NETWORKS["streams"], summed)),
     *((make, Traits(gpu=True, compute_units=8)) for make in (residual, summed))],
)  # fmt: skip
def test_sums_by_the_launch_that_normalizes(start, kernels, make, traits):
    """The bits are the same, and a tensor less is written and read."""
    request = Request(make(), EXAMPLES, 2, SGD(0.05), "batch", seed=7)
    added = make_plan(request, kernels.context.device, traits=traits)
    apart = make_plan(request.without("residual"), kernels.context.device, traits=traits)
    count = len(macros(added, "RESIDUAL"))
    assert count and len(apart.step_launches) - len(added.step_launches) == count
    assert added.peak_bytes <= apart.peak_bytes
    loss, gradients = first_step(start, request, traits=traits)
    expected, others = first_step(start, request.without("residual"), traits=traits)
    assert loss == expected
    same_bits(gradients, others)


GPU = Traits(gpu=True, compute_units=8)


@pytest.mark.parametrize("traits", (CPU, GPU), ids=("CPU", "GPU"))
@pytest.mark.parametrize(("micro", "batchnorm"), ((1, "batch"), (3, "batch"), (2, "moving")))
def test_gates_in_the_launch_that_normalizes(kernels, micro, batchnorm, traits):
    check_step(kernels, gated(), micro, batchnorm, traits=traits)


@pytest.mark.parametrize("traits", (CPU, GPU), ids=("CPU", "GPU"))
def test_what_a_gate_is_of_is_not_stored(start, kernels, traits):
    """Nor written: two launches less for each gate, and the same values but for rounding."""
    request = Request(gated(), EXAMPLES, 2, SGD(0.05), "batch", seed=7)
    plan = make_plan(request, kernels.context.device, traits=traits)
    assert set(macros(plan, "GATED")) == {"stem", "depthwise", "project", "norm"}
    single = [launch.layer for launch in plan.step_launches if launch.kernel.startswith("activation")]
    assert set(single) == {"narrow_silu", "sigmoid"}
    net = gated()
    net.freeze("norm")
    frozen = make_plan(Request(net, EXAMPLES, 2, SGD(0.05), "batch"), kernels.context.device, traits=traits)
    assert set(macros(frozen, "GATED")) == {"stem", "depthwise", "project"}
    moving = make_plan(replace(request, batchnorm="moving"), kernels.context.device, traits=traits)
    apart = make_plan(request.without("epilogues"), kernels.context.device, traits=traits)
    assert not macros(moving, "GATED") and plan.peak_bytes < apart.peak_bytes
    same(steps(start, replace(request, activation_memory=checkpoints)), steps(start, request))


def test_a_normalized_tensor_that_others_read_is_written(kernels):
    net = residual()
    net.outputs = ("dense", "b2_bn")
    request = Request(net, EXAMPLES, EXAMPLES, SGD(0.05), "batch", Losses({"dense": SoftmaxCrossEntropy()}))
    plan = make_plan(request, kernels.context.device)
    assert macros(plan, "RESIDUAL") == ["a_add", "b_add"]  # the second by the projection's BatchNorm


INT8 = Precision(Format(symmetric=True), Format(), Format(), InHindsightMinMax(0.5), simulated=False)
REQUESTS = {
    "depthwise": Request(bottlenecks(), 2, 1, SGD(0.1), "batch"),
    "residual": Request(residual(), 1, 1, el.Adam(0.1, weight_decay=0.1), "batch"),
    "moving": Request(bottlenecks(), 2, 2, SGD(0.1)),
    "prediction": Request(residual()),
    "integers": Request(bottlenecks(), 1, 1, SGD(0.1), precision=INT8),
}
KINDS = {
    "depthwise": {"epilogues", "residual", "moments", "norm_sums", "checks", "jobs", "updates"},
    "residual": {"epilogues", "sums", "residual", "moments", "checks", "jobs", "updates"},
    "moving": {"epilogues", "jobs", "updates"},
    "prediction": {"epilogues", "sums"},
    "integers": {"epilogues", "rounding", "jobs", "updates"},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_savings_are_those_of_plans_without_them(kernels, always, name):
    request, device = REQUESTS[name], kernels.context.device
    plan = make_plan(request, device, traits=CPU)
    found = {fusion.kind: fusion for fusion in fusions(plan)}
    assert found.keys() >= KINDS[name]
    for kind in FUSIONS:
        without = make_plan(request.without(kind), device, traits=CPU).step_launches
        launches = len(without) - len(plan.step_launches)
        nbytes = sum(launch.nbytes for launch in without) - sum(launch.nbytes for launch in plan.step_launches)
        saved = found.get(kind)
        assert (launches, nbytes) == ((saved.launches, saved.nbytes) if saved else (0, 0)), kind
    assert fusions(make_plan(request.without(*FUSIONS), device, traits=CPU)) == []


@pytest.mark.parametrize("kind", FUSIONS)
def test_steps_without_a_kind(kernels, kind, monkeypatch):
    """Leaving it out changes how much a step moves, not what it computes."""
    monkeypatch.setattr(Request, "unfused", frozenset({kind}))
    check_step(kernels, residual(), 2, "batch", traits=CPU)


def test_unknown_kinds(kernels):
    with pytest.raises(PlanError, match="'all' is no kind of fusion"):
        make_plan(Request(residual(), unfused=frozenset({"all"})), kernels.context.device)


def test_other_shapes_are_views(start, kernels):
    """A layer that gives a tensor another shape, and that alone reads it, neither writes nor copies."""
    request = Request(gated(), EXAMPLES, 2, SGD(0.05), "batch", seed=7)
    plan = make_plan(request, kernels.context.device)
    assert not any(launch.layer.startswith("pixel") for launch in plan.step_launches)
    net = gated()
    net.outputs = ("dense", "mean")
    both = Request(net, EXAMPLES, 2, SGD(0.05), "batch", Losses({"dense": SoftmaxCrossEntropy()}), seed=7)
    copied = make_plan(both, kernels.context.device)
    assert [launch.kernel for launch in copied.step_launches if launch.layer == "pixel"] == ["reshape"] * 4
    same_bits(first_step(start, request)[1], first_step(start, both)[1])
