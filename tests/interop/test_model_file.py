"""The one container: what is written is read, and a damaged or hostile file is refused by name and place."""

import json

import numpy as np
import pytest

from edgelearn.errors import FormatError, RunError
from edgelearn.interop import read_model, safetensors
from edgelearn.interop.safetensors import ModelFile
from edgelearn.ops import BatchNormalization, Conv2D, Dense, GlobalAveragePooling2D
from tests.networks import chain


def network(classes=3):
    net = chain(
        "small", (4, 4, 2), conv=Conv2D(5, 1), bn=BatchNormalization(), pool=GlobalAveragePooling2D(),
        dense=Dense(classes),
    )  # fmt: skip
    return net.freeze("conv")


@pytest.fixture
def file():
    net, rng = network(), np.random.default_rng(0)
    slots = {f"velocity/{name}": rng.normal(size=net.parameters[name].weight.shape) for name in net.trainable}
    return ModelFile(
        net, net.initialize(1), {name: np.float32(array) for name, array in slots.items()},
        {"conv/activation": np.arange(16, dtype=np.float32)}, {"epoch": 2, "updates": 7}, {"size": 4, "scale": [1, 2]},
        ("one", "two", "three"), {"trained": "on noise"}, {"prototypes": np.arange(6, dtype=np.float64).reshape(2, 3)},
    )  # fmt: skip


def test_weights_alone_keep_their_types_and_order(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "w.safetensors"
    weights = {"a/kernel": rng.normal(size=(3, 4)).astype(np.float32), "b": np.arange(5, dtype=np.int64)}
    path.write_bytes(safetensors.to_bytes(weights | {"a/kernel": np.asfortranarray(weights["a/kernel"])}, {"of": "us"}))
    found = safetensors.read_weights(path)
    assert found.keys() == weights.keys()
    assert all(np.array_equal(found[n], a) and found[n].dtype == a.dtype for n, a in weights.items())
    assert safetensors.to_bytes(weights) == safetensors.to_bytes(dict(weights))


def test_texts_have_one_order(tmp_path):
    """The library's own order differs from one call to the next."""
    weights, texts = {"w": np.arange(5)}, {f"{n}": f"text {n}, ä" for n in range(20)}
    content = safetensors.to_bytes(weights, texts)
    assert content == safetensors.to_bytes(weights, dict(reversed(texts.items())))
    end = 8 + int.from_bytes(content[:8], "little")
    assert end % 8 == 0 and list(json.loads(content[8:end])["__metadata__"]) == sorted(texts)
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    assert safetensors.read_metadata(path) == texts
    assert np.array_equal(safetensors.read_weights(path)["w"], weights["w"])


def changed(path, header=None, **metadata):
    """Rewrite the file's header."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    record = json.loads(data[8:end])
    record["__metadata__"] |= metadata
    (header or (lambda record: None))(record)
    text = json.dumps(record).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])


def test_what_is_written_is_read(tmp_path, file):
    path = tmp_path / "m.safetensors"
    safetensors.write_model_file(path, file)
    for found in (safetensors.read_model_file(path), read_model(path)):
        assert found.network.to_json() == file.network.to_json()
        for group in safetensors.GROUPS:
            arrays, expected = getattr(found, group), getattr(file, group)
            assert arrays.keys() == expected.keys()
            assert all(np.array_equal(arrays[name], expected[name]) for name in arrays)
            assert all(arrays[name].dtype == expected[name].dtype for name in arrays)
        for name in ("position", "preprocessing", "class_names", "metadata"):
            assert getattr(found, name) == getattr(file, name)


def test_an_entry_that_is_no_json_leaves_the_old_file(tmp_path, file):
    path = tmp_path / "m.safetensors"
    safetensors.write_model_file(path, file)
    before = path.read_bytes()
    with pytest.raises(RunError):
        safetensors.write_model_file(path, ModelFile(file.network, file.weights, metadata={"what": object()}))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("metadata", "place"),
    [
        ({"format": "another"}, "m.safetensors"),
        ({"version": "2"}, "version 2"),
        ({"network": "{"}, "'network'"),
        ({"network": "[" * 100_000}, "'network'"),
        ({"network": json.dumps({"name": "n", "input_shape": [4, 4, 0], "layers": [], "trainable": []})}, "'network'"),
        ({"network": network(4).to_json()}, "/dense/bias'"),
        ({"class_names": "[1]"}, "'class_names'"),
        ({"position": "[]"}, "'position'"),
        ({"metadata": "no"}, "'metadata'"),
    ],
)
def test_texts_that_are_damaged(tmp_path, file, metadata, place):
    path = tmp_path / "m.safetensors"
    safetensors.write_model_file(path, file)
    changed(path, **metadata)
    with pytest.raises(FormatError, match=place):
        safetensors.read_model_file(path)


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("weights/conv/kernel", {"shape": [1, 2, 5, 1, 1]}),
        ("weights/conv/kernel", {"dtype": "I32"}),
        ("optimizer/velocity/dense/bias", {"shape": [1, 3]}),
        ("ranges/conv/activation", {"shape": [4, 4]}),
    ],
)
def test_tensors_that_do_not_fit(tmp_path, file, name, entry):
    path = tmp_path / "m.safetensors"
    safetensors.write_model_file(path, file)
    changed(path, lambda record: record[name].update(entry))
    with pytest.raises(FormatError, match=f"'{name}'"):
        safetensors.read_model_file(path)


def test_names_that_have_no_place_or_are_missing(tmp_path, file):
    path = tmp_path / "m.safetensors"
    for old, new in ("weights/bn/beta", "weights/bn/delta"), ("arrays/prototypes", "code/prototypes"):
        safetensors.write_model_file(path, file)
        changed(path, lambda record, old=old, new=new: record.update({new: record.pop(old)}))
        with pytest.raises(FormatError, match=new):
            safetensors.read_model_file(path)
    path.write_bytes(safetensors.to_bytes({}, {"format": "edgelearn model", "version": "1", **texts(file)}))
    with pytest.raises(FormatError, match="'weights/conv/kernel'"):
        safetensors.read_model_file(path)


def texts(file):
    return {"network": file.network.to_json(), "position": "{}", "preprocessing": "{}", "class_names": "[]",
            "metadata": "{}"}  # fmt: skip
