"""Training on an open session: weights in, steps or epochs, weights out, as often as needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from edgelearn.compile import Plan
from edgelearn.errors import PlanError
from edgelearn.interop.weights import ReadOnlyWeights, Weights, check_weights
from edgelearn.ops import Optimizer
from edgelearn.runtime import Context, Kernels

from . import passes
from .callbacks import Callback, History
from .callbacks.base import CallbackList
from .loop import Loop, start
from .reconstruction import watched
from .sources import Source, as_source
from .state import TrainingState
from .status import Logs, TrainedModel, TrainingStatus
from .targets import Targets, labeled
from .training_session import Progress, TrainingSession


class Trainer(TrainedModel):
    """A training on an open session, for loops that get other weights again and again.

    Opening it compiles kernels and allocates memory. After that `load` costs a copy of the weights, and steps and
    epochs compile and allocate nothing; `evaluate` and `predict` compile their kernels when they are first called.

    >>> with model.trainer(batch_size=32) as trainer:
    ...     for weights in received:
    ...         trainer.load(weights)
    ...         trainer.fit(x, y, epochs=2)
    ...         send(trainer.weights)

    Arguments:
    - `plan`: a plan with an optimizer, from `Model.plan` or `make_plan`.
    - `weights`: all weights of the network, float32 by "layer/role".
    - `context`: the device in use; `kernels`: its compiled kernels (default: compiled anew).
    - `status`: progress that is shared with a Model (default: a new one).
    - `progress`: called while kernels compile; see Kernels.compile.

    Raises PlanError for a plan without an optimizer, DeviceError if the device has too little memory, FormatError for
    weights that don't fit.
    """

    def __init__(
        self, plan: Plan, weights: Weights, context: Context, kernels: Kernels | None = None,
        status: TrainingStatus | None = None, progress: Progress | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.status = plan, status or TrainingStatus()
        self._network = plan.request.network
        self._weights = check_weights(self._network, weights)
        self.training = TrainingSession(plan, context, kernels, self.status, progress)
        self.training.resume(self._weights, TrainingState({}, position=self.position))

    @property
    def headline(self) -> str:
        return f"of '{self.plan.request.network.name}' after {self.position.updates} updates"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the device's memory back."""
        self.training.session.close()

    def load(self, weights: Weights) -> None:
        """Start a new training from `weights`: optimizer state, ranges of quantized tensors and position begin anew.

        Raises FormatError for weights that don't fit the network.
        """
        self._weights = check_weights(self._network, weights)
        self.training.resume(self._weights, TrainingState({}))

    @property
    def weights(self) -> Weights:
        return ReadOnlyWeights(self._weights | self.training.session.weights())

    @weights.setter
    def weights(self, weights: Weights) -> None:
        self._weights = check_weights(self._network, weights)
        state = self.training.snapshot()
        self.training.resume(self._weights, replace(state, weights={}))

    @property
    def optimizer(self) -> Optimizer:
        return self.training.optimizer

    def swap_averages(self) -> None:
        self.training.resume(self._weights, self.training.snapshot().swapped())

    def state(self) -> tuple[Weights, dict]:
        return self.training.snapshot().to_tensors()

    def restore(self, tensors: Weights, position: dict) -> None:
        """Return to where `state` was called. Raises FormatError if it was called on another training."""
        state, session = TrainingState.of(tensors, position), self.training.session
        quantizes = self.plan.request.precision.quantizes
        slots = {name: tensor.shape for name, tensor in self.plan.storage.slot_tensors.items()}
        state.check(session.changing, slots, quantizes)
        self.training.resume(self._weights, state)

    def step(self, x, y, sample_weight=None) -> Logs:
        """Run one update and return the mini-batch's mean loss and accuracy, both from before the update.

        Arguments:
        - `x`: array (n, ...) or Source of at most the plan's `batch_size` examples.
        - `y`: their targets, as Model.fit takes them; `sample_weight`, too, for a plan with `weighted=True`.

        Raises ShapeError for examples that don't fit, NonFiniteError naming the first layer where a NaN or infinity
        appeared; the weights are then unchanged.
        """
        return self.training.step(*self._mini_batch(x, y, sample_weight))

    def gradients(self, x, y, sample_weight=None) -> Weights:
        """Return the gradients of the mean loss over a mini-batch, float32 by "layer/role"; nothing else changes.

        Arguments and errors as `step`; a NaN or an infinity is returned as it is.
        """
        return self.training.gradients(*self._mini_batch(x, y, sample_weight))

    def fit(
        self, x, y, epochs: int = 1, *, validation_data: tuple | None = None, validation_frequency: int = 1,
        callbacks: Sequence[Callback] = (), shuffle: bool = True,
    ) -> History:  # fmt: skip
        """Train in mini-batches of the plan's `batch_size` until `epochs` are done since `load`.

        Arguments and errors as Model.fit.
        """
        request = self.plan.request
        x, y = labeled(x, y, self._network, self.training.loss)
        if validation_data is not None:
            validation_data = labeled(validation_data[0], validation_data[1], self._network, self.training.loss)
        start(self.status, self.training.loss, len(x), request.batch_size, request.micro_batch, epochs, shuffle)
        history = History()
        notify = CallbackList(self, [*watched(callbacks, self.plan), history])
        loop = Loop(
            lambda: self.training, self.status, notify, x, y, request.batch_size, epochs, shuffle, validation_data,
            validation_frequency,
        )  # fmt: skip
        try:
            loop.run()
        finally:
            notify("on_train_end", {})
        return history

    def evaluate(self, x, y) -> Logs:
        x, y = labeled(x, y, self._network, self.training.loss)
        return passes.evaluate(self.training.session, x, y)

    def predict(self, x) -> Any:
        return passes.predict(self.training.session, as_source(x, self._network))

    def range_records(self) -> Weights:
        session = self.training.session
        return session.records() if session.ranges_known else {}

    def reconstruction_errors(self) -> dict[str, float]:
        return self.training.session.reconstruction_errors(self.position.updates)

    def _mini_batch(self, x, y, sample_weight) -> tuple[Source, Targets]:
        x, y = labeled(x, y, self._network, self.training.loss, sample_weight)
        if sample_weight is not None and not self.plan.request.weighted:
            raise PlanError("The plan takes no weights of examples: make the trainer with weighted=True.")
        most = self.plan.request.batch_size
        if len(x) > most:
            raise PlanError(f"{len(x)} examples are more than the {most} of the plan's mini-batches.")
        return x, y
