import os
import re
from pathlib import Path

import numpy as np
import pytest

from edgelearn.errors import FormatError
from edgelearn.interop import state_dict
from edgelearn.models import bcresnet, ds_cnn
from edgelearn.train import Model


@pytest.fixture
def network():
    return bcresnet((40, 9, 1))


@pytest.fixture
def state():
    """Some of the arrays of the network as PyTorch names and shapes them, each value another, and the rest as zeros."""
    shapes = {"cnn_head.0.weight": (16, 1, 5, 5), "classifier.0.weight": (20, 1, 5, 5),
              "classifier.1.weight": (32, 20, 1, 1), "classifier.5.weight": (12, 32, 1, 1),
              "classifier.5.bias": (12,)}  # fmt: skip
    norms = {"cnn_head.1": 16, "classifier.2": 32}
    channels, before = (8, 12, 16, 20), 16
    for stage, (c, blocks) in enumerate(zip(channels, (2, 2, 4, 4), strict=True)):
        for block in range(blocks):
            name, first = f"BCBlocks.{stage}.{block}", block == 0
            if first:
                shapes[f"{name}.f2.0.block.0.weight"] = (c, before, 1, 1)
                norms[f"{name}.f2.0.block.1"] = c
            shapes[f"{name}.f2.{int(first)}.block.0.weight"] = (c, 1, 3, 1)
            norms[f"{name}.f2.{int(first)}.block.1.ssnorm"] = 5 * c
            shapes[f"{name}.f1.0.block.0.weight"] = (c, 1, 1, 3)
            norms[f"{name}.f1.0.block.1"] = c
            shapes[f"{name}.f1.1.weight"] = (c, c, 1, 1)
        before = c
    for name, count in norms.items():
        shapes |= {f"{name}.{role}": (count,) for role in ("weight", "bias", "running_mean", "running_var")}
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return arrays | {f"{name}.num_batches_tracked": np.array(7) for name in norms}


def write(path: Path, arrays) -> Path:
    np.savez(path, **arrays)
    return path


def test_arrays_get_our_names_and_layouts(tmp_path, network, state):
    found = state_dict.read_bcresnet(write(tmp_path / "w.npz", state), network)
    assert found.keys() == network.parameters.keys()
    assert all(array.dtype == np.float32 and array.flags.c_contiguous for array in found.values())
    for ours, theirs in {
        "stem/kernel": state["cnn_head.0.weight"].transpose(2, 3, 1, 0),
        "stem_bn/moving_variance": state["cnn_head.1.running_var"],
        "stage2_block1_pointwise/kernel": state["BCBlocks.1.0.f2.0.block.0.weight"].transpose(2, 3, 1, 0),
        "stage2_block1_frequency/kernel": state["BCBlocks.1.0.f2.1.block.0.weight"].transpose(2, 3, 0, 1),
        "stage2_block2_frequency/kernel": state["BCBlocks.1.1.f2.0.block.0.weight"].transpose(2, 3, 0, 1),
        "stage4_block3_time/kernel": state["BCBlocks.3.2.f1.0.block.0.weight"].transpose(2, 3, 0, 1),
        "stage4_block3_time_bn/beta": state["BCBlocks.3.2.f1.0.block.1.bias"],
        "classifier/kernel": state["classifier.5.weight"][:, :, 0, 0].T,
        "classifier/bias": state["classifier.5.bias"],
    }.items():
        np.testing.assert_array_equal(found[ours], theirs)
    gamma, theirs = found["stage1_block2_ssn/gamma"], state["BCBlocks.0.1.f2.0.block.1.ssnorm.weight"]
    assert all(gamma[band, channel] == theirs[5 * channel + band] for band in range(5) for channel in range(8))


