"""edgelearn memory, through `main`."""

import json

import pytest

from edgelearn.cli import main
from edgelearn.experiments import memory
from edgelearn.experiments.claims import Verdict, Verdicts

SMALL = ["ds_cnn", "--batch-size", "4"]


@pytest.fixture(autouse=True)
def folders(monkeypatch, tmp_path):
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    monkeypatch.setenv("EDGELEARN_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("EDGELEARN_TUNED", str(tmp_path / "tuned"))


def test_plan_before_and_after_measuring(capsys, tmp_path, said):
    budget = ["--budget", "1MB stored", "--layers", "--plot", str(tmp_path / "plan.png")]
    assert main(["memory", "plan", *SMALL, *budget]) == 0
    text, told = capsys.readouterr()
    assert told.startswith("plan 2: ") and " of 1.00 MB stored" in told
    assert "MB  stored " in text and "recomputed" in text and "not measured: the roofline" in text
    assert "backward block1_pointwise" in text and (tmp_path / "plan.png").stat().st_size > 1000
    assert main(["memory", "measure", *SMALL, "--rounds", "1", "--busy"]) == 0
    assert "ms a step (measured on" in said("memory", "plan", *SMALL, "--budget", "1MB stored")


def test_other_ways_within_two_budgets(tmp_path, said, refused):
    budget = ["--budget", "1 MB stored, 2.2 MB peak", "--allow", "halves", "paged", "--pages", str(tmp_path)]
    assert " MB  paged " in said("memory", "plan", *SMALL, *budget) and not list(tmp_path.glob("tmp*"))
    refused(f"{tmp_path / 'none'}", "memory", "plan", *SMALL, *budget[:-1], str(tmp_path / "none"))
    refused("add --allow paged", "memory", "plan", *SMALL, "--pages", str(tmp_path))


@pytest.mark.parametrize("budget", (["1MB, 3 MB peak", "--count", "stored"], ["1 MB STORED, 3MB", "--count", "peak"]))
def test_what_a_budget_counts_where_it_does_not_say(capsys, budget):
    assert main(["memory", "plan", *SMALL, "--budget", *budget]) == 0
    assert " of 1.00 MB stored, " in (told := capsys.readouterr().err) and " of 3.00 MB peak" in told


def test_fit(capsys, said):
    small = ["ds_cnn", "--batch-size", "8", "--precision", "fp32", "fp16"]
    text = said("memory", "fit", *small, "--budget", "1.5 MB peak", "--trained", "from classifier")
    assert "fp16" in text and "from" in text and "largest micro-batch" in text
    assert max(map(len, text.splitlines())) <= 80
    found = json.loads(said("memory", "fit", *small, "--budget", "1.5 MB peak", "--trained", "classifier", "--json"))
    assert found["combinations"][0]["peak_bytes"] <= 1.5e6 and found["largest_micro_batch"] >= 1
    assert main(["memory", "fit", *small, "--budget", "9 kB"]) == 1
    assert "Nothing fits" in capsys.readouterr().out


def test_compare(capsys, tmp_path):
    files = ["--save", str(tmp_path / "found.json"), "--chart", str(tmp_path / "chart.png")]
    assert main(["memory", "compare", *SMALL, "--plans", "keep_all", "1 MB stored", "--rounds", "1", *files]) == 0
    assert "keep_all" in capsys.readouterr().out and (tmp_path / "chart.png").exists()
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["command"].startswith("edgelearn memory compare")
    assert [each["plan"] for each in found["plans"]] == ["keep_all", "1 MB stored"]


@pytest.mark.parametrize(("holds", "status"), [(True, 0), (None, 0), (False, 1)])
def test_check_fails_with_a_claim(capsys, monkeypatch, holds, status):
    """The claims are tested in tests/experiments and tests/notebooks."""
    verdicts = Verdict("It is small.", "3 MB", True), Verdict("It is right.", "95 %", holds)
    monkeypatch.setattr(memory, "check", lambda *arguments: Verdicts(verdicts))
    assert main(["memory", "check"]) == status
    said = capsys.readouterr().out
    assert said.count("3 MB") == said.count("95 %") == 1 and verdicts[1].word in said
