"""Trained branches beside frozen layers: updates of some input channels of a kernel (Lin et al. 2022, "On-device
training under 256KB memory", arXiv 2206.15472), and low-rank adapters (Hu et al. 2021, "LoRA", arXiv 2106.09685).

A layer y = W x is divided by its input channels, y = W₁ x₁ + W₂ x₂, of which the first part is trained: the backward
pass needs x₁ alone, and gradient and optimizer state have the size of W₁. Or it gets an adapter, y = W x + U D x, where
D has a few filters, the rank, and U begins at zero. Both are plain layers, so every plan, precision and export has
them, and `merged` gives the network's own weights back. A BatchNorm after the layer follows each branch, too, with the
same scale; it stays frozen, but for its shift.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from edgelearn.errors import PlanError
from edgelearn.ops import Add, BatchNormalization, Conv2D, Dense, FrozenDense, SliceChannels
from edgelearn.ops.block_formats import decode, encode

from .network import Network, Node

Arrays = Mapping[str, np.ndarray]
SHIFT = ("beta", "moving_mean")  # of a BatchNorm, 0 in that of a branch
UPDATE, REST, UP, DOWN, SUM, NORM = "_update", "_rest", "_up", "_down", "_sum", "_norm"  # end names of new layers


@dataclass(frozen=True)
class Branches:
    """Branches to add to a network.

    Arguments:
    - `channels`: by layer, the number of its first input channels whose weights are trained; below the layer's number.
    - `ranks`: by layer, the rank of an adapter.

    Layers are Dense or Conv2D without groups, in one kind of branch, and share no weights; a FrozenDense takes an
    adapter. `network` raises PlanError for others.
    """

    channels: Mapping[str, int]
    ranks: Mapping[str, int]

    def network(self, network: Network) -> Network:
        """Return a copy of `network` with the branches. These are trained, the layers' own kernels are frozen, and
        other parameters are trained if they are in `network`."""
        self._check(network)
        result, renamed = Network(network.name, network.inputs), dict[str, str]()
        ends = {_end(network, name): name for name in (*self.channels, *self.ranks)}
        for node in network.nodes.values():
            inputs = [renamed.get(name, name) for name in node.inputs]
            if node.name in self.channels:
                inputs = [result.add(f"{node.name}{REST}", _after(network, node, self.channels[node.name]), *inputs)]
            result.add_like(node, *inputs)
            if node.name in ends:
                layer = network.nodes[ends[node.name]]
                inputs = [renamed.get(name, name) for name in layer.inputs]
                renamed[node.name] = self._add(result, layer, node, inputs)
        kernels = {f"{name}/{role}" for name in (*self.channels, *self.ranks) for role in ("kernel", "rows")}
        branches = {name for name in result.parameters if name not in network.parameters}
        norms = {name for name in branches if f"{name.partition('/')[0]}".endswith(NORM)}
        result.trainable = (network.trainable - kernels) | (branches - norms)
        result.take_outputs(network, renamed)
        return result

    def _add(self, result: Network, layer: Node, end: Node, inputs: list[str]) -> str:
        """Add the branch of `layer`, which ends in `end`, its BatchNorm if it has one. Returns the sum's name."""
        op, name = layer.op, layer.name
        if isinstance(op, FrozenDense):
            op = Dense(op.units, use_bias=False)
        assert isinstance(op, Conv2D | Dense)
        if name in self.channels:
            x = result.add(f"{name}{UPDATE}_input", SliceChannels(0, self.channels[name]), *inputs)
            y = result.add(f"{name}{UPDATE}", replace(op, use_bias=False), x)
        else:
            rank = self.ranks[name]
            down = {"units": rank} if isinstance(op, Dense) else {"filters": rank}
            x = result.add(f"{name}{DOWN}", replace(op, use_bias=False, **down), *inputs)
            if isinstance(op, Dense):
                up: Conv2D | Dense = Dense(op.units, use_bias=False, kernel_initializer="zeros")
            else:
                up = Conv2D(op.filters, 1, use_bias=False, kernel_initializer="zeros")
            y = result.add(f"{name}{UP}", up, x)
        if end is not layer:
            y = result.add(f"{name}{NORM}", end.op, y)
        return result.add(f"{name}{SUM}", Add(), end.name, y)

    def _check(self, network: Network) -> None:
        if both := self.channels.keys() & self.ranks.keys():
            raise PlanError(f"'{min(both)}' can't have an adapter and a branch of channels: leave one of them out.")
        shared = {node.shares for node in network.nodes.values()}
        for name in (*self.channels, *self.ranks):
            node = network.nodes.get(name)
            takes = node and (takes_branch(node) or (name in self.ranks and isinstance(node.op, FrozenDense)))
            if not (node and takes) or node.shares or name in shared:
                known = ", ".join(n.name for n in network.nodes.values() if takes_branch(n))
                raise PlanError(f"'{name}' of '{network.name}' takes no branch. Layers that do: {known or 'none'}.")
            count = network.input_shapes(node.inputs)[0][-1]
            if name in self.channels and not 0 < self.channels[name] < count:
                raise PlanError(
                    f"Of the {count} input channels of '{name}', 1 to {count - 1} make a branch, not "
                    f"{self.channels[name]}: unfreeze '{name}/kernel' to train all."
                )
            if name in self.ranks and self.ranks[name] < 1:
                raise PlanError(f"The rank of an adapter is at least 1, not {self.ranks[name]} ('{name}').")

    def weights(self, network: Network, weights: Arrays, seed: int = 0) -> dict[str, np.ndarray]:
        """Weights of `self.network(network)` from those of `network`, with which it computes the same. Adapters are
        drawn from `seed`."""
        result = self.network(network)
        drawn = result.initialize(seed, [name for name in result.parameters if name not in weights])
        found = drawn | {name: np.asarray(w) for name, w in weights.items()}
        for name, count in self.channels.items():
            kernel = found[f"{name}/kernel"]
            found[f"{name}{UPDATE}/kernel"] = np.ascontiguousarray(kernel[..., :count, :])
            found[f"{name}/kernel"] = np.ascontiguousarray(kernel[..., count:, :])
        for name in (*self.channels, *self.ranks):
            end = _end(network, name)
            if end != name:
                for role in ("gamma", "moving_variance", *SHIFT):
                    array = found[f"{end}/{role}"]
                    found[f"{name}{NORM}/{role}"] = np.zeros_like(array) if role in SHIFT else array.copy()
        return found

    def merged(self, network: Network, weights: Arrays) -> dict[str, np.ndarray]:
        """Weights of `network` from those of `self.network(network)`, branches and kernels as one. Sums with weights
        in blocks of few bits are rounded to these again."""
        found = {name: np.asarray(weights[name]) for name in network.parameters}
        for name in self.channels:
            parts = weights[f"{name}{UPDATE}/kernel"], weights[f"{name}/kernel"]
            found[f"{name}/kernel"] = np.concatenate(parts, -2)
        for name in self.ranks:
            down, up = (weights[f"{name}{end}/kernel"] for end in (DOWN, UP))
            change, op = down.astype(np.float64) @ up.reshape(up.shape[-2:]).astype(np.float64), network.nodes[name].op
            if isinstance(op, FrozenDense):
                found[f"{name}/rows"] = encode(decode(found[f"{name}/rows"], op.format) + change.T, op.format)
            else:
                found[f"{name}/kernel"] = (found[f"{name}/kernel"] + change).astype(np.float32)
        return found


def takes_branch(node: Node) -> bool:
    """True for a layer that can have a branch."""
    return isinstance(node.op, Dense) or (isinstance(node.op, Conv2D) and node.op.groups == 1)


def _after(network: Network, node: Node, count: int) -> SliceChannels:
    """The input channels from number `count` on."""
    return SliceChannels(count, network.input_shapes(node.inputs)[0][-1] - count)


def _end(network: Network, name: str) -> str:
    """The BatchNorm after a layer that nothing else reads, else the layer itself."""
    readers = network.consumers(name)
    norm = len(readers) == 1 and isinstance(readers[0].op, BatchNormalization) and name not in network.outputs
    return readers[0].name if norm else name
