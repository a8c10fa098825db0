"""Adaptation without labels, on gratings in four directions whose contrast and brightness change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgelearn.errors import PlanError
from edgelearn.graph import Network
from edgelearn.ops import (
    SGD,
    Adam,
    BatchNormalization,
    Conv2D,
    Dense,
    GlobalAveragePooling2D,
    GroupNormalization,
    LayerNormalization,
    ReLU,
    Softmax,
)
from edgelearn.ops.formula import NUMPY, differentiate
from edgelearn.train import Model
from edgelearn.train.adaptation import between, eata_loss, entropy, information, reason, tent_loss

CLASSES, SIZE = 4, 12


def gratings(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels, (rows, columns) = rng.integers(0, CLASSES, n), np.mgrid[:SIZE, :SIZE] / SIZE
    angle = (labels * np.pi / CLASSES + rng.normal(0, 0.15, n))[:, None, None]
    phase = rng.uniform(0, 2 * np.pi, n)[:, None, None]
    waves = np.sin(6 * np.pi * (np.cos(angle) * rows + np.sin(angle) * columns) + phase)
    return (waves + rng.normal(0, 0.7, waves.shape)).astype(np.float32)[..., None], labels


def changed(x: np.ndarray) -> np.ndarray:
    return 0.3 * x + 1.5


def convolutional(norm: Any = BatchNormalization(momentum=0.9)) -> Network:  # noqa: B008
    net = Network("gratings", (SIZE, SIZE, 1))
    for i, channels in enumerate((16, 32)):
        net.add(f"conv{i}", Conv2D(channels, 3, 1, ((1, 1), (1, 1)), use_bias=False))
        net.add(f"norm{i}", norm)
        net.add(f"relu{i}", ReLU())
    net.add("pool", GlobalAveragePooling2D())
    net.add("dense", Dense(CLASSES))
    net.add("softmax", Softmax())
    return net


@pytest.fixture(scope="module")
def trained() -> Model:
    model = Model(convolutional(), seed=1).compile(Adam(3e-3))
    model.fit(*gratings(1600, 1), epochs=4, verbose=0)
    return model


@pytest.fixture(scope="module")
def examples() -> tuple[np.ndarray, np.ndarray]:
    return gratings(512, 2)


def accuracy(answers: np.ndarray, labels: np.ndarray) -> float:
    return float((answers.argmax(-1) == labels).mean())


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("method", ["statistics", "tent", "eata"])
def test_adapts_to_a_change_and_leaves_the_model(trained, examples, method):
    x, labels = examples
    before, unadapted = trained.weights, accuracy(trained.predict(changed(x)), labels)
    anchor = {"anchor": gratings(128, 3)[0]} if method == "eata" else {}
    adaptation = trained.adapt(changed(x), method, batch_size=64, micro_batch=32, **anchor)
    assert accuracy(adaptation.answers, labels) > unadapted + 0.2
    assert adaptation.updates == 8
    assert not adaptation.off
    assert "8 updates" in repr(adaptation)
    assert adaptation.plan.peak_bytes == adaptation.trainer.session.allocated_bytes
    assert same(trained.weights, before)
    adaptation.close()


def test_statistics_are_the_means_of_micro_batches(trained, examples):
    """The first layer's, against float64; the others follow from what it passes on."""
    x = changed(examples[0][:96])
    adaptation = trained.adapt(x, "statistics", batch_size=96, micro_batch=32, guard=False)
    found, conv = adaptation.weights, trained.network.nodes["conv0"].op
    y = conv.reference_forward([x.astype(np.float64)], {"kernel": trained.weights["conv0/kernel"].astype(np.float64)})
    parts = np.split(y, 3)
    share = np.array([0.81, 0.9, 1]) / 2.71
    mean = sum(w * part.mean((0, 1, 2)) for w, part in zip(share, parts, strict=True))
    variance = sum(w * part.var((0, 1, 2)) for w, part in zip(share, parts, strict=True))
    np.testing.assert_allclose(found["norm0/moving_mean"], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["norm0/moving_variance"], variance, rtol=1e-4)
    assert np.array_equal(found["norm0/gamma"], trained.weights["norm0/gamma"])
    adaptation.close()


