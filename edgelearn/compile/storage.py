"""The place of every byte: persistent buffers by role, and temporaries that share one arena.

Temporaries with disjoint lifetimes share memory. Greedy by size (Pisarchyk and Lee 2020, "Efficient memory management
for deep neural net inference", section 4.2): largest buffer first, each at the lowest offset that is free during its
lifetime.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from edgelearn.graph.network import Network
from edgelearn.launch import Buffer, Launch, Role
from edgelearn.ops import Conv2D, Losses, Tensor, pack
from edgelearn.ops.constants import Counter
from edgelearn.ops.emit import Control, Row
from edgelearn.ops.formats import Format
from edgelearn.ops.loss import rows_of
from edgelearn.ops.observers import Observer
from edgelearn.ops.quantize import Quantizer, first_record
from edgelearn.ops.tensor import BLOCK, Shape, blocked_bytes

from .request import Request


@dataclass(frozen=True)
class Lifetime:
    """A buffer is live from launch `first` to launch `last`, both included."""

    buffer: Buffer
    first: int
    last: int


def lifetimes(launches: Sequence[Launch], keep: Sequence[Buffer] = (), role: Role = Role.TEMPORARY) -> list[Lifetime]:
    """Lifetimes of all buffers of `role`; buffers in `keep` live until the last launch."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for index, launch in enumerate(launches):
        for access in launch.accesses:
            if access.buffer.role is role:
                first.setdefault(access.buffer, index)
                last[access.buffer] = index
    last.update({buffer: len(launches) - 1 for buffer in keep if buffer in first})
    return [Lifetime(buffer, first[buffer], last[buffer]) for buffer in first]


def alive(lives: Iterable[Lifetime], at: int) -> list[Buffer]:
    """Buffers that are live at launch `at`."""
    return [life.buffer for life in lives if life.first <= at <= life.last]


