"""MobileNet V1 against keras.applications: the same weights and images give the same logits and gradients."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgelearn.device import Context, list_devices
from edgelearn.graph import Network, Request, Session, make_plan
from edgelearn.models import mobilenet_v1
from edgelearn.ops import SGD, pack

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None,
    reason="TensorFlow is not installed: pip install 'edgelearn[tensorflow]'",
)
OURS = {"conv_preds": "dense", "depthwise_kernel": "kernel"}  # where names of keras.applications differ
NETWORKS = {"0.25 at 64": (0.25, 64, 7), "1.0 at 224": (1.0, 224, 10)}


@pytest.fixture(scope="module", params=NETWORKS)
def case(request, tmp_path_factory):
    """(network, what Keras found); TensorFlow runs in a process of its own."""
    alpha, size, classes = NETWORKS[request.param]
    path = tmp_path_factory.mktemp("keras") / "found.npz"
    script = Path(__file__).with_name("keras_mobilenet.py")
    run = subprocess.run(
        [sys.executable, script, str(alpha), str(size), str(classes), path], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    with np.load(path, allow_pickle=False) as file:
        found = dict(file)
    return mobilenet_v1((size, size, 3), alpha, classes, softmax=False), found


def of_kind(found, kind, network):
    """Keras's arrays of one kind ("weight", "gradient 8") under our names and shapes."""
    arrays = {key.removeprefix(f"{kind} "): value for key, value in found.items() if key.startswith(f"{kind} ")}
    arrays = {"/".join(OURS.get(part, part) for part in name.split("/")): value for name, value in arrays.items()}
    return {name: value.reshape(network.parameters[name].weight.shape) for name, value in arrays.items()}


def start(network, weights, batch, micro):
    device = list_devices()[0]
    plan = make_plan(Request(network, batch, micro, SGD()), device)
    session = Session(plan, Context(device))
    session.load({name: value.astype(np.float32) for name, value in weights.items()})
    return session


def test_weights_have_the_same_names(case):
    network, found = case
    assert set(of_kind(found, "weight", network)) == set(network.parameters)
    assert set(of_kind(found, "gradient 8", network)) == network.trainable


@pytest.mark.parametrize("frozen", [False, True], ids=("trained", "folded"))
def test_logits(case, frozen):
    """Frozen BatchNorm is folded into the kernels before it."""
    network, found = case
    network, expected = Network.from_json(network.to_json()), found["logits"].reshape(8, -1)
    if frozen:
        network.freeze("conv*")
    session = start(network, of_kind(found, "weight", network), 8, 8)
    x = pack(found["images"], session.plan.program("predict", 8).x.block)
    assert np.abs(session.predict(x, 8) - expected).max() <= 1e-4 * np.abs(expected).max()
    loss, correct = session.evaluate(x, found["labels"].astype(np.int32))
    assert loss == pytest.approx(8 * float(found["loss 8"]), rel=1e-5)
    assert correct == (expected.argmax(-1) == found["labels"]).sum()
    session.close()


@pytest.mark.parametrize(("batch", "micro"), [(1, 1), (8, 8), (8, 3)])
def test_gradients_of_every_parameter(case, batch, micro):
    network, found = case
    session = start(network, of_kind(found, "weight", network), batch, micro)
    block = session.plan.program("train", micro).x.block
    labels = found["labels"].astype(np.int32)
    stops = range(0, batch, micro)
    batches = [(pack(found["images"][i : i + micro], block), labels[i : i + micro]) for i in stops]
    loss, _, finite = session.train(batches, batch, 0.0, 1)
    assert finite
    assert loss == pytest.approx(float(found[f"loss {batch}"]), rel=1e-5)
    expected, actual = of_kind(found, f"gradient {batch}", network), session.gradients()
    assert set(actual) == set(expected)
    errors = {
        name: np.linalg.norm(actual[name] - expected[name]) / (np.linalg.norm(expected[name]) + 1e-12)
        for name in expected
    }
    worst = max(errors, key=errors.get)
    assert errors[worst] <= 1e-4, f"{worst} is off by {errors[worst]:.1e}"
    session.close()