@pytest.mark.parametrize(("method", "least"), [("statistics", 0.1), ("tent", 0.3), ("eata", 0.3)])
def test_old_batches_are_forgotten_sooner_where_weights_move(trained, method, least):
    """After ten batches of zeros, one of ones: the first layer's statistics depend on no weights that move."""
    adaptation, means = trained.adapt(method=method, batch_size=8, micro_batch=8, guard=False), []
    for value in (*[0.0] * 10, 1.0):
        adaptation.predict(np.full((8, SIZE, SIZE, 1), value, np.float32))
        means.append(adaptation.weights["norm0/moving_mean"])
    adaptation.reset()
    adaptation.predict(np.ones((8, SIZE, SIZE, 1), np.float32))
    own = adaptation.weights["norm0/moving_mean"]
    np.testing.assert_allclose(means[-1], (1 - least) * means[-2] + least * own, rtol=1e-5, atol=1e-6)
    adaptation.close()


def test_undo_and_reset_are_exact(trained, examples):
    x = changed(examples[0])
    adaptation = trained.adapt(x[:64], "tent", batch_size=64, micro_batch=32)
    once = adaptation.weights
    first = adaptation.predict(x[64:128])
    assert not same(adaptation.weights, once)
    adaptation.undo()
    assert same(adaptation.weights, once)
    assert np.array_equal(adaptation.predict(x[64:128]), first)
    adaptation.undo()
    with pytest.raises(PlanError, match="only the last"):
        adaptation.undo()
    adaptation.reset()
    assert same(adaptation.weights, trained.weights)
    assert (adaptation.updates, adaptation.off) == (0, "")
    adaptation.close()


def test_examples_come_one_at_a_time(trained, examples):
    """An example is answered at once; a full batch of them moves the network as a batch does."""
    x = changed(examples[0][:130])
    together = trained.adapt(x[:128], "tent", batch_size=64, micro_batch=32)
    weights = together.weights
    together.close()
    alone = trained.adapt(method="tent", batch_size=64, micro_batch=32)
    answers = np.concatenate([alone.predict(x[i : i + 1]) for i in range(130)])
    assert answers.shape == (130, CLASSES)
    assert alone.updates == 2
    assert same(alone.weights, weights)
    alone.close()


def test_the_guard_switches_it_off(trained, examples):
    x, labels = examples
    unadapted = accuracy(trained.predict(x), labels)
    clean = trained.adapt(x, "tent", batch_size=64, micro_batch=32)
    assert "look like those before" in clean.off
    assert accuracy(clean.answers, labels) > unadapted - 0.02
    assert same(clean.weights, trained.weights)
    order = np.argsort(labels, kind="stable")
    clean.reset()
    answers, unadapted = clean.predict(changed(x)[order]), accuracy(trained.predict(changed(x)), labels)
    assert "order of their classes" in clean.off
    assert accuracy(answers, labels[order]) > unadapted - 0.01, "what was answered before cost nothing"
    assert "off, since" in repr(clean)
    clean.close()
    known = trained.adapt(x, "statistics", batch_size=64, micro_batch=32, anchor=changed(gratings(40, 3)[0]))
    assert "look like those before" in known.off, "for the anchor's statistics differ far more"
    known.reset()
    assert accuracy(known.predict(changed(x)), labels) > unadapted + 0.2, "adapted answers tell more, and that counts"
    known.close()


