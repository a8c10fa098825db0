"""Sampled sweeps: ranges are kept, a seed gives the same trials, interrupted ones go on, and tpe learns from scores."""

import json
import subprocess
import sys

import pytest
from federated_tiny import TinyFederation

from edgelearn.cli import main
from edgelearn.errors import RunError, UsageError
from edgelearn.experiments import sweep as searching
from edgelearn.experiments.config import ConfigError, find_setting
from edgelearn.experiments.federated import FederatedConfig
from edgelearn.experiments.sweep import Job, Outcome, Range, Sampler, combine, in_turn, parse_range, score, search
from edgelearn.lab.runs import RunStore

SPACE = {"rate": Range(1e-4, 1.0, log=True), "share": Range(-1.0, 1.0), "rounds": Range(2, 5), "kind": ["a", "b"]}
COMMAND = ["sweep", "federated_tiny:TinyFederation", "task=tiny", "learning_rate=0.001..0.1:log", "rounds=1..2",
           "strategy=fedavg,fedyogi", "--seeds", "0"]  # fmt: skip


def proposals(kind, seed, count=14, scored=lambda settings: settings["rate"]):
    sampler, found = Sampler(kind, SPACE, seed), []
    for trial in range(count):
        found.append(sampler.ask())
        sampler.tell(trial, scored(found[-1]))
    return found


@pytest.mark.parametrize("kind", ["random", "tpe"])
def test_proposals_follow_from_the_seed_and_lie_in_their_ranges(kind):
    found = proposals(kind, 3, 40)
    assert found == proposals(kind, 3, 40) and found[0] != proposals(kind, 4, 1)[0]
    assert {each["rounds"] for each in found} == {2, 3, 4, 5} and all(isinstance(each["rounds"], int) for each in found)
    assert all(1e-4 <= each["rate"] <= 1 and -1 <= each["share"] <= 1 for each in found)
    assert {each["kind"] for each in found} == {"a", "b"}


def test_a_logarithmic_range_is_uniform_in_the_logarithm():
    rates = [each["rate"] for each in proposals("random", 0, 200)]
    assert 70 < sum(rate < 1e-2 for rate in rates) < 130


def test_tpe_learns_from_scores_and_random_does_not():
    def later(kind, scored):
        return [each["share"] for each in proposals(kind, 0, 40, scored)][20:]

    def high(settings):
        return settings["share"]

    def low(settings):
        return -settings["share"]

    assert sum(later("tpe", high)) / 20 > 0.4 and sum(later("tpe", low)) / 20 < -0.4
    assert later("random", high) == later("random", low)


def test_more_trials_begin_with_the_same_ones():
    assert proposals("random", 1, 20)[:5] == proposals("random", 1, 5)


@pytest.mark.parametrize(
    "text, problem",
    [("0.1..0.1", "smaller number to a larger"), ("1..0.1", "smaller number to a larger"), ("0..1:log", "above 0"),
     ("0.1..1:cubic", "LOW..HIGH:log"), ("..1", "two numbers"), ("0..1", "greater than"), ("0.1..inf", "smaller")],
)  # fmt: skip
def test_wrong_ranges_are_refused(text, problem):
    with pytest.raises(ConfigError, match=problem):
        parse_range(find_setting(FederatedConfig, "learning_rate"), text)


def test_ranges_are_of_numbers():
    assert parse_range(find_setting(FederatedConfig, "rounds"), "2..5") == Range(2, 5)
    assert parse_range(find_setting(FederatedConfig, "strategy"), "a..b") is None
    with pytest.raises(ConfigError, match="two numbers"):
        parse_range(find_setting(FederatedConfig, "rounds"), "1.5..3")


