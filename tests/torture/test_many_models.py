"""A short part of the torture suite: models that come and go leave no memory behind."""

import pytest

from . import many_models

MODELS, WARM = 12, 6
BYTES = 32_000  # of a model: 4 to 16 kB today, and 98 KiB with what was kept before


@pytest.mark.skipif(not many_models.countable(), reason="memory is counted by glibc's mallinfo2 and Linux's /proc")
def test_memory_does_not_grow():
    found = many_models.measure(MODELS, float("inf"), WARM)
    assert found["models"] == MODELS
    assert found["allocated"] < BYTES * (MODELS - WARM)


def test_growth_is_a_failure(monkeypatch):
    grown = {"models": 1200, "resident": many_models.MOST + 1, "allocated": 0}
    monkeypatch.setattr(many_models, "measure", lambda *arguments: grown)
    outcome = many_models.run(1200, 0.0)
    assert outcome.attacks == 1200 and len(outcome.failures) == 1
