"""Bad clients of a federation, and a strategy that withstands them."""

import json
from importlib.util import find_spec

import pytest

from edgelearn.cli import main


def test_a_strategy_withstands_what_the_mean_does_not(capsys):
    command = "federated attack --seeds 0 --rounds 12 --bad 0 3 --strategies fedavg krum"
    assert main([*command.split(), "--json"]) == 0
    output = capsys.readouterr()
    found = {(each["strategy"], each["attack"], each["bad"]): each["accuracy"] for each in json.loads(output.out)}
    assert len(found) == 12 and "| strategy" not in output.err
    assert found["fedavg", "scaled", 3] < 0.5 * found["krum", "scaled", 3]


@pytest.mark.skipif(bool(find_spec("onnxruntime") and find_spec("ai_edge_litert")), reason="both runtimes are here")
def test_exported_files_need_their_runtimes(capsys):
    assert main(["precision", "exports"]) == 1
    assert "pip install" in capsys.readouterr().err
