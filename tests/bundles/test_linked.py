"""The linker's map of a microcontroller's program, and trials of bundles beside Python."""

from types import SimpleNamespace

import numpy as np
import pytest

import edgelearn as el
from edgelearn.bundles import linked
from edgelearn.bundles.linked import link, missing, read_map
from edgelearn.bundles.trial import try_out
from edgelearn.errors import DeviceError
from edgelearn.lab.runs import figures
from edgelearn.launch import Role

from .built import needs_compiler
from .test_opencl import dense_network, examples

MAP = """
Memory Configuration

Name             Origin             Length             Attributes
FLASH            0x00000000         0x00100000         xr
SRAM             0x20000000         0x00040000         xrw
*default*        0x00000000         0xffffffff

Discarded input sections

 .text.unused   0x00000000       0x44 /tmp/cc1.o

Linker script and memory map

.text           0x00000000    0x1c378
 .vectors       0x00000000       0x40 /tmp/cc1.o
 .text.el_pointwise_forward
                0x00000040      0x0c0 /tmp/cc2.o
                0x00000040                el_pointwise_forward
 .text          0x00002148      0x200 /usr/lib/libm.a(lib_a-sf_expm1.o)
 .rodata.constants
                0x00003000     0x1000 /tmp/cc3.o
 .rodata.el_weights
                0x00004000      0x800 /tmp/cc4.o
 .rodata.el_calls
                0x00004800       0x10 /tmp/cc3.o
.bss            0x20000068    0x29680
 .bss.arena     0x20000068     0x5000 /tmp/cc3.o
 .bss.inputs    0x20005068      0x100 /tmp/cc5.o
.stack          0x200296e8     0x2000
 .debug_info    0x00000000     0x1234 /tmp/cc3.o
"""


def fake_bundle(folder):
    roles = {Role.PARAMETER: 0x1000, Role.CONSTANT: 0x1000, Role.TEMPORARY: 0x4000}
    plan = SimpleNamespace(bytes_by_role=roles, request=SimpleNamespace(network=SimpleNamespace(name="small")))
    return SimpleNamespace(plan=plan, folder=folder, target="cortex-m")


def test_the_map_by_parts(tmp_path):
    found = read_map(MAP, fake_bundle(tmp_path))
    assert found.sizes == (1 << 20, 256 << 10)
    assert found.flash == {
        "frozen weights": 0x1000, "initial weights": 0x800, "C library": 0x200, "kernels and runtime": 0x100,
        "tables of the plan": 0x10,
    }  # fmt: skip
    assert found.sram == {
        "activations and workspace": 0x4000, "stack": 0x2000, "parameters": 0x1000, "other variables": 0x100
    }  # fmt: skip
    free = [row for row in found.table().rows if row[1] == "free"]
    assert free == [("flash", "free", f"{(1 << 20) - 0x1B10:,}"), ("SRAM", "free", f"{(256 << 10) - 0x7100:,}")]
    words = figures.describe(found.plot())
    assert "SRAM: 28.2 of 256 KiB" in words and "frozen weights, 4.0" in words and "others, 0.8" in words


def test_missing_tools_are_named_with_their_packages(tmp_path, monkeypatch):
    monkeypatch.setattr(linked.shutil, "which", lambda tool: None)
    assert missing(("make",)) == "make not found: sudo apt install make."
    with pytest.raises(DeviceError, match="arm-none-eabi-gcc and make not found: sudo apt install gcc-arm-none-eabi"):
        link(fake_bundle(tmp_path))


@needs_compiler
def test_a_trial_has_the_losses_of_both(tmp_path):
    model = el.Model(dense_network(), seed=3).compile(el.SGD(0.1, momentum=0.9))
    written = el.bundle(model, tmp_path, batch_size=6, micro_batch=3, target="c")
    x, y = (np.concatenate(parts) for parts in zip(*(examples(model.network, 6, n) for n in range(4)), strict=True))
    trial = try_out(model, written, x, y, 0.02)
    assert len(trial.python) == len(trial.bundle) == 4 and trial.difference < 1e-5
    assert trial.python[0] != trial.python[-1] and trial.bundle_seconds > 0
    assert "1e-05" not in trial.headline and "target c" in figures.describe(trial.plot())
    with model.trainer(6, 3) as trainer:
        trainer.learning_rate = 0.02
        assert [float(trainer.step(x[i : i + 6], y[i : i + 6])["loss"]) for i in range(0, 24, 6)] == trial.python
