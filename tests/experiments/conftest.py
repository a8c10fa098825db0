"""A CIFAR-10 recipe that is small enough for tests. Few files' runs draw their figures."""

from pathlib import Path

import numpy as np
import pytest

from edgelearn.experiments import cifar10_recipe as recipe
from edgelearn.lab.runs import figures

DRAWN = ("test_federated_own.py", "test_flowers_job.py", "test_flowers_sample.py", "test_precision_job.py")


@pytest.fixture(autouse=True, scope="module")
def _figures_of_runs_are_empty(request):
    """Drawing them is more than half of the time of a run of a few steps."""
    save = figures.saved

    def save_empty(figure, path):
        if path is None or not Path(path).with_name("run.json").exists():
            return save(figure, path)
        Path(path).write_bytes(b"")
        return figure

    with pytest.MonkeyPatch.context() as patch:
        if request.path.name not in DRAWN:
            patch.setattr(figures, "saved", save_empty)
        yield


@pytest.fixture
def two_colours(monkeypatch):
    """Pictures, uint8 (24, 32, 32, 3), of two classes that differ in their red, and class numbers; the recipe's network
    has two layers meanwhile."""
    monkeypatch.setattr(recipe, "BATCH_SIZE", 8)
    monkeypatch.setattr(recipe, "STAGES", ((16, 1), (16, 1)))
    rng = np.random.default_rng(0)
    labels = np.arange(24, dtype=np.int32) % 2
    x = rng.integers(0, 200, (24, 32, 32, 3)).astype(np.uint8)
    x[labels == 1, :, :, 0] += 55
    return x, labels
