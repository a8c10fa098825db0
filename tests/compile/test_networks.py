"""Whole small networks: a training step, evaluation and prediction against float64."""

import numpy as np
import pytest

from edgelearn import ops
from edgelearn.compile import Request, make_plan
from edgelearn.errors import PlanError
from edgelearn.graph import INPUT, Network, split_frozen
from edgelearn.ops import Add, BatchNormalization, Conv2D, Dense, ReLU, pack
from edgelearn.runtime import Session

from .reference import Arrays, predict, train_step

RATE, STEP, EXAMPLES, CLASSES = 0.1, 3, 3, 5


def unit(net: Network, name: str, op, *inputs: str, relu: ops.Activation | None = ReLU()) -> str:  # noqa: B008
    net.add(name, op, *inputs)
    last = net.add(f"{name}_bn", BatchNormalization())
    return net.add(f"{name}_relu", relu) if relu else last


def convolutions(net: Network, names: str, channels: int, **after: ops.Op) -> Network:
    """Convolutions of 3 x 3, one after the other, each with the layers that come `after` it."""
    for name in names:
        net.add(name, Conv2D(channels, 3, padding="same"))
        for kind, op in after.items():
            net.add(f"{name}_{kind}", op)
    return net


def head(net: Network) -> Network:
    net.add("pool", ops.GlobalAveragePooling2D())
    net.add("dense", Dense(CLASSES))
    net.add("softmax", ops.Softmax())
    return net


def residual() -> Network:
    """A block with an identity shortcut, then one with a projection: both a fused and a bare ReLU have two readers."""
    net = Network("residual", (6, 7, 3))
    x = unit(net, "stem", Conv2D(20, 3, padding="same", use_bias=False))
    unit(net, "a1", Conv2D(20, 3, padding="same", use_bias=False))
    y = unit(net, "a2", Conv2D(20, 3, padding="same", use_bias=False), relu=None)
    net.add("a_add", Add(), y, x)
    x = net.add("a_relu", ReLU())
    unit(net, "b1", Conv2D(33, 3, strides=2, padding="same", use_bias=False))
    y = unit(net, "b2", Conv2D(33, 3, padding="same", use_bias=False), relu=None)
    shortcut = unit(net, "projection", Conv2D(33, 1, strides=2, use_bias=False), x, relu=None)
    net.add("b_add", Add(), shortcut, y)
    net.add("b_relu", ReLU())
    return head(net)


def entangled() -> Network:
    """Sums whose gradient some inputs take as it is, and others must not: the stem's still grows when the first branch
    has read it, and two sums read one tensor."""
    net = Network("entangled", (6, 7, 3))
    x = unit(net, "stem", Conv2D(20, 3, padding="same", use_bias=False), relu=None)
    one = unit(net, "one", Conv2D(20, 3, padding="same", use_bias=False), x, relu=None)
    late = unit(net, "late", Conv2D(20, 1, use_bias=False), x, relu=None)
    first = net.add("first", Add(), one, x)
    second = net.add("second", Add(), first, late)
    net.add("third", Add(), second, first)
    return head(net)


def streams() -> Network:
    """Two streams of a reversible network, in turn added to: a sum with the gradient of the last one must not pass it
    on while the other stream still adds to it."""
    net = Network("streams", (6, 7, 3))
    x = unit(net, "stem", Conv2D(20, 3, padding="same", use_bias=False), relu=None)
    one = net.add("one_add", Add(), x, unit(net, "one", Conv2D(20, 1, use_bias=False), x, relu=None))
    two = net.add("two_add", Add(), x, unit(net, "two", Conv2D(20, 1, use_bias=False), one, relu=None))
    net.add("both", Add(), two, one)
    return head(net)


def shared() -> Network:
    """A fused LeakyReLU takes the gradient of a sum, to which two layers add before its derivative multiplies all. The
    first layer that reads it is read by nobody."""
    net = Network("shared", (6, 7, 3))
    net.add("stem", Conv2D(20, 3, padding="same"))
    x = net.add("stem_relu", ops.LeakyReLU(0.3))
    net.add("unread", Conv2D(5, 1), x)
    one = net.add("one", Conv2D(20, 3, padding="same"), x)
    two = net.add("two", Conv2D(20, 1), x)
    net.add("both", Add(), one, two)
    net.add("both_relu", ops.LeakyReLU(0.3))
    three = net.add("three", Conv2D(20, 1))
    net.add("sum", Add(), three, x)
    net.add("relu", ReLU())
    return head(net)


