"""What a program does about the activations that its plan doesn't keep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edgelearn.errors import PlanError
from edgelearn.graph.network import INPUT, Network, Node
from edgelearn.launch import Buffer, Launch
from edgelearn.ops import Emitter, Tensor
from edgelearn.ops.quantized_tensor import Stored, tensor_of

from .activation_memory import ActivationMemory, way_of
from .prefetch import prefetched, written_behind
from .replay import rematerialise, replays
from .strategies import Encoding, Invert, Strategy


@dataclass(frozen=True)
class Inverse:
    """The `launches` that have `buffer` back, which can be from launch number `at` of the backward pass on."""

    buffer: Buffer
    launches: list[Launch]
    at: int


class Rematerialiser:
    """Has what is emitted into `micro` bring activations back as `saving` says."""

    def __init__(self, network: Network, activation_memory: ActivationMemory, micro: Emitter) -> None:
        self.network, self.activation_memory, self.micro = network, activation_memory, micro
        self.forward: list[Launch] = []  # and the loss
        self.loss: Launch | None = None  # the first launch of it
        self.backward: list[Launch] = []  # as if everything were there
        self.tensors: dict[str, Tensor] = {}
        self.inverses: dict[str, Inverse] = {}  # by layer, whether they are asked for or not
        self.lost: dict[Buffer, Strategy] = {}
        self.stashed: dict[Buffer, Encoding] = {}  # by what is kept instead
        self.copies: dict[Buffer, Buffer] = {}  # what the backward pass gets, and what was written

    def start(self, values: Mapping[str, Stored], loss: int) -> None:
        """The forward pass is over, and has left these values, by layer; launch number `loss` has turned to the
        gradients."""
        self.loss = self.micro.launches[loss]
        self.forward = list(self.micro.launches)
        self.tensors = {name: tensor_of(value) for name, value in values.items()}

    @property
    def first(self) -> int:
        """Where the backward pass begins."""
        return len(self.forward)

    @property
    def turn(self) -> int:
        """Where the step turns from what it computes to its gradients: the number of the loss's first launch."""
        return next(number for number, launch in enumerate(self.forward) if launch is self.loss)

    def invert(self, node: Node) -> None:
        """The backward pass has come to an invertible op: time to undo it, while what it was made of is there."""
        here, tensors = len(self.micro.launches), [self.tensors[name] for name in (node.name, *node.inputs)]
        if node.inputs[0] == INPUT or any(tensor.dtype != "float32" for tensor in tensors):
            return
        y, x, *others = tensors
        node.op.emit_inverse(self.micro, y, others, x)
        self.inverses[node.name] = Inverse(x.buffer, self._cut(here), here - self.first)

    def finish(self) -> None:
        """The backward pass is over: see that what it reads is there."""
        self.backward = self._cut(self.first)
        self.lost = self._lost()
        puts, gets = self._stashes()
        levels = {buffer: way.level for buffer, way in self.lost.items()}
        kept = {buffer for launch in self.backward for buffer in launch.reads} | self._kept()
        inverses = [x for layer, x in self.inverses.items() if self.lost.get(x.buffer) == Invert(layer)]
        given = gets | {inverse.buffer: inverse.launches for inverse in inverses}
        found = replays(self.forward, kept - set(levels), levels, given)
        wanted = {inverse.at: inverse.buffer for inverse in inverses}
        backward, self.copies = rematerialise(self.backward, found, wanted)
        self._check_masks(backward)
        read = {buffer for launch in backward for buffer in launch.reads}
        puts = {x: launches for x, launches in puts.items() if not read.isdisjoint(_written(launches))}
        self.forward = written_behind(_behind_last_uses(self.forward, puts), self.loss)
        self.micro.launches[:] = self.forward + prefetched(backward)

    @property
    def inverted(self) -> dict[Buffer, Buffer]:
        """What was written and comes back by inversion, and the copies of it."""
        return {x: copy for copy, x in self.copies.items() if isinstance(self.lost.get(x), Invert)}

    def result(self, copy: Buffer) -> str:
        """How a copy has come back, or what it was needed for did."""
        way = self.lost.get(self.copies[copy])
        return way.result if way else "recomputed"

    def _cut(self, start: int) -> list[Launch]:
        """What was emitted since, which then isn't."""
        found = self.micro.launches[start:]
        del self.micro.launches[start:]
        return found

    def _lost(self) -> dict[Buffer, Strategy]:
        names: dict[Buffer, list[str]] = {}
        for name, tensor in self.tensors.items():
            names.setdefault(tensor.buffer, []).append(name)
        ways = {buffer: way_of(found, self.activation_memory) for buffer, found in names.items()}
        return {buffer: way for buffer, way in ways.items() if way}

    def _kept(self) -> set[Buffer]:
        return {tensor.buffer for tensor in self.tensors.values()} - set(self.lost)

    def stash(self, buffer: Buffer, way: Encoding) -> tuple[Buffer, list[Launch], list[Launch]]:
        """What is kept of a tensor instead, the launches that make it, and those that get the tensor back. Raises
        PlanError where that can't be."""
        layer = next(name for name in reversed(self.network.nodes) if self._is(name, buffer))
        here, self.micro.layer = len(self.micro.launches), buffer.layer
        held = way.put(self.micro, self.network.nodes[layer], self.tensors[layer])
        put = self._cut(here)
        way.get(self.micro, held, self.tensors[layer])
        return tensor_of(held).buffer, put, self._cut(here)

    def _is(self, name: str, buffer: Buffer) -> bool:
        return name in self.tensors and self.tensors[name].buffer is buffer

    def _stashes(self) -> tuple[dict[Buffer, list[Launch]], dict[Buffer, list[Launch]]]:
        """The launches that put tensors by, and those that get them back."""
        puts, gets = {}, {}
        for buffer, way in self.lost.items():
            if isinstance(way, Encoding):
                held, puts[buffer], gets[buffer] = self.stash(buffer, way)
                self.stashed[held] = way
        return puts, gets

    def _check_masks(self, backward: Iterable[Launch]) -> None:
        masks = {x for x, way in self.lost.items() if isinstance(way, Encoding) and way.masks}
        for launch in backward:
            for buffer in launch.reads_values:
                if self.copies.get(buffer) in masks:
                    raise PlanError(
                        f"'{buffer.layer}' can't be kept as a mask: {launch.kernel} of '{launch.layer}' needs its "
                        f"values in the backward pass. Keep it, or bring it back in another way."
                    )


def _written(launches: Iterable[Launch]) -> set[Buffer]:
    return {buffer for launch in launches for buffer in launch.writes}


def _behind_last_uses(launches: Iterable[Launch], puts: Mapping[Buffer, list[Launch]]) -> list[Launch]:
    """The launches, and behind the last one that uses a buffer what puts it by."""
    launches = list(launches)
    last = {access.buffer: at for at, launch in enumerate(launches) for access in launch.accesses}
    behind: dict[int, list[Launch]] = {}
    for buffer, found in puts.items():
        behind.setdefault(last[buffer], []).extend(found)
    return [run for at, launch in enumerate(launches) for run in (launch, *behind.get(at, ()))]
