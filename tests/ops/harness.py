"""Run an op's launches on plain buffers, and compare with its float64 reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from edgelearn.device import KernelConfig
from edgelearn.launch import Buffer, Role, words_of
from edgelearn.ops import Emitter, Op, Target, Tensor, Traits, finish, pack, unpack
from edgelearn.ops.constants import Counter as Count
from edgelearn.ops.constants import Scalar
from edgelearn.ops.emit import Control
from edgelearn.ops.tensor import RELU6, blocked_bytes
from edgelearn.runtime import Context, Kernels, Runner

SIZES = (1, 33, 64)  # of channels, below a block, 3 and 4 blocks; of rows, odd and even
GPU = Traits(gpu=True, compute_units=8)
AS_GPUS_TOO = pytest.mark.parametrize("bench", ("", "as GPUs do"), indirect=True)


class Workbench(Emitter):
    """An emitter whose buffers are all separate, so that a write out of place shows. Outputs start as NaN: what a
    kernel forgets to write shows too."""

    def __init__(self, context: Context, kernels: Kernels) -> None:
        super().__init__(Traits.of(context.device))
        self.context, self.kernels = context, kernels
        self.memory: dict[Buffer, object] = {}
        self._partials: dict = {}
        self.turn, self.turns, self.pairs = 0, 1, True
        self.tried: dict[str, list[KernelConfig]] = {}
        self.candidates: dict[tuple, list[KernelConfig]] = {}  # by decision
        self.untried: dict[tuple, set[tuple[str, int]]] = {}  # values of sizes, by decision
        self.taken: dict[tuple, int] = {}  # numbers of this turn's candidates, by decision

    @contextmanager
    def choose(self, kernel: str, shape, candidates: list[KernelConfig]) -> Iterator[KernelConfig]:
        """As tuned, else the first candidate, unless `every_choice` asks for others: for the one whose `turn` it is,
        or, without `pairs`, for the one with most values that are untried."""
        self.turns = max(self.turns, len(candidates))
        decision = kernel, *shape
        self.candidates[decision] = candidates
        untried = self.untried.setdefault(decision, {value for c in candidates for value in c.items()})
        if decision not in self.taken:
            gains = [len(untried & candidate.items()) for candidate in candidates]
            self.taken[decision] = self.turn if self.pairs or not self.turn else gains.index(max(gains))
        turn = self.taken[decision] % len(candidates)
        with super().choose(kernel, shape, [*candidates[turn:], *candidates[:turn]]) as choice:
            self.tried.setdefault(kernel, []).append(choice)
            untried.difference_update(choice.items())
            yield choice

    def put(self, array: np.ndarray, block: int = 16, dtype: str = "float32", padding: int = 0) -> Tensor:
        """A tensor that holds `array`, and `padding` in the channels that fill it up."""
        tensor = self.empty(array.shape, block, dtype)
        words = (pack(array - padding, block) + padding).astype(dtype)
        self.context.write(self.memory[tensor.buffer].handle, words)
        return tensor

    def empty(self, shape: tuple[int, ...], block: int = 16, dtype: str = "float32") -> Tensor:
        nbytes = blocked_bytes(Tensor(None, shape).rows, shape[-1], block, dtype)
        return Tensor(self.allocate(Buffer("tensor", nbytes, Role.TEMPORARY, dtype=dtype)), shape, block)

    def control(self, targets: Tensor | None = None, weights: Tensor | None = None, **values: float) -> Control:
        """The numbers of an update as a session writes them: `values` of Scalar and Counter, by their names."""
        scalars, counters = np.zeros((2, 1, 16), np.float32)
        words = scalars.view(np.uint32)
        for name, value in values.items():
            if name == "seed":
                words[0, [Scalar.SEED, Scalar.SEED_HIGH]] = value & 0xFFFFFFFF, value >> 32
            elif name == "step":
                words[0, Scalar.STEP] = value
            elif name.upper() in Scalar.__members__:
                scalars[0, Scalar[name.upper()]] = value
            else:
                counters[0, Count[name.upper()]] = value
        return Control(self.put(scalars), self.put(counters), targets, weights)

    def count(self, control: Control, counter: Count) -> float:
        return self.get(control.counters)[0, counter]

    def job(self, *arguments, **keywords) -> None:
        """Every job a launch of its own: here every buffer has its own memory."""
        super().job(*arguments, **keywords)
        self.emit_jobs()

    def partials(self, name, groups, total):
        """Kept between micro-batches, as a plan does."""
        key = total, name
        if key not in self._partials:
            self._partials[key] = super().partials(name, groups, total)
        return self._partials[key]

    def table(self, rows) -> Buffer:
        words = np.array([[0 if isinstance(word, Buffer) else word for word in row] for row in rows], np.int32)
        buffer = self.allocate(Buffer("table", words.nbytes, Role.CONSTANT))
        self.context.write(self.memory[buffer].handle, words)
        return buffer

    def run(self) -> None:
        """Execute what was emitted so far."""
        for launch in self.launches:
            for access in launch.accesses:
                if access.buffer not in self.memory:
                    self.allocate(access.buffer)
        Runner(self.context, self.kernels, self.launches, lambda b: (self.memory[b].handle, 0)).enqueue()
        self.context.finish()
        self.launches.clear()

    def get(self, tensor: Tensor, zero: int = 0) -> np.ndarray:
        """What the tensor holds; fails if the padding of its channels isn't zero, or the integer that stands for it."""
        words = np.empty(tensor.blocks * tensor.rows * tensor.block, words_of(tensor.dtype))
        self.context.read(self.memory[tensor.buffer].handle, words)
        padding = words.reshape(tensor.blocks, -1, tensor.block)[-1, :, (tensor.channels - 1) % tensor.block + 1 :]
        assert (padding == zero).all(), "the padding of the channels must stay zero"
        return unpack(words, tensor.shape, tensor.block)

    def allocate(self, buffer: Buffer) -> Buffer:
        memory = self.memory[buffer] = self.context.allocate(buffer.nbytes, buffer.name)
        start = 0 if buffer.role is Role.CHECK else 0xFF  # a session's memory starts as zeros; checks rely on it
        self.context.write(memory.handle, np.full(buffer.nbytes, start, np.uint8))  # four of them are a NaN
        return buffer


