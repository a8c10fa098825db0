"""The same bits on Flower's processes as in this one; a killed node ends the run, which goes on where it was."""

import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

import pytest
from federated_tiny import TinyFederation

from edgelearn.errors import RunError
from edgelearn.experiments.federated import FederatedConfig, read_rounds
from edgelearn.experiments.federated.deployment import Deployment, end
from edgelearn.experiments.federated.experiment import FOLDER, TRAFFIC
from edgelearn.lab.runs import RunStore

pytestmark = pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="flwr isn't installed")
SLOW = bool(os.environ.get("EDGELEARN_SLOW_TESTS"))


def trained(root, **settings):
    store = RunStore(root)
    config = FederatedConfig(**({"task": "tiny", "clients": 2, "rounds": 2, "strategy": "fedadam"} | settings))
    assert TinyFederation.start(config, store, [], log=lambda line: None)
    return store.open(store.list()[0].id)


def checkpoint(run):
    return {name: array.tobytes() for name, array in run.load_checkpoint()[0].items()}


def sizes(run):
    return [(each["round"], each["up"]["payload"], each["down"]) for each in read_rounds(run)]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("local"))


def test_deployed_gives_the_bits_of_local(local, tmp_path):
    run = trained(tmp_path, engine="deployed")
    assert checkpoint(run) == checkpoint(local)
    assert sizes(run) == sizes(local)
    assert run.record["results"]["accuracy"] == local.record["results"]["accuracy"]
    counted, flowers = run.record["results"]["bytes"], json.loads((run.folder / FOLDER / TRAFFIC).read_text())
    assert counted["up"]["total"] < flowers["inbound-bytes"] and counted["down"]["total"] < flowers["outbound-bytes"]


@pytest.mark.skipif(not SLOW, reason="EDGELEARN_SLOW_TESTS isn't set")
def test_deployed_with_tls_and_authentication(local, tmp_path):
    assert checkpoint(trained(tmp_path, engine="deployed", tls=True, authenticate=True)) == checkpoint(local)


@pytest.mark.skipif(not SLOW, reason="EDGELEARN_SLOW_TESTS isn't set")
@pytest.mark.parametrize("compress", ["float32", "int8"])
def test_flowers_traffic(tmp_path, compress):
    """Flower counts at most 6 % more than is counted here for messages of 40 kB, and no less."""
    settings = {"task": "wide", "compress": compress, "compress_down": compress}
    run = trained(tmp_path, engine="deployed", **settings)
    counted, flowers = run.record["results"]["bytes"], json.loads((run.folder / FOLDER / TRAFFIC).read_text())
    ours = counted["up"]["total"] + counted["down"]["total"]
    theirs = flowers["inbound-bytes"] + flowers["outbound-bytes"]
    print(f"{compress}: counted {ours:,}, by Flower {theirs:,}")
    assert ours < theirs and (compress != "float32" or theirs < 1.06 * ours)


@pytest.mark.skipif(not SLOW, reason="EDGELEARN_SLOW_TESTS isn't set")
def test_nodes_of_other_machines(local, tmp_path):
    """The commands that the lab prints, run in a folder with copies of the keys."""
    nodes = []

    def log(line):
        if line.startswith("node "):
            command = shlex.split(line.partition(": ")[2])
            (keys,) = tmp_path.glob("runs/*/flower/keys")
            for file in ("ca.crt", f"node-{len(nodes)}"):
                shutil.copy(keys / file, tmp_path)
            command[0] = str(Path(sysconfig.get_path("scripts")) / command[0])
            environment = os.environ | {
                "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
                "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(tmp_path / f"home{len(nodes)}"),
                "PYTHONPATH": os.pathsep.join(sys.path),
                "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]),
            }  # fmt: skip
            nodes.append(subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True))

    store = RunStore(tmp_path / "runs")
    config = FederatedConfig(
        "tiny", clients=2, rounds=2, strategy="fedadam", engine="deployed", tls=True, authenticate=True,
        listen="127.0.0.1",
    )  # fmt: skip
    try:
        assert TinyFederation.start(config, store, [], log=log)
    finally:
        for node in nodes:
            end(node)
    assert len(nodes) == 2 and checkpoint(store.open(store.list()[0].id)) == checkpoint(local)


@pytest.mark.skipif(
    not SLOW or importlib.util.find_spec("ray") is None, reason="EDGELEARN_SLOW_TESTS isn't set, or ray"
)
def test_ray_gives_the_bits_of_local(local, tmp_path):
    assert checkpoint(trained(tmp_path, engine="ray")) == checkpoint(local)


@pytest.mark.skipif(not SLOW, reason="EDGELEARN_SLOW_TESTS isn't set")
@pytest.mark.parametrize("victim", ["superlink", "supernode-1"])
def test_a_killed_process_ends_the_run_which_is_resumed(local, tmp_path, victim, monkeypatch):
    enter = Deployment.__enter__

    def killed_in_the_second_round(self):
        entered = enter(self)

        def kill():
            while not (self.folder.parent / "checkpoint.safetensors").exists():
                time.sleep(0.05)
            os.kill(self.processes[victim].pid, signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()
        return entered

    with monkeypatch.context() as patch:
        patch.setattr(Deployment, "__enter__", killed_in_the_second_round)
        with pytest.raises(RunError, match=victim):
            trained(tmp_path, engine="deployed")
    store = RunStore(tmp_path)
    run = store.open(store.list()[0].id)
    assert len(run.history()) < 2
    assert TinyFederation.resume(run.id, store, [], log=lambda line: None)
    assert checkpoint(run) == checkpoint(local)
