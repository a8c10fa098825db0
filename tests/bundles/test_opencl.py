"""Bundles for OpenCL compute what the session computes, bit for bit, and end in codes where something is wrong."""

import ctypes
import json
import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest

import edgelearn as el
from edgelearn import bundles
from edgelearn.bundles import native
from edgelearn.bundles.native import COMPILERS, compile_library
from edgelearn.cli import main
from edgelearn.compile import policies
from edgelearn.compile.precision import named_precision
from edgelearn.errors import FormatError, PlanError
from edgelearn.models import language, motion
from edgelearn.ops import (
    GRU,
    Attention,
    BatchNormalization,
    Compute,
    Concatenate,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    Embedding,
    GlobalAveragePooling2D,
    GlobalMaxPooling1D,
    ReLU,
    RMSNormalization,
    RotaryEmbedding,
)

from .built import Built, compiled, needs_compiler

RATE = 0.05


def dense_network() -> el.Network:
    network = el.Network("dense", (20,))
    network.add("hidden", Dense(33))
    network.add("relu", ReLU(6))
    network.add("logits", Dense(5))
    return network


def separable_network() -> el.Network:
    """A MobileNet of CIFAR pictures' form, in small."""
    network = el.Network("separable", (9, 8, 3))
    network.add("conv", Conv2D(16, 3, strides=2, padding="same", use_bias=False))
    network.add("conv_bn", BatchNormalization())
    network.add("conv_relu", ReLU(6))
    network.add("depthwise", DepthwiseConv2D(3, padding="same", use_bias=False))
    network.add("depthwise_bn", BatchNormalization())
    network.add("depthwise_relu", ReLU(6))
    network.add("pointwise", Conv2D(20, 1, use_bias=False))
    network.add("pointwise_bn", BatchNormalization())
    network.add("pointwise_relu", ReLU(6))
    network.add("pool", GlobalAveragePooling2D())
    network.add("predictions", Dense(4))
    return network


def words_network() -> el.Network:
    """Numbers of words, 0 where a sentence has ended: GRUs in both directions and attention leave these steps out."""
    network = el.Network("words", (9,))
    network.add("table", Embedding(23, 19))
    for name, backwards in (("forth", False), ("back", True)):
        gru = GRU(18, return_sequences=True, go_backwards=backwards)
        network.add(name, gru, "table", "input")
    network.add("both", Concatenate(), "forth", "back")
    network.add("normal", RMSNormalization(), "both")
    query, key, value = (network.add(name, Dense(20), "normal") for name in ("query", "key", "value"))
    turned = [network.add(f"turned_{each}", RotaryEmbedding(2), each) for each in (query, key)]
    network.add("attention", Attention(2), *turned, value, "input")
    network.add("most", GlobalMaxPooling1D())
    network.add("logits", Dense(4))
    return network


def letters_network() -> el.Network:
    return language.gpt(vocabulary=21, context=9, layers=2, heads=2, channels=36)


def motion_network() -> el.Network:
    return motion.motion_cnn_lstm((10, 6), (18,), 3, 17, (19,))


def fine_tuned() -> el.Network:
    return separable_network().freeze().unfreeze("pointwise", "predictions")


INT8 = named_precision("int8")
TRAININGS = {  # network, optimizer, settings of compile, batch size, micro-batch, last batch
    "dense, Adam": (dense_network, el.Adam(RATE), {}, 6, 6, ()),
    "the last layers": (fine_tuned, el.SGD(RATE, momentum=0.9), {"batchnorm": "moving"}, 6, 2, (3,)),
    "all, recomputed": (
        separable_network, el.SGD(RATE), {"batchnorm": "batch", "activation_memory": policies.checkpoints}, 6, 3, (),
    ),
    "dense, int8": (dense_network, el.SGD(RATE), {"precision": INT8}, 4, 4, ()),
    "words": (words_network, el.SGD(RATE, momentum=0.9), {"activation_memory": policies.checkpoints}, 4, 2, ()),
    "letters": (letters_network, el.AdamW(RATE, global_clipnorm=1.0), {}, 4, 2, ()),
    "motion": (motion_network, el.Adam(RATE), {}, 4, 4, ()),
}  # fmt: skip


