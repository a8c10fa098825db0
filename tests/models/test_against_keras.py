"""Networks against Keras in float64: the same weights and images give the same logits, gradients and statistics."""

import importlib.util
import json
import subprocess
from inspect import signature
from pathlib import Path

import numpy as np
import pytest

from edgelearn import models
from edgelearn.compile import Request, make_plan
from edgelearn.graph import Network
from edgelearn.ops import SGD, pack
from edgelearn.runtime import Context, Kernels, Session, list_devices

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None,
    reason="TensorFlow is not installed: pip install 'edgelearn[tensorflow]'",
)
SCRIPT = Path(__file__).with_name("keras_networks.py")
OURS = {"conv_preds": "dense", "depthwise_kernel": "kernel"}  # where names of keras.applications differ
ROUNDING = 1e-6  # of log(sum of exponentials) - logit in float32, however small the loss
NETWORKS = {
    "alexnet": {"size": 67, "alpha": 0.125, "classes": 7, "units": 24},
    "alexnet_one_column": {"size": 63, "alpha": 0.125, "classes": 7, "units": 24},
    "efficientnet_lite0": {"size": 48, "alpha": 0.25, "classes": 7},
    "lenet5": {"size": 28, "classes": 10},
    "lenet_deepcl": {"size": 28, "classes": 10, "units": 20},
    "proxylessnas_mobile": {"size": 32, "alpha": 0.25, "classes": 7},
    "resnet8": {"size": 32, "alpha": 1.0, "classes": 7},
    "resnet34": {"size": 32, "alpha": 0.125, "classes": 7},
    "resnet50": {"size": 32, "alpha": 0.125, "classes": 7},
    "shufflenet_v2": {"size": 32, "alpha": 0.5, "classes": 7},
    "squeezenet": {"size": 35, "alpha": 0.5, "classes": 7},
    "mobilenet_v1": {"size": 48, "alpha": 0.25, "classes": 7},
    "mobilenet_v2": {"size": 48, "alpha": 0.35, "classes": 7},
    "mobilenet_v2_cifar": {"size": 32, "alpha": 0.5, "classes": 7},
    "mobilenet_v3_small": {"size": 48, "alpha": 0.25, "classes": 7},
    "mobilenet_v3_large": {"size": 48, "alpha": 0.25, "classes": 7},
    "efficientnet_b0": {"size": 48, "alpha": 0.25, "classes": 7},
    "resnet18": {"size": 40, "alpha": 0.25, "classes": 7},
    "resnet18_cifar": {"size": 32, "alpha": 0.25, "classes": 7},
    "vgg16": {"size": 32, "alpha": 0.25, "classes": 7, "units": 40},
}
TRAINED = (  # they have the blocks of the others, whose logits tell them apart
    "alexnet", "lenet5", "resnet8", "resnet50", "shufflenet_v2", "squeezenet", "mobilenet_v2_cifar",
    "mobilenet_v3_small", "efficientnet_b0", "vgg16",
)  # fmt: skip
OF_TRAINED = pytest.mark.parametrize("case", TRAINED, indirect=True)


@pytest.fixture(scope="module")
def keras_folder(tmp_path_factory, python_with_tensorflow):
    """Results of Keras for all NETWORKS, in one process of its own."""
    folder = tmp_path_factory.mktemp("keras")
    command = [*python_with_tensorflow, SCRIPT, json.dumps(NETWORKS), folder, *TRAINED]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return folder


@pytest.fixture(scope="module", params=NETWORKS)
def case(request, keras_folder):
    """(network, Keras's results with moving statistics, and for TRAINED with the batch's)."""
    name, options = request.param, NETWORKS[request.param]
    found = []
    for statistics in ("moving", "batch") if name in TRAINED else ("moving",):
        with np.load(keras_folder / name / f"{statistics}.npz", allow_pickle=False) as file:
            found.append(dict(file))
    ours = {key: value for key, value in options.items() if key != "size"}
    maker = getattr(models, name)
    ours |= {"dropout": 0.0} if "dropout" in signature(maker).parameters else {}
    return maker(found[0]["images"].shape[1:], softmax=False, **ours), *found


