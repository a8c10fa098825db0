"""Training on an open session: updates, epochs, validation, features of a frozen prefix.

Micro-batches are prepared on a thread while the device works on the one before.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from edgelearn.compile import Plan
from edgelearn.data.draws import epoch_order, mini_batches
from edgelearn.errors import NonFiniteError, PlanError
from edgelearn.interop.weights import ReadOnlyWeights, Weights, check_weights
from edgelearn.ops import Loss, Losses, Optimizer
from edgelearn.runtime import Context, FeatureCache, Kernels, Session
from edgelearn.runtime.session import Examples, OutputTargets

from . import sources
from .callbacks import Callback, CallbackList, History, watched
from .metrics import OutputMetrics
from .schedules import rate_at
from .sources import Source, Stream, Targets, as_source, check_whole, labeled
from .state import Logs, Position, TrainedModel, TrainingState, TrainingStatus

Key = TypeVar("Key")
Value = TypeVar("Value")


def ahead(keys: Iterable[Key], make: Callable[[Key], Value]) -> Generator[tuple[Key, Value]]:
    """Yield (key, make(key)) in order, each made while the caller works on the one before. Errors of `make` are raised
    at their turn. A single key is made on the caller's thread."""
    remaining = iter(keys)
    first = list(islice(remaining, 2))
    if len(first) < 2:
        yield from ((key, make(key)) for key in first)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="edgelearn-prefetch") as pool:
        waiting = (first[0], pool.submit(make, first[0]))
        for key in chain(first[1:], remaining):
            following = (key, pool.submit(make, key))
            yield waiting[0], waiting[1].result()
            waiting = following
        yield waiting[0], waiting[1].result()


ByOutput = Mapping[str, Sequence[float]]  # (sum of losses, right answers) of each of several outputs


def micro_batches(session: Session, x: Source) -> Iterator[tuple[np.ndarray, Examples]]:
    """Yield (indices of the examples, the examples in the device's layout), in order."""
    parts = mini_batches(np.arange(len(x)), session.plan.request.micro_batch)
    if isinstance(x, Stream):
        x.at_epoch(0)
    return ahead(parts, lambda part: session.fetch(x, part))


