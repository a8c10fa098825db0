"""Networks by what users call them: a name of edgelearn.models, a model file, or MODULE:FUNCTION."""

from __future__ import annotations

from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from edgelearn.errors import ExtensionError, FormatError, PlanError
from edgelearn.extensions import call, import_object, is_reference
from edgelearn.graph import Network
from edgelearn.models.named import named_network, network_names

from .formats import find_format, read_model
from .model_file import ModelFile


def find_network(name: str | Network, alpha: float = 1.0, **settings: Any) -> ModelFile:
    """Find a network, with the weights and the preprocessing that come with it.

    >>> find_network("mobilenet_v2", alpha=0.5).network
    >>> find_network("squeezenet.onnx").preprocessing
    >>> find_network("my_nets.py:tiny").network

    Arguments:
    - `name`: a network of edgelearn.models; the path of a model file, of any format that holds a graph;
      MODULE:FUNCTION, a function that returns a Network or a Model, whose module is imported; or a Network.
    - `alpha`: width multiplier, for networks that have one (default 1).
    - `settings`: arguments of the network's function, such as classes=5; unknown ones are ignored.

    Weights are empty where only the graph is known.
    Raises RunError for an unknown name, with the nearest ones; FormatError for a file that can't be read;
    ExtensionError for a function that can't be imported or returns something else; PlanError for a width that isn't to
    be had.
    """
    if isinstance(name, Network):
        return ModelFile(name, {})
    if name in network_names():
        return ModelFile(named_network(name, alpha, **settings), {})
    if alpha != 1 and not is_reference(name):
        check_network_name(name)
        raise PlanError(f"'{name}' is a file, whose width is fixed: omit alpha.")
    if is_reference(name):
        return _call(name, settings | ({"alpha": alpha} if alpha != 1 else {}))
    check_network_name(name)
    return read_model(name)


def check_network_name(name: str) -> None:
    """Raises RunError, FormatError or ExtensionError if `find_network` would find nothing. Files aren't read yet."""
    if name in network_names():
        return
    if is_reference(name):
        if not callable(import_object(name)):
            raise ExtensionError(f"'{name}' is no function: name one that returns a network.")
    elif Path(name).exists():
        find_format(name)
    else:
        if Path(name).suffix or len(Path(name).parts) > 1:
            raise FormatError(
                f"There is no file {name}. Give a model file, a name of edgelearn.models or MODULE:FUNCTION."
            )
        named_network(name)  # names the nearest


def _call(reference: str, settings: dict[str, Any]) -> ModelFile:
    function = import_object(reference)
    if not callable(function):
        raise ExtensionError(f"'{reference}' is no function: name one that returns a network.")
    try:
        known = signature(function).parameters
    except (TypeError, ValueError):
        known = {}
    required = [name for name, each in known.items() if each.default is Parameter.empty and each.kind in _NAMED]
    if missing := [name for name in required if name not in settings]:
        raise ExtensionError(f"'{reference}' needs a value for '{missing[0]}': give it a default.")
    if "alpha" in settings and "alpha" not in known:
        raise PlanError(f"'{reference}' has no width multiplier: omit alpha.")
    made = call(reference, function, **{name: value for name, value in settings.items() if name in known})
    if isinstance(made, Network | ModelFile):
        return made if isinstance(made, ModelFile) else ModelFile(made, {})
    if not isinstance(network := getattr(made, "network", None), Network):
        raise ExtensionError(f"'{reference}' returned {made!r:.80}, not a Network or a Model.")
    preprocessing = getattr(made, "preprocessing", None) or {}
    return ModelFile(network, dict(getattr(made, "weights", {})), preprocessing=preprocessing)


_NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
