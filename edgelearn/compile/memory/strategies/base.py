"""Base classes of strategies, and those that need no encoding: store, recompute, invert."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from edgelearn.compile.precision.precision import Precision
from edgelearn.errors import PlanError
from edgelearn.graph.network import Network, Node
from edgelearn.graph.reversible import invertible_streams
from edgelearn.ops import Emitter, Tensor
from edgelearn.ops.quantized_tensor import Stored


@dataclass(frozen=True)
class Strategy:
    """Base of the strategies.

    - `stores`: the tensor itself is held from its forward to its backward pass.
    - `recomputes`: the launches of the forward pass that write the tensor run once more.
    - `exact`: the restored tensor has the bits of the original.
    - `needs_exact`: the tensors that it restores from must be exact, too.
    - `restores_values`: False if only an activation's mask comes back.
    - `purpose`: of the restored copy, in explanations.
    - `held_purpose`: of what is held instead of the tensor.
    - `depth`: once the tensor is restored, copies of a greater depth that were made on the way are dropped.
    """

    stores: ClassVar[bool] = False
    recomputes: ClassVar[bool] = False
    exact: ClassVar[bool] = True
    needs_exact: ClassVar[bool] = False
    restores_values: ClassVar[bool] = True
    purpose: ClassVar[str] = "restored"
    held_purpose: ClassVar[str] = "compressed"

    @property
    def depth(self) -> int:
        return 1

    def sources(self, name: str, network: Network) -> Collection[str]:
        """Layers whose outputs layer `name`'s output is restored from."""
        return ()

    def check(self, name: str, network: Network, precision: Precision) -> None:
        """Raises PlanError if layer `name`'s output can't be restored so."""


@dataclass(frozen=True)
class Store(Strategy):
    """Keep the tensor as it is: the default."""

    stores: ClassVar[bool] = True
    purpose: ClassVar[str] = "stored"

    def __str__(self) -> str:
        return "store"


@dataclass(frozen=True)
class Recompute(Strategy):
    """Run the launches of the forward pass again, from the nearest tensors that are stored or restored.

    Arguments:
    - `nesting`: 2 for tensors between outer checkpoints, some of which are checkpoints themselves, of nesting 1: those
      outlast them, and save recomputing the whole stretch for each of its blocks (default 1).
    """

    nesting: int = 1
    recomputes: ClassVar[bool] = True
    purpose: ClassVar[str] = "recomputed"

    def __str__(self) -> str:
        return "recompute" if self.nesting == 1 else f"recompute, nesting {self.nesting}"

    @property
    def depth(self) -> int:
        return self.nesting

    def sources(self, name: str, network: Network) -> Collection[str]:
        return network.nodes[name].inputs


@dataclass(frozen=True)
class Invert(Strategy):
    """Restore the first input of an invertible layer from the layer's output and its other inputs.

    Arguments:
    - `layer`: name of the invertible layer, a Coupling or SpaceToDepth.
    """

    layer: str
    needs_exact: ClassVar[bool] = True
    purpose: ClassVar[str] = "inverted"

    def __str__(self) -> str:
        return f"invert by {self.layer}"

    def sources(self, name: str, network: Network) -> Collection[str]:
        return {self.layer, *network.nodes[self.layer].inputs[1:]}

    def check(self, name: str, network: Network, precision: Precision) -> None:
        _, inverted = invertible_streams(network)
        if inverted.get(name) != self.layer:
            raise PlanError(
                f"'{name}' can't be inverted by '{self.layer}': expected the first input of a Coupling or SpaceToDepth "
                f"whose other input isn't computed from it. Recompute '{name}', or couple the network's residual "
                f"blocks (edgelearn.graph.reversible)."
            )
        if any(precision.format("activations", layer) for layer in (name, self.layer)):
            raise PlanError(
                f"'{name}' can't be inverted by '{self.layer}', since its activations are rounded: exclude streams "
                f"from that (Precision's exceptions), or recompute '{name}'."
            )


@dataclass(frozen=True)
class Encoding(Strategy):
    """Base of strategies that hold something else, from which the tensor is restored.

    A subclass is a frozen dataclass with `encode`, `decode` and `__str__`. It states `exact = False` if it loses bits,
    and `restores_values = False` if only a mask comes back. What it emits is planned, priced and explained like any
    other launch; `allow=[...]` of `make_plan` offers it to the planner.
    """

    def encode(self, e: Emitter, node: Node, x: Tensor) -> Stored:
        """Emit launches that run after the forward pass's last use of `x`, the output of `node`.

        Returns the temporary to hold. Raises PlanError if `x` can't be encoded, which the planner respects.
        """
        raise NotImplementedError

    def decode(self, e: Emitter, held: Stored, x: Tensor) -> None:
        """Emit launches that write `x` again from what `encode` returned."""
        raise NotImplementedError

    def check_floats(self, node: Node, x: Tensor) -> None:
        """Raises PlanError unless `x` is float32."""
        if x.dtype != "float32":
            raise PlanError(
                f"'{node.name}' can't be had by {self}: its output is {x.dtype}, by the plan's precision. Store or "
                f"recompute it."
            )
