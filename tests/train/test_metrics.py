"""Metrics, schedules and losses, against their definitions written out and, where it has the same one, Keras."""

from math import cos, pi

import numpy as np
import pytest

from edgelearn.errors import PlanError, ShapeError
from edgelearn.graph import Network
from edgelearn.ops import SGD, Dense, ReLU, Sigmoid, Softmax
from edgelearn.ops.losses import (
    BinaryCrossentropy,
    BinaryFocalCrossentropy,
    CategoricalCrossentropy,
    CategoricalFocalCrossentropy,
    Huber,
    MeanAbsoluteError,
    MeanSquaredError,
    SoftmaxCrossEntropy,
)
from edgelearn.train import CosineDecay, ExponentialDecay, Model, PiecewiseConstantDecay, metrics
from edgelearn.train.metrics import METRICS, OutputMetrics, as_metric
from edgelearn.train.schedules import rate_at
from tests.train.toys import CLASSES, examples, same, toy_network

N, C = 57, 5


def measured(metric: metrics.Metric, y_true, y_pred, size: int = 10):
    """The metric, from micro-batches; twice, since it must begin anew."""
    for _ in range(2):
        metric.start()
        for start in range(0, len(y_true), size):
            metric.update(y_true[start : start + size], y_pred[start : start + size])
    return metric.result()


@pytest.fixture
def scores(rng):
    """Probabilities (N, C) with ties."""
    p = np.round(rng.uniform(0.05, 1, (N, C)), 1)
    return (p / p.sum(1, keepdims=True)).astype(np.float32)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def counts(wanted, said):
    return (wanted & said).sum(0), (~wanted & said).sum(0), (wanted & ~said).sum(0)


def test_accuracies(rng, scores):
    labels = rng.integers(0, C, N)
    expected = (scores.argmax(1) == labels).mean()
    assert measured(metrics.Accuracy(), labels, scores) == pytest.approx(expected)
    assert measured(metrics.Accuracy(), np.eye(C, dtype=np.float32)[labels], scores) == pytest.approx(expected)
    several = rng.integers(0, 2, (N, C)).astype(np.float32)
    expected = ((scores > 0.2) == (several > 0.5)).mean()
    assert measured(metrics.BinaryAccuracy(0.2), several, scores) == pytest.approx(expected)
    one, truth = scores[:, :1] * 2, several[:, :1]
    assert measured(metrics.Accuracy(), truth, one) == pytest.approx(((one > 0.5) == (truth > 0.5)).mean())


@pytest.mark.parametrize("k", [1, 2, C, 9])
def test_top_k(rng, k):
    p, labels = rng.permuted(np.tile(np.arange(C) / 10, (N, 1)), axis=1), rng.integers(0, C, N)
    expected = np.mean(
        [label in sorted(range(C), key=lambda c: -row[c])[:k] for row, label in zip(p, labels, strict=True)]
    )
    assert measured(metrics.TopKAccuracy(k), labels, p) == pytest.approx(expected)


@pytest.mark.parametrize("average", [None, "micro", "macro", "none"])
def test_precision_recall_f1(rng, scores, average):
    labels, several = rng.integers(0, C, N), rng.integers(0, 2, (N, C)).astype(np.float32)
    cases = [
        (labels, np.eye(C, dtype=bool)[labels], np.eye(C, dtype=bool)[scores.argmax(1)], average or "macro"),
        (several, several > 0.5, scores > 0.2, average or "micro"),
    ]
    for y_true, wanted, said, how in cases:
        right, wrong, missed = (x.sum(keepdims=True) if how == "micro" else x for x in counts(wanted, said))
        expected = {
            metrics.Precision: right / np.maximum(right + wrong, 1),
            metrics.Recall: right / np.maximum(right + missed, 1),
            metrics.F1: 2 * right / np.maximum(2 * right + wrong + missed, 1),
        }
        for kind, values in expected.items():
            result = measured(kind(0.2, average), y_true, scores)
            assert result == pytest.approx(values if how == "none" else values.mean())


def test_precision_of_nothing_is_0():
    y = np.zeros((3, 2), np.float32)
    assert measured(metrics.Precision(), y, y) == measured(metrics.Recall(), y, y) == 0.0


