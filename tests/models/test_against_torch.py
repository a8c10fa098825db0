"""Networks against PyTorch in float64: the same weights and features give the same logits, gradients and training."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgelearn.compile import Request, make_plan
from edgelearn.graph import Network
from edgelearn.interop import state_dict
from edgelearn.models import bcresnet, ds_cnn
from edgelearn.ops import SGD, pack
from edgelearn.runtime import Context, Kernels, Session, list_devices

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
SCRIPT = Path(__file__).with_name("torch_networks.py")
NETWORKS = {
    "bcresnet": bcresnet(softmax=False, dropout=0.0),
    "bcresnet trained": bcresnet(softmax=False, dropout=0.0),
    "ds_cnn": ds_cnn(softmax=False),
}
# Tolerances of gradients. With trained weights some input of a ReLU is so near to 0 that float32 has another sign, in
# PyTorch as well.
TOLERANCES = {"bcresnet": 3e-4, "bcresnet trained": 3e-2, "ds_cnn": 3e-4}


class Case:
    """Results of PyTorch for a network."""

    def __init__(self, name: str, folder: Path) -> None:
        arguments = []
        if name == "bcresnet trained":
            if not os.environ.get("EDGELEARN_DATA"):
                pytest.skip("EDGELEARN_DATA isn't set: no trained weights to compare with")
            arguments = [Path(os.environ["EDGELEARN_DATA"]) / "weights" / "bcresnet1_speech_commands.npz"]
        self.network, self.title, self.name, self.folder = NETWORKS[name], name, name.split()[0], folder
        run = subprocess.run(
            [sys.executable, SCRIPT, self.name, folder / "found.npz", *arguments],
            capture_output=True, text=True,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        with np.load(folder / "found.npz", allow_pickle=False) as file:
            self.found = dict(file)

    def arrays(self, kind: str) -> dict[str, np.ndarray]:
        """PyTorch's arrays of one kind ("weight", "kept gradient 3") under our names and shapes."""
        prefix = f"{kind} "
        arrays = {key.removeprefix(prefix): a for key, a in self.found.items() if key.startswith(prefix)}
        if self.name != "bcresnet":
            return arrays
        np.savez(self.folder / "arrays.npz", **arrays)
        return state_dict.read_bcresnet(self.folder / "arrays.npz", self.network)


@pytest.fixture(scope="module", params=NETWORKS)
def case(request, tmp_path_factory):
    return Case(request.param, tmp_path_factory.mktemp("torch"))


@pytest.fixture(scope="module")
def kernels():
    return Kernels(Context(list_devices()[0]))


@pytest.fixture
def start(kernels, case):
    """Opens sessions with PyTorch's weights; settings are those of Request."""
    opened = []

    def open_session(network: Network, *settings) -> Session:
        opened.append(Session(make_plan(Request(network, *settings), kernels.context.device), kernels.context, kernels))
        opened[-1].load({name: np.float32(array) for name, array in case.arrays("weight").items()})
        return opened[-1]

    yield open_session
    for session in opened:
        session.close()


def step(session: Session, found, n: int, rate: float = 0.0, number: int = 1) -> float:
    block = session.plan.storage.input.block
    batch = pack(found["images"][:n], block), found["labels"][:n].astype(np.int32)
    loss, _, finite = session.train([batch], n, rate, number)
    assert finite
    return loss


@pytest.mark.parametrize("frozen", [False, True], ids=("trained", "frozen"))
def test_logits(start, case, frozen):
    network = Network.from_json(case.network.to_json())
    if frozen:
        network.freeze().unfreeze("classifier")
    session = start(network, 3, 3)
    x = pack(case.found["images"], session.plan.storage.input.block)
    logits = case.found["logits"]
    assert np.abs(session.predict(x, 3) - logits).max() <= 1e-5 * np.abs(logits).max()


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("statistics", ["moving", "batch"])
def test_gradients_of_every_parameter(start, case, statistics, n):
    session = start(case.network, n, n, SGD(), statistics)
    assert step(session, case.found, n) == pytest.approx(float(case.found[f"{statistics} loss {n}"]), rel=1e-5)
    expected, actual = case.arrays(f"{statistics} gradient {n}"), session.gradients()
    assert set(actual) == case.network.trainable
    norms = {name: np.linalg.norm(expected[name]) for name in actual}
    errors = {name: np.linalg.norm(actual[name] - expected[name]) / (norms[name] + 1e-12) for name in actual}
    worst = max(errors, key=errors.get)
    assert errors[worst] <= TOLERANCES[case.title], f"{worst} is off by {errors[worst]:.1e}"


def test_training(start, case):
    session = start(case.network, 3, 3, SGD(0.005, momentum=0.9), "batch")
    losses = [step(session, case.found, 3, 0.005, number) for number in range(1, 6)]
    assert losses == pytest.approx(case.found["losses"], abs=1e-3)
    assert losses[-1] < losses[0]