def examples(network: el.Network, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng, (*rows, classes) = np.random.default_rng(seed), network.output.shape
    x = rng.normal(size=(count, *network.input_shape))
    if sizes := [node.op.input_dim for node in network.nodes.values() if isinstance(node.op, Embedding)]:
        x = np.sort(rng.integers(0, sizes[0], x.shape) - 3).clip(0)[:, ::-1]  # ends with zeros
    return x.astype(np.float32), rng.integers(0, classes, (count, *rows)).astype(np.int32)


def made(folder, name: str) -> tuple[el.Model, Built]:
    network, optimizer, settings, size, micro, last = TRAININGS[name]
    model = el.Model(network(), seed=3).compile(optimizer, **settings)
    el.bundle(model, folder, batch_size=size, micro_batch=micro, last_batches=last)
    return model, Built(folder, model.device.id)


@needs_compiler
@pytest.mark.parametrize("name", TRAININGS)
def test_ten_steps_have_the_bits_of_the_session(name, tmp_path):
    model, built = made(tmp_path, name)
    _, _, _, size, micro, last = TRAININGS[name]
    trainer = model.trainer(size, micro, examples=[size + each for each in last])
    built.check(built.open())
    for number, count in enumerate([size] * 5 + [*last] + [size] * 5):
        x, y = examples(model.network, count, number)
        ours, theirs = built.step(x, y, RATE), trainer.step(x, y)
        assert ours.loss == theirs["loss"]
        assert ours.correct / count == theirs["accuracy"]
    weights = trainer.weights
    assert built.weight_sizes() == {name: weights[name].size for name in trainer.session.changing}
    for each in built.weight_sizes():
        assert built.get(each).tobytes() == weights[each].tobytes()
    x, _ = examples(model.network, micro, 99)
    assert built.predict(x).tobytes() == trainer.predict(x).tobytes()
    longer = np.concatenate([x, x[:1]])
    np.testing.assert_allclose(built.predict(longer)[:-1], trainer.predict(x).reshape(len(x), -1), rtol=1e-5)
    built.close()
    trainer.close()


@needs_compiler
def test_a_step_in_parts_has_the_bits_of_a_whole_one(tmp_path):
    """The examples of a whole step are sent from the caller's arrays, those of its parts from a copy."""
    model, built = made(tmp_path, "the last layers")
    built.check(built.open())
    begin, (x, y) = built.save(), examples(model.network, 6, 0)
    whole = [built.step(x, y, RATE).loss for _ in range(3)]
    built.check(built.load(begin))
    assert [built.step_in_parts(x, y, RATE, 2).loss for _ in range(3)] == whole
    built.close()


@needs_compiler
def test_a_state_continues_on_the_device_and_in_python(tmp_path):
    model, built = made(tmp_path, "dense, Adam")
    built.check(built.open())
    x, y = examples(model.network, 6, 0)
    for _ in range(3):
        built.step(x, y, RATE)
    state = built.save()
    assert len(state) == built.lib.edgelearn_save_size()
    expected = [built.step(x, y, RATE).loss for _ in range(3)]
    built.check(built.load(state))
    assert built.lib.edgelearn_updates() == 3
    assert [built.step(x, y, RATE).loss for _ in range(3)] == expected
    built.close()

    path = tmp_path / "phone.state"
    path.write_bytes(state)
    model.restore(*bundles.read_state(path))
    assert model.position.updates == 3
    assert [model.train_on_batch(x, y)["loss"] for _ in range(3)] == expected
    path.write_bytes(model.network.name.encode())
    with pytest.raises(FormatError):
        bundles.read_state(path)


@needs_compiler
def test_weights_are_put_and_taken(tmp_path):
    model, built = made(tmp_path, "dense, Adam")
    assert built.lib.edgelearn_get_weights(b"hidden/kernel", None, 1) == 8  # not open
    built.check(built.open())
    built.check(built.open(), expected=8)
    values = np.random.default_rng(0).normal(size=660).astype(np.float32)
    built.set("hidden/kernel", values)
    assert built.get("hidden/kernel").tobytes() == values.tobytes()
    model.weights = {**model.weights, "hidden/kernel": values.reshape(20, 33)}
    x, y = examples(model.network, 6, 0)
    assert built.predict(x).tobytes() == model.predict(x, 6).tobytes()
    room = (ctypes.c_float * 660)()
    built.check(built.lib.edgelearn_get_weights(b"nobody/kernel", room, ctypes.c_size_t(660)), expected=3)
    built.check(built.lib.edgelearn_get_weights(b"hidden/kernel", room, ctypes.c_size_t(659)), expected=1)
    built.step(x[:5], y[:5], RATE, expected=2)
    before = built.get("logits/kernel")
    built.step(x * np.nan, y, RATE, expected=6)
    assert built.get("logits/kernel").tobytes() == before.tobytes()
    assert built.lib.edgelearn_updates() == 0
    built.close()


@needs_compiler
def test_damaged_files_give_codes(tmp_path):
    """2,000 of them, cut off or with a byte changed. After each the bundle goes on as if nothing had been."""
    model, built = made(tmp_path, "dense, Adam")
    built.check(built.open())
    x, y = examples(model.network, 6, 0)
    built.step(x, y, RATE)
    state, draw = built.save(), random.Random(0)

    def damaged(content: bytes) -> bytes:
        at = draw.randrange(len(content))
        if draw.random() < 0.5:
            return content[:at]
        return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]

    for _ in range(1000):
        assert built.load(damaged(state)) in (4, 5)
    assert built.save() == state
    built.close()
    for _ in range(1000):
        assert built.open(damaged(built.weights)) in (4, 5)
    assert built.open(device=b"no such device") == 10
    assert built.open(library=b"/nowhere/libOpenCL.so") == 9
    assert b"/nowhere" in built.lib.edgelearn_detail()
    built.check(built.open())
    built.close()


