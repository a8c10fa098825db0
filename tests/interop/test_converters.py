"""Networks in PyTorch and Keras against the float64 references of their ops."""

import json
import os
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from converted_networks import NETWORKS
from imported import infer

from edgelearn.child import Worker, WorkerError
from edgelearn.graph import Network
from edgelearn.interop import read_model
from edgelearn.ops import Concatenate, Conv2D, Dense, GlobalAveragePooling2D, Softmax
from edgelearn.train import Model

HERE = Path(__file__).parent
PATH = {"PYTHONPATH": os.pathsep.join(map(str, (HERE, HERE.parents[1], HERE.parent / "compile")))}
ROUNDED = {"outputs": 1e-7}  # where TensorFlow rounds a factor to float32
TOLERANCES = {"outputs": 1e-9, "weights": 0, "names": 0, "gradients": 1e-3, "folded": 1e-9}
MODULES = {"Torch": "torch", "MirroredTorch": "torch", "Keras": "tensorflow"}


@pytest.fixture(scope="module", params=MODULES)
def worker(request):
    if find_spec(MODULES[request.param]) is None:
        pytest.skip(f"{MODULES[request.param]} is not installed")
    with Worker(f"converted_networks:{request.param}", environment=PATH) as worker:
        yield worker


@pytest.mark.parametrize("batchnorm", ["moving", "batch"])
@pytest.mark.parametrize(
    "name",
    [
        "padded", "last axis", "rearranged", "enlarged", "normalized", "shortcut", "fused", "unfused", "weighed",
        "attended", "over steps", "recurrent", "mobilenet_v1", "bcresnet", "mobilenet_v2_reversible",
    ],
)  # fmt: skip
def test_it_computes_the_same(worker, name, batchnorm):
    errors = worker.call("errors", name, batchnorm)
    assert {kind: error for kind, error in errors.items() if error > TOLERANCES[kind]} == {}


def test_groups_of_transposed_convolutions(worker, request):
    if "Keras" in request.node.name:
        with pytest.raises(WorkerError) as caught:
            worker.call("errors", "grouped", "moving")
        assert "transposed" in caught.value.reason
    else:
        errors = worker.call("errors", "grouped", "moving")
        assert {kind: error for kind, error in errors.items() if error > TOLERANCES[kind]} == {}


@pytest.mark.parametrize("name", ["padded", "mobilenet_v1"])
def test_a_keras_file_computes_the_same(worker, request, name, tmp_path):
    if request.node.callspec.params["worker"] != "Keras":
        pytest.skip("a .keras file is Keras's")
    assert worker.call("exported", name, str(tmp_path / "m.keras")) < 1e-5
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        assert json.loads(archive.read("edgelearn.json")) == {"class_names": ["a", "b"]}


@pytest.mark.parametrize("name", ["weighed", "attended", "heads", "gpt", "bert", "llama"])
def test_keras_reads_and_trains_what_is_written_and_it_comes_back(worker, request, name, tmp_path):
    """Weights by themselves, attention and tied tables, in layers that Keras has."""
    if request.node.callspec.params["worker"] != "Keras":
        pytest.skip("a .keras file is Keras's")
    errors = worker.call("file_errors", name, str(tmp_path / "m.keras"))
    assert {kind: error for kind, error in errors.items() if error > (TOLERANCES | ROUNDED)[kind]} == {}
    if name == "attended":  # takes rows by products that aren't read
        return
    again, kept, network = read_model(tmp_path / "m.keras"), np.load(tmp_path / "m.keras.npz"), NETWORKS[name]()
    assert np.abs(infer(again, kept["x"]) - kept["y"]).max() < 1e-5
    assert again.network.trainable == network.trainable
    for own in network.trainable:
        assert np.array_equal(again.weights[own].ravel(), kept[own.replace("/", "|")].astype(np.float32).ravel())


def test_an_op_without_a_counterpart_is_named(worker):
    with pytest.raises(WorkerError) as caught:
        worker.call("refused")
    assert "Unknown" in caught.value.reason


def several() -> Network:
    net = Network("several", {"picture": (6, 5, 3), "place": (4,)})
    net.add("conv", Conv2D(8, 3), "picture")
    net.add("pool", GlobalAveragePooling2D())
    net.add("both", Concatenate(), "pool", "place")
    net.add("logits", Dense(3))
    net.add("kind", Softmax())
    net.add("unused", Dense(2), "both")
    net.outputs = ("kind", "both")
    return net


@pytest.mark.parametrize("logits", [False, True])
def test_several_inputs_and_outputs(worker, logits):
    rng, network, weights = np.random.default_rng(0), several(), several().initialize(1)
    x = {name: rng.standard_normal((3, *shape)).astype(np.float32) for name, shape in network.inputs.items()}
    given = {name: array.tolist() for name, array in x.items()}
    theirs = worker.call("outputs", network.to_json(), 1, given, logits)
    if logits:
        network.outputs, theirs["logits"] = ("logits", "both"), theirs["kind"]
    for name, array in Model(network, weights).predict(x).items():
        np.testing.assert_allclose(theirs[name], array, atol=1e-6)
