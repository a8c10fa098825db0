"""Activity recognition on drawn people: one is left out; interrupted trainings go on to the same bits."""

import json

import numpy as np
import pytest

import edgelearn as el
from edgelearn.cli import main
from edgelearn.errors import DataError
from edgelearn.experiments.activity import NETWORKS, PUBLISHED, ActivityConfig, ActivityExperiment, leave_one_out
from edgelearn.experiments.experiment import silent
from edgelearn.lab.runs import RunStore
from edgelearn.train import Callback


def test_a_person_left_out_and_what_the_first_recording_adds(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("EDGELEARN_RUNS", str(tmp_path))
    arguments = ["activity", "people", "--drawn", "--people", "p02", "p04", "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["person"] for each in found["people"]] == ["p02", "p04"] and found["published"] is None
    assert all(0.3 < each["before"] < 0.8 < each["after"] for each in found["people"])
    assert 0.2 < found["lift"][0] < 0.6
    assert main(arguments) == 0, "finished trainings are found again"
    assert json.loads(capsys.readouterr().out) == found
    assert len(RunStore(tmp_path).list()) == 2


class StopAfter(Callback):
    def __init__(self, updates):
        self.left = updates

    def on_train_batch_end(self, batch, logs):
        self.left -= 1
        self.model.stop_training = self.left <= 0


@pytest.mark.parametrize("network", ["mlp", "cnn-lstm"])
def test_resumed_equals_uninterrupted(network, tmp_path):
    config = ActivityConfig(network, drawn=True, epochs=2, personal_epochs=1, batch_size=256)
    whole, parted = RunStore(tmp_path / "whole"), RunStore(tmp_path / "parted")
    ActivityExperiment.start(config, whole, [], silent)
    assert ActivityExperiment.start(config, parted, [StopAfter(13)], silent) is None
    ActivityExperiment.resume(parted.list()[0].id, parted, [], silent)
    runs = [store.open(store.list()[0].id) for store in (whole, parted)]
    results = [{k: run.record["results"][k] for k in ("correct", "loss", "personal")} for run in runs]
    assert results[0] == results[1]
    first, second = (el.load(run.folder / "model.safetensors").weights for run in runs)
    assert all((first[name] == second[name]).all() for name in first)


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_of_the_study(network):
    shapes = {"phone": (50, 6), "watch": (50, 6), "both": (50, 12)}
    for sensors, shape in shapes.items():
        shape = (47 * shape[1] // 6,) if network == "mlp" else shape
        assert PUBLISHED[network, sensors].make(shape, classes=5).output.shape == (5,)
    counts = {"mlp": 146_437, "cnn": 109_413, "lstm": 366_597, "cnn-lstm": 442_373}
    assert PUBLISHED[network, "phone"].make((47,) if network == "mlp" else (50, 6)).count() == counts[network]


def test_who_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"'s99'.*p01"):
        leave_one_out(people=("s99",), drawn=True, store=str(tmp_path))
    with pytest.raises(DataError, match="'s99'"):
        ActivityExperiment.load(ActivityConfig(drawn=True, person="s99"))
    assert np.isfinite(PUBLISHED["cnn", "both"].accuracy)
