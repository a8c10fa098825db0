"""Bundles for a microcontroller train in an emulated board, within its memory."""

import re
import shutil
import struct
import subprocess

import numpy as np
import pytest

import edgelearn as el

from .test_opencl import examples

TOOLS = ("arm-none-eabi-gcc", "make", "qemu-system-arm")
missing = [tool for tool in TOOLS if shutil.which(tool) is None]
BOARDS = {
    "Cortex-M4": (),
    "Cortex-M7": ("CPU=cortex-m7", "FPU=fpv5-sp-d16", "BOARD=mps2-an500"),
}
STEPS, BATCH, RATE = 4, 4, 0.01


def make(folder, *words: str) -> str:
    done = subprocess.run(["make", "-s", "-C", folder, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")
def test_a_keyword_network_trains_in_256_kib(tmp_path):
    network = el.models.ds_cnn().freeze().unfreeze("block4_pointwise", "classifier")
    model = el.Model(network, seed=1).compile(el.SGD(RATE, momentum=0.9), batchnorm="moving")
    written = el.bundle(model, tmp_path, batch_size=BATCH, micro_batch=1, target="cortex-m")
    trainer, data, expected = model.trainer(BATCH, 1), b"", []
    for number in range(STEPS):
        x, y = examples(network, BATCH, number)
        data += x.tobytes() + y.tobytes()
        expected.append(trainer.step(x, y)["loss"])
    trainer.close()
    (tmp_path / "examples.bin").write_bytes(data)
    for board, settings in BOARDS.items():
        (tmp_path / "model.elf").unlink(missing_ok=True)
        used = dict(re.findall(r"(FLASH|SRAM):\s+(\d+) B", make(tmp_path, "model.elf", *settings)))
        assert 0 < int(used["FLASH"]) <= 1 << 20 and 0 < int(used["SRAM"]) <= 256 << 10
        assert int(used["FLASH"]) + int(used["SRAM"]) > written.plan.peak_bytes
        printed = re.findall(r"\b[0-9a-f]{16}\b", make(tmp_path, "run", *settings))
        losses = [struct.unpack(">d", bytes.fromhex(word))[0] for word in printed]
        np.testing.assert_allclose(losses, expected, rtol=1e-5, err_msg=board)


@pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")
def test_the_linker_refuses_what_does_not_fit(tmp_path):
    model = el.Model(el.models.ds_cnn(), seed=1).compile(el.SGD(RATE), batchnorm="batch")
    el.bundle(model, tmp_path, batch_size=BATCH, target="cortex-m")
    done = subprocess.run(["make", "-s", "-C", tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode and "SRAM" in done.stderr
