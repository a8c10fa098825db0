import os
import stat

import numpy as np
import pytest

from edgelearn.errors import DataError, FormatError
from edgelearn.federated import verification
from edgelearn.federated.verification import FedUV, User
from edgelearn.interop import safetensors


def recordings(rng, centre: np.ndarray, count: int, noise: float = 0.5) -> np.ndarray:
    return 3 * (centre + noise * rng.standard_normal((count, len(centre))))


def test_a_user_is_accepted_and_others_are_not(rng, tmp_path):
    own, other = rng.standard_normal((2, 40))
    user = User.enrol(recordings(rng, own, 8))
    user.save(tmp_path / "me.user")
    loaded = User.load(tmp_path / "me.user")
    assert np.array_equal(loaded.vector, user.vector) and loaded.threshold == user.threshold
    assert loaded.accepts(recordings(rng, own, 50)).mean() > 0.6
    assert not loaded.accepts(recordings(rng, other, 50)).any()
    if os.name == "posix":
        assert stat.S_IMODE((tmp_path / "me.user").stat().st_mode) == 0o600


def test_enrolment_with_a_codeword(rng):
    word = FedUV(127).vector(0, 0)
    outputs = recordings(rng, word, 10)
    user = User.enrol(outputs, word, 0.8)
    assert np.array_equal(user.vector, word)
    assert user.accepts(outputs).sum() == 8
    np.testing.assert_allclose(user.scores(outputs), verification.scores(outputs, word)[:, 0])


def test_too_few_recordings(rng):
    with pytest.raises(DataError):
        User.enrol(rng.standard_normal((1, 4)))


def test_another_network(rng):
    with pytest.raises(FormatError):
        User.enrol(rng.standard_normal((3, 4))).accepts(rng.standard_normal((2, 5)))


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"vector": np.ones(3, np.float32)},
        {"vector": np.ones(3), "threshold": np.ones(1)},
        {"vector": np.float32([1, np.nan]), "threshold": np.ones(1)},
        {"vector": np.ones(3, np.float32), "threshold": np.array([np.nan])},
        {"vector": np.ones((3, 1), np.float32), "threshold": np.ones(1)},
    ],
)
def test_other_files(tmp_path, arrays):
    (tmp_path / "file").write_bytes(safetensors.to_bytes(arrays))
    with pytest.raises(FormatError):
        User.load(tmp_path / "file")
