"""Run `Model.fit`, from checked arguments to the end of the training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edgelearn.compile.lower import input_block
from edgelearn.errors import PlanError
from edgelearn.graph import Network

from . import sources
from .arguments import FitArguments
from .callbacks import History
from .callbacks.base import CallbackList
from .callbacks.progress import with_progress
from .features import extract_features, feature_settings
from .interrupt import interrupted_between_steps
from .loop import Loop, start
from .metrics import OutputMetrics
from .open_session import OpenSession
from .phases import Phases
from .plans import Plans, TrainingSettings
from .reconstruction import watched
from .sources import Source
from .status import StoppedError, TrainedModel
from .streams import Stream


class Fitting:
    """One `fit` of a model.

    Arguments:
    - `model`: what callbacks see.
    - `network`: what is trained.
    - `session`, `plans`: the model's.
    - `settings`: returns how it trains, for these targets.
    - `metrics`: of the validation (None: none).
    """

    def __init__(
        self, model: TrainedModel, network: Network, session: OpenSession, plans: Plans,
        settings: Callable[..., TrainingSettings], metrics: OutputMetrics | None,
    ) -> None:  # fmt: skip
        self.model, self.network, self.status = model, network, model.status
        self.session, self.plans, self.settings, self.metrics = session, plans, settings, metrics

    def run(self, x, y, a: FitArguments) -> History:
        """Train on `x` and `y`. Raises what Model.fit raises."""
        (x, y), *others = a.labeled(x, y, self.network, self.settings().loss)
        if a.cache is not None and sources.varies(x):
            raise PlanError(
                "These examples differ from epoch to epoch, so their features can't be cached: leave the cache off, or "
                "train on the examples as they are."
            )
        if isinstance(x, Stream):
            a = replace(a, batch_size=x.batch_size, shuffle=False)
        settings = self.settings(y, *(targets for _, targets in others))
        size = min(a.batch_size or len(x), len(x))
        start(self.status, settings.loss, len(x), size, min(a.micro_batch or size, size), a.epochs, a.shuffle)
        phases = self.plans.training(
            settings, size, a.micro_batch and min(a.micro_batch, len(x)), a.budget, a.cache, [len(x)],
            [len(source) for source, _ in others],
        )  # fmt: skip
        plan, history = phases["train"], History()
        callbacks = with_progress(watched(a.callbacks, plan), a.verbose)
        notify = CallbackList(self.model, [*callbacks, history])
        with interrupted_between_steps(self.status):
            try:
                if a.cache is not None:
                    wanted = [x, *(source for source, _ in others)]
                    x, *features = self._features(wanted, phases, a, notify)
                    others = [(source, targets) for source, (_, targets) in zip(features, others, strict=True)]
                loop = Loop(
                    lambda: self.session.train(plan, notify), self.status, notify, x, y, size, a.epochs, a.shuffle,
                    others[0] if others else None, a.validation_frequency, self.metrics,
                )  # fmt: skip
                loop.run()
            except StoppedError:
                pass
            finally:
                self.session.close()
                if not self.status.stop_training:
                    self.session.features.clear()
                notify("on_train_end", {})
        return history

    def _features(self, wanted: list[Source], phases: Phases, a: FitArguments, notify: CallbackList) -> list[Source]:
        """The features of the examples, those of a training that was stopped if they are the same."""
        assert a.cache is not None
        block, kept = input_block(phases["train"].request.network), self.session.features
        settings = feature_settings(phases["extract"], self.session.weights, wanted, a.cache, a.cache_folder, block)
        if not kept.get(wanted, settings):
            kept.clear()  # before others are made: each may be as large as memory allows
            extracting = self.session.forward(phases["extract"], notify)
            features = extract_features(extracting, wanted, a.cache, a.cache_folder, block, notify, self.status)
            kept.keep(wanted, settings, features)
        return list(kept.get(wanted, settings))
