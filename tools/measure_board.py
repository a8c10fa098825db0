"""Measure what each C kernel takes in a microcontroller's program, and store it in edgelearn/bundles/board_sizes.json.

    python tools/measure_board.py

It compiles the runtime for a Cortex-M4 and links it with one kernel after the other. The linker leaves out what a
program doesn't call, so that the sections of several kernels are the union of each one's. Sections that the same
kernels need make a group; the file has the bytes of each group by parts of memory, and the groups of each kernel. Run
it again after a change of the C runtime. It needs gcc-arm-none-eabi, libnewlib-arm-none-eabi and make.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import edgelearn as el
from edgelearn import atomic
from edgelearn.bundles.functions import KERNELS
from edgelearn.bundles.memory_map import SIZES, VALUES, sections
from edgelearn.ops import Dense

GENERATED = ("model.o", "calls.o", "weights.o")  # whose bytes follow from the plan
OWN = (".bss.inputs", ".bss.targets")  # likewise
COMPILER = "arm-none-eabi-gcc"
CALLS = """
#include "calls.h"
static float arena[16];
const el_argument el_arguments[] = {{0, 0, 0}};
const el_call el_calls[] = {{%s, 0, 0}};
const uint8_t el_memory_is_constant[] = {0};
float *const el_memories[] = {arena};
"""


def main() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        flags, linking = _compile(folder)
        bases = {kernel: _linked(folder, flags, linking, kernel) for kernel in ("", *KERNELS)}
    users: dict[tuple[str, str], set[str]] = defaultdict(set)
    for kernel, found in bases.items():
        for section in found:
            users[section].add(kernel)
    groups: dict[frozenset[str], Counter[str]] = defaultdict(Counter)
    sizes = {section: parts for found in bases.values() for section, parts in found.items()}
    for section, kernels in users.items():
        groups[frozenset([""]) if "" in kernels else frozenset(kernels)].update(sizes[section])
    ordered = sorted(groups.items(), key=lambda item: (-len(item[0]), sorted(item[0])))
    numbers = {kernel: [i for i, (own, _) in enumerate(ordered) if kernel in own] for kernel in KERNELS}
    (runtime,) = (i for i, (own, _) in enumerate(ordered) if "" in own)
    version = subprocess.run([COMPILER, "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    record = {
        "compiler": f"{version}, -Os, Cortex-M4", "runtime": runtime,
        "groups": [dict(parts) for _, parts in ordered], "kernels": dict(sorted(numbers.items())),
    }  # fmt: skip
    text = json.dumps(record, indent=1)
    text = re.sub(r"([\[{])\n   *", r"\1", re.sub(r",\n   +", ", ", re.sub(r"\n  ([\]}])", r"\1", text)))
    atomic.write_bytes(SIZES, (text + "\n").encode())
    print(f"{len(KERNELS)} kernels in {len(ordered)} groups: {SIZES}")


def _compile(folder: Path) -> tuple[list[str], list[str]]:
    """Write a small bundle and compile all of it but its calls. Returns the options of compiler and linker."""
    network = el.Network("small", (16,))
    network.add("dense", Dense(16))
    model = el.Model(network, seed=0).compile(el.SGD(0.01))
    el.bundle(model, folder, batch_size=1, target="cortex-m")
    said = subprocess.run(["make", "-n", "-C", folder, "model.elf"], capture_output=True, text=True, check=True).stdout
    (line,) = (line for line in said.splitlines() if line.startswith(COMPILER))
    words = [word for word in line.split()[1:] if not word.endswith(".c") and word not in ("-o", "model.elf")]
    linking = [
        word for word in words if word.startswith(("-T", "-Wl", "-nostart", "--specs", "-lm")) or word == "board.ld"
    ]
    flags = [word for word in words if word not in linking]
    sources = [path.name for path in sorted(folder.glob("*.c")) if path.name != "calls.c"]
    subprocess.run([COMPILER, *flags, "-c", *sources], cwd=folder, check=True)
    return flags, linking


def _linked(folder: Path, flags: list[str], linking: list[str], kernel: str) -> dict[tuple[str, str], dict[str, int]]:
    """Bytes by part of each section of a program that calls `kernel`; without one, of the runtime alone."""
    (folder / "calls.c").write_text(CALLS % (f"el_{kernel}" if kernel else "0"))
    subprocess.run([COMPILER, *flags, "-c", "calls.c"], cwd=folder, check=True)
    objects = [path.name for path in sorted(folder.glob("*.o"))]
    machine = [flag for flag in flags if flag.startswith("-m")]
    command = [COMPILER, *machine, *linking[:-1], "-o", "model.elf", *objects, linking[-1]]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    found: dict[tuple[str, str], dict[str, int]] = {}
    for section in sections((folder / "model.map").read_text()):
        file = Path(section.file).name
        if file not in GENERATED and section.name not in OWN:
            parts = {section.part: section.nbytes}
            if section.name.startswith(".data"):
                parts[VALUES] = section.nbytes
            found[section.name, file] = dict(Counter(found.get((section.name, file), {})) + Counter(parts))
    return found


if __name__ == "__main__":
    main()
