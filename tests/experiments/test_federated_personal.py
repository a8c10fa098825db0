"""New users on top of a federation: errors before it, after it, and after their own enrolment."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.cli import main
from edgelearn.data.features import DS_CNN_MLPERF
from edgelearn.errors import DataError
from edgelearn.experiments.federated import TASKS, FederatedConfig, FederatedExperiment, personalise
from edgelearn.experiments.federated.experiment import FederatedTask, FederatedTaskKind
from edgelearn.experiments.tasks import drawn_weights
from edgelearn.lab.runs import RunStore
from edgelearn.ops import Dense, Flatten
from tests.networks import chain


def load(config):
    """Three words; of the new users "same" says them as everybody does, "other" says the first as others the second."""
    rng = np.random.default_rng(0)
    shape = (*DS_CNN_MLPERF.shape(DS_CNN_MLPERF.rate), 1)
    sounds = 0.2 * rng.normal(size=(3, *shape))

    def say(words):
        return np.float32(sounds[words] + 0.02 * rng.normal(size=(len(words), *shape)))

    labels = np.arange(30) % 3
    network = chain("words", shape, flatten=Flatten(), classifier=Dense(3))
    data = {"origin": "drawn", "description": "Noise.", "classes": ["a", "b", "c"], "train": 30, "test": 33}
    model = el.Model(network, None, config.device, config.seed)
    tested = np.array([0, 1, 2] * 5 + [1, 0, 2] * 5 + [0, 1, 2]), np.array(["same"] * 15 + ["other"] * 15 + ["few"] * 3)
    return FederatedTask(
        model, (say(labels), labels), (say(np.array([0, 1, 2] * 11)), tested[0]), lambda steps: el.SGD(0.1), data,
        drawn_weights(config.seed), config.batch_size, "batch", test_groups=tested[1] if config.seed == 0 else None,
    )  # fmt: skip


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS, "words", FederatedTaskKind("Drawn words", 2, 8, load, 3, 2, 8, "iid"))
    return RunStore(tmp_path)


def test_enrolment_learns_how_a_user_speaks(store, capsys):
    FederatedExperiment.start(FederatedConfig("words"), store, [], log=lambda line: None)
    (summary,) = store.list()
    found = personalise(store.open(summary.id))
    assert found.users == ["other", "same"] and found.tested.tolist() == [15, 15]
    assert found.errors["rounds"].tolist() == [2 / 3, 0] and found.errors["enrolment"].tolist() == [0, 0]
    assert found.mean("rounds") == pytest.approx(1 / 3) and found.worst_tenth("rounds") == 2 / 3
    assert found.mean("before") > 0
    assert main(["federated", "personal", summary.id, "--folds", "3", "--runs", str(store.root)]) == 0
    assert "33.3%" in capsys.readouterr().out


def test_it_needs_speakers(store):
    FederatedExperiment.start(FederatedConfig("words", rounds=1, seed=1), store, [], log=lambda line: None)
    with pytest.raises(DataError):
        personalise(store.open(store.list()[0].id))
