"""Steps of depths in serial C have the results of the device."""

import pytest

from edgelearn.errors import EdgelearnError, UsageError
from edgelearn.experiments.serial_depth import compare_serial

from .built import needs_compiler


@needs_compiler
def test_steps_of_depths():
    found = compare_serial(["lenet5"], ("inference", "last", "all"), steps=1)
    inference, last, every = found.rows
    assert inference.trained == 0 < last.trained < every.trained and inference.macs < last.macs < every.macs
    assert all(row.difference < 1e-5 and row.serial > 0 < row.device for row in found.rows)
    assert [row[1] for row in found.table().rows] == ["inference", "last", "all"]
    assert found.to_dict()["rows"][0]["speed_up"] == inference.serial / inference.device
    with pytest.raises(EdgelearnError, match="nobody"):
        compare_serial(["nobody"])
    with pytest.raises(EdgelearnError, match="adapters"):
        compare_serial(["lenet5"], ("adapters",))
    with pytest.raises(UsageError, match="steps"):
        compare_serial(["lenet5"], steps=0)
