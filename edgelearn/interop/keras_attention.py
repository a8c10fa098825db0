"""Attention of Keras: its layers, and the function that they call."""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose, prod
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.ops import Attention, Scale

from . import operators, recurrent, shapes
from .builder import Builder, Operand, Value
from .keras_structure import filled

PER_KEY = "A mask of keys alone, (batch, 1, keys), and use_causal_mask."


def attend(b: Builder, read: Sequence[Value], op: Attention, mask: Operand | None = None) -> Value:
    """The result (batch, queries, channels) of a layer.

    Arguments:
    - `read`: query, key and value (batch, steps, channels), heads side by side in the channels.
    - `op`: the layer.
    - `mask`: of keys, (batch, keys) with axes of 1 anywhere; True, or another number than 0, for those that are seen
      (default None: all).

    Raises UnsupportedError for another mask.
    """
    masks = [] if mask is None else _mask(b, mask, read[1].shape[1])
    layer = b.add(op, *(b.laid_out(x, (1, 2)) for x in read), *masks)
    return recurrent.result(b, read[0], layer)


def _mask(b: Builder, mask: Operand, keys: int) -> list[str]:
    """The layer of a mask; none for a constant that leaves nothing out."""
    if isinstance(mask, np.ndarray):
        if mask.all():
            return []
        raise UnsupportedError("Attention with a constant mask.", PER_KEY)
    if mask.batch_axis != 0 or mask.shape[-1] != keys or prod(mask.shape[1:]) != keys:
        raise UnsupportedError(f"Attention with a mask {mask.shape}.", PER_KEY)
    before = b.nonzero.get(mask.layer)
    mask = before if before is not None and before.sizes == mask.sizes else mask
    return [b.arrange(mask, tuple(factor for axis in mask.axes[1:] for factor in axis))]


