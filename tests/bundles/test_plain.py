"""Bundles in plain C compute what the session computes, within rounding, and pass the sanitizers."""

import re
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import edgelearn as el
from edgelearn import bundles
from edgelearn.bundles import native
from edgelearn.bundles.functions import KERNELS, WITHOUT, values_of
from edgelearn.bundles.plain import PLAIN, PLAIN_TRAITS
from edgelearn.bundles.serial import LayerTimer, Serial
from edgelearn.bundles.tables import Tables
from edgelearn.bundles.write import RUNTIME
from edgelearn.compile import make_plan, policies
from edgelearn.errors import EdgelearnError, PlanError
from edgelearn.lab.bench.contenders import choose
from edgelearn.lab.bench.engine import Engine
from edgelearn.lab.bench.report import LayerTime, layer_table
from edgelearn.lab.bench.run import run as bench
from edgelearn.lab.bench.workloads import Workload
from edgelearn.models import language, motion, named_network
from edgelearn.ops import (
    Add,
    AveragePooling2D,
    BatchNormalization,
    Conv2D,
    Coupling,
    Dense,
    DepthwiseConv2D,
    Dropout,
    Flatten,
    Format,
    GlobalAveragePooling2D,
    LeakyReLU,
    LocalResponseNormalization,
    MaxPooling2D,
    Multiply,
    PadChannels,
    ReLU,
    Reshape,
    Sigmoid,
    Stream,
    SubSpectralNormalization,
    Tanh,
    Transpose,
)
from edgelearn.ops.elementwise import SiLU

from .built import FLAGS, SANITIZED, Built, needs_compiler
from .test_opencl import (
    INT8,
    RATE,
    dense_network,
    examples,
    letters_network,
    motion_network,
    separable_network,
    words_network,
)


def varied_network() -> el.Network:
    """A network of many kinds of layers, at awkward sizes."""
    network = el.Network("varied", (11, 9, 3))
    network.add("conv", Conv2D(18, 3, strides=2, padding="same"))
    network.add("tanh", Tanh())
    network.add("max", MaxPooling2D(3, 2, padding="same"))
    network.add("wide", Conv2D(18, 3, padding="same"))
    network.add("leaky", LeakyReLU())
    network.add("sum", Add(), "leaky", "max")
    network.add("average", AveragePooling2D(2, 1))
    network.add("silu", SiLU())
    network.add("flatten", Flatten())
    network.add("hidden", Dense(21))
    network.add("sigmoid", Sigmoid())
    network.add("logits", Dense(5))
    return network


def normalized_network() -> el.Network:
    """Convolutions with biases before BatchNorm."""
    network = el.Network("normalized", (8, 7, 2))
    network.add("conv", Conv2D(20, 3, padding="same"))
    network.add("conv_bn", BatchNormalization())
    network.add("conv_relu", ReLU())
    network.add("depthwise", DepthwiseConv2D(3, strides=2, padding="same"))
    network.add("depthwise_bn", BatchNormalization())
    network.add("depthwise_relu", ReLU())
    network.add("pool", GlobalAveragePooling2D())
    network.add("logits", Dense(4))
    return network


def residual_network() -> el.Network:
    """A sum, a selection and a gate, which integers pass through; dropout."""
    network = el.Network("residual", (9, 8, 3))
    network.add("conv", Conv2D(16, 3, padding="same", use_bias=False))
    network.add("conv_bn", BatchNormalization())
    network.add("conv_relu", ReLU())
    network.add("max", MaxPooling2D(2))
    network.add("branch", Conv2D(16, 3, padding="same", use_bias=False))
    network.add("branch_bn", BatchNormalization())
    network.add("sum", Add(), "branch_bn", "max")
    network.add("sum_relu", ReLU())
    network.add("squeeze", GlobalAveragePooling2D())
    network.add("pixel", Reshape((1, 1, 16)))
    network.add("excite", Conv2D(16, 1))
    network.add("gate", Sigmoid())
    network.add("gated", Multiply(), "sum_relu", "gate")
    network.add("pool", GlobalAveragePooling2D())
    network.add("dropout", Dropout(0.25))
    network.add("logits", Dense(4))
    return network


