"""edgelearn precision, through `main`."""

import json

import pytest

from edgelearn.cli import main
from edgelearn.experiments.precision import TASKS
from tests.experiments import precision_tiny


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(TASKS, "sample", precision_tiny.KIND)


@pytest.fixture
def runs(monkeypatch, tmp_path):
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    monkeypatch.setenv("EDGELEARN_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def test_cost_and_tasks(capsys, said):
    assert main(["precision", "cost", "ResNet-18"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["conv2_block1_1_conv", "36.0", "196.0", "196.0", "428.0", "1,996.0", "78.6%"] in rows
    assert "block_1_expand" in said("precision", "cost", "mobilenet_v2_cifar")
    assert "cifar10-resnet18" in said("precision", "tasks")


def test_sweep_report_and_what_went_before(runs, tiny, capsys, tmp_path, refused):
    refused("edgelearn precision sweep", "precision", "report")
    rows = ["--epochs", "1", "--only", "fp32", "everything, in-hindsight", "--seeds", "3"]
    assert main(["precision", "sweep", "sample", *rows, "--save", str(tmp_path / "found.json")]) == 0
    assert "2 of 2: everything, in-hindsight, seed 3" in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())["tasks"]["sample"]
    assert list(found["variants"]) == ["fp32", "everything, in-hindsight"] and "precision sweep" in found["command"]
    assert main(["precision", "report", "sample", *rows, "--markdown", "--chart", str(tmp_path / "c.png")]) == 0
    assert "| everything, in-hindsight | " in capsys.readouterr().out and (tmp_path / "c.png").exists()
    assert json.loads((tmp_path / "found.json").read_text())["tasks"]["sample"]["device"]
    refused("no interrupted precision run", "precision", "train", "sample", "--resume")


def test_trace(runs, tiny, capsys, tmp_path, said):
    assert main(["precision", "train", "--epochs", "1", "--gradients", "2", "--trace", "5"]) == 0
    assert "edgelearn precision trace precision-" in capsys.readouterr().out
    text = said("precision", "trace", "--chart", str(tmp_path / "c.png"), "--what", "clipped")
    assert "4 steps traced" in text and "dense/gradients" in text and "Step 1: " in text
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"


def test_time(said):
    lanes = ["--variants", "in-hindsight", "current", "--rounds", "2", "--steps", "1", "--alpha", "0.25"]
    text = said("precision", "time", "mobilenet_v1", *lanes)
    words = ("in-hindsight", "training steps of 1 example", "2 rounds", "middle half")
    assert [each for each in words if each not in text] == []
    with pytest.raises(SystemExit):
        main(["precision", "time", "--rounds", "0"])
