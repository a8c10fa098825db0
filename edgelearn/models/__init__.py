"""Network architectures, and the networks by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import Parameter, signature
from math import isfinite
from typing import Any

from edgelearn.errors import UsageError
from edgelearn.extensions import check_name
from edgelearn.graph import Network

from .classics import alexnet, alexnet_one_column, lenet5, lenet_deepcl, lenet_transfercl, shufflenet_v2, squeezenet
from .efficientnet import efficientnet_b0, efficientnet_lite0, proxylessnas_mobile
from .keywords import bcresnet, ds_cnn, ds_resnet
from .mobilenet import (
    mobilenet_v1,
    mobilenet_v2,
    mobilenet_v2_cifar,
    mobilenet_v2_reversible,
    mobilenet_v2_split_cifar,
    mobilenet_v3_large,
    mobilenet_v3_small,
)
from .resnet import (
    resnet8,
    resnet18,
    resnet18_cifar,
    resnet34,
    resnet50,
    revnet,
    revnet38,
    revnet110,
    revnet164,
    vgg16,
)

__all__ = [
    "alexnet",
    "alexnet_one_column",
    "bcresnet",
    "ds_cnn",
    "ds_resnet",
    "efficientnet_b0",
    "efficientnet_lite0",
    "lenet5",
    "lenet_deepcl",
    "lenet_transfercl",
    "mobilenet_v1",
    "mobilenet_v2",
    "mobilenet_v2_cifar",
    "mobilenet_v2_reversible",
    "mobilenet_v2_split_cifar",
    "mobilenet_v3_large",
    "mobilenet_v3_small",
    "proxylessnas_mobile",
    "resnet8",
    "resnet18",
    "resnet18_cifar",
    "resnet34",
    "resnet50",
    "revnet",
    "revnet38",
    "revnet110",
    "revnet164",
    "shufflenet_v2",
    "squeezenet",
    "vgg16",
]  # fmt: skip


def named_network(name: str, alpha: float = 1.0, **settings: Any) -> Network:
    """Create a network of edgelearn.models.

    Arguments:
    - `alpha`: width multiplier (default 1).
    - `settings`: arguments of the network's function, such as softmax=False; unknown ones are ignored.

    Raises UsageError for an unknown name, or a width that the network doesn't support.
    """
    makers = _makers()
    check_name(name, makers, "network", "a model file, or MODULE:FUNCTION")
    maker = makers[name]
    known = signature(maker).parameters
    if alpha != 1:
        if "alpha" not in known:
            raise UsageError(f"'{name}' has no width multiplier: omit alpha.")
        if not (alpha > 0 and isfinite(alpha)):
            raise UsageError(f"alpha is a positive width multiplier, such as 0.5, got {alpha:g}.")
        settings = settings | {"alpha": alpha}
    return maker(**{key: value for key, value in settings.items() if key in known})


def network_names() -> tuple[str, ...]:
    """Names that `named_network` knows."""
    return tuple(_makers())


@cache
def _makers() -> dict[str, Callable[..., Network]]:
    """Functions of edgelearn.models without required arguments (`revnet` has some)."""
    found = {name: globals()[name] for name in __all__}
    return {
        name: maker
        for name, maker in found.items()
        if all(p.default is not Parameter.empty for p in signature(maker).parameters.values())
    }
