"""Recurrent layers, LSTM and GRU: a launch for each step of a sequence, forward and backward through time.

The forward pass keeps a state of each step, h and of an LSTM c, as a tensor of its own, "layer/step 3", which a plan
may recompute like a layer's output. The backward pass computes the gates again from it, so nothing else is kept. It
goes back by chunks of CHUNK steps, whose gates' gradients become those of inputs and weights together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from edgelearn.errors import ShapeError
from edgelearn.launch import Access

from .base import Arrays, Gradients, Op, Targets, Weight, is_count
from .emit import Emitter
from .shapes import emit_zeros
from .target import Target, emit_copy
from .tensor import BLOCK, Shape, Tensor, ceil_div

CHUNK = 16  # steps whose gradients of weights are added up by one launch
ROWS = 4  # images of a work-item, as in kernels/recurrent.cl
DEPTH = 4  # rows of a kernel of a work-item
SUMS = 4  # gradients of gates


def step_name(layer: str, step: int) -> str:
    """Name of the state after `step` steps of a recurrent layer."""
    return f"{layer}/step {step}"


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

    def states(self, *shapes: Shape) -> int:
        """Number of states between steps, which the backward pass reads."""
        return shapes[0][0] - 1

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

    def _macros(self, e: Emitter, others: dict[str, Tensor], before: Tensor | None) -> dict[str, Any]:
        """Macros of kernels/recurrent.cl."""
        settings = {"bias": self.use_bias, "masked": "mask" in others, "begins": before is None}
        return {"cell": self.code, "rows": _rows(e), **settings}

    def _emit_step(
        self, e: Emitter, kernel: str, place: int, inputs: list[Tensor], before: Tensor | None, *more: Access | int,
        **macros: Any,
    ) -> None:  # fmt: skip
        """Emit a kernel that computes the gates of a step, which reads row `place` of the sequence."""
        x, others, weights = self._split(inputs)
        read = [
            x,
            *weights.values(),
            *([before] if before else []),
            *(others[name] for name in ("mask",) if name in others),
        ]
        n, steps, channels = x.shape
        accesses = [argument for argument in more if isinstance(argument, Access)]
        numbers = [argument for argument in more if not isinstance(argument, Access)]
        grid = ceil_div(n, _rows(e)), ceil_div(self.units, BLOCK)
        e.launch(
            "recurrent.cl", kernel, grid, *(tensor.read for tensor in read if tensor), *accesses,
            n, steps, place, channels, self.units, *numbers,
            flops=2 * n * (channels + (self.units if before else 0)) * self.gates * self.units,
            **self._macros(e, others, before), **macros,
        )  # fmt: skip

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        x, others, _ = self._split(inputs)
        n, steps, _ = x.shape
        state = others.get("state")
        rows = y.rows // n
        for step, place in enumerate(self.places(steps), start=1):
            after = e.tensor(f"state {step}", (n, self.sets, self.units))
            self._emit_step(e, "cell_forward", place, inputs, state, after.write)
            if step < steps:
                e.steps[step_name(e.layer, step)] = after
            state = after
            if self.return_sequences or (step == steps and not self.return_state):
                self._emit_copy(e, state, y, n, rows, step - 1 if self.return_sequences else 0, 0)
        if self.return_state and state is not None:
            for number in range(self.sets):
                self._emit_copy(e, state, y, n, rows, rows - self.sets + number, number)

    def _emit_copy(self, e: Emitter, state: Tensor, y: Tensor, n: int, rows: int, place: int, number: int) -> None:
        e.launch(
            "recurrent.cl", "copy_state", (n, y.blocks), state.read, y.write, n, rows, place, number, cell=self.code
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
        places, rows, slots = list(self.places(steps)), dy.rows // n, min(CHUNK, steps)
        later, started = None, False
        for begin in reversed(range(0, steps, slots)):
            used = min(slots, steps - begin)
            gates = e.tensor("gradients of gates", (slots, n, SUMS, self.units))
            states = e.tensor("states before", (slots, n, self.units))
            for step in reversed(range(begin, begin + used)):
                before = e.steps[step_name(e.layer, step)] if step else others.get("state")
                earlier = e.tensor("gradient of the state", (n, self.sets, self.units)) if before else None
                last = step == steps - 1
                reads_output = self.return_sequences or (last and not self.return_state)
                after = dy if last and self.return_state else later
                first = (rows - self.sets, rows) if after is dy else (0, self.sets)
                read = [dy.read] * reads_output + ([after.read] if after else [])
                fresh = step == begin + used - 1
                written = [tensor.write if fresh else tensor.update for tensor in (gates, states)]
                self._emit_step(
                    e, "cell_backward", places[step], inputs, before, *read, *written,
                    *([earlier.write] if earlier else []), step - begin, slots, rows,
                    step if self.return_sequences else 0, first[1], first[0], reads_output=reads_output,
                    reads_later=after is not None,
                )  # fmt: skip
                passes = earlier is not None and not (self.truncate and step and step % self.truncate == 0)
                if earlier is not None and passes and (step or extra.get("state")):
                    e.launch(
                        "recurrent.cl", "cell_backward_state", (ceil_div(n, _rows(e)), earlier.blocks), gates.read,
                        turned.read, earlier.update, n, self.units, step - begin, slots, cell=self.code,
                        rows=_rows(e), flops=2 * n * self.units * self.gates * self.units,
                    )  # fmt: skip
                later = earlier if passes else None
            self._emit_chunk(e, x, gates, states, turned_input, targets[0], totals, places[begin], used, started)
            started = True
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

    def _emit_chunk(
        self, e: Emitter, x: Tensor, gates: Tensor, states: Tensor, turned: Tensor | None, dx: Target | None,
        totals: dict[str, Target | None], place: int, used: int, started: bool,
    ) -> None:  # fmt: skip
        """Emit the shares of `used` steps, the first of which reads row `place`, in the gradients of the sequence and
        of the weights. `started`: other steps have written theirs."""
        n, steps, channels = x.shape
        slots, step = gates.shape[0], -1 if self.go_backwards else 1
        if dx is not None and turned is not None:
            e.launch(
                "recurrent.cl", "cell_backward_input", (ceil_div(used * n, _rows(e)), x.blocks), gates.read,
                turned.read, n, self.units, slots, used, steps, place, step, *dx.arguments, cell=self.code,
                rows=_rows(e), flops=2 * used * n * channels * self.gates * self.units, **dx.macros,
            )  # fmt: skip
        for role, values, inputs, m, slot_stride, image_stride, first in (
            ("kernel", x, channels, n * steps, step, steps, place),
            ("recurrent_kernel", states, self.units, slots * n, n, 1, 0),
        ):
            if (target := totals[role]) is not None:
                add = started or target.accumulate
                e.launch(
                    "recurrent.cl", "cell_weights", (ceil_div(inputs, DEPTH), target.tensor.blocks), values.read,
                    gates.read, target.tensor.update if add else target.tensor.write, n, inputs, self.units, slots,
                    used, m, slot_stride, image_stride, first, int(role != "kernel"), int(add), cell=self.code,
                    depth=DEPTH,
                    flops=2 * used * n * inputs * self.gates * self.units,
                )  # fmt: skip
        if (target := totals.get("bias")) is not None:
            add = started or target.accumulate
            e.launch(
                "recurrent.cl", "cell_bias", (target.tensor.rows, target.tensor.blocks), gates.read,
                target.tensor.update if add else target.tensor.write, n, slots, used, int(add), cell=self.code,
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


def _rows(e: Emitter) -> int:
    """Images of a work-item."""
    return 1 if e.traits.gpu else ROWS


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
