"""Make the plan of a request: lower all programs and place all buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edgelearn.device import Device
from edgelearn.errors import PlanError
from edgelearn.launch import Buffer, Role
from edgelearn.ops import Traits

from . import arena
from .lower import input_blocks, lower, with_memory
from .memory.activation_memory import ActivationMemory
from .memory.strategies import Invert, Mask, Recompute, Store
from .plan import Plan
from .program import Kind, Program, ProgramKey
from .request import Request
from .storage import Storage

TEMPORARIES = (Store, Recompute, Invert, Mask)  # strategies that add nothing to a plan's storage


def lay_out(request: Request, device: Device, traits: Traits) -> Plan:
    """Lower all programs of `request` and place every buffer, whatever the budget. Raises PlanError for an impossible
    request."""
    return Layout(request, device, traits).plan


class Layout:
    """The plan of a request, whatever the budget, and plans with other strategies for activations.

    Arguments:
    - `request`: what to plan.
    - `device`: where it will run.
    - `traits`: what the choice of kernels depends on.

    Raises PlanError for an impossible request.
    """

    def __init__(self, request: Request, device: Device, traits: Traits) -> None:
        request.check()
        _check_units(request, device, traits)
        self.device, self.traits, self._storage = device, traits, make_storage(request, device)
        self._lowered = {key: lower(request, self._storage, traits, key) for key in program_keys(request)}
        self.plan = self._placed(request, {key: program for key, (program, _) in self._lowered.items()})

    def with_memory(self, activation_memory: ActivationMemory) -> Plan:
        """The plan with these strategies, from the passes that are lowered already where the strategies hold only
        temporaries. Raises PlanError for tensors that can't be restored as they say."""
        request = replace(self.plan.request, activation_memory=activation_memory)
        if not all(type(strategy) in TEMPORARIES for strategy in activation_memory.values()):
            return lay_out(request, self.device, self.traits)
        request.check()
        return self._placed(
            request, {key: with_memory(*lowered, activation_memory) for key, lowered in self._lowered.items()}
        )

    def _placed(self, request: Request, programs: Mapping[ProgramKey, Program]) -> Plan:
        alignment, storage, offsets = self.device.alignment, self._storage, dict[Buffer, int]()
        sizes = [_place(program, alignment, offsets) for program in programs.values()]
        arena_bytes, paged_bytes = map(max, zip(*sizes, strict=True))
        offsets |= storage.offsets
        return Plan(request, self.traits, alignment, storage, programs, offsets, arena_bytes, paged_bytes)


def _check_units(request: Request, device: Device, traits: Traits) -> None:
    """Raises PlanError if the request's products need matrix units that the device lacks."""
    kind = request.compute.type
    if request.compute.uses_units and not traits.unit(kind):
        raise PlanError(
            f"compute='{kind}' needs matrix units, and {device.id} was found to have none for it (edgelearn devices). "
            f"Leave it at 'fp32', or compute it by plain code, slowly: compute=Compute('{kind}', plain=True)."
        )


def make_storage(request: Request, device: Device) -> Storage:
    """Create the storage of `request`; lowering its programs adds to it."""
    network = request.network
    trained = [name for name in network.parameters if name in request.trainable] if request.optimizer else []
    blocks = input_blocks(network)
    return Storage(
        network, trained, request.optimizer, device.alignment, request.micro_batch, blocks, request.losses,
        request.weighted,
    )  # fmt: skip


def program_keys(request: Request) -> list[ProgramKey]:
    """Every program that a session of this request may run.

    A mini-batch has a first micro-batch, following ones and a shorter last one, each in every mode of range
    collection. Evaluation and prediction run full micro-batches and the request's `remainders`; without an optimizer,
    also the micro-batches of its mini-batches.
    """
    batches = [request.micro_batches(examples) for examples in (request.batch_size, *request.last_batches)]
    forward = [request.micro_batch, *request.remainders]
    keys: list[ProgramKey] = []
    if request.optimizer:
        for ranges in request.precision.modes(training=True):
            keys += [ProgramKey(Kind.TRAIN, n, ranges, first=i == 0) for sizes in batches for i, n in enumerate(sizes)]
    else:
        forward += [n for sizes in batches for n in sizes]
    for ranges in request.precision.modes(training=False):
        for n in dict.fromkeys(forward):
            if request.losses.by_output and (n == request.micro_batch or request.losses.fits(n)):
                keys.append(ProgramKey(Kind.EVALUATE, n, ranges))
            keys.append(ProgramKey(Kind.PREDICT, n, ranges))
    return list(dict.fromkeys(keys))


def _place(program: Program, alignment: int, offsets: dict[Buffer, int]) -> tuple[int, int]:
    """Add the offsets of a program's temporaries and pages to `offsets`; return the bytes of arena and pages."""
    size = 0
    for part, keep in (
        (program.prepare, []),
        (program.micro, [y.buffer for y in program.outputs.values()]),
        (program.finish, []),
    ):
        placed, nbytes = arena.place(arena.lifetimes(part, keep), alignment)
        offsets |= placed
        size = max(size, nbytes)
    pages, paged = arena.place(arena.lifetimes(program.micro, role=Role.PAGED), alignment)
    offsets |= pages
    return size, paged
