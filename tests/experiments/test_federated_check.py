"""The command `federated check`, and the processes that a killed lab leaves behind."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import ClassVar

import psutil
import pytest
from federated_tiny import KIND, TinyFederation

from edgelearn import federated as fl
from edgelearn.cli import main
from edgelearn.errors import RunError
from edgelearn.experiments.claims import check_claims
from edgelearn.experiments.federated import TASKS, FederatedConfig
from edgelearn.experiments.federated.check import VICTIMS, Federations, claims
from edgelearn.experiments.federated.deployment import Deployment, end, end_left_over, record
from edgelearn.experiments.federated.guard import HOME, LAB, start_guard, this_lab
from edgelearn.lab.runs import RunStore

SLOW = bool(os.environ.get("EDGELEARN_SLOW_TESTS"))
TINY = FederatedConfig("tiny", clients=2, rounds=2)


def checked(tmp_path, *arguments):
    engines, seeds, kills = arguments
    federations = Federations(TinyFederation, TINY, seeds, tmp_path, lambda line: None)
    return check_claims(claims(engines, seeds, kills), lambda: federations).verdicts


def test_other_bits_are_noticed(tmp_path, monkeypatch):
    whole = "edgelearn.experiments.federated.check._whole"
    monkeypatch.setattr(whole, lambda job: (f"{job.config.engine} {job.config.seed}", 1.0))
    assert [each.passed for each in checked(tmp_path, ["local", "deployed"], (0, 1), 0)] == [True, False] * 2


def test_a_kill_that_came_too_late_is_tried_again_earlier(tmp_path, monkeypatch):
    module, moments = "edgelearn.experiments.federated.check", []

    def killed(job, victim, moment):
        moments.append(moment)
        return "same", "what happened", len(moments) == 2

    monkeypatch.setattr(f"{module}._whole", lambda job: ("same", 1.0))
    monkeypatch.setattr(f"{module}._killed", killed)
    assert [each.passed for each in checked(tmp_path, ["local"], (0,), 2)] == [True, True, None]
    assert moments[1] == moments[0] / 2 and moments[4] == moments[2] / 4 and len(moments) == 5


def test_an_interrupted_check_leaves_no_run_behind(tmp_path, monkeypatch):
    module, labs = "edgelearn.experiments.federated.check", []

    def interrupted(lab, program):
        assert lab.is_running()
        labs.append(lab)
        raise KeyboardInterrupt

    monkeypatch.setattr(f"{module}._whole", lambda job: ("same", 0.0))
    monkeypatch.setattr(f"{module}._process", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checked(tmp_path, ["local"], (0,), 1)
    (lab,) = labs
    assert not lab.is_running()


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(TASKS, "tiny", KIND)
    command = ["federated", "check", "tiny", "--engines", "local", "--seeds", "0", "--rounds", "1", "--kills", "0"]
    assert main([*command, "--clients", "2", "--json"]) == 0
    (claim,) = json.loads(capsys.readouterr().out)
    assert claim["passed"] is True and len(claim["measured"]) == 16


@pytest.mark.skipif(not SLOW, reason="EDGELEARN_SLOW_TESTS isn't set")
@pytest.mark.parametrize("engine", ["local", "deployed"])
def test_whatever_is_killed(tmp_path, engine):
    found = checked(tmp_path, [engine], (0,), len(VICTIMS[engine]))
    assert len(found) == 1 + len(VICTIMS[engine]) and all(each.passed for each in found)


class FakeDeployment:
    """In place of Flower's processes, a thread's worth of work: each start does what `starts` says next."""

    starts: ClassVar[list] = []

    def __init__(self, folder, *settings):
        self.run_folder = folder.parent

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def commands(self):
        return []

    def traffic(self):
        return {}

    def said(self):
        return "RuntimeError: Simulation Runtime crashed."

    def run(self, experiment, settings):
        with RunStore(self.run_folder.parent).open(self.run_folder.name).resume() as run:
            if self.starts.pop(0) == "crash":
                run.fail(RuntimeError("Simulation Runtime crashed."))
                return
            loaded = TinyFederation.load(FederatedConfig.from_dict(run.config))
            loaded.carrier = fl.LocalGrid(loaded.clients())
            loaded.run(run, log=lambda line: None)

    def watch(self, ended):
        while not ended():
            pass


@pytest.mark.parametrize("starts", [["crash", "crash", "work"], ["crash"] * 3])
def test_ray_is_started_again(tmp_path, monkeypatch, starts):
    module, lines = "edgelearn.experiments.federated.experiment", []
    monkeypatch.setattr(f"{module}.Deployment", FakeDeployment)
    monkeypatch.setattr(f"{module}.require_flower", lambda engine: None)
    monkeypatch.setattr(FakeDeployment, "starts", list(starts))
    store, config = RunStore(tmp_path), replace(TINY, engine="ray")
    if starts[-1] == "work":
        assert TinyFederation.start(config, store, [], log=lines.append)["accuracy"] > 0
    else:
        with pytest.raises(RunError, match=r"3 starts.*--resume"):
            TinyFederation.start(config, store, [], log=lines.append)
    assert sum("once more" in line for line in lines) == 2 and not FakeDeployment.starts


def test_a_simulation_starts_a_cluster_of_its_own(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert Deployment(tmp_path, 1, simulation=True)._environment()["RAY_ADDRESS"] == "local"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert Deployment(tmp_path, 1, simulation=True)._environment()["RAY_ADDRESS"] == "10.0.0.1:6379"


def test_left_over_processes_end(tmp_path):
    """Processes of a dead lab end, also in sessions of their own; those of a living one go on."""
    code = "import sys, time; print('begun', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", code]
    own, other = (
        subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, env=os.environ | {HOME: home})
        for home in (str(tmp_path), "elsewhere")
    )
    try:
        own.stdout.read(5), other.stdout.read(5)
        record(tmp_path)
        end_left_over(tmp_path)
        assert own.poll() is None
        path = tmp_path / "lab.json"
        path.write_text(json.dumps([os.getpid(), 1.0]))  # another process has its number now
        end_left_over(tmp_path)
        assert not psutil.pid_exists(own.pid) and other.poll() is None and not path.exists()
        path.write_text("{}")
        end_left_over(tmp_path)
    finally:
        for process in (own, other):
            end(process)
            process.stdout.close()


def test_a_guard_ends_the_processes_of_a_dead_lab(tmp_path):
    """Processes of another lab go on, in the same folder too."""
    command = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    own, other = (
        subprocess.Popen(command, start_new_session=True, env=os.environ | {HOME: str(tmp_path), LAB: lab})
        for lab in (this_lab(), "another")
    )
    guard = start_guard(tmp_path)
    try:
        guard.stdin.close()  # as the end of this process would
        assert own.wait(30) and not guard.wait(30) and other.poll() is None
    finally:
        for process in (own, other, guard):
            end(process)
