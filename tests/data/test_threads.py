import threading
import time

import pytest

from edgelearn.data.files import each


def test_results_come_in_order():
    def slow_first(value):
        time.sleep(0.02 * (value == 0))
        return value**2

    assert each(slow_first, range(9)) == [value**2 for value in range(9)]
    assert each(slow_first, []) == []


def test_the_first_error_stops_what_has_not_begun():
    begun = []

    def fail(value):
        begun.append(value)
        time.sleep(0.005)
        raise ValueError(value)

    with pytest.raises(ValueError, match=r"^0$"):
        each(fail, range(500))
    assert len(begun) < 100
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("edgelearn-data")]
