"""What `Model.fit` does, from checked arguments to the end of the training."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgelearn.compile.lower import input_block
from edgelearn.errors import PlanError
from edgelearn.graph import Network
from edgelearn.ops import Loss

from . import sources
from .arguments import FitArguments
from .callbacks import History
from .callbacks.base import CallbackList
from .callbacks.progress import with_progress
from .features import extract_features
from .loop import Loop, start
from .open_session import OpenSession
from .phases import Phases
from .reconstruction import watched
from .sources import labeled
from .status import StoppedError, TrainedModel


class Fitting:
    """One `fit` of a model.

    Arguments:
    - `model`: what callbacks see.
    - `network`, `loss`: what is trained.
    - `session`: the model's.
    - `phases`: makes the plans, as Model.phases.
    """

    def __init__(
        self, model: TrainedModel, network: Network, loss: Loss, session: OpenSession, phases: Callable[..., Phases]
    ) -> None:
        self.model, self.network, self.loss = model, network, loss
        self.session, self.phases, self.status = session, phases, model.status

    def run(self, x, y: np.ndarray, a: FitArguments) -> History:
        """Train on `x` and `y`. Raises what Model.fit raises."""
        x, y = a.split(*labeled(x, y, self.network, self.loss))
        if a.validation_data is not None:
            others = a.validation_data
            a.validation_data = labeled(others[0], others[1], self.network, self.loss)
        if a.cache is not None and sources.varies(x):
            raise PlanError(
                "These examples differ from epoch to epoch, so their features can't be cached: leave the cache off, or "
                "train on the examples as they are."
            )
        size = min(a.batch_size or len(x), len(x))
        start(self.status, self.loss, len(x), size, min(a.micro_batch or size, size), a.epochs, a.shuffle)
        wanted = [x] if a.validation_data is None else [x, a.validation_data[0]]
        lengths = [len(source) for source in wanted]
        phases = self.phases(size, a.micro_batch and min(a.micro_batch, len(x)), a.budget, a.cache, lengths)
        plan, history = phases["train"], History()
        callbacks = with_progress(watched(a.callbacks, plan), a.verbose)
        notify = CallbackList(self.model, [*callbacks, history])
        try:
            if a.cache is not None:
                block, extracting = input_block(plan.request.network), self.session.forward(phases["extract"], notify)
                x, *rest = extract_features(
                    extracting, wanted, a.cache, a.cache_folder, block, notify, self.status
                )  # fmt: skip
                a.validation_data = a.validation_data and (rest[0], a.validation_data[1])
            loop = Loop(
                lambda: self.session.train(plan, notify), self.status, notify, x, y, size, a.epochs, a.shuffle,
                a.validation_data, a.validation_frequency,
            )  # fmt: skip
            loop.run()
        except StoppedError:
            pass
        finally:
            self.session.close()
            notify("on_train_end", {})
        return history
