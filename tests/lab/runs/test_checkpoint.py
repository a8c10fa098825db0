import math

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from edgelearn.errors import FormatError, RunError
from edgelearn.lab.runs.run import CHECKPOINT_FORMAT, encode_checkpoint, read_checkpoint

STATE = {
    "epoch": 3, "rng": {"counter": [2**64 - 1, 0]}, "best": math.inf, "note": '"sha256":"' + "0" * 64, "é": "ü",
}  # fmt: skip
TENSORS = {
    "conv/kernel:0": np.random.default_rng(0).standard_normal((3, 3, 2, 4)).astype(np.float32),
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
    path.write_bytes(encode_checkpoint(TENSORS, STATE))
    return path


def test_round_trip(path):
    loaded, state = read_checkpoint(path)
    assert state == STATE and loaded.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        assert loaded[name].shape == array.shape and loaded[name].dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(loaded[name], array)
        loaded[name][...] = 0  # to go on training, they must be writable
    with safetensors.safe_open(path, "numpy") as file:  # other tools can read it
        assert file.metadata()["format"] == CHECKPOINT_FORMAT
        np.testing.assert_array_equal(file.get_tensor("transposed"), TENSORS["transposed"])
    path.write_bytes(encode_checkpoint({}, {}))
    assert read_checkpoint(path) == ({}, {})


def flipped(whole, position):
    damaged = bytearray(whole)
    damaged[position] ^= 1 << position % 8
    return damaged


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: (flipped(whole, position) for position in range(0, len(whole), 7)),
        lambda whole: [*(whole[:length] for length in range(0, len(whole), 31)), whole + b"\0"],
    ],
    ids=("flipped bit", "cut or longer"),
)
def test_damage_anywhere_is_noticed(path, damage):
    for damaged in damage(path.read_bytes()):
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"checkpoint\.safetensors .* is corrupt"):
            read_checkpoint(path)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"format": CHECKPOINT_FORMAT, "sha256": "", "state": ""}])
def test_other_safetensors_files_are_no_checkpoints(tmp_path, metadata):
    file = tmp_path / "weights.safetensors"
    file.write_bytes(safetensors.numpy.save({"a": np.zeros(2)}, metadata))
    with pytest.raises(FormatError, match="weights"):
        read_checkpoint(file)
    with pytest.raises(FormatError, match="can't be read"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("array", [np.array([1j]), np.array(["text"]), np.array([None]), np.zeros(1, np.longdouble)])
def test_what_does_not_fit(array):
    with pytest.raises(RunError, match="'odd' has data type"):
        encode_checkpoint({"odd": array}, {})
    with pytest.raises(RunError, match="JSON"):
        encode_checkpoint({}, {"model": object()})