def pairs_area(wanted, score) -> float:
    """Probability that a positive example gets more than a negative one; ties count half."""
    difference = score[wanted][:, None] - score[~wanted][None]
    return float(((difference > 0) + (difference == 0) / 2).mean())


def test_areas_under_the_curve(rng, scores):
    labels, several = rng.integers(0, C, N), rng.integers(0, 2, (N, C)).astype(np.float32)
    assert measured(metrics.AUC(), several, scores) == pytest.approx(pairs_area(several.ravel() > 0.5, scores.ravel()))
    each = [pairs_area(several[:, c] > 0.5, scores[:, c]) for c in range(C)]
    assert measured(metrics.AUC(multi_label=True), several, scores) == pytest.approx(np.mean(each))
    each = [pairs_area(labels == c, scores[:, c]) for c in range(C)]
    assert measured(metrics.AUC(), labels, scores) == pytest.approx(np.mean(each))
    two = scores[:, :2]
    assert measured(metrics.AUC(), labels % 2, two) == pytest.approx(pairs_area(labels % 2 == 1, two[:, 1]))
    assert np.isnan(measured(metrics.AUC(), np.zeros((4, 1), np.float32), np.ones((4, 1))))


def test_average_precision(rng, scores):
    wanted, score = rng.integers(0, 2, N) > 0, scores[:, 0]
    area, before = 0.0, 0.0
    for level in sorted(set(score.tolist()), reverse=True):
        said = score >= level
        recall = (wanted & said).sum() / wanted.sum()
        area, before = area + (recall - before) * (wanted & said).sum() / said.sum(), recall
    y_true = wanted[:, None].astype(np.float32)
    assert measured(metrics.AUC("PR"), y_true, score[:, None]) == pytest.approx(area)


def test_confusion(rng, scores):
    labels = rng.integers(0, C - 1, N)
    expected = np.zeros((C, C), int)
    for label, answer in zip(labels, scores.argmax(1), strict=True):
        expected[label, answer] += 1
    np.testing.assert_array_equal(measured(metrics.ConfusionMatrix(), labels, scores), expected)
    ratios = [
        expected[c, c] / either
        for c in range(C)
        if (either := expected[c].sum() + expected[:, c].sum() - expected[c, c])
    ]
    assert measured(metrics.MeanIoU(), labels, scores) == pytest.approx(np.mean(ratios))
    single = measured(metrics.ConfusionMatrix(), np.array([[0.0], [1.0], [1.0]]), np.array([[0.9], [0.7], [0.1]]))
    assert single.tolist() == [[0, 1], [1, 1]]


def test_pixels(rng):
    p, labels = rng.uniform(size=(6, 3, 4, C)), rng.integers(0, C, (6, 3, 4))
    assert measured(metrics.Accuracy(), labels, p, 4) == pytest.approx((p.argmax(-1) == labels).mean())
    assert measured(metrics.ConfusionMatrix(), labels, p, 4).sum() == 72
    assert measured(metrics.Recall(average="micro"), labels, p, 4) == pytest.approx((p.argmax(-1) == labels).mean())


def test_errors_of_measurements(rng):
    y, p = rng.standard_normal((2, N, 3)).astype(np.float32)
    difference = y.astype(np.float64) - p
    assert measured(metrics.MeanSquaredError(), y, p) == pytest.approx(np.square(difference).mean())
    assert measured(metrics.RootMeanSquaredError(), y, p) == pytest.approx(np.sqrt(np.square(difference).mean()))
    assert measured(metrics.MeanAbsoluteError(), y, p) == pytest.approx(np.abs(difference).mean())
    with pytest.raises(ShapeError, match="MeanAbsoluteError"):
        measured(metrics.MeanAbsoluteError(), np.zeros(N, int), p)


@pytest.mark.parametrize(
    "name", ["precision", "recall", "auc", "mse", "mae", "root_mean_squared_error", "binary_accuracy"]
)
def test_as_keras(rng, name):
    keras = pytest.importorskip("keras")
    y, p = rng.integers(0, 2, (200, 2)).astype(np.float32), rng.uniform(size=(200, 2)).astype(np.float32)
    theirs = keras.metrics.AUC(num_thresholds=10000) if name == "auc" else keras.metrics.get(name)
    if isinstance(theirs, keras.metrics.Metric):
        theirs.update_state(y, p)
        expected = float(theirs.result())
    else:
        expected = float(np.mean(theirs(y, p)))
    assert measured(METRICS[name](), y, p) == pytest.approx(expected, rel=1e-4)