def evaluate(
    session: Session, x: Source, y: Targets, metrics: OutputMetrics | None = None,
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:  # fmt: skip
    """Return the mean loss, the accuracy where the loss has one, and the metrics. `check` is called after each
    micro-batch and may raise to end the pass."""
    loss, correct, by_output = 0.0, 0.0, {}
    if metrics:
        metrics.start()
    for part, words in micro_batches(session, x):
        losses, right = session.evaluate(words, y[part], len(part))
        loss, correct = loss + losses, correct + right
        by_output = added(by_output, session.by_output)
        if metrics:
            metrics.update({name: values[part] for name, values in y.values.items()}, session.outputs(len(part)))
        check()
    logs = result_logs(session.plan.request.losses, len(x), loss, correct, by_output)
    return logs | (metrics.results() if metrics else {})


def result_logs(losses: Losses, n: int, loss: float, correct: float, by_output: ByOutput) -> dict[str, Any]:
    """The means over `n` examples, from sums: "loss" and, unless nothing is right or wrong, "accuracy"; of several
    outputs "NAME_loss" and "NAME_accuracy"."""
    logs = {"loss": loss / n}
    if len(losses.by_output) == 1:
        (only,) = losses.by_output.values()
        return logs | ({"accuracy": correct / n} if only.accuracy else {})
    for name, (own_loss, right) in by_output.items():
        logs[f"{name}_loss"] = own_loss / n
        if losses.by_output[name].accuracy:
            logs[f"{name}_accuracy"] = right / n
    return logs


def added(sums: ByOutput, more: ByOutput) -> ByOutput:
    """The sums by output, with those of another micro-batch."""
    return {name: [a + b for a, b in zip(sums.get(name, (0.0, 0.0)), pair, strict=True)] for name, pair in more.items()}


def predict(session: Session, x: Source) -> Any:
    """Return the network's output for each example: float32 (n, ...); of several outputs a dictionary by name."""
    outputs = [session.predict(words, len(part)) for part, words in micro_batches(session, x)]
    if isinstance(outputs[0], dict):
        return {name: np.concatenate([part[name] for part in outputs]) for name in outputs[0]}
    return outputs[0] if len(outputs) == 1 else np.concatenate(outputs)


def extract(session: Session, x: Source, cache: FeatureCache) -> Iterator[int]:
    """Fill `cache` with the network's outputs for `x`; yields how many examples are done."""
    for part, words in micro_batches(session, x):
        cache.put(int(part[0]), len(part), session.predict_packed(words, len(part)))
        yield int(part[-1]) + 1


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


@dataclass
class Loop:
    """Trains until `epochs` are done; `status` says at every moment how far it is.

    Arguments:
    - `training`: returns the open session; called at each step, since a callback may have used another one.
    - `status`: progress.
    - `notify`: the callbacks.
    - `x`, `y`: examples and labels; `validation_data`: others, evaluated every `validation_frequency` epochs.
    - `batch_size`: examples of a mini-batch.
    - `epochs`: the number of epochs in all, those done before included.
    - `shuffle`: show the examples in another order in each epoch.
    - `metrics`: of the validation data (default none).
    """

    training: Callable[[], TrainingSession]
    status: TrainingStatus
    notify: CallbackList
    x: Source
    y: Targets
    batch_size: int
    epochs: int
    shuffle: bool = True
    validation_data: tuple[Source, Targets] | None = None
    validation_frequency: int = 1
    metrics: OutputMetrics | None = None

    def run(self) -> None:
        """Raises StoppedError if it is stopped before the first step, NonFiniteError naming the step and the layer."""
        status, logs = self.status, {}
        if self.validation_data is not None and status.position.updates == 0:
            logs = self._validate(status.check_stop)
        self.training()
        self.notify("on_train_begin", logs)
        while status.position.epoch < self.epochs and not status.stop_training:
            if not self._epoch():
                break
            self._end_epoch()

    def _epoch(self) -> bool:
        """Run the remaining steps of this epoch; True if it came to its end."""
        status, at, training = self.status, self.status.position, self.training()
        x = sources.at_epoch(self.x, at.epoch)
        self.notify("on_epoch_begin", at.epoch, {})
        plan = training.plan
        order = epoch_order(len(x), plan.request.seed, at.epoch) if self.shuffle else np.arange(len(x))
        batches = list(mini_batches(order, self.batch_size))[at.step :]
        parts = [part for indices in batches for part in mini_batches(indices, plan.request.micro_batch)]
        with closing(training.micro_batches(x, self.y, parts)) as stream:
            for number, indices in enumerate(batches, start=1):
                self.notify("on_train_batch_begin", at.step, {})
                start = time.perf_counter()
                micro = (value for _, value in islice(stream, plan.micro_batch_count(len(indices))))
                loss, correct, own = self.training().update(x, self.y, indices, micro)
                at.step, at.seen = at.step + 1, at.seen + len(indices)
                at.loss, at.correct = at.loss + loss * len(indices), at.correct + correct
                at.by_output = added(at.by_output, own)
                at.seconds += time.perf_counter() - start
                self.notify("on_train_batch_end", at.step - 1, training.logs(loss, correct, own, len(indices)))
                if status.stop_training:
                    return number == len(batches)
        return True

    def _end_epoch(self) -> None:
        at = self.status.position
        start = time.perf_counter()
        losses = self.training().plan.request.losses
        logs = result_logs(losses, at.seen, at.loss, at.correct, at.by_output)
        done = at.epoch + 1
        if self.validation_data is not None and (done % self.validation_frequency == 0 or done == self.epochs):
            logs |= self._validate()
        logs["seconds"] = at.seconds + time.perf_counter() - start
        self.status.position = at.next_epoch()
        self.notify("on_epoch_end", at.epoch, logs)

    def _validate(self, check: Callable[[], None] = lambda: None) -> Logs:
        if self.validation_data is None:
            return {}
        self.notify("on_test_begin", {})
        logs = evaluate(self.training().session, *self.validation_data, self.metrics, check)
        self.notify("on_test_end", logs)
        return {f"val_{name}": value for name, value in logs.items() if isinstance(value, float)}


def start(
    status: TrainingStatus, loss: Loss | Losses, examples: int, batch_size: int, micro_batch: int, epochs: int,
    shuffle: bool,
) -> None:  # fmt: skip
    """Check that training can continue until `epochs` are done, and write the totals into `status`.

    Raises PlanError if it can't.
    """
    at = status.position
    if at.epoch >= epochs:
        raise PlanError(
            f"Nothing is left to train: {at.epoch} epochs are done, and epochs={epochs} counts these too. Ask for "
            f"more of them, or compile again to train anew."
        )
    if at.seen != min(at.step * batch_size, examples):
        raise PlanError(
            f"Training stands in the middle of epoch {at.epoch + 1}, behind {at.seen} examples in {at.step} steps, "
            f"which {examples} examples in mini-batches of {batch_size} don't come to: go on with those that it "
            f"began with, or compile again to train anew."
        )
    if loss.ordered and shuffle:
        raise PlanError(f"{type(loss).__name__} needs examples in the order of their episodes: shuffle=False.")
    sources.check_whole(loss, examples, batch_size)
    sources.check_whole(loss, batch_size, micro_batch)
    status.stop_training, status.epochs = False, epochs
    status.steps_per_epoch = -(-examples // batch_size)


class KeptFeatures:
    """The features of a training that was stopped. The `fit` that continues it in this process extracts none again.

    They belong to the sources themselves, to the weights of the frozen prefix, and to the settings of the cache.
    """

    def __init__(self) -> None:
        self._sources: list[Source] = []
        self._settings: tuple = ()
        self._features: list[FeatureCache] = []

    def get(self, sources: Sequence[Source], settings: tuple) -> list[FeatureCache]:
        """Return the features of these sources under these settings, or an empty list."""
        same = len(sources) == len(self._sources) and all(a is b for a, b in zip(sources, self._sources, strict=True))
        return self._features if same and settings == self._settings else []

    def keep(self, sources: Sequence[Source], settings: tuple, features: list[FeatureCache]) -> None:
        self._sources, self._settings, self._features = list(sources), settings, features

    def clear(self) -> None:
        self._sources, self._settings, self._features = [], (), []


def feature_settings(
    plan: Plan, weights: Weights, sources: Sequence[Source], cache: str, folder: Path | None, block: int
) -> tuple:
    """All that features depend on, besides which sources they are of: the prefix, its weights, the content of arrays,
    which may be edited in place, and how features are stored."""
    digest = hashlib.sha256()
    arrays = [weights[name] for name in sorted(plan.request.network.parameters)]
    for array in [*arrays, *(source for source in sources if isinstance(source, np.ndarray))]:
        digest.update(np.ascontiguousarray(array).data)
    return plan.request.network.to_json(), digest.digest(), cache, folder, block


def extract_features(
    session: Session, wanted: Sequence[Source], cache: str, folder: Path | None, block: int, notify: CallbackList,
    status: TrainingStatus,
) -> list[FeatureCache]:  # fmt: skip
    """Return the features of each source in `wanted`. Raises StoppedError once `stop_training` is set.

    Arguments:
    - `session`: of a plan that predicts with the frozen prefix.
    - `cache`, `folder`: as in Model.fit.
    - `block`: channels of a block of the network that reads the features.
    - `notify`: hears of progress.
    """
    total, before, caches = sum(map(len, wanted)), 0, []
    for source in wanted:
        features = FeatureCache(session.plan.request.network.output.shape, len(source), cache, folder, block)
        for done in extract(session, source, features):
            notify("on_extract", before + done, total)
            status.check_stop()
        caches.append(features)
        before += len(source)
    return caches


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
        return evaluate(self.training.session, x, y)

    def predict(self, x) -> Any:
        return predict(self.training.session, as_source(x, self._network))

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
