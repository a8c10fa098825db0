"""Make, train, use and delete models one after another: memory must not grow with their number.

    python -m tests.torture.many_models MODELS SECONDS [WARM] [WAY]

makes at most so many, for at most so long, and prints a line of JSON. WAYS: each is deleted before the next one is
made, or its name is given to the next one, so that two are alive for a moment.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Generator
from functools import partial
from pathlib import Path

from .attacks import ROOT, Attack, Outcome, environment

WARM = 50  # models before memory is counted
MOST = 10 << 10  # bytes that the process may grow by for each of the others
SLACK = 1 << 20  # bytes that malloc may take for all of them
WAYS = ("deleted", "renamed")


def attacks(options: Namespace) -> list[Attack]:
    """`options.models` models in each of the WAYS."""
    left_out = "" if countable() else "memory is counted by glibc's mallinfo2 and Linux's /proc"
    return [Attack(f"models, {way}", partial(steps, way, options.models), left_out) for way in WAYS]


def countable() -> bool:
    """True where memory can be counted: with glibc's mallinfo2 and Linux's /proc."""
    return os.path.exists("/proc/self/statm") and hasattr(ctypes.CDLL(None), "mallinfo2")


def steps(way: str, models: int, outcome: Outcome, deadline: float) -> Generator[None]:
    """Make `models` models in one process, or as many as there is time for."""
    if outcome.attacks < models:
        found = measure(models, deadline - time.monotonic(), way=way)
        counted = max(1, found["models"] - WARM)
        grown = found["resident"] / counted / 1024
        outcome.attacks, outcome.ends, outcome.most = found["models"], {"used": found["models"]}, {"KiB each": grown}
        if found["models"] > WARM and found["resident"] > MOST * counted + SLACK:
            outcome.failures.append(f"{found['models']} models: {grown:.1f} KiB each after the first {WARM}")
        yield


def measure(models: int, seconds: float, warm: int = WARM, way: str = WAYS[0]) -> dict[str, int]:
    """Growth in bytes after the first `warm` models: `resident` memory, and what is `allocated` by C's malloc, which
    Python's objects are too here. Also the number of `models`."""
    with tempfile.TemporaryDirectory() as folder:
        command = (sys.executable, "-m", "tests.torture.many_models", str(models), str(seconds), str(warm), way)
        folders = {f"EDGELEARN_{name}": str(Path(folder, name)) for name in ("PROGRAMS", "TUNED")}
        own = environment(PYTHONMALLOC="malloc", **folders)
        done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-600:]
    return json.loads(done.stdout)


class _Heap(ctypes.Structure):
    """Figures of glibc's mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def _memory() -> dict[str, int]:
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _Heap
    gc.collect()
    heap = library.mallinfo2()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    return {"resident": resident, "allocated": heap.uordblks + heap.hblkhd}


def main(models: int, seconds: float, warm: int = WARM, way: str = WAYS[0]) -> None:
    import edgelearn as el
    from tests.train.toys import examples, frozen_stem

    (x, y), end, before = examples(10), time.monotonic() + seconds, _memory()
    number = 0
    while number < models and time.monotonic() < end:
        model = el.Model(frozen_stem()).compile(el.Adam(0.01))
        model.fit(x, y, 10, verbose=0)
        model.predict(x)
        if way == "deleted":
            del model
        number += 1
        if number == warm:
            before = _memory()
    print(json.dumps({"models": number} | {name: size - before[name] for name, size in _memory().items()}))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), *map(int, sys.argv[3:4]), *sys.argv[4:])
