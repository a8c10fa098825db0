"""A pytest plugin for `make oclgrind`: which kernels the tests ran, of all there are.

    python -m pytest -p tests.oclgrind --smallest …     of tests/ops, only the tests that oclgrind.txt lists
    python -m pytest -p tests.oclgrind --choose …       choose them anew from the tests that are run

These reach every value of every macro of every kernel with the least work; `*` stands for the device. With them, a
kernel that didn't run is an error.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path

import pytest

from edgelearn.ops.constants import HEADERS
from edgelearn.runtime import kernels, list_devices

SMALLEST = Path(__file__).with_suffix(".txt")
NOT_SIMULATED = {  # instructions of matrix units, and of units for integers
    ("units.cl", "add_products_of_tiles"), ("units.cl", "add_products_of_warpgroups"),
    ("unit_peaks.cl", "repeat_products"), ("unit_peaks.cl", "repeat_products_of_warpgroups"),
    ("unit_peaks.cl", "repeat_quads"),
}  # fmt: skip
NUMBERS = ("OWN_A", "OWN_B", "ACTIVATION_A", "ACTIVATION_B")  # parameters of functions: any do
LEAST = 2e5  # bytes and operations: a test takes as long, however little it computes
RUN: set[tuple[str, str]] = set()
REACHED: dict[str, set[tuple]] = {}  # by test: (file, kernel), and with a macro and its value
WORK: dict[str, float] = {}  # by test: bytes and operations


def pytest_configure(config):
    """Oclgrind 21.10 knows no declarations of scopes, which LLVM makes of results that are structures."""
    if any("Oclgrind" in name for name in _devices()):
        llvm = ctypes.CDLL("libLLVM-14.so.1")  # Oclgrind has loaded it
        words = (ctypes.c_char_p * 2)(b"oclgrind", b"-enable-noalias-to-md-conversion=0")
        llvm.LLVMParseCommandLineOptions(2, words, None)


def all_kernels() -> set[tuple[str, str]]:
    """(file, kernel) of all kernels, those of a file's headers too."""
    found = set()
    for path in kernels.kernels_folder().glob("*.cl"):
        text = path.read_text()
        headers = (
            kernels.kernels_folder() / "include" / name
            for name in re.findall(r'^#include "(\w+\.h)"', text, re.MULTILINE)
            if name not in HEADERS
        )
        for each in (text, *(header.read_text() for header in headers)):
            found |= {(path.name, name) for name in re.findall(r"^KERNEL (\w+)", each, re.MULTILINE)}
    return found


@cache
def _devices() -> list[str]:
    """Names of devices in those of tests."""
    return [name for device in list_devices() for name in (device.id, device.id.replace(" ", "-"))]


def choose() -> list[str]:
    """Tests that reach all that any test reaches, with little work."""
    left, chosen = set().union(*REACHED.values()), []
    while left:
        best = max(REACHED, key=lambda test: len(REACHED[test] & left) / WORK[test])
        chosen.append(best)
        left -= REACHED[best]
    for test in sorted(chosen, key=WORK.__getitem__, reverse=True):
        others = set().union(*(REACHED[each] for each in chosen if each != test))
        if REACHED[test] <= others:
            chosen.remove(test)
    return sorted(chosen)


def pytest_addoption(parser):
    parser.addoption("--smallest", action="store_true", help="of tests/ops, only what oclgrind.txt lists")
    parser.addoption("--choose", action="store_true", help="write oclgrind.txt")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--smallest"):
        listed = set(SMALLEST.read_text().splitlines())

        def chosen(item):
            names = {item.nodeid.replace(device, "*", 1) for device in _devices()}
            return item.path.parent.name != "ops" or bool(names & listed)

        config.hook.pytest_deselected(items=[item for item in items if not chosen(item)])
        items[:] = [item for item in items if chosen(item)]


def pytest_runtest_logstart(nodeid):
    for name in _devices():
        nodeid = nodeid.replace(name, "*", 1)
    REACHED[nodeid], WORK[nodeid] = set(), LEAST


@pytest.fixture(autouse=True, scope="session")
def _kernels_are_noted():
    take = kernels.Kernels.kernel

    def noted(self, launch):
        name, test = (launch.source, launch.kernel), next(reversed(REACHED))
        RUN.add(name)
        REACHED[test] |= {name, *((*name, *macro) for macro in launch.macros if macro[0] not in NUMBERS)}
        WORK[test] += launch.flops + launch.nbytes
        return take(self, launch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels.Kernels, "kernel", noted)
        yield


def _missing() -> set[tuple[str, str]]:
    return all_kernels() - RUN - NOT_SIMULATED


def pytest_terminal_summary(terminalreporter, config):
    every = all_kernels()
    if not RUN:  # tests are run by other processes
        return
    terminalreporter.write_line(f"{len(every & RUN)} of {len(every)} kernels ran.")
    if config.getoption("--smallest"):
        terminalreporter.write_line(f"Not run: {', '.join(': '.join(each) for each in sorted(every - RUN))}")


def pytest_sessionfinish(session, exitstatus):
    if session.config.getoption("--choose"):
        SMALLEST.write_text("".join(f"{test}\n" for test in choose()))
    if session.config.getoption("--smallest") and exitstatus == 0 and RUN and _missing():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
