"""Single ops of the engine: the launches that a plan would have for them, on memory laid out as a plan's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgelearn.launch import Buffer, Role
from edgelearn.ops import (
    SGD,
    BatchNormalization,
    Emitter,
    Epilogue,
    GlobalAveragePooling2D,
    LinearOp,
    Op,
    SoftmaxCrossEntropy,
    Target,
    Tensor,
    Traits,
    batchnorm,
    finish,
    pack,
    unpack,
)
from edgelearn.ops.control import INVERSE_BATCH, LEARNING_RATE, LOSS, SEEN, Control
from edgelearn.ops.function import LINEAR
from edgelearn.ops.jobs import Row
from edgelearn.ops.loss import emit_count
from edgelearn.ops.tensor import BLOCK
from edgelearn.ops.transpose import emit_prepared
from edgelearn.runtime import Context, Kernels, Runner

from .ops import OpProblem, digest

UNIT = 4 * BLOCK  # bytes: tables say where buffers start in blocks


def prepare(problem: OpProblem, trains: bool, context: Context) -> Callable[[], Callable[[], list[float]]]:
    """The step of an op: inputs, weights and results stay on the device."""
    stand = Stand(context)
    results = _EMIT.get(type(problem.spec.op), _linear)(stand, problem, trains)
    stand.emit_jobs()
    run = stand.build()

    def step() -> Callable[[], list[float]]:
        run()
        return lambda: digest(*(fetch() for fetch in results))

    return step


class Stand(Emitter):
    """An emitter whose tensors may have initial contents, and its memory: an allocation for each role."""

    def __init__(self, context: Context) -> None:
        super().__init__(Traits.of(context.device))
        self.context = context
        self.contents: dict[Buffer, Callable[[], np.ndarray]] = {}
        self.offsets: dict[Buffer, int] = {}
        self.memory: dict[Role, object] = {}

    def put(self, array: np.ndarray, role: Role = Role.PARAMETER, block: int = BLOCK) -> Tensor:
        """A tensor that starts as `array`: float32, or a row of int32."""
        tensor = self.tensor("initial", array.shape, role, block)
        self.contents[tensor.buffer] = lambda: array if array.dtype == np.int32 else pack(array, block)
        return tensor

    def table(self, rows: tuple[Row, ...]) -> Buffer:
        buffer = Buffer("table", 4 * len(rows) * len(rows[0]), Role.CONSTANT)
        self.contents[buffer] = lambda: np.array(
            [[self.offsets[w] // UNIT if isinstance(w, Buffer) else w for w in row] for row in rows], np.int32
        )
        return buffer

    def build(self) -> Callable[[], None]:
        """Allocate and fill every buffer that the launches access; returns a function that runs them and waits."""
        sizes: dict[Role, int] = {}
        align = self.context.device.alignment
        touched = [access.buffer for launch in self.launches for access in launch.accesses]
        for buffer in dict.fromkeys([*self.contents, *touched]):
            self.offsets[buffer] = sizes.get(buffer.role, 0)
            sizes[buffer.role] = self.offsets[buffer] + -(-buffer.nbytes // align) * align
        self.memory = {role: self.context.allocate(size, role.value) for role, size in sizes.items()}
        for memory in self.memory.values():
            self.context.fill_zero(memory.handle, memory.nbytes)
        for buffer, content in self.contents.items():
            self.context.write(self.memory[buffer.role].handle, content(), self.offsets[buffer])
        self.contents.clear()
        runner = Runner(self.context, Kernels(self.context), self.launches, self._at)

        def run() -> None:
            runner.enqueue()
            self.context.finish()

        return run

    def get(self, tensor: Tensor) -> np.ndarray:
        """The tensor's contents, in the network's shape."""
        words = np.empty(tensor.buffer.nbytes // 4, np.float32)
        handle, offset = self._at(tensor.buffer)
        return unpack(self.context.read(handle, words, offset), tensor.shape, tensor.block)

    def _at(self, buffer: Buffer) -> tuple[object, int]:
        return self.memory[buffer.role].handle, self.offsets[buffer]


Results = list[Callable[[], np.ndarray]]


def _linear(stand: Stand, problem: OpProblem, trains: bool) -> Results:
    spec, op = problem.spec, problem.spec.op
    assert isinstance(op, LinearOp)
    x = stand.put(problem.x, block=min(BLOCK, spec.shape[-1]))
    matrix = op.weights(spec.shape)["kernel"].packed_shape
    kernel = stand.put(problem.weights["kernel"].reshape(matrix))
    bias = stand.put(problem.weights["bias"]) if "bias" in problem.weights else None
    y = stand.tensor("y", (len(problem.x), *spec.output_shape))
    op.emit_linear(stand, x, kernel, y, Epilogue(None, bias))
    if not trains:
        return [lambda: stand.get(y)]
    dy = stand.put(problem.dy)
    results: Results = [lambda: stand.get(y)]
    if not spec.reads_pictures:
        dx = stand.tensor("dx", problem.x.shape)
        prepared = emit_prepared(stand, op.backward_view(stand, x, kernel, None))
        stand.emit_jobs()
        op.emit_backward_data(stand, x, prepared, dy, Target(dx))
        results.append(lambda: stand.get(dx))
    dkernel = stand.tensor("dkernel", matrix, Role.GRADIENT)
    dbias = stand.tensor("dbias", bias.shape, Role.GRADIENT) if bias else None
    results.append(lambda: stand.get(dkernel))
    if dbias is not None:
        results.append(lambda tensor=dbias: stand.get(tensor))
    for total in filter(None, op.emit_backward_weights(stand, x, dy, dkernel, dbias, add=False)):
        finish.emit_sum(stand, total)
    return results


def _plain(stand: Stand, problem: OpProblem, trains: bool) -> Results:
    op = problem.spec.op
    assert isinstance(op, Op)
    x, y = stand.put(problem.x), stand.tensor("y", (len(problem.x), *problem.spec.output_shape))
    op.emit_forward(stand, [x], y)
    if not trains:
        return [lambda: stand.get(y)]
    dx = stand.tensor("dx", problem.x.shape)
    op.emit_backward(stand, [x], y, stand.put(problem.dy), [Target(dx)])
    return [lambda: stand.get(y), lambda: stand.get(dx)]


def _batchnorm(stand: Stand, problem: OpProblem, trains: bool) -> Results:
    op, x, y = problem.spec.op, stand.put(problem.x), stand.tensor("y", problem.x.shape)
    assert isinstance(op, BatchNormalization)
    weights = {role: stand.put(array) for role, array in problem.weights.items()}
    statistics = batchnorm.emit_batch(stand, op, x, weights, Target(y), LINEAR)
    if not trains:
        return [lambda: stand.get(y)]
    dx = stand.tensor("dx", problem.x.shape)
    dgamma, dbeta = (stand.tensor(name, problem.spec.shape[-1:], Role.GRADIENT) for name in ("dgamma", "dbeta"))
    dy, target = stand.put(problem.dy), Target(dx)
    batchnorm.emit_backward(stand, x, dy, statistics, dgamma, dbeta, target, kept=False, add=False)
    return [lambda t=t: stand.get(t) for t in (y, dx, dgamma, dbeta)]


def _control(stand: Stand, problem: OpProblem) -> Control:
    scalars = np.zeros((1, 16), np.float32)
    scalars[0, [INVERSE_BATCH, LEARNING_RATE]] = 1 / len(problem.x), problem.learning_rate
    counters = np.zeros((1, 16), np.float32)
    labels = stand.put(problem.labels.astype(np.int32)[None], Role.INPUT)
    return Control(stand.put(scalars, Role.CONTROL), stand.put(counters, Role.CONTROL), labels)


def _loss(stand: Stand, problem: OpProblem, trains: bool) -> Results:
    x, control = stand.put(problem.x), _control(stand, problem)
    dx = stand.tensor("dx", problem.x.shape)
    emit_count(stand, [SoftmaxCrossEntropy().emit(stand, x, control, dx)], control, len(problem.x))

    def mean_loss() -> np.ndarray:
        counters = stand.get(control.counters)[0]  # they go on counting from step to step
        return counters[LOSS] / counters[SEEN]

    return [mean_loss, lambda: stand.get(dx)]


def _update(stand: Stand, problem: OpProblem, trains: bool) -> Results:
    w, g, control = stand.put(problem.x), stand.put(problem.dy, Role.GRADIENT), _control(stand, problem)
    SGD().emit_update(stand, w.buffer, g.buffer, [], control, decay=False)
    return [lambda: stand.get(w)]


_EMIT = {GlobalAveragePooling2D: _plain, BatchNormalization: _batchnorm, SoftmaxCrossEntropy: _loss, SGD: _update}
