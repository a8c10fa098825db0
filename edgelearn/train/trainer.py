"""Training on an open session: updates, epochs, validation, features of a frozen prefix.

Micro-batches are prepared on a thread while the device works on the one before.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from edgelearn.compile import Plan
from edgelearn.compile.storage import input_block
from edgelearn.data.draws import epoch_order
from edgelearn.display import plural
from edgelearn.errors import DataError, NonFiniteError, PlanError
from edgelearn.graph import Network
from edgelearn.interop.weights import ReadOnlyWeights, Weights, check_weights
from edgelearn.ops import Loss, Losses, Optimizer
from edgelearn.runtime import Context, FeatureCache, Kernels, Session
from edgelearn.runtime.session import InputArrays, OutputTargets

from . import sources
from .callbacks import Callback, CallbackList, History, watched
from .metrics import OutputMetrics
from .sources import Source, Stream, Targets, check_whole, examples_of, fit_examples, labeled, to_predict
from .state import Logs, TrainedModel, TrainingState, TrainingStatus

Key = TypeVar("Key")
Value = TypeVar("Value")
ByOutput = Mapping[str, Sequence[float]]  # (sum of losses, right answers) of each of several outputs
MicroBatch = tuple[InputArrays, Sequence[OutputTargets]]  # examples in the device's layout, labels
CompileProgress = Callable[[int, int, str], None]
LEAST_LOSS_SCALE = 1.0  # an overflow at this scale is a fault of the training


def mini_batches(order: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Divide `order` into consecutive pieces of `batch_size`; the last one may be shorter."""
    if batch_size < 1:
        raise DataError(f"A mini-batch needs at least one example, got batch_size={batch_size}.")
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def ahead(keys: Iterable[Key], make: Callable[[Key], Value]) -> Generator[tuple[Key, Value]]:
    """Yield (key, make(key)) in order, each made on a thread while the caller works on the one before. Errors of `make`
    are raised at their turn. A single key is made on the caller's thread."""
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


# -- passes over all examples ------------------------------------------------------------------------------------------


def prepared(session: Session, x: Source) -> Iterator[tuple[np.ndarray, InputArrays]]:
    """Yield (indices of the examples, the examples in the device's layout) of each micro-batch, in order."""
    if isinstance(x, Stream):
        x.at_epoch(0)
    parts = mini_batches(np.arange(len(x)), session.plan.request.micro_batch)
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
    for part, words in prepared(session, x):
        losses, right = session.evaluate(words, y[part], len(part))
        loss, correct, by_output = loss + losses, correct + right, added(by_output, session.by_output)
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
    return joined([session.predict(words, len(part)) for part, words in prepared(session, x)])


def joined(outputs: Sequence[Any]) -> Any:
    """Outputs of consecutive examples as one array, or by name."""
    if isinstance(outputs[0], dict):
        return {name: np.concatenate([part[name] for part in outputs]) for name in outputs[0]}
    return outputs[0] if len(outputs) == 1 else np.concatenate(outputs)


class Features:
    """The outputs of a frozen prefix for the examples of a fit. They are kept while a stopped fit may go on: it then
    extracts none anew.

    Arguments:
    - `keep`: keep them afterwards, too, for the next fit of a model that has this object (default False).
    """

    def __init__(self, keep: bool = False) -> None:
        self._keep = keep
        self._caches: list[FeatureCache] = []
        self._sources: list[Source] = []
        self._settings: tuple = ()

    def extract(
        self, wanted: Sequence[Source], prefix: Plan, network: Network, weights: Weights, cache: str,
        folder: Path | None, session: Callable[[], Session], notify: CallbackList, status: TrainingStatus,
    ) -> list[FeatureCache]:  # fmt: skip
        """Return the features of each source in `wanted`: those at hand if sources, weights and settings are the same.

        Arguments:
        - `prefix`: plan that predicts with the frozen prefix; `session` opens it.
        - `network`: reads the features.
        - `weights`: of the whole network.
        - `cache`, `folder`: as in Model.fit.
        - `notify`: hears of progress.

        Raises StoppedError once `stop_training` is set.
        """
        frozen, block, digest = prefix.request.network, input_block(network), hashlib.sha256()
        arrays = [weights[name] for name in sorted(frozen.parameters)]
        for array in [*arrays, *(source for source in wanted if isinstance(source, np.ndarray))]:  # edited in place?
            digest.update(np.ascontiguousarray(array).data)
        settings = frozen.to_json(), digest.digest(), cache, folder, block
        same = len(self._sources) == len(wanted) and all(map(sources.same, self._sources, wanted))
        if same and settings == self._settings:
            return self._caches
        self.drop()  # before others are made: each may be as large as memory allows
        opened, total, before, caches = session(), sum(map(len, wanted)), 0, list[FeatureCache]()
        for source in wanted:
            features = FeatureCache(frozen.output.shape, len(source), cache, folder, block)
            for part, words in prepared(opened, source):
                features.put(int(part[0]), len(part), opened.predict_packed(words, len(part)))
                notify("on_extract", before + int(part[-1]) + 1, total)
                status.check_stop()
            caches.append(features)
            before += len(source)
        self._caches, self._sources, self._settings = caches, list(wanted), settings
        return caches

    def end(self) -> None:
        """A fit has come to its end."""
        if not self._keep:
            self.drop()

    def drop(self) -> None:
        """Forget them."""
        self._caches, self._sources, self._settings = [], [], ()


