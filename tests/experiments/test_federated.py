"""Federations in run folders: results, resume after a kill, the command."""

import asyncio
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from math import inf
from pathlib import Path

import numpy as np
import pytest
from federated_tiny import KIND, ROUNDS

from edgelearn.cli import main
from edgelearn.errors import FormatError, RunError
from edgelearn.experiments.config import ConfigError
from edgelearn.experiments.federated import (
    TASKS,
    FederatedConfig,
    FederatedExperiment,
    deployment,
    experiment,
    guard,
    read_rounds,
    report,
)
from edgelearn.experiments.federated.deployment import Deployment
from edgelearn.experiments.federated.experiment import PARTITION, with_group_normalization
from edgelearn.experiments.federated.report import ROUNDS as ROUNDS_FILE
from edgelearn.experiments.federated.report import totals
from edgelearn.experiments.tasks import load_model
from edgelearn.federated import LocalGrid
from edgelearn.federated.privacy import gaussian_epsilon
from edgelearn.lab.runs import RunStore
from edgelearn.models import ds_cnn

SCRIPT = Path(__file__).with_name("federated_tiny.py")


SETTINGS = {"strategy": "fedyogi", "fraction": 0.75}


@pytest.fixture(autouse=True, scope="module")
def _tiny():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "tiny", KIND)
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return RunStore(tmp_path_factory.mktemp("federated") / "runs")


@pytest.fixture(scope="module")
def whole(store, _tiny):
    """A run that nothing interrupted."""
    results = FederatedExperiment.start(FederatedConfig("tiny", **SETTINGS), store, [], log=lambda line: None)
    assert results
    return store.open(store.list()[0].id)


@pytest.fixture
def killed(tmp_path):
    """killed(moment, settings): the store of a run of these settings that was killed at this moment."""

    def killed(moment, settings):
        words = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        command = [sys.executable, SCRIPT, moment, "federated", "run", "tiny", *words, "--runs", tmp_path]
        assert subprocess.run(list(map(str, command)), timeout=100).returncode == -signal.SIGKILL
        return RunStore(tmp_path)

    return killed


def resumed(store):
    """The newest run, after `federated run --resume`."""
    assert main(["federated", "run", "--resume", "--runs", str(store.root)]) == 0
    return store.open(store.list()[0].id)


def checkpoint(run):
    return {name: array.tobytes() for name, array in run.load_checkpoint()[0].items()}


def test_a_run_keeps_what_happened(whole):
    results, happened = whole.record["results"], read_rounds(whole)
    assert [each["round"] for each in happened] == list(range(1, ROUNDS + 1))
    assert results["total"] == 20 and results["left_out"] == 0 and results["epochs"] == ROUNDS
    for way in ("up", "down"):
        assert results["bytes"][way]["payload"] == ROUNDS * 3 * 4 * (6 * 3 + 3)
        assert results["bytes"][way]["total"] == sum(each[way]["total"] for each in happened)
    assert results["memory"]["planned"] == results["memory"]["allocated"]
    assert (whole.folder / PARTITION).exists()
    assert load_model(whole).weights["dense/kernel"].tobytes() == checkpoint(whole)["weights/dense/kernel"]


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "labels", "group"])
def test_partitions(partition):
    experiment = FederatedExperiment.load(FederatedConfig("tiny", partition=partition, clients=2))
    assert len(experiment.examples.sizes) == 2


def test_masked_rounds_of_single_updates(tmp_path):
    weights = []
    for masked in (True, False):
        store = RunStore(tmp_path / str(masked))
        config = FederatedConfig("tiny", steps=2, masked=masked, validation_frequency=3)
        assert FederatedExperiment.start(config, store, [], log=lambda line: None)
        run = store.open(store.list()[0].id)
        assert ["val_accuracy" in row for row in run.history()] == [False, False, True, True]
        assert {client["examples"] for each in read_rounds(run) for client in each["clients"]} == {16}
        weights.append(load_model(run).weights["dense/kernel"])
    assert not np.array_equal(*weights) and np.allclose(*weights, atol=1e-5)  # masked ones are rounded to 2^-20


