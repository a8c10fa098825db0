from dataclasses import dataclass

import pytest

from edgelearn.errors import FormatError, PlanError
from edgelearn.ops.estimators import (
    DSGC,
    CurrentMinMax,
    Estimator,
    Fixed,
    InHindsightMinMax,
    Percentile,
    RunningMinMax,
)


@dataclass(frozen=True)
class Wider(Estimator):
    margin: float = 1.5

    def next(self, low, high, least, most, updates):
        return least * self.margin, most * self.margin


EVERY = (
    CurrentMinMax(), RunningMinMax(0.5), InHindsightMinMax(0.8), Fixed(-2.0, 3.0), DSGC(50, 0.1),
    Percentile(percent=99.0), Wider(2.0),
)  # fmt: skip


@pytest.mark.parametrize("estimator", EVERY)
def test_dictionaries_come_back(estimator):
    assert Estimator.from_dict(estimator.to_dict()) == estimator


def test_momentum_by_hand():
    """Equation 18 of LUQ, from the first mini-batch's own range."""
    estimator, low, high = InHindsightMinMax(0.9), 0.0, 0.0
    for updates, most in enumerate((10.0, 20.0)):
        low, high = estimator.next(low, high, -1.0, most, updates)
    assert (low, high) == (-1, pytest.approx(11))


def test_searches_are_due_in_time():
    assert [step for step in range(1, 10) if DSGC(every=4).is_due(step)] == [1, 5, 9]
    assert not InHindsightMinMax().is_due(1), "only the first step, and the session knows which that is"
    assert DSGC(smallest=1 / 64).ratio ** 15 == pytest.approx(1 / 64)


def test_what_cannot_be():
    for make in (
        lambda: RunningMinMax(1.1), lambda: InHindsightMinMax(-0.1), lambda: Fixed(1, 2), lambda: Fixed(0, 0),
        lambda: Fixed(0, float("inf")), lambda: DSGC(0), lambda: DSGC(smallest=1.0), lambda: Percentile(percent=0),
    ):  # fmt: skip
        with pytest.raises(PlanError):
            make()
    with pytest.raises(FormatError, match="no range estimator 'Nonsense'"):
        Estimator.from_dict({"estimator": "Nonsense"})
    with pytest.raises(FormatError, match="don't fit"):
        Estimator.from_dict({"estimator": "DSGC", "never": 1})
    with pytest.raises(NotImplementedError, match="override `next`"):
        Estimator().next(0, 0, 0, 0, 0)
