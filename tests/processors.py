"""Run tests as on an older processor: PoCL compiles for it, and links the built-in functions that it would have there.

    python -m tests.processors                              every processor below, the tests TESTS
    python -m tests.processors x86-64-v3 -- tests/ops -x    one of them; what follows is pytest's
    python -m tests.processors -- --smallest                of tests/ops, what reaches each value of each macro

A stand-in is a copy of the packages pyopencl and PoCL in `build/processors`, whose libraries of built-in functions are
all that of the older processor. EDGELEARN_POCL_CPU names it to the driver's remedy (edgelearn/runtime/driver.py).
NumPy and the compiled parts of Python stay what they are.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from edgelearn.runtime import driver

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pyopencl", "pocl_binary_distribution")
LIBRARIES = "pocl_binary_distribution/.libs/share/pocl"
TESTS = (
    "tests/ops", "tests/runtime", "tests/cli/test_output_of_compilers.py", "tests/compile/test_networks.py",
    "tests/compile/test_integer_steps.py", "tests/compile/test_half_steps.py",
    "tests/compile/test_rematerialiser.py",
)  # fmt: skip


@dataclass(frozen=True)
class Processor:
    """An older processor.

    Arguments:
    - `name`: how users call its kind.
    - `cpu`: LLVM's name of it.
    - `library`: PoCL's name of the built-in functions for it.
    - `flags`: what the machine that stands in must have, as /proc/cpuinfo names it.
    """

    name: str
    cpu: str
    library: str
    flags: frozenset[str]


PROCESSORS = (
    Processor("x86-64-v3", "haswell", "avx2", frozenset({"avx2", "fma", "bmi2"})),
    Processor("avx", "sandybridge", "avx", frozenset({"avx"})),
    Processor("x86-64-v2", "nehalem", "sse41", frozenset({"sse4_2", "popcnt"})),
)


def stand_in(processor: Processor, folder: Path) -> dict[str, str]:
    """Make the packages of a stand-in in `folder`; return the environment variables of processes that use it."""
    shutil.rmtree(folder, ignore_errors=True)
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise SystemExit(f"{package} isn't installed: the stand-ins need PoCL from the package index.")
        shutil.copytree(Path(spec.origin).parent, folder / package, copy_function=_link)
    libraries = list((folder / LIBRARIES).glob("kernel-*.bc"))
    content = next(file.read_bytes() for file in libraries if file.stem.endswith(f"-{processor.library}"))
    for file in libraries:
        file.unlink()  # a link to the installed one
        file.write_bytes(content)
    cache = folder / "cache"
    cache.mkdir()
    paths = (str(folder), str(ROOT), os.environ.get("PYTHONPATH", ""))
    return {
        driver.CPU: processor.cpu,
        "POCL_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def main(words: list[str]) -> int:
    named, _, arguments = " ".join(words).partition("--")
    chosen = [processor for processor in PROCESSORS if not named.split() or processor.name in named.split()]
    if unknown := set(named.split()) - {processor.name for processor in PROCESSORS}:
        raise SystemExit(f"Unknown: {', '.join(unknown)}. There are: {', '.join(p.name for p in PROCESSORS)}.")
    options = arguments.split()
    tests = () if any(not option.startswith("-") and Path(option).exists() for option in options) else TESTS
    results = {}
    for processor in chosen:
        if missing := processor.flags - driver.cpu_flags():
            print(f"{processor.name}: this machine can't stand in for it, it lacks {', '.join(sorted(missing))}")
            continue
        print(f"== {processor.name}: {processor.cpu}", flush=True)
        environment = stand_in(processor, ROOT / "build" / "processors" / processor.name)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.oclgrind", *options, *tests]
        results[processor.name] = subprocess.run(command, env=os.environ | environment, cwd=ROOT).returncode
    for name, code in results.items():
        print(f"{name}: {'passed' if code == 0 else f'failed, pytest ended with {code}'}")
    return max(results.values(), default=1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