COUNTING = """
#include <stddef.h>
unsigned long allocations;
void *__real_malloc(size_t);
void *__real_calloc(size_t, size_t);
void *__real_realloc(void *, size_t);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t m);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n) { allocations++; return __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t m) { allocations++; return __real_calloc(n, m); }
void *__wrap_realloc(void *p, size_t n) { allocations++; return __real_realloc(p, n); }
"""


@needs_compiler
def test_nothing_is_allocated_after_open(tmp_path):
    model = el.Model(dense_network(), seed=3).compile(el.Adam(RATE))
    el.bundle(model, tmp_path / "b", batch_size=6)
    counting = tmp_path / "counting.c"
    counting.write_text(COUNTING)
    wraps = [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc")]
    built = Built(tmp_path / "b", model.device.id, compiled(tmp_path / "b", *wraps, more=(counting,)))
    count = ctypes.c_ulong.in_dll(built.lib, "allocations")
    built.check(built.open())
    opened = count.value
    assert opened > 0
    x, y = examples(model.network, 6, 0)
    for _ in range(3):
        built.step(x, y, RATE)
    built.predict(x)
    built.check(built.load(built.save()))
    built.set("logits/kernel", built.get("logits/kernel"))
    assert count.value == opened
    built.close()


@needs_compiler
def test_other_compilers_have_no_warnings_either(tmp_path, monkeypatch):
    found = {os.path.realpath(path): path for each in COMPILERS if (path := shutil.which(each))}
    others = [path for real, path in found.items() if real != os.path.realpath(str(native.compiler()))]
    if not others:
        pytest.skip("there is one compiler alone, which builds all other tests' bundles")
    model = el.Model(dense_network(), seed=3).compile(el.Adam(RATE))
    for target in ("opencl", "c"):
        el.bundle(model, tmp_path / target, batch_size=6, target=target)
        for each in others:
            monkeypatch.setattr(native, "compiler", lambda each=each: each)
            compiled(tmp_path / target, "-O0")  # Clang's warnings are the same with every option


def test_trainings_that_a_bundle_cannot_hold_are_named(tmp_path):
    def refused(message, network, optimizer=None, target="opencl", **settings):
        model = el.Model(network, seed=0).compile(optimizer or el.SGD(), **settings)
        with pytest.raises(PlanError, match=message):
            el.bundle(model, tmp_path / "b", batch_size=2, target=target)

    two = dense_network()
    two.add("second", Dense(2), "relu")
    two.outputs = ("logits", "second")
    refused("one output", two)
    refused("Offload", separable_network(), batchnorm="moving", activation_memory=policies.paged)
    refused("fp16", dense_network(), compute=Compute("fp16", plain=True))
    refused("target", dense_network(), target="abacus")
    assert not (tmp_path / "b").exists()


def test_the_command_writes_a_bundle(tmp_path, capsys):
    network = tmp_path / "dense.safetensors"
    el.Model(dense_network(), seed=0).save(network)
    out = tmp_path / "bundle"
    words = ["bundle", str(network), "--out", str(out), "--train", "logits", "--batch-size", "4", "--json"]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["target"] == "opencl" and answer["weights_bytes"] == (out / "model.weights").stat().st_size
    page = (out / "plan.txt").read_text()
    assert "trained layers            logits" in page and f"{answer['multiply_adds']:,}" in page
    assert {"edgelearn.h", "edgelearn.c", "main.c", "CMakeLists.txt", "kernels.c"} <= {p.name for p in out.iterdir()}


@needs_compiler
def test_programs_are_small(tmp_path):
    """Runtime without kernels and weights, and the stripped program of MobileNet V1 with all its training kernels."""
    model = el.Model(el.models.mobilenet_v1(), seed=0).compile(el.SGD(RATE, momentum=0.9), batchnorm="batch")
    el.bundle(model, tmp_path, batch_size=1)
    runtime = 0
    for name in ("edgelearn", "device"):
        command = [native.compiler(), "-std=c99", "-Os", "-shared", "-fPIC", "-s", f"{name}.c", "-o", f"{name}.so"]
        subprocess.run(command, cwd=tmp_path, check=True)
        runtime += (tmp_path / f"{name}.so").stat().st_size
    whole = compile_library(tmp_path, ("-Os", "-s")).stat().st_size
    assert runtime <= 50_000 and whole <= 400_000


def wide_network() -> el.Network:
    network = el.Network("wide", (512,))
    for number in range(2):
        network.add(f"hidden_{number}", Dense(1024))
        network.add(f"relu_{number}", ReLU())
    network.add("logits", Dense(5))
    return network


DEVICE = ["open", "close", "page", "put", "get", "zero", "run", "is_memory"]  # functions of device.c
ONLY_DRIVER = (
    "".join(f"#define el_device_{name} only_{name}\n" for name in DEVICE)
    + """
#define el_memory_bytes smallest
#include "device.c"
const uint64_t smallest[16] = {64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64};
"""
)
RESIDENT = """
import sys
from ctypes import byref
from pathlib import Path
from edgelearn.bundles.native import Options, opencl_library
from edgelearn.lab.measure import peak_resident_bytes, release_free_memory, resident_bytes, restart_peak
from edgelearn.runtime.devices import list_devices
from tests.bundles.built import Built
from tests.bundles.test_opencl import RATE, examples, wide_network
folder, opening = Path(sys.argv[1]), sys.argv[2]
list_devices()  # mends PoCL
built, (x, y) = Built(folder, sys.argv[3], folder / "model.so"), examples(wide_network(), 8, 0)
release_free_memory()
before, counts = resident_bytes(), restart_peak()
if opening == "driver":
    library = opencl_library()
    built.check(built.lib.only_open(byref(Options(None, 0, library and library.encode(), built.device, None))))
else:
    built.check(built.open())
    for _ in range(3):
        built.step(x, y, RATE)
print(peak_resident_bytes() - before if counts else 0)
"""


@needs_compiler
def test_the_process_takes_what_was_planned(tmp_path):
    """Planned bytes, 10 MiB, and what the driver takes that has opened a context and a queue and loaded the kernels."""
    model = el.Model(wide_network(), seed=0).compile(el.SGD(RATE, momentum=0.9))
    written = el.bundle(model, tmp_path, batch_size=8)
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "only.c").write_text(ONLY_DRIVER)
    compiled(tmp_path, f"-I{tmp_path}", more=(tmp_path / "driver" / "only.c",))

    def resident(opening: str) -> int:
        words = [sys.executable, "-c", RESIDENT, tmp_path, opening, model.device.id]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    if not resident("all"):  # the first one compiles kernels
        pytest.skip("needs Linux's /proc/self/clear_refs")
    assert written.plan.peak_bytes > 10 << 20
    assert resident("all") - resident("driver") < written.plan.peak_bytes + (10 << 20)
