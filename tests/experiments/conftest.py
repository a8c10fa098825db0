"""A CIFAR-10 recipe that is small enough for tests."""

import numpy as np
import pytest

from edgelearn.experiments import cifar10_recipe as recipe


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