def inception() -> Network:
    """Four branches from one ReLU, joined at channels that no block of 16 begins with."""
    net = Network("inception", (6, 7, 3))
    net.add("stem", Conv2D(20, 3, padding="same"))
    x = net.add("stem_relu", ReLU())
    net.add("one", Conv2D(17, 1), x)
    one = net.add("one_relu", ReLU())
    net.add("three", Conv2D(20, 3, padding="same"), x)
    three = net.add("three_relu", ReLU(6))
    net.add("average", ops.AveragePooling2D(3, 1, "same"), x)
    net.add("projection", Conv2D(5, 1))
    projection = net.add("projection_relu", ReLU())
    most = net.add("max", ops.MaxPooling2D(3, 1, "same"), x)
    net.add("join", ops.Concatenate(), one, three, projection, most)
    net.add("mix", Conv2D(20, 1))
    net.add("mix_relu", ReLU())
    return head(net)


def preactivation() -> Network:
    """He et al. 2016: BatchNorm and ReLU before convolutions, and shortcuts that nothing touches."""
    net = Network("preactivation", (6, 7, 3))
    x = net.add("stem", Conv2D(20, 3, padding="same", use_bias=False))
    for block in "ab":
        net.add(f"{block}_bn1", BatchNormalization(), x)
        net.add(f"{block}_relu1", ReLU())
        net.add(f"{block}_conv1", Conv2D(20, 3, padding="same", use_bias=False))
        net.add(f"{block}_bn2", BatchNormalization())
        net.add(f"{block}_relu2", ReLU())
        y = net.add(f"{block}_conv2", Conv2D(20, 3, padding="same", use_bias=False))
        x = net.add(f"{block}_add", Add(), x, y)
    net.add("bn", BatchNormalization())
    net.add("relu", ReLU())
    return head(net)


def lenet() -> Network:
    net = Network("lenet", (12, 12, 1))
    net.add("conv1", Conv2D(6, 5, padding="same"))
    net.add("relu1", ReLU())
    net.add("pool1", ops.MaxPooling2D())
    net.add("conv2", Conv2D(17, 3))
    net.add("relu2", ReLU())
    net.add("pool2", ops.AveragePooling2D())
    net.add("flatten", ops.Flatten())
    net.add("dense1", Dense(20))
    net.add("relu3", ReLU())
    net.add("dropout", ops.Dropout(0.4))
    net.add("dense2", Dense(CLASSES))
    net.add("softmax", ops.Softmax())
    return net


def separable() -> Network:
    """Dropout over an image, padding by itself, BatchNorm behind biases, and no softmax."""
    net = Network("separable", (6, 7, 3))
    unit(net, "stem", Conv2D(20, 3, padding="same"), relu=ReLU(6))
    unit(net, "dw1", ops.DepthwiseConv2D(3, padding="same"), relu=ReLU(6))
    unit(net, "pw1", Conv2D(33, 1), relu=ReLU(6))
    net.add("dropout", ops.Dropout(0.2))
    net.add("pad", ops.ZeroPadding2D(((0, 1), (0, 1))))
    unit(net, "dw2", ops.DepthwiseConv2D(3, strides=2), relu=ReLU(6))
    unit(net, "pw2", Conv2D(20, 1), relu=ReLU(6))
    net.add("pool", ops.GlobalAveragePooling2D())
    net.add("dense", Dense(CLASSES))
    return net


def broadcasted() -> Network:
    """Kim et al. 2021: what a row of means has become is added to each row. The first block changes the channels, so
    that it has no identity beside."""
    net = Network("broadcasted", (8, 9, 1))
    x = unit(net, "stem", Conv2D(20, (5, 3), strides=(2, 1), padding=((2, 2), (1, 1)), use_bias=False))
    for block, filters, dilation in (("a", 33, 1), ("b", 33, 2)):
        if net.shape_of(x)[-1] != filters:
            unit(net, f"{block}_pointwise", Conv2D(filters, 1, use_bias=False), x)
        net.add(f"{block}_frequency", ops.DepthwiseConv2D((3, 1), padding="same", use_bias=False))
        two = net.add(f"{block}_ssn", ops.SubSpectralNormalization(sub_bands=2))
        net.add(f"{block}_mean", ops.Mean())
        time = ops.DepthwiseConv2D((1, 3), padding="same", dilation_rate=(1, dilation), use_bias=False)
        unit(net, f"{block}_time", time, relu=None)
        net.add(f"{block}_silu", ops.SiLU())
        net.add(f"{block}_mix", Conv2D(filters, 1, use_bias=False))
        one = net.add(f"{block}_dropout", ops.SpatialDropout2D(0.3))
        net.add(f"{block}_add", Add(), one, two, *([x] if net.shape_of(x) == net.shape_of(two) else []))
        x = net.add(f"{block}_relu", ReLU())
    return head(net)


