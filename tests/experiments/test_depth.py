"""Every depth of training, on a task of a few pictures."""

import json

import numpy as np
import pytest

import edgelearn as el
from edgelearn import models
from edgelearn.cli import main
from edgelearn.compile.policies import compressed_masks
from edgelearn.errors import PlanError
from edgelearn.experiments import depth
from edgelearn.experiments.depth import DEPTHS, Start, compare_depths, last_layers
from edgelearn.experiments.sparse_update import find_blocks, find_scheme, update_bytes
from edgelearn.graph import Network
from edgelearn.ops import BatchNormalization, Conv2D, Dense, GlobalAveragePooling2D, ReLU

CLASSES = 3


def small() -> Network:
    network = Network("small", (8, 8, 3))
    for number, filters in enumerate((16, 32, 48), start=1):
        network.add(f"conv{number}", Conv2D(filters, 3, padding="same", kernel_initializer="he_normal"))
        network.add(f"bn{number}", BatchNormalization(0.9))
        network.add(f"relu{number}", ReLU())
    network.add("pool", GlobalAveragePooling2D())
    network.add("dense", Dense(CLASSES))
    return network


@pytest.fixture(scope="module")
def start() -> Start:
    """Pictures of three colors in noise, and the weights of a network that has seen them with other names."""
    rng = np.random.default_rng(5)
    y = (np.arange(96) % CLASSES).astype(np.int32)
    x = rng.normal(0, 1.5, (96, 8, 8, 3)).astype(np.float32) + 1.5 * np.eye(3, dtype=np.float32)[y][:, None, None]
    model = el.Model(small(), seed=1).compile(el.SGD(0.05, momentum=0.9))
    model.fit(x[:64], (y[:64] + 1) % CLASSES, 16, 2, verbose=0)
    fresh = small().initialize(2)
    weights = {n: fresh[n] if n.startswith("dense") else w for n, w in model.weights.items()}
    return Start(small(), weights, (x[:64], y[:64]), (x[64:], y[64:]), 4, 16, 0.05, "Colors.")


@pytest.fixture
def task(start, monkeypatch):
    monkeypatch.setattr(depth, "TASKS", {"sample": lambda config: start})
    return start