def largest_error(y_true, y_pred):
    assert y_true.shape == (30, CLASSES)
    return np.abs(y_true - y_pred).max()


def test_in_evaluate_and_validation():
    """Over the whole data set, whatever the size of a batch; probabilities, though the loss takes logits."""
    x, labels = examples(30)
    y = np.eye(CLASSES)[labels]
    wanted = [largest_error, "auc", metrics.ConfusionMatrix(), metrics.F1(average="macro"), metrics.Accuracy]
    model = Model(toy_network()).compile(SGD(0.1), CategoricalCrossentropy(), metrics=wanted)
    history = model.fit(x, y, 10, 3, validation_data=(x, y)).history
    assert "confusion_matrix" not in history and "auc" not in history
    outputs, logs = model.predict(x), model.evaluate(x, y, 7)
    assert logs["largest_error"] == pytest.approx(np.abs(y - outputs).max(), abs=1e-6)
    assert history["val_largest_error"][-1] == pytest.approx(logs["largest_error"], abs=1e-6)
    assert logs["auc"] == pytest.approx(measured(metrics.AUC(), y.astype(np.float32), outputs))
    assert logs["accuracy"] == np.trace(logs["confusion_matrix"]) / 30 == history["val_accuracy"][-1]


def test_names():
    net = Network("n", (3,))
    net.add("dense", Dense(2))
    assert {type(as_metric(name)) for name in METRICS} >= {metrics.F1, metrics.AUC, metrics.MeanIoU}
    assert list(OutputMetrics("mse", net).by_log) == ["mean_squared_error"]
    for bad in ("mse!", 3, [largest_error, largest_error], {"other": "mse"}):
        with pytest.raises(PlanError):
            OutputMetrics(bad, net)
    net.add("features", Dense(1), "dense")
    net.outputs = ("dense", "features")
    model = Model(net).compile(SGD(), {"dense": MeanSquaredError()}, metrics={"features": "mse"})
    with pytest.raises(PlanError, match="features"):
        model.evaluate(np.zeros((2, 3)), {"dense": np.zeros((2, 2))})
    for make in (lambda: metrics.TopKAccuracy(0), lambda: metrics.F1(average="all"), lambda: metrics.AUC("AB")):
        with pytest.raises(PlanError):
            make()