def test_an_embedding_skips_the_classifier(tmp_path, state):
    path, network = write(tmp_path / "w.npz", state), bcresnet((40, 9, 1), classes=None)
    with pytest.raises(FormatError, match=r"no layer is left for 'classifier\.5'.*skip"):
        state_dict.read_bcresnet(path, network)
    found = state_dict.read_bcresnet(path, network, skip=("classifier",))
    assert found.keys() == network.parameters.keys()
    found = state_dict.read_bcresnet(path, bcresnet((40, 9, 1), classes=5), skip=("classifier",))
    assert found.keys() == network.parameters.keys()


def test_arrays_that_do_not_fit(tmp_path, network, state):
    path = tmp_path / "w.npz"
    missing = {name: array for name, array in state.items() if name != "classifier.1.weight"}
    with pytest.raises(
        FormatError, match=rf"{re.escape(str(path))} has no 'classifier\.1\.weight', which .*'tail/kernel'"
    ):
        state_dict.read_bcresnet(write(path, missing), network)
    with pytest.raises(FormatError, match=r"'classifier.5.bias' is float32 of shape \(11,\), but .* shape \(12,\)"):
        state_dict.read_bcresnet(write(path, state | {"classifier.5.bias": np.zeros(11, np.float32)}), network)
    with pytest.raises(FormatError, match=r"'classifier\.5\.bias' is <U1 of shape"):
        state_dict.read_bcresnet(write(path, state | {"classifier.5.bias": np.array(["a"] * 12)}), network)
    with pytest.raises(FormatError, match=r"of shape .*, but .* of 'bcresnet_2_9' needs"):
        state_dict.read_bcresnet(write(path, state), bcresnet((40, 9, 1), tau=2))
    with pytest.raises(FormatError, match="no layer is left for 'more'"):
        state_dict.read_bcresnet(write(path, state | {"more": np.zeros(3)}), network)


def test_networks_that_are_no_bcresnet(tmp_path, network, state):
    path = write(tmp_path / "w.npz", state)
    with pytest.raises(FormatError, match="'conv' is no layer of a BC-ResNet"):
        state_dict.read_bcresnet(path, ds_cnn())
    with pytest.raises(FormatError, match="'clasifier' is no layer"):
        state_dict.read_bcresnet(path, network, skip=("clasifier",))


def test_files_that_are_none(tmp_path, network):
    with pytest.raises(FormatError, match="There is no file"):
        state_dict.read_bcresnet(tmp_path / "none.npz", network)
    np.save(tmp_path / "single.npy", np.zeros(3))
    (tmp_path / "text.npz").write_text("weights")
    (tmp_path / "empty.npz").write_bytes(b"")
    for name in ("single.npy", "text.npz", "empty.npz"):
        with pytest.raises(FormatError, match=f"{name} is not an .npz file"):
            state_dict.read_bcresnet(tmp_path / name, network)


def test_pickles_are_not_opened(tmp_path, network, state):
    path = tmp_path / "w.npz"
    np.savez(path, **state, harm=np.array([{"a": 1}], object))
    with pytest.raises(FormatError, match="plain arrays"):
        state_dict.read_bcresnet(path, network)


LOGITS = [2.2392, 1.1409, 2.1809, 0.2769, -0.9544, 0.1742, -1.4236, -0.5544, -0.9400, -0.4719, -1.7738, 0.3185]


def test_trained_weights_give_the_logits_of_pytorch():
    """LOGITS are what tests/models/torch_networks.py computes for this input, in float64."""
    root = os.environ.get("EDGELEARN_DATA")
    if not root:
        pytest.skip("EDGELEARN_DATA isn't set: no trained weights to read")
    network = bcresnet(softmax=False)
    weights = state_dict.read_bcresnet(Path(root) / "weights" / "bcresnet1_speech_commands.npz", network)
    frequency, time = np.ogrid[:40, :101]
    x = np.float32(-4 + 4 * np.sin(0.01 * frequency * time))[None, ..., None]
    assert Model(network, weights).predict(x, 1)[0] == pytest.approx(LOGITS, abs=1e-3)
