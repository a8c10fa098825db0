"""`edgelearn bench` through `main`, on one op and the engine alone."""

import json

import pytest

from edgelearn.cli import main
from edgelearn.runtime import choose_device


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(report as JSON, chart) of a run."""
    folder = tmp_path_factory.mktemp("bench")
    report, chart = folder / "bench.json", folder / "bench.png"
    device = choose_device().device.id
    asked = ["bench", "*/pool:2", "--contenders", "edgelearn", "--device", device, "--rounds", "3"]
    assert main([*asked, "--save", str(report), "--chart", str(chart)]) == 0
    return report, chart


def test_measures_and_keeps(saved):
    report, chart = saved
    kept = json.loads(report.read_text())
    assert [variant["label"] for variant in kept["variants"]] == ["edgelearn"] * 2
    assert [variant["workload"] for variant in kept["variants"]] == ["forward/pool:2", "train/pool:2"]
    assert all(variant["error"] is None and len(variant["blocks"]) == 3 for variant in kept["variants"])
    assert kept["command"].startswith("edgelearn bench '*/pool:2' --contenders edgelearn --device ")
    assert kept["machine"]["device"]["name"] == choose_device().device.name
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_shows_what_was_saved(saved, tmp_path, capsys, said):
    report, _ = saved
    again = tmp_path / "again.png"
    text = said("bench", "--from", str(report), "--chart", str(again))
    assert "forward/pool:2: pool of MobileNet V1" in text and choose_device().device.name in text
    assert again.read_bytes().startswith(b"\x89PNG")
    assert main(["bench", "--from", str(report), "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| work | edgelearn |" and lines[-1].startswith("| `train/pool:2`: ") and " ms, " in lines[-1]
