"""Networks with several inputs and outputs: trained, evaluated, saved, quantized, recomputed, cached."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.compile import Precision, policies
from edgelearn.errors import PlanError, ShapeError
from edgelearn.graph import Network
from edgelearn.ops import SGD, Adam, Concatenate, Conv2D, Dense, Format, GlobalAveragePooling2D, ReLU, Sigmoid, Softmax
from edgelearn.ops.losses import BinaryCrossentropy, Losses, MeanSquaredError, SoftmaxCrossEntropy
from edgelearn.train import Model, VariedSource

from .toys import same


def network() -> Network:
    """Two inputs and three outputs, of which "features" is also read by another layer."""
    net = Network("several", {"picture": (6, 5, 3), "place": (4,)})
    net.add("conv", Conv2D(8, 3), "picture")
    net.add("conv_relu", ReLU())
    net.add("pool", GlobalAveragePooling2D())
    net.add("both", Concatenate(), "pool", "place")
    net.add("features", Dense(17))
    net.add("relu", ReLU())
    net.add("logits", Dense(3))
    net.add("kind", Softmax())
    net.add("tag_logits", Dense(2), "relu")
    net.add("tags", Sigmoid())
    net.outputs = ("kind", "tags", "features")
    return net


LOSSES = {"kind": SoftmaxCrossEntropy(), "tags": BinaryCrossentropy(), "features": MeanSquaredError()}
WEIGHTS = {"kind": 1.0, "tags": 0.5, "features": 0.1}


def examples(n: int = 11, seed: int = 0) -> tuple[dict, dict]:
    rng = np.random.default_rng(seed)
    x = {"picture": rng.standard_normal((n, 6, 5, 3)), "place": rng.standard_normal((n, 4))}
    kind = rng.integers(0, 3, n)
    x["picture"][np.arange(n), :, :, kind] += 1
    y = {"kind": kind, "tags": (x["place"][:, :2] > 0).astype(float), "features": rng.standard_normal((n, 17))}
    return {name: array.astype(np.float32) for name, array in x.items()}, y


def compiled(optimizer=None, **settings) -> Model:
    return Model(network()).compile(optimizer or SGD(0.1), LOSSES, loss_weights=WEIGHTS, **settings)


def reference(weights: dict, x: dict, y: dict) -> dict[str, float]:
    """The losses in float64, from the outputs that the layers' references give."""
    net, values = network(), {name: array.astype(np.float64) for name, array in x.items()}
    for node in net.nodes.values():
        own = {p.role: weights[p.name].astype(np.float64) for p in net.parameters.values() if p.layer == node.name}
        values[node.name] = node.op.reference_forward([values[i] for i in node.inputs], own)
    losses = {
        "kind_loss": LOSSES["kind"].reference(values["logits"], y["kind"])[0].mean(),
        "tags_loss": LOSSES["tags"].reference(values["tag_logits"], y["tags"])[0].mean(),
        "features_loss": LOSSES["features"].reference(values["features"], y["features"])[0].mean(),
    }
    return {"loss": sum(w * losses[f"{name}_loss"] for name, w in WEIGHTS.items()), **losses}


