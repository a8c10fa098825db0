"""A session: a plan on a device, its memory allocated, kernels compiled, steps run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgelearn.compile.lower import head_of, input_blocks
from edgelearn.compile.plan import Kind, Plan, Program, ProgramKey
from edgelearn.compile.request import Request
from edgelearn.compile.storage import Weights
from edgelearn.errors import DeviceError, FormatError, PlanError
from edgelearn.launch import Buffer, Launch, Role, Traffic, words_of
from edgelearn.ops import Tensor, pack, unpack
from edgelearn.ops import emit as places
from edgelearn.ops.emit import CORRECT, LOSS, LOSS_SCALE, NONFINITE, OUTPUTS
from edgelearn.ops.losses import rows_of
from edgelearn.ops.quantize import FIELDS, Quantizer, moved
from edgelearn.ops.tensor import Empty

from .context import Context
from .kernels import Kernels, Progress
from .pages import FeatureCache, Pages
from .runner import Runner


def step_scalars(request: Request, examples: int, rate: float = 0.0, step: int = 0, scale: float = 1.0) -> np.ndarray:
    """Return the 16 words of `scalars` (see ops.control).

    Arguments:
    - `examples`: of the mini-batch.
    - `rate`: learning rate.
    - `step`: number of the update, from 1; 0 where nothing is trained.
    - `scale`: of the loss (default 1).

    Raises PlanError if a request without an optimizer is to train.
    """
    scalars = np.zeros(16, np.float32)
    scalars[places.INVERSE_BATCH] = scale / examples
    scalars[places.UNSCALE] = 1 / scale
    scalars[places.LEARNING_RATE] = rate
    if step:
        if request.optimizer is None:
            raise PlanError("This plan only evaluates and predicts: to train, make one with an optimizer.")
        scalars[places.CORRECTION] = request.optimizer.correction(step)
        scalars[places.SECOND_CORRECTION] = request.optimizer.second_correction(step)
    words, seed = scalars.view(np.uint32), request.seed
    words[places.SEED], words[places.SEED_HIGH], words[places.STEP] = seed & 0xFFFFFFFF, seed >> 32, step
    return scalars


SENT = 4  # copies of inputs that may be on their way while the host goes on


class PlanMemory:
    """Allocates exactly the bytes that `plan` states, and copies between the host and planned buffers.

    Raises DeviceError if the device has too little memory, PagingError if there is no room for pages.
    """

    def __init__(self, plan: Plan, context: Context) -> None:
        self.plan, self.context = plan, context
        self.by_role = {role: context.allocate(size, role.value) for role, size in plan.bytes_by_role.items()}
        self._sent: deque[Any] = deque()  # copies of inputs on their way
        self._pages: Pages | None = None
        if plan.paged_bytes:
            offload = plan.offload
            self._pages = Pages(plan.paged_bytes, offload.folder if offload else None)

    def at(self, buffer: Buffer) -> tuple[Any, int]:
        """Return the cl.Buffer, or the array of pages, in which a planned buffer lies, and its offset in bytes."""
        if buffer.role is Role.PAGED and self._pages is not None:
            return self._pages.words, self.plan.offsets[buffer]
        return self.by_role[buffer.role].handle, self.plan.offsets[buffer]

    def write(self, buffer: Buffer, array: np.ndarray) -> None:
        """Copy an array to the device."""
        self._copy(buffer, array).wait()

    def send(self, buffer: Buffer, array: np.ndarray) -> None:
        """Copy an array to the device, but return while the copy is still on its way."""
        self._sent.append(self._copy(buffer, array))
        if len(self._sent) > SENT:
            self._sent.popleft().wait()

    def read(self, buffer: Buffer) -> np.ndarray:
        """Copy a buffer from the device, as one flat array of its data type; bfloat16 as float32."""
        return self.read_all([buffer])[0]

    def read_all(self, buffers: Sequence[Buffer]) -> list[np.ndarray]:
        """Copy buffers from the device as `read` does. The wait is for all of them: one each takes longer than small
        copies do."""
        found = []
        for buffer in buffers:
            words = np.empty(buffer.nbytes // words_of(buffer.dtype).itemsize, words_of(buffer.dtype))
            last = buffer is buffers[-1]
            found.append(self.context.read(self.by_role[buffer.role].handle, words, self.plan.offsets[buffer], last))
        return [
            (words.astype(np.uint32) << 16).view(np.float32) if buffer.dtype == "bfloat16" else words
            for buffer, words in zip(buffers, found, strict=True)
        ]

    def read_role(self, role: Role) -> np.ndarray:
        """Copy all of a role's memory from the device, float32; empty if the plan has none."""
        memory = self.by_role.get(role)
        words = np.empty(memory.nbytes // 4 if memory else 0, np.float32)
        return self.context.read(memory.handle, words, 0) if memory else words

    def write_role(self, role: Role, words: np.ndarray) -> None:
        """Copy back what `read_role` returned."""
        if words.size:
            self.context.write(self.by_role[role].handle, words)

    def fill_zero(self, role: Role) -> None:
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

    def release_temporaries(self) -> None:
        """Give back activations, workspace and pages."""
        if arena := self.by_role.pop(Role.TEMPORARY, None):
            arena.release()
        self._pages = None

    def release(self) -> None:
        """Give everything back."""
        self._sent.clear()
        for memory in self.by_role.values():
            memory.release()
        self._pages = None

    def _copy(self, buffer: Buffer, array: np.ndarray) -> Any:
        array = np.ascontiguousarray(array)
        if array.nbytes > buffer.nbytes:
            raise DeviceError(f"{array.nbytes:,} bytes do not fit '{buffer.name}' of {buffer.nbytes:,}.")
        return self.context.copy(self.by_role[buffer.role].handle, array, self.plan.offsets[buffer])


Examples = np.ndarray | Mapping[str, np.ndarray]  # of the only input, or of each input by name


@dataclass(frozen=True)
class OutputTargets:
    """Targets of one output for a micro-batch, as the device reads them.

    Arguments:
    - `values`: int32 class numbers, one for each row, or float32 values from `pack`.
    - `weights`: float32, one for each row (default None: 1 each).
    """

    values: np.ndarray
    weights: np.ndarray | None = None


Targets = np.ndarray | Sequence[OutputTargets]  # class numbers of the only output, or each output's


def random_batch(plan: Plan, n: int, rng: np.random.Generator) -> tuple[Examples, list[OutputTargets]]:
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


class Feed:
    """Packs examples and copies what a step reads to the device; for a GPU, in pinned memory. Arguments: see
    Session."""

    def __init__(self, plan: Plan, memory: PlanMemory) -> None:
        self.plan, self.memory = plan, memory
        self._blocks = input_blocks(plan.request.network)
        context = memory.context
        self._empty: Empty | None = context.pinned.empty if context.device.is_gpu else None
        losses, nodes = plan.request.losses, plan.request.network.nodes
        several = len(losses.by_output) > 1
        # 1 exactly for a single vector: its loss then has the same bits as without a factor
        self._factors = [losses.weight(name) / rows_of(nodes[name].shape) for name in losses.by_output] or [1.0]
        rows = all(each.accuracy == "rows" for each in losses.by_output.values())
        self.counts_whole = rows and self._factors == [1.0]  # right answers are whole numbers
        self._own_scalars = list(plan.storage.controls.values()) if several else []

    def close(self) -> None:
        """Give back the pinned memory that no array uses."""
        if self._empty is not None:
            self.memory.context.pinned.release()

    def pack(self, x: Examples) -> Examples:
        """Return examples (n, ..., channels) in the device's layout. Any thread may call this."""
        if isinstance(x, Mapping):
            return {name: pack(x[name], block, empty=self._empty) for name, block in self._blocks.items()}
        (block,) = self._blocks.values()
        return pack(x, block, empty=self._empty)

    def fetch(self, source: Any, indices: np.ndarray) -> Examples:
        """Return the examples `source[indices]` in the device's layout. Any thread may call this."""
        if isinstance(source, FeatureCache):
            return source.device_layout(indices, self._empty)
        first, count = int(indices[0]), len(indices)
        in_memory = type(source) is np.ndarray  # a memmap is copied ahead of time, which reads the file
        if in_memory and np.array_equal(indices, np.arange(first, first + count)):
            return self.pack(source[first : first + count])  # neighbours: sent without a copy of them
        return self.pack(source[indices])

    def begin(self, examples: int, rate: float, step: int, scale: float = 1.0) -> None:
        """Send the numbers of a mini-batch, whose loss is multiplied by `scale`. Raises PlanError if a plan without an
        optimizer is to train."""
        scalars = step_scalars(self.plan.request, examples, rate, step, scale)
        scalars[places.INVERSE_BATCH] = self._factors[0] / examples * scale
        self.memory.send(self.plan.storage.control.scalars.buffer, scalars)
        for control, factor in zip(self._own_scalars, self._factors, strict=False):
            own = scalars.copy()
            own[places.INVERSE_BATCH] = factor / examples * scale
            self.memory.send(control.scalars.buffer, own)

    def send(self, x: Examples | None, targets: Targets | None) -> None:
        """Send the examples of a micro-batch, and their targets where there are any."""
        storage = self.plan.storage
        if isinstance(x, Mapping):
            for name, words in x.items():
                self.memory.send(storage.inputs[name].buffer, np.asarray(words, np.float32))
        elif x is not None:
            self.memory.send(storage.input.buffer, np.asarray(x, np.float32))
        if targets is None:
            return
        outputs = [OutputTargets(np.asarray(targets))] if isinstance(targets, np.ndarray) else targets
        for control, output in zip(storage.controls.values(), outputs, strict=True):
            labels = output.values.dtype.kind in "iu"
            values = np.ascontiguousarray(output.values, np.int32 if labels else np.float32)
            self.memory.send(control.targets.buffer, values)
            if control.weights is not None:
                rows = values.size if labels else values.shape[1]
                weights = np.ones(rows, np.float32) if output.weights is None else output.weights
                self.memory.send(control.weights.buffer, np.ascontiguousarray(weights, np.float32))


class Session:
    """Runs a plan. Weights go in with `load` and come out with `weights`; steps change the device's copies.

    A plan's own kernels are compiled at once; those of evaluation, in a plan that trains, when it is first asked for,
    since each takes memory.

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
        self.memory = PlanMemory(plan, context)
        self._runners: dict[tuple, Runner] = {}
        self.loss_scale = LOSS_SCALE if plan.request.compute.scales_loss else 1.0
        self.ranges_known = False  # True if training has left ranges for quantized tensors
        self._counters = np.zeros(16, np.float32)  # of the last mini-batch
        self._examples = 0  # of the micro-batch that is on the device
        self._prepared: ProgramKey | None = None  # whose weights are prepared, since none have changed
        self.feed = Feed(plan, self.memory)
        programs = [p for key, p in plan.programs.items() if key.kind is Kind.TRAIN or plan.request.optimizer is None]
        self.kernels.compile([launch for program in programs for launch in program.all_launches], progress)
        for role in self.memory.by_role:  # last of all: what fails before drops memory that nothing is writing to
            self.memory.fill_zero(role)

    # -- weights -------------------------------------------------------------------------------------------------

    def load(self, weights: Weights) -> None:
        """Copy weights to the device: trained and frozen ones, folded where the plan folds. Where updates leave the
        extremes of kernels, those of the weights are taken now. Raises FormatError if some are missing."""
        if missing := self.plan.request.network.parameters.keys() - weights.keys():
            raise FormatError(
                f"The weights lack '{min(missing)}'. If its layer was added after the Model was made, create another."
            )
        for buffer, fill in self.plan.storage.fill.items():
            self.memory.send(buffer, fill(weights))
        trains = next((key for key in self.plan.programs if key.kind is Kind.TRAIN), None)
        if trains:
            self._run(trains, "measure")
        self.context.finish()
        self.ranges_known, self._prepared = False, None

    def weights(self) -> Weights:
        """Copy the weights that training may have changed, float32 under the names and shapes of the network: trained
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
            self.memory.send(tensor.buffer, pack(state[name].reshape(tensor.shape)))
        self.context.finish()

    def records(self) -> Weights:
        """Copy the range statistics of quantized tensors, by "layer/kind": float32 (16,), see ops.quantize.FIELDS."""
        words = self.memory.read_role(Role.RANGE)
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
            self.memory.write(q.record.buffer, record)
        self.ranges_known, self._prepared = bool(quantizers), None

    def _unpacked(self, tensors: dict[str, Tensor]) -> Weights:
        """Read tensors back in the shapes of the parameters at the ends of their names."""
        parameters = self.plan.request.network.parameters
        shapes = {name: parameters["/".join(name.split("/")[-2:])].weight.shape for name in tensors}
        read = self.memory.read_all([tensor.buffer for tensor in tensors.values()])
        found = zip(tensors.items(), read, strict=True)
        return {name: unpack(words, tensor.shape).reshape(shapes[name]) for (name, tensor), words in found}

    def reset_optimizer(self) -> None:
        """Set the optimizer's state to zeros, as before the first step."""
        self.memory.fill_zero(Role.OPTIMIZER)

    # -- inputs --------------------------------------------------------------------------------------------------

    def pack(self, x: Examples) -> Examples:
        """Return examples (n, ..., channels) in the device's layout, as steps take them. Any thread may call this."""
        return self.feed.pack(x)

    def fetch(self, source: Any, indices: np.ndarray) -> Examples:
        """Return the examples `source[indices]` in the device's layout. Any thread may call this."""
        return self.feed.fetch(source, indices)

    # -- steps ---------------------------------------------------------------------------------------------------

    def train(
        self, micro_batches: Iterable[tuple[Examples | None, Targets]], examples: int, rate: float, step: int
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
        self._accumulate(micro_batches, examples, step)
        self._finish_step(examples, step)
        loss, correct, finite = self._end(examples)
        if finite:
            self._learn_ranges()
        return loss, correct, finite

    def _accumulate(self, micro_batches: Iterable, examples: int, step: int) -> None:
        """Forward and backward passes of a mini-batch."""
        sizes, ranges = self.plan.micro_batches(examples), self.plan.ranges(Kind.TRAIN, self.ranges_known, step)
        for index, (n, (x, targets)) in enumerate(zip(sizes, micro_batches, strict=True)):
            key, self._examples = ProgramKey(Kind.TRAIN, n, ranges, index == 0), n
            if index == 0:
                self._run(key, "prepare")
            self.feed.send(x, targets)
            self._run(key, "micro")

    def _finish_step(self, examples: int, step: int) -> None:
        """Complete the gradients, check them and update the weights."""
        size, ranges = self.plan.micro_batches(examples)[0], self.plan.ranges(Kind.TRAIN, self.ranges_known, step)
        self._run(ProgramKey(Kind.TRAIN, size, ranges), "finish")

    def _learn_ranges(self) -> None:
        """Update the ranges whose observers run on the host, in one read and one write."""
        self.ranges_known = True
        if self.plan.observed_on_host:
            words = self.memory.read_role(Role.RANGE)
            for q in self.plan.observed_on_host:
                record = self._record(words, q)
                record[:] = moved(q.observer, record)
            self.memory.write_role(Role.RANGE, words)

    def evaluate(self, x: Examples | None, targets: Targets, n: int | None = None) -> tuple[float, float]:
        """Return (sum of losses, number of right answers) of one micro-batch of `n` examples (default: one for each of
        `targets`). Arguments as in `train`."""
        key = self._forward_key(Kind.EVALUATE, len(targets) if n is None else n)
        self._begin(key.examples)
        self._forward(key, x, targets)
        return self._end(1)[:2]

    @property
    def by_output(self) -> dict[str, tuple[float, float]]:
        """(sum of losses, number of right answers) of each of several outputs in the last mini-batch."""
        names = list(self.plan.request.losses.by_output)
        places = range(OUTPUTS, OUTPUTS + 2 * len(names), 2) if len(names) > 1 else ()
        pairs = [(float(self._counters[at]), float(self._counters[at + 1])) for at in places]
        return dict(zip(names, pairs, strict=bool(pairs)))

    def outputs(self, n: int) -> dict[str, np.ndarray]:
        """Return the outputs of the micro-batch of `n` examples that was evaluated last, as `predict` gives them."""
        network, tensors = self.plan.request.network, self._program(self._forward_key(Kind.EVALUATE, n)).outputs
        found = {name: unpack(self.memory.read(y.buffer), y.shape) for name, y in tensors.items()}
        for name, loss in self.plan.request.losses.by_output.items():
            for node in head_of(network, name, loss):
                found[name] = node.op.reference_forward([found[name]], {})
        return found

    def compute_gradients(self, micro_batches: Iterable[tuple[Examples, Targets]], examples: int, step: int) -> Weights:
        """Return the gradients of the mean loss over a mini-batch, as `gradients`. Weights, optimizer state, statistics
        and ranges stay as they are."""
        counters = self.plan.storage.control.counters.buffer
        self._begin(examples, step=step)
        with self._ranges_left():
            self._accumulate(micro_batches, examples, step)
            words = self.memory.read(counters)
            words[LOSS] = np.nan  # the finite check at the end of the step then withholds the update
            self.memory.write(counters, words)
            self._finish_step(examples, step)
            return self.gradients()

    def predict(self, x: Examples | None, n: int) -> Any:
        """Return the network's output (n, ...) for one micro-batch, by name if it has several. None stands for the x
        that is on the device from the call before."""
        tensors = self._forward(self._forward_key(Kind.PREDICT, n), x)
        found = {name: unpack(self.memory.read(y.buffer), y.shape) for name, y in tensors.items()}
        return found if len(found) > 1 else next(iter(found.values()))

    def predict_packed(self, x: Examples | None, n: int) -> np.ndarray:
        """Return the network's first output for one micro-batch in the device's layout."""
        tensors = self._forward(self._forward_key(Kind.PREDICT, n), x)
        return self.memory.read(next(iter(tensors.values())).buffer)

    def first_nonfinite(
        self, micro_batches: Iterable[tuple[Examples, Targets]], examples: int, rate: float, step: int
    ) -> tuple[Launch, Buffer] | None:
        """Run a mini-batch launch by launch; return the first launch that writes a NaN or an infinity, and the buffer.
        Gradients are overwritten; if the mini-batch failed before, nothing else that lasts changes."""
        self.memory.fill_zero(Role.TEMPORARY)  # what a failed step left in padding that nobody writes is not to blame
        self._begin(examples, rate, step)
        sizes, ranges = self.plan.micro_batches(examples), self.plan.ranges(Kind.TRAIN, self.ranges_known, step)
        culprit: list[Buffer] = []

        def look(launch: Launch) -> bool:
            bad = [b for b in launch.writes if "float" in b.dtype and not np.isfinite(self.memory.read(b)).all()]
            culprit.extend(bad)
            return bool(bad)

        with self._ranges_left():
            for index, (n, (x, targets)) in enumerate(zip(sizes, micro_batches, strict=True)):
                self.feed.send(x, targets)
                for part in ("prepare", "micro") if index == 0 else ("micro",):
                    found = self._runner(ProgramKey(Kind.TRAIN, n, ranges, index == 0), part).step_through(look)
                    if found:
                        return found, culprit[0]
            found = self._runner(ProgramKey(Kind.TRAIN, sizes[0], ranges), "finish").step_through(look)
            return (found, culprit[0]) if found else None

    def reconstruction_errors(self, step: int) -> dict[str, float]:
        """Measure the errors of inverted activations, for the micro-batch that `step` has left on the device.

        Returns the largest difference over the largest value by layer, in the order in which they are inverted.
        Gradients are overwritten; nothing else that lasts changes."""
        key = ProgramKey(Kind.TRAIN, self._examples, self.plan.ranges(Kind.TRAIN, self.ranges_known, step))
        program = self._program(key)
        originals = {copy: buffer for buffer, copy in program.inverted.items()}
        values: dict[Buffer, np.ndarray] = {}
        errors: dict[str, float] = {}

        def look(launch: Launch) -> bool:
            for buffer in launch.writes:
                if buffer in program.inverted:
                    values[buffer] = self.memory.read(buffer)
                elif buffer in originals:
                    value = values.pop(originals[buffer])
                    off, largest = np.abs(self.memory.read(buffer) - value).max(), np.abs(value).max()
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
        words = self.memory.read_role(Role.RANGE)
        try:
            yield
        finally:
            self.memory.write_role(Role.RANGE, words)

    def _forward_key(self, kind: Kind, n: int) -> ProgramKey:
        return ProgramKey(kind, n, self.plan.ranges(kind, self.ranges_known))

    def _forward(self, key: ProgramKey, x: Examples | None, targets: Targets | None = None) -> dict[str, Tensor]:
        """Run a forward pass; the tensors of its outputs."""
        self.feed.send(x, targets)
        if self._prepared != key:
            self._run(key, "prepare")
            self._prepared = key
        self._run(key, "micro")
        return self._program(key).outputs

    def _begin(self, examples: int, rate: float = 0.0, step: int = 0) -> None:
        self.feed.begin(examples, rate, step, self.loss_scale)
        counters = self.plan.storage.control.counters.buffer
        handle, offset = self.memory.at(counters)
        self.context.fill_zero(handle, counters.nbytes, offset)

    def _end(self, examples: int) -> tuple[float, float, bool]:
        counters = self._counters = self.memory.read(self.plan.storage.control.counters.buffer)
        loss, correct = float(counters[LOSS]) / examples, float(counters[CORRECT])
        finite = bool(counters[NONFINITE] == 0 and np.isfinite(loss))
        return loss, round(correct) if self.feed.counts_whole else correct, finite

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
            self._runners[key, part] = Runner(self.context, self.kernels, getattr(program, part), self.memory.at)
        return self._runners[key, part]

    def _program(self, key: ProgramKey) -> Program:
        return self.plan.program(key.kind, key.examples, key.ranges, key.first)

    @property
    def allocated_bytes(self) -> int:
        """Device memory held, as the buffers themselves count it."""
        return self.memory.allocated_bytes

    @property
    def paged_bytes(self) -> int:
        """Bytes held outside the device."""
        return self.memory.paged_bytes

    @property
    def can_step(self) -> bool:
        """True while it holds the memory that its plan's steps need."""
        return self.plan.peak_bytes <= self.allocated_bytes and self.plan.paged_bytes <= self.paged_bytes

    def end_steps(self) -> None:
        """Give back activations, workspace and pages. What training has changed can still be read."""
        self._close_runners()
        self.memory.release_temporaries()

    def close(self) -> None:
        """Give the device's memory back, pages, and pinned memory that nothing uses."""
        self._close_runners()
        self.memory.release()
        self.feed.close()

    def _close_runners(self) -> None:
        self.context.finish()
        for runner in self._runners.values():
            runner.close()
        self._runners.clear()