def column_network() -> el.Network:
    """Groups whose borders fall within blocks of 16 channels and between them, sub-bands, moved channels, streams."""
    network = el.Network("columns", (10, 9, 6))
    network.add("grouped", Conv2D(20, 3, strides=2, padding="same", groups=2))
    network.add("norm", LocalResponseNormalization(size=5, alpha=0.1, bias=2.0))
    network.add("multiplied", DepthwiseConv2D((2, 3), padding="same", depth_multiplier=2))
    network.add("bands", SubSpectralNormalization(sub_bands=5))
    network.add("bands_relu", ReLU())
    network.add("pixels", Reshape((5, 5, 2, 20)))
    network.add("swapped", Transpose((1, 2, 4, 3)))
    network.add("shuffled", Reshape((5, 5, 40)))
    network.add("stem", Conv2D(24, 1))
    network.add("stream", Stream())
    network.add("branch", Conv2D(24, 3, padding="same", groups=3), "stream")
    network.add("coupled", Coupling(), "stream", "branch")
    network.add("padded", PadChannels(3, 2))
    network.add("pool", GlobalAveragePooling2D())
    network.add("logits", Dense(4))
    return network


def small_alexnet() -> el.Network:
    """AlexNet of 2012 with its groups, response normalization and dropout, an eighth as wide."""
    return el.models.alexnet((67, 67, 3), alpha=0.125, classes=5, softmax=False, units=24)


