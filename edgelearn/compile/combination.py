"""A combination of the settings that trade accuracy, memory and time of a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

from edgelearn.errors import PlanError
from edgelearn.graph import Network, reversible
from edgelearn.graph.reversible import invertible_streams
from edgelearn.ops import LinearOp

from .memory.activation_memory import ActivationMemory
from .memory.budget import budgets
from .memory.policies import POLICIES, keep_all
from .precision.named import named_precision
from .precision.precision import KINDS, Precision

FROM = "from "  # before the name of the first layer that is trained
Policy = Callable[[Network], ActivationMemory]


@dataclass(frozen=True)
class Combination:
    """Settings in which trainings of one network differ: precision, activation memory, micro-batch and trained layers.

    Arguments:
    - `precision`: "fp32" (default), "fp16", "int8" (see `named_precision`), or a Precision.
    - `activation_memory`: name of a policy, such as "checkpoints", or a policy; or a budget that the planner meets,
      such as "8 MB stored" (default "keep_all", as None). "invertible" makes couplings of residual blocks.
    - `micro_batch`: examples that are on the device at once (default None: the mini-batch).
    - `trained`: patterns of the layers to train, such as ("dense", "*/gamma"), or ("from LAYER",), that layer and those
      behind it (default (): the network's own).

    Raises PlanError for values of other types; others are checked when they are used, with a PlanError.
    """

    precision: str | Precision = "fp32"
    activation_memory: str | Policy = "keep_all"
    micro_batch: int | None = None
    trained: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        trained = (self.trained,) if isinstance(self.trained, str) else tuple(self.trained or ())
        object.__setattr__(self, "trained", trained)
        if self.activation_memory is None:
            object.__setattr__(self, "activation_memory", "keep_all")
        if not isinstance(self.activation_memory, str) and not hasattr(self.activation_memory, "__qualname__"):
            raise PlanError(
                f"activation_memory is the name of a policy ({', '.join(POLICIES)}), a function of a network, or a "
                f"budget such as '8 MB stored', not {self.activation_memory!r:.60}."
            )

    @classmethod
    def of(cls, value: Combination | Mapping[str, Any]) -> Combination:
        """A combination, or one of a dictionary of its arguments. Raises PlanError for other arguments."""
        if isinstance(value, cls):
            return value
        known = [field.name for field in fields(cls)]
        given: dict[Any, Any] = dict(value) if isinstance(value, Mapping) else {str(value): None}
        if unknown := [name for name in given if name not in known]:
            raise PlanError(f"A combination is a dictionary of {', '.join(known)}, not of {unknown[0]!r:.60}.")
        return cls(**given)

    @classmethod
    def product(cls, **values: Sequence[Any]) -> list[Combination]:
        """All combinations of values of the arguments.

        >>> Combination.product(precision=("fp32", "int8"), micro_batch=(32, 8))
        """
        return [cls.of(dict(zip(values, chosen, strict=True))) for chosen in product(*values.values())]

    @property
    def name(self) -> str:
        """The combination in a few words."""
        parts = [self.precision if isinstance(self.precision, str) else _formats(self.precision)]
        if self.activation_memory not in ("keep_all", keep_all):
            parts.append(str(self.to_dict()["activation_memory"]))
        if self.micro_batch is not None:
            parts.append(f"micro-batch {self.micro_batch}")
        if self.trained:
            parts.append(f"trained {', '.join(self.trained)}")
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """JSON values, equal for equal combinations; runs record them."""
        memory, precision = self.activation_memory, self.precision
        return {
            "precision": precision.to_json() if isinstance(precision, Precision) else precision,
            "activation_memory": memory if isinstance(memory, str) else f"{memory.__module__}:{memory.__qualname__}",
            "micro_batch": self.micro_batch,
            "trained": list(self.trained),
        }

    @property
    def formats(self) -> Precision:
        """The precision as the plan takes it. Raises PlanError for an unknown name."""
        return named_precision(self.precision)

    @property
    def policy(self) -> Policy:
        """The policy; of a budget that which stores everything, from which the planner starts. Raises PlanError for
        text that is neither."""
        if not isinstance(self.activation_memory, str):
            return self.activation_memory
        if policy := POLICIES.get(self.activation_memory):
            return policy
        _ = self.budget
        return keep_all

    @property
    def budget(self) -> str | None:
        """The budget, if the activation memory is one. Raises PlanError for text that is neither."""
        memory = self.activation_memory
        if not isinstance(memory, str) or memory in POLICIES:
            return None
        try:
            budgets(memory)
        except PlanError:
            raise PlanError(
                f"activation_memory is {', '.join(POLICIES)}, a policy, or a budget such as '8 MB stored', not "
                f"{memory!r}."
            ) from None
        return memory

    @property
    def fit_arguments(self) -> dict[str, Any]:
        """The arguments of Model.fit and Model.plan that it chooses: `micro_batch` and `budget`."""
        return {"micro_batch": self.micro_batch, "budget": self.budget}

    def network(self, network: Network) -> Network:
        """A copy of `network` that trains its layers, with couplings where the policy inverts them. Raises PlanError
        for a pattern without a match, or where nothing can be coupled."""
        if self.activation_memory == "invertible" and not invertible_streams(network)[1]:
            network = reversible(network)
        copy = network.copy()
        if self.trained:
            copy.freeze()
            for pattern in self.trained:
                copy.unfreeze(*(layers_from(copy, pattern) if pattern.startswith(FROM) else [pattern]))
        return copy


def layers_from(network: Network, pattern: str) -> list[str]:
    """Names of the parameters of the layers that "from LAYER" means. Raises PlanError for an unknown layer."""
    first, names = pattern.removeprefix(FROM), list(network.nodes)
    if first not in network.nodes:
        raise PlanError(f"'{pattern}': '{network.name}' has no layer '{first}'. It has: {', '.join(names)}.")
    behind = set(names[names.index(first) :])
    return [name for name, parameter in network.parameters.items() if parameter.layer in behind]


def shares_of_layers(network: Network) -> list[tuple[str, ...]]:
    """Values of `trained` from most to fewest layers: all that the network trains, the upper half, the last."""
    trained = (p.layer for name, p in network.parameters.items() if name in network.trainable)
    layers = [name for name in dict.fromkeys(trained) if isinstance(network.nodes[name].op, LinearOp)]
    starts = dict.fromkeys([layers[len(layers) // 2], layers[-1]]) if len(layers) > 1 else {}
    return [(), *((f"{FROM}{name}",) for name in starts)]


def _formats(precision: Precision) -> str:
    """The formats of a precision without a name, in a few words."""
    formats = {kind: getattr(precision, kind) for kind in KINDS}
    return ", ".join(f"{kind} {fmt}" for kind, fmt in formats.items() if fmt) or "fp32"
