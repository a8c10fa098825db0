"""Make the plan of a request: lower all programs and place all buffers."""

from __future__ import annotations

from edgelearn.device import Device
from edgelearn.errors import PlanError
from edgelearn.launch import Buffer, Role
from edgelearn.ops import Traits

from . import arena
from .lower import input_blocks, lower
from .plan import Plan
from .program import Kind, Program, ProgramKey
from .request import Request
from .storage import Storage


def lay_out(request: Request, device: Device, traits: Traits) -> Plan:
    """Lower all programs of `request` and place every buffer, whatever the budget. Raises PlanError for an impossible
    request."""
    request.check()
    _check_units(request, device, traits)
    storage, alignment = make_storage(request, device), device.alignment
    programs = {key: lower(request, storage, traits, key) for key in program_keys(request)}
    offsets: dict[Buffer, int] = {}
    sizes = [_place(program, alignment, offsets) for program in programs.values()]
    arena_bytes, paged_bytes = map(max, zip(*sizes, strict=True))
    return Plan(request, traits, alignment, storage, programs, offsets | storage.offsets, arena_bytes, paged_bytes)


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