def test_until_it_is_sure_the_unadapted_network_answers(trained, examples):
    """Batches of one class mislead statistics; what was learnt from them waits, and undo comes back to it."""
    x, labels = examples
    one = 0.6 * x[labels == 1][:64] + 0.5
    adaptation = trained.adapt(one, "tent", batch_size=64, micro_batch=32)
    assert not (adaptation.sure or adaptation.off)
    np.testing.assert_allclose(adaptation.answers, trained.predict(one), atol=1e-5)
    learnt = adaptation.weights
    assert not np.array_equal(learnt["norm0/moving_mean"], trained.weights["norm0/moving_mean"])
    assert np.array_equal(learnt["norm0/gamma"], trained.weights["norm0/gamma"]), "statistics alone move until then"
    assert "not sure" in repr(adaptation)
    mixed = 0.6 * x[:64] + 0.5
    answers = adaptation.predict(mixed)
    assert adaptation.sure
    assert not np.allclose(answers, trained.predict(mixed), atol=0.1)
    adaptation.undo()
    assert not adaptation.sure
    assert same(adaptation.weights, learnt)
    np.testing.assert_allclose(adaptation.predict(one[:1]), trained.predict(one[:1]), atol=1e-5)
    adaptation.close()


@pytest.mark.parametrize("method", ["statistics", "tent"])
def test_classes_that_last_leave_it_unsure(trained, method):
    """Batches that are alike, since a class lasts, are told from shuffled ones; so are those after the first."""
    x, labels = gratings(1600, 4)
    for change in (changed, lambda x: 0.6 * x + 0.5, lambda x: 2 * x - 1):
        adaptation = trained.adapt(method=method, batch_size=64, micro_batch=32)
        for number, one in enumerate((2, 0)):
            part = change(x[labels == one])[:320]
            answers = adaptation.predict(part)
            np.testing.assert_allclose(answers, trained.predict(part), atol=1e-5)
            assert not adaptation.sure
            assert bool(adaptation.off) == bool(number), "the second class is told by the variance between batches"
        adaptation.reset()
        adaptation.predict(change(x[:128]))
        assert adaptation.sure
        adaptation.close()


def test_batches_that_are_known_to_be_mixed_are_adapted_to_at_once(trained, examples):
    x, labels = examples
    unadapted = accuracy(trained.predict(changed(x[:64])), labels[:64])
    adaptation = trained.adapt(changed(x[:64]), "statistics", batch_size=64, micro_batch=32, mixed=True)
    assert adaptation.sure
    assert accuracy(adaptation.answers, labels[:64]) > unadapted + 0.2
    adaptation.predict(changed(x[np.argsort(labels, kind="stable")]))
    assert "order of their classes" in adaptation.off
    adaptation.close()


def test_answers_tell_less_of_batches_of_one_class():
    sure = 0.97 * np.eye(4)[np.arange(40) % 4] + 0.01
    assert information(sure) > 0.8 * np.log(4)
    assert information(sure[:1]) == pytest.approx(0)
    assert information(sure[::4]) == pytest.approx(0)


def test_statistics_take_no_backward_pass(trained):
    peaks = {}
    for method in ("statistics", "tent"):
        adaptation = trained.adapt(method=method, batch_size=64, micro_batch=32)
        peaks[method] = adaptation.plan.peak_bytes
        adaptation.close()
    assert peaks["statistics"] < 0.8 * peaks["tent"]


def test_a_snapshot_stays_as_it_is(trained, examples):
    x, labels = examples
    with trained.trainer(32) as trainer:
        trainer.step(x[:32], labels[:32])
        before = trainer.snapshot()
        trainer.step(x[:32], labels[:32])
        assert (before.position.updates, trainer.position.updates) == (1, 2)


def test_example_normalization_adapts_with_micro_batches_of_one():
    for norm in (GroupNormalization(groups=4), LayerNormalization()):
        model = Model(convolutional(norm), seed=1)
        x = gratings(8, 1)[0]
        adaptation = model.adapt(x, batch_size=8, micro_batch=1, optimizer=SGD(0.1))
        before = model.weights
        moved = {name for name, value in adaptation.weights.items() if not np.array_equal(value, before[name])}
        assert moved == {f"norm{i}/{role}" for i in (0, 1) for role in ("gamma", "beta")}
        adaptation.close()