def test_every_depth(task, tmp_path):
    found = compare_depths(store=str(tmp_path), budget_share=0.5)
    rows = {row.depth: row for row in found.rows}
    assert list(rows) == list(DEPTHS)
    counts = [rows[name].trained for name in ("inference", "last", "last3", "all")]
    assert counts == sorted(counts)
    assert counts[-1] == rows["scratch"].trained
    order = ["inference", "last", "biases", "all", "scratch"]
    stored = [rows[name].stored for name in order]
    assert stored == sorted(stored)
    assert rows["sparse"].update <= 0.5 * rows["last12"].update
    assert rows["sparse"].stored < rows["all"].stored / 2
    assert rows["inference"].macs < rows["last"].macs < rows["all"].macs
    assert rows["all"].accuracy[0] > rows["inference"].accuracy[0]
    assert set(found.pareto) <= set(rows)
    assert "inference" in found.pareto
    for name in ("depths", "curves"):
        (found.plot if name == "depths" else found.plot_curves)(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
    assert "Student's" not in str(found)
    assert max(map(len, str(found).splitlines())) <= 80


def test_the_command_finds_its_runs_again(task, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("EDGELEARN_RUNS", str(tmp_path))
    arguments = [
        "depth",
        "--depths",
        "last",
        "biases",
        "--layers",
        "conv3",
        "--seeds",
        "0",
        "1",
        "--epochs",
        "1",
        "--json",
    ]
    assert main(arguments) == 0
    first = json.loads(capsys.readouterr().out)
    assert [row["depth"] for row in first["depths"]] == ["last", "biases", "layers"]
    assert all(len(row["trainings"]["runs"]) == 2 for row in first["depths"])
    assert main(arguments) == 0
    again = json.loads(capsys.readouterr().out)
    assert [row["trainings"] for row in again["depths"]] == [row["trainings"] for row in first["depths"]]


def test_a_scheme_fits_its_budget_and_takes_what_contributes(start):
    model = el.Model(small(), start.weights).compile(el.SGD(0.05, momentum=0.9), batchnorm="moving")
    x, y = start.train
    schemes = [find_scheme(model, x[:12], y[:12], budget, 16) for budget in (12_000, 120_000, 10_000_000)]
    assert [scheme.nbytes <= budget for scheme, budget in zip(schemes, (12_000, 120_000, 10**7), strict=True)] == [
        True
    ] * 3
    assert (schemes[0].first, schemes[0].kernels, schemes[0].channels) == ("dense", ("dense",), {})
    assert schemes[1].channels or len(schemes[1].kernels) > 1
    assert schemes[2].first == "conv1"
    assert set(schemes[2].kernels) == {"conv1", "conv2", "conv3", "dense"}
    assert max(scheme.seconds for scheme in schemes) < 60
    eight_bits = find_scheme(model, x[:12], y[:12], 120_000, 16, activation_memory=compressed_masks)
    plain, more = (net.count(net.trainable) for net in (each.network(small()) for each in (schemes[1], eight_bits)))
    assert eight_bits.nbytes <= 120_000 and more > plain
    with pytest.raises(PlanError, match="To train 'dense' alone takes"):
        find_scheme(model, x[:32], y[:32], 10, 16)


def test_the_last_layers_whole_within_a_budget(task, tmp_path):
    """Each batch normalises them; the inputs of convolutions are stored in 8 bits, and the rest is recomputed."""
    model = el.Model(small(), task.weights).compile(el.SGD(0.05, momentum=0.9))
    few, more, all_layers = (find_blocks(model, budget, 16) for budget in (20_000, 200_000, 10_000_000))
    assert [scheme.first for scheme in (few, all_layers)] == ["dense", "conv1"]
    assert few.nbytes <= 20_000 < more.nbytes <= 200_000 < all_layers.nbytes
    assert "bn3/gamma" in more.network(small()).trainable
    with pytest.raises(PlanError, match="To train 'dense' alone takes"):
        find_blocks(model, 10, 16)
    settings = {"sparse_memory": "compressed_checkpoints", "budget_share": 0.9}
    found = compare_depths(store=str(tmp_path), depths=("inference", "sparse", "all"), **settings)
    inference, sparse, whole = found.rows
    assert sparse.scheme and sparse.scheme.whole and "everything from" in str(found)
    assert sparse.stored < whole.stored / 2
    assert sparse.accuracy[0] > inference.accuracy[0]


def test_last_layers_and_their_update():
    network = small()
    assert last_layers(network, 2) == ["dense", "conv3"]
    model = el.Model(network.freeze().unfreeze("dense")).compile(el.SGD(0.1, momentum=0.9), batchnorm="moving")
    assert update_bytes(model.plan(4)) >= 2 * 4 * CLASSES * 49


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"depths": ("deep",)}, "not one of inference"),
        ({"task": "imagenet"}, "'imagenet'"),
        ({"rank": 0}, "minimum is 1"),
    ],
)
def test_settings_that_are_refused(value, problem):
    with pytest.raises(el.EdgelearnError, match=problem):
        compare_depths(**value)


def test_a_rate_is_chosen_by_held_out_training_examples(task, tmp_path):
    rates = (0.05, 1e-6)
    found = compare_depths(depths=("last2", "last"), learning_rates=rates, epochs=2, store=str(tmp_path))
    assert [row.depth for row in found.rows] == ["last", "last2"]
    assert found.rows[0].trained < found.rows[1].trained
    for row in found.rows:
        assert set(row.tried) == set(rates)
        assert row.rate == max(rates, key=row.tried.__getitem__)
        assert row.result is not None
        (run,) = row.result.runs.values()
        assert f"initial_learning_rate={row.rate}" in run.config["optimizer"]
        assert run.record["data"]["train"] == len(task.train[1])  # not only those that remained for the choice
    assert "chosen on a fifth" in str(found)


def test_moving_statistics_follow_where_all_layers_are_trained():
    config = depth.DepthConfig(batchnorm="batch")
    network, _ = depth.depth_network(models.mobilenet_v1((32, 32, 3), 0.25, 2), "all", config)
    norms = [node.op for node in network.nodes.values() if isinstance(node.op, BatchNormalization)]
    assert {norm.momentum for norm in norms} == {0.9}
    kept, _ = depth.depth_network(small(), "all", depth.DepthConfig(batchnorm="moving"))
    assert kept.to_json() == small().to_json()