def test_losses_and_gradients_add_up():
    """Against float64, differences, and other sizes of micro-batches."""
    x, y = examples()
    model = compiled()
    logs = model.evaluate(x, y, 4)
    expected = reference(model.weights, x, y)
    assert {name: logs[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert logs.keys() == {*expected, "kind_accuracy", "tags_accuracy"}
    gradients = model.gradients(x, y, 4)
    for name, place in (("conv/kernel", (1, 1, 2, 3)), ("features/kernel", (9, 4)), ("tag_logits/bias", (1,))):
        moved = []
        for sign in (1, -1):
            weights = {key: array.astype(np.float64) for key, array in model.weights.items()}
            weights[name][place] += sign * 1e-5
            moved.append(reference(weights, x, y)["loss"])
        assert gradients[name][place] == pytest.approx((moved[0] - moved[1]) / 2e-5, rel=1e-3, abs=1e-5)
    whole = model.gradients(x, y)
    assert all(np.allclose(gradients[name], whole[name], atol=1e-6) for name in whole)
    assert model.train_on_batch(x, y)["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_lists_are_in_order():
    x, y = examples()
    one, other = compiled(), compiled()
    one.fit(x, y, 4, 2)
    other.compile(SGD(0.1), list(LOSSES.values()), loss_weights=list(WEIGHTS.values()))
    history = other.fit(list(x.values()), list(y.values()), 4, 2, validation_data=(x, y)).history
    assert same(one.weights, other.weights)
    outputs = other.predict(list(x.values()), 4)
    assert {name: array.shape for name, array in outputs.items()} == {
        "kind": (11, 3),
        "tags": (11, 2),
        "features": (11, 17),
    }
    assert outputs["kind"].sum(1) == pytest.approx(np.ones(11), abs=1e-6)
    accuracy = (outputs["kind"].argmax(1) == y["kind"]).mean()
    assert history["val_kind_accuracy"][-1] == pytest.approx(accuracy)
    assert {"loss", "kind_loss", "tags_accuracy", "features_loss"} <= history.keys()


def test_an_output_without_a_loss():
    x, y = examples()
    del y["features"]
    model = Model(network()).compile(SGD(0.1), {"kind": SoftmaxCrossEntropy(), "tags": BinaryCrossentropy()})
    before = model.evaluate(x, y)["loss"]
    model.fit(x, y, 11, 20)
    assert model.evaluate(x, y)["loss"] < before
    assert model.predict(x)["features"].shape == (11, 17)


def test_learned_and_continued(tmp_path):
    """Twenty epochs are the same bits as ten, a file, and ten more."""
    x, y = examples(24)
    whole, first = compiled(Adam(0.01)), compiled(Adam(0.01))
    before = whole.evaluate(x, y)
    whole.fit(x, y, 8, 20, micro_batch=3)
    assert whole.evaluate(x, y)["loss"] < 0.8 * before["loss"]
    first.fit(x, y, 8, 10, micro_batch=3)
    first.save(tmp_path / "model.safetensors")
    again = el.load(tmp_path / "model.safetensors", optimizer=Adam(0.01), loss=LOSSES, loss_weights=WEIGHTS)
    assert (again.network.inputs, again.network.outputs) == (first.network.inputs, first.network.outputs)
    again.fit(x, y, 8, 20, micro_batch=3)
    assert same(again.weights, whole.weights)


@pytest.mark.parametrize("policy", [policies.checkpoints, policies.paged])
def test_activation_memory_changes_no_bit(policy):
    x, y = examples()
    plain, other = compiled(), compiled(activation_memory=policy)
    plain.fit(x, y, 11, 3)
    other.fit(x, y, 11, 3)
    assert same(plain.weights, other.weights)
    assert el.explain(other.plan(8)).accounting is not None


@pytest.mark.parametrize("simulated", [True, False])
def test_integers(simulated):
    x, y = examples(24)
    eight = Precision(Format(8, symmetric=True), Format(8), Format(8), simulated=simulated)
    model = compiled(precision=eight)
    losses = model.fit(x, y, 8, 10, micro_batch=4).history["loss"]
    plain = compiled().fit(x, y, 8, 10, micro_batch=4).history["loss"]
    assert losses[-1] == pytest.approx(plain[-1], rel=0.1)
    assert {name: output.dtype for name, output in model.predict(x).items()} == dict.fromkeys(LOSSES, np.float32)


def test_a_budget():
    x, y = examples()
    model = compiled()
    needed = model.plan(8).peak_bytes
    with pytest.raises(PlanError):
        model.plan(8, budget=needed // 20)
    model.fit(x, y, 8, 1, budget=needed)


def test_frozen_features_from_all_inputs():
    x, y = examples()
    cached, plain = compiled(), compiled()
    for model in (cached, plain):
        model.network.freeze("conv")
    plain.fit(x, y, 4, 2, validation_data=(x, y))
    history = cached.fit(x, y, 4, 2, cache="fp32", validation_data=(x, y)).history
    for name, array in plain.weights.items():
        np.testing.assert_allclose(cached.weights[name], array, atol=1e-6)
    assert history["val_loss"][-1] == pytest.approx(plain.evaluate(x, y)["loss"], rel=1e-5)


def test_a_source_for_an_input():
    x, y = examples()
    pictures = (x["picture"] * 20).astype(np.uint8)
    source = VariedSource(pictures, lambda some, indices, epoch: some, lambda some: some.astype(np.float32) / 20)
    one, other = compiled(), compiled()
    one.fit({"picture": source, "place": x["place"]}, y, 4, 2)
    other.fit({"picture": pictures.astype(np.float32) / 20, "place": x["place"]}, y, 4, 2)
    assert same(one.weights, other.weights)
    with pytest.raises(PlanError, match="cache"):
        one.fit({"picture": source, "place": x["place"]}, y, 4, 3, cache="fp32")


def test_weights_by_output():
    x, y = examples()
    zero = {"kind": np.zeros(11), "tags": np.ones(11), "features": np.zeros(11)}
    logs, plain = compiled().evaluate(x, y, sample_weight=zero), compiled().evaluate(x, y)
    assert logs["loss"] == pytest.approx(0.5 * plain["tags_loss"], rel=1e-5)
    gradients = compiled().gradients(x, y, sample_weight=zero)
    assert not gradients["logits/kernel"].any() and gradients["tag_logits/kernel"].any()
    with pytest.raises(PlanError, match="class_weight"):
        compiled().fit(x, y, class_weight={0: 1.0})


def test_metrics_by_output():
    x, y = examples()
    model = compiled(metrics={"kind": ["accuracy", "confusion_matrix"], "features": "mae"})
    logs = model.evaluate(x, y, 4)
    assert logs["kind_confusion_matrix"].sum() == 11
    outputs = model.predict(x)
    assert logs["features_mean_absolute_error"] == pytest.approx(np.abs(outputs["features"] - y["features"]).mean())


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda x, y: (x["picture"], y), "picture, place"),
        (lambda x, y: ({"picture": x["picture"]}, y), "picture, place"),
        (lambda x, y: (x | {"place": x["place"][:5]}, y), "5 of 'place'"),
        (lambda x, y: (x | {"place": x["place"][:, :3]}, y), "'place'"),
        (lambda x, y: (x, y["kind"]), "kind, tags, features"),
        (lambda x, y: (x, {"kind": y["kind"], "tags": y["tags"]}), "'features'"),
        (lambda x, y: (x, y | {"other": y["kind"]}), "'other'"),
    ],
)
def test_bad_examples(change, word):
    with pytest.raises(ShapeError, match=word):
        compiled().fit(*change(*examples()))


@pytest.mark.parametrize(
    "losses",
    [{"other": SoftmaxCrossEntropy()}, [SoftmaxCrossEntropy()], {"kind": "mse!"}, {"kind": None, "tags": None}],
)
def test_bad_losses(losses):
    with pytest.raises(PlanError):
        Model(network()).compile(SGD(0.1), losses)


def test_bad_weights_of_losses():
    for weights in ({"other": 1.0}, {"kind": -1.0}, [1.0]):
        with pytest.raises(PlanError):
            Model(network()).compile(SGD(0.1), LOSSES, loss_weights=weights)
    assert Losses(LOSSES, {"kind": 2}).weight("kind") == 2.0