PER_CHANNEL = replace(INT8, weights=Format(8, symmetric=True, per_channel=True))
TRAININGS = {  # network, optimizer, settings of compile, batch size, micro-batch
    "dense, Adam": (dense_network, el.Adam(RATE), {}, 6, 3),
    "the last layers": (
        lambda: separable_network().freeze().unfreeze("pointwise", "predictions"), el.SGD(RATE, momentum=0.9),
        {"batchnorm": "moving"}, 6, 2,
    ),
    "all, recomputed": (
        separable_network, el.SGD(RATE), {"batchnorm": "batch", "activation_memory": policies.checkpoints}, 12, 6,
    ),
    "all, moving statistics": (normalized_network, el.SGD(RATE, weight_decay=0.01), {"batchnorm": "moving"}, 6, 6),
    "varied": (varied_network, el.SGD(RATE, momentum=0.9, nesterov=True), {}, 6, 2),
    "residual": (residual_network, el.SGD(RATE), {"batchnorm": "batch"}, 4, 4),
    "AlexNet": (small_alexnet, el.SGD(RATE, momentum=0.9), {}, 4, 2),
    "columns": (
        column_network, el.SGD(RATE), {"batchnorm": "batch", "activation_memory": policies.invertible}, 4, 4,
    ),
    "columns, moving statistics": (column_network, el.SGD(RATE), {"batchnorm": "moving"}, 4, 2),
    "residual, int8": (
        residual_network, el.SGD(RATE, momentum=0.9), {"batchnorm": "moving", "precision": INT8}, 4, 2,
    ),
    "int8 by channels": (
        separable_network, el.SGD(RATE, momentum=0.9), {"batchnorm": "moving", "precision": PER_CHANNEL}, 6, 2,
    ),
    "words": (words_network, el.SGD(RATE, momentum=0.9), {"activation_memory": policies.checkpoints}, 4, 2),
    "words, int8": (words_network, el.SGD(RATE), {"precision": INT8}, 4, 2),
    "letters": (letters_network, el.SGD(RATE, global_clipnorm=0.1), {}, 4, 2),
    "intents": (lambda: language.text_cnn(30, 11, 20, 17, classes=5), el.SGD(RATE, use_ema=True), {}, 4, 4),
    "motion, LSTM": (
        lambda: motion.motion_lstm((20, 6), (19, 18), (24,)), el.RMSprop(RATE, centered=True, epsilon=0.01), {}, 4, 2,
    ),
    "dense, RMSprop with momentum": (
        dense_network, el.RMSprop(RATE, momentum=0.9, weight_decay=0.01, epsilon=0.01), {}, 6, 3,
    ),
    "motion, CNN and LSTM": (motion_network, el.LAMB(RATE), {}, 4, 4),
    "int8, batch statistics": (separable_network, el.SGD(RATE), {"batchnorm": "batch", "precision": INT8}, 6, 3),
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("name", TRAININGS)
def test_ten_steps_are_those_of_the_session(name, tmp_path):
    network, optimizer, settings, size, micro = TRAININGS[name]
    model = el.Model(network(), seed=3).compile(optimizer, **settings)
    el.bundle(model, tmp_path, batch_size=size, micro_batch=micro, target="c")
    built = Built(tmp_path)
    built.check(built.open())
    trainer = model.trainer(size, micro)
    for number in range(10):
        x, y = examples(model.network, size, number)
        ours, theirs = built.step(x, y, RATE), trainer.step(x, y)
        assert ours.loss == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours.correct / size == theirs["accuracy"]
    weights = trainer.weights
    largest = max(np.abs(weights[each]).max() for each in built.weight_sizes())
    for each in built.weight_sizes():
        np.testing.assert_allclose(built.get(each), weights[each].ravel(), rtol=1e-5, atol=1e-5 * largest)
    x, _ = examples(model.network, micro, 99)
    expected = trainer.predict(x).reshape(len(x), -1)
    np.testing.assert_allclose(built.predict(x), expected, rtol=1e-4, atol=1e-6)
    trainer.close()
    state = built.save()
    expected = built.step(*examples(model.network, size, 0), RATE).loss
    built.check(built.load(state))
    assert built.step(*examples(model.network, size, 0), RATE).loss == expected
    (tmp_path / "state").write_bytes(state)
    model.restore(*bundles.read_state(tmp_path / "state"))
    assert model.position.updates == 10
    built.close()


@needs_compiler
def test_a_gradient_of_a_later_micro_batch_is_checked(tmp_path):
    model = el.Model(varied_network(), seed=3).compile(el.SGD(RATE))
    el.bundle(model, tmp_path / "nan", batch_size=4, micro_batch=2, target="c")
    built = Built(tmp_path / "nan")
    built.check(built.open())
    x, y = examples(model.network, 4, 0)
    before = {name: built.get(name) for name in built.weight_sizes()}
    built.step(x * np.nan, y, RATE, expected=6)
    assert all(np.array_equal(built.get(name), weights) for name, weights in before.items())
    built.close()


UPDATES = {
    "SGD": el.SGD(RATE), "momentum": el.SGD(RATE, momentum=0.9), "Adam": el.Adam(RATE), "Lion": el.Lion(RATE),
    "RMSprop": el.RMSprop(RATE, momentum=0.9, centered=True, epsilon=0.01), "LAMB": el.LAMB(RATE),
    "a moving average": el.SGD(RATE, use_ema=True), "clipped": el.SGD(RATE, global_clipnorm=0.1),
    "clipped values": el.SGD(RATE, clipvalue=0.1),
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("name", UPDATES)
def test_a_gradient_that_is_not_finite_changes_nothing(name, tmp_path):
    """Neither weights nor what the optimizer keeps: the next step is that of a bundle that didn't see it."""
    model = el.Model(dense_network(), seed=3).compile(UPDATES[name])
    el.bundle(model, tmp_path, batch_size=4, target="c")
    built = Built(tmp_path)
    built.check(built.open())
    x, y = examples(model.network, 4, 0)

    def weights():
        return np.concatenate([built.get(each) for each in built.weight_sizes()])

    built.step(x, y, RATE)
    state, before = built.save(), weights()
    built.step(x * np.nan, y, RATE, expected=6)
    assert np.array_equal(weights(), before)
    built.step(x, y, RATE)
    after = weights()
    assert np.isfinite(after).all() and not np.array_equal(after, before)
    built.check(built.load(state))
    assert np.array_equal(weights(), before)
    built.step(x, y, RATE)
    assert np.array_equal(weights(), after)
    built.close()


@needs_compiler
@pytest.mark.parametrize("name", ["varied", "residual, int8"])
def test_the_example_passes_the_sanitizers(name, tmp_path):
    """main.c in a process of its own, with undamaged files and with damaged ones."""
    network, optimizer, settings, size, micro = TRAININGS[name]
    model = el.Model(network(), seed=3).compile(optimizer, **settings)
    el.bundle(model, tmp_path, batch_size=size, micro_batch=micro, target="c")
    program = tmp_path / "example"
    sources = [str(path) for path in sorted(tmp_path.glob("*.c"))]
    command = [str(native.compiler()), *FLAGS, *SANITIZED, "-o", program, *sources, "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    if "sanitize" in done.stderr or "asan" in done.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert done.returncode == 0, done.stderr
    batches = [examples(model.network, size, number) for number in range(3)]
    (tmp_path / "data").write_bytes(b"".join(x.tobytes() + y.tobytes() for x, y in batches))

    def run(weights, *more):
        words = [program, tmp_path / weights, tmp_path / "data", "1", str(RATE), tmp_path / "state", *more]
        return subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=60)

    done = run("model.weights")
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[1]) for line in done.stdout.splitlines()]
    trainer = model.trainer(size, micro)
    assert losses == pytest.approx([trainer.step(x, y)["loss"] for x, y in batches], rel=1e-5)
    trainer.close()
    resumed = run("model.weights", tmp_path / "state")
    assert resumed.stdout.split()[0] == "4"

    content, state = (tmp_path / "model.weights").read_bytes(), (tmp_path / "state").read_bytes()
    draw = np.random.default_rng(0)
    for number in range(10):
        cut = int(draw.integers(len(content)))
        changed = bytearray(content)
        changed[cut] ^= 1 << number % 8
        (tmp_path / "damaged").write_bytes(bytes(changed) if number % 2 else content[:cut])
        done = run("damaged")
        assert done.returncode in (4, 5) and "ERROR" not in done.stderr, done.stderr
        (tmp_path / "damaged").write_bytes(state[: int(draw.integers(len(state)))])
        done = run("model.weights", tmp_path / "damaged")
        assert done.returncode in (4, 5) and "ERROR" not in done.stderr, done.stderr


