"""Serial C of a bundle, target c, compiled here: a contender of `edgelearn bench`, and a training step layer by layer
beside the plan on an OpenCL device."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from ctypes import c_uint8, c_uint32
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from edgelearn.compile import make_plan
from edgelearn.errors import DeviceError
from edgelearn.lab.bench.engine import make_request
from edgelearn.lab.bench.report import SEVERAL, LayerTime
from edgelearn.lab.bench.workloads import FULL, OpProblem, Workload, make_problem
from edgelearn.lab.profile.roofline import time_launches
from edgelearn.runtime import choose_device

from .native import NativeBundle, compiler
from .tables import PARTS, Tables
from .write import write_bundle


class _Span(ctypes.Structure):
    """el_span of plan.h."""

    _fields_ = [("first", c_uint32), ("count", c_uint32)]


class _Program(ctypes.Structure):
    """el_program of plan.h."""

    _fields_ = [
        ("trains", c_uint8), ("ranges", c_uint8), ("first", c_uint8), ("examples", c_uint32),
        *((part, _Span) for part in PARTS),
    ]  # fmt: skip


class LayerTimer:
    """Times of layers, in a worker process; `device`: id of the OpenCL device."""

    def __init__(self, device: str) -> None:
        self.device = choose_device(device).device

    def times(self, workload: dict[str, Any], rounds: int) -> list[dict[str, Any]]:
        """The times of a training step, medians of `rounds`, as JSON values."""
        return [asdict(each) for each in self._times(Workload(**workload), rounds)]

    def _times(self, workload: Workload, rounds: int) -> list[LayerTime]:
        request = make_request(workload, workload.micro_batch)
        (timing,) = time_launches([make_plan(request, self.device)], self.device, rounds)
        on_device = _sums([(each.launch.layer, each.median) for each in timing.launches])
        problem = make_problem(workload)
        assert not isinstance(problem, OpProblem)
        with TemporaryDirectory(prefix="edgelearn-layers-") as folder:
            written = write_bundle(request, problem.weights, folder, "c")
            bundle = NativeBundle(folder)
        bundle.train_step(problem.inputs, problem.labels.astype(np.int32), workload.learning_rate)
        serial = _sums(_time_calls(bundle, Tables(written.plan), rounds))
        names = dict.fromkeys([*(node for node in request.network.nodes), SEVERAL])
        return [
            LayerTime(name, serial.get(name, 0.0), on_device.get(name, 0.0))
            for name in names
            if name in serial or name in on_device
        ]


def _time_calls(bundle: NativeBundle, tables: Tables, rounds: int) -> list[tuple[str, float]]:
    """(layer, median seconds) of each call of a step, of as many steps as `rounds`, in their order."""
    library = bundle.library
    programs = (_Program * len(tables.lists)).in_dll(library, "el_programs")
    program = next(each for each in programs if each.trains and each.first)
    spans = [getattr(program, part) for part in PARTS[1:]]
    places = [place for span in spans for place in range(span.first, span.first + span.count)]
    numbers = (ctypes.c_uint16 * (max(places) + 1)).in_dll(library, "el_lists")
    run = library.el_device_run
    run.argtypes = [_Span]
    times = np.zeros((rounds, len(places)))
    for taken in times:
        for i, place in enumerate(places):
            begin = time.perf_counter()
            run(_Span(place, 1))
            taken[i] = time.perf_counter() - begin
    medians = np.median(times, 0).tolist()
    return [(tables.steps[numbers[place]].launch.layer, s) for place, s in zip(places, medians, strict=True)]


def _sums(times: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Seconds by layer."""
    sums: dict[str, float] = {}
    for layer, seconds in times:
        sums[layer or SEVERAL] = sums.get(layer or SEVERAL, 0.0) + seconds
    return sums


class Serial:
    """One variant, `gcc -O3` or whatever the compiler is called: plain loops on one core, whatever cores there are."""

    name = "serial"

    def __init__(self, cores: int, device: str) -> None:
        if compiler() is None:
            raise DeviceError("The serial contender is compiled by a C compiler: install gcc or clang.")

    def variants(self, workload: Workload) -> list[str]:
        trains = workload.trains and not workload.op and workload.compute == FULL
        return [f"{Path(str(compiler())).name} -O3"] if trains else []

    def prepare(self, workload: Workload, variant: str) -> Callable[[], Any]:
        problem = make_problem(workload)
        assert not isinstance(problem, OpProblem)
        with TemporaryDirectory(prefix="edgelearn-serial-") as folder:  # what is loaded needs no file any more
            write_bundle(make_request(workload, workload.micro_batch), problem.weights, folder, "c")
            bundle = NativeBundle(folder)
        labels = problem.labels.astype(np.int32)
        return lambda: bundle.train_step(problem.inputs, labels, workload.learning_rate)[0]
