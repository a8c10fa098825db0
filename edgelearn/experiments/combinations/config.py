"""Configuration of one training of a comparison."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgelearn.compile.combination import Combination
from edgelearn.experiments.config import Config, setting
from edgelearn.train import Model
from edgelearn.train.sources import at_epoch

PROBED = 16  # examples of a source, at its begin and at its end, that tell it from others


@dataclass(frozen=True)
class CombinationConfig(Config):
    """A combination, and the training that it shares with the others. Digests are SHA-256, in hexadecimal."""

    network: str = setting("", "name of the network")
    graph: str = setting("", "digest of its graph")
    weights: str = setting("", "digest of the weights that training begins with; empty if they are drawn")
    data: str = setting("", "digest of the examples and targets")
    epochs: int = setting(1, "passes over the examples", minimum=1)
    batch_size: int = setting(32, "examples per update", minimum=1)
    optimizer: str = setting("", "the optimizer, with its settings")
    loss: str = setting("", "the loss, with its settings")
    batchnorm: str = setting("batch", "statistics that BatchNorm uses", choices=("batch", "moving"))
    metrics: tuple[str, ...] = setting((), "metrics besides the accuracy")
    seed: int = setting(0, "seed of everything random", minimum=0)
    device: str | None = setting(None, "part of a device's name")
    precision: str = setting("fp32", "name of a precision, or its settings as JSON")
    activation_memory: str = setting("keep_all", "a policy, or a budget")
    micro_batch: int | None = setting(None, "examples at a time on the device", minimum=1)
    trained: tuple[str, ...] = setting((), "layers that are trained")

    @classmethod
    def of(cls, combination: Combination, seed: int, **shared: Any) -> CombinationConfig:
        """The configuration of a training. `shared`: all fields but those of the combination and the seed."""
        record: dict[str, Any] = combination.to_dict()
        record["trained"] = tuple(record["trained"])
        return cls(seed=seed, **shared, **record)

    @property
    def key(self) -> str:
        """Equal for the same training on any device."""
        return json.dumps({k: v for k, v in self.to_dict().items() if k != "device"}, sort_keys=True)


def described(thing: object) -> str:
    """An optimizer, a loss or a metric as text that is the same in every process."""
    if isinstance(thing, str):
        return thing
    if name := getattr(thing, "__qualname__", ""):
        return f"{getattr(thing, '__module__', '')}:{name}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))


def digest(*parts: Any) -> str:
    """SHA-256 of arrays, texts, sources of examples, and dictionaries and lists of these. Of a source some examples are
    read."""
    found = hashlib.sha256()
    for piece in _pieces(parts):
        found.update(piece)
    return found.hexdigest()


def weights_digest(model: Model) -> str:
    """Digest of a model's weights."""
    return digest(dict(sorted(model.weights.items())))


def _pieces(part: Any) -> Iterable[bytes | memoryview]:
    if isinstance(part, str):
        yield part.encode()
    elif isinstance(part, Mapping):
        for key, value in part.items():
            yield str(key).encode()
            yield from _pieces(value)
    elif isinstance(part, list | tuple):
        for value in part:
            yield from _pieces(value)
    elif isinstance(part, np.ndarray):
        yield f"{part.dtype} {part.shape}".encode()
        yield np.ascontiguousarray(part).data
    elif part is not None:
        ends = np.unique(np.r_[0 : min(PROBED, len(part)), max(0, len(part) - PROBED) : len(part)])
        yield f"{type(part).__qualname__} {tuple(part.shape)}".encode()
        yield from _pieces(at_epoch(part, 0)[ends])
