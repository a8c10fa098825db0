from dataclasses import dataclass

import numpy as np
import pytest

from edgelearn.errors import FormatError, PlanError
from edgelearn.ops.constants import RangeField
from edgelearn.ops.observers import DSGC, CurrentMinMax, Fixed, InHindsightMinMax, Observer, Percentile, RunningMinMax
from edgelearn.ops.quantize import NEXT, first_record, moved


@dataclass(frozen=True)
class Wider(Observer):
    margin: float = 1.5

    def next(self, low, high, least, most, updates):
        return least * self.margin, most * self.margin


EVERY = (
    CurrentMinMax(), RunningMinMax(0.5), InHindsightMinMax(0.8), Fixed(-2.0, 3.0), DSGC(50, 0.1),
    Percentile(percent=99.0), Wider(2.0),
)  # fmt: skip


@pytest.mark.parametrize("observer", EVERY)
def test_dictionaries_come_back(observer):
    assert Observer.from_dict(observer.to_dict()) == observer


@pytest.mark.parametrize("given", [(1, 2), (-1, float("nan")), (0, 1e300), (0, 1, 2), (1, "x"), None, 3.0])
def test_ranges_of_ones_own_that_are_none(given):
    class Odd(Observer):
        def next(self, *known):
            return given

    record = first_record(Odd())
    record[RangeField.UPDATES] = 1
    try:
        with pytest.raises(PlanError, match="Odd"):
            moved(Odd(), record)
    finally:
        del Observer.registry["Odd"]


def test_a_range_of_ones_own():
    record = first_record(Wider(2.0))
    record[[3, 4, 5, 6, RangeField.UPDATES]] = -9, 9, -1, 3, 1
    after = moved(Wider(2.0), record)
    assert after[NEXT].tolist() == [-2, 6]
    assert np.array_equal(np.delete(after, NEXT), np.delete(record, NEXT))


def test_momentum_by_hand():
    """Equation 18 of LUQ, from the first mini-batch's own range."""
    observer, low, high = InHindsightMinMax(0.9), 0.0, 0.0
    for updates, most in enumerate((10.0, 20.0)):
        low, high = observer.next(low, high, -1.0, most, updates)
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
    with pytest.raises(FormatError, match="Nonsense"):
        Observer.from_dict({"observer": "Nonsense"})
    with pytest.raises(FormatError):
        Observer.from_dict({"observer": "DSGC", "never": 1})
    with pytest.raises(NotImplementedError, match="next"):
        Observer().next(0, 0, 0, 0, 0)
