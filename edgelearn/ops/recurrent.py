"""Recurrent layers, LSTM and GRU: a launch for each stretch of steps, forward and backward through time.

A sequence of T steps has stretches of about √T. The forward pass multiplies all inputs of a stretch first, then one
launch goes from step to step. It keeps the states, h and of an LSTM c: that after a stretch, "layer/step 7", and those
within it together, "layer/steps 1 to 6"; and for the backward pass the gates, "layer/gates 1 to 7". A plan may
recompute each of them like layers' outputs, from the state before the stretch. Gradients of a stretch's gates become
those of inputs and weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any, ClassVar

import numpy as np

from edgelearn.errors import ShapeError
from edgelearn.launch import Access

from .base import Arrays, Gradients, Op, Targets, Weight, is_count
from .emit import Emitter
from .shapes import emit_zeros
from .target import Target, emit_copy
from .tensor import BLOCK, Shape, Tensor, ceil_div

BLOCKS = 64  # of units, that the work-items of a GPU's group divide
DEPTH = 4  # rows of a kernel of a work-item
SUMS = 4  # gradients of gates


@dataclass(frozen=True)
class Recurrent(Op):
    """Base of recurrent layers over (steps, channels).

    Arguments:
    - `units`: channels of the state.
    - `return_sequences`: the output is h of every step, (steps, units); else of the last one, (units,) (default False).
    - `return_state`: the output also has the last state's rows: (steps + rows, units) with `return_sequences`, else
      (rows, units), the state alone (default False).
    - `go_backwards`: read the steps from the last to the first; the output has them in that order (default False).
    - `use_bias`: add a bias to each gate (default True).
    - `truncate`: length of the stretches of steps between which no gradient goes back in time, truncated
      backpropagation (default None: all steps are one).

    Inputs: the sequence; a mask (steps,), 0 where a step is left out, so that the state stays; and a state (rows,
    units) to begin with, in any order after the sequence. Raises ShapeError for other shapes or settings.
    """

    units: int
    return_sequences: bool = False
    return_state: bool = False
    go_backwards: bool = False
    use_bias: bool = True
    truncate: int | None = None

    gates: ClassVar[int]
    sets: ClassVar[int]  # rows of the state
    biases: ClassVar[int]
    bias_initializer: ClassVar[str] = "zeros"
    code: ClassVar[str]  # of kernels/recurrent.cl

    def output_shape(self, *shapes: Shape) -> Shape:
        kind = type(self).__name__
        if not is_count(self.units) or not (self.truncate is None or is_count(self.truncate)):
            raise ShapeError(
                f"{kind} has 1 unit or more and truncates after 1 step or more, not {self.units} and {self.truncate}."
            )
        if not shapes or len(shapes[0]) != 2:
            raise ShapeError(f"{kind} takes sequences (steps, channels), not {shapes[0] if shapes else 'nothing'}.")
        known = [(shapes[0][0],), (self.sets, self.units)]
        rest = list(shapes[1:])
        if any(shape not in known for shape in rest) or len({len(shape) for shape in rest}) < len(rest):
            raise ShapeError(
                f"{kind} takes a mask {known[0]} and a state {known[1]} besides the sequence, not "
                f"{' and '.join(map(str, rest))}."
            )
        if self.return_sequences:
            return (shapes[0][0] + self.sets * self.return_state, self.units)
        return (self.sets, self.units) if self.return_state else (self.units,)

    def stretches(self, steps: int) -> list[range]:
        """The steps, by launch of the forward pass."""
        length = max(1, isqrt(steps))
        return [range(begin, min(begin + length, steps)) for begin in range(0, steps, length)]

    def states(self, layer: str, *shapes: Shape) -> dict[str, str]:
        """Names of the gates and states that the backward pass reads, of a layer called `layer`. Each name has that of
        the state which it is computed from, "" where a sequence begins."""
        found, before = {}, ""
        for stretch in self.stretches(shapes[0][0]):
            gates, inner, end = _names(layer, stretch)
            found[gates] = before
            found |= {inner: before} if len(stretch) > 1 else {}
            found |= {end: before} if stretch.stop < shapes[0][0] else {}
            before = end
        return found

    def weights(self, *shapes: Shape) -> dict[str, Weight]:
        inputs, units, gates = shapes[0][-1], self.units, self.gates
        found = {
            "kernel": Weight((inputs, gates * units), decays=True, matrix=(inputs * gates, units)),
            "recurrent_kernel": Weight(
                (units, gates * units), "orthogonal", decays=True, matrix=(units * gates, units)
            ),
        }
        if self.use_bias:
            shape = (gates * units,) if self.biases == 1 else (self.biases, gates * units)
            found["bias"] = Weight(shape, self.bias_initializer, matrix=(self.biases * gates, units))
        return found

    def flops(self, *shapes: Shape) -> int:
        steps, inputs = shapes[0]
        return 2 * steps * (inputs + self.units) * self.gates * self.units

    def cell(self, xp: Any, of_input: Sequence[Any], of_state: Sequence[Any], state: Sequence[Any]) -> list[Any]:
        """The state after a step, by rows, as an expression of a namespace `xp` such as `torch`: see formula.py.

        Arguments:
        - `of_input`, `of_state`: the sums of each gate that come from the sequence and from the state, with biases.
        - `state`: the state before, by rows.
        """
        raise NotImplementedError

    # -- reference -----------------------------------------------------------------------------------------------

    def _step(self, x: np.ndarray, state: np.ndarray, weights: Arrays) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """(the state after a step, what `_back` needs of it)"""
        raise NotImplementedError

    def _back(self, kept: tuple[np.ndarray, ...], d: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Gradients of the gates' sums as the input and as the state make them, and of the state directly, from those
        of the state after the step."""
        raise NotImplementedError

    def _read(self, inputs: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """(sequence, mask, first state)"""
        x, *rest = inputs
        mask = next((a for a in rest if a.ndim == 2), None)
        state = next((a for a in rest if a.ndim == 3), np.zeros((len(x), self.sets, self.units), x.dtype))
        return x, mask, state

    def places(self, steps: int) -> range:
        """Rows of the sequence in the order they are read."""
        return range(steps - 1, -1, -1) if self.go_backwards else range(steps)

    def _run(self, inputs: list[np.ndarray], weights: Arrays) -> tuple[list[np.ndarray], list]:
        x, mask, state = self._read(inputs)
        states, kept = [state], []
        for place in self.places(x.shape[1]):
            after, more = self._step(x[:, place], state, weights)
            if mask is not None:
                after = np.where((mask[:, place] != 0)[:, None, None], after, state)
            states.append(state := after)
            kept.append(more)
        return states, kept

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        states, _ = self._run(inputs, weights)
        if not self.return_sequences:
            return states[-1] if self.return_state else states[-1][:, 0]
        y = np.stack([state[:, 0] for state in states[1:]], 1)
        return np.concatenate([y, states[-1]], 1) if self.return_state else y

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        x, mask, first = self._read(inputs)
        states, kept = self._run(inputs, weights)
        steps, dx = x.shape[1], np.zeros_like(x)
        gradients = {role: np.zeros_like(w) for role, w in weights.items()}
        d = np.zeros_like(first)
        if self.return_state:
            d += dy[:, -self.sets :]
        elif not self.return_sequences:
            d[:, 0] += dy
        for step, place in reversed(list(enumerate(self.places(steps)))):
            if self.return_sequences:
                d[:, 0] += dy[:, step]
            of_input, of_state, direct = self._back(kept[step], d)
            if mask is not None:
                there = (mask[:, place] != 0)[:, None]
                of_input, of_state = of_input * there, of_state * there
                direct = np.where(there[..., None], direct, d)
            gradients["kernel"] += x[:, place].T @ of_input
            gradients["recurrent_kernel"] += states[step][:, 0].T @ of_state
            if self.use_bias:
                gradients["bias"] += np.stack([of_input.sum(0), of_state.sum(0)][: self.biases]).reshape(
                    gradients["bias"].shape
                )
            dx[:, place] = of_input @ weights["kernel"].T
            d = direct.copy()
            d[:, 0] += of_state @ weights["recurrent_kernel"].T
            if self.truncate and step and step % self.truncate == 0:
                d[:] = 0
        others = [np.zeros_like(a) if a.ndim == 2 else d for a in inputs[1:]]
        return [dx, *others], gradients

    # -- launches ------------------------------------------------------------------------------------------------

    def _split(self, inputs: list[Tensor]) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """(sequence, mask and first state by name, weights by role)"""
        roles = ["kernel", "recurrent_kernel", *(["bias"] if self.use_bias else [])]
        x, *rest = inputs[: len(inputs) - len(roles)]
        others = {"mask" if len(tensor.shape) == 2 else "state": tensor for tensor in rest}
        return x, others, dict(zip(roles, inputs[-len(roles) :], strict=True))

    def _emit_sums(self, e: Emitter, inputs: list[Tensor], places: Sequence[int]) -> Tensor:
        """Emit what the gates of a stretch get from rows `places` of the sequence."""
        x, _, weights = self._split(inputs)
        n, steps, channels = x.shape
        sums = e.tensor("sums of gates", (len(places), n, SUMS, self.units))
        read = [x.read, *(weights[role].read for role in weights if role != "recurrent_kernel")]
        e.launch(
            "recurrent.cl", "cell_sums", (ceil_div(len(places) * n, _rows(e)), sums.blocks), *read, sums.write, n,
            steps, channels, self.units, places[0], self._direction, len(places), cell=self.code, rows=_rows(e),
            together=_together(e, _rows(e), self.gates), bias=self.use_bias,
            flops=2 * len(places) * n * channels * self.gates * self.units,
        )  # fmt: skip
        return sums

    @property
    def _direction(self) -> int:
        return -1 if self.go_backwards else 1

    def _emit_stretch(
        self, e: Emitter, kernel: str, n: int, places: Sequence[int], read: Sequence[Tensor | None],
        written: Sequence[Access], numbers: Sequence[int] = (), **macros: Any,
    ) -> None:  # fmt: skip
        """Emit a kernel that goes through the steps of a stretch: a work-group for some images."""
        blocks = ceil_div(self.units, BLOCK)
        lanes = min(blocks, BLOCKS) if e.traits.gpu else 1
        turns = ceil_div(n, e.traits.compute_units * _rows(e))
        rows = ceil_div(n, e.traits.compute_units * turns)  # as many groups for each compute unit
        e.launch(
            "recurrent.cl", kernel, (ceil_div(n, rows) * lanes,), *(tensor.read for tensor in read if tensor), *written,
            n, self.units, places[0], self._direction, len(places), *numbers, cell=self.code, rows=rows,
            together=_together(e, rows, self.gates), group=lanes * BLOCK // e.traits.vector, inner=len(places) > 1,
            **macros, flops=2 * len(places) * n * self.units * self.gates * self.units,
        )  # fmt: skip

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        x, others, weights = self._split(inputs)
        n, steps, _ = x.shape
        before, mask, rows = others.get("state"), others.get("mask"), y.rows // n
        for stretch in self.stretches(steps):
            places = self.places(steps)[stretch.start : stretch.stop]
            inner = e.tensor("states", (len(stretch) - 1, n, self.sets, self.units)) if len(stretch) > 1 else None
            after = e.tensor("state", (n, self.sets, self.units))
            gates = e.tensor("gates", (len(stretch), n, SUMS, self.units)) if e.keeps else None
            sums = self._emit_sums(e, inputs, places)
            self._emit_stretch(
                e, "cell_forward", n, places, (sums, weights["recurrent_kernel"], before, mask),
                [tensor.write for tensor in (inner, after, gates) if tensor], continues=before is not None,
                masked=mask is not None, keeps=e.keeps,
            )  # fmt: skip
            kept = zip(_names(e.layer, stretch), (gates, inner, after), strict=True)
            e.steps |= {name: tensor for name, tensor in kept if tensor}
            before = after
            if self.return_sequences:
                self._emit_copy(e, after, inner, y, n, stretch.start)
        assert before is not None
        if self.return_state:
            for number in range(self.sets):
                self._emit_copy(e, before, None, y, n, rows - self.sets + number, number)
        elif not self.return_sequences:
            self._emit_copy(e, before, None, y, n, 0)

    def _emit_copy(
        self, e: Emitter, after: Tensor, inner: Tensor | None, y: Tensor, n: int, place: int, number: int = 0
    ) -> None:
        """Emit y's rows from `place` on, of row `number` of the states of a stretch, or of the state `after` it."""
        used = 1 + (inner.shape[0] if inner else 0)
        e.launch(
            "recurrent.cl", "copy_states", (used * n, y.blocks), after.read, *([inner.read] if inner else []), y.write,
            n, y.rows // n, place, number, used, cell=self.code, inner=inner is not None,
        )  # fmt: skip

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        x, others, weights = self._split(inputs)
        n, steps, channels = x.shape
        extra = dict(zip(others, targets[1 : 1 + len(others)], strict=True))
        totals = dict(zip(weights, targets[len(inputs) - len(weights) :], strict=True))
        if (of_mask := extra.get("mask")) is not None:
            emit_zeros(e, dy, of_mask)
        turned = self._turned(e, "recurrent_kernel", weights["recurrent_kernel"], self.units)
        turned_input = self._turned(e, "kernel", weights["kernel"], channels) if targets[0] else None
        rows, mask, begin = dy.rows // n, others.get("mask"), others.get("state")
        stretches = self.stretches(steps)
        befores = [begin, *(e.steps[_names(e.layer, stretch)[-1]] for stretch in stretches[:-1])]
        later = dy if self.return_state else None
        for number in reversed(range(len(stretches))):
            stretch, before = stretches[number], befores[number]
            places = self.places(steps)[stretch.start : stretch.stop]
            kept, within, _ = _names(e.layer, stretch)
            inner = e.steps[within] if len(stretch) > 1 else None
            gates = e.tensor("gradients of gates", (len(places), n, SUMS, self.units))
            earlier = e.tensor("gradient of the state", (n, self.sets, self.units))
            last = stretch.stop == steps
            rows_of_later = (rows, rows - self.sets) if later is dy else (self.sets, 0)
            reads_output = self.return_sequences or (last and not self.return_state)
            self._emit_stretch(
                e, "cell_backward", n, places,
                (e.steps[kept], turned, before, inner, mask, dy if reads_output else None, later),
                [gates.write, earlier.write], (stretch.start, steps, self.truncate or 0, rows, *rows_of_later),
                continues=before is not None, masked=mask is not None, reads_output=reads_output,
                reads_later=later is not None, sequences=self.return_sequences,
            )  # fmt: skip
            later = earlier
            self._emit_gradients(e, x, gates, before, inner, turned_input, targets[0], totals, places, not last)
        if (of_state := extra.get("state")) is not None and later is not None:
            emit_copy(e, later, of_state)

    def _turned(self, e: Emitter, name: str, weight: Tensor, inputs: int) -> Tensor:
        """A kernel with units in its rows."""
        turned = e.tensor(f"turned {name}", (self.units * self.gates, inputs))
        e.launch(
            "recurrent.cl", "turn_kernel", (turned.rows, turned.blocks), weight.read, turned.write, inputs, self.units,
            cell=self.code,
        )  # fmt: skip
        return turned

    def _emit_gradients(
        self, e: Emitter, x: Tensor, gates: Tensor, before: Tensor | None, inner: Tensor | None, turned: Tensor | None,
        dx: Target | None, totals: dict[str, Target | None], places: Sequence[int], started: bool,
    ) -> None:  # fmt: skip
        """Emit the shares of a stretch, which reads rows `places`, in the gradients of the sequence and of the weights.
        `started`: other stretches have written theirs."""
        n, steps, channels = x.shape
        used, states = len(places), n * self.sets
        if dx is not None and turned is not None:
            e.launch(
                "recurrent.cl", "cell_backward_input", (ceil_div(used * n, _rows(e)), x.blocks), gates.read,
                turned.read, n, self.units, used, steps, places[0], self._direction, *dx.arguments, cell=self.code,
                rows=_rows(e), flops=2 * used * n * channels * self.gates * self.units, **dx.macros,
            )  # fmt: skip
        # (values, channels, first slot, end, rows; of the row of a slot and image: slot's and image's stride, first)
        factors: dict[str, list[tuple[Any, ...]]] = {
            "kernel": [(x, channels, 0, used, n * steps, self._direction, steps, places[0])]
        }
        factors["recurrent_kernel"] = [
            (tensor, self.units, *numbers)
            for tensor, *numbers in (
                (inner, 1, used, (used - 1) * states, states, self.sets, -states),
                (before, 0, 1, states, 0, self.sets, 0),
            )
            if tensor is not None
        ] or [(gates, self.units, 0, 0, 0, 0, 0, 0)]  # fmt: skip
        for role, parts in factors.items():
            if (target := totals[role]) is None:
                continue
            add = started or target.accumulate
            for values, inputs, begin, end, *numbers in parts:
                e.launch(
                    "recurrent.cl", "cell_weights", (ceil_div(inputs, DEPTH), target.tensor.blocks), values.read,
                    gates.read, target.tensor.update if add else target.tensor.write, n, inputs, used, begin, end,
                    *numbers, int(role != "kernel"), int(add), cell=self.code, depth=DEPTH,
                    together=_together(e, DEPTH, self.gates),
                    flops=2 * (end - begin) * n * inputs * self.gates * self.units,
                )  # fmt: skip
                add = True
        if (target := totals.get("bias")) is not None:
            add = started or target.accumulate
            e.launch(
                "recurrent.cl", "cell_bias", (target.tensor.rows, target.tensor.blocks), gates.read,
                target.tensor.update if add else target.tensor.write, n, used, int(add), cell=self.code,
            )  # fmt: skip


@dataclass(frozen=True)
class LSTM(Recurrent):
    """Long short-term memory over (steps, channels) (Hochreiter and Schmidhuber 1997; Gers et al. 2000), as in Keras
    and PyTorch.

    Arguments:
    - `units`: channels of the state.
    - `return_sequences`: the output is h of every step, (steps, units); else of the last one, (units,) (default False).
    - `return_state`: the output also has the last state's rows, h and c: (steps + 2, units) with `return_sequences`,
      else (2, units), the state alone (default False).
    - `go_backwards`: read the steps from the last to the first; the output has them in that order (default False).
    - `use_bias`: add a bias to each gate (default True).
    - `truncate`: length of the stretches of steps between which no gradient goes back in time, truncated
      backpropagation (default None: all steps are one).

    Inputs: the sequence; a mask (steps,), 0 where a step is left out, so that the state stays; and a state (2, units)
    to begin with, in any order after the sequence. Weights as in Keras, gates in the order input, forget, candidate,
    output: kernel (channels, 4 units), recurrent_kernel (units, 4 units), bias (4 units), which begins with 1 for
    forget gates. Raises ShapeError for other shapes or settings.
    """

    gates = 4
    sets = 2
    biases = 1
    bias_initializer = "unit_forget_bias"
    code = "LSTM"

    def cell(self, xp: Any, of_input: Sequence[Any], of_state: Sequence[Any], state: Sequence[Any]) -> list[Any]:
        i, f, g, o = (a + b for a, b in zip(of_input, of_state, strict=True))
        c = xp.sigmoid(f) * state[1] + xp.sigmoid(i) * xp.tanh(g)
        return [xp.sigmoid(o) * xp.tanh(c), c]

    def _step(self, x: np.ndarray, state: np.ndarray, weights: Arrays) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        h, c = state[:, 0], state[:, 1]
        sums = x @ weights["kernel"] + h @ weights["recurrent_kernel"] + weights.get("bias", 0)
        i, f, g, o = np.split(sums, 4, 1)
        i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
        after = f * c + i * g
        return np.stack([o * np.tanh(after), after], 1), (i, f, g, o, c, np.tanh(after))

    def _back(self, kept: tuple[np.ndarray, ...], d: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        i, f, g, o, c, squashed = kept
        dh = d[:, 0]
        dc = d[:, 1] + dh * o * (1 - squashed**2)
        parts = dc * g * i * (1 - i), dc * c * f * (1 - f), dc * i * (1 - g**2), dh * squashed * o * (1 - o)
        sums = np.concatenate(parts, 1)
        return sums, sums, np.stack([np.zeros_like(dh), dc * f], 1)


@dataclass(frozen=True)
class GRU(Recurrent):
    """Gated recurrent unit over (steps, channels) (Cho et al. 2014), as in PyTorch, and in Keras by default
    (`reset_after=True`): the reset gate multiplies the product of the state.

    Arguments:
    - `units`: channels of the state.
    - `return_sequences`: the output is h of every step, (steps, units); else of the last one, (units,) (default False).
    - `return_state`: the output also has the last state's row: (steps + 1, units) with `return_sequences`, else (1,
      units) (default False).
    - `go_backwards`: read the steps from the last to the first; the output has them in that order (default False).
    - `use_bias`: add biases to each gate (default True).
    - `truncate`: length of the stretches of steps between which no gradient goes back in time, truncated
      backpropagation (default None: all steps are one).

    Inputs: the sequence; a mask (steps,), 0 where a step is left out, so that the state stays; and a state (1, units)
    to begin with, in any order after the sequence. Weights as in Keras, gates in the order update, reset, candidate:
    kernel (channels, 3 units), recurrent_kernel (units, 3 units), bias (2, 3 units), of the input and of the state.
    Raises ShapeError for other shapes or settings.
    """

    gates = 3
    sets = 1
    biases = 2
    code = "GRU"

    def cell(self, xp: Any, of_input: Sequence[Any], of_state: Sequence[Any], state: Sequence[Any]) -> list[Any]:
        (xz, xr, xn), (hz, hr, hn) = of_input, of_state
        z, candidate = xp.sigmoid(xz + hz), xp.tanh(xn + xp.sigmoid(xr + hr) * hn)
        return [candidate + z * (state[0] - candidate)]

    def _step(self, x: np.ndarray, state: np.ndarray, weights: Arrays) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        h = state[:, 0]
        bias = weights.get("bias", np.zeros((2, 1)))
        of_input, of_state = x @ weights["kernel"] + bias[0], h @ weights["recurrent_kernel"] + bias[1]
        (xz, xr, xn), (hz, hr, hn) = np.split(of_input, 3, 1), np.split(of_state, 3, 1)
        z, r = _sigmoid(xz + hz), _sigmoid(xr + hr)
        candidate = np.tanh(xn + r * hn)
        return (z * h + (1 - z) * candidate)[:, None], (z, r, candidate, hn, h)

    def _back(self, kept: tuple[np.ndarray, ...], d: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        z, r, candidate, hn, h = kept
        dh = d[:, 0]
        dz, dn = dh * (h - candidate) * z * (1 - z), dh * (1 - z) * (1 - candidate**2)
        dr = dn * hn * r * (1 - r)
        return np.concatenate([dz, dr, dn], 1), np.concatenate([dz, dr, dn * r], 1), (dh * z)[:, None]


def _names(layer: str, stretch: range) -> tuple[str, str, str]:
    """(name of the gates of a stretch of a layer, of the states within it, of that after it), by numbers of steps from
    1 on"""
    first, last = stretch.start + 1, stretch.stop
    return f"{layer}/gates {first} to {last}", f"{layer}/steps {first} to {last - 1}", f"{layer}/step {last}"


def _rows(e: Emitter) -> int:
    """Images, or rows of a product, of a work-item at most."""
    return 1 if e.traits.gpu else 4 if e.traits.vector_width >= BLOCK else 6


def _together(e: Emitter, rows: int, gates: int) -> int:
    """Gates whose sums of `rows` rows a work-item adds up at a time: all of `gates`, or without AVX-512 so many that
    registers hold them, 6 sums of two registers each."""
    if e.traits.gpu or e.traits.vector_width >= BLOCK or rows * gates <= 6:
        return gates
    return 2 if gates % 2 == 0 and rows * 2 <= 6 else 1


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