# -- training ----------------------------------------------------------------------------------------------------------


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
    - `state`: what to continue from (default: a new training).

    Raises PlanError for a plan without an optimizer, DeviceError if the device has too little memory, FormatError for
    weights that don't fit.
    """

    def __init__(
        self, plan: Plan, weights: Weights, context: Context, kernels: Kernels | None = None,
        status: TrainingStatus | None = None, progress: CompileProgress | None = None,
        state: TrainingState | None = None,
    ) -> None:  # fmt: skip
        if plan.request.optimizer is None or plan.request.loss is None:
            raise PlanError("Training needs a plan with an optimizer: compile the model, then use model.plan().")
        self.plan, self.network, self.status = plan, plan.request.network, status or TrainingStatus()
        self.loss: Loss | Losses = plan.request.loss
        self._weights = weights if state else check_weights(self.network, weights)
        self.session = Session(plan, context, kernels, progress)
        self.changed = False  # True if the device's weights are ahead of what `snapshot` returned last
        self.resume(state or TrainingState({}, position=self.position))

    @property
    def headline(self) -> str:
        return f"of '{self.network.name}' after {plural(self.position.updates, 'update')}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the device's memory back."""
        self.session.close()

    # -- weights and state

    def load(self, weights: Weights) -> None:
        """Start a new training from `weights`: optimizer state, ranges of quantized tensors and position begin anew.

        Raises FormatError for weights that don't fit the network.
        """
        self._weights = check_weights(self.network, weights)
        self.resume(TrainingState({}))

    @property
    def weights(self) -> Weights:
        return ReadOnlyWeights(self._weights | self.session.weights())

    @weights.setter
    def weights(self, weights: Weights) -> None:
        self._weights = check_weights(self.network, weights)
        self.resume(replace(self.snapshot(), weights={}))

    @property
    def optimizer(self) -> Optimizer:
        assert self.plan.request.optimizer is not None
        return self.plan.request.optimizer

    def swap_averages(self) -> None:
        self.resume(self.snapshot().swapped())

    def state(self) -> tuple[Weights, dict]:
        return self.snapshot().to_tensors()

    def restore(self, tensors: Weights, position: dict) -> None:
        state, slots = TrainingState.of(tensors, position), self.plan.storage.slot_tensors
        state.check(
            self.session.changing, {name: tensor.shape for name, tensor in slots.items()},
            self.plan.request.precision.quantizes,
        )  # fmt: skip
        self.resume(state)

    def resume(self, state: TrainingState) -> None:
        """Continue from `state`, with the weights that it lacks as they were loaded. Raises FormatError if the state
        belongs to another training."""
        self.session.load(self._weights | state.weights)
        if state.slots:
            self.session.load_optimizer_state(state.slots)
        else:
            self.session.reset_optimizer()
        if state.records or (state.position.updates and not state.new_ranges):  # then all tensors have ranges
            self.session.load_records(state.records)
        self.status.position = state.position
        self.changed = False

    def snapshot(self) -> TrainingState:
        """Copy the state of the training from the device."""
        self.changed = False
        session = self.session
        return TrainingState(session.weights(), session.optimizer_state(), self.range_records(), replace(self.position))

    def range_records(self) -> Weights:
        return self.session.records() if self.session.ranges_known else {}

    def reconstruction_errors(self) -> dict[str, float]:
        return self.session.reconstruction_errors(self.position.updates)

    # -- steps

    def step(self, x, y, sample_weight=None) -> Logs:
        """Run one update and return the mini-batch's mean loss and accuracy, both from before the update.

        Arguments:
        - `x`: array (n, ...) or Source of at most the plan's `batch_size` examples.
        - `y`: their targets, as Model.fit takes them; `sample_weight`, too, for a plan with `weighted=True`.

        Raises ShapeError for examples that don't fit, NonFiniteError naming the first layer where a NaN or infinity
        appeared; the weights are then unchanged.
        """
        x, y = self._mini_batch(x, y, sample_weight)
        indices = np.arange(len(x))
        loss, correct, by_output = self.update(x, y, indices, self.micro_batches(x, y, [indices]))
        return self.logs(loss, correct, by_output, len(x))

    def gradients(self, x, y, sample_weight=None) -> Weights:
        """Return the gradients of the mean loss over a mini-batch, float32 by "layer/role"; nothing else changes.

        Arguments and errors as `step`; a NaN or an infinity is returned as it is.
        """
        x, y = self._mini_batch(x, y, sample_weight)
        self._scale_loss()
        stream = self.micro_batches(x, y, [np.arange(len(x))])
        return self.session.compute_gradients(stream, len(x), self.position.updates + 1)

    def _mini_batch(self, x, y, sample_weight) -> tuple[Source, Targets]:
        if not isinstance(y, Targets):  # which a Model has made
            x, y = labeled(x, y, self.network, self.loss, sample_weight)
        if sample_weight is not None and not self.plan.request.weighted:
            raise PlanError("The plan takes no weights of examples: make the trainer with weighted=True.")
        if len(x) > (most := self.plan.request.batch_size):
            raise PlanError(f"{len(x)} examples are more than the {most} of the plan's mini-batches.")
        check_whole(self.loss, len(x), self.plan.request.micro_batch)
        return x, y

    def micro_batches(self, x: Source, y: Targets, mini: Iterable[np.ndarray]) -> Generator[MicroBatch]:
        """Yield the micro-batches of mini-batches, given by the indices of their examples, prepared ahead."""
        parts = [part for indices in mini for part in mini_batches(indices, self.plan.request.micro_batch)]
        fetch = self.session.fetch
        with closing(ahead(parts, lambda part: (fetch(x, part), y[part]))) as stream:
            for _, value in stream:
                yield value

    def update(
        self, x: Source, y: Targets, indices: np.ndarray, stream: Iterable[MicroBatch]
    ) -> tuple[float, float, ByOutput]:
        """Run one update from the examples `indices`, given as micro-batches in `stream`.

        Returns (mean loss, number of right answers, sums of each of several outputs). An overflow that a smaller loss
        scale may prevent is no update, and halves it. Raises NonFiniteError; the weights are then unchanged.
        """
        at, rate = self.position, self.learning_rate
        self.changed = True
        scales = self._scale_loss()
        loss, correct, finite = self.session.train(stream, len(indices), rate, at.updates + 1)
        if not finite and not (scales and np.isfinite(loss) and at.loss_scale > LEAST_LOSS_SCALE):
            raise NonFiniteError(self._diagnose(x, y, indices, rate))
        if scales:
            at.scale_loss(finite)
        at.updates += finite
        return loss, correct, self.session.by_output

    def logs(self, loss: float, correct: float, by_output: ByOutput, n: int) -> Logs:
        """The logs of a mini-batch of `n` examples: see `result_logs`."""
        return result_logs(self.plan.request.losses, n, loss * n, correct, by_output) | {"loss": loss}

    def _scale_loss(self) -> bool:
        """Give the session the loss scale of this step; False if the compute type has none."""
        scales = self.plan.request.compute.scales_loss
        if scales:
            self.session.loss_scale = self.position.loss_scale
        return scales

    def _diagnose(self, x: Source, y: Targets, indices: np.ndarray, rate: float) -> str:
        """Explain where the NaN or infinity of this step came from, and what to do."""
        at = self.position
        in_fit = at.epoch or at.step or not at.updates  # `step` counts no steps of an epoch
        step = f"Epoch {at.epoch + 1}, step {at.step + 1}" if in_fit else f"Update {at.updates + 1}"
        for part in mini_batches(indices, self.plan.request.micro_batch):
            examples = x[part]
            arrays = examples.values() if isinstance(examples, dict) else [examples]
            targets = [y.values[name][part] for name in y.values if y.values[name].dtype.kind == "f"]
            finite = np.all([np.isfinite(a).reshape(len(part), -1).all(1) for a in (*arrays, *targets)], axis=0)
            if not finite.all():
                return (
                    f"{step}: example {part[~finite][0]} holds a NaN or an infinity. Clean the data, then start again."
                )
        place = self.session.first_nonfinite(self.micro_batches(x, y, [indices]), len(indices), rate, at.updates + 1)
        where = f"first in layer '{place[0].layer}' ({place[0].kernel}, {place[1].name})" if place else "in the loss"
        return (
            f"{step}: a NaN or an infinity appeared {where}. Weights are as before the step. Lower the learning rate "
            f"(now {rate:g}), clip gradients (global_clipnorm=1 of the optimizer), or start from other weights."
        )

    # -- all examples

    def fit(
        self, x, y=None, epochs: int = 1, *, validation_data: Any = None, validation_frequency: int = 1,
        callbacks: Sequence[Callback] = (), shuffle: bool = True, steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
    ) -> History:  # fmt: skip
        """Train in mini-batches of the plan's `batch_size` until `epochs` are done since `load`. The examples of a
        stream are regrouped to that size.

        Arguments and errors as Model.fit.
        """
        request, history = self.plan.request, History()
        examples = fit_examples(
            x, y, self.network, self.loss, None, None, validation_data, 0.0, steps_per_epoch, validation_steps
        )
        size, shuffle = request.batch_size, shuffle and not isinstance(examples[0][0], Stream)
        start(self.status, self.loss, len(examples[0][0]), size, request.micro_batch, epochs, shuffle)
        notify = CallbackList(self, [*watched(callbacks, self.plan), history])
        try:
            run_epochs(lambda: self, self.status, notify, examples, size, shuffle, validation_frequency)
        finally:
            notify("on_train_end", {})
        return history

    def evaluate(self, x, y=None, *, steps: int | None = None) -> Logs:
        return evaluate(self.session, *examples_of(x, y, self.network, self.loss, steps=steps))

    def predict(self, x, *, steps: int | None = None) -> Any:
        return joined([predict(self.session, part) for part in to_predict(x, self.network, steps)])


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
            f"Training stands in the middle of epoch {at.epoch + 1}, after {at.seen} examples in {at.step} steps, "
            f"which {examples} examples in mini-batches of {batch_size} don't come to: go on with those that it "
            f"began with, or compile again to train anew."
        )
    if loss.ordered and shuffle:
        raise PlanError(f"{type(loss).__name__} needs examples in the order of their episodes: shuffle=False.")
    check_whole(loss, examples, batch_size)
    check_whole(loss, batch_size, micro_batch)
    status.stop_training, status.epochs = False, epochs
    status.steps_per_epoch = -(-examples // batch_size)


def run_epochs(
    training: Callable[[], Trainer], status: TrainingStatus, notify: CallbackList,
    examples: Sequence[tuple[Source, Targets]], batch_size: int, shuffle: bool = True, validation_frequency: int = 1,
    metrics: OutputMetrics | None = None,
) -> None:  # fmt: skip
    """Train, from wherever `status` stands, until its `epochs` are done; it says at every moment how far it is.

    Arguments:
    - `training`: returns the open training; called at each step, since a callback may have used another session.
    - `status`: progress.
    - `notify`: the callbacks.
    - `examples`: (examples, targets) to train on and, after them, those to evaluate every `validation_frequency`
      epochs, before the first one and after the last, with `metrics`.
    - `batch_size`: examples of a mini-batch.
    - `shuffle`: show the examples in another order in each epoch (default True).

    Raises StoppedError if it is stopped before the first step, NonFiniteError naming the step and the layer.
    """
    (source, targets), *others = examples

    def validate(check: Callable[[], None] = lambda: None) -> Logs:
        notify("on_test_begin", {})
        logs = evaluate(training().session, *others[0], metrics, check)
        notify("on_test_end", logs)
        return {f"val_{name}": value for name, value in logs.items() if isinstance(value, float)}

    def epoch() -> bool:
        """Run the remaining steps of this epoch; True if it came to its end."""
        at, opened = status.position, training()
        x, y = sources.at_epoch(source, at.epoch), sources.at_epoch(targets, at.epoch)
        notify("on_epoch_begin", at.epoch, {})
        order = epoch_order(len(x), opened.plan.request.seed, at.epoch) if shuffle else np.arange(len(x))
        batches = list(mini_batches(order, batch_size))[at.step :]
        with closing(opened.micro_batches(x, y, batches)) as stream:
            for number, indices in enumerate(batches, start=1):
                notify("on_train_batch_begin", at.step, {})
                begun = time.perf_counter()
                micro = islice(stream, opened.plan.micro_batch_count(len(indices)))
                loss, correct, own = training().update(x, y, indices, micro)
                at.step, at.seen = at.step + 1, at.seen + len(indices)
                at.loss, at.correct = at.loss + loss * len(indices), at.correct + correct
                at.by_output = added(at.by_output, own)
                at.seconds += time.perf_counter() - begun
                notify("on_train_batch_end", at.step - 1, opened.logs(loss, correct, own, len(indices)))
                if status.stop_training:
                    return number == len(batches)
        return True

    begin = validate(status.check_stop) if others and not status.position.updates else {}
    training()
    notify("on_train_begin", begin)
    while status.position.epoch < status.epochs and not status.stop_training and epoch():
        at, begun, losses = status.position, time.perf_counter(), training().plan.request.losses
        logs, done = result_logs(losses, at.seen, at.loss, at.correct, at.by_output), at.epoch + 1
        if others and (done % validation_frequency == 0 or done == status.epochs):
            logs |= validate()
        logs["seconds"] = at.seconds + time.perf_counter() - begun
        status.position = at.next_epoch()
        notify("on_epoch_end", at.epoch, logs)
