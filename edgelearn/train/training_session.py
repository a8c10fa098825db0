"""A training plan on a device, with the state of the training."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

import numpy as np

from edgelearn.compile import Plan
from edgelearn.data.split import mini_batches
from edgelearn.errors import NonFiniteError, PlanError
from edgelearn.interop.weights import Weights
from edgelearn.ops import Optimizer
from edgelearn.runtime import Context, Kernels, Session
from edgelearn.runtime.feed import Examples, OutputTargets

from .passes import ByOutput, result_logs
from .prefetch import ahead
from .schedules import rate_at
from .sources import Source, check_whole
from .state import TrainingState
from .status import Logs, Position, TrainingStatus
from .targets import Targets

MicroBatch = tuple[Examples, Sequence[OutputTargets]]  # examples in the device's layout, labels
Progress = Callable[[int, int, str], None]
LEAST_LOSS_SCALE = 1.0  # an overflow at this scale is a fault of the training


class TrainingSession:
    """Updates on an open session. Opening it compiles kernels and allocates memory; nothing after that does.

    Arguments:
    - `plan`: a plan with an optimizer.
    - `context`, `kernels`: the device in use, and its compiled kernels.
    - `status`: progress, shared with whoever shows it.
    - `progress`: called while kernels compile; see Kernels.compile.

    Raises PlanError for a plan without an optimizer, DeviceError if the device has too little memory.
    """

    def __init__(
        self, plan: Plan, context: Context, kernels: Kernels | None, status: TrainingStatus,
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        optimizer, loss = plan.request.optimizer, plan.request.loss
        if optimizer is None or loss is None:
            raise PlanError("Training needs a plan with an optimizer: compile the model, then use model.plan().")
        self.plan, self.network, self.status = plan, plan.request.network, status
        self.optimizer: Optimizer = optimizer
        self.loss = loss
        self.session = Session(plan, context, kernels, progress)
        self.changed = False  # True if the device's weights are ahead of what `snapshot` returned last

    @property
    def position(self) -> Position:
        return self.status.position

    def resume(self, weights: Weights, state: TrainingState, new_ranges: bool = False) -> None:
        """Continue from `state`, with `weights` for what training does not change. `new_ranges`: a state without ranges
        of quantized tensors has them measured again. Raises FormatError if the state belongs to another training."""
        self.session.load(weights | state.weights)
        if state.slots:
            self.session.load_optimizer_state(state.slots)
        else:
            self.session.reset_optimizer()
        if state.records or (state.position.updates and not new_ranges):  # else a range for every tensor is left
            self.session.load_records(state.records)
        self.status.position = state.position
        self.changed = False

    def snapshot(self) -> TrainingState:
        """Copy the state of the training from the device."""
        self.changed = False
        records = self.session.records() if self.session.ranges_known else {}
        return TrainingState(self.session.weights(), self.session.optimizer_state(), records, self.position)

    def micro_batches(
        self, x: Source, y: Targets, parts: Iterable[np.ndarray]
    ) -> Generator[tuple[np.ndarray, MicroBatch]]:
        """Yield (indices, micro-batch) for each of `parts`, prepared ahead."""
        fetch = self.session.fetch
        return ahead(parts, lambda part: (fetch(x, part), y[part]))

    def mini_batch(self, x: Source, y: Targets, indices: np.ndarray) -> Iterator[MicroBatch]:
        """Yield the micro-batches of one mini-batch."""
        parts = mini_batches(indices, self.plan.request.micro_batch)
        return (value for _, value in self.micro_batches(x, y, parts))

    def update(
        self, x: Source, y: Targets, indices: np.ndarray, stream: Iterable[MicroBatch]
    ) -> tuple[float, float, ByOutput]:
        """Run one update from the examples `indices`, given as micro-batches in `stream`.

        Returns (mean loss, number of right answers, sums of each of several outputs). An overflow that a smaller loss
        scale may prevent is no update, and halves it. Raises NonFiniteError; the weights are then unchanged.
        """
        at = self.position
        rate = rate_at(self.optimizer.learning_rate, at.updates) if at.learning_rate is None else at.learning_rate
        self.changed = True
        scales = self._scale_loss()
        loss, correct, finite = self.session.train(stream, len(indices), rate, at.updates + 1)
        if not finite and not (scales and np.isfinite(loss) and at.loss_scale > LEAST_LOSS_SCALE):
            raise NonFiniteError(self._diagnose(x, y, indices, rate))
        if scales:
            at.scale_loss(finite)
        at.updates += finite
        return loss, correct, self.session.by_output

    def step(self, x: Source, y: Targets) -> Logs:
        """Run one update from all of `x` and `y`. Returns and raises as Trainer.step."""
        check_whole(self.loss, len(x), self.plan.request.micro_batch)
        indices = np.arange(len(x))
        loss, correct, by_output = self.update(x, y, indices, self.mini_batch(x, y, indices))
        return self.logs(loss, correct, by_output, len(x))

    def logs(self, loss: float, correct: float, by_output: ByOutput, n: int) -> Logs:
        """The logs of a mini-batch of `n` examples: see `result_logs`."""
        return result_logs(self.plan.request.losses, n, loss * n, correct, by_output) | {"loss": loss}

    def gradients(self, x: Source, y: Targets) -> Weights:
        """Return the gradients of the mean loss over all of `x` and `y`. See Trainer.gradients."""
        check_whole(self.loss, len(x), self.plan.request.micro_batch)
        stream = self.mini_batch(x, y, np.arange(len(x)))
        self._scale_loss()
        return self.session.compute_gradients(stream, len(x), self.position.updates + 1)

    def _scale_loss(self) -> bool:
        """Give the session the loss scale of this step; False if the compute type has none."""
        scales = self.plan.request.compute.scales_loss
        if scales:
            self.session.loss_scale = self.position.loss_scale
        return scales

    def _diagnose(self, x: Source, y: Targets, indices: np.ndarray, rate: float) -> str:
        """Explain where the NaN or infinity of this step came from, and what to do."""
        at = self.position
        step = f"Epoch {at.epoch + 1}, step {at.step + 1}"
        for part in mini_batches(indices, self.plan.request.micro_batch):
            examples = x[part]
            arrays = examples.values() if isinstance(examples, dict) else [examples]
            targets = [y.values[name][part] for name in y.values if y.values[name].dtype.kind == "f"]
            finite = np.all([np.isfinite(a).reshape(len(part), -1).all(1) for a in (*arrays, *targets)], axis=0)
            if not finite.all():
                return (
                    f"{step}: example {part[~finite][0]} holds a NaN or an infinity. Clean the data, then start again."
                )
        stream = self.mini_batch(x, y, indices)
        place = self.session.first_nonfinite(stream, len(indices), rate, at.updates + 1)
        where = f"first in layer '{place[0].layer}' ({place[0].kernel}, {place[1].name})" if place else "in the loss"
        return (
            f"{step}: a NaN or an infinity appeared {where}. Weights are as before the step. Lower the learning rate "
            f"(now {rate:g}), or start from other weights."
        )
