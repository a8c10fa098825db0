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
from argparse import Namespace
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random

from edgelearn.child import Child
from edgelearn.errors import EdgelearnError

from .attacks import Attack, FileFormat, Outcome, environment
from .formats import FORMATS
from .mutations import damage_bytes

LONGEST = 20.0  # seconds of an attack
START = 180.0  # seconds until a process has started
MOST = 220 << 20  # bytes that reading one file may take
CEILING = 3 << 30  # bytes that the process gets, so that the machine survives
COMMAND = ("-m", "tests.torture.damaged_files")


def attacks(options: Namespace) -> list[Attack]:
    """`options.files` attacks on each format."""
    return [
        Attack(f"damaged {each.name}", partial(steps, each, options.seed, options.files), missing(each))
        for each in FORMATS
    ]


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


def missing(file_format: FileFormat) -> str:
    """The packages that the format needs and that are not installed, as a sentence; "" if there are none."""
    names = [name for name in file_format.needs if find_spec(name) is None]
    return f"{', '.join(names)} isn't installed" if names else ""


def steps(file_format: FileFormat, seed: int, count: int, outcome: Outcome, deadline: float) -> Generator[None]:
    """`count` attacks on a format, in a process that reports each of them, or in several where it ends."""
    before = -1
    while before < outcome.attacks < count:  # or it didn't even start
        before, patience = outcome.attacks, START
        numbers = (str(seed), str(before), str(count))
        with Child(*COMMAND, file_format.name, *numbers, environment=environment(EDGELEARN_DATA="")) as child:
            while True:
                with child.limited(clock=patience):
                    line = child.answers.readline()
                if not line:
                    break
                patience = LONGEST
                note(outcome, json.loads(line))
                yield
            if (failure := child.failure()) and outcome.attacks < count:
                outcome.note("that ended the process", f"attack {outcome.attacks}: {failure[:200]}")
                yield


def note(outcome: Outcome, report: dict) -> None:
    """Add what an attack reported to the outcome."""
    broke = report["result"] not in ("read", "refused")
    problems = [report["result"]] if broke else []
    if report["seconds"] > LONGEST:
        problems.append(f"took {report['seconds']:.0f} s")
    if report["bytes"] > MOST:
        problems.append(f"took {report['bytes'] / 1e9:.1f} GB of memory")
    problem = f"attack {report['number']}: {'; '.join(problems)}" if problems else ""
    end = "that broke it" if broke else report["result"]
    outcome.note(end, problem, seconds=report["seconds"], MiB=report["bytes"] / 2**20)


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
