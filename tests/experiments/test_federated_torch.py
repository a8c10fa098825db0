"""Federations against PyTorch: the weights after two rounds, FedAvg and FedProx, with momentum."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.experiments.federated import FederatedConfig
from edgelearn.experiments.federated.experiment import FederatedTask, FederatedTaskKind, federations, lenet
from edgelearn.experiments.tasks import drawn_weights

pytest.importorskip("torch")


def load(config):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 20, 20, 3)).astype(np.float32), np.arange(60) % 10
    data = {"origin": "drawn", "description": "Noise.", "classes": list(range(10)), "train": 50, "test": 10}
    return FederatedTask(
        el.Model(lenet((20, 20, 3)), seed=0), (x[:50], y[:50]), (x[50:], y[50:]),
        lambda steps: el.SGD(0.02, momentum=0.9, weight_decay=1e-5), data, drawn_weights(0), config.batch_size, "batch",
    )  # fmt: skip


NOISE = federations(
    "federated", FederatedConfig, {"noise": FederatedTaskKind("Noise", 2, 8, load, 2, 3, 8, "iid")}, "", ""
)  # fmt: skip


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox"])
def test_weights_are_those_of_pytorch(strategy):
    from federated_torch import federation, ours

    experiment = NOISE.load(FederatedConfig("noise", strategy=strategy, proximal=0.5, seed=2))
    initial = experiment.model.weights
    found = ours(experiment, 2)
    experiment.model.weights = initial
    expected = federation(experiment, 2)
    for name, array in found.items():
        moved = np.abs(expected[name] - initial[name]).max()
        assert np.abs(array - expected[name]).max() < 1e-3 * moved, name
