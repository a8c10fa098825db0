"""Who takes part: the protocol a contender follows, and the registry of those that are known."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgelearn.errors import EdgelearnError

from .workloads import Workload

SUBJECT = "edgelearn"  # the contender that isn't a peer


class Contender(Protocol):
    """What a worker process runs. The class is made with the number of processor cores it may use and the id of the
    OpenCL device to compute on, which is of no interest to those that compute on processor cores anyway."""

    name: str

    def __init__(self, cores: int, device: str) -> None: ...

    def variants(self, workload: Workload) -> list[str]:
        """The ways this contender can do `workload`; empty if it can't."""

    def prepare(self, workload: Workload, variant: str) -> Callable[[], Any]:
        """Everything up to the first step. Returns the step, which comes back when its work is done.

        The inputs may already lie where the step wants them. The step returns the loss before the update
        (or the logits, for `forward`), so that contenders can be checked against each other; for an op by itself a
        function that gives the digest of all its results, which isn't timed.
        """


@dataclass(frozen=True)
class Entry:
    """A contender by name. `target` is `module:Class`, imported in the worker only.

    `environments` maps a label to the variables that a worker is started with; every variant is measured in
    each of them. `requires` are distributions by the name of the module they bring. One with `opencl` computes on the
    OpenCL device that is asked for, the others on processor cores.
    """

    name: str
    target: str
    requires: Mapping[str, str] = field(default_factory=dict)
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: {"": {}})
    opencl: bool = False

    def missing(self) -> list[str]:
        """The distributions this contender needs that aren't installed."""
        return [dist for module, dist in self.requires.items() if importlib.util.find_spec(module) is None]

    def available(self) -> bool:
        """Whether everything this contender needs is installed. Imports nothing."""
        return not self.missing()


# glibc gives large blocks back to the system at every free and clears them again at the next allocation. A training
# step allocates its activations anew each time, so the default costs PyTorch a factor at larger batches.
_GIB = 2**30
TUNED_MALLOC = {"GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={4 * _GIB}:glibc.malloc.trim_threshold={4 * _GIB}"}

_TORCH = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # no pool of compiler processes beside the worker
_KERAS = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}

CONTENDERS = (
    Entry(SUBJECT, "edgelearn.lab.bench.engine:Engine", {"pyopencl": "pyopencl"}, opencl=True),
    Entry(
        "torch",
        "edgelearn.lab.bench.peers.torch_peer:TorchPeer",
        {"torch": "torch"},
        {"": _TORCH, "tuned malloc": _TORCH | TUNED_MALLOC},
    ),
    Entry(
        "keras",
        "edgelearn.lab.bench.peers.keras_peer:KerasPeer",
        {"keras": "keras", "tensorflow": "tensorflow"},
        {"": _KERAS, "tuned malloc": _KERAS | TUNED_MALLOC},
    ),
    Entry(
        "tinygrad",
        "edgelearn.lab.bench.peers.tinygrad_peer:TinygradPeer",
        {"tinygrad": "tinygrad", "pyopencl": "pyopencl"},
        opencl=True,
    ),
)


def choose(names: Iterable[str] | None, registry: Iterable[Entry] = CONTENDERS) -> list[Entry]:
    """The entries called `names`, in the registry's order; all of them for None.

    Raises EdgelearnError for a name that isn't there.
    """
    entries = list(registry)
    if names is None:
        return entries
    wanted = set(names)
    unknown = sorted(wanted - {entry.name for entry in entries})
    if unknown:
        raise EdgelearnError(
            f"Unknown contender {', '.join(unknown)}. Choose from: {', '.join(entry.name for entry in entries)}."
        )
    return [entry for entry in entries if entry.name in wanted]
