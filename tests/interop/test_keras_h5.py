import os
import re
from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np
import pytest

from edgelearn.data.flowers import load_flowers
from edgelearn.data.pictures import load_images, normalize
from edgelearn.errors import FormatError
from edgelearn.graph import Network
from edgelearn.interop import keras_h5
from edgelearn.models import mobilenet_v1, mobilenet_v2
from edgelearn.ops import BatchNormalization, Conv2D, Conv2DTranspose, Dense, GlobalAveragePooling2D
from edgelearn.train import Model
from tests.networks import chain


@pytest.fixture
def network():
    return chain(
        "toy", (4, 4, 3), conv=Conv2D(5, 3), norm=BatchNormalization(), pool=GlobalAveragePooling2D(), dense=Dense(2)
    )


@pytest.fixture
def weights(network):
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=p.weight.shape).astype(np.float32) for name, p in network.parameters.items()}


def write(path, weights, group="", kind=np.bytes_):
    """As Keras's Model.save_weights did, with groups for layers without weights too."""
    with h5py.File(path, "w") as file:
        root = file.create_group(group) if group else file
        layers = list(dict.fromkeys(["input_1", *(name.split("/")[0] for name in weights), "softmax"]))
        root.attrs["layer_names"] = np.array(layers, kind if kind is np.bytes_ else h5py.string_dtype())
        for layer in layers:
            names = [f"{name}:0" for name in weights if name.startswith(f"{layer}/")]
            inside = root.create_group(layer)
            inside.attrs["weight_names"] = np.array(names, "S") if names else np.array([], "S1")
            for name in names:
                inside[name] = weights[name.removesuffix(":0")]
    return path


def test_kernels_of_transposed_convolutions_have_filters_first(tmp_path):
    net = Network("transposed", (4, 4, 3))
    net.add("up", Conv2DTranspose(5, 2, 2))
    weights = {name: np.random.default_rng(0).normal(size=p.weight.shape) for name, p in net.parameters.items()}
    theirs = weights | {"up/kernel": weights["up/kernel"].swapaxes(2, 3)}  # (2, 2, 5, 3)
    found = keras_h5.read_weights(write(tmp_path / "w.h5", theirs), net)
    assert all(np.array_equal(found[name], weights[name].astype(np.float32)) for name in weights)
    with pytest.raises(FormatError, match="up/kernel"):
        keras_h5.read_weights(write(tmp_path / "other.h5", weights), net)


@pytest.mark.parametrize("group", ["", "model_weights"])
@pytest.mark.parametrize("kind", [np.bytes_, str])
def test_reads_what_keras_wrote(tmp_path, network, weights, group, kind):
    found = keras_h5.read_weights(write(tmp_path / "w.h5", weights, group, kind), network)
    assert found.keys() == weights.keys()
    assert all(np.array_equal(found[name], weights[name]) and found[name].dtype == np.float32 for name in weights)


def test_other_number_formats_become_float32(tmp_path, network, weights):
    doubles = {name: array.astype(np.float64) for name, array in weights.items()}
    found = keras_h5.read_weights(write(tmp_path / "w.h5", doubles), network)
    assert all(found[name].dtype == np.float32 and np.array_equal(found[name], weights[name]) for name in weights)


def test_skip(tmp_path, network, weights):
    path = write(tmp_path / "w.h5", {name: array for name, array in weights.items() if "dense" not in name})
    assert "dense/kernel" not in keras_h5.read_weights(path, network, skip=("dense",))
    with pytest.raises(FormatError, match=f"{re.escape(str(path))} has no such layer for layer 'dense'"):
        keras_h5.read_weights(path, network)


def test_other_shapes(tmp_path, network, weights):
    path = write(tmp_path / "w.h5", weights | {"conv/kernel": np.zeros((3, 3, 3, 6))})
    with pytest.raises(FormatError, match=r"'conv/kernel' has shape \(3, 3, 3, 6\), but 'toy' needs \(3, 3, 3, 5\)"):
        keras_h5.read_weights(path, network)
    path = write(tmp_path / "w.h5", {name: array for name, array in weights.items() if name != "conv/bias"})
    with pytest.raises(FormatError, match=r"has 1 array for layer 'conv', which needs 2 \(kernel, bias\)"):
        keras_h5.read_weights(path, network)


@pytest.fixture(scope="module")
def real():
    root = os.environ.get("EDGELEARN_DATA")
    if not root:
        pytest.skip("EDGELEARN_DATA isn't set: no published weight files to read")
    return Path(root)


def test_keras_3_files_without_names(tmp_path):
    """Before Keras 3.6 layers were numbered by class alone."""
    import h5py

    network = Network("two", (4, 4, 3))
    for name in ("first", "second"):
        network.add(name, Conv2D(3, 1))
    weights = network.initialize(1)
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:
        for name, group in (("first", "conv2d"), ("second", "conv2d_1")):
            for place, role in enumerate(("kernel", "bias")):
                file[f"layers/{group}/vars/{place}"] = weights[f"{name}/{role}"]
    found = keras_h5.read_weights(tmp_path / "m.weights.h5", network)
    assert all(np.array_equal(found[key], array) for key, array in weights.items())
    network.add("third", Conv2D(3, 1))
    with pytest.raises(FormatError, match="third"):
        keras_h5.read_weights(tmp_path / "m.weights.h5", network)


@pytest.mark.parametrize(("name", "alpha"), [("mobilenet_1_0_224_tf.h5", 1.0), ("mobilenet_2_5_224_tf.h5", 0.25)])
def test_published_files(real, name, alpha):
    path = real / "weights" / name
    network = mobilenet_v1(alpha=alpha)
    found = keras_h5.read_weights(path, network, skip=("dense",))
    assert found.keys() == {name for name in network.parameters if not name.startswith("dense/")}
    with h5py.File(path) as file:
        root = file.get("model_weights", file)
        layer = root["conv_pw_13_bn"]
        names = [name.decode() if isinstance(name, bytes) else name for name in layer.attrs["weight_names"]]
        for role, name in zip(("gamma", "beta", "moving_mean", "moving_variance"), names, strict=True):
            assert role in name
            np.testing.assert_array_equal(found[f"conv_pw_13_bn/{role}"], layer[name])
    with pytest.raises(FormatError, match="another width"):
        keras_h5.read_weights(path, mobilenet_v1(alpha=0.5), skip=("dense",))


@pytest.mark.skipif(find_spec("tensorflow_datasets") is None, reason="tensorflow-datasets isn't installed")
def test_mobilenet_v2s_published_file_tells_daisies(real):
    network = mobilenet_v2()
    weights = keras_h5.read_weights(
        real / "weights" / "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224.h5", network
    )
    assert weights.keys() == network.parameters.keys()
    flowers = load_flowers(data=real)
    daisies = np.flatnonzero(flowers.labels == flowers.class_names.index("daisy"))[:16]
    images = normalize(load_images(flowers, daisies, 224))
    assert (Model(network, weights).predict(images, 8).argmax(-1) == 985).mean() > 0.6  # ImageNet's daisy


def test_published_files_of_other_networks(real):
    with pytest.raises(FormatError, match="no such layer for layer 'conv1'"):
        keras_h5.read_weights(real / "models" / "vww_96.h5", mobilenet_v1((96, 96, 3), 0.25, 2))
    arrays = keras_h5.read_layers(real / "models" / "vww_96.h5").values()
    assert sum(array.size for layer in arrays for array in layer) == 221_794
    with pytest.raises(FormatError, match="not a Keras HDF5 weight file"):
        keras_h5.read_layers(real / "models" / "DS_CNN_S.pb")
