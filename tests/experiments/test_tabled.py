"""Experiments that make one table: bad clients, exported files, thresholds of keywords."""

import json
from importlib.util import find_spec

import pytest

from edgelearn.cli import main
from edgelearn.experiments.keywords.streaming import ThresholdTest, table


def test_a_strategy_withstands_what_the_mean_does_not(capsys):
    command = "federated attack --seeds 0 --rounds 4 --bad 0 3 --strategies fedavg krum"
    assert main([*command.split(), "--json"]) == 0
    output = capsys.readouterr()
    found = {(each["strategy"], each["attack"], each["bad"]): each["accuracy"] for each in json.loads(output.out)}
    assert len(found) == 12 and "| strategy" not in output.err
    assert found["fedavg", "scaled", 3] < 0.5 * found["krum", "scaled", 3]


@pytest.mark.skipif(bool(find_spec("onnxruntime") and find_spec("ai_edge_litert")), reason="both runtimes are here")
def test_exported_files_need_their_runtimes(capsys):
    assert main(["precision", "exports"]) == 1
    assert "pip install" in capsys.readouterr().err


def test_thresholds_are_added_up_over_seeds():
    tests = [
        ThresholdTest("default", 0.5 + seed, 9, 10, 4 * seed, 2.0, seed) if way else ThresholdTest(
            f"{seed} hours", 0.7, 8, 10, 1, 1.0, seed
        )
        for seed in (0, 1) for way in (1, 0)
    ]  # fmt: skip
    first, second = table(tests).rows
    assert first == ("default", "0.500, 1.500", "18 of 20 (90%)", "1.0") and second[0] == "0 hours"