def place(
    lives: Sequence[Lifetime], alignment: int, first_ones: Sequence[Buffer] = ()
) -> tuple[dict[Buffer, int], int]:
    """Return (offset of each buffer, size of the arena), multiples of `alignment`. `first_ones` are at its start, in
    their order, and live from the first launch on."""
    placed: list[tuple[int, int, int, int, int]] = []  # (start, number, stop, first, last); numbers keep the order
    offsets: dict[Buffer, int] = {}
    at_start = {buffer: number for number, buffer in enumerate(first_ones)}
    lives = [replace(life, first=0) if life.buffer in at_start else life for life in lives]

    def order(life: Lifetime) -> tuple[int, int, int]:
        return at_start.get(life.buffer, len(at_start)), -life.buffer.nbytes, life.first

    for number, life in enumerate(sorted(lives, key=order)):
        size = -(-life.buffer.nbytes // alignment) * alignment
        start, first, last = 0, life.first, life.last
        for other_start, _, other_stop, other_first, other_last in placed:
            if other_first <= last and first <= other_last:
                if other_start - start >= size:
                    break
                if other_stop > start:  # half of the time that max() takes
                    start = other_stop
        offsets[life.buffer] = start
        insort(placed, (start, number, start + size, first, last))
    return offsets, max((stop for _, _, stop, _, _ in placed), default=0)


Weights = dict[str, np.ndarray]


def input_blocks(network: Network) -> dict[str, int]:
    """The channel block of each of the network's inputs: unpadded where only plain convolutions read it."""
    blocks = {}
    for name, shape in network.inputs.items():
        plain = all(isinstance(n.op, Conv2D) and n.op.groups == 1 for n in network.consumers(name))
        blocks[name] = shape[-1] if shape[-1] < BLOCK and plain else BLOCK
    return blocks


def input_block(network: Network) -> int:
    """The channel block of the only input."""
    (block,) = input_blocks(network).values()
    return block


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that are updated alike.

    Arguments:
    - `names`: of them.
    - `rate`: factor of the learning rate.
    - `decay`: weight decay.
    """

    names: tuple[str, ...]
    rate: float
    decay: float


def _groups(request: Request, trained: Sequence[str]) -> list[ParameterGroup]:
    """The trained parameters by what their updates differ in, those that decay first. Raises PlanError for a pattern
    that matches no parameter of the network."""
    network, optimizer = request.network, request.optimizer
    if optimizer is None:
        return []
    for pattern, _ in (*optimizer.learning_rates, *optimizer.weight_decays):
        network.match(pattern)
    groups: dict[tuple[bool, float, float], list[str]] = {}
    for name in trained:
        decays = network.parameters[name].weight.decays
        rate, decay = optimizer.group_of(name, decays)
        groups.setdefault((not decays, rate, decay), []).append(name)
    return [ParameterGroup(tuple(groups[key]), *key[1:]) for key in sorted(groups)]


class Storage:
    """Persistent tensors, shared by all programs of a plan.

    Trained parameters are contiguous, group by group, kernels first; gradients and optimizer state have the same order,
    so that one launch updates them all. The host writes `inputs` and `controls`.

    Arguments:
    - `request`: what is planned.
    - `alignment`: bytes to which each tensor is aligned.
    - `shares_inputs`: inputs are in the arena of temporaries (default False).
    """

    def __init__(self, request: Request, alignment: int, shares_inputs: bool = False) -> None:
        network = self.network = request.network
        self.alignment = alignment
        self._tensors: dict[tuple[str, Role], Tensor] = {}
        self._partials: dict[str, Tensor | None] = {}
        self._tables: dict[tuple[Row, ...], Buffer] = {}
        self.fill: dict[Buffer, Callable[[Weights], np.ndarray]] = {}
        self.offsets: dict[Buffer, int] = {}
        self.sizes: dict[Role, int] = {}
        self.parameters: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        self.frozen: dict[str, Tensor] = {}
        self.quantizers: dict[str, Quantizer] = {}
        slots = request.optimizer.all_slots if request.optimizer else ()
        trained = [name for name in network.parameters if request.optimizer and name in request.trainable]
        self.groups = _groups(request, trained)
        for name in (name for group in self.groups for name in group.names):
            shape = network.parameters[name].weight.packed_shape
            self.parameters[name] = self.tensor(name, shape, Role.PARAMETER)
            self.gradients[name] = self.tensor(f"{name} gradient", shape, Role.GRADIENT)
        self.fill |= {t.buffer: _packer(network, name) for name, t in self.parameters.items()}
        total = self.sizes.get(Role.PARAMETER, 0)
        # In the parameters' order and alignment: an update walks through all of them by one index.
        self.slots = [self._reserve(Buffer(slot, total, Role.OPTIMIZER)) for slot in slots]
        self.slot_tensors = {
            f"{slot.name}/{name}": Tensor(self._part(slot, parameter.buffer), parameter.shape)
            for slot in self.slots
            for name, parameter in self.parameters.items()
        }
        self.inputs = {
            name: self._input(name, (request.micro_batch, *network.inputs[name]), block, shares_inputs)
            for name, block in (
                dict.fromkeys(network.inputs, BLOCK) if request.input_gradients else input_blocks(network)
            ).items()
        }
        self.controls = self._controls(request.losses, request.weighted, request.micro_batch)
        self.barrier = self.tensor("barrier", (1, 16), Role.CONTROL).buffer if request.one_launch else None

    def _input(self, name: str, shape: Shape, block: int, is_temporary: bool) -> Tensor:
        """An input of the network, which the host writes."""
        if not is_temporary:
            return self.tensor(name, shape, Role.INPUT, block)
        return Tensor(Buffer(name, blocked_bytes(prod(shape[:-1]), shape[-1], block), Role.TEMPORARY), shape, block)

    def scalars_of(self, group: ParameterGroup) -> Tensor:
        """The numbers that the host sends for the updates of a group, which differ in the learning rate."""
        if group.rate == 1:
            return self.control.scalars
        return self.tensor(f"scalars at {group.rate:g} of the learning rate", (1, 16), Role.CONTROL)

    def span(self, group: ParameterGroup) -> tuple[int, int]:
        """(offset, bytes) of a group's parameters in the memory of their role."""
        places = [(self.offsets[self.parameters[name].buffer], self.parameters[name].buffer) for name in group.names]
        start, (last, buffer) = places[0][0], places[-1]
        return start, last - start + -(-buffer.nbytes // self.alignment) * self.alignment

    def tensor(
        self,
        name: str,
        shape: Shape,
        role: Role,
        block: int = BLOCK,
        layer: str = "",
        nbytes: int | None = None,
        dtype: str = "float32",
    ) -> Tensor:
        """Return the tensor of this name and role, reserving its place on first use."""
        key = name, role
        if key not in self._tensors:
            nbytes = blocked_bytes(prod(shape[:-1]), shape[-1], block, dtype) if nbytes is None else nbytes
            self._tensors[key] = Tensor(self._reserve(Buffer(name, nbytes, role, layer, dtype)), shape, block)
        return self._tensors[key]

    def _controls(self, losses: Losses, weighted: bool, most: int) -> dict[str, Control]:
        """The numbers of each output that has a loss, by its name; of no output if none has."""
        names = list(losses.by_output) or [""]
        several = len(names) > 1
        scalars = self.tensor("scalars", (1, 16), Role.CONTROL)
        counters = self.tensor("counters", (1, max(16, Counter.OUTPUTS + 2 * len(names) * several)), Role.CONTROL)
        controls = {}
        for name in names:
            of, shape = f" of {name}" if several else "", self.network.nodes[name].shape if name else (1,)
            rows = most * rows_of(shape)
            if name and losses.by_output[name].target_dtype == "float32":
                targets = self.tensor(f"targets{of}", (most, *shape), Role.INPUT)
            else:
                targets = self.tensor(f"labels{of}", (1, rows), Role.INPUT, nbytes=4 * rows)
            weights = self.tensor(f"weights{of}", (1, rows), Role.INPUT) if weighted else None
            own = self.tensor(f"scalars{of}", (1, 16), Role.CONTROL) if several else scalars
            controls[name] = Control(own, counters, targets, weights)
        self.control = replace(next(iter(controls.values())), scalars=scalars)
        return controls

    @property
    def input_bytes(self) -> int:
        """Bytes of the inputs, unless they are in the arena."""
        return sum(x.buffer.nbytes for x in self.inputs.values() if x.buffer.role is Role.INPUT)

    @property
    def input(self) -> Tensor:
        """The only input."""
        (tensor,) = self.inputs.values()
        return tensor

    @property
    def buffers(self) -> list[Buffer]:
        """Buffers of all tensors; they don't overlap."""
        return [tensor.buffer for tensor in self._tensors.values()]

    def constant(
        self, name: str, shape: Shape, fill: Callable[[Weights], np.ndarray], dtype: str = "float32"
    ) -> Tensor:
        """A frozen tensor. `fill` computes its packed values from the network's weights when the plan is loaded."""
        constant = self.tensor(name, shape, Role.CONSTANT, dtype=dtype)
        self.fill[constant.buffer] = fill
        return constant

    def derived(
        self, name: str, shape: Shape, source: Buffer, make: Callable[[np.ndarray], np.ndarray], dtype: str = "float32"
    ) -> Tensor:
        """A constant that `make` computes from the packed values of another one."""
        fill = self.fill[source]
        return self.constant(name, shape, lambda weights: make(fill(weights)), dtype)

    def drop_constants(self, read: Container[Buffer]) -> None:
        """Leave out the constants that no launch has `read`, and close the gaps between the others."""
        constants = [buffer for buffer in self.offsets if buffer.role is Role.CONSTANT]
        self.sizes.pop(Role.CONSTANT, None)
        for buffer in constants:
            del self.offsets[buffer]
            if buffer in read:
                self._reserve(buffer)
            else:
                self.fill.pop(buffer, None)
        self._tensors = {key: t for key, t in self._tensors.items() if t.buffer in self.offsets}

    def parameter(self, name: str) -> Tensor:
        """The tensor of a parameter, trained or frozen."""
        if name in self.parameters:
            return self.parameters[name]
        weight = self.network.parameters[name].weight
        if name not in self.frozen and weight.format:  # rows of bytes, as they are
            shape = weight.array_shape
            self.frozen[name] = self.tensor(name, shape, Role.CONSTANT, shape[-1], dtype=weight.dtype)
            self.fill[self.frozen[name].buffer] = lambda weights: weights[name]
        elif name not in self.frozen:
            self.frozen[name] = self.constant(name, weight.packed_shape, _packer(self.network, name))
        return self.frozen[name]

    def moving(self, name: str) -> Tensor:
        """A step's working copy of a moving statistic, committed to the persistent one if the step is finite. Both are
        in the same order, so that one launch copies them all."""
        shape = self.network.parameters[name].weight.packed_shape
        if name not in self.frozen:
            self.frozen[name] = self.tensor(name, shape, Role.STATISTICS)
            self.fill[self.frozen[name].buffer] = _packer(self.network, name)
        return self.tensor(f"{name} of a step", shape, Role.MOVING)

    def quantizer(self, name: str, fmt: Format, observer: Observer, channels: int = 0) -> Quantizer:
        """Return the quantizer of this name, with per-channel ranges if `channels` > 0."""
        if name not in self.quantizers:
            record = self.tensor(f"{name} range", (1, 16), Role.RANGE)
            self.fill[record.buffer] = lambda weights: first_record(observer)
            per_channel = self.tensor(f"{name} ranges", (16, channels), Role.PREPARED) if channels else None
            self.quantizers[name] = Quantizer(name, fmt, observer, record, per_channel)
        return self.quantizers[name]

    def stretch(self, role: Role, offset: int, nbytes: int) -> Buffer:
        """A buffer that spans `nbytes` bytes from `offset` of the memory of one role."""
        buffer = Buffer(f"all {role.value}", nbytes, role)
        self.offsets[buffer] = offset
        return buffer

    def partials(self, name: str, groups: int, total: Tensor) -> Tensor | None:
        """Buffer for the partial sums of `total`, sized by the first call; None for one group."""
        if name not in self._partials:
            # Smaller micro-batches use the same groups: all add to these sums, each group in an order of its own, so
            # that results depend on no schedule.
            shape = (groups, total.rows, total.blocks * total.block)
            self._partials[name] = self.tensor(name, shape, Role.PARTIAL) if groups > 1 else None
        return self._partials[name]

    def table(self, rows: tuple[Row, ...]) -> Buffer:
        """A constant of int32 words. A buffer in `rows` stands for its offset in the memory of its role, in blocks."""
        if rows not in self._tables:
            table = self.tensor(f"table {len(self._tables)}", (1, len(rows) * len(rows[0])), Role.CONSTANT)
            self.fill[table.buffer] = lambda weights: np.array(
                [[self.offsets[word] // (4 * BLOCK) if isinstance(word, Buffer) else word for word in r] for r in rows],
                np.int32,
            )
            self._tables[rows] = table.buffer
        return self._tables[rows]

    def _part(self, slot: Buffer, parameter: Buffer) -> Buffer:
        return self.stretch(Role.OPTIMIZER, self.offsets[slot] + self.offsets[parameter], parameter.nbytes)

    def _reserve(self, buffer: Buffer) -> Buffer:
        self.offsets[buffer] = self.sizes.get(buffer.role, 0)
        size = -(-buffer.nbytes // self.alignment) * self.alignment
        self.sizes[buffer.role] = self.offsets[buffer] + size
        return buffer


def _packer(network: Network, name: str) -> Callable[[Weights], np.ndarray]:
    shape = network.parameters[name].weight.packed_shape
    return lambda weights: pack(weights[name].reshape(shape))
