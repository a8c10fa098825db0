"""Sweeps: what is trained once isn't trained again, interrupted runs go on, and Ray gives the same bits."""

import importlib.util
import json
import os
from dataclasses import replace

import pytest
from federated_tiny import TinyFederation

from edgelearn.cli import main
from edgelearn.errors import RunError
from edgelearn.experiments.config import ConfigError
from edgelearn.experiments.federated import FederatedConfig
from edgelearn.experiments.federated.experiment import Federation
from edgelearn.experiments.sweep import Job, combine, find, in_turn, on_ray, train
from edgelearn.lab.runs import RunStore, interval

RAY = importlib.util.find_spec("ray") is not None
BASE = FederatedConfig("tiny", rounds=2)
VARIED = {"strategy": ["fedavg", "fedyogi"]}


def jobs(folder):
    return [Job(TinyFederation, config, str(folder)) for config in combine(BASE, VARIED, (0, 1))]


def weights(folder, outcome):
    tensors, _ = RunStore(folder).open(outcome.run).load_checkpoint()
    return {name: array.tobytes() for name, array in tensors.items()}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    return folder, dict(in_turn(jobs(folder)))


def test_every_combination_has_every_seed():
    found = combine(BASE, {**VARIED, "fraction": [0.5, 1.0]}, (0, 7))
    assert len(set(found)) == 8 and {config.rounds for config in found} == {2}
    with pytest.raises(ConfigError, match="momentum"):
        combine(BASE, {"momentum": [0.9]}, (0,))
    with pytest.raises(ConfigError, match="fraction"):
        combine(BASE, {"fraction": [0.0]}, (0,))


def test_what_is_trained_is_not_trained_again(swept):
    folder, outcomes = swept
    assert len({outcome.run for outcome in outcomes.values()}) == 4
    assert all(outcome.results["total"] == 20 for outcome in outcomes.values())
    assert dict(in_turn(jobs(folder))) == outcomes and len(RunStore(folder).list()) == 4


def test_interrupted_runs_go_on(swept, tmp_path, monkeypatch):
    (job, *_), fit = jobs(tmp_path), Federation.fit

    def stopped(self, callbacks):
        self.server.settings = replace(self.server.settings, rounds=1)
        fit(self, callbacks)

    with monkeypatch.context() as patch:
        patch.setattr(Federation, "fit", stopped)
        with pytest.raises(KeyboardInterrupt):
            train(job)
    begun = find(job)
    assert begun.status == "interrupted"
    outcome = train(job)
    assert outcome.run == begun.id and weights(tmp_path, outcome) == weights(swept[0], swept[1][0])


def test_a_training_that_fails_does_not_stop_the_others(tmp_path):
    refused, possible = combine(FederatedConfig("tiny", rounds=1), {"clients": [1000, 2]}, (0,))
    (_, failed), (_, trained) = in_turn([Job(TinyFederation, each, str(tmp_path)) for each in (refused, possible)])
    assert failed.results is None and failed.problem and trained.results


def test_the_command(swept, capsys):
    folder, outcomes = swept
    command = ["sweep", "federated_tiny:TinyFederation", "task=tiny", "rounds=2", "strategy=fedavg,fedyogi"]
    command += ["--seeds", "0", "1", "--runs", str(folder)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert all(outcome.run in shown for outcome in outcomes.values())
    assert max(map(len, shown.splitlines()[4:])) <= 80
    assert "accuracy ± 95 %" in shown
    accuracies = [outcome.results["accuracy"] for outcome in outcomes.values()][:2]
    assert f"{sum(accuracies) / 2:.2%} ± {interval(accuracies).margin:.2%}" in shown
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["run"] for each in found] == [outcomes[number].run for number in range(4)]
    assert found[2] == {"settings": {"strategy": "fedyogi"}, "seed": 0, "problem": ""} | {
        name: getattr(outcomes[2], name) for name in ("run", "results")
    }  # fmt: skip


@pytest.mark.parametrize("wrong", ["rounds", "momentum=1", "rounds=x", "seed=1", "tls=maybe", "rounds=0"])
def test_wrong_settings_are_refused_before_anything_is_trained(wrong, tmp_path):
    assert main(["sweep", "federated", wrong, "--runs", str(tmp_path / "runs")]) in (1, 2)
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(RAY, reason="Ray is installed")
def test_without_ray():
    with pytest.raises(RunError, match="pip install"):
        on_ray()


@pytest.mark.skipif(not RAY or not os.environ.get("EDGELEARN_SLOW_TESTS"), reason="no Ray, or no EDGELEARN_SLOW_TESTS")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # Ray's own
def test_ray_gives_the_same_bits(swept, tmp_path):
    outcomes = dict(on_ray()(jobs(tmp_path)))
    assert [weights(tmp_path, outcomes[n]) for n in range(4)] == [weights(swept[0], swept[1][n]) for n in range(4)]
    with pytest.raises(RunError, match="cores"):
        list(on_ray(10_000)(jobs(tmp_path)))
