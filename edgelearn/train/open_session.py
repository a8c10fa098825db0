"""The one open session of a model, and the host's copies of what is on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from edgelearn.compile import Plan
from edgelearn.interop.weights import Weights
from edgelearn.runtime import Context, Kernels, Session

from .callbacks.base import CallbackList
from .features import KeptFeatures
from .state import TrainingState
from .status import TrainingStatus
from .training_session import TrainingSession


class OpenSession:
    """Opens sessions on a device, one at a time, and carries weights and training state from one to the next.

    Arguments:
    - `weights`: all weights of the network, float32 by "layer/role".
    - `context`, `kernels`: the device in use, and its compiled kernels.
    - `status`: progress of the training.
    - `trained`: names of the parameters that are trained when the state is new.
    """

    def __init__(
        self, weights: Weights, context: Context, kernels: Kernels, status: TrainingStatus, trained: Iterable[str]
    ) -> None:
        self.context, self.kernels, self.status = context, kernels, status
        self.training: TrainingSession | None = None  # at most one of these two is open
        self._forward: Session | None = None
        self._weights, self._trained = weights, frozenset(trained)
        self._slots: Weights = {}  # the optimizer's state
        self._records: Weights = {}  # the range statistics of quantized tensors
        self.features = KeptFeatures()

    @property
    def weights(self) -> Weights:
        """All weights, copied from the device if training has changed them there."""
        self._keep()
        return self._weights

    @property
    def records(self) -> Weights:
        session = self.training.session if self.training is not None else None
        return session.records() if session is not None and session.ranges_known else dict(self._records)

    def state(self) -> TrainingState:
        """Return the state of the training, with all weights."""
        self._keep()
        return TrainingState(self._weights, self._slots, self._records, self.status.position)

    def put(self, state: TrainingState, trained: Iterable[str] | None = None) -> None:
        """Replace everything by `state`, which has all weights; an open session gets it at once. `trained`: names of
        the parameters that it trains (default: as before)."""
        self._trained = self._trained if trained is None else frozenset(trained)
        self._weights, self._slots, self._records = state.weights, state.slots, state.records
        self.status.position = state.position
        if self.training is not None:
            self.training.resume(self._weights, state)
        elif self._forward is not None:
            self._load(self._forward)

    def train(self, plan: Plan, notify: CallbackList | None = None) -> TrainingSession:
        """Return the training session of `plan`; closes any other. `notify` hears of compilation and may end it."""
        if self.training is None or self.training.plan is not plan or not self.training.session.can_step:
            self.close()
            training = TrainingSession(plan, self.context, self.kernels, self.status, self._progress(notify))
            state, changed = self.state(), plan.request.trainable != self._trained
            if changed:
                state = state.carried(plan.storage.slot_tensors, plan.storage.quantizers)
            training.resume(self._weights, state, new_ranges=changed)
            self._slots, self._records, self._trained = state.slots, state.records, plan.request.trainable
            self.training = training
        return self.training

    def forward(self, plan: Plan, notify: CallbackList | None = None) -> Session:
        """Return the session of `plan`, which doesn't train; closes any other. `notify` as in `train`."""
        if self._forward is None or self._forward.plan is not plan:
            self.close()
            session = Session(plan, self.context, self.kernels, self._progress(notify))
            self._load(session)
            self._forward = session
        return self._forward

    def close(self) -> None:
        """Give the device's memory back; weights and training state stay on the host."""
        if self.training is not None:
            self.training.session.end_steps()  # the weights that come back have room where activations were
            self._keep()
            self.training.session.close()
        if self._forward is not None:
            self._forward.close()
        self.training = self._forward = None

    def _load(self, session: Session) -> None:
        session.load(self._weights)
        if self._records:
            session.load_records(self._records)

    def _keep(self) -> None:
        """Copy to the host what training has changed on the device."""
        if self.training is not None and self.training.changed:
            state = self.training.snapshot()
            self._weights, self._slots = self._weights | state.weights, state.slots
            self._records = state.records or self._records

    def _progress(self, notify: CallbackList | None) -> Callable[[int, int, str], None] | None:
        if notify is None:
            return None

        def progress(done: int, total: int, kernel: str) -> None:
            notify("on_compile", done, total)
            self.status.check_stop()

        return progress