def odd() -> Network:
    """Unusual networks: a tensor added to itself, reshapes, an input with two readers, a layer that nobody reads,
    logits behind a ReLU, and a softmax after the layer that nobody reads."""
    net = Network("odd", (4, 5, 3))
    a = net.add("a", Conv2D(20, 1), INPUT)
    pad = net.add("pad", ops.ZeroPadding2D(((1, 1), (0, 0))), INPUT)
    b = net.add("b", Conv2D(20, 3, padding=((0, 0), (1, 1))), pad)
    net.add("sum", Add(), a, b, a)
    net.add("relu", ReLU())
    net.add("image", ops.Reshape((10, 2, 20)))
    net.add("bn", BatchNormalization())
    net.add("flat", ops.Reshape((-1,)))
    net.add("logits", Dense(CLASSES))
    logits = net.add("logits_relu", ReLU())
    net.add("unread", Dense(7), "flat")
    net.add("softmax", ops.Softmax(), logits)
    return net


NETWORKS = {
    f.__name__: f
    for f in (residual, entangled, streams, shared, inception, preactivation, lenet, separable, broadcasted, odd)
}


def drawn(network: Network, seed: int = 0) -> tuple[Arrays, np.ndarray, np.ndarray]:
    """Weights whose biases and statistics are not 0 and 1, examples, labels."""
    rng, weights = np.random.default_rng(seed), network.initialize(seed)
    for name, parameter in network.parameters.items():
        if parameter.role in ("gamma", "moving_variance"):
            weights[name] = rng.uniform(0.5, 1.5, parameter.weight.shape).astype(np.float32)
        elif parameter.role != "kernel":
            weights[name] = rng.normal(0.0, 0.3, parameter.weight.shape).astype(np.float32)
    x = rng.standard_normal((EXAMPLES, *network.input_shape)).astype(np.float32)
    return weights, x, rng.integers(0, CLASSES, EXAMPLES).astype(np.int32)


def close(actual: np.ndarray, expected: np.ndarray, scale: float, what: str) -> None:
    assert actual.shape == expected.shape
    error = np.abs(actual - expected).max()
    assert error <= 3e-5 * scale, f"{what} is off by {error / scale:.1e}"


def check_step(kernels, network: Network, micro: int, batchnorm: str = "moving", seed: int = 0, traits=None) -> None:
    """Loss, right answers, every gradient, and the weights and statistics after one update."""
    weights, x, labels = drawn(network, seed)
    request = Request(
        network, EXAMPLES, micro, ops.SGD(RATE), batchnorm, ops.SoftmaxCrossEntropy(0.1), seed=2**40 + seed
    )
    expected = train_step(request, weights, x, labels, STEP)
    plan = make_plan(request, kernels.context.device, traits=traits)
    session = Session(plan, kernels.context, kernels)
    session.load(weights)
    block = plan.storage.input.block
    parts = [slice(first, first + micro) for first in range(0, EXAMPLES, micro)]
    loss, correct, finite = session.train([(pack(x[p], block), labels[p]) for p in parts], EXAMPLES, RATE, STEP)
    gradients, after = session.gradients(), session.weights()
    session.close()
    assert finite and correct == expected.correct
    assert loss == pytest.approx(expected.loss, rel=1e-5)
    assert set(gradients) == network.trainable
    largest = max(np.abs(g).max() for g in expected.gradients.values())
    for name, gradient in gradients.items():
        g = expected.gradients.get(name, np.zeros(gradient.shape))
        close(gradient, g, max(np.abs(g).max(), 3e-2 * largest), f"the gradient of {name}")
    for name, weight in after.items():
        g = expected.gradients.get(name, 0.0) if name in network.trainable else 0.0
        w = expected.weights[name] - RATE * g
        close(weight, w, np.abs(w).max() + RATE * largest, name)


@pytest.mark.parametrize("batchnorm", ["moving", "batch"])
def test_step_with_winograd_tiles(kernels, batchnorm):
    net = convolutions(Network("wide", (28, 30, 3)), "ab", 32, bn=BatchNormalization(), silu=ops.SiLU())
    check_step(kernels, head(net), 2, batchnorm, traits=ops.Traits(compute_units=2, vector_width=16))