def test_averaged_weights_are_tested_and_kept(store, whole):
    config = FederatedConfig("tiny", **SETTINGS, average=0.5, validation_frequency=3)
    assert FederatedExperiment.start(config, store, [], log=lambda line: None)
    run = store.open(store.list()[0].id)
    tensors, plain = run.load_checkpoint()[0], whole.load_checkpoint()[0]
    assert all(tensors[name].tobytes() == array.tobytes() for name, array in plain.items())
    kept = load_model(run).weights["dense/kernel"]
    assert kept.tobytes() == tensors["average/dense/kernel"].tobytes() != tensors["weights/dense/kernel"].tobytes()
    results = run.record["results"]
    assert results["raw_accuracy"] == whole.record["results"]["accuracy"]
    assert results["raw_loss"] == whole.record["results"]["loss"] != results["loss"]


@pytest.mark.parametrize("moment", ["client:1", "row"])
def test_killed_and_resumed_gives_the_same_bits(killed, whole, moment):
    store = killed(moment, SETTINGS)
    assert store.list()[0].epochs == (1 if moment == "client:1" else 2)
    run = resumed(store)
    assert checkpoint(run) == checkpoint(whole)
    assert run.record["results"]["accuracy"] == whole.record["results"]["accuracy"]
    assert len(read_rounds(run)) == ROUNDS


