"""Keras's activations by name, as arguments of layers have them."""

from __future__ import annotations

from typing import Any

from edgelearn.errors import UnsupportedError
from edgelearn.ops import ReLU

from ..importing import Builder, Operator, arithmetic
from ..importing.tensorflow import Operand

PLAIN = {
    "elu": "ELU", "exponential": "Exp", "gelu": "GELU", "hard_silu": "HardSwish", "hard_swish": "HardSwish",
    "mish": "Mish", "selu": "SELU", "sigmoid": "Sigmoid", "silu": "SiLU", "softplus": "Softplus",
    "softsign": "Softsign", "swish": "SiLU", "tanh": "Tanh",
}  # fmt: skip


def name_of(setting: Any) -> tuple[str, dict[str, Any]]:
    """Name and settings of an activation: a text, or the record of a function or a layer."""
    if setting is None:
        return "linear", {}
    if isinstance(setting, str):
        return setting, {}
    config = setting.get("config") if isinstance(setting, dict) else None
    if isinstance(config, str):
        return config, {}
    if isinstance(setting, dict) and isinstance(config, dict):
        return str(setting["class_name"]), config
    raise UnsupportedError(f"Activation {setting!r:.60}.", f"One of relu, softmax, {', '.join(PLAIN)}.")


def activate(b: Builder, op: Operator, x: Operand, setting: Any) -> Operand:
    """The activation that a layer ends in."""
    name, config = name_of(setting)
    if name == "linear":
        return x
    if op.kind == "Activation":
        return _apply(b, op, x, name, config)
    with b.part(name.lower()):
        return _apply(b, op, x, name, config)


def _apply(b: Builder, op: Operator, x: Operand, name: str, config: dict[str, Any]) -> Operand:
    if name in ("relu", "ReLU"):
        limit = config.get("max_value")
        return arithmetic.activation(b, x, ReLU()) if limit is None else arithmetic.clip(b, x, 0, limit)
    if name == "relu6":
        return arithmetic.clip(b, x, 0, 6)
    if name == "softmax":
        return arithmetic.softmax(b, x, -1)
    if name == "log_softmax":
        return arithmetic.log_softmax(b, x, -1)
    if name == "leaky_relu":
        return arithmetic.activation(b, x, "LeakyReLU", negative_slope=0.2 if op.version >= 3 else 0.3)
    if name == "hard_sigmoid":
        return arithmetic.hard_sigmoid(b, x) if op.version >= 3 else arithmetic.hard_sigmoid(b, x, 0.2)
    if name in PLAIN:
        return arithmetic.activation(b, x, PLAIN[name])
    raise UnsupportedError(f"Activation '{name:.100}'.", f"One of relu, softmax, {', '.join(PLAIN)}.")