@pytest.mark.parametrize("micro", [1, 2, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_step_with_kept_statistics(kernels, name, micro):
    check_step(kernels, NETWORKS[name](), micro)


def test_an_op_derived_from_a_sum_has_its_own_gradient(monkeypatch):
    monkeypatch.setattr(ops.Op, "registry", {})

    class Weighted(Add):
        def emit_backward(self, *arguments):
            raise NotImplementedError

    class Named(Add):
        pass

    assert Add.passes_gradient and Named.passes_gradient and not Weighted.passes_gradient


def test_gradients_of_sums_are_not_copied(kernels):
    """A copy is left where a tensor's gradient is a sum of its own."""
    copies = {}
    for make in (residual, entangled, shared):
        plan = make_plan(Request(make(), optimizer=ops.SGD(RATE), batchnorm="batch"), kernels.context.device)
        copies[make.__name__] = [launch.layer for launch in plan.step_launches if launch.kernel == "copy"]
        assert not [launch.layer for launch in plan.step_launches if launch.source == "activation.cl"]
    assert copies == {"residual": [], "entangled": ["third", "second", "first"], "shared": []}


@pytest.mark.parametrize(
    ("name", "batchnorm"),
    [("residual", "moving"), ("residual", "batch"), ("shared", "moving"), ("separable", "batch"),
     ("broadcasted", "batch")],
)  # fmt: skip
def test_step_as_on_a_gpu(kernels, name, batchnorm):
    check_step(kernels, NETWORKS[name](), 2, batchnorm, traits=ops.Traits(gpu=True, compute_units=8))


@pytest.mark.parametrize("micro", [1, 2, 3])
@pytest.mark.parametrize(
    "name", ["residual", "entangled", "streams", "preactivation", "separable", "broadcasted", "odd"]
)
def test_step_with_batch_statistics(kernels, name, micro):
    check_step(kernels, NETWORKS[name](), micro, "batch")


@pytest.mark.parametrize(
    ("name", "frozen"),
    [
        ("residual", ("stem*",)),
        ("residual", ("stem*", "a*", "b1*", "*/gamma")),  # the projection is trained, what runs beside it is not
        ("residual", ("*_bn", "projection")),
        ("inception", ("stem", "three")),
        ("inception", ("one", "three", "projection", "mix")),
        ("preactivation", ("stem", "a_*")),
        ("preactivation", ("*/kernel",)),
        ("preactivation", ("*/beta",)),
        ("lenet", ("conv*",)),
        ("lenet", ("dense*", "*/bias")),
        ("separable", ("stem*", "dw*", "*/bias")),
        ("broadcasted", ("stem*", "a_*")),
        ("broadcasted", ("*_ssn", "*/kernel")),
        ("odd", ("b", "unread")),
    ],
)
@pytest.mark.parametrize("batchnorm", ["moving", "batch"])
def test_step_with_frozen_layers(kernels, name, frozen, batchnorm):
    check_step(kernels, NETWORKS[name]().freeze(*frozen), 2, batchnorm)


@pytest.mark.parametrize("name", NETWORKS)
def test_prediction(kernels, name):
    network = NETWORKS[name]().freeze("*/kernel")
    weights, x, labels = drawn(network)
    plan = make_plan(Request(network, EXAMPLES, EXAMPLES), kernels.context.device)
    session = Session(plan, kernels.context, kernels)
    session.load(weights)
    packed, y = pack(x, plan.storage.input.block), predict(network, weights, x)
    close(session.predict(packed, EXAMPLES), y, np.abs(y).max(), "the output")
    assert session.evaluate(packed, labels)[1] == (y.argmax(-1) == labels).sum()
    session.close()


def test_frozen_prefix_ends_before_dropout():
    network = lenet().freeze("conv*", "dense1")
    assert split_frozen(network).cut == "relu3"


def test_network_survives_json():
    for make in NETWORKS.values():
        network = make().freeze("*/bias")
        assert Network.from_json(network.to_json()).to_json() == network.to_json()


def test_output_that_depends_on_no_trained_parameter(kernels):
    network = odd().freeze().unfreeze("unread")
    with pytest.raises(PlanError, match="depends on no trained parameter"):
        make_plan(Request(network, 2, 1, ops.SGD()), kernels.context.device)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_impossible_seeds(kernels, seed):
    with pytest.raises(PlanError, match="seed"):
        make_plan(Request(lenet(), seed=seed), kernels.context.device)
