"""A contender of `edgelearn bench`: the plan of a step as serial C, a bundle's target c, compiled here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from edgelearn.errors import DeviceError
from edgelearn.lab.bench.engine import make_request
from edgelearn.lab.bench.workloads import FULL, OpProblem, Workload, make_problem

from .native import NativeBundle, compiler
from .write import write_bundle


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
