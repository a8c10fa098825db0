"""edgelearn precision, through `main`."""

import json

import pytest

from edgelearn.cli import main


@pytest.fixture
def runs(monkeypatch, tmp_path):
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    monkeypatch.setenv("EDGELEARN_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def test_cost_and_tasks(capsys):
    assert main(["precision", "cost", "ResNet-18"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["conv2_block1_1_conv", "36.0", "196.0", "196.0", "428.0", "1,996.0", "78.6%"] in rows
    assert main(["precision", "cost", "mobilenet_v2_cifar"]) == 0
    assert "block_1_expand" in capsys.readouterr().out
    assert main(["precision", "tasks"]) == 0
    assert "cifar10-resnet18" in capsys.readouterr().out


def test_sweep_report_and_what_went_before(runs, capsys, tmp_path):
    assert main(["precision", "report"]) == 1
    assert "edgelearn precision sweep" in capsys.readouterr().err
    rows = ["--epochs", "1", "--only", "fp32", "everything, in-hindsight", "--seeds", "3"]
    assert main(["precision", "sweep", "sample", *rows, "--save", str(tmp_path / "found.json")]) == 0
    assert "2 of 2: everything, in-hindsight, seed 3" in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())["tasks"]["sample"]
    assert list(found["variants"]) == ["fp32", "everything, in-hindsight"] and "precision sweep" in found["command"]
    assert main(["precision", "report", "sample", *rows, "--markdown", "--chart", str(tmp_path / "c.png")]) == 0
    assert "| everything, in-hindsight | " in capsys.readouterr().out and (tmp_path / "c.png").exists()
    assert json.loads((tmp_path / "found.json").read_text())["tasks"]["sample"]["device"]
    assert main(["precision", "train", "sample", "--resume"]) == 1
    assert "no interrupted precision run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem", "status"),
    [
        (["train", "moon"], "'moon'", 2),
        (["train", "--resume", "--seed", "3"], "--seed", 1),
        (["train", "cifar10-resnet18", "--no-download"], "EDGELEARN_DATA", 1),
        (["report", "--only", "nothing"], "'nothing'", 2),
        (["time", "ds_cnn", "--alpha", "0.5"], "'ds_cnn'", 2),
        (["time", "mobilenet_v1", "--alpha", "0"], "0.5", 2),
        (["time", "--variants", "fast"], "'fast'", 2),
        (["trace"], "edgelearn precision train TASK --trace", 1),
    ],
)
def test_what_cannot_be(runs, capsys, words, problem, status):
    assert main(["precision", *words]) == status
    assert problem in capsys.readouterr().err


def test_trace(runs, capsys, tmp_path):
    assert main(["precision", "train", "--epochs", "1", "--gradients", "2", "--trace", "5"]) == 0
    assert "edgelearn precision trace precision-" in capsys.readouterr().out
    assert main(["precision", "trace", "--chart", str(tmp_path / "c.png"), "--what", "clipped"]) == 0
    said = capsys.readouterr().out
    assert "4 steps traced" in said and "dense/gradients" in said and "Step 1: " in said
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"


def test_time(capsys):
    lanes = ["--variants", "in-hindsight", "current", "--rounds", "2", "--steps", "1", "--alpha", "0.25"]
    assert main(["precision", "time", "mobilenet_v1", *lanes]) == 0
    said = capsys.readouterr().out
    assert (
        "in-hindsight" in said
        and "training steps of 1 example" in said
        and "2 rounds" in said
        and "middle half" in said
    )
    with pytest.raises(SystemExit):
        main(["precision", "time", "--rounds", "0"])
