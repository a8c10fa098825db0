"""Published models compute what their runtimes compute, and their gradients are Keras's in float64."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from import_published import NAMES, load, measure

needed = ("tensorflow", "ai_edge_litert", "h5py")
pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in needed) or not os.environ.get("EDGELEARN_DATA"),
    reason="EDGELEARN_DATA isn't set, or TensorFlow or LiteRT is missing",
)
TRIED = NAMES[:3]  # the small ones


def test_outputs_and_gradients(tmp_path):
    data = Path(os.environ["EDGELEARN_DATA"])
    for name in TRIED:
        measure(name, load(name, data), tmp_path)
    script = sys.modules["import_published"].__file__
    command = [sys.executable, script, *TRIED, "--data", data, "--compare", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = {line.split()[0]: dict(part.split("=") for part in line.split()[1:]) for line in done.stdout.splitlines()}
    assert set(TRIED) <= set(found)
    for name in TRIED:
        assert float(found[name]["forward"]) < 1e-5, name
        assert float(found[name]["backward"]) < 1e-5, name
        assert float(found[name]["compared"]) > 30, name