def _called(b: Builder, values: Sequence[Operand]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments and keywords of the call; settings of training and what is None or False are left out."""
    a: Any = b.operator.attributes
    keywords = {name: filled(part, values) for name, part in a["keywords"].items() if name != "training"}
    return filled(list(a["arguments"]), values), {n: x for n, x in keywords.items() if x is not None and x is not False}


def _refuse_others(b: Builder, found: Sequence[str], read: Sequence[Any], rank: int, nearest: str) -> None:
    """Raises UnsupportedError for settings that aren't read, and for values of another rank."""
    if found or any(not isinstance(x, Value) or x.rank != rank or x.batch_axis != 0 for x in read):
        raise UnsupportedError(
            f"{b.operator.kind} with {', '.join(found) or 'constants, or inputs of other ranks'}.", nearest
        )


def dot_product_attention(
    b: Builder, query: Any, key: Any, value: Any, bias: Any = None, mask: Operand | None = None,
    scale: float | None = None, *, causal: bool = False,
) -> Operand:  # fmt: skip
    """The function, of (batch, steps, heads, size)."""
    nearest = "Query, key and value (batch, steps, heads, size), and a mask of keys alone (batch, 1, 1, keys)."
    _refuse_others(b, ["bias"] if bias is not None else [], (query, key, value), 4, nearest)
    heads, size = query.shape[2:]
    sources = [_before_repeating(b, x) for x in (key, value)]
    key, value = sources if sources[0].shape == sources[1].shape else (key, value)
    usual = scale is None or isclose(scale, size**-0.5, rel_tol=1e-6)
    op = Attention(heads, key.shape[2], causal, None if usual else scale)
    joined: list[Any] = [shapes.reshape(b, x, (*x.shape[:2], -1)) for x in (query, key, value)]
    return shapes.reshape(b, attend(b, joined, op, mask), query.shape)


def _before_repeating(b: Builder, x: Value) -> Value:
    """Heads (batch, steps, heads, size) before each was repeated for neighbours; `x` itself if they weren't."""
    repeated, source = b.repeated.get(x.layer, (None, x))
    if repeated is None or x.sizes != repeated.sizes or source.rank != 5 or source.shape[3] != 1:
        return x
    return source.squeezed((3,))


def attention_layer(b: Builder, x: Operand, rest: Sequence[Any]) -> Operand:
    """keras.layers.Attention of a list of query, value and perhaps key, with a trained scale or 1."""
    a: Any = b.operator.attributes
    count = int(a["arrays"])
    values, arrays = [x, *rest[: len(rest) - count]], rest[len(rest) - count :]
    arguments, given = _called(b, values)
    query, value, *others = arguments[0] if arguments else given.pop("inputs", [None, None])
    key = others[0] if others else value
    causal, masks = bool(given.pop("use_causal_mask", False)), given.pop("mask", None) or [None, None]
    unread = [*given, *(["a mask of queries"] if masks[0] is not None else [])]
    unread += [] if a.get("score_mode", "dot") == "dot" else ["score_mode"]
    nearest = "Query, value and key (batch, steps, channels), score_mode='dot', and masks of keys alone."
    _refuse_others(b, unread, (query, value, key), 3, nearest)
    if bool(a.get("use_scale")) != bool(count):
        raise FormatError(f"Attention '{b.operator.name}' has {count} arrays in the file. It is damaged: restore it.")
    if count:
        with b.part("scale"):
            query = b.apply(Scale((1,)), query, b.natural_order(query), weights={"scale": arrays[0].reshape(1)})
    return attend(b, [query, key, value], Attention(causal=causal, scale=1.0), masks[1])


def projected_attention(b: Builder, x: Operand, rest: Sequence[Any]) -> Operand:
    """MultiHeadAttention and GroupQueryAttention: query, value and key, each after a dense layer, and a dense layer
    over the heads."""
    a: Any = b.operator.attributes
    count = int(a["arrays"])
    values, arrays = [x, *rest[: len(rest) - count]], [np.asarray(array) for array in rest[len(rest) - count :]]
    arguments, given = _called(b, values)
    given = dict(zip(("query", "value", "key"), arguments, strict=False)) | given
    causal, mask = bool(given.pop("use_causal_mask", False)), given.pop("attention_mask", None)
    query, value, key = (given.pop(name, None) for name in ("query", "value", "key"))
    key = value if key is None else key
    grouped = b.operator.kind == "GroupQueryAttention"
    heads, key_heads, size = (
        (int(a[name]) for name in ("num_query_heads", "num_key_value_heads", "head_dim"))
        if grouped
        else (int(a["num_heads"]), int(a["num_heads"]), int(a["key_dim"]))
    )
    settings = {
        "attention_axes": [1], "output_shape": None, "use_gate": False, "value_dim": size, "sliding_window": None,
    }  # fmt: skip
    unread = [*given, *(name for name, usual in settings.items() if a.get(name) not in (None, usual))]
    nearest = "Query, value and key (batch, steps, channels), with a mask of keys, use_causal_mask, or without a mask."
    _refuse_others(b, unread, (query, value, key), 3, nearest)
    biased = bool(a.get("use_bias", True))
    if count != (8 if biased else 4):
        raise FormatError(f"{b.operator.kind} '{b.operator.name}' has {count} arrays in the file, not 8, or 4.")
    pairs = zip(arrays[:: 1 + biased], arrays[1::2] if biased else [None] * 4, strict=True)
    read = []
    for name, each, (kernel, bias) in zip(("query", "key", "value"), (query, key, value), pairs, strict=False):
        with b.part(name):
            read.append(
                operators.dense(b, each, kernel.reshape(len(kernel), -1), None if bias is None else bias.ravel())
            )
    with b.part("attention"):
        mixed = attend(b, read, Attention(heads, key_heads if grouped else None, causal), mask)
    kernel, bias = arrays[3 + 3 * biased], arrays[7] if biased else None
    return operators.dense(b, mixed, kernel.reshape(-1, kernel.shape[-1]), bias)
