"""Tables of a plan: what a C runtime follows instead of Python's session.

A plan's launches name buffers; here each buffer is a memory's number and a place in it, launches that several programs
share stand once, and the lists of a program are numbers of launches. Nothing here depends on the target.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from edgelearn.compile import Kind, Plan, ProgramKey, RangeMode
from edgelearn.compile.plan import Program
from edgelearn.compile.storage import Weights
from edgelearn.errors import PlanError
from edgelearn.launch import Access, Buffer, Launch, Many, Role
from edgelearn.ops import LAMB, Adam, Optimizer, Tensor
from edgelearn.ops.loss import rows_of
from edgelearn.ops.observers import Observer, Searching
from edgelearn.ops.quantize import FIELDS

UNIT = 64  # bytes: places reach kernels as numbers of blocks of 16 floats


class Place(NamedTuple):
    """Where a tensor lies: number of the memory, and units from its start."""

    memory: int
    unit: int


Fill = tuple[Place, bytes]  # where what is loaded before the first step lies


@dataclass(frozen=True)
class Matrix:
    """A tensor in the device's layout: [channels / block][rows][block] from a place on."""

    place: Place
    rows: int
    channels: int
    block: int = 16


@dataclass(frozen=True)
class Step:
    """A launch whose buffers are places.

    Arguments:
    - `launch`: the first of the plan's launches that are this one.
    - `arguments`: places, ints (int32) and floats (float32).
    """

    launch: Launch
    arguments: tuple[Place | int | float, ...]


PARTS = ("measure", "prepare", "micro", "finish")