def test_the_command_shows_rounds_and_tasks(store, whole, capsys):
    assert main(["federated", "rounds", whole.id, "--runs", str(store.root)]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= ROUNDS
    chart = store.root / "chart.png"
    assert main(["federated", "compare", whole.id, "--chart", str(chart), "--runs", str(store.root)]) == 0
    assert f"{whole.record['results']['accuracy']:.2%}" in capsys.readouterr().out
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert main(["federated", "tasks"]) == 0
    said = capsys.readouterr().out
    assert all(task in said for task in TASKS)


def test_a_terminal_obeys_no_client(store, capsys):
    """Escapes in a problem, a metric's name and a run's name; a client's lines stay one line."""
    evil = "\x1b]0;owned\x07\x1b[2J\u202e"
    size = {"payload": 1, "total": 2}
    client = {"client": 0, "examples": 4, "up": size, "down": size, f"loss{evil}": 1.0}
    happened = {"round": 1, "clients": [client], "left_out": {"1": f"late{evil}"}, "up": size, "down": size}
    with store.create("federated", {"strategy": f"fedavg{evil}"}) as run:
        (run.folder / ROUNDS_FILE).write_text(json.dumps(happened) + "\n")
        run.append_epoch({"epoch": 1, f"val_loss{evil}": 1.0, "seconds": 1.0})
        run.finish({f"accuracy{evil}": 0.5, "accuracy": 0.5, "memory": {"planned": 1}})
    folder = run.folder.rename(run.folder.with_name(f"federated{evil}-20260101-000000-abcd"))
    for command in (
        ["federated", "rounds", folder.name], ["federated", "compare", folder.name], ["runs"], ["runs", folder.name],
        ["federated", "compare", folder.name, "--markdown"], ["compare", folder.name],
        ["compare", folder.name, "--json"],
    ):  # fmt: skip
        assert main([*command, "--runs", str(store.root)]) == 0
        out, err = capsys.readouterr()
        assert out and not {"\x1b", "\x07", "\u202e"} & set(out + err), command
    shutil.rmtree(folder)


def test_clients_need_not_report_their_memory():
    client = {"client": 0, "examples": 4, "up": {"payload": 1, "total": 2}, "down": {"payload": 3, "total": 4}}
    happened = {"clients": [client], "left_out": {"1": "late"}, "up": client["up"], "down": client["down"]}
    found = totals([happened, happened])
    assert found["memory"] == {"planned": 0, "allocated": 0} and found["left_out"] == 2
    assert found["bytes"] == {"up": {"payload": 2, "total": 4}, "down": {"payload": 6, "total": 8}}


def test_an_infinite_size_in_a_record_is_refused(store):
    size = {"payload": 1, "total": 2}
    client = {"client": 0, "examples": 4, "up": size, "down": size}
    happened = {"round": 1, "clients": [client], "left_out": {}, "up": size, "down": size}
    with store.create("federated", {}) as run:
        (run.folder / ROUNDS_FILE).write_text(json.dumps(happened) + "\n")
        assert read_rounds(run) == [happened]
        (run.folder / ROUNDS_FILE).write_text(json.dumps(happened | {"clients": [client | {"planned": inf}]}) + "\n")
        with pytest.raises(FormatError, match="planned"):
            read_rounds(run)


def test_the_report_has_bytes_privacy_and_who_was_left_out(store):
    """An update 1,000 times as long as the others, which is left out."""
    lines = []
    experiment = FederatedExperiment.load(FederatedConfig("tiny", rounds=1))
    with experiment.create_run(store) as run:

        class Lying(LocalGrid):
            def exchange(self, instructions, deadline, arrived):
                return dict(super().exchange(instructions, deadline, arrived)) | {2: "it lies"}

        experiment.carrier = Lying(experiment.clients())
        experiment.run(run, log=lines.append)
    (left,) = (line for line in lines if "client 2" in line)
    assert "it lies" in left and any("1 of 4" in line for line in lines)
    shown = report.table([run])
    cells = dict(zip(shown.header, shown.rows[0], strict=True))
    assert cells["left out"] == "1" and cells["ε"] == "–"


def test_nodes_elsewhere_have_commands():
    deployment = Deployment(Path("flower"), 2, tls=True, authenticate=True, listen="192.168.1.10", port=9092)
    one, two = deployment.commands()
    assert "192.168.1.10:9092" in one and "node-1" in two and "partition-id=1" in two
    assert "--port 9094" in one and "--port 9095" in two, "two nodes of one machine"


def test_servers_of_flower_answer_their_own_user_alone(monkeypatch):
    """By who owns the other end of the connection; nodes of others reach the nodes' paths alone."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        scope = {"type": "http", "client": client.getsockname(), "server": listener.getsockname()}
        assert guard.is_own(scope) and not guard.is_own(scope | {"client": ("192.0.2.1", 4000)})

        def status(path, public):
            said = []

            async def app(scope, receive, send):
                said.append({"status": 200})

            async def send(message):
                said.append(message)

            asyncio.run(guard.OwnUser(app, public)(scope | {"path": path}, None, send))
            return said[0]["status"]

        assert status("/v1/control/start-run", guard.NOBODY) == 200
        monkeypatch.setattr(guard.os, "getuid", lambda: 12345)
        for path, public, expected in (
            ("/v1/control/start-run", guard.NODES, 403), ("/v1/fleet/pull-messages", guard.NODES, 200),
            ("/v1/fleet/pull-messages", guard.NOBODY, 403), ("/v1/runtime/acquire-task", guard.NODES, 403),
        ):  # fmt: skip
            assert status(path, public) == expected
        monkeypatch.setattr(guard, "_TABLES", [])  # a system that doesn't tell
        assert guard.is_own(scope) and not guard.is_own(scope | {"client": ("192.0.2.1", 4000)})
        monkeypatch.undo()
        client.close()
        assert not guard.is_own(scope), "a closed connection counts as user 0's"


def test_commands_of_flower_that_are_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(deployment.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(deployment, "find_spec", lambda name: True)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match="flwr is neither"):
        FederatedExperiment.start(FederatedConfig("tiny", engine="deployed"), RunStore(tmp_path / "runs"), [])
    assert not (tmp_path / "runs").exists()


def test_messages_of_a_deployment_are_for_its_owner(monkeypatch, tmp_path):
    monkeypatch.setattr(Deployment, "_wait", lambda self: pytest.fail("it listens"))
    monkeypatch.setattr(Deployment, "_spawn", lambda *arguments: None)
    deployment = Deployment(tmp_path / "flower", 1)
    with pytest.raises(pytest.fail.Exception), deployment:
        pass
    assert stat.S_IMODE((tmp_path / "flower" / "state.db").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "flower").stat().st_mode) == 0o700


@pytest.fixture
def run_elsewhere(store, monkeypatch):
    """start(engine, act, said): how its processes ended, a run on them that does `act`, and the call that starts it."""

    def start(engine, act, said=None):
        ended = []

        class Deployment:
            def __init__(self, *arguments):
                pass

            def __enter__(self):
                return self

            def __exit__(self, kind, error, trace):
                ended.append(kind)

            def run(self, *arguments):
                act()

            def watch(self, ended):
                if said is None:
                    raise RunError("superlink ended with status -9: its log.")

            def said(self):
                return said

        monkeypatch.setattr(experiment, "Deployment", Deployment)
        config = FederatedExperiment.resolve(FederatedConfig("tiny", engine=engine))
        run = store.create("federated", config.to_dict())
        return ended, run, lambda: experiment.run_elsewhere(FederatedExperiment, run, config, lambda line: None)

    return start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_processes_of_an_engine(run_elsewhere, number):
    """Without Flower: a deployment that gets the signal while it is watched."""
    ended, _, start = run_elsewhere("deployed", lambda: os.kill(os.getpid(), number))
    before = signal.signal(number, lambda *arguments: pytest.fail("the signal wasn't heard"))
    try:
        assert start() is None
    finally:
        signal.signal(number, before)
    assert ended == [KeyboardInterrupt]


@pytest.mark.parametrize(
    ("said", "cause"), (("RuntimeError: Simulation Runtime crashed.", "busy"), (None, "status -9"))
)
def test_whatever_dies_the_error_says_how_to_continue(run_elsewhere, said, cause):
    _, run, start = run_elsewhere("ray", lambda: None, said)
    with pytest.raises(RunError, match=f"{cause}.*--resume {run.id}"):
        start()


def test_the_sample_loads():
    experiment = FederatedExperiment.load(FederatedConfig(normalization="group"))
    assert experiment.examples.sizes == [40] * 12
    assert experiment.model.changing == sorted(experiment.model.network.parameters)


def test_group_normalization_has_no_statistics():
    network = ds_cnn()
    replaced = with_group_normalization(network)
    assert replaced.parameters.keys() == network.trainable < network.parameters.keys()


def test_differential_privacy(store):
    """ε stands beside the accuracy, after each round and in the results; noise comes from the seed."""
    runs = []
    for _ in range(2):
        config = FederatedConfig("tiny", clip=1.0, noise=2.0)
        results = FederatedExperiment.start(config, store, [], log=lambda line: None)
        runs.append(store.open(store.list()[0].id))
        assert results["epsilon"] == pytest.approx(gaussian_epsilon(2.0, ROUNDS, 1e-5)) and results["delta"] == 1e-5
    assert checkpoint(runs[0]) == checkpoint(runs[1])
    shown = report.table(runs)
    cells = dict(zip(shown.header, shown.rows[0], strict=True))
    assert float(cells["ε"]) == pytest.approx(results["epsilon"], abs=0.005)


def test_compression_both_ways_survives_a_kill(store, killed):
    """The server's and the clients' copies of the weights, and what updates left out, fit together after a resume."""
    settings = {"compress": "topk:0.3+int8+warmup:1", "compress_down": "int8", "fraction": 0.75, "seed": 2}
    FederatedExperiment.start(FederatedConfig("tiny", **settings), store, [], log=lambda line: None)
    whole = store.open(store.list()[0].id)
    assert checkpoint(resumed(killed("client:1", settings))) == checkpoint(whole)
    first, *_, last = (each["down"]["payload"] for each in read_rounds(whole))
    assert last < first  # those who were drawn in the round before get a change in 8 bits


def test_local_noise_and_normalised_steps(store):
    config = FederatedConfig("tiny", clients=4, rounds=2, fraction=0.5, strategy="fednova", clip=1.0, local_noise=0.01)
    results = FederatedExperiment.start(config, store, [], log=lambda line: None)
    assert results["local_epsilon"] > 100 and results["delta"] == 1e-5 and "epsilon" not in results
    loaded = FederatedExperiment.load(config)
    assert (loaded.strategy.batch_size, loaded.strategy.epochs, loaded.strategy.momentum) == (8, 1, 0.0)
    for wrong in ({"local_noise": 1.0}, {"clip": 1.0}, {"clip": 1.0, "local_noise": 1.0, "compress": "int8"},
                  {"clip": 1.0, "local_noise": 1.0, "accountant": "sampled"}):  # fmt: skip
        with pytest.raises(ConfigError):
            FederatedConfig("tiny", **wrong)


ASYNCHRONOUS = {"buffer": 2, "concurrency": 3, "spread": 1.0}


@pytest.mark.parametrize("moment", ["client:1", "row"])
def test_asynchronous_rounds_killed_and_resumed(killed, store, moment):
    settings = {"rounds": ROUNDS, "compress": "topk:0.3+int8", **ASYNCHRONOUS}
    FederatedExperiment.start(FederatedConfig("tiny", **settings), store, [], log=lambda line: None)
    whole, run = store.open(store.list()[0].id), resumed(killed(moment, settings))
    assert checkpoint(run) == checkpoint(whole)
    seconds = [row["simulated_seconds"] for row in run.history() if row["epoch"]]
    assert seconds == [row["simulated_seconds"] for row in whole.history() if row["epoch"]] == sorted(seconds)
    assert all("staleness" in client for each in read_rounds(run) for client in each["clients"])


@pytest.mark.parametrize(
    "wrong",
    [{"concurrency": None}, {"spread": None}, {"buffer": None}, {"secure": True}, {"masked": True},
     {"clip": 1.0, "noise": 1.0}, {"strategy": "fednova"}, {"strategy": "krum"}, {"mixing": "buckets"},
     {"compress_down": "int8"}, {"fraction": 0.5}, {"deadline": 3.0}, {"engine": "ray"}, {"engine": "deployed"}],
    ids=str,
)  # fmt: skip
def test_what_asynchronous_rounds_refuse(wrong):
    with pytest.raises(ConfigError):
        FederatedConfig("tiny", **(ASYNCHRONOUS | wrong))


def test_more_clients_in_training_than_there_are(store):
    with pytest.raises(ConfigError, match="concurrency"):
        FederatedExperiment.start(
            FederatedConfig("tiny", **(ASYNCHRONOUS | {"concurrency": 5})), store, [], log=lambda line: None
        )


def test_secure_aggregation_and_a_resume(store):
    """About the same weights as without; keys are random, and bits don't depend on them."""
    found = []
    for settings in ({}, {"secure": True}, {"secure": True}):
        FederatedExperiment.start(FederatedConfig("tiny", **settings), store, [], log=lambda line: None)
        found.append(store.open(store.list()[0].id).load_checkpoint()[0]["weights/dense/kernel"])
    np.testing.assert_allclose(found[0], found[1], atol=0.05)
    assert np.array_equal(found[1], found[2]) and not np.array_equal(found[0], found[1])
    for wrong in ({"masked": True}, {"compress": "int8"}, {"strategy": "krum"}, {"clip": 1.0, "noise": 1.0}):
        with pytest.raises(ConfigError):
            FederatedConfig("tiny", secure=True, **wrong)
