"""Layers that share weights: their gradients add up, in every place that keeps, writes or reads them."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.compile import Recompute
from edgelearn.errors import PlanError, ShapeError
from edgelearn.graph import split_frozen
from edgelearn.interop import read_model
from edgelearn.ops import (
    BatchNormalization,
    Concatenate,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    GlobalAveragePooling2D,
    LayerNormalization,
    ReLU,
    Softmax,
    Subtract,
)


def siamese(norm: bool = True) -> el.Network:
    """Two towers of other image sizes, and a layer that is used three times."""
    net = el.Network("siamese", {"left": (7, 6, 3), "right": (5, 8, 3)})
    net.add("conv", Conv2D(18, 3, use_bias=not norm), "left")
    if norm:
        net.add("bn", BatchNormalization())
    net.add("relu", ReLU())
    net.add("depthwise", DepthwiseConv2D(3, padding="same"))
    net.add("normalized", LayerNormalization())
    net.add("pool", GlobalAveragePooling2D())
    net.add("embedding", Dense(9))
    right = net.repeat("embedding", "other_", {"left": "right"})
    net.add("difference", Subtract(), "embedding", right)
    net.add("back", Dense(18))
    net.share("again", "embedding")
    net.add("both", Concatenate(), "again", "difference")
    net.add("classes", Dense(3))
    net.add("softmax", Softmax())
    return net


def apart(net: el.Network) -> tuple[el.Network, dict[str, str]]:
    """The same network with weights of its own for every layer, and the owner of each weight."""
    copy, owners = el.Network(net.name, net.inputs), {}
    for node in net.nodes.values():
        copy.add(node.name, node.op, *node.inputs)
        owners |= {name: name.replace(node.name, node.owner, 1) for name in copy.weights_of(copy.nodes[node.name])}
    return copy, owners


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def data(rng):
    x = {"left": rng.standard_normal((6, 7, 6, 3)), "right": rng.standard_normal((6, 5, 8, 3))}
    return {name: array.astype(np.float32) for name, array in x.items()}, rng.integers(0, 3, 6)


@pytest.mark.parametrize("memory", [None, lambda net: {"relu": Recompute(), "other_relu": Recompute()}])
@pytest.mark.parametrize("micro_batch", [6, 4])
@pytest.mark.parametrize("frozen", [(), ("bn",), ("conv", "bn"), ("embedding",), ("classes",)])
def test_gradients_are_the_sums_of_those_of_layers_apart(data, frozen, micro_batch, memory):
    net = siamese().freeze(*frozen) if frozen else siamese()
    model = el.Model(net, seed=3).compile(el.SGD(0.1), batchnorm="moving", activation_memory=memory)
    copy, owners = apart(net)
    other = el.Model(copy, {name: model.weights[owner] for name, owner in owners.items()}).compile(el.SGD(0.1))
    np.testing.assert_allclose(model.predict(data[0]), other.predict(data[0]), atol=1e-6)
    expected = dict.fromkeys(net.trainable, 0.0)
    for name, gradient in other.gradients(*data, micro_batch=micro_batch).items():
        if owners[name] in expected:
            expected[owners[name]] = expected[owners[name]] + gradient
    for _ in range(2):  # nothing is left from the step before
        found = model.gradients(*data, micro_batch=micro_batch)
        assert found.keys() == expected.keys()
        for name, gradient in found.items():
            np.testing.assert_allclose(gradient, expected[name], atol=2e-6 + 1e-5 * np.abs(expected[name]).max())


def test_a_layer_that_only_its_sharer_leads_to_the_loss(data):
    net = el.Network("unread", (4,))
    net.add("unread", Dense(5))
    net.share("used", "unread", "input")
    net.add("classes", Dense(3))
    model, x = el.Model(net, seed=1), np.random.default_rng(0).standard_normal((6, 4))
    first, second = (model.gradients(x, data[1])["unread/kernel"] for _ in range(2))
    assert np.abs(first).max() > 0
    assert np.array_equal(first, second)


def test_weights_are_planned_and_kept_once(data, tmp_path):
    net, (copy, _) = siamese(), apart(siamese())
    assert net.count() < copy.count() / 1.9
    shared, own = (el.Model(n).compile("adam", batchnorm="moving").plan(6) for n in (net, copy))
    for role in ("parameters", "optimizer state"):
        assert 1.8 * _bytes(shared, role) < _bytes(own, role)
    model = el.Model(net, seed=2).compile("adam", batchnorm="moving")
    model.fit(*data, batch_size=4, epochs=2)
    model.save(tmp_path / "m.safetensors")
    loaded = el.load(tmp_path / "m.safetensors", optimizer="adam")
    assert loaded.network.nodes["other_conv"].shares == "conv"
    model.fit(*data, batch_size=4, epochs=3), loaded.fit(*data, batch_size=4, epochs=3)
    for name, array in model.weights.items():
        assert np.array_equal(array, loaded.weights[name])


def _bytes(plan, role: str) -> int:
    return next(size for kind, size in plan.bytes_by_role.items() if kind.value == role)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras with NumPy 2
def test_exports_have_one_initializer_and_come_back_shared(data, tmp_path):
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    model = el.Model(siamese(), seed=1).compile("adam", batchnorm="moving")
    model.fit(*data, epochs=2)
    expected = model.predict(data[0])
    for name in ("m.onnx", "m.tflite", "m.keras"):
        model.export(tmp_path / name)
        again = read_model(tmp_path / name)
        x = {ours: data[0][theirs] for ours, theirs in zip(again.network.inputs, data[0], strict=True)}
        found = el.Model(again.network, again.weights).predict(x)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert sum(bool(node.shares) for node in again.network.nodes.values()) >= 3, name
    kernels = [i for i in onnx.load(tmp_path / "m.onnx").graph.initializer if i.name.endswith("/kernel")]
    assert len(kernels) == 5
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    feeds = {i.name: data[0][name] for i, name in zip(session.get_inputs(), data[0], strict=True)}
    (y,) = session.run(None, feeds)
    np.testing.assert_allclose(y, expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras with NumPy 2
def test_a_siamese_model_of_keras(rng, tmp_path):
    """A nested model that is called twice, with a BatchNorm, and a layer that is called twice."""
    keras = pytest.importorskip("keras")
    x = keras.Input((6, 6, 3))
    y = keras.layers.BatchNormalization()(keras.layers.Conv2D(8, 3)(x))
    tower = keras.Model(x, keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(y)), name="tower")
    left, right, dense = (
        keras.Input((6, 6, 3), name="left"),
        keras.Input((6, 6, 3), name="right"),
        keras.layers.Dense(4),
    )
    both = keras.layers.Subtract()([dense(tower(left)), dense(tower(right))])
    theirs = keras.Model([left, right], keras.layers.Dense(2)(both))
    for weight in theirs.weights:
        weight.assign(rng.uniform(0.1, 1, weight.shape))
    theirs.save(tmp_path / "siamese.keras")
    model = el.load(tmp_path / "siamese.keras")
    images = [rng.standard_normal((4, 6, 6, 3)).astype(np.float32) for _ in range(2)]
    np.testing.assert_allclose(model.predict(images), theirs.predict(images, verbose=0), atol=1e-5)
    assert model.network.count() == sum(int(np.prod(weight.shape)) for weight in theirs.weights)

    tf = pytest.importorskip("tensorflow")
    labels = np.array([0, 1, 1, 0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, theirs(images, training=False)))
    gradients = tape.gradient(loss, theirs.trainable_weights)
    expected = sorted(float(np.abs(gradient).sum()) for gradient in gradients)
    found = sorted(float(np.abs(gradient).sum()) for gradient in model.gradients(images, labels).values())
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_what_cannot_be_shared(data):
    net = siamese()
    with pytest.raises(ShapeError, match="shares the weights of 'conv'"):
        net.add("odd", Conv2D(18, 3), "depthwise", shares="conv")
    with pytest.raises(ShapeError, match="no layer whose weights"):
        net.share("odd", "nothing")
    with pytest.raises(PlanError, match="batchnorm='moving'"):
        el.Model(net).compile(el.SGD(0.1), batchnorm="batch").gradients(*data)
    with pytest.raises(PlanError, match="not quantized"):
        el.Model(net).compile(el.SGD(0.1), batchnorm="moving", precision=el.Precision(weights=el.ops.Format())).plan(4)


def test_no_cut_between_layers_that_share():
    net = el.Network("chain", (4,))
    net.add("first", Dense(4))
    net.share("second", "first")
    net.add("classes", Dense(3))
    assert split_frozen(net.freeze("first")).cut == "second"
