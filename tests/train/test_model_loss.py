"""Other losses than softmax cross-entropy, through `compile` and `fit`."""

import numpy as np
import pytest

from edgelearn.errors import PlanError, ShapeError
from edgelearn.graph import Network
from edgelearn.ops import SGD, Conv2D, Dense, GlobalAveragePooling2D, MinimumEntropy, Prototypical, ReLU, Softmax
from edgelearn.train import Model

from .toys import SHAPE, examples, toy_network

WAYS, SHOTS, QUERIES = 3, 2, 9


def embedding() -> Network:
    net = Network("embedding", SHAPE)
    net.add("conv", Conv2D(16, 3))
    net.add("relu", ReLU())
    net.add("pool", GlobalAveragePooling2D())
    net.add("embedding", Dense(12))
    return net


def episodes(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Support, way after way, and queries behind it."""
    x, y = examples(60 * count)
    order = []
    for k in range(count):
        mine = np.arange(60 * k, 60 * (k + 1))
        support = [mine[y[mine] == way][:SHOTS] for way in range(WAYS)]
        order += [*np.concatenate(support), *np.setdiff1d(mine, np.concatenate(support))[:QUERIES]]
    return x[order], y[order]


def test_episodes_are_learned():
    x, y = episodes(6)
    size = WAYS * SHOTS + QUERIES
    model = Model(embedding()).compile(SGD(0.05), loss=Prototypical(WAYS, SHOTS))
    before = model.evaluate(x, y, size)
    history = model.fit(x, y, 2 * size, 20, micro_batch=size, shuffle=False).history
    after = model.evaluate(x, y, size)
    assert history["loss"][0] == pytest.approx(before["loss"], rel=0.3)
    assert after["loss"] < 0.5 * before["loss"]
    assert after["accuracy"] > 0.9
    outputs = model.predict(x).astype(np.float64)
    parts = [slice(k, k + size) for k in range(0, len(x), size)]
    losses = [model.loss.reference(outputs[part], y[part])[0].mean() for part in parts]
    assert after["loss"] == pytest.approx(np.mean(losses), rel=1e-3)


def test_no_whole_episodes():
    x, y = episodes(2)
    model = Model(embedding()).compile(SGD(0.1), loss=Prototypical(WAYS, SHOTS))
    assert model.predict(x).shape == (len(x), 12)
    for use in (lambda: model.fit(x, y, 6, shuffle=False), lambda: model.evaluate(x, y, 6)):
        with pytest.raises(PlanError, match="episodes"):
            use()
    with pytest.raises(PlanError, match="shuffle=False"):
        model.fit(x, y, 15)
    for batch_size, micro_batch in ((15, 15), (20, 10)):  # queries without a support behind the last whole one
        with pytest.raises(PlanError, match="episodes"):
            model.fit(x[:-3], y[:-3], batch_size, micro_batch=micro_batch, shuffle=False)
    with pytest.raises(PlanError, match="episodes"):
        model.evaluate(x[:-3], y[:-3], 15)
    assert model.position.updates == 0
    with pytest.raises(ShapeError, match="0 to 2"):
        model.fit(x, y + 1, len(x))


def test_a_softmax_stays_where_the_loss_has_none():
    x, y = episodes(1)
    net = embedding()
    net.add("softmax", Softmax())
    model = Model(net).compile(SGD(0.1), loss=Prototypical(WAYS, SHOTS))
    losses = model.loss.reference(model.predict(x).astype(np.float64), y)[0]
    assert model.evaluate(x, y, len(x))["loss"] == pytest.approx(losses.mean(), rel=1e-4)


def test_unlabelled_examples_become_surer():
    x, y = examples(64)
    model = Model(toy_network()).compile(SGD(0.05))
    model.fit(x, y, 16, 3)
    rest, _ = examples(64, seed=1)
    before = np.sort(model.predict(rest), 1)[:, -1].mean()
    model.compile(SGD(0.05), loss=MinimumEntropy(0.5))
    labels = np.concatenate([y, np.full(64, -1)])
    model.fit(np.concatenate([x, rest]), labels, 32, 5)
    assert np.sort(model.predict(rest), 1)[:, -1].mean() > before
