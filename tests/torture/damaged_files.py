"""Read damaged files of every format in `formats`: no traceback, no crash, no hang, no memory without bounds.

A format is attacked in a process of its own, which reports each attack in a line; a process that says nothing for
LONGEST seconds is ended, and another goes on behind the attack at which it hung.

    python -m tests.torture.damaged_files NAME SEED FIRST LAST     attack, and print a line of JSON for each attack
    python -m tests.torture.damaged_files NAME SEED NUMBER         one attack, with the traceback of what breaks
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random

from edgelearn.child import Child
from edgelearn.errors import EdgelearnError

from .attacks import FileFormat, Outcome, environment
from .formats import FORMATS
from .mutations import damage_bytes

LONGEST = 20.0  # seconds of an attack
START = 180.0  # seconds until a process has started
MOST = 220 << 20  # bytes that reading one file may take
CEILING = 3 << 30  # bytes that the process gets, so that the machine survives
COMMAND = ("-m", "tests.torture.damaged_files")


@dataclass
class Damaged(Outcome):
    """Of these were `read` and `refused`; seconds of the `slowest`, and bytes of the `largest`."""

    read: int = 0
    refused: int = 0
    slowest: float = 0.0
    largest: int = 0


def damaged(file_format: FileFormat, good: bytes, seed: int, number: int) -> bytes:
    """The damaged file of an attack; it depends on the format's name, the seed and the number alone."""
    rng = Random(f"{file_format.name} {seed} {number}")
    damage = file_format.damage if file_format.damage and rng.random() < 0.5 else damage_bytes
    return damage(good, rng)


def attack(file_format: FileFormat, folder: Path, seed: int, first: int, last: int) -> Iterator[dict]:
    """Yield what came of each attack: `result` is "read", "refused" or what broke."""
    path = file_format.make(folder)
    good = path.read_bytes()
    file_format.read(path)
    file_format.read(path)  # now everything is imported, and memory says something
    for number in range(first, last):
        path.write_bytes(damaged(file_format, good, seed, number))
        before, start = _resident(), time.perf_counter()
        result = _result(file_format, path)
        yield {"number": number, "result": result, "seconds": time.perf_counter() - start, "bytes": _growth(before)}


def run(
    file_format: FileFormat, seed: int, attacks: int, deadline: float = float("inf"), outcome: Damaged | None = None
) -> Damaged:
    """Attack a format `attacks` times, or until the clock `time.monotonic()` reaches `deadline`. `outcome`: what an
    earlier run came to; this one goes on behind it."""
    outcome = outcome or Damaged(file_format.name)
    while outcome.attacks < attacks and time.monotonic() < deadline:
        before = outcome.attacks
        _one_process(file_format, seed, attacks, deadline, outcome)
        if outcome.attacks == before:  # it didn't even start
            break
    return outcome


def missing(file_format: FileFormat) -> list[str]:
    """Packages that the format needs and that are not installed."""
    return [name for name in file_format.needs if find_spec(name) is None]


def _one_process(file_format: FileFormat, seed: int, attacks: int, deadline: float, outcome: Damaged) -> None:
    numbers = (str(seed), str(outcome.attacks), str(attacks))
    with Child(*COMMAND, file_format.name, *numbers, environment=environment(EDGELEARN_DATA="")) as child:
        patience = START
        while time.monotonic() < deadline:
            with child.limited(clock=patience):
                line = child.answers.readline()
            if not line:
                break
            patience = LONGEST
            count(outcome, json.loads(line))
        else:
            return
        if (failure := child.failure()) and outcome.attacks < attacks:
            outcome.failures.append(f"attack {outcome.attacks}: {failure[:200]}")
            outcome.attacks += 1


def count(outcome: Damaged, report: dict) -> None:
    """Add what an attack reported to the outcome."""
    outcome.attacks = report["number"] + 1
    outcome.slowest, outcome.largest = max(outcome.slowest, report["seconds"]), max(outcome.largest, report["bytes"])
    outcome.read += report["result"] == "read"
    outcome.refused += report["result"] == "refused"
    problems = [] if report["result"] in ("read", "refused") else [report["result"]]
    if report["seconds"] > LONGEST:
        problems.append(f"took {report['seconds']:.0f} s")
    if report["bytes"] > MOST:
        problems.append(f"took {report['bytes'] / 1e9:.1f} GB of memory")
    outcome.failures += [f"attack {report['number']}: {problem}" for problem in problems]


def _result(file_format: FileFormat, path: Path) -> str:
    try:
        file_format.read(path)
    except EdgelearnError as error:
        return "refused" if str(error) else f"{type(error).__name__} without a message"
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {error!s:.100}"
    return "read"


def _resident() -> dict[int, int]:
    """Bytes of memory of this process and of those that it started; their peaks are measured anew from here."""
    found = {}
    for number in _processes():
        with suppress(OSError):
            Path(f"/proc/{number}/clear_refs").write_text("5")
        found[number] = _status("VmRSS", number)
    return found


def _growth(before: dict[int, int]) -> int:
    """Bytes by which these processes grew at most, and those that were started since take."""
    return sum(max(0, _status("VmHWM", number) - before.get(number, 0)) for number in _processes())


def _processes() -> list[int]:
    import psutil

    return [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]


def _status(name: str, process: int | str = "self") -> int:
    """Bytes in a line of a process's status; 0 for one that has ended."""
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return int((text.partition(f"{name}:")[2].split(maxsplit=1) or ["0"])[0]) << 10


def _limit_memory() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (_status("VmData") + CEILING,) * 2)


def main(name: str, seed: int, first: int, last: int | None = None) -> None:
    (file_format,) = (each for each in FORMATS if each.name == name)
    with tempfile.TemporaryDirectory() as folder:
        if last is None:
            path = file_format.make(Path(folder))
            path.write_bytes(damaged(file_format, path.read_bytes(), seed, first))
            print(file_format.read(path))
            return
        if sys.platform == "linux":
            _limit_memory()
        for report in attack(file_format, Path(folder), seed, first, last):
            print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