@pytest.mark.parametrize(
    "wrong, problem",
    [(["rounds=1..2"], "needs --sampler"), (["rounds=1", "--sampler", "tpe"], "Nothing varies"),
     (["rounds=1,2", "--trials", "3"], "add --sampler"), (["rounds=0..2", "--sampler", "random"], "minimum")],
)  # fmt: skip
def test_the_command_refuses_before_anything_is_trained(wrong, problem, tmp_path, capsys):
    assert main(["sweep", "federated", *wrong, "--runs", str(tmp_path / "runs")]) in (1, 2)
    assert problem in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_without_optuna(monkeypatch):
    monkeypatch.setattr(searching, "find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"pip install 'edgelearn\[sweeps\]'"):
        Sampler("tpe", SPACE)
    with pytest.raises(UsageError, match="no sampler"):
        Sampler("grid", SPACE)


def test_scores_are_means_and_failures_count_as_none_right():
    assert score([Outcome("a", {"accuracy": 0.5}), Outcome("b", None, "diverged")]) == 0.25
    assert score(
        [Outcome(run, {"accuracy": share}) for run, share in zip("abc", (0.1, 0.2, 0.3), strict=True)]
    ) == score(
        [Outcome(run, {"accuracy": share}) for run, share in zip("abc", (0.3, 0.2, 0.1), strict=True)]
    )  # whose sums differ in the last bit


def test_results_without_an_accuracy_end_the_search_at_once():
    trained = []

    def engine(jobs):
        for number, job in enumerate(jobs):
            trained.append(job)
            yield number, Outcome("a", {"loss": 1.0})

    with pytest.raises(RunError, match="no accuracy"):
        list(search(Sampler("random", {"learning_rate": Range(0.1, 1.0)}), 5, jobs_of("none"), engine))
    assert len(trained) == 1


def jobs_of(folder, seeds=(0,)):
    def jobs(settings):
        varied = {name: [value] for name, value in settings.items()}
        return [Job(TinyFederation, each, str(folder)) for each in combine(FederatedConfig("tiny"), varied, seeds)]

    return jobs


def pretend(asked):
    """An engine that trains nothing: accuracy is best at a rate of 0.3."""

    def engine(jobs):
        asked.append(len(jobs))
        for number, job in enumerate(jobs):
            yield number, Outcome(f"run-{job.config.seed}", {"accuracy": 1 - abs(job.config.learning_rate - 0.3)})

    return engine


def test_only_tpe_waits_for_results():
    space, asked = {"learning_rate": Range(0.001, 1.0)}, []
    at_random = list(search(Sampler("random", space), 4, jobs_of("none", (0, 1)), pretend(asked)))
    assert asked == [8] and [trial for trial, *_ in at_random] == [0, 0, 1, 1, 2, 2, 3, 3]
    list(search(Sampler("tpe", space), 3, jobs_of("none", (0, 1)), pretend(asked)))
    assert asked == [8, 2, 2, 2]


def test_equal_trials_are_trained_once():
    asked = []
    found = list(search(Sampler("random", {"learning_rate": [0.1, 0.2]}), 9, jobs_of("none"), pretend(asked)))
    assert asked == [2] and sorted(trial for trial, *_ in found) == list(range(9))


def test_an_interrupted_search_makes_the_trials_of_an_uninterrupted_one(tmp_path, capsys):
    def swept(folder, trials):
        arguments = ["--sampler", "tpe", "--trials", str(trials), "--seed", "5", "--runs", str(folder), "--json"]
        assert main([*COMMAND, *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    def trials(found):
        return [each["settings"] | {"accuracy": each["results"]["accuracy"]} for each in found]

    def stopped(jobs):
        if len(RunStore(tmp_path / "b").list()) == 11:
            raise KeyboardInterrupt
        return in_turn(jobs)

    whole = swept(tmp_path / "a", 13)  # the first ten of tpe are random
    space = {"learning_rate": Range(0.001, 0.1, log=True), "rounds": Range(1, 2), "strategy": ["fedavg", "fedyogi"]}
    with pytest.raises(KeyboardInterrupt):
        list(search(Sampler("tpe", space, 5), 13, jobs_of(tmp_path / "b"), stopped))
    before = [each.id for each in RunStore(tmp_path / "b").list()]
    assert len(before) == 11
    assert trials(swept(tmp_path / "b", 13)) == trials(whole)
    after = [each.id for each in RunStore(tmp_path / "b").list()]
    assert set(before) < set(after), "what was trained isn't trained again"


def test_the_table_has_the_best_trial_first(tmp_path, capsys):
    assert main([*COMMAND, "--sampler", "random", "--trials", "3", "--runs", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    table = shown[shown.rindex("trial") :].splitlines()
    assert all(name in table[0] for name in ("learning_rate", "rounds", "strategy", "accuracy"))
    accuracies = [float(line.split()[-1].rstrip("%")) for line in table[1:] if line.strip().endswith("%")]
    assert len(accuracies) == 3 and accuracies == sorted(accuracies, reverse=True)


def test_optuna_is_imported_late():
    code = "import sys, edgelearn.cli.runs, edgelearn.experiments.sweep; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