def every_choice(bench: Workbench, check: Callable[[], None], pairs: bool = True) -> dict[str, list[KernelConfig]]:
    """Run `check`, which emits and compares, until every decision in it has had each of its candidates. Without
    `pairs`, until every size of every decision has had each of its values. Returns what was tried, by kernel."""
    bench.traits = replace(bench.traits, tuned={})
    bench.turn, bench.turns, bench.pairs, bench.tried, bench.candidates, bench.untried = 0, 1, pairs, {}, {}, {}
    while bench.turn < bench.turns if pairs else any(bench.untried.values()) or not bench.turn:
        bench.taken = {}
        check()
        bench.turn += 1
    return bench.tried


def close(actual: np.ndarray, expected: np.ndarray, tolerance: float = 2e-5) -> None:
    """Within `tolerance` of the largest expected value; NaN where NaN is expected."""
    assert actual.shape == expected.shape
    there = ~np.isnan(expected)
    assert np.array_equal(~np.isnan(actual), there)
    error = np.abs(actual - expected)[there].max(initial=0) / (np.abs(expected[there]).max(initial=0) + 1e-6)
    assert error <= tolerance, f"off by {error:.1e} of the largest value"


def in_turn(cases: list[tuple]) -> list[tuple]:
    """Each case with the way in which its results are written, by turns for an op's kind: kernels are compiled for each
    way, and write alike at all sizes."""
    counts = Counter[type]()
    return [(*case, counts.update([type(case[0])]) or counts[type(case[0])] - 1) for case in cases]


def chosen(ways: Sequence, way: int | None) -> Sequence:
    """All `ways`, or one."""
    return ways if way is None else [ways[way % len(ways)]]


def check_op(
    op: Op, bench: Workbench, rng: np.random.Generator, *shapes, n: int = 2, whole: bool = False, low: float = -3,
    last: np.ndarray | None = None, way: int | None = None,
) -> None:  # fmt: skip
    """Forward, and backward to every input and weight: as it is; only of the weights; only of the last input; masked
    and added to another share of an input, added to the share of an earlier micro-batch of a weight.

    Values go from `low` to 9, so that ReLU6's mask matters; `whole` numbers have many ties. `last`: the last input.
    `way`: gradients of inputs are added, if it is even, or written as they are, not both.
    """
    xs = [np.float32(rng.integers(low, 9, (n, *s)) if whole else rng.uniform(low, 9, (n, *s))) for s in shapes]
    xs = [np.float64(x) for x in xs] if last is None else [*map(np.float64, xs), last]
    shapes = [x.shape[1:] for x in xs]
    packed = {role: weight.packed_shape for role, weight in op.weights(*shapes).items()}
    weights = {role: rng.standard_normal(weight.shape) for role, weight in op.weights(*shapes).items()}
    y = op.reference_forward(xs, weights)
    assert y.shape == (len(y), *op.output_shape(*shapes))
    dy = rng.standard_normal(y.shape)
    dxs, dweights = op.reference_backward(xs, weights, dy)
    gradients = [*dxs, *(dweights[role].reshape(shape) for role, shape in packed.items())]
    txs, tws = [bench.put(x) for x in xs], [bench.put(w.reshape(packed[role])) for role, w in weights.items()]
    ty, tdy, tdws = bench.empty(y.shape), bench.put(dy), [bench.empty(shape) for shape in packed.values()]

    def target(number: int, added: bool) -> tuple[Target, np.ndarray]:
        """A target of a gradient, and what it holds afterwards."""
        g = gradients[number]
        if number >= len(xs):
            return Target(tdws[number - len(xs)], accumulate=added), g * (1 + added)
        if not added:
            return Target(bench.empty(g.shape)), g
        share = rng.standard_normal(g.shape) * np.nanmax(np.abs(g), initial=0)
        mask = (xs[number] > 0) & (xs[number] < 6)
        return Target(bench.put(share), txs[number], RELU6, accumulate=True), share + g * mask

    def backward(numbers: range, added: bool) -> None:
        wanted = {number: target(number, added) for number in numbers}
        targets = [wanted[number][0] if number in wanted else None for number in every]
        for total in op.emit_backward(bench, [*txs, *tws], ty, tdy, targets) or ():
            finish.emit_sum(bench, total)
        bench.run()
        for to, expected in wanted.values():
            close(bench.get(to.tensor), expected)

    op.emit_forward(bench, [*txs, *tws], ty)
    bench.run()
    close(bench.get(ty), y)
    every, ways = range(len(gradients)), chosen((True, False), way)
    if False in ways:
        backward(every, False)
    if xs and tws:
        backward(every[len(xs) :], False)
    if len(every) > 1 and xs:
        backward(every[len(xs) - 1 : len(xs)], False not in ways)
    if True in ways:
        backward(every, True)
