"""The process one contender runs in: it reads requests from a pipe and answers them, JSON both ways.

Its arguments: the pipe's file descriptor, the contender as `module:Class`, the cores it may use as a JSON list, the
id of the OpenCL device.
The other end is remote.py.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from . import machine
from .workloads import Workload

PROBED_STEPS = 3
PROBED_NUMBERS = 4


class _Session:
    """One contender, and the step it was asked to prepare."""

    def __init__(self, target: str, cores: int, device: str) -> None:
        begin = time.perf_counter()
        module, _, name = target.partition(":")
        self.contender = getattr(importlib.import_module(module), name)(cores, device)
        self.import_seconds = time.perf_counter() - begin
        machine.release_free_memory()
        self.after_imports = machine.resident_bytes()
        self.start_peak = 0
        self.peak_restarted = False
        self.step: Callable[[], Any] | None = None

    def hello(self) -> dict[str, Any]:
        return {"import_seconds": self.import_seconds}

    def variants(self, workload: dict[str, Any]) -> list[str]:
        return self.contender.variants(Workload(**workload))

    def prepare(self, workload: dict[str, Any], variant: str) -> dict[str, Any]:
        """Make the step and take it a few times; what it computed is the probe. From then on only the memory of steps
        counts: what the numbers were made in, and compilers, are gone."""
        begin = time.perf_counter()
        self.step = self.contender.prepare(Workload(**workload), variant)
        probe = _numbers(self.step())
        first_step_seconds = time.perf_counter() - begin
        for _ in range(PROBED_STEPS - 1):
            probe += _numbers(self.step())
        machine.release_free_memory()
        self.start_peak = machine.peak_resident_bytes()
        self.peak_restarted = machine.restart_peak()
        return {"first_step_seconds": first_step_seconds, "probe": probe}

    def measure(self, seconds: float) -> dict[str, Any]:
        """One untimed step, then timed ones for `seconds`, one at least. CPU seconds are those of all threads."""
        cpu = time.process_time()
        self.step()
        times = []
        begin = before = time.perf_counter()
        while not times or before - begin < seconds:
            result = self.step()
            after = time.perf_counter()
            times.append(after - before)
            before = after
        _numbers(result)
        return {"times": times, "cpu_seconds": time.process_time() - cpu}

    def memory(self) -> dict[str, int | None]:
        peak = machine.peak_resident_bytes() if self.peak_restarted else None
        return {"after_imports": self.after_imports, "start": self.start_peak, "peak": peak}


def _numbers(result: Any) -> list[float]:
    """What a step returned by which to compare it: what it says when it is called, else the first few of its numbers.
    Raises ArithmeticError unless they are finite."""
    if callable(result):
        numbers = result()
    else:
        numbers = [] if result is None else [float(x) for x in np.ravel(np.asarray(result))[:PROBED_NUMBERS]]
    if not all(map(math.isfinite, numbers)):
        raise ArithmeticError(f"The step computes NaN or infinity: {numbers}")
    return numbers


def _attempt(work: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    try:
        return {"ok": work(*arguments)}
    except Exception:
        return {"error": traceback.format_exc()}


def main() -> None:
    """Serve until the other end closes the pipe."""
    pipe = Connection(int(sys.argv[1]))
    cores = json.loads(sys.argv[3])
    os.sched_setaffinity(0, cores)
    session = None

    def start() -> dict[str, Any]:
        nonlocal session
        session = _Session(sys.argv[2], len(cores), sys.argv[4])
        return session.hello()

    answer = _attempt(start)
    while True:
        try:
            pipe.send_bytes(json.dumps(answer).encode())
            request, *arguments = json.loads(pipe.recv_bytes())
        except (EOFError, BrokenPipeError, ConnectionResetError):
            break
        answer = _attempt(getattr(session, request), *arguments)
    # Frameworks leave threads behind that can hang or crash an orderly exit; nothing here needs one.
    os._exit(0)
