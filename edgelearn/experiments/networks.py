"""Networks by name, as commands take them."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from math import isfinite

from edgelearn import models
from edgelearn.errors import RunError
from edgelearn.graph import Network


def named_network(name: str, alpha: float = 1.0) -> Network:
    """A network of edgelearn.models, of `alpha` times the usual width. Raises RunError for another one, and for a width
    that it can't have."""
    makers = _makers()
    if name not in makers:
        raise RunError(f"'{name}' is no network: choose {', '.join(makers)}.")
    maker = makers[name]
    if alpha == 1:
        return maker()
    if "alpha" not in signature(maker).parameters:
        raise RunError(f"'{name}' has no width to choose: leave alpha out.")
    if not (alpha > 0 and isfinite(alpha)):
        raise RunError(f"alpha is the network's width beside the usual one, such as 0.5, not {alpha:g}.")
    return maker(alpha=alpha)


def _makers() -> dict[str, Callable[..., Network]]:
    """Of networks that are whole by their name alone: `revnet` makes others of what it is given."""
    found = {name: getattr(models, name) for name in models.__all__}
    return {
        name: maker
        for name, maker in found.items()
        if all(p.default is not Parameter.empty for p in signature(maker).parameters.values())
    }
