"""Contenders: the protocol that each follows, the registry of those that are known, and their worker processes."""

from __future__ import annotations

import importlib
import importlib.util
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, cast

import numpy as np

from edgelearn.device import Device
from edgelearn.extensions import check_name
from edgelearn.lab.measure import PeakMemory, peak_resident_bytes, release_free_memory, restart_peak, sample

from .workloads import Workload

SUBJECT = "edgelearn"  # all other contenders are its peers


class Contender(Protocol):
    """A framework that can do workloads; it lives in a worker process.

    Arguments:
    - `cores`: how many processor cores it may use.
    - `device`: id of the OpenCL device, which contenders that compute on processor cores ignore.
    """

    name: str

    def __init__(self, cores: int, device: str) -> None: ...

    def variants(self, workload: Workload) -> list[str]:
        """The ways this contender can do `workload` in its type; empty if it can't."""
        ...

    def prepare(self, workload: Workload, variant: str) -> Callable[[], Any]:
        """Prepare everything up to the first step, and return the step, which ends when its work is done.

        The inputs may already lie where the step wants them. The step returns the loss before the update
        (or the logits, for `forward`), so that contenders can be compared; for a single op a function that returns the
        digest of all its results, which isn't timed.
        """
        ...


@dataclass(frozen=True)
class Entry:
    """A contender by name.

    - `target`: "module:Class", imported in the worker only.
    - `requires`: distributions by the name of the module they bring.
    - `environments`: variables that a worker is started with, by label; every variant is measured in each of them.
    - `opencl`: computes on the chosen OpenCL device; others compute on processor cores.
    - `cuda`: computes on NVIDIA's GPUs, too.
    - `asked`: takes part only if it is named.
    """

    name: str
    target: str
    requires: Mapping[str, str] = field(default_factory=dict)
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: {"": {}})
    opencl: bool = False
    cuda: bool = False
    asked: bool = False

    def missing(self) -> list[str]:
        """The distributions this contender needs that aren't installed."""
        return [dist for module, dist in self.requires.items() if importlib.util.find_spec(module) is None]

    def available(self) -> bool:
        """True if everything this contender needs is installed. Imports nothing."""
        return not self.missing()


# glibc returns large blocks to the system at every free and clears them again at the next allocation. A training
# step allocates its activations anew each time, so the default costs PyTorch a factor at larger batches.
_GIB = 2**30
TUNED_MALLOC = {"GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={4 * _GIB}:glibc.malloc.trim_threshold={4 * _GIB}"}

_TORCH = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # no pool of compiler processes next to the worker
_KERAS = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}

CONTENDERS = (
    Entry(SUBJECT, "edgelearn.lab.bench.engine:Engine", {"pyopencl": "pyopencl"}, opencl=True),
    Entry(
        "torch", "edgelearn.lab.bench.torch_peer:TorchPeer", {"torch": "torch"},
        {"": _TORCH, "tuned malloc": _TORCH | TUNED_MALLOC}, cuda=True,
    ),
    Entry(
        "keras", "edgelearn.lab.bench.keras_peer:KerasPeer", {"keras": "keras", "tensorflow": "tensorflow"},
        {"": _KERAS, "tuned malloc": _KERAS | TUNED_MALLOC},
    ),
    Entry(
        "tinygrad", "edgelearn.lab.bench.tinygrad_peer:TinygradPeer", {"tinygrad": "tinygrad", "pyopencl": "pyopencl"},
        opencl=True,
    ),
    Entry("litert", "edgelearn.lab.bench.phone_peers:LiteRt", {"ai_edge_litert": "ai-edge-litert"}, asked=True),
    Entry("onnxruntime", "edgelearn.lab.bench.phone_peers:OnnxRuntime", {"onnxruntime": "onnxruntime"}, asked=True),
    Entry("serial", "edgelearn.bundles.serial:Serial", asked=True),
)  # fmt: skip
PROBED_STEPS, PROBED_NUMBERS = 3, 4


def choose(names: Iterable[str] | None, registry: Iterable[Entry] = CONTENDERS) -> list[Entry]:
    """The entries called `names`, in the registry's order; for None all but those that take part
    only if they are asked.

    Raises UsageError for a name that isn't there.
    """
    known = {entry.name: entry for entry in registry}
    wanted = {name for name, entry in known.items() if not entry.asked} if names is None else set(names)
    for name in sorted(wanted):
        check_name(name, list(known), "contender")
    return [entry for name, entry in known.items() if name in wanted]


def fitting(entries: Iterable[Entry], device: Device) -> list[Entry]:
    """The entries that compute on `device`; on a GPU in their first environment alone, since the others tune the
    allocation of main memory."""
    if device.kind == "cpu":
        return list(entries)
    on_device = [entry for entry in entries if entry.opencl or (entry.cuda and on_nvidia(device.id))]
    return [replace(entry, environments=dict([*entry.environments.items()][:1])) for entry in on_device]


def on_nvidia(device: str) -> bool:
    """True if the id of an OpenCL device is that of a GPU by NVIDIA."""
    return "nvidia" in device.lower()


class BenchWorker:
    """A contender, given as "module:Class", and the step it was asked to prepare.

    Arguments:
    - `cores`: how many processor cores it may use.
    - `device`: id of the OpenCL device.
    """

    def __init__(self, target: str, cores: int, device: str) -> None:
        module, _, name = target.partition(":")
        self.contender = getattr(importlib.import_module(module), name)(cores, device)
        self.peak = PeakMemory()
        self.start_peak = 0
        self.peak_restarted = False
        self.step: Callable[[], Any] | None = None

    def variants(self, workload: dict[str, Any]) -> list[str]:
        return self.contender.variants(Workload(**workload))

    def prepare(self, workload: dict[str, Any], variant: str) -> dict[str, Any]:
        """Make the step and run it a few times; the numbers it computes are the probe. The peak of memory restarts
        then, so that compilers and the arrays that numbers were drawn in don't count."""
        begin = time.perf_counter()
        step = self.step = self.contender.prepare(Workload(**workload), variant)
        probe = _numbers(step())
        first_step_seconds = time.perf_counter() - begin
        for _ in range(PROBED_STEPS - 1):
            probe += _numbers(step())
        release_free_memory()
        self.start_peak = peak_resident_bytes()
        self.peak_restarted = restart_peak()
        return {"first_step_seconds": first_step_seconds, "probe": probe}

    def measure(self, seconds: float, steps: int) -> dict[str, Any]:
        """A sample of steps; see `measure.sample`. Raises ArithmeticError if the last one isn't finite."""
        results: list[Any] = [None]

        def step() -> None:
            assert self.step is not None
            results[0] = self.step()

        taken = sample(step, seconds, steps)
        _numbers(results[0])
        return asdict(taken)

    def memory(self) -> dict[str, int | None]:
        peak = peak_resident_bytes() if self.peak_restarted else None
        return {"after_imports": self.peak.after_imports, "start": self.start_peak, "peak": peak}


def _numbers(result: Any) -> list[float]:
    """Numbers by which contenders are compared: those that the result gives if it is a function, else its first few.
    Raises ArithmeticError unless they are finite."""
    numbers: list[float]
    if callable(result):
        numbers = cast("Callable[[], list[float]]", result)()
    else:
        numbers = [] if result is None else [float(x) for x in np.ravel(np.asarray(result))[:PROBED_NUMBERS]]
    if not all(map(math.isfinite, numbers)):
        raise ArithmeticError(f"The step computes NaN or infinity: {numbers}")
    return numbers
