"""The request for a plan, as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from types import NoneType

import numpy as np

from edgelearn.display import Displayed
from edgelearn.errors import PlanError
from edgelearn.graph.network import Network
from edgelearn.ops import Compute, Loss, Losses, Optimizer, SoftmaxCrossEntropy
from edgelearn.ops.emit import FUSIONS

from .memory import ActivationMemory, Encoding, check_activation_memory
from .precision import Precision, RangeMode

Policy = Callable[[Network], ActivationMemory]
# `predict` makes a request each time: types are named once
WHOLE, STRATEGIES = (int, np.integer), (dict, Mapping)
OPTIMIZER, LOSS = (Optimizer, NoneType), (Loss, Losses, NoneType)


@dataclass(frozen=True, repr=False)
class Request(Displayed):
    """Everything that a plan depends on, except for the device. A request can be the key of a cache: equal ones have
    equal plans. Networks are compared by identity; `trainable`, their trained parameters, `outputs`, and
    `layers`, the number of their layers when the request is made, by content.

    Arguments:
    - `network`: the graph to run.
    - `batch_size`: examples of a mini-batch, from which one update is made (default 1).
    - `micro_batch`: examples that are on the device at once; gradients are summed over a mini-batch's (default 1).
    - `optimizer`: updates the weights; None for a plan that only evaluates and predicts (default).
    - `batchnorm`: statistics that training normalizes with: `"moving"`, the stored ones, or `"batch"`, those of each
      micro-batch, which also update the stored ones.
    - `loss`: of every output, default softmax cross-entropy; or `Losses`, one for each; None for a plan that only
      predicts.
    - `weighted`: the examples' losses have weights, which the host writes (default False).
    - `seed`: of Dropout and stochastic rounding, 64 bits (default 0).
    - `precision`: formats of quantized tensors; default float32 everywhere.
    - `compute`: the type that linear layers multiply in: see `Compute` (default fp32).
    - `activation_memory`: strategy per layer for what the backward pass needs, or a policy, a function of the network
      that gives them; default: store everything.
    - `input_gradients`: the backward pass goes down to the network's inputs, whose gradients a session reads; nothing
      is updated, and layers that act in training alone are left out (default False).
    - `statistics_only`: a step moves BatchNorms' statistics and nothing else, without a backward pass (default False).
    - `known_ranges`: ranges of quantized tensors are given before the first step, so that no program measures them,
      which takes tensors of floats (default False).
    - `allow`: strategies that the planner may use within a budget, besides exact ones on the device (default none).
    - `unfused`: kinds of fusions to leave out, such as `{"moments"}`: see `FUSIONS` in ops/emit.py (default none).
    - `one_launch`: on NVIDIA's GPUs the launches of a step run as one, which takes less time where enqueueing them
      takes longer than computing: small batches of small networks (runtime/one_launch.py; default False).
    - `last_batches`: sizes of shorter mini-batches, such as the last one of an epoch; `len(x)` stands for the remainder
      of its division by `batch_size` (default none).
    - `remainders`: sizes of shorter micro-batches to evaluate and predict; `len(x)` stands for the remainder of its
      division by `micro_batch` (default none).

    Raises PlanError for sizes that are no whole numbers of at least 1, and for settings of other types.
    """

    network: Network
    batch_size: int = 1
    micro_batch: int = 1
    optimizer: Optimizer | None = None
    batchnorm: str = "moving"
    loss: Loss | Losses | None = SoftmaxCrossEntropy()  # noqa: RUF009
    seed: int = 0
    precision: Precision = Precision()  # noqa: RUF009
    activation_memory: ActivationMemory | Policy = field(default_factory=dict)
    last_batches: tuple[int, ...] = ()
    remainders: tuple[int, ...] = ()
    weighted: bool = False
    compute: Compute = Compute()  # noqa: RUF009
    allow: tuple[Encoding, ...] = ()
    input_gradients: bool = False
    statistics_only: bool = False
    known_ranges: bool = False
    unfused: frozenset[str] = frozenset()
    one_launch: bool = False
    trainable: frozenset[str] = field(init=False, repr=False)
    outputs: tuple[str, ...] = field(init=False, repr=False)
    layers: int = field(init=False, repr=False)

    @property
    def headline(self) -> str:
        trained = "no training" if self.optimizer is None else repr(self.optimizer)
        return (
            f"of '{self.network.name}', batch size {self.batch_size} in micro-batches of {self.micro_batch}, {trained}"
        )

    def __post_init__(self) -> None:
        sizes = self.batch_size, self.micro_batch
        if any(not isinstance(size, WHOLE) or size < 1 for size in sizes):
            raise PlanError(f"Batch sizes are whole numbers of at least 1, not {', '.join(map(repr, sizes))}.")
        if not isinstance(self.optimizer, OPTIMIZER):
            raise PlanError(f"An optimizer is an object such as SGD(0.01) or Adam(), not {self.optimizer!r:.60}.")
        if not isinstance(self.loss, LOSS):
            raise PlanError(
                f"A loss is an object such as SoftmaxCrossEntropy(label_smoothing=0.1), not {self.loss!r:.60}."
            )
        if not isinstance(self.precision, Precision):
            raise PlanError(f"precision is a Precision(weights=Format(8)), say, not {self.precision!r:.60}.")
        if self.batchnorm not in ("moving", "batch"):
            raise PlanError(
                f"batchnorm is 'moving' (fine-tuning) or 'batch' (training from scratch); Model.compile also takes "
                f"'auto'. It is not '{self.batchnorm}'."
            )
        if not isinstance(self.activation_memory, STRATEGIES) and not callable(self.activation_memory):
            raise PlanError(
                f"activation_memory is a strategy per layer, such as {{'conv': Recompute()}}, or a function from a "
                f"network to strategies by layer, such as policies.checkpoints, not {self.activation_memory!r:.60}."
            )
        self._set("unfused", frozenset(self.unfused))
        self._set("batch_size", int(self.batch_size))
        self._set("micro_batch", int(self.micro_batch))
        self._set("last_batches", _remainders(self.last_batches, self.batch_size))
        self._set("remainders", _remainders(self.remainders, self.micro_batch))
        if not callable(self.activation_memory):
            self._set("activation_memory", dict(self.activation_memory))
        self._set("trainable", frozenset(self.network.trainable))
        self._set("layers", len(self.network.nodes))
        self._set("outputs", self.network.outputs if self.network.nodes else ())

    def __hash__(self) -> int:
        network = self.network, self.trainable, self.outputs, self.layers
        sizes = self.batch_size, self.micro_batch, self.last_batches, self.remainders
        memory = self.activation_memory if callable(self.activation_memory) else tuple(self.activation_memory.items())
        return hash((*network, sizes, self.batchnorm, self.seed, self.weighted, memory))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def strategies(self) -> ActivationMemory:
        """The strategies by layer, a policy's for this network."""
        return self.activation_memory(self.network) if callable(self.activation_memory) else self.activation_memory

    def with_memory(self, activation_memory: ActivationMemory) -> Request:
        """The same request, of the layers that were trained when it was made, with other strategies."""
        changed = copy(self)
        changed._set("activation_memory", dict(activation_memory))
        return changed

    def without(self, *kinds: str) -> Request:
        """The same request, of the layers that were trained when it was made, with these kinds of fusions left out."""
        changed = copy(self)
        changed._set("unfused", self.unfused | set(kinds))
        return changed

    @property
    def losses(self) -> Losses:
        """The losses by output; none for a plan that only predicts."""
        if isinstance(self.loss, Loss):
            return Losses(dict.fromkeys(self.network.outputs, self.loss))
        return self.loss or Losses({})

    def check(self) -> None:
        """Raises PlanError for a request that no device can meet, naming what to change."""
        network = self.network
        if unknown := self.unfused - FUSIONS.keys():
            raise PlanError(f"'{min(unknown)}' is no kind of fusion: those are {', '.join(FUSIONS)}.")
        if self.micro_batch > self.batch_size:
            raise PlanError(f"A micro-batch of {self.micro_batch} is larger than the mini-batch of {self.batch_size}.")
        if not 0 <= self.seed < 1 << 64:
            raise PlanError(f"A seed is a whole number from 0 to 2**64 - 1, not {self.seed}.")
        if not network.nodes:
            raise PlanError(f"The network '{network.name}' has no layers.")
        if network.trainable != self.trainable:
            raise PlanError("Layers were frozen or unfrozen after this request was made: make a new one.")
        if self.compute.stores_halves and self.precision != Precision():
            raise PlanError(
                f"compute='{self.compute.type}' stores halves, and the precision {self.precision} rounds tensors too: "
                f"leave one of them off."
            )
        shared = [node.name for node in network.nodes.values() if node.shares]
        if shared and self.precision != Precision():
            raise PlanError(
                f"Layer '{shared[0]}' shares its weights, and shared weights are not quantized: leave the precision "
                f"off, or give the layer weights of its own."
            )
        self.precision.check(network)
        check_activation_memory(network, self.strategies, self.precision)
        if unknown := self.losses.by_output.keys() - set(self.outputs):
            raise PlanError(f"'{min(unknown)}' has a loss, but outputs of the network are {', '.join(self.outputs)}.")
        if self.optimizer and not self.losses.by_output:
            raise PlanError("Training minimizes a loss, but the request's is None: give it one.")
        if self.weighted and (odd := [s for s in self.losses.by_output.values() if not s.takes_weights]):
            raise PlanError(f"{type(odd[0]).__name__} takes no weights of examples or classes: leave them out.")
        if self.input_gradients and (self.precision != Precision() or self.trainable):
            raise PlanError("Gradients of inputs need a precision of float32, and a network all of which is frozen.")
        if self.optimizer and not self.trainable and not self.input_gradients:
            raise PlanError(
                "Nothing to train: every parameter is frozen. Unfreeze some, e.g. network.unfreeze('dense')."
            )

    def range_modes(self, training: bool) -> list[RangeMode]:
        """How programs that train, or others, get the ranges of quantized tensors."""
        modes = self.precision.modes(training)
        return [mode for mode in modes if not (self.known_ranges and mode is RangeMode.MEASURED)]

    def micro_batches(self, examples: int) -> list[int]:
        """Sizes of the micro-batches that `examples` examples make: full ones, and a last, shorter one for the rest."""
        full, rest = divmod(examples, self.micro_batch)
        return [self.micro_batch] * full + ([rest] if rest else [])


def _remainders(sizes: tuple[int, ...], whole: int) -> tuple[int, ...]:
    return tuple(sorted({int(size) % whole for size in sizes} - {0}, reverse=True))