@needs_compiler
def test_the_serial_contender_computes_the_same_step():
    (workload,) = Workload.expand("train:2", 0, "tests.bundles.test_opencl:separable_network")
    (variant,) = Serial(1, "").variants(workload)
    serial, engine = Serial(1, ""), Engine(2, "")
    steps = serial.prepare(workload, variant), engine.prepare(workload, "fed")
    for _ in range(3):
        ours, theirs = (step() for step in steps)
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert "serial" not in [entry.name for entry in choose(None)]
    assert [entry.name for entry in choose(["serial"])] == ["serial"]


@needs_compiler
def test_layers_of_the_serial_step_add_up():
    (workload,) = Workload.expand("train:2", 0, "tests.bundles.test_opencl:separable_network")
    times = LayerTimer("").times(asdict(workload), 2)
    names = [each["layer"] for each in times]
    assert names[0] == next(iter(separable_network().nodes)) and {"pointwise", "predictions"} <= set(names)
    assert all(each["serial"] > 0 and each["device"] > 0 for each in times if each["layer"] == "pointwise")
    text = layer_table(workload.name, [LayerTime(**each) for each in times]).to_text()
    assert "serial / device" in text and text.splitlines()[-1].split()[0] == "all"
    with pytest.raises(EdgelearnError, match="forward:1 is none"):
        bench([Workload.parse("forward:1")], layers=True)


