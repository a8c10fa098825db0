"""Activation memory: strategies that store, recompute, invert, offload or compress what the backward pass needs.

A new strategy is a subclass of `Encoding`: what it emits decides what it stores and what it costs.

A plan has a strategy for each layer's output, checked against the network. A tensor goes by the name of the layer that
writes it. Layers that run as one kernel share a tensor, which then has all their names: it is stored unless each of
them has another strategy, and recomputed only if all are. To restore it otherwise, give that strategy to the last of
them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from edgelearn.errors import PlanError
from edgelearn.graph.network import Network, Node
from edgelearn.graph.rewrites import ancestors, invertible_streams
from edgelearn.launch import Buffer, Role, Transfer
from edgelearn.ops import Activation, Emitter, Tensor, elementwise, quantize
from edgelearn.ops.formats import Format, NumberFormat, QuantizedTensor, Stored, has_range, tensor_of
from edgelearn.ops.observers import CurrentMinMax
from edgelearn.ops.quantize import Quantizer, emit_measured_range
from edgelearn.ops.recurrent import Recurrent

from .precision import Precision


@dataclass(frozen=True)
class MemoryStrategy:
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
class Store(MemoryStrategy):
    """Keep the tensor as it is: the default."""

    stores: ClassVar[bool] = True
    purpose: ClassVar[str] = "stored"

    def __str__(self) -> str:
        return "store"


@dataclass(frozen=True)
class Recompute(MemoryStrategy):
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
        return sources_of(name, network)


@dataclass(frozen=True)
class Invert(MemoryStrategy):
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
class Encoding(MemoryStrategy):
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


@dataclass(frozen=True)
class Compress(Encoding):
    """Hold the tensor in fewer bits; the forward pass computes with the original (Chakrabarti and Moseley 2019,
    "Backprop with approximate activations for memory-efficient network training", arXiv 1901.07988). Gradients are
    approximate; stochastic rounding keeps them unbiased (J. Chen et al. 2021, "ActNN", arXiv 2104.14129).

    Arguments:
    - `format`: `Float16()`, or `Format(bits)` with the tensor's own range, stored as int8 (default 8 bits).

    Raises PlanError for formats of more than 8 bits, or with a range per channel.
    """

    exact: ClassVar[bool] = False
    format: NumberFormat = Format(8)  # noqa: RUF009

    def __post_init__(self) -> None:
        if self.format.per_channel or self.format.storage in ("int16", "float32"):
            raise PlanError(
                f"Compress expects Float16(), or a Format of at most 8 bits with one range, got {self.format}."
            )

    def __str__(self) -> str:
        return f"compress to {self.format}"

    def encode(self, e: Emitter, node: Node, x: Tensor) -> Stored:
        self.check_floats(node, x)
        name = f"{node.name}/compressed to {self.format}"
        y = e.tensor(f"compressed to {self.format}", x.shape, block=x.block, dtype=self.format.storage)
        if not has_range(self.format):
            self.format.emit_encode(e, x, y)
            return QuantizedTensor(y, None, self.format, name)
        # A stage's input of BatchNorm and its output may both be compressed.
        record = e.tensor(f"range of compressed '{node.name}'", (1, 16), Role.RANGE)
        held = QuantizedTensor(y, record, self.format, name)
        emit_measured_range(e, Quantizer(name, self.format, CurrentMinMax(), record), x)
        quantize.emit_to_integers(e, x, held)
        return held

    def decode(self, e: Emitter, held: Stored, x: Tensor) -> None:
        assert isinstance(held, QuantizedTensor)
        quantize.emit_decode(e, held, x)


@dataclass(frozen=True)
class Mask(Encoding):
    """Hold a bit for each output of a ReLU or LeakyReLU: which slope its gradient is multiplied by. It is enough where
    the backward pass needs no values: before an addition or an average, or before a layer whose kernel is frozen."""

    restores_values: ClassVar[bool] = False

    def __str__(self) -> str:
        return "mask"

    def encode(self, e: Emitter, node: Node, x: Tensor) -> Stored:
        self.check_floats(node, x)
        if not isinstance(node.op, Activation) or not node.op.function.two_slopes:
            raise PlanError(
                f"'{node.name}' can't be held as a mask: it is no ReLU nor LeakyReLU. Store or recompute it."
            )
        held = elementwise.new_bits(e, x)
        elementwise.emit_packed_bits(e, x, held, node.op.function)
        return held

    def decode(self, e: Emitter, held: Stored, x: Tensor) -> None:
        elementwise.emit_unpacked_bits(e, tensor_of(held), x)


@dataclass(frozen=True)
class Offload(Encoding):
    """Copy the tensor to pages outside the device after the forward pass's last use, and back before the backward pass
    needs it: to the flash of a phone, for example. Exact. Copies go on while launches compute (see `prefetch`).

    Arguments:
    - `folder`: folder of the temporary file that holds the pages; None for the host's memory (default).
    """

    folder: str | None = None
    held_purpose: ClassVar[str] = "offloaded"

    def __str__(self) -> str:
        return f"offload to {self.place}"

    @property
    def place(self) -> str:
        return "the host's memory" if self.folder is None else f"a file in {self.folder}"

    def encode(self, e: Emitter, node: Node, x: Tensor) -> Stored:
        page = Buffer(f"{node.name}/page", x.buffer.nbytes, Role.PAGED, e.layer, "uint8")
        e.launches.append(Transfer.of(x.buffer, page, e.layer))
        return replace(x, buffer=page)

    def decode(self, e: Emitter, held: Stored, x: Tensor) -> None:
        e.launches.append(Transfer.of(tensor_of(held).buffer, x.buffer, e.layer))


def offload_of(strategies: Iterable[MemoryStrategy]) -> Offload | None:
    """The first Offload among `strategies`, which says where a plan's pages are."""
    return next((strategy for strategy in strategies if isinstance(strategy, Offload)), None)


