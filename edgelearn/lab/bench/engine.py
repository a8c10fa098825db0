"""edgelearn itself; single ops as the launches that a plan would have for them, on memory laid out as a plan's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgelearn.compile import Precision, Request, make_plan
from edgelearn.compile.precision import named_precision
from edgelearn.launch import Buffer, Role
from edgelearn.ops import (
    SGD,
    BatchNormalization,
    Compute,
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
from edgelearn.ops.constants import Counter, Scalar
from edgelearn.ops.emit import Control, Row
from edgelearn.ops.formats import emit_prepared
from edgelearn.ops.loss import emit_count
from edgelearn.ops.tensor import BLOCK, LINEAR
from edgelearn.runtime import Context, Kernels, Runner, Session, choose_device
from edgelearn.runtime.session import InputArrays

from .contenders import on_nvidia
from .workloads import FULL, INT8, OpProblem, Problem, Workload, digest, make_network, make_problem

UNIT = 4 * BLOCK  # bytes: tables say where buffers start in blocks


def prepare(problem: OpProblem, trains: bool, context: Context) -> Callable[[], Callable[[], list[float]]]:
    """The step of an op: inputs, weights and results stay on the device."""
    stand = Stand(context)
    results = _EMIT.get(type(problem.spec.op), _linear)(stand, problem, trains)
    stand.emit_jobs()
    run = stand.build()

    def step() -> Callable[[], list[float]]:
        run()
        return lambda: digest(*(stand.get(found) if isinstance(found, Tensor) else found() for found in results))

    return step


class Stand(Emitter):
    """An emitter whose tensors may have initial contents, and the memory of all its buffers."""

    def __init__(self, context: Context) -> None:
        super().__init__(Traits.of(context.device))
        self.context = context
        self.contents: dict[Buffer, Callable[[], np.ndarray]] = {}
        self.offsets: dict[Buffer, int] = {}

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
        size, align = 0, self.context.device.alignment
        touched = [access.buffer for launch in self.launches for access in launch.accesses]
        for buffer in dict.fromkeys([*self.contents, *touched]):
            self.offsets[buffer] = size
            size += -(-buffer.nbytes // align) * align
        self.memory = self.context.allocate(size, "op")
        self.context.fill_zero(self.memory.handle, size)
        for buffer, content in self.contents.items():
            self.context.write(self.memory.handle, content(), self.offsets[buffer])
        self.contents.clear()
        place = lambda buffer: (self.memory.handle, self.offsets[buffer])  # noqa: E731
        runner = Runner(self.context, Kernels(self.context), self.launches, place)

        def run() -> None:
            runner.enqueue()
            self.context.finish()

        return run

    def get(self, tensor: Tensor) -> np.ndarray:
        """The tensor's contents, in the network's shape."""
        words = np.empty(tensor.buffer.nbytes // 4, np.float32)
        self.context.read(self.memory.handle, words, self.offsets[tensor.buffer])
        return unpack(words, tensor.shape, tensor.block)


Results = Sequence[Tensor | Callable[[], np.ndarray]]


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
        return [y]
    dy, results = stand.put(problem.dy), [y]
    if not spec.reads_pictures:
        dx = stand.tensor("dx", problem.x.shape)
        prepared = emit_prepared(stand, op.backward_view(stand, x, kernel, None))
        stand.emit_jobs()
        op.emit_backward_data(stand, x, prepared, dy, Target(dx))
        results.append(dx)
    dkernel = stand.tensor("dkernel", matrix, Role.GRADIENT)
    dbias = stand.tensor("dbias", bias.shape, Role.GRADIENT) if bias else None
    for total in filter(None, op.emit_backward_weights(stand, x, dy, dkernel, dbias, add=False)):
        finish.emit_sum(stand, total)
    return [*results, dkernel, *([dbias] if dbias else [])]


def _plain(stand: Stand, problem: OpProblem, trains: bool) -> Results:
    op = problem.spec.op
    assert isinstance(op, Op)
    x, y = stand.put(problem.x), stand.tensor("y", (len(problem.x), *problem.spec.output_shape))
    op.emit_forward(stand, [x], y)
    if not trains:
        return [y]
    dx = stand.tensor("dx", problem.x.shape)
    op.emit_backward(stand, [x], y, stand.put(problem.dy), [Target(dx)])
    return [y, dx]


def _batchnorm(stand: Stand, problem: OpProblem, trains: bool) -> Results:
    op, x, y = problem.spec.op, stand.put(problem.x), stand.tensor("y", problem.x.shape)
    assert isinstance(op, BatchNormalization)
    weights = {role: stand.put(array) for role, array in problem.weights.items()}
    statistics = batchnorm.emit_batch(stand, op, x, weights, Target(y), LINEAR)
    if not trains:
        return [y]
    dx = stand.tensor("dx", problem.x.shape)
    dgamma, dbeta = (stand.tensor(name, problem.spec.shape[-1:], Role.GRADIENT) for name in ("dgamma", "dbeta"))
    dy, target = stand.put(problem.dy), Target(dx)
    batchnorm.emit_backward(stand, x, dy, statistics, dgamma, dbeta, target, kept=False, add=False)
    return [y, dx, dgamma, dbeta]


def _control(stand: Stand, problem: OpProblem) -> Control:
    scalars, counters = np.zeros((2, 1, 16), np.float32)
    scalars[0, [Scalar.INVERSE_BATCH, Scalar.LEARNING_RATE]] = 1 / len(problem.x), problem.learning_rate
    labels = stand.put(problem.labels.astype(np.int32)[None], Role.INPUT)
    return Control(stand.put(scalars, Role.CONTROL), stand.put(counters, Role.CONTROL), labels)


def _loss(stand: Stand, problem: OpProblem, trains: bool) -> Results:
    x, control = stand.put(problem.x), _control(stand, problem)
    dx = stand.tensor("dx", problem.x.shape)
    emit_count(stand, [SoftmaxCrossEntropy().emit(stand, x, control, dx)], control, len(problem.x))

    def mean_loss() -> np.ndarray:
        counters = stand.get(control.counters)[0]  # they go on counting from step to step
        return counters[Counter.LOSS] / counters[Counter.SEEN]

    return [mean_loss, dx]


def _update(stand: Stand, problem: OpProblem, trains: bool) -> Results:
    w, g, control = stand.put(problem.x), stand.put(problem.dy, Role.GRADIENT), _control(stand, problem)
    SGD().emit_update(stand, w.buffer, g.buffer, [], control, decay=False)
    return [w]


_EMIT = {GlobalAveragePooling2D: _plain, BatchNormalization: _batchnorm, SoftmaxCrossEntropy: _loss, SGD: _update}
RESIDENT, FED = "", "fed"  # the inputs stay on the device, or are copied there in every step
ONE_LAUNCH = "one launch"  # of inputs that stay there
RANGE_STEPS = 3  # that change no weight and leave the ranges that int8 predictions use
PARTS = {"cached": 15, "train": 4}  # examples a micro-batch whose activations stay in a CPU's cache


class Engine:
    """Variants: inputs that stay on the device, as the peers' stay in memory, or `fed` to it in each step, as `fit`
    does; where that gives the same update, also in micro-batches; and of single examples on NVIDIA's GPUs, all launches
    as one. Single ops are float32."""

    name = "edgelearn"

    def __init__(self, cores: int, device: str) -> None:
        self.context = Context(choose_device(device).device)

    def variants(self, workload: Workload) -> list[str]:
        if workload.op:
            return [RESIDENT] if workload.compute == FULL else []
        if workload.micro_batch < workload.batch:
            return [FED]
        if workload.batch == 1 and workload.trains and on_nvidia(self.context.device.id):
            return [RESIDENT, FED, ONE_LAUNCH]
        part = PARTS.get(workload.kind, workload.batch)
        return [RESIDENT, FED] + ([_in_parts(part)] if part < workload.batch else [])

    def prepare(self, workload: Workload, variant: str) -> Callable[[], Any]:
        problem = make_problem(workload)
        if isinstance(problem, OpProblem):
            return prepare(problem, workload.trains, self.context)
        part = PARTS.get(workload.kind)
        micro = part if part and variant == _in_parts(part) else workload.micro_batch
        request = replace(make_request(workload, micro), one_launch=variant == ONE_LAUNCH)
        session = Session(make_plan(request, self.context.device), self.context)
        session.load(problem.weights)
        return _step(session, workload, problem, variant in (RESIDENT, ONE_LAUNCH))


def _in_parts(examples: int) -> str:
    return f"fed, {examples} at a time"


def make_request(workload: Workload, micro_batch: int) -> Request:
    """The request for a plan of this workload. Raises as `make_network`."""
    learns = workload.trains or workload.compute == INT8  # ranges of inference
    optimizer = SGD(workload.learning_rate, momentum=workload.momentum) if learns else None
    loss = SoftmaxCrossEntropy() if learns else None
    integers = workload.compute == INT8
    return Request(
        make_network(workload), workload.batch, micro_batch, optimizer, workload.batchnorm, loss=loss,
        precision=named_precision(INT8) if integers else Precision(),
        compute=Compute() if integers else Compute(workload.compute),
    )  # fmt: skip


def _step(session: Session, workload: Workload, problem: Problem, resident: bool) -> Callable[[], Any]:
    parts = problem.parts(session.plan.request.micro_batch)
    inputs: list[InputArrays | None] = [session.pack(examples) for examples, _ in parts]
    labels = [labels for _, labels in parts]
    numbers = itertools.count(1)

    def train(rate: float) -> float:
        return session.train(zip(inputs, labels, strict=True), workload.batch, rate, next(numbers))[0]

    if workload.compute == INT8 and not workload.trains:
        for _ in range(RANGE_STEPS):
            train(0.0)

    def step() -> float | np.ndarray:
        trains = workload.trains
        result = train(workload.learning_rate) if trains else session.predict(inputs[0], workload.batch)
        if resident:
            inputs[0] = None  # from now on
        return result

    return step
