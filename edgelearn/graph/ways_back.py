"""What a program does about the activations that its plan doesn't keep."""

from __future__ import annotations

from collections.abc import Mapping

from edgelearn.launch import Buffer, Launch
from edgelearn.ops import Emitter, Tensor
from edgelearn.ops.ranged import Ranged

from .network import Node
from .rematerialise import rematerialised, returns
from .saving import Invert, Saving


class WaysBack:
    """Has what is emitted into `micro` bring activations back as `saving` says."""

    def __init__(self, saving: Saving, micro: Emitter) -> None:
        self.saving, self.micro = saving, micro
        self.first = 0
        self.backward: list[Launch] = []  # as if everything were there
        self.tensors: dict[str, Tensor] = {}
        self.inverses: dict[Buffer, list[Launch]] = {}
        self.wanted: dict[int, Buffer] = {}
        self.inverted: dict[Buffer, Buffer] = {}  # what was written, and what the backward pass gets instead

    def start(self, values: Mapping[str, Tensor | Ranged]) -> None:
        """The forward pass is over, and has left these values, by layer."""
        self.first = len(self.micro.launches)
        self.tensors = {name: value.tensor if isinstance(value, Ranged) else value for name, value in values.items()}

    def invert(self, node: Node) -> None:
        """The backward pass has come to an invertible op: time to undo it, while what it was made of is there."""
        x, *others = node.inputs
        if self.saving.get(x) != Invert(node.name):
            return
        here = len(self.micro.launches)
        y, others = self.tensors[node.name], [self.tensors[name] for name in others]
        node.op.emit_inverse(self.micro, y, others, self.tensors[x])
        self.inverses[self.tensors[x].buffer] = self.micro.launches[here:]
        del self.micro.launches[here:]
        self.wanted[here - self.first] = self.tensors[x].buffer

    def finish(self) -> None:
        """The backward pass is over: see that what it reads is there."""
        self.backward = self.micro.launches[self.first :]
        kept = {tensor.buffer for name, tensor in self.tensors.items() if name not in self.saving}
        ways = ((self.tensors[name].buffer, way) for name, way in self.saving.items() if name in self.tensors)
        lost = {buffer: way.level for buffer, way in ways if buffer not in kept}
        if not lost:
            return
        kept |= {buffer for launch in self.backward for buffer in launch.reads} - set(lost)
        found = returns(self.forward, kept, lost, self.inverses)
        self.micro.launches[self.first :], self.inverted = rematerialised(self.backward, found, self.wanted)

    @property
    def forward(self) -> list[Launch]:
        """The launches of the forward pass, and of the loss."""
        return self.micro.launches[: self.first]