def test_kernels_without_a_function_are_named(tmp_path):
    network = dense_network()
    own = el.losses.formula_loss(lambda xp, targets, outputs: (targets - outputs) ** 2)
    model = el.Model(network, seed=0).compile(el.SGD(0.01), own)
    with pytest.raises(PlanError, match=r"own_loss.*target='opencl'"):
        el.bundle(model, tmp_path / "b", batch_size=2, target="c")
    model = el.Model(network, seed=0).compile(el.SGD(0.01), precision="fp16")
    with pytest.raises(PlanError, match=r"needs the kernel round_halves"):
        el.bundle(model, tmp_path / "b", batch_size=2, target="c")


def test_every_kernel_has_a_function_or_a_reason_for_none():
    root = Path(__file__).parents[2]
    sources = "".join(path.read_text() for path in sorted((root / "kernels").rglob("*.*")))
    kernels = {*re.findall(r"^KERNEL (\w+)\(", sources, re.MULTILINE), "own_loss"}
    variants = {name for name in KERNELS if name.startswith(("stored_", "function_"))}  # of kernels without the prefix
    without = [name for names in WITHOUT.values() for name in names.split()]
    assert len(without) == len(set(without)) and not set(without) & set(KERNELS)
    assert kernels | variants == {*KERNELS, *without}
    guide = (root / "docs" / "guides" / "bundle.md").read_text()
    assert all(f"| {reason} |" in guide for reason in WITHOUT)


ZOO = (
    "resnet18_cifar", "mobilenet_v3_small", "efficientnet_b0", "ds_cnn", "ds_resnet", "bcresnet", "revnet38",
    "shufflenet_v2", "mobilenet_v2_split_cifar",
)  # fmt: skip


@pytest.mark.parametrize("name", ZOO)
def test_the_kernels_of_ready_made_networks_have_functions(name):
    model = el.Model(named_network(name), seed=0).compile(el.SGD(0.01, momentum=0.9), batchnorm="batch")
    plan = make_plan(replace(model.settings, batch_size=2, micro_batch=2), PLAIN, traits=PLAIN_TRAITS)
    for step in Tables(plan).steps:
        values_of(step, model.network)


def test_every_kernel_of_the_table_has_a_function():
    header = (RUNTIME / "c" / "kernels.h").read_text().partition("define EL_KERNELS")[2].partition("#define")[0]
    assert set(re.findall(r"KERNEL\((\w+)\)", header)) == set(KERNELS)


def exact_gradients(network: el.Network, weights, x, y) -> dict[str, np.ndarray]:
    """Gradients of the softmax cross-entropy by weight, all in float64."""
    exact = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    (first,), values = network.inputs, {}
    values[first] = x.astype(np.float64)

    def of(layer):
        return {name.partition("/")[2]: value for name, value in exact.items() if name.partition("/")[0] == layer}

    for name, node in network.nodes.items():
        values[name] = node.op.reference_forward([values[each] for each in node.inputs], of(name))
    last = next(reversed(network.nodes))
    scores = np.exp(values[last] - values[last].max(-1, keepdims=True))
    slopes, found = {last: (scores / scores.sum(-1, keepdims=True) - np.eye(scores.shape[-1])[y]) / len(y)}, {}
    for name, node in reversed(network.nodes.items()):
        below, own = node.op.reference_backward([values[each] for each in node.inputs], of(name), slopes[name])
        slopes |= dict(zip(node.inputs, below, strict=True))  # a chain: each output is read once
        found |= {f"{name}/{role}": value for role, value in own.items()}
    return found