@dataclass
class Tables:
    """The tables of a plan that trains a network of one input and one output.

    Arguments:
    - `plan`: the plan.
    - `roles`: the memories in order; each is one buffer of the device.
    - `steps`: the different launches.
    - `lists`: numbers of steps of each program, by its key and the name of the part.

    Raises PlanError for a plan that a runtime without Python can't follow, saying what to change.
    """

    plan: Plan
    roles: list[Role] = field(init=False)
    steps: list[Step] = field(init=False, default_factory=list)
    lists: dict[ProgramKey, dict[str, list[int]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        _check(self.plan)
        self.roles = list(self.plan.bytes_by_role)
        numbers: dict[tuple, int] = {}
        for key, program in self.programs.items():
            self.lists[key] = {part: self._numbers(getattr(program, part), numbers) for part in PARTS}

    @cached_property
    def programs(self) -> dict[ProgramKey, Program]:
        """Programs that train, and those that predict a whole micro-batch."""
        size = self.plan.request.micro_batch
        return {
            key: program
            for key, program in self.plan.programs.items()
            if key.kind is Kind.TRAIN or (key.kind is Kind.PREDICT and key.examples == size)
        }

    def _numbers(self, launches: Iterable[Launch], numbers: dict[tuple, int]) -> list[int]:
        found = []
        for launch in launches:
            arguments = tuple(self._argument(argument) for argument in launch.arguments)
            typed = tuple((type(argument).__name__, argument) for argument in arguments)
            key = launch.source, launch.kernel, launch.macros, launch.grid, launch.group, typed
            if key not in numbers:
                numbers[key] = len(self.steps)
                self.steps.append(Step(launch, arguments))
            found.append(numbers[key])
        return found

    def _argument(self, argument: Access | Many | int | float) -> Place | int | float:
        if isinstance(argument, Many):  # the kernel finds the layers' offsets in a table
            return Place(self.roles.index(argument.accesses[0].buffer.role), 0)
        if isinstance(argument, Access):
            memory, unit = self.place(argument.buffer)
            return Place(memory, unit + argument.first // UNIT)
        return float(argument) if isinstance(argument, float | np.floating) else int(argument)

    def place(self, buffer: Buffer) -> Place:
        return Place(self.roles.index(buffer.role), self.plan.offsets[buffer] // UNIT)

    def matrix(self, tensor: Tensor, examples: int = 1) -> Matrix:
        """Where a tensor lies; of one that holds `examples` examples, the rows of each."""
        return Matrix(self.place(tensor.buffer), tensor.rows // examples, tensor.channels, tensor.block)

    # -- what host and device share ------------------------------------------------------------------------------

    @property
    def input(self) -> Matrix:
        return self.matrix(self.plan.storage.input, self.plan.request.micro_batch)

    @property
    def output(self) -> Matrix:
        return self.matrix(self.plan.program(Kind.PREDICT).y, self.plan.request.micro_batch)

    @property
    def targets(self) -> Matrix:
        """Targets of the loss; class numbers have no channels."""
        control, size = self.plan.storage.control, self.plan.request.micro_batch
        if self.takes_values:
            return self.matrix(control.targets, size)
        return Matrix(self.place(control.targets.buffer), control.targets.channels // size, 0, 1)

    @property
    def takes_values(self) -> bool:
        """True if the loss compares with values, not with class numbers."""
        (loss,) = self.plan.request.losses.by_output.values()
        return loss.target_dtype == "float32"

    @property
    def classes(self) -> range:
        """Class numbers that targets may be; none if they are values."""
        ((name, loss),) = self.plan.request.losses.by_output.items()
        return range(0) if self.takes_values else loss.labels(self.plan.request.network.nodes[name].shape[-1])

    @property
    def factor(self) -> float:
        """A row's share in the loss of its example, times the loss's weight."""
        request = self.plan.request
        ((name, _),) = request.losses.by_output.items()
        return request.losses.weight(name) / rows_of(request.network.nodes[name].shape)

    @property
    def shorter_batches(self) -> tuple[int, ...]:
        return self.plan.request.last_batches

    # -- what outlives a process ---------------------------------------------------------------------------------

    def trained(self) -> dict[str, tuple[Matrix, tuple[int, ...]]]:
        """The weights that training changes, by name: where they lie, and their shapes in the network."""
        storage, parameters = self.plan.storage, self.plan.request.network.parameters
        moving = ("/moving_mean", "/moving_variance") if self.plan.request.batchnorm == "batch" else ()
        tensors = storage.parameters | {name: t for name, t in storage.frozen.items() if name.endswith(moving)}
        return {name: (self.matrix(t), parameters[name].weight.shape) for name, t in tensors.items()}

    def kept(self) -> dict[str, tuple[Matrix, tuple[int, ...]]]:
        """All that a state file holds, by its names there: trained weights, the optimizer's state, ranges."""
        storage, parameters = self.plan.storage, self.plan.request.network.parameters
        found = {f"weights/{name}": value for name, value in self.trained().items()}
        for name, tensor in storage.slot_tensors.items():
            shape = parameters["/".join(name.split("/")[-2:])].weight.shape
            found[f"optimizer/{name}"] = self.matrix(tensor), shape
        for name, quantizer in storage.quantizers.items():
            found[f"ranges/{name}"] = Matrix(self.place(quantizer.record.buffer), 1, len(FIELDS)), (len(FIELDS),)
        return found

    def fills(self, weights: Weights, records: Weights) -> list[Fill]:
        """Contents of the memories before the first step, as the session loads them.

        Arguments:
        - `weights`: of the network.
        - `records`: ranges of quantized tensors by "layer/kind", of a plan that knows them; else none.

        Raises PlanError if one is missing.
        """
        storage = self.plan.storage
        known = self._records(records) if self.plan.request.known_ranges else {}
        return [
            (self.place(buffer), np.ascontiguousarray(known.get(buffer, made(weights))).tobytes())
            for buffer, made in storage.fill.items()
        ]

    def _records(self, records: Weights) -> dict[Buffer, np.ndarray]:
        quantizers = self.plan.storage.quantizers
        if missing := sorted(set(quantizers) - set(records)):
            raise PlanError(
                f"The model has ranges, but none for '{missing[0]}': train a step of what the bundle is to train first."
            )
        return {q.record.buffer: np.asarray(records[name], np.float32) for name, q in quantizers.items()}

    # -- accounts ------------------------------------------------------------------------------------------------

    @property
    def launches_of_step(self) -> int:
        return len(self.plan.step_launches)

    @property
    def multiply_adds_of_step(self) -> int:
        return sum(launch.flops for launch in self.plan.step_launches) // 2


CORRECTIONS = {LAMB.correction: 2, Adam.correction: 1}  # the numbers of plan.h, by the function that computes it


def correction(plan: Plan) -> tuple[int, float, float]:
    """(number of plan.h, beta 1, beta 2) of what the host computes for the optimizer in each step."""
    optimizer = plan.request.optimizer
    assert optimizer is not None
    number = CORRECTIONS.get(type(optimizer).correction, 0)
    return number, getattr(optimizer, "beta_1", 0.0), getattr(optimizer, "beta_2", 0.0)


def search_periods(plan: Plan) -> list[int]:
    """Updates between two searches for ranges, of the observers that search."""
    precision = plan.request.precision
    observers = [precision.observer, precision.gradient_observer]
    return sorted({o.every for o in observers if isinstance(o, Searching)})


MODES = (RangeMode.OBSERVED, RangeMode.SEARCHED, RangeMode.MEASURED)  # in the order of plan.h


def _check(plan: Plan) -> None:
    """Raises PlanError for what the runtime has no tables for."""
    request = plan.request
    if request.optimizer is None:
        raise PlanError("A bundle trains: compile the model with an optimizer first.")
    if len(request.network.inputs) != 1 or len(request.losses.by_output) != 1 or len(request.network.outputs) != 1:
        raise PlanError(
            f"A bundle has one input and one output with a loss, and '{request.network.name}' has "
            f"{len(request.network.inputs)} and {len(request.network.outputs)}: take the part that trains on the "
            f"device."
        )
    if plan.program(Kind.PREDICT).y.dtype != "float32":
        raise PlanError(f"The network's output would be {plan.program(Kind.PREDICT).y.dtype}: compute in 'fp32'.")
    if request.weighted:
        raise PlanError("A bundle takes no weights of examples: plan without weighted=True.")
    if any(group.rate != 1 for group in plan.storage.groups):
        raise PlanError("A bundle has one learning rate: leave learning_rates out of the optimizer.")
    if plan.paged_bytes:
        raise PlanError("A bundle has no pages outside the device: leave Offload() out of the activation memory.")
    if request.compute.scales_loss:
        raise PlanError(
            "compute='fp16' changes its loss scale as it trains, which bundles don't: take 'fp32' or 'bf16'."
        )
    correction_of = type(request.optimizer).correction
    if correction_of not in (*CORRECTIONS, Optimizer.correction):
        raise PlanError(
            f"{type(request.optimizer).__name__} computes a correction on the host that bundles don't know: take SGD, "
            f"RMSprop, Lion, Adam, AdamW or LAMB."
        )
    for quantizer in plan.observed_on_host:
        raise PlanError(
            f"The observer {type(quantizer.observer).__name__} computes ranges on the host, in Python: take "
            f"InHindsightMinMax, which kernels compute."
        )
    own = [o for o in (request.precision.observer, request.precision.gradient_observer) if o is not None]
    for observer in own:
        if type(observer).is_due is not Observer.is_due and not isinstance(observer, Searching):
            raise PlanError(f"Bundles don't know when {type(observer).__name__} searches: take DSGC or Percentile.")