@pytest.mark.parametrize("step", [0, 1, 9, 10, 25])
def test_exponential(step):
    assert ExponentialDecay(0.3, 10, 0.5)(step) == pytest.approx(0.3 * 0.5 ** (step / 10))
    assert ExponentialDecay(0.3, 10, 0.5, staircase=True)(step) == pytest.approx(0.3 * 0.5 ** (step // 10))


def test_cosine():
    schedule = CosineDecay(0.4, 8, alpha=0.1)
    assert [schedule(step) for step in range(9)] == pytest.approx(
        [0.4 * (0.1 + 0.9 * (1 + cos(pi * step / 8)) / 2) for step in range(9)]
    )
    assert schedule(0) == 0.4
    assert schedule(8) == schedule(100) == pytest.approx(0.04)


def test_cosine_with_warmup():
    schedule = CosineDecay(0.4, 8, warmup_steps=4)
    assert [schedule(step) for step in range(5)] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert [schedule(step + 4) for step in range(9)] == [CosineDecay(0.4, 8)(step) for step in range(9)]


def test_piecewise_constant():
    schedule = PiecewiseConstantDecay((2, 5), (1.0, 0.5, 0.1))
    assert [schedule(step) for step in range(8)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.1, 0.1]  # as Keras: boundaries included


@pytest.mark.parametrize(("boundaries", "values"), [((2, 5), (1, 2)), ((5, 2), (1, 2, 3)), ((), ())])
def test_piecewise_constant_refuses(boundaries, values):
    with pytest.raises(PlanError, match="boundaries"):
        PiecewiseConstantDecay(boundaries, values)


@pytest.mark.parametrize("schedule", [ExponentialDecay, CosineDecay])
def test_nothing_decays_in_no_steps(schedule):
    with pytest.raises(PlanError, match="not 0"):
        schedule(0.1, 0, 0.5)


def test_a_number_is_a_rate():
    assert rate_at(1, 5) == 1.0 and isinstance(rate_at(1, 5), float)
    assert rate_at(lambda step: step / 10, 3) == 0.3


@pytest.mark.parametrize("rate", [-1, float("nan"), float("inf")])
def test_rates_that_cannot_be(rate):
    with pytest.raises(PlanError, match=f"update 4 has {float(rate)}"):
        rate_at(rate, 3)


def test_every_update_has_its_rate():
    """A schedule that is 0 but for one update changes the weights by that update alone."""
    x, y = examples(10)
    once = Model(toy_network()).compile(SGD(PiecewiseConstantDecay((2, 3), (0.0, 0.1, 0.0))), batchnorm="moving")
    once.fit(x, y, 4, 2, shuffle=False)  # updates 0 to 5
    first = Model(toy_network()).compile(SGD(0.1), batchnorm="moving")
    first.fit(x[:4], y[:4], 4, 1, shuffle=False)  # update 3 is the first of the second epoch
    assert same(once.weights, first.weights)


EXAMPLES, FEATURES, OUTPUTS, RATE = 11, 6, 4, 0.1
HEADS = {"softmax": Softmax, "sigmoid": Sigmoid}


def network(head: str | None, outputs: int = OUTPUTS) -> Network:
    net = Network("net", (FEATURES,))
    net.add("hidden", Dense(9))
    net.add("relu", ReLU())
    net.add("out", Dense(outputs))
    if head:
        net.add("head", HEADS[head]())
    return net


@pytest.fixture(scope="module")
def keras():
    """Imported by the process that runs these tests, not by all that collect them: it takes 5 seconds."""
    return pytest.importorskip("keras")


def twin(keras, model: Model, head: str | None, loss):
    """The same network and training in Keras."""
    layers, weights = keras.layers, model.weights
    outputs = model.network.output.shape[-1]
    net = keras.Sequential(
        [layers.Input((FEATURES,)), layers.Dense(9, "relu"), layers.Dense(outputs, head)]
    )  # fmt: skip
    net.set_weights([weights[f"{layer}/{role}"] for layer in ("hidden", "out") for role in ("kernel", "bias")])
    net.compile(keras.optimizers.SGD(RATE), loss, jit_compile=False)
    return net


LABELS, ONE_HOT, SEVERAL, VALUES = "labels", "one-hot", "several", "values"
CASES = {
    "sparse": (SoftmaxCrossEntropy(), "softmax", LABELS, lambda k: k.SparseCategoricalCrossentropy()),
    "categorical": (
        CategoricalCrossentropy(0.1), "softmax", ONE_HOT, lambda k: k.CategoricalCrossentropy(label_smoothing=0.1),
    ),
    "categorical focal": (
        CategoricalFocalCrossentropy(), "softmax", ONE_HOT, lambda k: k.CategoricalFocalCrossentropy(),
    ),
    "binary": (BinaryCrossentropy(0.1), "sigmoid", SEVERAL, lambda k: k.BinaryCrossentropy(label_smoothing=0.1)),
    "binary focal": (
        BinaryFocalCrossentropy(gamma=1.5, alpha=0.25), "sigmoid", SEVERAL,
        lambda k: k.BinaryFocalCrossentropy(apply_class_balancing=True, gamma=1.5),
    ),
    "mse": (MeanSquaredError(), None, VALUES, lambda k: k.MeanSquaredError()),
    "mse of a sigmoid": (MeanSquaredError(), "sigmoid", VALUES, lambda k: k.MeanSquaredError()),
    "mae": (MeanAbsoluteError(), None, VALUES, lambda k: k.MeanAbsoluteError()),
    "huber": (Huber(0.4), None, VALUES, lambda k: k.Huber(0.4)),
}  # fmt: skip


def targets(kind: str, rng) -> np.ndarray:
    labels = rng.integers(0, OUTPUTS, EXAMPLES)
    return {
        LABELS: labels,
        ONE_HOT: np.eye(OUTPUTS, dtype=np.float32)[labels],
        SEVERAL: rng.integers(0, 2, (EXAMPLES, OUTPUTS)).astype(np.float32),
        VALUES: rng.standard_normal((EXAMPLES, OUTPUTS)).astype(np.float32),
    }[kind]


@pytest.mark.parametrize("case", CASES)
def test_an_update(keras, case):
    loss, head, kind, theirs = CASES[case]
    rng = np.random.default_rng(0)
    x, y, weights = (
        rng.standard_normal((EXAMPLES, FEATURES)).astype(np.float32),
        targets(kind, rng),
        rng.uniform(0, 2, EXAMPLES),
    )
    model = Model(network(head)).compile(SGD(RATE), loss)
    reference = twin(keras, model, head, theirs(keras.losses))
    assert model.evaluate(x, y)["loss"] == pytest.approx(reference.evaluate(x, y, verbose=0), rel=1e-5)
    logs = model.train_on_batch(x, y, 4, sample_weight=weights)
    expected = reference.train_on_batch(x, y, sample_weight=weights)
    assert logs["loss"] == pytest.approx(float(np.ravel(expected)[0]), rel=1e-5)
    for name, theirs in zip(model.network.parameters, reference.get_weights(), strict=True):
        np.testing.assert_allclose(model.weights[name], theirs, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("case", ["sparse", "categorical"])
def test_class_weights(keras, case):
    loss, head, kind, theirs = CASES[case]
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((EXAMPLES, FEATURES)).astype(np.float32), targets(kind, rng)
    model = Model(network(head)).compile(SGD(RATE), loss)
    reference, weights = twin(keras, model, head, theirs(keras.losses)), {0: 3.0, 2: 0.0}
    model.fit(x, y, EXAMPLES, class_weight=weights)
    every = dict.fromkeys(range(OUTPUTS), 1.0) | weights
    reference.fit(x, y, EXAMPLES, class_weight=every, verbose=0)
    for name, theirs in zip(model.network.parameters, reference.get_weights(), strict=True):
        np.testing.assert_allclose(model.weights[name], theirs, atol=2e-6, err_msg=name)


def test_several_outputs(keras):
    """A loss for each output, with weights, as Keras adds them up."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((EXAMPLES, FEATURES)).astype(np.float32)
    y = {"kind": rng.integers(0, 3, EXAMPLES), "size": rng.standard_normal((EXAMPLES, 1)).astype(np.float32)}
    net = Network("two", (FEATURES,))
    net.add("hidden", Dense(9))
    net.add("relu", ReLU())
    net.add("logits", Dense(3))
    net.add("kind", Softmax())
    net.add("size", Dense(1), "relu")
    net.outputs = ("kind", "size")
    losses, loss_weights = {"kind": SoftmaxCrossEntropy(), "size": Huber()}, {"kind": 0.3, "size": 2.0}
    model = Model(net).compile(SGD(RATE), losses, loss_weights=loss_weights)
    layers, weights = keras.layers, model.weights
    inputs = layers.Input((FEATURES,))
    hidden = layers.Dense(9, "relu")(inputs)
    outputs = {
        "kind": layers.Dense(3, "softmax", name="kind")(hidden), "size": layers.Dense(1, name="size")(hidden),
    }  # fmt: skip
    reference = keras.Model(inputs, outputs)
    reference.set_weights([weights[f"{a}/{b}"] for a in ("hidden", "logits", "size") for b in ("kernel", "bias")])
    reference.compile(
        keras.optimizers.SGD(RATE), {"kind": "sparse_categorical_crossentropy", "size": "huber"},
        loss_weights=loss_weights, jit_compile=False,
    )  # fmt: skip
    expected = reference.train_on_batch(x, y, return_dict=True)
    logs = model.train_on_batch(x, y, 4)
    assert logs["loss"] == pytest.approx(float(expected["loss"]), rel=1e-5)
    ours = [model.weights[f"{a}/{b}"] for a in ("hidden", "logits", "size") for b in ("kernel", "bias")]
    for one, other in zip(ours, reference.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