@needs_compiler
def test_gradients_are_no_farther_from_the_exact_ones_than_those_of_opencl(tmp_path):
    """Sums in another order differ in the last bits; what a few steps make of that is no fault of the C kernels."""
    network = el.models.alexnet((67, 67, 3), alpha=0.125, classes=5, softmax=False, units=24, dropout=0.0)
    model = el.Model(network, seed=0).compile(el.SGD(RATE, momentum=0.9))
    x, y = examples(network, 2, 0)
    exact = exact_gradients(network, model.weights, x, y)
    el.bundle(model, tmp_path, batch_size=2, target="c")
    built = Built(tmp_path)
    built.check(built.open())
    built.step(x, y, RATE)
    (tmp_path / "state").write_bytes(built.save())
    built.close()
    with model.trainer(2) as trainer:
        trainer.learning_rate = RATE
        trainer.step(x, y)
        states = bundles.read_state(tmp_path / "state")[0], trainer.state()[0]
    for name, gradient in exact.items():
        rate = np.float64(np.float32(RATE))  # of the first step, the velocity is -rate times the gradient
        ours, theirs = (np.linalg.norm(state[f"optimizer/velocity/{name}"] / rate + gradient) for state in states)
        assert ours < max(2 * theirs, 1e-6 * np.linalg.norm(gradient)), name


@needs_compiler
def test_integers_amplify_the_last_bit_in_python_as_in_c(tmp_path):
    """Sums in another order differ in the last bit, and rounding to integers can turn this into a whole step: losses
    then differ by more than 1e-5, in C no more than in Python from weights that are one bit away."""
    settings = {"batchnorm": "batch", "precision": PER_CHANNEL}

    def losses(network, change=0):
        model = el.Model(network, seed=4).compile(el.Adam(RATE), **settings)
        if change:
            upwards = np.random.default_rng(change)
            model.weights = {
                name: np.nextafter(w, np.where(upwards.random(w.shape) < 0.5, -np.inf, np.inf).astype(np.float32))
                if name.endswith("kernel") else w
                for name, w in model.weights.items()
            }  # fmt: skip
        with model.trainer(6, 3) as trainer:
            return model, np.array([float(trainer.step(*examples(network, 6, n))["loss"]) for n in range(10)])

    network = separable_network()
    model, expected = losses(network)
    model = el.Model(network, seed=4).compile(el.Adam(RATE), **settings)
    el.bundle(model, tmp_path, batch_size=6, micro_batch=3, target="c")
    built = Built(tmp_path)
    built.check(built.open())
    ours = np.array([built.step(*examples(network, 6, n), RATE).loss for n in range(10)])
    built.close()
    nudged = max(np.max(np.abs(losses(network, change)[1] / expected - 1)) for change in (1, 2))
    assert nudged > 1e-5
    assert np.max(np.abs(ours / expected - 1)) < 3 * nudged


@needs_compiler
def test_the_process_takes_what_was_planned(tmp_path):
    """The example's memory at its most, by Linux: planned bytes, 10 MiB, and nothing else."""
    model = el.Model(named_network("ds_cnn"), seed=0).compile(el.SGD(RATE, momentum=0.9), batchnorm="batch")
    written = el.bundle(model, tmp_path, batch_size=32, target="c")
    report = """
    #include <stdio.h>
    #include <string.h>
    __attribute__((destructor)) static void report(void) {
      char line[256];
      FILE *file = fopen("/proc/self/status", "r");
      while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "VmHWM:", 6) == 0) fputs(line, stderr);
    }"""
    (tmp_path / "report.c").write_text(report)
    program, sources = tmp_path / "example", sorted(map(str, tmp_path.glob("*.c")))
    options = [*native.WARNINGS, "-O1", "-Werror", "-fPIC"]  # those of other tests, so that their objects serve
    subprocess.run([str(native.compiler()), *options, "-o", program, *sources, "-lm"], check=True)
    x, y = examples(model.network, 32, 0)
    (tmp_path / "data").write_bytes(x.tobytes() + y.tobytes())
    words = [program, tmp_path / "model.weights", tmp_path / "data", "1", str(RATE), tmp_path / "state"]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True, timeout=60)
    if not (found := re.search(r"VmHWM:\s+(\d+) kB", done.stderr)):
        pytest.skip("needs Linux's /proc/self/status")
    assert written.plan.peak_bytes > 10 << 20
    assert 1024 * int(found[1]) < written.plan.peak_bytes + (10 << 20)
