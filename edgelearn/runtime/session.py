"""A plan on a device: memory allocated, kernels compiled, steps run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from edgelearn.compile.lower import input_block
from edgelearn.compile.plan import Plan
from edgelearn.compile.program import Kind, Program, ProgramKey
from edgelearn.compile.storage import Weights
from edgelearn.errors import DeviceError, FormatError
from edgelearn.launch import Buffer, Launch, Role, Traffic
from edgelearn.ops import Optimizer, Tensor, pack, unpack
from edgelearn.ops import control as places
from edgelearn.ops.control import CORRECT, LOSS, NONFINITE
from edgelearn.ops.quantize import FIELDS, Quantizer, moved

from .context import Context
from .feature_cache import FeatureCache
from .kernels import Kernels, Progress
from .pages import Pages
from .runner import Runner

SENT = 4  # copies of inputs that may be on their way while the host goes on


class Session:
    """Runs a plan. Weights go in with `load`, come out with `weights`; steps change the device's copies.

    Kernels of what the plan is for are compiled at once; those of evaluation, in a plan that trains, when it is first
    asked for, since each takes memory. `progress` is told of both (see Kernels.compile)."""

    def __init__(
        self, plan: Plan, context: Context, kernels: Kernels | None = None, progress: Progress | None = None
    ) -> None:
        self.plan, self.context = plan, context
        self.kernels, self._progress = kernels or Kernels(context), progress
        self._memory = {role: context.allocate(size, role.value) for role, size in plan.bytes_by_role.items()}
        self._pages = Pages(plan.paged_bytes, plan.offload.folder) if plan.offload else None
        self._runners: dict[tuple, Runner] = {}
        self._sent: deque[Any] = deque()  # copies of inputs on their way
        self.ranges_known = False  # whether training has left ranges for quantized tensors
        self._examples = 0  # of the micro-batch that is on the device
        self._block = input_block(plan.request.network)
        training = plan.request.optimizer is not None
        programs = [p for key, p in plan.programs.items() if key.kind is Kind.TRAIN or not training]
        self.kernels.compile([launch for program in programs for launch in program.launches], progress)
        for memory in self._memory.values():  # last of all: what fails before drops memory that nothing is writing to
            context.fill_zero(memory.handle, memory.nbytes)

    # -- weights -------------------------------------------------------------------------------------------------

    def load(self, weights: Weights) -> None:
        """Copy weights to the device: trained and frozen ones, folded where the plan folds."""
        for buffer, fill in self.plan.storage.fill.items():
            self._write(buffer, fill(weights))
        self.context.finish()
        self.ranges_known = False

    def weights(self) -> Weights:
        """Float32 copies of what training may have changed, under the names and shapes of the network: trained
        parameters, and with batch statistics the moving ones."""
        return self._unpacked(self.changing)

    @property
    def changing(self) -> dict[str, Tensor]:
        """The tensors of weights that training may change, by name."""
        storage = self.plan.storage
        tensors = dict(storage.parameters)
        if self.plan.request.batchnorm == "batch":
            moving = ("/moving_mean", "/moving_variance")
            tensors |= {name: t for name, t in storage.frozen.items() if name.endswith(moving)}
        return tensors

    def gradients(self) -> Weights:
        """The gradients of the last mini-batch, as `weights`."""
        return self._unpacked(self.plan.storage.gradients)

    def optimizer_state(self) -> Weights:
        """The optimizer's slots, by "slot/parameter", in the parameters' shapes."""
        return self._unpacked(self.plan.storage.slot_tensors)

    def load_optimizer_state(self, state: Weights) -> None:
        """Raises FormatError when `state` is not of this optimizer and network."""
        slots = self.plan.storage.slot_tensors
        if set(state) != set(slots):
            raise FormatError("The optimizer state in the checkpoint belongs to another optimizer or other parameters.")
        for name, tensor in slots.items():
            self._write(tensor.buffer, pack(state[name].reshape(tensor.shape)))
        self.context.finish()

    def records(self) -> Weights:
        """What is known of the quantized tensors, by "layer/kind", in one read: (16,) as ops.quantize.FIELDS says."""
        words = self._range_words()
        return {name: self._record(words, q).copy() for name, q in self.plan.storage.quantizers.items()}

    def _range_words(self) -> np.ndarray:
        memory = self._memory.get(Role.RANGE)
        words = np.empty(memory.nbytes // 4 if memory else 0, np.float32)
        return self.context.read(memory.handle, words, 0) if memory else words

    def _record(self, words: np.ndarray, q: Quantizer) -> np.ndarray:
        start = self.plan.offsets[q.record.buffer] // 4
        return words[start : start + 16]

    def load_records(self, records: Weights) -> None:
        """Go on with the ranges that a training has left. Raises FormatError when tensors are missing, or
        a record isn't one."""
        quantizers = self.plan.storage.quantizers
        if missing := sorted(set(quantizers) - set(records)):
            raise FormatError(
                f"The ranges of quantized tensors lack '{missing[0]}': they are of another network or precision. "
                f"Compile with those that they are of."
            )
        for name, q in quantizers.items():
            record = np.asarray(records[name], np.float32)
            if record.shape != (len(FIELDS),):
                raise FormatError(f"The range of '{name}' is {record.shape}, not (16,): take another checkpoint.")
            self._write(q.record.buffer, record)
        self.ranges_known = bool(quantizers)

    def _unpacked(self, tensors: dict[str, Tensor]) -> Weights:
        """Read tensors back in the shapes of the parameters at the ends of their names."""
        parameters = self.plan.request.network.parameters
        shapes = {name: (t, parameters["/".join(name.split("/")[-2:])].weight.shape) for name, t in tensors.items()}
        return {name: unpack(self._read(t.buffer), t.shape).reshape(shape) for name, (t, shape) in shapes.items()}

    def reset_optimizer(self) -> None:
        """Set the optimizer's state to zeros, as before the first step."""
        if memory := self._memory.get(Role.OPTIMIZER):
            self.context.fill_zero(memory.handle, memory.nbytes)

    # -- inputs --------------------------------------------------------------------------------------------------

    def pack(self, x: np.ndarray) -> np.ndarray:
        """Return examples (n, ..., channels) in the device's layout, as steps take them. Any thread may call this."""
        return pack(x, self._block)

    def fetch(self, source: Any, indices: np.ndarray) -> np.ndarray:
        """Return the examples `source[indices]` in the device's layout. Any thread may call this."""
        return source.device_layout(indices) if isinstance(source, FeatureCache) else self.pack(source[indices])

    # -- steps ---------------------------------------------------------------------------------------------------

    def train(
        self, micro_batches: Iterable[tuple[np.ndarray | None, np.ndarray]], examples: int, rate: float, step: int
    ) -> tuple[float, int, bool]:
        """One update from a mini-batch of `examples`, given as (packed x, int32 labels) micro-batches. None stands for
        the x that is on the device from the call before.

        Returns (mean loss, right answers, finite): where `finite` is False the weights are unchanged.
        """
        optimizer: Optimizer = self.plan.request.optimizer
        self._begin(examples, rate, optimizer.correction(step), step)
        self._accumulate(micro_batches, examples, step)
        self._finish_step(examples, step)
        loss, correct, finite = self._end(examples)
        if finite:
            self._learn_ranges()
        return loss, correct, finite

    def _accumulate(self, micro_batches: Iterable, examples: int, step: int) -> None:
        """Forward and backward passes of a mini-batch."""
        sizes, ranges = self.plan.micro_batches(examples), self.plan.ranges(Kind.TRAIN, self.ranges_known, step)
        for index, (n, (x, labels)) in enumerate(zip(sizes, micro_batches, strict=True)):
            key, self._examples = ProgramKey(Kind.TRAIN, n, ranges, index == 0), n
            if index == 0:
                self._run(key, "prepare")
            self._feed(x, labels)
            self._run(key, "micro")

    def _finish_step(self, examples: int, step: int) -> None:
        """Complete the gradients, check them and update the weights."""
        size, ranges = self.plan.micro_batches(examples)[0], self.plan.ranges(Kind.TRAIN, self.ranges_known, step)
        self._run(ProgramKey(Kind.TRAIN, size, ranges), "finish")

    def _learn_ranges(self) -> None:
        """What kernels haven't done: ranges whose estimators run on the host, in one read and one write."""
        self.ranges_known = True
        on_host = [q for q in self.plan.storage.quantizers.values() if q.observer.on_host]
        if on_host:
            words = self._range_words()
            for q in on_host:
                record = self._record(words, q)
                record[:] = moved(q.observer, record)
            self.context.copy(self._memory[Role.RANGE].handle, words, 0).wait()

    def evaluate(self, x: np.ndarray, labels: np.ndarray) -> tuple[float, int]:
        """(sum of losses, right answers) of one micro-batch."""
        self._begin(len(labels))
        self._forward(self._forward_key(Kind.EVALUATE, len(labels)), x, labels)
        loss, correct, _ = self._end(1)
        return loss, correct

    def compute_gradients(
        self, micro_batches: Iterable[tuple[np.ndarray, np.ndarray]], examples: int, step: int
    ) -> Weights:
        """Return the gradients of the mean loss over a mini-batch, as `gradients`. Weights, optimizer state, statistics
        and ranges stay as they are."""
        counters = self.plan.storage.control.counters.buffer
        self._begin(examples, step=step)
        with self._ranges_left():
            self._accumulate(micro_batches, examples, step)
            words = self._read(counters)
            words[LOSS] = np.nan  # the finite check at the end of the step then withholds the update
            self._write(counters, words)
            self._finish_step(examples, step)
            return self.gradients()

    def predict(self, x: np.ndarray | None, n: int) -> np.ndarray:
        """Return the network's output (n, ...) for one micro-batch. None stands for the x that is on the device from
        the call before."""
        key = self._forward_key(Kind.PREDICT, n)
        self._forward(key, x)
        y = self.plan.programs[key].y
        return unpack(self._read(y.buffer), y.shape)

    def predict_packed(self, x: np.ndarray | None, n: int) -> np.ndarray:
        """Return the network's output for one micro-batch in the device's layout."""
        key = self._forward_key(Kind.PREDICT, n)
        self._forward(key, x)
        return self._read(self.plan.programs[key].y.buffer)

    def first_nonfinite(
        self, micro_batches: Iterable[tuple[np.ndarray, np.ndarray]], examples: int, rate: float, step: int
    ) -> tuple[Launch, Buffer] | None:
        """Run a mini-batch launch by launch; the first launch that writes a NaN or an infinity, and where. Gradients
        are overwritten; of a mini-batch that failed before, nothing else that lasts changes."""
        if Role.TEMPORARY in self._memory:  # what a failed step left in padding that nobody writes is not to blame
            self.context.fill_zero(self._memory[Role.TEMPORARY].handle, self._memory[Role.TEMPORARY].nbytes)
        self._begin(examples, rate, self.plan.request.optimizer.correction(step), step)
        sizes, ranges = self.plan.micro_batches(examples), self.plan.ranges(Kind.TRAIN, self.ranges_known, step)
        culprit: list[Buffer] = []

        def look(launch: Launch) -> bool:
            bad = [b for b in launch.writes if b.dtype.startswith("float") and not np.isfinite(self._read(b)).all()]
            culprit.extend(bad)
            return bool(bad)

        with self._ranges_left():
            for index, (n, (x, labels)) in enumerate(zip(sizes, micro_batches, strict=True)):
                self._feed(x, labels)
                for part in ("prepare", "micro") if index == 0 else ("micro",):
                    found = self._runner(ProgramKey(Kind.TRAIN, n, ranges, index == 0), part).step_through(look)
                    if found:
                        return found, culprit[0]
            found = self._runner(ProgramKey(Kind.TRAIN, sizes[0], ranges), "finish").step_through(look)
            return (found, culprit[0]) if found else None

    def reconstruction_errors(self, step: int) -> dict[str, float]:
        """How far off the activations are that a plan inverts, for the micro-batch that `step` has left on the device:
        by layer, in the order in which they are inverted, the largest difference over the largest value. Gradients are
        overwritten; nothing else that lasts changes."""
        key = ProgramKey(Kind.TRAIN, self._examples, self.plan.ranges(Kind.TRAIN, self.ranges_known, step))
        program = self._program(key)
        originals = {copy: buffer for buffer, copy in program.inverted.items()}
        values: dict[Buffer, np.ndarray] = {}
        errors: dict[str, float] = {}

        def look(launch: Launch) -> bool:
            for buffer in launch.writes:
                if buffer in program.inverted:
                    values[buffer] = self._read(buffer)
                elif buffer in originals:
                    value = values.pop(originals[buffer])
                    off, largest = np.abs(self._read(buffer) - value).max(), np.abs(value).max()
                    errors[buffer.layer] = float(off / max(largest, np.finfo(np.float32).tiny))
            return False

        self._begin(self._examples, step=step)
        with self._ranges_left():
            for part in ("prepare", "micro"):
                self._runner(key, part).step_through(look)
        return errors

    @property
    def traffic(self) -> Traffic:
        """Bytes that the launches enqueued so far move."""
        return sum((Traffic.of(runner.launches, runner.runs) for runner in self._runners.values()), Traffic())

    # -- inside --------------------------------------------------------------------------------------------------

    @contextmanager
    def _ranges_left(self) -> Iterator[None]:
        """What is known of quantized tensors is afterwards as it was: a step takes its ranges from there, and moves
        them."""
        words = self._range_words()
        try:
            yield
        finally:
            if words.size:
                self.context.copy(self._memory[Role.RANGE].handle, words, 0).wait()

    def _forward_key(self, kind: Kind, n: int) -> ProgramKey:
        return ProgramKey(kind, n, self.plan.ranges(kind, self.ranges_known))

    def _forward(self, key: ProgramKey, x: np.ndarray | None, labels: np.ndarray | None = None) -> None:
        self._feed(x, labels)
        self._run(key, "prepare")
        self._run(key, "micro")

    def _begin(self, examples: int, rate: float = 0.0, correction: float = 1.0, step: int = 0) -> None:
        scalars = np.zeros(16, np.float32)
        scalars[places.INVERSE_BATCH] = 1.0 / examples
        scalars[places.LEARNING_RATE] = rate
        scalars[places.CORRECTION] = correction
        words, seed = scalars.view(np.uint32), self.plan.request.seed
        words[places.SEED], words[places.SEED_HIGH], words[places.STEP] = seed & 0xFFFFFFFF, seed >> 32, step
        self._send(self.plan.storage.control.scalars.buffer, scalars)
        counters = self.plan.storage.control.counters.buffer
        handle, offset = self._at(counters)
        self.context.fill_zero(handle, counters.nbytes, offset)

    def _end(self, examples: int) -> tuple[float, int, bool]:
        counters = self._read(self.plan.storage.control.counters.buffer)
        loss = float(counters[LOSS]) / examples
        return loss, round(float(counters[CORRECT])), bool(counters[NONFINITE] == 0 and np.isfinite(loss))

    def _feed(self, x: np.ndarray | None, labels: np.ndarray | None) -> None:
        storage = self.plan.storage
        if x is not None:
            self._send(storage.input.buffer, np.asarray(x, np.float32))
        if labels is not None:
            self._send(storage.control.labels.buffer, np.asarray(labels, np.int32))

    def _run(self, key: ProgramKey, part: str) -> None:
        self._runner(key, part).enqueue()

    def _runner(self, key: ProgramKey, part: str) -> Runner:
        if (key, part) not in self._runners:
            program = self._program(key)
            if not self.can_step:
                raise DeviceError(
                    f"There is no memory for a micro-batch of {key.examples}: steps have ended. Start another session."
                )
            self.kernels.compile(program.launches, self._progress)
            self._runners[key, part] = Runner(self.context, self.kernels, getattr(program, part), self._at)
        return self._runners[key, part]

    def _program(self, key: ProgramKey) -> Program:
        return self.plan.program(key.kind, key.examples, key.ranges, key.first)

    def _at(self, buffer: Buffer) -> tuple[Any, int]:
        memory = self._pages.words if buffer.role is Role.PAGED else self._memory[buffer.role].handle
        return memory, self.plan.offsets[buffer]

    def _write(self, buffer: Buffer, array: np.ndarray) -> None:
        self._copy(buffer, array).wait()

    def _send(self, buffer: Buffer, array: np.ndarray) -> None:
        """Like `_write`, but returns while the copy is still on its way."""
        self._sent.append(self._copy(buffer, array))
        if len(self._sent) > SENT:
            self._sent.popleft().wait()

    def _copy(self, buffer: Buffer, array: np.ndarray) -> Any:
        array = np.ascontiguousarray(array)
        if array.nbytes > buffer.nbytes:
            raise DeviceError(f"{array.nbytes:,} bytes do not fit '{buffer.name}' of {buffer.nbytes:,}.")
        return self.context.copy(self._memory[buffer.role].handle, array, self.plan.offsets[buffer])

    def _read(self, buffer: Buffer) -> np.ndarray:
        words = np.empty(buffer.nbytes // np.dtype(buffer.dtype).itemsize, buffer.dtype)
        return self.context.read(self._memory[buffer.role].handle, words, self.plan.offsets[buffer])

    @property
    def allocated_bytes(self) -> int:
        """Device memory held, as the buffers themselves count it."""
        return sum(m.nbytes for m in self._memory.values())

    @property
    def paged_bytes(self) -> int:
        """Bytes held outside the device."""
        return self._pages.nbytes if self._pages else 0

    @property
    def can_step(self) -> bool:
        """Whether it holds the memory that its plan's steps need."""
        return self.plan.peak_bytes <= self.allocated_bytes and self.plan.paged_bytes <= self.paged_bytes

    def end_steps(self) -> None:
        """Give back activations, workspace and pages. What training has changed can still be read."""
        self.context.finish()
        self._runners.clear()
        if arena := self._memory.pop(Role.TEMPORARY, None):
            arena.release()
        self._pages = None

    def close(self) -> None:
        """Give the device's memory back, and pages."""
        self.context.finish()
        self._sent.clear()
        self._runners.clear()
        for memory in self._memory.values():
            memory.release()
        self._pages = None
