"""Try bundles out: compilers, sanitizers, valgrind, Oclgrind, damaged files, another processor, times of steps.

    python tools/try_bundles.py check              # gcc and clang without a warning; ASan, UBSan, valgrind, Oclgrind
    python tools/try_bundles.py damage --files 2000
    python tools/try_bundles.py aarch64            # cross-compiled, and emulated by QEMU: losses beside those here
    python tools/try_bundles.py steps --steps 30   # target opencl beside Python's session, in turn

Bundles: `c`, a small AlexNet (groups, response normalization, dropout); `int8`, the keyword network DS-CNN in int8, and
`opencl`, LeNet-5, small enough for Oclgrind.
Debian's packages: clang-16, libclang-rt-16-dev, valgrind, oclgrind, gcc-aarch64-linux-gnu, qemu-user-static.
What isn't installed is said and left out. The program ends with 1 if something was found.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import edgelearn as el
from edgelearn.bundles import NativeBundle
from edgelearn.bundles.native import opencl_library

BATCH, STEPS, RATE = 2, 2, 0.01
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off")
SANITIZERS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
BUNDLES = ("c", "int8", "opencl")
CODES = {4: "a damaged file", 5: "a file of another bundle"}
found: list[str] = []


def say(what: str, outcome: str, fine: bool = True) -> None:
    print(f"{what:48} {outcome}", flush=True)
    if not fine:
        found.append(what)


def model_of(name: str) -> el.Model:
    if name == "c":
        network = el.models.alexnet((67, 67, 3), alpha=0.125, classes=5, softmax=False, units=24)
        return el.Model(network, seed=1).compile(el.SGD(RATE, momentum=0.9))
    if name == "opencl":
        return el.Model(el.models.lenet5(softmax=False), seed=1).compile(el.SGD(RATE, momentum=0.9))
    model = el.Model(el.models.ds_cnn(), seed=1)
    return model.compile(el.SGD(RATE, momentum=0.9), batchnorm="moving", precision="int8")


def examples(model: el.Model, number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    x = rng.normal(size=(BATCH, *model.network.input_shape)).astype(np.float32)
    return x, rng.integers(0, model.network.output.shape[-1], BATCH).astype(np.int32)


def write(name: str, folder: Path) -> el.Model:
    """Write a bundle and a file of examples for its main.c."""
    model = model_of(name)
    el.bundle(model, folder, batch_size=BATCH, micro_batch=1, target="opencl" if name == "opencl" else "c")
    batches = [examples(model, number) for number in range(STEPS)]
    (folder / "data").write_bytes(b"".join(x.tobytes() + y.tobytes() for x, y in batches))
    return model


def build(folder: Path, compiler: str, *options: str) -> Path | None:
    """The example, or None if there was a warning."""
    program = folder / f"{Path(compiler).name}{''.join(o for o in options if o.startswith('-O'))}{len(options)}"
    words = [compiler, *STRICT, *options, "-o", program, *sorted(folder.glob("*.c")), "-lm", "-ldl"]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[:4000])
    return None if done.returncode else program


def run(folder: Path, *program: object, weights: str = "model.weights", state: Path | None = None, **variables: str):
    words = [*program, folder / weights, folder / "data", 1, RATE, folder / "state", *([state] if state else [])]
    library = opencl_library()
    own = (
        {
            "EDGELEARN_OPENCL": library,
            "LD_LIBRARY_PATH": str(Path(library).parent),
            "OCL_ICD_VENDORS": str(Path(library).parent),
        }
        if library and "oclgrind" not in str(program[0])
        else {}
    )
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=900, env=os.environ | own | variables
    )


def losses(done: subprocess.CompletedProcess) -> list[float]:
    return [float(line.split()[1]) for line in done.stdout.splitlines() if len(line.split()) == 3]


def difference(ours: list[float], theirs: list[float]) -> float:
    return float(np.max(np.abs(np.array(ours) - theirs) / np.abs(theirs))) if len(ours) == len(theirs) else np.inf


def python_losses(model: el.Model) -> list[float]:
    with model.trainer(BATCH, 1) as trainer:
        return [float(trainer.step(*examples(model, number))["loss"]) for number in range(STEPS)]


def check(folder: Path, name: str, options: argparse.Namespace) -> None:
    model = write(name, folder)
    # The remedy changes PoCL's memory in Python's process (runtime/driver.py); a C program has none.
    runs = name != "opencl" or not any("compiling for" in note for note in model.device.notes)
    if not runs:
        say(f"{name}: runs", "left out: PoCL's LLVM doesn't know this CPU, and only Python can tell it")
    expected = python_losses(model)
    for compiler in filter(shutil.which, ("gcc", "clang-16", "clang")):
        for level in ("-O0", "-O3"):
            program = build(folder, compiler, level)
            say(f"{name}: {compiler} {level}, no warning", "yes" if program else "no", program is not None)
            if program and runs:
                done = run(folder, program)
                off = difference(losses(done), expected)
                say(f"{name}: {compiler} {level}, losses beside Python's", f"{off:.0e} {done.stderr[:200]}", off < 1e-5)
        if runs:
            _sanitized(folder, name, compiler)
    if name != "opencl":
        _valgrind(folder, name)
    elif runs:
        say("opencl: valgrind", "left out: PoCL compiles kernels for instructions that valgrind doesn't have")
        _oclgrind(folder)


def _sanitized(folder: Path, name: str, compiler: str) -> None:
    program = build(folder, compiler, *SANITIZERS)
    # PoCL and its compiler keep memory until the process ends.
    leaks: dict[str, Any] = {"ASAN_OPTIONS": "detect_leaks=0"} if name == "opencl" else {}
    done = run(folder, program, **leaks) if program else None
    fine = done is not None and done.returncode == 0 and not done.stderr
    say(f"{name}: {compiler}, ASan and UBSan", "clean" if fine else f"{done and done.stderr[:2000]}", fine)


def _valgrind(folder: Path, name: str) -> None:
    program = build(folder, "gcc", "-O1", "-g")
    if not shutil.which("valgrind") or program is None:
        say(f"{name}: valgrind", "not installed")
        return
    done = run(folder, "valgrind", "-q", "--error-exitcode=99", "--leak-check=full", program)
    fine = done.returncode == 0 and "==" not in done.stderr
    say(f"{name}: valgrind", "clean" if fine else done.stderr[:2000], fine)


def _oclgrind(folder: Path) -> None:
    program = build(folder, "gcc", "-O1")
    if not shutil.which("oclgrind") or program is None:
        say("opencl: Oclgrind", "not installed")
        return
    # As in the Makefile: what Oclgrind 21.10 can't run
    settings = ("--data-races", "--local-mem-size", "65536", "--build-options", "-Drestrict= -DFLOOR=floor")
    done = run(folder, "oclgrind", *settings, program, EDGELEARN_DEVICE="Oclgrind")
    fine = done.returncode == 0 and not done.stderr.strip() and len(losses(done)) == STEPS
    say("opencl: Oclgrind, races and bounds", "clean" if fine else (done.stderr or done.stdout)[:2000], fine)


def damage(folder: Path, name: str, options: argparse.Namespace) -> None:
    """Half of the files are states, half weights; half are cut off, half have a bit changed. A process each, under ASan
    and UBSan."""
    write(name, folder)
    program = build(folder, "gcc", *SANITIZERS)
    assert program is not None and run(folder, program).returncode == 0
    contents = {"weights": (folder / "model.weights").read_bytes(), "state": (folder / "state").read_bytes()}
    draw, outcomes, begun = random.Random(0), Counter(), time.perf_counter()
    for number in range(options.files):
        kind = "state" if number % 2 else "weights"
        content, at = contents[kind], draw.randrange(len(contents[kind]))
        changed = content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]
        (folder / "damaged").write_bytes(content[:at] if draw.random() < 0.5 else changed)
        given: dict[str, Any] = {"weights": "damaged"} if kind == "weights" else {"state": folder / "damaged"}
        done = run(folder, program, **given)
        if done.returncode in CODES and "Sanitizer" not in done.stderr and "runtime error" not in done.stderr:
            outcomes[CODES[done.returncode]] += 1
        else:
            say(f"{name}: damaged {kind} {number}, byte {at}", f"{done.returncode} {done.stderr[:500]}", fine=False)
    counts = ", ".join(f"{count} {text}" for text, count in outcomes.items())
    say(f"{name}: {options.files} damaged files", f"{counts}, {time.perf_counter() - begun:.0f} s")


def aarch64(folder: Path, name: str, options: argparse.Namespace) -> None:
    write(name, folder)
    here, there = build(folder, "gcc", "-O2"), None
    if not shutil.which("aarch64-linux-gnu-gcc"):
        say(f"{name}: aarch64", "aarch64-linux-gnu-gcc isn't installed")
        return
    there = build(folder, "aarch64-linux-gnu-gcc", "-O2", *(() if name == "opencl" else ("-static",)))
    say(f"{name}: built for aarch64, no warning", "yes" if there else "no", there is not None)
    if name == "opencl":
        say("opencl: aarch64", "not run: there is no driver for it here")
    elif shutil.which("qemu-aarch64-static") and here and there:
        done = run(folder, "qemu-aarch64-static", there)
        off = difference(losses(done), losses(run(folder, here)))
        say(f"{name}: losses under qemu-aarch64 beside x86-64's", f"{off:.0e} {done.stderr[:500]}", off < 1e-5)


def timed() -> dict[str, el.Model]:
    """Trainings whose steps are timed, at batch 1: MobileNet V1, all layers, and its last block and classifier; the
    keyword network DS-CNN."""
    found = {}
    for text, patterns in (("all layers", ("*",)), ("the last block", ("conv_dw_13*", "conv_pw_13*", "dense*"))):
        network = el.models.mobilenet_v1(softmax=False)
        network.freeze().unfreeze(*patterns)
        found[f"MobileNet V1, {text}"] = el.Model(network, seed=0)
    found["DS-CNN, all layers"] = el.Model(el.models.ds_cnn(), seed=0)
    return {name: model.compile(el.SGD(1e-4, momentum=0.9), batchnorm="moving") for name, model in found.items()}


def steps(folder: Path, options: argparse.Namespace) -> None:
    """Time rounds of steps of a bundle and of Python's session, in turn. A round's ratio is the median of its pairs."""
    clock = time.process_time if options.processor else time.perf_counter
    for number, (name, model) in enumerate(timed().items()):
        network, rng = model.network, np.random.default_rng(0)
        x, y = rng.normal(size=(1, *network.input_shape)).astype(np.float32), np.array([3], np.int32)
        own = folder / str(number)
        el.bundle(model, own, batch_size=1)
        with NativeBundle(own, model.device.id) as native, model.trainer(1) as trainer:
            parts = list(trainer.micro_batches(*trainer._mini_batch(x, y, None), [np.arange(1)]))
            both = partial(native.train_step, x, y, 1e-4), partial(trainer.session.train, parts, 1, 1e-4, 1)
            for step in (*both, *both):
                step()
            times = np.zeros((options.rounds, options.steps, 2))
            for step, row in enumerate(times.reshape(-1, 2)):
                for which in (0, 1) if step % 2 else (1, 0):  # neither always finds the other's caches
                    begun = clock()
                    both[which]()
                    row[which] = clock() - begun
        ratios = np.median(times[..., 0] / times[..., 1], 1)
        bundle, python = 1e3 * np.median(times, (0, 1))
        say(
            f"{name}, batch 1",
            f"bundle {bundle:.2f} ms, Session.train {python:.2f} ms; of {options.rounds} rounds the median ratio "
            f"{np.median(ratios):.3f}, least {ratios.min():.3f}, largest {ratios.max():.3f}",
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("check", "damage", "aarch64", "steps"))
    parser.add_argument("--bundles", nargs="+", choices=BUNDLES, default=BUNDLES)
    parser.add_argument("--files", type=int, default=2000, help="damaged files of each bundle (default 2000)")
    parser.add_argument("--steps", type=int, default=30, help="timed steps of a round (default 30)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of timed steps (default 7)")
    parser.add_argument("--processor", action="store_true", help="processor time of steps: others disturb it less")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edgelearn-bundles-") as folder:
        if options.what == "steps":
            steps(Path(folder), options)
        for name in options.bundles if options.what != "steps" else ():
            if options.what == "damage" and name == "opencl":
                continue  # the same reader of files, with a driver around it
            part = Path(folder) / name
            {"check": check, "damage": damage, "aarch64": aarch64}[options.what](part, name, options)
    print("Found: " + ("nothing." if not found else "; ".join(found)))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
