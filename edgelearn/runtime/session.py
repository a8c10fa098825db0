"""A session: a plan on a device, its memory allocated, kernels compiled, steps run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgelearn.compile.lower import head_of
from edgelearn.compile.plan import Kind, Plan, Program, ProgramKey
from edgelearn.compile.storage import Weights
from edgelearn.display import Displayed
from edgelearn.errors import DeviceError, FormatError, PlanError
from edgelearn.launch import Access, Buffer, Launch, Role, Traffic, words_of
from edgelearn.ops import Tensor, pack, unpack
from edgelearn.ops.constants import Counter, Scalar
from edgelearn.ops.emit import LOSS_SCALE
from edgelearn.ops.loss import rows_of
from edgelearn.ops.quantize import FIELDS, Quantizer, moved
from edgelearn.ops.tensor import Empty

from .context import Context
from .kernels import Kernels, Progress, Runner
from .pages import FeatureCache, Pages, forget_pages

SENT = 4  # copies of inputs that may be on their way while the host goes on
AT_ONCE = 1 << 24  # bytes of weights that are copied before pages of a file are forgotten

InputArrays = np.ndarray | Mapping[str, np.ndarray]  # of the only input, or of each input by name


@dataclass(frozen=True)
class OutputTargets:
    """Targets of one output for a micro-batch, as the device reads them.

    Arguments:
    - `values`: int32 class numbers, one for each row, or float32 values from `pack`.
    - `weights`: float32, one for each row (default None: 1 each).
    """

    values: np.ndarray
    weights: np.ndarray | None = None


PackedTargets = np.ndarray | Sequence[OutputTargets]  # class numbers of the only output, or each output's


def random_batch(plan: Plan, n: int, rng: np.random.Generator) -> tuple[InputArrays, list[OutputTargets]]:
    """Return a micro-batch of `n` examples of the plan's network, in the device's layout, to time steps with: inputs
    from -1 to 1, and targets of 0."""
    network, losses = plan.request.network, plan.request.losses.by_output
    x = {
        name: pack(rng.uniform(-1, 1, (n, *shape)).astype(np.float32), plan.storage.inputs[name].block)
        for name, shape in network.inputs.items()
    }
    targets = []
    for name, loss in losses.items():
        shape = network.nodes[name].shape
        is_value = loss.target_dtype == "float32"
        values = pack(np.zeros((n, *shape), np.float32)) if is_value else np.zeros(n * rows_of(shape), np.int32)
        targets.append(OutputTargets(values))
    return x, targets


class Session(Displayed):
    """Runs a plan. Weights go in with `load` and come out with `weights`; steps change the device's copies.

    Exactly the bytes that the plan states are allocated. A plan's own kernels are compiled at once; those of
    evaluation, in a plan that trains, when it is first asked for, since each takes memory.

    Arguments:
    - `plan`: what to run.
    - `context`: the device in use.
    - `kernels`: compiled kernels of that context (default: none yet).
    - `progress`: called while kernels compile; see Kernels.compile.

    Raises DeviceError if the device has too little memory, PagingError if there is no room for pages, KernelError if a
    kernel doesn't compile.
    """

    def __init__(
        self, plan: Plan, context: Context, kernels: Kernels | None = None, progress: Progress | None = None
    ) -> None:
        self.plan, self.context = plan, context
        self.kernels, self._progress = kernels or Kernels(context), progress
        self.by_role = {role: context.allocate(size, role.value) for role, size in plan.bytes_by_role.items()}
        folder = plan.offload.folder if plan.offload else None
        self._pages = Pages(plan.paged_bytes, folder) if plan.paged_bytes else None
        self._sent: deque[Any] = deque()  # copies of inputs on their way
        self._runners: dict[tuple, Runner] = {}
        self.loss_scale = LOSS_SCALE if plan.request.compute.scales_loss else 1.0
        self.ranges_known = False  # True if training has left ranges for quantized tensors
        self._counters = np.zeros(16, np.float32)  # of the last mini-batch
        self._examples = 0  # of the micro-batch that is on the device
        self._prepared: ProgramKey | None = None  # whose weights are prepared, since none have changed
        self._blocks = {name: x.block for name, x in plan.storage.inputs.items()}
        self._empty: Empty | None = context.pinned.empty if context.device.is_gpu else None
        losses, nodes = plan.request.losses, plan.request.network.nodes
        # 1 exactly for a single vector: its loss then has the same bits as without a factor
        self._factors = [losses.weight(name) / rows_of(nodes[name].shape) for name in losses.by_output] or [1.0]
        rows = all(each.accuracy == "rows" for each in losses.by_output.values())
        self._counts_whole = rows and self._factors == [1.0]  # right answers are whole numbers
        programs = [p for key, p in plan.programs.items() if key.kind is Kind.TRAIN or plan.request.optimizer is None]
        launches = [launch for program in programs for launch in program.all_launches]
        self.kernels.compile(launches, progress)
        if plan.storage.barrier:
            self.kernels.assembly(next(launch for launch in launches if launch.source))  # raises where there is none
        for role in self.by_role:  # last of all: what fails before drops memory that nothing is writing to
            self._fill_zero(role)

    @property
    def headline(self) -> str:
        return f"{self.plan.headline}, on {self.context.device.id}"

    # -- weights -------------------------------------------------------------------------------------------------

    def load(self, weights: Weights) -> None:
        """Copy weights to the device: trained and frozen ones, folded where the plan folds. Where updates leave the
        extremes of kernels, those of the weights are taken now. Raises FormatError if some are missing."""
        if missing := self.plan.request.network.parameters.keys() - weights.keys():
            raise FormatError(
                f"The weights lack '{min(missing)}'. If its layer was added after the Model was made, create another."
            )
        # Constants are computed from weights here and now, so that a plan serves any weights of its network.
        sent = 0
        for buffer, fill in self.plan.storage.fill.items():
            self.send(buffer, fill(weights))
            sent += buffer.nbytes
            if sent > AT_ONCE:
                self.context.finish()
                forget_pages(weights)
                sent = 0
        trains = next((key for key in self.plan.programs if key.kind is Kind.TRAIN), None)
        if trains:
            self._run(trains, "measure")
        self.context.finish()
        forget_pages(weights)
        self.ranges_known, self._prepared = False, None

    def weights(self) -> Weights:
        """Copy the weights that training may have changed, float32 under the names and shapes of the network: trained
        parameters, and with batch statistics the moving ones."""
        return self._unpacked(self.changing)

    @property
    def changing(self) -> dict[str, Tensor]:
        """The tensors of weights that training may change, by name."""
        storage = self.plan.storage
        moving = ("/moving_mean", "/moving_variance") if self.plan.request.batchnorm == "batch" else ()
        return storage.parameters | {name: t for name, t in storage.frozen.items() if name.endswith(moving)}

    def put(self, weights: Weights) -> None:
        """Copy values of some of the weights that training may change to the device; everything else stays as it is."""
        for name, value in weights.items():
            tensor = self.changing[name]
            self.send(tensor.buffer, pack(np.asarray(value, np.float32).reshape(tensor.shape)))
        self.context.finish()
        self._prepared = None

    def gradients(self) -> Weights:
        """Copy the gradients of the last mini-batch, as `weights`."""
        return self._unpacked(self.plan.storage.gradients)

    def optimizer_state(self) -> Weights:
        """Copy the optimizer's state, by "slot/layer/role", in the parameters' shapes."""
        return self._unpacked(self.plan.storage.slot_tensors)

    def load_optimizer_state(self, state: Weights) -> None:
        """Copy the optimizer's state to the device. Raises FormatError if it is of another optimizer or network."""
        slots = self.plan.storage.slot_tensors
        if set(state) != set(slots):
            raise FormatError("The optimizer state in the checkpoint belongs to another optimizer or other parameters.")
        for name, tensor in slots.items():
            self.send(tensor.buffer, pack(state[name].reshape(tensor.shape)))
        self.context.finish()

    def reset_optimizer(self) -> None:
        """Set the optimizer's state to zeros, as before the first step."""
        self._fill_zero(Role.OPTIMIZER)

    def records(self) -> Weights:
        """Copy the range statistics of quantized tensors, by "layer/kind": float32 (16,), see ops.quantize.FIELDS."""
        words = self._read_role(Role.RANGE)
        return {name: self._record(words, q).copy() for name, q in self.plan.storage.quantizers.items()}

    def _record(self, words: np.ndarray, q: Quantizer) -> np.ndarray:
        start = self.plan.offsets[q.record.buffer] // 4
        return words[start : start + 16]

    def load_records(self, records: Weights) -> None:
        """Continue with range statistics that `records` returned. Raises FormatError when tensors are missing or a
        record has another shape."""
        quantizers = self.plan.storage.quantizers
        if missing := sorted(set(quantizers) - set(records)):
            raise FormatError(
                f"The ranges of quantized tensors lack '{missing[0]}': they belong to another network or "
                f"precision. Compile with that one."
            )
        for name, q in quantizers.items():
            record = np.asarray(records[name], np.float32)
            if record.shape != (len(FIELDS),):
                raise FormatError(f"The range of '{name}' is {record.shape}, not (16,): take another checkpoint.")
            self._copy(q.record.buffer, record).wait()
        self.ranges_known, self._prepared = bool(quantizers), None

    def _unpacked(self, tensors: dict[str, Tensor]) -> Weights:
        """Read tensors back in the shapes of the parameters at the ends of their names."""
        parameters = self.plan.request.network.parameters
        shapes = {name: parameters["/".join(name.split("/")[-2:])].weight.shape for name in tensors}
        read = self._read_all([tensor.buffer for tensor in tensors.values()])
        found = zip(tensors.items(), read, strict=True)
        return {name: unpack(words, tensor.shape).reshape(shapes[name]) for (name, tensor), words in found}

    # -- inputs --------------------------------------------------------------------------------------------------

    def pack(self, x: InputArrays) -> InputArrays:
        """Return examples (n, ..., channels) in the device's layout, as steps take them: for a GPU, in pinned memory.
        Any thread may call this."""
        if isinstance(x, Mapping):
            return {name: pack(x[name], block, empty=self._empty) for name, block in self._blocks.items()}
        (block,) = self._blocks.values()
        return pack(x, block, empty=self._empty)

    def fetch(self, source: Any, indices: np.ndarray) -> InputArrays:
        """Return the examples `source[indices]` in the device's layout. Any thread may call this."""
        if isinstance(source, FeatureCache):
            return source.device_layout(indices, self._empty)
        first, count = int(indices[0]), len(indices)
        in_memory = type(source) is np.ndarray  # a memmap is copied ahead of time, which reads the file
        if in_memory and (count == 1 or np.array_equal(indices, np.arange(first, first + count))):
            return self.pack(source[first : first + count])  # neighbours: sent without a copy of them
        return self.pack(source[indices])

    def _begin(self, examples: int, rate: float = 0.0, step: int = 0) -> None:
        """Send the numbers of a mini-batch of `examples` (see ops.emit), and reset the counters. `step`: number of the
        update, from 1; 0 where nothing is trained. Raises PlanError if a plan without an optimizer is to train."""
        request, storage, scale = self.plan.request, self.plan.storage, self.loss_scale
        scalars = np.zeros(16, np.float32)
        scalars[Scalar.UNSCALE], scalars[Scalar.LEARNING_RATE] = 1 / scale, rate
        if step:
            if request.optimizer is None:
                raise PlanError("This plan only evaluates and predicts: to train, make one with an optimizer.")
            # By the host, in float64: on the device 1 - beta**step would lose most of its bits at the first steps.
            scalars[Scalar.CORRECTION] = request.optimizer.correction(step)
            scalars[Scalar.SECOND_CORRECTION] = request.optimizer.second_correction(step)
        words, seed = scalars.view(np.uint32), request.seed
        words[Scalar.SEED], words[Scalar.SEED_HIGH], words[Scalar.STEP] = seed & 0xFFFFFFFF, seed >> 32, step
        control = np.zeros(self.plan.bytes_by_role[Role.CONTROL] // 4, np.float32)  # sent in one copy

        def put(tensor: Tensor) -> np.ndarray:
            start = self.plan.offsets[tensor.buffer] // 4
            control[start : start + 16] = scalars
            return control[start : start + 16]

        own = storage.controls.values() if len(self._factors) > 1 else ()
        for output, factor in zip((storage.control, *own), (self._factors[0], *self._factors), strict=False):
            put(output.scalars)[Scalar.INVERSE_BATCH] = factor / examples * scale
        for group in storage.groups if step else ():
            if group.rate != 1:
                put(storage.scalars_of(group))[Scalar.LEARNING_RATE] *= group.rate
        self._send(self.context.copy(self.by_role[Role.CONTROL].handle, control))

    def _send_batch(self, x: InputArrays | None, targets: PackedTargets | None) -> None:
        """Send the examples of a micro-batch, and their targets where there are any."""
        storage = self.plan.storage
        if isinstance(x, Mapping):
            for name, words in x.items():
                self.send(storage.inputs[name].buffer, np.asarray(words, np.float32))
        elif x is not None:
            self.send(storage.input.buffer, np.asarray(x, np.float32))
        if targets is None:
            return
        outputs = [OutputTargets(np.asarray(targets))] if isinstance(targets, np.ndarray) else targets
        for control, output in zip(storage.controls.values(), outputs, strict=True):
            labels = output.values.dtype.kind in "iu"
            self.send(control.targets.buffer, np.asarray(output.values, np.int32 if labels else np.float32))
            if control.weights is not None:
                rows = output.values.size if labels else output.values.shape[1]
                weights = np.ones(rows, np.float32) if output.weights is None else output.weights
                self.send(control.weights.buffer, np.asarray(weights, np.float32))

    # -- steps ---------------------------------------------------------------------------------------------------

    def train(
        self, micro_batches: Iterable[tuple[InputArrays | None, PackedTargets]], examples: int, rate: float, step: int
    ) -> tuple[float, float, bool]:
        """Run one update.

        Arguments:
        - `micro_batches`: (examples in the device's layout, targets) for each micro-batch; see `pack`. Targets are
          OutputTargets for each output that has a loss, or class numbers of the only one, int (rows,). None stands for
          the examples that are on the device from the call before.
        - `examples`: number of examples of the mini-batch.
        - `rate`: learning rate; `step`: number of the update, from 1.

        Returns (mean loss, right answers, finite): where `finite` is False the weights are unchanged.
        """
        self._begin(examples, rate, step)
        for key, part in self._parts(micro_batches, examples, step):
            self._run(key, part)
        loss, correct, finite = self._end(examples)
        if finite:
            self._learn_ranges()
        return loss, correct, finite

    def _parts(
        self, micro_batches: Iterable[tuple[InputArrays | None, PackedTargets]], examples: int, step: int
    ) -> Iterator[tuple[ProgramKey, str]]:
        """The programs' lists that an update runs, in order, each once its inputs are sent."""
        sizes, ranges = self.plan.micro_batches(examples), self.plan.ranges(Kind.TRAIN, self.ranges_known, step)
        for index, (n, (x, targets)) in enumerate(zip(sizes, micro_batches, strict=True)):
            key, self._examples = ProgramKey(Kind.TRAIN, n, ranges, index == 0), n
            if index == 0:
                yield key, "prepare"
            self._send_batch(x, targets)
            yield key, "micro"
        yield ProgramKey(Kind.TRAIN, sizes[0], ranges), "finish"

    def _learn_ranges(self) -> None:
        """Update the ranges whose observers run on the host, in one read and one write."""
        self.ranges_known = True
        if self.plan.observed_on_host:
            words = self._read_role(Role.RANGE)
            for q in self.plan.observed_on_host:
                record = self._record(words, q)
                record[:] = moved(q.observer, record)
            self._write_role(Role.RANGE, words)

    def evaluate(self, x: InputArrays | None, targets: PackedTargets, n: int | None = None) -> tuple[float, float]:
        """Return (sum of losses, number of right answers) of one micro-batch of `n` examples (default: one for each of
        `targets`). Arguments as in `train`."""
        n = len(targets) if n is None else n
        self._begin(n)
        self._forward(Kind.EVALUATE, n, x, targets)
        return self._end(1)[:2]

    @property
    def by_output(self) -> dict[str, tuple[float, float]]:
        """(sum of losses, number of right answers) of each of several outputs in the last mini-batch."""
        names = list(self.plan.request.losses.by_output)
        pairs = (
            self._counters[Counter.OUTPUTS : Counter.OUTPUTS + 2 * len(names)].reshape(-1, 2) if len(names) > 1 else ()
        )
        return {name: (float(loss), float(correct)) for name, (loss, correct) in zip(names, pairs, strict=False)}

    def outputs(self, n: int) -> dict[str, np.ndarray]:
        """Return the outputs of the micro-batch of `n` examples that was evaluated last, as `predict` gives them."""
        found, request = self._read_outputs(self._program(self._forward_key(Kind.EVALUATE, n))), self.plan.request
        for name, loss in request.losses.by_output.items():
            for node in head_of(request.network, name, loss):
                found[name] = node.op.reference_forward([found[name]], {})
        return found

    def compute_gradients(
        self, micro_batches: Iterable[tuple[InputArrays, PackedTargets]], examples: int, step: int
    ) -> Weights:
        """Return the gradients of the mean loss over a mini-batch, as `gradients`. Weights, optimizer state, statistics
        and ranges stay as they are."""
        counters = self.plan.storage.control.counters.buffer
        self._begin(examples, step=step)
        with self._ranges_left():
            for key, part in self._parts(micro_batches, examples, step):
                if part == "finish":
                    words = self.read(counters)
                    words[Counter.LOSS] = np.nan  # the finite check at the end of the step then withholds the update
                    self._copy(counters, words).wait()
                self._run(key, part)
            return self.gradients()

    def input_gradients(
        self, micro_batches: Iterable[tuple[InputArrays, PackedTargets]], examples: int
    ) -> dict[str, np.ndarray]:
        """Return the gradients of the mean loss over a mini-batch by the network's inputs (n, ...), by name, for a plan
        that has them."""
        self._begin(examples, step=1)
        found: dict[str, list[np.ndarray]] = {}
        for key, part in self._parts(micro_batches, examples, 1):
            if part != "finish":
                self._run(key, part)
            if part == "micro":
                for name, gradient in self._program(key).input_gradients.items():
                    found.setdefault(name, []).append(unpack(self.read(gradient.buffer), gradient.shape))
        return {name: np.concatenate(parts) / self.loss_scale for name, parts in found.items()}

    def predict(self, x: InputArrays | None, n: int) -> Any:
        """Return the network's output (n, ...) for one micro-batch, by name if it has several. None stands for the x
        that is on the device from the call before."""
        found = self._read_outputs(self._forward(Kind.PREDICT, n, x))
        return found if len(found) > 1 else next(iter(found.values()))

    def predict_packed(self, x: InputArrays | None, n: int) -> np.ndarray:
        """Return the network's first output for one micro-batch in the device's layout."""
        program = self._forward(Kind.PREDICT, n, x)
        return self.read(next(iter(program.outputs.values())).buffer)

    def first_nonfinite(
        self, micro_batches: Iterable[tuple[InputArrays, PackedTargets]], examples: int, rate: float, step: int
    ) -> tuple[Launch, Buffer] | None:
        """Run a mini-batch launch by launch; return the first launch that writes a NaN or an infinity, and the buffer.
        Gradients are overwritten; if the mini-batch failed before, nothing else that lasts changes."""
        self._fill_zero(Role.TEMPORARY)  # what a failed step left in padding that nobody writes is not to blame
        self._begin(examples, rate, step)
        culprits: list[Buffer] = []

        def look(launch: Launch) -> bool:
            written = (a for a in launch.accesses if a.writes and "float" in a.buffer.dtype)
            culprits.extend(a.buffer for a in written if not np.isfinite(self._read_access(a)).all())
            return bool(culprits)

        with self._ranges_left():
            for key, part in self._parts(micro_batches, examples, step):
                if found := self._runner(key, part).step_through(look):
                    return found, culprits[0]
        return None

    def reconstruction_errors(self, step: int) -> dict[str, float]:
        """Measure the errors of inverted activations, for the micro-batch that `step` has left on the device.

        Returns the largest difference over the largest value by layer, in the order in which they are inverted.
        Gradients are overwritten; nothing else that lasts changes."""
        key = ProgramKey(Kind.TRAIN, self._examples, self.plan.ranges(Kind.TRAIN, self.ranges_known, step))
        inverted = self._program(key).inverted
        originals = {copy: buffer for buffer, copy in inverted.items()}
        values: dict[Buffer, np.ndarray] = {}
        errors: dict[str, float] = {}

        def look(launch: Launch) -> bool:
            for buffer in launch.writes:
                if buffer in inverted:
                    values[buffer] = self.read(buffer)
                elif buffer in originals:
                    value = values.pop(originals[buffer])
                    off, largest = np.abs(self.read(buffer) - value).max(), np.abs(value).max()
                    errors[buffer.layer] = float(off / max(largest, np.finfo(np.float32).tiny))
            return False

        self._begin(self._examples, step=step)
        with self._ranges_left():
            for part in ("prepare", "micro"):
                self._runner(key, part).step_through(look)
        return errors

    @property
    def traffic(self) -> Traffic:
        """Bytes that the launches of steps and predictions so far move."""
        moved = (Traffic.of(r.launches, r.runs) for (_, part), r in self._runners.items() if part != "measure")
        return sum(moved, Traffic())

    @contextmanager
    def _ranges_left(self) -> Iterator[None]:
        """Restore the range statistics afterwards: a step reads its ranges from there, and moves them."""
        words = self._read_role(Role.RANGE)
        try:
            yield
        finally:
            self._write_role(Role.RANGE, words)

    def _forward_key(self, kind: Kind, n: int) -> ProgramKey:
        return ProgramKey(kind, n, self.plan.ranges(kind, self.ranges_known))

    def _forward(self, kind: Kind, n: int, x: InputArrays | None, targets: PackedTargets | None = None) -> Program:
        """Run a forward pass, and return its program."""
        key = self._forward_key(kind, n)
        self._send_batch(x, targets)
        if self._prepared != key:
            self._run(key, "prepare")
            self._prepared = key
        self._run(key, "micro")
        return self._program(key)

    def _read_outputs(self, program: Program) -> dict[str, np.ndarray]:
        return {name: unpack(self.read(y.buffer), y.shape) for name, y in program.outputs.items()}

    def _end(self, examples: int) -> tuple[float, float, bool]:
        counters = self._counters = self.read(self.plan.storage.control.counters.buffer)
        loss, correct = float(counters[Counter.LOSS]) / examples, float(counters[Counter.CORRECT])
        finite = bool(counters[Counter.NONFINITE] == 0 and np.isfinite(loss))
        return loss, round(correct) if self._counts_whole else correct, finite

    def _run(self, key: ProgramKey, part: str) -> None:
        self._runner(key, part).enqueue()

    def _runner(self, key: ProgramKey, part: str) -> Runner:
        if key.kind is Kind.TRAIN:
            self._prepared = None
        if (key, part) not in self._runners:
            program = self._program(key)
            if not self.can_step:
                raise DeviceError(
                    f"There is no memory for a micro-batch of {key.examples}: steps have ended. Start another session."
                )
            self.kernels.compile(program.all_launches, self._progress)
            launches, barrier = getattr(program, part), self.plan.storage.barrier
            self._runners[key, part] = Runner(self.context, self.kernels, launches, self.at, barrier)
        return self._runners[key, part]

    def _program(self, key: ProgramKey) -> Program:
        return self.plan.program(key.kind, key.examples, key.ranges, key.first)

    # -- memory --------------------------------------------------------------------------------------------------

    def at(self, buffer: Buffer) -> tuple[Any, int]:
        """Return the cl.Buffer, or the array of pages, in which a planned buffer lies, and its offset in bytes."""
        if buffer.role is Role.PAGED and self._pages is not None:
            return self._pages.words, self.plan.offsets[buffer]
        return self.by_role[buffer.role].handle, self.plan.offsets[buffer]

    def send(self, buffer: Buffer, array: np.ndarray) -> None:
        """Copy an array to the device, but return while the copy is still on its way."""
        self._send(self._copy(buffer, array))

    def _send(self, copy: Any) -> None:
        self._sent.append(copy)
        if len(self._sent) > SENT:
            self._sent.popleft().wait()

    def read(self, buffer: Buffer) -> np.ndarray:
        """Copy a buffer from the device, as one flat array of its data type; bfloat16 as float32."""
        return self._read_all([buffer])[0]

    def _read_access(self, access: Access) -> np.ndarray:
        """Copy the part of a buffer that a launch touches."""
        start, size = (n // words_of(access.buffer.dtype).itemsize for n in (access.first, access.nbytes))
        return self.read(access.buffer)[start : start + size]

    def _read_all(self, buffers: Sequence[Buffer]) -> list[np.ndarray]:
        """Copy buffers from the device as `read` does. The wait is for all of them: one each takes longer than small
        copies do."""
        found = []
        for buffer in buffers:
            (handle, offset), dtype = self.at(buffer), words_of(buffer.dtype)
            words = np.empty(buffer.nbytes // dtype.itemsize, dtype)
            found.append(self.context.read(handle, words, offset, wait=buffer is buffers[-1]))
        return [
            (words.astype(np.uint32) << 16).view(np.float32) if buffer.dtype == "bfloat16" else words
            for buffer, words in zip(buffers, found, strict=True)
        ]

    def _copy(self, buffer: Buffer, array: np.ndarray) -> Any:
        array = np.ascontiguousarray(array)
        if array.nbytes > buffer.nbytes:
            raise DeviceError(f"{array.nbytes:,} bytes do not fit '{buffer.name}' of {buffer.nbytes:,}.")
        return self.context.copy(self.by_role[buffer.role].handle, array, self.plan.offsets[buffer])

    def _read_role(self, role: Role) -> np.ndarray:
        """Copy all of a role's memory from the device, float32; empty if the plan has none."""
        memory = self.by_role.get(role)
        words = np.empty(memory.nbytes // 4 if memory else 0, np.float32)
        return self.context.read(memory.handle, words) if memory else words

    def _write_role(self, role: Role, words: np.ndarray) -> None:
        """Copy back what `_read_role` returned."""
        if words.size:
            self.context.write(self.by_role[role].handle, words)

    def _fill_zero(self, role: Role) -> None:
        """Fill a role's memory with zeros, if the plan has any."""
        if memory := self.by_role.get(role):
            self.context.fill_zero(memory.handle, memory.nbytes)

    @property
    def allocated_bytes(self) -> int:
        """Device memory held, as the buffers themselves count it."""
        return sum(memory.nbytes for memory in self.by_role.values())

    @property
    def paged_bytes(self) -> int:
        """Bytes held outside the device."""
        return self._pages.nbytes if self._pages else 0

    @property
    def can_step(self) -> bool:
        """True while it holds the memory that its plan's steps need."""
        return self.plan.peak_bytes <= self.allocated_bytes and self.plan.paged_bytes <= self.paged_bytes

    def end_steps(self) -> None:
        """Give back activations, workspace and pages. What training has changed can still be read."""
        self._close_runners()
        if arena := self.by_role.pop(Role.TEMPORARY, None):
            arena.release()
        self._pages = None

    def close(self) -> None:
        """Give the device's memory back, pages, and pinned memory that nothing uses."""
        self._close_runners()
        self._sent.clear()
        for memory in self.by_role.values():
            memory.release()
        self._pages = None
        if self._empty is not None:
            self.context.pinned.release()

    def _close_runners(self) -> None:
        self.context.finish()
        for runner in self._runners.values():
            runner.close()
        self._runners.clear()
