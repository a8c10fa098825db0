"""Attention: scaled dot products of queries and keys by tiles, and rotary positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log

import numpy as np

from edgelearn.errors import PlanError, ShapeError

from .base import Arrays, Gradients, Op, Targets, Weight, is_count
from .emit import Emitter
from .formats import StoredType
from .shapes import emit_zeros
from .target import Target, emit_copy
from .tensor import BLOCK, Shape, Tensor, ceil_div

QUERIES, KEYS = 32, 16  # of tiles, as in kernels/attention.cl
MOST_QUERIES, SMALL_HEAD = 64, 32  # on a CPU, of heads of so many channels: keys are turned for fewer tiles
TOGETHER = 64  # queries, or keys, of a work-group on GPUs: a work-item has one, or by matrix units a warp 16
UNIT_GROUP, WIDEST = 2 * TOGETHER, 128  # work-items, and channels of a head that registers hold, with matrix units
RATE_STEPS = 1 << 12  # of the logarithms of rotary frequencies, so that their products with channels are exact


@dataclass(frozen=True)
class Attention(Op):
    """softmax(query keyᵀ scale) value for each head (Vaswani et al. 2017), as keras.ops.dot_product_attention and
    torch.nn.functional.scaled_dot_product_attention: the projections of a MultiHeadAttention are Dense layers around
    it. Scores are computed by tiles and never stored, neither forward nor backward (Dao et al. 2022, arXiv 2205.14135).

    Arguments:
    - `heads`: heads of the queries, which lie side by side in the channels (default 1).
    - `key_heads`: heads of keys and values, each read by `heads` / `key_heads` neighbouring heads of queries (Ainslie
      et al. 2023, arXiv 2305.13245) (default None: `heads`).
    - `causal`: a query sees the keys of its own step and of earlier ones alone (default False).
    - `scale`: factor of the products (default None: 1 / sqrt(channels of a head)).

    Inputs: query (queries, heads x size), key and value (keys, key_heads x size), and, if there is one, a mask (keys,),
    0 for keys that no query sees; a query that sees none gives 0. Output: (queries, heads x size). Raises ShapeError
    for other shapes or settings.
    """

    has_values = True

    heads: int = 1
    key_heads: int | None = None
    causal: bool = False
    scale: float | None = None

    @property
    def shared(self) -> int:
        """Heads of queries that read a head of keys."""
        return self.heads // (self.key_heads or self.heads)

    def output_shape(self, *shapes: Shape) -> Shape:
        key_heads = self.heads if self.key_heads is None else self.key_heads
        if not is_count(self.heads) or not is_count(key_heads) or self.heads % key_heads:
            raise ShapeError(f"{self.heads} heads of queries can't share {key_heads} heads of keys.")
        if len(shapes) not in (3, 4) or any(len(shape) != 2 for shape in shapes[:3]):
            raise ShapeError(f"Attention takes query, key, value (steps, channels), not {', '.join(map(str, shapes))}.")
        (_, channels), key, value = shapes[:3]
        if channels % self.heads or key != value or key[1] != channels // self.heads * key_heads:
            raise ShapeError(
                f"Attention of {self.heads} heads to {key_heads} of keys takes queries (steps, heads x size), keys and "
                f"values (steps, {key_heads} x size), not {', '.join(map(str, shapes[:3]))}."
            )
        if len(shapes) == 4 and shapes[3] != key[:1]:
            raise ShapeError(f"The mask of {key[0]} keys has shape ({key[0]},), not {shapes[3]}.")
        return shapes[0]

    def flops(self, *shapes: Shape) -> int:
        (queries, channels), (keys, _) = shapes[:2]
        return 4 * queries * keys * channels

    def _size(self, channels: int) -> int:
        return channels // self.heads

    def factor(self, channels: int) -> float:
        """Factor of the products, given the channels of queries."""
        return float(self.scale if self.scale is not None else self._size(channels) ** -0.5)

    def _by_head(self, x: np.ndarray, repeat: int = 1) -> np.ndarray:
        """(images, heads, steps, size)"""
        heads = self.heads // repeat
        return np.repeat(x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2), repeat, 1)

    def _parts(self, inputs: list[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Query, key and value by head, and the weights."""
        q = self._by_head(inputs[0])
        k, v = (self._by_head(x, self.shared) for x in inputs[1:3])
        scores = q @ k.swapaxes(2, 3) * self.factor(inputs[0].shape[-1])
        sees = np.ones(scores.shape, bool)
        if self.causal:
            sees &= np.tri(*scores.shape[2:], dtype=bool)
        if len(inputs) == 4:
            sees &= (inputs[3] != 0)[:, None, None]
        scores = np.where(sees, scores, -np.inf)
        top = scores.max(-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
        total = weights.sum(-1, keepdims=True)
        return q, k, v, weights / np.where(total > 0, total, 1)

    def _joined(self, x: np.ndarray, repeat: int = 1) -> np.ndarray:
        """The opposite of `_by_head`, with the sum of heads that were one."""
        n, heads, steps, size = x.shape
        summed = x.reshape(n, heads // repeat, repeat, steps, size).sum(2)
        return summed.swapaxes(1, 2).reshape(n, steps, -1)

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        *_, v, p = self._parts(inputs)
        return self._joined(p @ v)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        q, k, v, p = self._parts(inputs)
        g = self._by_head(dy)
        dp = g @ v.swapaxes(2, 3)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * self.factor(dy.shape[-1])
        dq, dk, dv = ds @ k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ g
        return [
            self._joined(dq),
            *(self._joined(d, self.shared) for d in (dk, dv)),
            *map(np.zeros_like, inputs[3:]),
        ], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        written = [y.write]
        if e.keeps and self._fuses_backward(e, inputs):
            e.steps[_logarithms(e.layer)] = logarithms = e.tensor("logarithms", (1, y.rows * self.heads))
            written.append(logarithms.write)
        self._emit(e, "attend", inputs, [x.read for x in inputs], written, 4)

    def _fuses_backward(self, e: Emitter, inputs: list[Tensor]) -> bool:
        """True if a launch computes all gradients on a CPU, a work-item those of a key head: heads are whole blocks,
        and keep the cores busy."""
        traits, (n, _, channels) = e.traits, inputs[0].shape
        items = n * (self.key_heads or self.heads)
        busy = items % traits.compute_units == 0 or items >= 8 * traits.compute_units
        plain = not traits.gpu and not traits.bare and inputs[0].dtype == "float32"
        return plain and busy and self._size(channels) % BLOCK == 0

    def _emit(self, e: Emitter, kernel: str, inputs: list[Tensor], read: list, written: list, products: int) -> None:
        """Emit a kernel: of a tile of queries, or of keys, a work-item; on GPUs of a single one; of halves a work-group
        whose matrix units multiply. `products`: its FLOPs for a pair of channels."""
        (n, queries, channels), keys = inputs[0].shape, inputs[1].shape[1]
        of_keys, size = kernel == "attend_backward_keys", self._size(channels)
        heads = (self.key_heads or self.heads) if of_keys else self.heads
        numbers = n, queries, keys, self.heads, self.shared, self.factor(channels)
        settings: dict = {
            "whole": True, "flops": products * n * queries * keys * channels // (1 + self.causal), "head": size,
            "causal": self.causal, "masked": len(inputs) == 4, **inputs[0].value_macros,
        }  # fmt: skip
        groups = n * heads * ceil_div(keys if of_keys else queries, TOGETHER)
        fits = inputs[0].is_halves and e.compute.uses_units and size % BLOCK == 0 and size <= WIDEST
        if fits and (unit := e.traits.matrix_unit):  # which tries the device's units: not for nothing
            settings |= {"unit": unit, "type": StoredType.of(inputs[0].dtype), "group": UNIT_GROUP}
            e.launch("attention_units.cl", kernel, (groups * UNIT_GROUP,), *read, *written, *numbers, **settings)
            return
        if e.traits.gpu:
            settings["group"] = TOGETHER
            e.launch("attention_local.cl", kernel, (groups * TOGETHER,), *read, *written, *numbers, **settings)
            return
        tile = MOST_QUERIES if size <= SMALL_HEAD else QUERIES
        tiles = heads * (ceil_div(keys, KEYS) if of_keys else ceil_div(queries, tile))
        settings |= {} if of_keys else {"queries": tile}
        if kernel == "attend_backward":
            tiles = self.key_heads or self.heads
        elif kernel == "attend" and len(written) > 1:
            settings["keeps"] = True
        settings["together"] = 8 if e.traits.vector_width >= BLOCK else 4
        e.launch("attention.cl", kernel, (n * tiles,), *read, *written, *numbers, **settings)

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        q, k, v, *mask = inputs
        n, queries, _ = q.shape
        statistics = e.tensor("statistics", (1, 2 * n * queries * self.heads))
        masks, logarithms = [x.read for x in mask], e.steps.get(_logarithms(e.layer))
        if logarithms and self._fuses_backward(e, inputs) and None not in targets[:3]:
            products = e.tensor("products", logarithms.shape)
            read = [q.read, k.read, v.read, *masks, y.read, dy.read, logarithms.read, products.write]
            self._emit_into(e, "attend_backward", inputs, read, dict(zip((q, k, v), targets[:3], strict=True)), 10)
            self._emit_mask(e, dy, targets)
            return
        read = [q.read, k.read, *masks, y.read, dy.read]
        self._emit(e, "attention_statistics", inputs, read, [statistics.write], 2)
        read = [q.read, k.read, v.read, *masks, dy.read, statistics.read]
        dq, dk, dv = targets[:3]
        if dq is not None:
            self._emit_into(e, "attend_backward_queries", inputs, read, {q: dq}, 6)
        if dk is not None or dv is not None:
            self._emit_into(e, "attend_backward_keys", inputs, read, {k: dk, v: dv}, 8)
        self._emit_mask(e, dy, targets)

    def _emit_mask(self, e: Emitter, dy: Tensor, targets: Targets) -> None:
        """The gradient of the mask, if there is one."""
        for of_mask in filter(None, targets[3:]):
            emit_zeros(e, dy, of_mask)

    def _emit_into(
        self, e: Emitter, kernel: str, inputs: list[Tensor], read: list, wanted: dict[Tensor, Target | None],
        products: int,
    ) -> None:  # fmt: skip
        """Emit a kernel that writes gradients as they are, and copies of those whose targets mask or add."""
        direct = {
            x: target is not None and target.mask is None and not target.accumulate for x, target in wanted.items()
        }
        written = [
            target.tensor if target and direct[x] else e.tensor("gradient of heads", x.shape, dtype=x.dtype)
            for x, target in wanted.items()
        ]
        self._emit(e, kernel, inputs, read, [tensor.write for tensor in written], products)
        for (x, target), tensor in zip(wanted.items(), written, strict=True):
            if target is not None and not direct[x]:
                emit_copy(e, tensor, target)


def _logarithms(layer: str) -> str:
    """Name of what the backward pass of an Attention reads besides its inputs and output."""
    return f"{layer}/logarithms"


@dataclass(frozen=True)
class RotaryEmbedding(Op):
    """Rotary positions (Su et al. 2021, arXiv 2104.09864) of queries or keys (steps, heads x size): pairs of a head's
    channels turn by step x base^(-2 pair / size).

    Arguments:
    - `heads`: number of heads (default 1); each has an even number of channels.
    - `base`: of the angles (default 10,000).
    - `interleaved`: pairs are neighbours, as in llama2.c; else halves of a head, as in Llama's files of Hugging Face
      and in KerasHub (default False).
    - `begin`: position of the first step (default 0).

    A second input (steps,), if there is one, has the positions, to which `begin` is added. Raises ShapeError for other
    shapes or settings.
    """

    takes_numbers = (1,)

    heads: int = 1
    base: float = 10000.0
    interleaved: bool = False
    begin: int = 0

    def output_shape(self, *shapes: Shape) -> Shape:
        shape = shapes[0]
        if len(shapes) > 2 or shapes[1:] not in ((), (shape[:1],)):
            raise ShapeError(f"RotaryEmbedding takes (steps, channels) and positions (steps,), not {shapes}.")
        if len(shape) != 2 or not is_count(self.heads) or shape[1] % (2 * self.heads) or not self.base > 0:
            raise ShapeError(
                f"RotaryEmbedding of {self.heads} heads takes (steps, heads x an even size) and a base above 0, not "
                f"{shape} and {self.base}."
            )
        return shape

    def tables(
        self, steps: int, channels: int, positions: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(cosines, sines with the sign of what they multiply, both (..., steps, channels), each channel's partner).
        `positions`: of the steps, (..., steps) (default: 0 to steps - 1)."""
        size, channel = channels // self.heads, np.arange(channels)
        within, half = channel % size, size // 2
        pair, second = (within // 2, within % 2) if self.interleaved else (within % half, within // half)
        partner = channel + np.where(second, -1, 1) * (1 if self.interleaved else half)
        positions = np.arange(steps) if positions is None else positions
        angles = (positions + self.begin)[..., None] * float(self.base) ** (-2 * pair / size)
        return np.cos(angles), np.where(second, 1, -1) * np.sin(angles), partner

    def _turned(self, x: np.ndarray, sign: int, positions: list[np.ndarray]) -> np.ndarray:
        cosine, sine, partner = self.tables(*x.shape[1:], *positions)
        return x * cosine + sign * x[..., partner] * sine

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return self._turned(inputs[0], 1, inputs[1:])

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        return [self._turned(dy, -1, inputs[1:]), *map(np.zeros_like, inputs[1:])], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        self._emit(e, inputs[0], Target(y), False, inputs[1:])

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        if targets[0] is not None:
            self._emit(e, dy, targets[0], True, inputs[1:])
        for target in targets[1:]:
            if target is not None:
                emit_zeros(e, dy, target)

    def _emit(self, e: Emitter, x: Tensor, target: Target, back: bool, positions: list[Tensor]) -> None:
        groups, count = e.bands(x.rows, x.blocks)
        logarithm = 2 * log(self.base) * self.heads / x.channels
        rate = round(logarithm * RATE_STEPS) / RATE_STEPS
        e.launch(
            "rotary.cl", "rotate_pairs", (groups, x.blocks), x.read, *(p.read for p in positions), x.rows,
            count, x.shape[1], x.channels, x.channels // self.heads, int(self.interleaved), self.begin,
            rate, logarithm - rate, int(back), *target.arguments, positioned=bool(positions), **target.macros,
        )  # fmt: skip


@dataclass(frozen=True)
class CachedAttention(Op):
    """Attention of one step to itself and to the steps before it, whose keys and values it keeps on the device: for
    writing a text step by step. It computes what a causal Attention does; it is not trained, and takes one sequence at
    a time.

    Arguments:
    - `heads`, `key_heads`: as of Attention.
    - `context`: number of steps that are kept.

    Inputs: query (1, heads x size), key and value (1, key_heads x size), position (1,), a number from 0 to context - 1
    that counts up from call to call; a sequence begins anew at 0. Weights: keys and values (context, key_heads x size),
    which each call changes. Raises ShapeError for other shapes or settings.
    """

    takes_numbers = (3,)

    heads: int = 1
    key_heads: int | None = None
    context: int = 128

    @property
    def attention(self) -> Attention:
        """The same over all steps at once, with a mask of those that are there."""
        return Attention(self.heads, self.key_heads)

    def output_shape(self, *shapes: Shape) -> Shape:
        if not is_count(self.context) or len(shapes) != 4 or shapes[3] != (1,) or shapes[0][:1] != (1,):
            raise ShapeError(
                f"CachedAttention takes query, key and value of one step and its position, (1, channels) thrice and "
                f"(1,), and keeps 1 step or more, not {', '.join(map(str, shapes))} and {self.context}."
            )
        return self.attention.output_shape(*shapes[:3])

    def weights(self, *shapes: Shape) -> dict[str, Weight]:
        kept = Weight((self.context, shapes[1][-1]), "zeros", trainable=False)
        return {"keys": kept, "values": kept}

    def flops(self, *shapes: Shape) -> int:
        return 4 * self.context * shapes[0][-1]

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        query, key, value, position = inputs
        place, kept = round(float(position[0, 0])), []
        for cache, own in zip((weights["keys"], weights["values"]), (key, value), strict=True):
            kept.append(cache[None].copy())
            kept[-1][0, place] = own[0, 0]
        mask = (np.arange(self.context) <= place)[None].astype(query.dtype)
        return self.attention.reference_forward([query, *kept, mask], {})

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        query, key, value, position, keys, values = inputs
        if query.images > 1:
            raise PlanError("A network with CachedAttention takes one sequence at a time: use predict_on_batch.")
        mask = e.tensor("mask", (1, self.context))
        e.launch(
            "attention.cl", "remember", (key.blocks + mask.blocks,), key.read, value.read, position.read, keys.update,
            values.update, mask.write, self.context, key.blocks, whole=True,
            head=query.channels // self.heads,
        )  # fmt: skip
        kept = [replace(cache, shape=(1, *cache.shape)) for cache in (keys, values)]
        self.attention.emit_forward(e, [query, *kept, mask], y)

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        raise PlanError("CachedAttention writes texts and isn't trained: train a network with Attention instead.")
