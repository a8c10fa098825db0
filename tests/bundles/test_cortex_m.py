"""Bundles for a microcontroller train in an emulated board, within its memory."""

import dataclasses
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

import edgelearn as el
from edgelearn.bundles.linked import emulate_steps
from edgelearn.data.audio import ClipDataset
from edgelearn.data.speech_commands import load_named
from edgelearn.interop.weights import fold_batchnorm
from edgelearn.widgets.pages.device import RATE as USERS_RATE
from edgelearn.widgets.pages.device import keywords_for_user

from .test_opencl import examples

TOOLS = ("arm-none-eabi-gcc", "make", "qemu-system-arm")
missing = [tool for tool in TOOLS if shutil.which(tool) is None]
BOARDS = {
    "Cortex-M4": (),
    "Cortex-M7": ("CPU=cortex-m7", "FPU=fpv5-sp-d16", "BOARD=mps2-an500"),
}
STEPS, UPDATES, BATCH, RATE = 4, 24, 4, 0.01


def make(folder, *words: str) -> str:
    done = subprocess.run(["make", "-s", "-C", folder, *words], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


needs_tools = pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def used_bytes(folder, *settings: str) -> tuple[int, int]:
    """Bytes of flash and of SRAM by the linker, which builds the program."""
    (folder / "model.elf").unlink(missing_ok=True)
    used = dict(re.findall(r"(FLASH|SRAM):\s+(\d+) B", make(folder, "model.elf", *settings)))
    return int(used["FLASH"]), int(used["SRAM"])


def losses_of_board(folder, batches, *settings: str) -> list[float]:
    """Losses that the emulated board prints, given examples one by one."""
    pairs = (pair for x, y in batches for pair in zip(x, y, strict=True))
    (folder / "examples.bin").write_bytes(b"".join(x.tobytes() + y.tobytes() for x, y in pairs))
    printed = re.findall(r"\b[0-9a-f]{16}\b", make(folder, "run", *settings))
    return [struct.unpack(">d", bytes.fromhex(word))[0] for word in printed[::2]]  # the others count right answers


@needs_tools
def test_a_keyword_network_trains_in_256_kib(tmp_path):
    network = el.models.ds_cnn().freeze().unfreeze("block4_pointwise", "classifier")
    model = el.Model(network, seed=1).compile(el.SGD(RATE, momentum=0.9), batchnorm="moving")
    written = el.bundle(model, tmp_path, batch_size=BATCH, micro_batch=1, target="cortex-m")
    batches = [examples(network, BATCH, number) for number in range(STEPS)]
    trainer = model.trainer(BATCH, 1)
    expected = [trainer.step(x, y)["loss"] for x, y in batches]
    trainer.close()
    for board, settings in BOARDS.items():
        flash, sram = used_bytes(tmp_path, *settings)
        assert flash <= 1 << 20 and sram <= 256 << 10 and flash + sram > written.plan.peak_bytes
        losses = losses_of_board(tmp_path, batches, *settings)
        np.testing.assert_allclose(losses, expected, rtol=1e-5, err_msg=board)


def random_person_detector() -> tuple[el.Network, dict]:
    """MobileNet V1 0.25 for 96 x 96 pictures, BatchNorm folded, and random weights that keep activations' size."""
    whole, rng = el.models.mobilenet_v1((96, 96, 3), classes=2, alpha=0.25), np.random.default_rng(0)
    network, _ = fold_batchnorm(whole, el.Model(whole, seed=0).weights)
    shapes = {name: parameter.weight.shape for name, parameter in network.parameters.items()}
    fan_in = {name: 9 if "dw" in name else np.prod(shape[:-1]) for name, shape in shapes.items()}
    scale = {name: (2 / fan_in[name]) ** 0.5 if name.endswith("kernel") else 0.0 for name in shapes}
    return network, {name: np.float32(rng.normal(size=shape) * scale[name]) for name, shape in shapes.items()}


def trained_person_detector() -> tuple[el.Network, dict]:
    root = os.environ.get("EDGELEARN_DATA")
    if not root:
        pytest.skip("EDGELEARN_DATA isn't set: no trained person detector")
    model = el.load(Path(root) / "models" / "vww_96.h5")
    return fold_batchnorm(model.network, model.weights)


@needs_tools
@pytest.mark.parametrize("made", [random_person_detector, trained_person_detector])
def test_a_person_detector_trains_in_256_kib(made, tmp_path):
    """Its classifier and the biases of 16 layers, in int8."""
    network, weights = made()
    linear = [node.name for node in network.nodes.values() if f"{node.name}/bias" in network.parameters]
    network.freeze().unfreeze(linear[-1], *(f"{name}/bias" for name in linear[-16:]))
    model = el.Model(network, weights, seed=1).compile(el.SGD(RATE), precision="int8")
    model.train_on_batch(*examples(network, 2, 99), micro_batch=1)  # leaves ranges
    state, position = model.state()
    model.restore(state, position | {"updates": 0})
    el.bundle(model, tmp_path, batch_size=2, micro_batch=1, target="cortex-m")
    batches = [examples(network, 2, number) for number in range(2)]
    expected = [model.train_on_batch(x, y, micro_batch=1)["loss"] for x, y in batches]
    flash, sram = used_bytes(tmp_path)
    assert flash <= 1 << 20 and sram <= 256 << 10
    np.testing.assert_allclose(losses_of_board(tmp_path, batches), expected, rtol=1e-5)


@needs_tools
def test_the_linker_refuses_what_does_not_fit(tmp_path):
    model = el.Model(el.models.ds_cnn(), seed=1).compile(el.SGD(RATE), batchnorm="batch")
    el.bundle(model, tmp_path, batch_size=BATCH, target="cortex-m")
    done = subprocess.run(["make", "-s", "-C", tmp_path], capture_output=True, text=True, timeout=400)
    assert done.returncode and "SRAM" in done.stderr


def made_up() -> None:
    """The package's words."""


def people() -> ClipDataset:
    """Eight Arabic words by thirteen people: the first ones of each."""
    if "EDGELEARN_DATA" not in os.environ:
        pytest.skip("EDGELEARN_DATA isn't set: no clips of people")
    pytest.importorskip("soundfile", reason="needs soundfile to decode clips")
    clips = load_named("arabic_speech_commands")
    words, speakers = clips.class_names[:8], np.unique(clips.speakers)[:13]
    chosen = clips.take(np.isin(clips.words, words) & np.isin(clips.speakers, speakers))
    return dataclasses.replace(chosen, class_names=words)


@needs_tools
@pytest.mark.parametrize("clips", [made_up, people])
def test_updates_on_the_board_raise_accuracy_as_in_python(clips, tmp_path):
    """A keyword network's last two layers learn clips of a speaker that it has never heard; of people, every other clip
    shows what came of it."""
    model, (x, y) = keywords_for_user(2, clips=clips())
    others, labels = x[1::2], y[1::2]
    if clips is people:
        x, y = x[::2], y[::2]
    written = el.bundle(model, tmp_path, batch_size=BATCH, micro_batch=1, target="cortex-m")
    order = np.arange(UPDATES * BATCH) % len(y)
    steps = emulate_steps(written, x[order], y[order], USERS_RATE)
    with model.trainer(BATCH, 1) as trainer:
        trainer.learning_rate = USERS_RATE
        before = np.mean(model.predict(others).argmax(-1) == labels)
        expected = [trainer.step(x[part], y[part]) for part in order.reshape(UPDATES, BATCH)]
        after = np.mean(trainer.predict(others).argmax(-1) == labels)
    np.testing.assert_allclose([loss for loss, _ in steps], [float(each["loss"]) for each in expected], rtol=1e-5)
    correct = [count for _, count in steps]
    assert correct == [BATCH * float(each["accuracy"]) for each in expected]
    whole = len(y) // BATCH  # steps in which the clips are shown once
    assert after > before if clips is people else sum(correct[-whole:]) > sum(correct[:whole])
