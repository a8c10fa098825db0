import numpy as np
import pytest

from edgelearn.errors import FormatError
from edgelearn.interop import safetensors


@pytest.fixture
def weights():
    rng = np.random.default_rng(0)
    return {"a/kernel": rng.normal(size=(3, 4)).astype(np.float32), "b": np.arange(5, dtype=np.int64)}


def test_what_is_written_is_read(tmp_path, weights):
    path = tmp_path / "w.safetensors"
    path.write_bytes(safetensors.to_bytes(weights | {"a/kernel": np.asfortranarray(weights["a/kernel"])}, {"of": "us"}))
    found = safetensors.read_weights(path)
    assert found.keys() == weights.keys()
    assert all(
        np.array_equal(found[name], weights[name]) and found[name].dtype == weights[name].dtype for name in weights
    )
    assert safetensors.to_bytes(weights) == safetensors.to_bytes(dict(weights))


def test_files_that_are_something_else(tmp_path):
    def refused(path, problem):
        with pytest.raises(FormatError, match=problem) as caught:
            safetensors.read_weights(path)
        assert str(path) in str(caught.value)

    path = tmp_path / "w.safetensors"
    refused(path, "There is no weight file")
    refused(tmp_path, "There is no weight file")
    for content in (b"", b"weights", b"\0" * 100, b"\xff" * 100):
        path.write_bytes(content)
        refused(path, "not a safetensors file, or is damaged")
    header = b'{"x":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    refused(path, "not a safetensors file, or is damaged")
