import math

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from edgelearn.errors import FormatError, RunError
from edgelearn.lab.runs import run

STATE = {
    "epoch": 3,
    "rng": {"counter": [2**64 - 1, 0]},
    "best": math.inf,
    "note": '"sha256":"' + "0" * 64,
    "é": "ü",
}


def tensors():
    rng = np.random.default_rng(0)
    return {
        "conv/kernel:0": rng.standard_normal((3, 3, 2, 4)).astype(np.float32),
        "half": np.array([1, 2], np.float16),
        "step": np.array(7, np.int64),
        "empty": np.zeros((0, 4), np.float32),
        "transposed": np.arange(6, dtype=np.int32).reshape(2, 3).T,
        "strided": np.arange(10, dtype=np.uint8)[::3],
        "big-endian": np.arange(3, dtype=">f8"),
        "mask": np.array([True, False]),
    }


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(run.encode_checkpoint(tensors(), STATE))
    return path


def test_round_trip(path):
    loaded, state = run.read_checkpoint(path)
    assert state == STATE
    assert loaded.keys() == tensors().keys()
    for name, array in tensors().items():
        assert loaded[name].shape == array.shape
        assert loaded[name].dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(loaded[name], array)
        loaded[name][...] = 0  # to go on training, they must be writable


def test_no_tensors_and_no_state(tmp_path):
    (tmp_path / "c").write_bytes(run.encode_checkpoint({}, {}))
    assert run.read_checkpoint(tmp_path / "c") == ({}, {})


def test_other_tools_can_read_it(path):
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata()["format"] == run.CHECKPOINT_FORMAT
        np.testing.assert_array_equal(file.get_tensor("transposed"), tensors()["transposed"])


def test_a_flipped_bit_anywhere_is_noticed(path):
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match="corrupt"):
            run.read_checkpoint(path)


def test_a_cut_or_longer_file_is_noticed(path):
    whole = path.read_bytes()
    for damaged in [*(whole[:length] for length in range(0, len(whole), 31)), whole + b"\0"]:
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"checkpoint\.safetensors .* is corrupt"):
            run.read_checkpoint(path)


def test_other_safetensors_files_are_no_checkpoints(tmp_path):
    for metadata in (None, {"format": "pt"}, {"format": run.CHECKPOINT_FORMAT, "sha256": "", "state": "{}"}):
        file = tmp_path / "weights.safetensors"
        file.write_bytes(safetensors.numpy.save({"a": np.zeros(2)}, metadata))
        with pytest.raises(FormatError, match="weights"):
            run.read_checkpoint(file)
    with pytest.raises(FormatError, match="can't be read"):
        run.read_checkpoint(tmp_path)


@pytest.mark.parametrize("array", [np.array([1j]), np.array(["text"]), np.array([None]), np.zeros(1, np.longdouble)])
def test_types_that_do_not_fit(array):
    with pytest.raises(RunError, match="'odd' has data type"):
        run.encode_checkpoint({"odd": array}, {})


def test_state_that_is_not_json():
    with pytest.raises(RunError, match="JSON"):
        run.encode_checkpoint({}, {"model": object()})
