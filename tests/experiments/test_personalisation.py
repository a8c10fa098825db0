"""Asking for labels and learning one example at a time, on clusters that stand for a network's features."""

import json
from typing import Any

import numpy as np
import pytest

from edgelearn.cli import main
from edgelearn.data.flowers import thicket_flowers
from edgelearn.data.pictures import load_images
from edgelearn.errors import DataError, UsageError
from edgelearn.experiments import personalisation
from edgelearn.experiments.personalisation import PersonalConfig, World, load_world
from edgelearn.train.asking import STRATEGIES


@pytest.fixture
def clusters(monkeypatch):
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(4, 16))
    labels = rng.integers(0, 4, 300).astype(np.int32)
    x = np.maximum(centres[labels] + rng.normal(0, 1.5, (300, 16)), 0).astype(np.float32)
    pictures: Any = None
    world = World(x[:200], labels[:200], x[200:], labels[200:], tuple("abcd"), "Clusters.", pictures, np.arange(200))
    monkeypatch.setattr(personalisation, "load_world", lambda config, log: world)


def said(capsys, *words):
    assert main(["personal", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_strategies_beside_each_other(clusters, capsys, tmp_path):
    plot = tmp_path / "asking.png"
    found = said(capsys, "ask", "--labels", "12", "--at-once", "4", "--seeds", "0", "1", "--plot", str(plot))
    assert found["labels"] == [4, 8, 12] and list(found["accuracies"]) == list(STRATEGIES) and plot.exists()
    means = {name: np.mean(rows, 0) for name, rows in found["accuracies"].items()}
    assert means["typical"][0] > means["random"][0] and means["typical"][-1] > 0.8


def test_one_at_a_time_and_a_new_class(clusters, capsys):
    found = said(capsys, "learn", "--per-class", "15", "--seeds", "0", "1", "--memory", "2 kB")
    assert found["memory"] <= 2000 < found["planned"]
    for row in found["rows"]:
        assert row["single"] > row["batch"] - 0.1
        assert row["replay"] > row["old"] - 0.1 > row["plain"]
        assert row["new"] > 0.6


def test_features_are_kept(tmp_path, monkeypatch):
    few = thicket_flowers(3)
    pictures = load_images(few, range(15), 96)
    monkeypatch.setattr(personalisation, "drawn_thicket", lambda size: (few, pictures))
    config = PersonalConfig(features=str(tmp_path / "features.npz"))
    first = load_world(config)
    assert (first.x.shape, first.test_x.shape) == ((10, 256), (5, 256)) and len(first.names) == 5
    monkeypatch.setattr(personalisation, "normalize", None)
    assert np.array_equal(load_world(config).x, first.x)
    np.savez(tmp_path / "features.npz", train=first.x)
    with pytest.raises(DataError, match="other examples"):
        load_world(config)
    with pytest.raises(UsageError, match="thicket"):
        load_world(PersonalConfig("flower"))