def test_entropy_gradients_against_float64():
    """dH/dz = -p (log p + H) of logits z, down to the scale and shift of a LayerNormalization."""
    net = Network("one", (6,))
    net.add("norm", LayerNormalization())
    net.add("dense", Dense(5))
    net.add("softmax", Softmax())
    net.trainable = {"norm/gamma", "norm/beta"}
    model = Model(net, seed=3).compile(SGD(), tent_loss)
    x = np.random.default_rng(0).normal(size=(7, 6)).astype(np.float32)
    w = {name: value.astype(np.float64) for name, value in model.weights.items()}
    norm: Any = net.nodes["norm"].op
    normal = norm._normal(x.astype(np.float64))[0].reshape(x.shape)
    z = (normal * w["norm/gamma"] + w["norm/beta"]) @ w["dense/kernel"] + w["dense/bias"]
    p = np.exp(z - z.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dz = -p * (np.log(p) + entropy(np, p)[:, None])
    dy = dz @ w["dense/kernel"].T / len(x)
    found = model.gradients(x, np.zeros((7, 5), np.float32))
    np.testing.assert_allclose(found["norm/beta"], dy.sum(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["norm/gamma"], (dy * normal).sum(0), rtol=1e-4, atol=1e-6)


def test_eata_weighs_sure_and_new_answers():
    """The gradient is exp(E0 - H) times the entropy's, and 0 for unsure or repeated answers."""
    most = 0.4 * np.log(4)
    p = np.array([[0.97, 0.01, 0.01, 0.01], [0.4, 0.3, 0.2, 0.1], [0.01, 0.97, 0.01, 0.01]])
    mean = np.tile([0.0, 1.0, 0.0, 0.0], (3, 1))
    own = entropy(np, p)
    slopes, plain = (differentiate(lambda xp, y, t, f=f: f(xp, t, y), p, mean)[0] for f in (eata_loss(4), tent_loss))
    np.testing.assert_allclose(slopes[0], np.exp(most - own[0]) * plain[0])
    assert not slopes[1:].any()
    assert eata_loss(4)(NUMPY, mean, p)[0] < 0


def test_it_goes_back_where_the_unadapted_network_tells_more():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, (3, 64))
    sure, unsure = (share * np.eye(4)[labels] + (1 - share) / 4 for share in (0.9, 0.6))
    assert "tell more" in reason(list(zip(unsure, sure, strict=True)))
    assert not reason(list(zip(sure, unsure, strict=True)))
    assert not reason(list(zip(unsure[:2], sure[:2], strict=True))), "two batches say little"


def test_order_shows_in_the_variance_between_batches():
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(4), 100))
    drawn = np.eye(4)[labels].reshape(8, 50, 4)
    assert between(drawn) < 2
    assert between(np.eye(4)[np.sort(labels)].reshape(8, 50, 4)) > 20


def test_what_cannot_adapt_says_so(trained):
    plain = Network("plain", (3,))
    plain.add("dense", Dense(2))
    plain.add("softmax", Softmax())
    cases: list[tuple[Model, dict[str, Any], str]] = [
        (Model(plain), {}, "no normalization"),
        (Model(convolutional(GroupNormalization(groups=4))), {"method": "statistics"}, "no BatchNormalization"),
        (trained, {"method": "guess"}, "'statistics', 'tent', 'eata'"),
        (trained, {"batch_size": 1}, "one example"),
        (trained, {"batch_size": 64, "micro_batch": 48}, "choose a divisor"),
        (trained, {"budget": "10 kB"}, "over the budget"),
    ]
    for model, settings, words in cases:
        with pytest.raises(PlanError, match=words):
            model.adapt(**settings)
