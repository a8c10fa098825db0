"""Make the model of a combination of precision, activation memory, micro-batch and trained layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgelearn.compile.combination import Combination
from edgelearn.compile.memory.strategies import Encoding
from edgelearn.device import Device
from edgelearn.graph import Network
from edgelearn.interop import find_network
from edgelearn.ops import SGD, Loss, Losses, Optimizer

from .model import Model

NetworkLike = Network | Model | str | Path


def as_network(network: NetworkLike, alpha: float = 1.0) -> Network | Model:
    """A Network or a Model as it is; what `find_network` finds by other names, a Model if it has weights.

    Arguments:
    - `alpha`: width multiplier of a network of el.models (default 1).

    Raises RunError for an unknown name, FormatError for a file that can't be read, ExtensionError for a function.
    """
    if isinstance(network, Network | Model):
        return network
    file = find_network(str(network), alpha)
    return Model(file.network, file.network.initialize() | file.weights) if file.weights else file.network


def combined(
    network: NetworkLike,
    combination: Combination | Mapping[str, Any] = Combination(),  # noqa: B008
    optimizer: Optimizer | str | None = None,
    loss: Loss | Losses | None = None,
    *,
    batchnorm: str = "auto",
    allow: Sequence[Encoding] = (),
    metrics: Any = (),
    device: str | Device | None = None,
    seed: int | None = None,
    share_with: Model | None = None,
) -> Model:
    """Make a compiled model of a copy of a network, with the precision, activation memory and trained layers of a
    combination. Its `fit_arguments` are for `fit`, which chooses micro-batch and budget.

    Arguments:
    - `network`: a Network, whose weights are drawn; a Model, whose weights and settings are taken; or what
      `find_network` takes: the name of one of el.models, a model file, "MODULE:FUNCTION".
    - `combination`: a Combination, or a dictionary of its arguments (default: float32, everything stored).
    - `optimizer`, `loss`, `batchnorm`, `allow`, `metrics`: as in Model.compile (default: the model's, or SGD()).
    - `device`, `seed`, `share_with`: as in Model (default: the model's).

    Raises PlanError for a combination that this network can't have.
    """
    network, combination = as_network(network), Combination.of(combination)
    if isinstance(network, Network):
        model = Model(combination.network(network), None, device, seed or 0, share_with)
        settings = model.settings
    else:
        settings, share_with = network.settings, share_with or (None if device else network)
        own = combination.network(network.network)
        model = Model(own, network.weights, device, network.seed if seed is None else seed, share_with)
        batchnorm = network.batchnorm if batchnorm == "auto" else batchnorm
    model.compile(
        optimizer or (settings.optimizer if isinstance(network, Model) else SGD()), loss or settings.loss,
        metrics=metrics, batchnorm=batchnorm, precision=combination.formats, activation_memory=combination.policy,
        allow=tuple(allow) or settings.allow,
    )  # fmt: skip
    return model
