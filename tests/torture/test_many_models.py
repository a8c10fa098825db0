"""A short part of the torture suite: models that come and go leave no memory behind."""

import pytest

from . import many_models

MODELS, WARM = 12, 6
BYTES = 32_000  # of a model: 4 to 16 kB today, and 98 KiB with what was kept before


@pytest.mark.skipif(not many_models.countable(), reason="memory is counted by glibc's mallinfo2 and Linux's /proc")
@pytest.mark.parametrize("way", many_models.WAYS)
def test_memory_does_not_grow(way):
    found = many_models.measure(MODELS, float("inf"), WARM, way)
    assert found["models"] == MODELS
    assert found["allocated"] < BYTES * (MODELS - WARM)


def test_growth_is_a_failure(monkeypatch):
    most = many_models.MOST * 1150 + many_models.SLACK

    def measure(models, seconds, way):
        return {"models": models, "resident": most + (way == "renamed"), "allocated": 0}

    monkeypatch.setattr(many_models, "measure", measure)
    outcome = many_models.run(1200, 0.0)
    assert outcome.attacks == 2400 and len(outcome.failures) == 1 and "renamed" in outcome.failures[0]
