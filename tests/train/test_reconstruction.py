"""Models that invert activations, and what they do when these come back wrong."""

import numpy as np
import pytest

from edgelearn.compile import Invert, Precision
from edgelearn.compile.policies import invertible
from edgelearn.errors import PlanError, ReconstructionError
from edgelearn.graph import Network, reversible
from edgelearn.ops import SGD, Add, BatchNormalization, Conv2D, Dense, Format, GlobalAveragePooling2D, ReLU
from edgelearn.train import Callback, Model, WatchReconstruction

ORDER = ["b1_add", "b0_add", "stem"]  # as they are inverted


def residual(step: float) -> Network:
    """A row of four blocks."""
    net = Network("residual", (6, 6, 3))
    x = net.add("stem", Conv2D(20, 3, padding="same"))
    for block in range(4):
        net.add(f"b{block}_conv", Conv2D(20, 3, padding="same", use_bias=False))
        net.add(f"b{block}_bn", BatchNormalization())
        net.add(f"b{block}_relu", ReLU())
        f = net.add(f"b{block}_mix", Conv2D(20, 1))
        x = net.add(f"b{block}_add", Add(), x, f)
    net.add("pool", GlobalAveragePooling2D())
    net.add("dense", Dense(4))
    return reversible(net, step=step)


def trained(step: float, callbacks=(), gain: float = 1.0, **more) -> Model:
    """`gain` is how much larger than usual the last block's share is."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((10, 6, 6, 3)).astype(np.float32), rng.integers(0, 4, 10)
    network = residual(step)
    weights = network.initialize(1)
    weights["b3_mix/kernel"] *= gain
    model = Model(network, weights, seed=1).compile(SGD(0.05), batchnorm="batch", activation_memory=invertible, **more)
    model.fit(x, y, 4, 2, micro_batch=2, callbacks=callbacks)
    return model


def test_errors_are_recorded_once_an_epoch():
    watch = WatchReconstruction()
    trained(2**-16, [watch])
    assert [updates for updates, _ in watch.errors] == [1, 4]
    for _, errors in watch.errors:
        assert list(errors) == [*ORDER[:2], "stem_stream"] and set(errors.values()) == {0.0}


def test_errors_of_floats_grow_with_depth():
    watch = WatchReconstruction(every=2)
    trained(0, [watch])
    assert [updates for updates, _ in watch.errors] == [1, 3, 4, 6]
    for _, errors in watch.errors:
        assert list(errors) == ORDER
        assert 0 < errors["b1_add"] <= errors["stem"] < 1e-5


def test_a_run_stops_past_the_bound():
    with pytest.raises(ReconstructionError, match=r"Update 1: .*'b1_add'.*1.0e-10"):
        trained(0, [WatchReconstruction(1e-10)])


def test_fit_watches_by_itself():
    """What is a millionth of a sum can't come back from it."""
    with pytest.raises(ReconstructionError, match=r"Update 1: .*1.0e-03"):
        trained(2**-16, gain=1e6)


class Predicts(Callback):
    def on_train_batch_end(self, batch, logs):
        self.model.predict(np.zeros((1, 6, 6, 3), np.float32))


def test_a_callback_that_predicts_hides_nothing():
    with pytest.raises(ReconstructionError, match="Update 1: "):
        trained(2**-16, [Predicts()], gain=1e6)
    with pytest.raises(PlanError, match="WatchReconstruction"):
        trained(2**-16, [Predicts(), WatchReconstruction()])


def test_watching_changes_nothing():
    often, never = trained(2**-16, [WatchReconstruction(every=1)]), trained(2**-16, [WatchReconstruction(every=9**9)])
    for name, array in often.weights.items():
        assert np.array_equal(array, never.weights[name]), name


def test_what_is_rounded_is_not_inverted():
    assert Invert("b2_add") in invertible(residual(0)).values()
    with pytest.raises(PlanError, match="stem"):
        trained(0, precision=Precision(activations=Format(8)))
    streams = {"*_add": None, "stem*": None}
    trained(
        0, [WatchReconstruction()], precision=Precision(weights=Format(8), activations=Format(8), exceptions=streams)
    )