def of_kind(found, kind, network):
    """Keras's arrays of one kind ("weight", "gradient") under our names and shapes."""
    arrays = {key.removeprefix(f"{kind} "): value for key, value in found.items() if key.startswith(f"{kind} ")}
    arrays = {"/".join(OURS.get(part, part) for part in name.split("/")): value for name, value in arrays.items()}
    return {name: value.reshape(network.parameters[name].weight.shape) for name, value in arrays.items()}


@pytest.fixture(scope="module")
def kernels():
    return Kernels(Context(list_devices()[0]))


def start(kernels, network, found, *settings):
    """A session of the network with Keras's weights; settings are those of Request."""
    plan = make_plan(Request(network, *settings), kernels.context.device)
    session = Session(plan, kernels.context, kernels)
    session.load({name: value.astype(np.float32) for name, value in of_kind(found, "weight", network).items()})
    return session


def train(session, found):
    """A step at learning rate 0, so that only gradients and statistics change; returns the mean loss."""
    batch_size, micro = session.plan.request.batch_size, session.plan.request.micro_batch
    block = session.plan.storage.input.block
    labels = found["labels"].astype(np.int32)
    stops = range(0, batch_size, micro)
    batches = [(pack(found["images"][i : i + micro], block), labels[i : i + micro]) for i in stops]
    loss, _, finite = session.train(batches, batch_size, 0.0, 1)
    assert finite
    return loss


def assert_close(actual, expected, tolerance):
    """Each array within `tolerance` of its norm. Some gradients are 0 but for rounding, of shifts that the next
    BatchNorm takes out again: those are measured by a tenth of the others'."""
    assert set(actual) == set(expected)
    norms = {name: np.linalg.norm(array) for name, array in expected.items()}
    least = 0.1 * np.median(list(norms.values()))
    errors = {name: np.linalg.norm(actual[name] - expected[name]) / max(norms[name], least) for name in expected}
    worst = max(errors, key=errors.get)
    assert errors[worst] <= tolerance, f"{worst} is off by {errors[worst]:.1e}"


def test_weights_have_the_same_names(case):
    network, found, *_ = case
    assert set(of_kind(found, "weight", network)) == set(network.parameters)
    assert set(of_kind(found, "gradient", network)) == network.trainable


@pytest.mark.parametrize("frozen", [False, True], ids=("trained", "folded"))
def test_logits(kernels, case, frozen):
    """Frozen BatchNorm is folded into the kernels before it."""
    network, found, *_ = case
    network, expected = Network.from_json(network.to_json()), found["logits"].reshape(8, -1)
    if frozen:
        network.freeze().unfreeze(list(network.parameters.values())[-1].layer)
    session = start(kernels, network, found, 8, 8)
    x = pack(found["images"], session.plan.storage.input.block)
    assert np.abs(session.predict(x, 8) - expected).max() <= 1e-4 * np.abs(expected).max()
    loss, correct = session.evaluate(x, found["labels"].astype(np.int32))
    assert loss == pytest.approx(8 * float(found["loss"]), rel=1e-5, abs=8 * ROUNDING)
    assert correct == (expected.argmax(-1) == found["labels"]).sum()
    session.close()


@OF_TRAINED
def test_gradients_of_every_parameter(kernels, case):
    network, found, *_ = case
    session = start(kernels, network, found, 8, 3, SGD())
    assert train(session, found) == pytest.approx(float(found["loss"]), rel=1e-5, abs=ROUNDING)
    assert_close(session.gradients(), of_kind(found, "gradient", network), 1e-4)
    session.close()


@OF_TRAINED
def test_gradients_and_moving_statistics_with_batch_statistics(kernels, case):
    """Statistics of a batch carry rounding further than kept ones, and one ReLU6 among millions that it takes across a
    corner shows as 2e-4 of a gradient."""
    network, _, found = case
    session = start(kernels, network, found, 8, 8, SGD(), "batch")
    assert train(session, found) == pytest.approx(float(found["loss"]), rel=1e-5, abs=ROUNDING)
    assert_close(session.gradients(), of_kind(found, "gradient", network), 1e-3)
    assert_close(session.weights(), of_kind(found, "after", network), 1e-5)
    session.close()


def test_vgg16_has_the_weights_of_keras_applications(keras_folder):
    network = models.vgg16((32, 32, 3))
    shapes = {p.name: list(p.weight.shape) for p in network.parameters.values()}
    assert shapes == json.loads((keras_folder / "vgg16.json").read_text())
