import numpy as np
import pytest

from edgelearn.errors import FormatError, NonFiniteError
from edgelearn.federated.privacy import STEP, Masks

SHAPES, CLIENTS = [(5, 7), (300,), (0,)], [2, 3, 11]
MASKS = Masks(lambda number: CLIENTS, 5)


def changes() -> dict[int, list[np.ndarray]]:
    rng = np.random.default_rng(1)
    return {client: [np.float32(rng.standard_normal(shape)) for shape in SHAPES] for client in CLIENTS}


def received() -> list[list[np.ndarray]]:
    return [MASKS.decode(MASKS.hide(arrays, client, 1), SHAPES) for client, arrays in changes().items()]


def test_masks_cancel():
    for mean, parts in zip(MASKS.mean(received(), 3, 1), zip(*changes().values(), strict=True), strict=True):
        assert mean.dtype == np.float32
        np.testing.assert_allclose(mean, np.mean(np.float64(parts), axis=0), atol=STEP / 2 + 1e-6)


def test_a_message_looks_random():
    zeros = [np.zeros(20_000, np.float32)]
    data = MASKS.hide(zeros, 2, 1)
    values = np.frombuffer(data, np.uint32) / 2**32
    assert values.mean() == pytest.approx(0.5, abs=0.01) and np.histogram(values, 10)[0].min() > 1800
    assert data != MASKS.hide(zeros, 2, 2)


def test_without_a_client_the_sum_is_noise():
    assert np.abs(MASKS.mean(received()[1:], 2, 1)[1]).mean() > 50


def test_what_cannot_be_added():
    for value, error in ((2000.0, FormatError), (np.nan, NonFiniteError)):
        with pytest.raises(error):
            Masks(lambda number: [0, 1]).hide([np.float32([value])], 0, 1)
    with pytest.raises(FormatError):
        MASKS.decode(b"abc", SHAPES)