ActivationMemory = Mapping[str, MemoryStrategy]  # by layer


def steps_of(network: Network) -> dict[str, tuple[str, str]]:
    """Each tensor of states or gates that recurrent layers keep of their steps, by name, in order: (its layer, the
    state that it is computed from or ""). Strategies may name these as they name layers."""
    return {
        name: (node.name, before)
        for node in network.nodes.values()
        if isinstance(node.op, Recurrent)
        for name, before in node.op.states(node.name, *network.input_shapes(node.inputs)).items()
    }


def sources_of(name: str, network: Network) -> Collection[str]:
    """Tensors from which the forward pass computes a layer's output, or states or gates of some steps."""
    if name in network.nodes:
        return network.nodes[name].inputs
    layer, before = steps_of(network)[name]
    return (*network.nodes[layer].inputs, *([before] if before else []))


def check_activation_memory(network: Network, activation_memory: ActivationMemory, precision: Precision) -> None:
    """Raises PlanError for unknown layers, for strategies that a layer or its neighbours can't have, and for pages in
    several places."""
    steps = steps_of(network)
    for name, strategy in activation_memory.items():
        if name not in network.nodes and name not in steps:
            raise PlanError(f"activation_memory names '{name}', but '{network.name}' has no such layer.")
        if not isinstance(strategy, MemoryStrategy):
            raise PlanError(
                f"activation_memory expects a strategy for '{name}', such as Recompute() or Store(), got {strategy!r}."
            )
        strategy.check(name, network, precision)
    if len(places := {s.place for s in activation_memory.values() if isinstance(s, Offload)}) > 1:
        raise PlanError(f"All activations of a plan are offloaded to one place, got {', '.join(sorted(places))}.")
    approximate = _approximate(network, activation_memory)
    for name, strategy in activation_memory.items():
        if strategy.needs_exact and name in approximate:
            raise PlanError(
                f"'{name}' can't have the strategy '{strategy}': it depends on tensors that are restored "
                f"approximately, and errors would grow from layer to layer. Store, recompute or offload those."
            )
    for node in network.nodes.values():
        recomputed = node.name in activation_memory and activation_memory[node.name].recomputes
        if node.op.compares and not recomputed and approximate.intersection((node.name, *node.inputs)):
            raise PlanError(
                f"'{node.name}' ({type(node.op).__name__}) searches its inputs for its output in the backward pass, "
                f"but one of these is restored approximately: recompute '{node.name}', or store both."
            )


def _approximate(network: Network, activation_memory: ActivationMemory) -> set[str]:
    """Layers whose restored outputs may differ from the original, since they or a source do."""
    sources = {name: strategy.sources(name, network) for name, strategy in activation_memory.items()}
    inexact = {name for name, strategy in activation_memory.items() if not strategy.exact}
    return {name for name in activation_memory if inexact & ancestors([name], lambda here: sources.get(here, ()))}


def strategy_of(names: Iterable[str], activation_memory: ActivationMemory) -> MemoryStrategy:
    """The strategy of a tensor that goes by all these names."""
    strategies = [activation_memory.get(name, Store()) for name in names]
    if any(strategy.stores for strategy in strategies):
        return Store()
    return next((strategy for strategy in strategies if not strategy.recomputes), strategies[-1])
