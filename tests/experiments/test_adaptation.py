"""Streams of corrupted pictures, method beside method, for a tiny network of pictures in two colours."""

import json

import pytest

from edgelearn.cli import main
from edgelearn.errors import UsageError
from edgelearn.experiments import cifar10_recipe as recipe
from edgelearn.experiments.adaptation import AdaptationResults, StreamResult, compare_adaptation
from edgelearn.train import Model
from edgelearn.train.adaptation import Adaptation


@pytest.fixture
def pictures(monkeypatch, two_colours):
    x, labels = two_colours
    monkeypatch.setattr(recipe, "read", lambda path: recipe.Pictures(x, labels, x, labels))


def test_methods_beside_each_other(pictures, tmp_path, capsys):
    arguments = [
        "adapt", "cifar10", "--kinds", "noise", "bright", "--epochs", "1", "--batch-size", "8", "--micro-batch", "4",
        "--models", str(tmp_path / "models"), "--corrupted", str(tmp_path / "pictures"), "--anchor", "16", "--json",
    ]  # fmt: skip
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    streams = {(row["kind"], row["order"], row["method"]): row for row in found["streams"]}
    assert len(streams) == len(found["streams"]) == 3 * (1 + 2 * (3 + 2))
    assert {row["examples"] for row in found["streams"]} == {24} and ("noise", "single", "tent") in streams
    assert found["memory"]["statistics"] < found["memory"]["tent"] == found["memory"]["eata, anchor"]
    (model,), kept = (tmp_path / "models").iterdir(), sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert (model.name, kept) == ("cifar10_0.safetensors", ["bright_5_24.npy", "noise_5_24.npy"])
    assert main(arguments) == 0, "from the saved network and pictures"
    assert json.loads(capsys.readouterr().out) == found


def test_shuffled_streams_alone_are_told_to_be_mixed(pictures, monkeypatch):
    told, reset = [], Adaptation.reset

    def noted(self):
        reset(self)
        told.append((self.mixed, self.sure))

    monkeypatch.setattr(Adaptation, "reset", noted)
    for mixed in (False, True):
        told.clear()
        compare_adaptation(
            task="cifar10", kinds=("noise",), methods=("tent",), orders=("shuffled", "ordered"), epochs=1,
            batch_size=8, micro_batch=4, mixed=mixed,
        )  # fmt: skip
        assert told == [(False, False)] + [(mixed, mixed)] * 2 + [(False, False)] * 2


def test_settings_are_chosen_by_training_pictures(pictures, monkeypatch):
    rates, adapt = [], Model.adapt

    def noted(self, **settings):
        rates.append(settings["optimizer"].learning_rate)
        return adapt(self, **settings)

    monkeypatch.setattr(Model, "adapt", noted)
    found = compare_adaptation(
        task="cifar10", kinds=("noise",), methods=("tent",), orders=("shuffled",), epochs=1, batch_size=4,
        micro_batch=2, validation=True, rate=0.25,
    )  # fmt: skip
    held = len(recipe.for_validation(recipe.read(None)).test)
    assert rates == [0.25] and {row.examples for row in found.rows} == {held} and held < 24


def test_the_table_has_intervals_over_seeds():
    rows = [
        StreamResult(seed, kind, "shuffled", method, error + 0.01 * seed, 0.5, 100)
        for seed in (0, 1)
        for kind in ("clean", "fog")
        for method, error in (("unadapted", 0.5), ("statistics", 0.3), ("tent", 0.25))
    ]
    found = AdaptationResults(rows, {"tent": 2_000_000}, "a device")
    assert found.gain("tent") == pytest.approx([25, 24])
    assert found.gain("tent", over="statistics") == pytest.approx([5, 5])
    text = found.to_text(120)
    assert "30.5 ± 6.4" in text and "2.00 MB" in text and "tent beside statistics: +5.0 ± 0.0" in text
    assert found.plot().axes


def test_an_unknown_task():
    with pytest.raises(UsageError, match="thicket"):
        compare_adaptation(task="cifar")
