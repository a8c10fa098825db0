import numpy as np
import pytest

from edgelearn.errors import FormatError, NonFiniteError
from edgelearn.federated.privacy import STEP, mask, sum_of_masked

SHAPES, CLIENTS = [(5, 7), (300,), (0,)], [2, 3, 11]


def changes() -> dict[int, list[np.ndarray]]:
    rng = np.random.default_rng(1)
    return {client: [np.float32(rng.standard_normal(shape)) for shape in SHAPES] for client in CLIENTS}


def test_masks_cancel():
    messages = [mask(arrays, client, CLIENTS, 5, 1) for client, arrays in changes().items()]
    for total, parts in zip(sum_of_masked(messages, SHAPES), zip(*changes().values(), strict=True), strict=True):
        np.testing.assert_allclose(total, np.sum(parts, axis=0, dtype=np.float64), atol=len(CLIENTS) * STEP / 2 + 1e-12)


def test_a_message_looks_random():
    zeros = [np.zeros(20_000, np.float32)]
    data = mask(zeros, 2, CLIENTS, 5, 1)
    values = np.frombuffer(data, np.uint32) / 2**32
    assert values.mean() == pytest.approx(0.5, abs=0.01) and np.histogram(values, 10)[0].min() > 1800
    assert data != mask(zeros, 2, CLIENTS, 5, 2)


def test_without_a_client_the_sum_is_noise():
    messages = [mask(arrays, client, CLIENTS, 5, 1) for client, arrays in changes().items()]
    assert np.abs(sum_of_masked(messages[1:], SHAPES)[1]).mean() > 100


def test_what_cannot_be_added():
    with pytest.raises(FormatError):
        mask([np.float32([2000.0])], 0, [0, 1], 0, 1)
    with pytest.raises(NonFiniteError):
        mask([np.float32([np.nan])], 0, [0, 1], 0, 1)
    with pytest.raises(FormatError):
        sum_of_masked([b"abc"], SHAPES)
