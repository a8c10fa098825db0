"""A pytest plugin for `make oclgrind`: which kernels the tests ran, of all there are.

    python -m pytest -p tests.oclgrind --smallest …     only the tests that oclgrind.txt lists

These reach every value of every macro of every kernel with the least work; `*` stands for the device. With them, a
kernel that didn't run is an error.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from edgelearn.runtime import kernels, list_devices, source

SMALLEST = Path(__file__).with_suffix(".txt")
NOT_SIMULATED = {("units.cl", "add_products_of_tiles")}  # the instructions of matrix units
RUN: set[tuple[str, str]] = set()


def pytest_configure(config):
    """Oclgrind 21.10 knows no declarations of scopes, which LLVM makes of results that are structures."""
    llvm = ctypes.CDLL("libLLVM-14.so.1")
    words = (ctypes.c_char_p * 2)(b"oclgrind", b"-enable-noalias-to-md-conversion=0")
    llvm.LLVMParseCommandLineOptions(2, words, None)


def all_kernels() -> set[tuple[str, str]]:
    """(file, kernel) of all kernels, those of a file's headers too."""
    found = set()
    for path in source.folder().glob("*.cl"):
        text = path.read_text()
        headers = (
            source.folder() / "include" / name for name in re.findall(r'^#include "(\w+\.h)"', text, re.MULTILINE)
        )
        for each in (text, *(header.read_text() for header in headers)):
            found |= {(path.name, name) for name in re.findall(r"^KERNEL (\w+)", each, re.MULTILINE)}
    return found


def pytest_addoption(parser):
    parser.addoption("--smallest", action="store_true", help="only the tests that oclgrind.txt lists")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--smallest"):
        listed = set(SMALLEST.read_text().splitlines())
        devices = [name for device in list_devices() for name in (device.id, device.id.replace(" ", "-"))]

        def chosen(item):
            return any(item.nodeid.replace(device, "*", 1) in listed for device in devices)

        config.hook.pytest_deselected(items=[item for item in items if not chosen(item)])
        items[:] = [item for item in items if chosen(item)]


@pytest.fixture(autouse=True, scope="session")
def _kernels_are_noted():
    take = kernels.Kernels.kernel

    def noted(self, launch):
        RUN.add((launch.source, launch.kernel))
        return take(self, launch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels.Kernels, "kernel", noted)
        yield


def _missing() -> set[tuple[str, str]]:
    return all_kernels() - RUN - NOT_SIMULATED


def pytest_terminal_summary(terminalreporter, config):
    every = all_kernels()
    terminalreporter.write_line(f"{len(every & RUN)} of {len(every)} kernels ran.")
    if config.getoption("--smallest"):
        terminalreporter.write_line(f"Not run: {', '.join(': '.join(each) for each in sorted(every - RUN))}")


def pytest_sessionfinish(session, exitstatus):
    if session.config.getoption("--smallest") and exitstatus == 0 and _missing():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
