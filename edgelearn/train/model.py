"""A network with its weights on a device, in Keras's words: summary, compile, fit, evaluate, predict, save.

Plans are made once and kept; one session is open at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import floor
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.compile import BudgetLike, Plan, Precision, Request, make_plan
from edgelearn.compile.lower import input_block
from edgelearn.compile.memory import ActivationMemory, Encoding
from edgelearn.compile.policies import keep_all
from edgelearn.device import Device
from edgelearn.display import MB, Displayed, megabytes
from edgelearn.errors import PlanError, ShapeError
from edgelearn.graph import Network, Split, split_frozen
from edgelearn.interop import ModelFile
from edgelearn.interop.weights import ReadOnlyWeights, Weights, check_weights, copied
from edgelearn.ops import SGD, Compute, Loss, Losses, Optimizer
from edgelearn.ops.base import number, whole
from edgelearn.ops.optimizers import as_optimizer
from edgelearn.runtime import Context, DeviceChoice, Kernels, Session, choose_device, launch_times
from edgelearn.runtime.pages import DTYPES

from . import sources, trainer
from .callbacks import Callback, CallbackList, History, watched, with_progress
from .control import Turns, interrupted_between_steps, one_thread
from .metrics import OutputMetrics
from .sources import (
    Source,
    Stream,
    Subset,
    Targets,
    as_source,
    check_examples,
    examples_of,
    is_stream,
    labeled,
    output_losses,
)
from .state import Logs, SavedModel, StoppedError, TrainedModel, TrainingState, TrainingStatus
from .trainer import KeptFeatures, Loop, Trainer, TrainingSession, extract_features, feature_settings, start

FORWARD_SIZES = (16, 8, 4, 2, 1)  # examples at a time where nothing is trained


class Phases(Displayed, dict[str, Plan]):
    """Plans by the name of their phase. One is on the device at a time, so the job's peak is the largest one's."""

    @property
    def peak_bytes(self) -> int:
        return max(plan.peak_bytes for plan in self.values())

    def to_dict(self) -> dict:
        """The JSON-able record for a run."""
        return {"peak_bytes": self.peak_bytes, "phases": {name: plan.to_dict() for name, plan in self.items()}}

    @property
    def headline(self) -> str:
        return f"{', '.join(self)}: {self.peak_bytes / MB:.2f} MB"

    def __str__(self) -> str:
        """The training plan by role, and the peaks of all phases."""
        lines = [str(self["train"])]
        lines += [
            f"  {f'(phase: {name}, {plan.request.micro_batch} at a time)':<38}{plan.peak_bytes / MB:>10.2f} MB"
            for name, plan in self.items()
            if name != "train"
        ]
        return "\n".join([*lines, f"  {'most device memory of the whole job':<38}{self.peak_bytes / MB:>10.2f} MB"])


def largest_that_fits(make: Callable[[int], Plan], budget: BudgetLike | None) -> Plan:
    """The plan of the most examples at a time that fits `budget`; the one of a single example is refused otherwise."""
    for size in FORWARD_SIZES[:-1] if budget is not None else ():
        try:
            return make(size)
        except PlanError:
            continue
    return make(FORWARD_SIZES[0] if budget is None else FORWARD_SIZES[-1])


KEPT = 16  # plans; the one that was used longest ago is dropped first


class Plans:
    """Makes the plans of `network` on `device`, and keeps them: asking again costs microseconds.

    Plans depend on everything that is asked for, and on which layers are trained at that moment.
    """

    def __init__(self, network: Network, device: Device) -> None:
        self.network, self.device = network, device
        self._plans: dict[tuple, Plan] = {}
        self._splits: dict[tuple, Split] = {}
        self._remainders: dict[tuple, set[int]] = {}

    def training(
        self, settings: Request, batch_size: int, micro_batch: int | None = None,
        budget: BudgetLike | None = None, cache: str | None = None, last_batches: Sequence[int] = (),
        remainders: Sequence[int] = (),
    ) -> Phases:  # fmt: skip
        """Return the plans of a `fit`: "extract" with a `cache`, and "train". `last_batches` and `remainders` as in
        Request; other arguments as Model.plan."""
        phases, trained = Phases(), self.network
        if cache is not None:
            if cache not in DTYPES:
                raise PlanError(f"The cache of features is {' or '.join(map(repr, DTYPES))} or None, not {cache!r}.")
            if settings.precision != Precision() or settings.compute.stores_halves:
                raise PlanError(
                    "Features of layers in low precision can't be cached. Leave the cache off, or compute in 'fp32'."
                )
            split = self._split()
            phases["extract"] = self.forward(settings, None, budget, (*last_batches, *remainders), split.prefix)
            trained = split.suffix
        request = replace(
            settings, network=trained, batch_size=batch_size,
            micro_batch=batch_size if micro_batch is None else micro_batch,
            last_batches=tuple(last_batches), remainders=tuple(remainders),
        )  # fmt: skip
        phases["train"] = self._plan(request.with_memory(request.strategies), budget)
        return phases

    def forward(
        self, settings: Request, batch_size: int | None = None, budget: BudgetLike | None = None,
        examples: Sequence[int] = (), network: Network | None = None,
    ) -> Plan:  # fmt: skip
        """Return the plan that evaluates and predicts `batch_size` examples at a time (default: as many of 16 as fit).

        Sizes of shorter last micro-batches are collected, so that changing between them makes no new plan each time.
        """
        network = network or self.network

        def make(n: int) -> Plan:
            fitting = settings.loss if network is self.network and settings.losses.fits(n) else None
            remainders = self._remainders.setdefault((network, n, repr(budget)), set())
            remainders.update(count % n for count in examples)
            request = Request(
                network, n, n, loss=fitting, precision=settings.precision, remainders=tuple(remainders),
                weighted=fitting is not None and settings.weighted, compute=settings.compute,
            )  # fmt: skip
            return self._plan(request, budget)

        return make(batch_size) if batch_size is not None else largest_that_fits(make, budget)

    def _plan(self, request: Request, budget: BudgetLike | None) -> Plan:
        key, allow = (request, repr(budget)), request.allow
        plan = self._plans.pop(key, None)
        if plan is None:
            measured = launch_times(self.device, allow) if budget is not None and allow else None
            plan = make_plan(request, self.device, budget, launch_times=measured)
        self._plans[key] = plan
        while len(self._plans) > KEPT:
            del self._plans[next(iter(self._plans))]
        return plan

    def _split(self) -> Split:
        """Return the frozen prefix and the rest. Raises PlanError if there is no frozen prefix."""
        network = self.network
        if not network.trainable:
            raise PlanError("Nothing to train: every parameter is frozen. Unfreeze some: network.unfreeze('dense').")
        key = frozenset(network.trainable), network.outputs, tuple(network.nodes.values())
        split = self._splits.get(key) or split_frozen(network)
        if split is None:
            raise PlanError(
                "There is no frozen prefix whose features could be cached: the first layers are trained, or no single "
                "tensor separates the frozen part. Leave the cache off, or freeze the first layers."
            )
        self._splits[key] = split
        return split


BATCH_SIZE = 32  # Keras's default, which None stands for


@dataclass
class FitArguments:
    """The arguments of Model.fit that have defaults. Raises PlanError or ShapeError for values that can't be."""

    batch_size: int | None = BATCH_SIZE
    epochs: int = 1
    micro_batch: int | None = None
    validation_data: Any = None
    validation_split: float = 0.0
    validation_frequency: int = 1
    callbacks: Any = ()
    verbose: str | int = "auto"
    cache: str | None = None
    cache_folder: Path | None = None
    budget: BudgetLike | None = None
    shuffle: bool = True
    class_weight: Mapping[int, float] | None = None
    sample_weight: Any = None
    steps_per_epoch: int | None = None
    validation_steps: int | None = None

    def __post_init__(self) -> None:
        self.batch_size = BATCH_SIZE if self.batch_size is None else whole("batch_size", self.batch_size)
        self.micro_batch = optional_size("micro_batch", self.micro_batch)
        self.epochs = whole("epochs", self.epochs)
        self.steps_per_epoch = optional_size("steps_per_epoch", self.steps_per_epoch)
        self.validation_steps = optional_size("validation_steps", self.validation_steps)
        self.validation_frequency = whole("validation_frequency", self.validation_frequency)
        self.validation_split = number("validation_split", self.validation_split, 0, 1)
        self.callbacks = as_callbacks(self.callbacks)
        if self.verbose not in ("auto", 0, 1, 2):
            raise PlanError(f"verbose is 'auto', 0 (silent), 1 (a bar) or 2 (a line an epoch), not {self.verbose!r}.")
        if self.validation_data is not None:
            check_validation_data(self.validation_data)
            if self.validation_split:
                raise PlanError("Give validation_data or validation_split, not both.")

    def labeled(self, x, y, network: Network, loss: Loss | Losses) -> list[tuple[Source, Targets]]:
        """Return the examples to train on and, if there are any, those to validate with. Raises ShapeError if some
        don't fit, PlanError if a share of the examples leaves none."""
        weights = self.sample_weight, self.class_weight
        examples = examples_of(x, y, network, loss, *weights, steps=self.steps_per_epoch)
        if self.validation_data is not None:
            given = self.validation_data
            others = (given, None) if is_stream(given) and not isinstance(given, tuple | list) else given
            return [
                examples,
                examples_of(others[0], others[1], network, loss, *others[2:], steps=self.validation_steps),
            ]
        return self._split(*examples) if self.validation_split else [examples]

    def _split(self, x: Source, y: Targets) -> list[tuple[Source, Targets]]:
        kept = floor(len(x) * (1 - self.validation_split))  # as Keras
        if kept == len(x) or not kept:
            raise PlanError(f"A validation_split of {self.validation_split:g} of {len(x)} examples leaves none.")
        return [(_part(x, start, stop), y.part(start, stop)) for start, stop in ((0, kept), (kept, len(x)))]


def optional_size(name: str, value: Any) -> int | None:
    """Return None or a whole number of at least 1. Raises PlanError for anything else."""
    return None if value is None else whole(name, value)


def as_callbacks(callbacks: Any) -> list[Callback]:
    """Return callbacks as a list; a single one is fine, and so is None. Raises PlanError for anything else."""
    given = [] if callbacks is None else [callbacks] if isinstance(callbacks, Callback) else callbacks
    if not isinstance(given, Sequence | set | frozenset) or isinstance(given, str):
        raise PlanError(f"callbacks is a list of Callback objects, such as [EarlyStopping()], not {callbacks!r:.60}.")
    for callback in given:
        if not isinstance(callback, Callback):
            raise PlanError(
                f"A callback is an object of a class that derives from Callback, such as EarlyStopping(), not "
                f"{callback!r:.60}."
            )
    return list(given)


def check_validation_data(data: Any) -> None:
    """Raises ShapeError unless `data` is (x, y) or (x, y, sample_weight), or a stream of these."""
    if is_stream(data) and not isinstance(data, tuple | list):
        return
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        what = f"{len(data)} of them" if isinstance(data, tuple | list) else type(data).__name__
        raise ShapeError(f"validation_data is (x, y) or (x, y, sample_weight), not {what}.")


def _part(x: Source, start: int, stop: int) -> Source:
    return x[start:stop] if isinstance(x, np.ndarray) else Subset(x, np.arange(start, stop))


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
        settings: Callable[..., Request], metrics: OutputMetrics | None,
    ) -> None:  # fmt: skip
        self.model, self.network, self.status = model, network, model.status
        self.session, self.plans, self.settings, self.metrics = session, plans, settings, metrics

    def run(self, x, y, a: FitArguments) -> History:
        """Train on `x` and `y`. Raises what Model.fit raises."""
        (x, y), *others = a.labeled(x, y, self.network, self.model.loss)
        if a.cache is not None and sources.varies(x):
            raise PlanError(
                "These examples differ from epoch to epoch, so their features can't be cached: leave the cache off, or "
                "train on the examples as they are."
            )
        if isinstance(x, Stream):
            a = replace(a, batch_size=x.batch_size, shuffle=False)
        settings = self.settings(y, *(targets for _, targets in others))
        size = min(a.batch_size or len(x), len(x))
        start(self.status, self.model.loss, len(x), size, min(a.micro_batch or size, size), a.epochs, a.shuffle)
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


def summary(network: Network) -> str:
    """Layer, op, output shape, number of parameters and whether they are trained; then the totals."""
    rows = []
    for node in network.nodes.values():
        names = [name for name in network.parameters if name.startswith(f"{node.name}/")]
        trained = sum(name in network.trainable for name in names)
        mark = "" if not names else "frozen" if not trained else "trained"
        rows.append((node.name, type(node.op).__name__, str((None, *node.shape)), f"{network.count(names):,}", mark))
    header = ("Layer", "Op", "Output shape", "Parameters", "")
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(5)]

    def line(row: tuple[str, ...]) -> str:
        padded = zip(row, widths, strict=True)
        cells = (cell.rjust(w) if i == 3 else cell.ljust(w) for i, (cell, w) in enumerate(padded))
        return "  ".join(cells).rstrip()

    total, trained = network.count(), network.count(network.trainable)
    rule = "-" * (sum(widths) + 8)
    return "\n".join(
        [
            f"Network '{network.name}'", rule, line(header), rule, *map(line, rows), rule,
            f"Total parameters: {total:,} ({megabytes(total * 4)})",
            f"Trainable parameters: {trained:,}",
            f"Non-trainable parameters: {total - trained:,}",
            f"Forward pass of one example: {network.flops / 2e6:,.1f} million multiply-adds",
        ]
    )  # fmt: skip


class Model(SavedModel):
    """A network with weights on a device.

    One session is open at a time: memory for training is given back before memory for predictions is taken, and the
    other way round. Plans are kept, so that calling a method again makes none. One thread at a time uses a model:
    others wait, or get a PlanError while `fit` runs.

    Arguments:
    - `network`: the graph.
    - `weights`: float32 arrays by "layer/role"; default: fresh ones, drawn by their initializers from `seed`. The
      statistics of BatchNorm count as set if weights are given here, assigned or restored, or if training moved them.
    - `device`: part of a device's name, or a Device; default: the best of the machine.
    - `seed`: of fresh weights, the order of examples, dropout and stochastic rounding, 0 to 2**64 - 1 (default 0).
    - `share_with`: another model whose device, context and compiled kernels are used: nothing starts or compiles twice.

    Raises FormatError for weights that don't fit, DeviceError for an unknown device, PlanError for a bad seed.
    """

    def __init__(
        self, network: Network, weights: Weights | None = None, device: str | Device | None = None, seed: int = 0,
        share_with: Model | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(network, Network) or not isinstance(share_with, Model | None):
            given = f"{network!r:.60}, {share_with!r:.60}"
            raise PlanError(f"A Model is made of a Network, and shares with a Model, not {given}.")
        if not (isinstance(seed, Integral) and 0 <= seed < 1 << 64):
            raise PlanError(f"A seed is a whole number from 0 to 2**64 - 1, not {seed!r}.")
        self.network, self.seed = network, seed
        self.status, self.turns = TrainingStatus(), Turns()
        self._statistics_set, self.untrained = weights is not None, weights is None  # untrained: weights as drawn
        checked = network.initialize(seed) if weights is None else copied(check_weights(network, weights))
        self.choice: DeviceChoice = share_with.choice if share_with else choose_device(device)
        self.context = share_with.context if share_with else Context(self.choice.device)
        self.kernels = share_with.kernels if share_with else Kernels(self.context)
        self._open = OpenSession(checked, self.context, self.kernels, self.status, network.trainable)
        self._plans = Plans(network, self.device)
        self.preprocessing: dict[str, Any] = {}
        self.class_names: tuple[str, ...] = ()
        self.metadata: dict[str, Any] = {}
        self.compile(SGD())

    @property
    @one_thread
    def weights(self) -> Weights:
        """Copies of all weights of the network as they are now, float32 by "layer/role", read-only. Assigning others
        copies them to the open session. Raises FormatError for weights that don't fit."""
        return ReadOnlyWeights(self._open.weights)

    @weights.setter
    @one_thread
    def weights(self, weights: Weights) -> None:
        self._open.put(replace(self._open.state(), weights=copied(check_weights(self.network, weights))))
        self._statistics_set, self.untrained = True, False

    @one_thread
    def swap_averages(self) -> None:
        self._open.put(self._open.state().swapped())

    @property
    def device(self) -> Device:
        return self.choice.device

    @property
    def optimizer(self) -> Optimizer:
        assert self.settings.optimizer is not None  # `compile` requires one, and a loss
        return self.settings.optimizer

    @property
    def loss(self) -> Loss | Losses:
        assert self.settings.loss is not None
        return self.settings.loss

    @property
    def batchnorm(self) -> str:
        """`"moving"` or `"batch"`: see `compile`."""
        return self.settings.batchnorm

    @property
    def precision(self) -> Precision:
        return self.settings.precision

    @one_thread
    def compile(
        self,
        optimizer: Optimizer | str,
        loss: Loss | Losses | Mapping[str, Loss | None] | Sequence[Loss | None] | None = None,
        *,
        loss_weights: Mapping[str, float] | Sequence[float] | None = None,
        metrics: Any = (),
        batchnorm: str = "auto",
        precision: Precision | None = None,
        activation_memory: Callable[[Network], ActivationMemory] | None = None,
        allow: Sequence[Encoding] = (),
        compute: Compute | str = "fp32",
    ) -> Model:
        """Configure training and reset its progress: the next `fit` begins at the first step.

        Arguments:
        - `optimizer`: updates the weights, for example `SGD(0.01, momentum=0.9)`; or Keras's name of one, "adam".
        - `loss`: default `SoftmaxCrossEntropy()`, on int class numbers; see el.losses for others. For several outputs a
          dictionary by name or a list in their order; a single loss is that of each.
        - `loss_weights`: factors of several outputs' losses in the sum that is minimized (default: 1 each).
        - `metrics`: what `evaluate` and the validation of `fit` return besides: names such as "accuracy", objects of
          el.metrics, functions `f(y_true, y_pred)`; one, a list, or a dictionary of these by output (default none).
        - `batchnorm`: `"moving"` normalizes with the stored statistics and leaves them unchanged (fine-tuning);
          `"batch"` uses the statistics of each micro-batch and updates the stored ones (training from scratch);
          `"auto"` is `"batch"` if the network has statistics that were never set (see Model), else `"moving"`.
        - `precision`: what is quantized, in training and wherever the network runs; default float32 everywhere.
        - `activation_memory`: a policy such as `policies.checkpoints`; default: store everything, or what the budget
          given to `fit` or `plan` leads to.
        - `allow`: strategies that the planner may use within a budget, besides exact ones on the device: `Compress()`,
          `Offload()`.
        - `compute`: what layers multiply in: `"fp32"` (default), `"tf32"`, `"bf16"`, `"fp16"` or a `Compute`.

        Raises PlanError for settings that contradict each other or can't be.
        """
        if batchnorm == "auto":
            has_statistics = any(p.role.startswith("moving_") for p in self.network.parameters.values())
            batchnorm = "batch" if has_statistics and not self._statistics_set else "moving"
        if activation_memory is not None and not callable(activation_memory):
            raise PlanError(
                f"activation_memory is a function from a network to strategies by layer, such as policies.checkpoints "
                f"or lambda network: {{'conv': Recompute()}}, not {activation_memory!r:.60}."
            )
        settings = Request(
            self.network, optimizer=as_optimizer(optimizer), loss=output_losses(loss, loss_weights, self.network),
            batchnorm=batchnorm, seed=self.seed, precision=precision or Precision(), compute=Compute.of(compute),
            activation_memory=activation_memory or keep_all, allow=tuple(allow),
        )  # fmt: skip
        found = OutputMetrics(() if metrics is None else metrics, self.network)
        weights = self._open.weights
        self._open.close()
        self._open.put(TrainingState(weights), self.network.trainable)
        self.settings, self.metrics = settings, found or None
        return self

    @property
    def headline(self) -> str:
        return f"of {self.network.headline}, on {self.device.id}"

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """Return a table of the layers, their shapes and parameters, and which are trained."""
        return summary(self.network)

    def plan(
        self, batch_size: int = 32, micro_batch: int | None = None, budget: BudgetLike | None = None,
        cache: str | None = None,
    ) -> Plan:  # fmt: skip
        """Return the plan of a training step: every byte, before anything runs.

        Arguments:
        - `batch_size`: examples of a mini-batch (default 32).
        - `micro_batch`: examples that are on the device at once (default: all of the mini-batch).
        - `budget`: "60 MB" of device memory, "20 MB peak" or "8 MB stored" of activations, or several with commas; met
          by the fastest strategies for activations, unless `compile` chose them.
        - `cache`: as in `fit`; the plan is then that of the part above the frozen prefix.

        Raises PlanError (over the budget, nothing to train) or DeviceError (the device is too small).
        """
        return self.phases(batch_size, micro_batch, budget, cache)["train"]

    def phases(
        self, batch_size: int = 32, micro_batch: int | None = None, budget: BudgetLike | None = None,
        cache: str | None = None, examples: Sequence[int] = (),
    ) -> Phases:  # fmt: skip
        """Return the plans of a `fit`, which are on the device one after the other: "extract" with a `cache`, and
        "train".

        Arguments and errors as `plan`, and
        - `examples`: numbers of examples to train on and, if there are two, to validate with.
        """
        last_batches, remainders = examples[:1], examples[1:]
        return self._plans.training(self.settings, batch_size, micro_batch, budget, cache, last_batches, remainders)

    def forward_plan(self, batch_size: int | None = None, budget: BudgetLike | None = None) -> Plan:
        """Return the plan of `evaluate` and `predict`, for `batch_size` examples at a time (default: as many of 16 as
        fit the budget)."""
        return self._plans.forward(self.settings, batch_size, budget)

    @one_thread
    def fit(
        self, x, y=None, batch_size: int | None = 32, epochs: int = 1, *, micro_batch: int | None = None,
        validation_data: Any = None, validation_split: float = 0.0, validation_frequency: int = 1,
        callbacks: Sequence[Callback] | Callback | None = (), verbose: str | int = "auto", cache: str | None = None,
        cache_folder: Path | None = None, budget: BudgetLike | None = None, shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None, sample_weight=None, steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
    ) -> History:  # fmt: skip
        """Train until `epochs` are done in all, those of earlier calls since `compile` included.

        Arguments:
        - `x`: array (n, ...), channels last, or Source; for several inputs a dictionary by name or a list in order. Or,
          without `y`, batches of both, (x, y) or (x, y, sample_weight): a PyTorch DataLoader, a tf.data.Dataset, a
          generator, or a function that returns one, read in their order and in mini-batches of their size.
        - `y`: targets as the loss takes them, such as class numbers, int (n,); for several outputs as `x` for inputs.
        - `batch_size`: examples of a mini-batch (default 32).
        - `epochs`: passes over all examples (default 1). The order of epoch e depends on the seed and e alone.
        - `micro_batch`: examples that are on the device at once; gradients are summed over them, so the update is that
          of the mini-batch (default: all of it).
        - `validation_data`: (x, y) or (x, y, sample_weight), or batches of these, to evaluate every
          `validation_frequency` epochs (default: each), before the first one and after the last.
        - `validation_split`: share of the examples, at their end, to validate with instead (default 0).
        - `callbacks`: see Callback.
        - `verbose`: 0 is silent, 1 shows a progress bar, 2 prints a line an epoch; `"auto"` (default) is 1 where a
          person looks on, in a terminal or a notebook, else 0.
        - `cache`: keep the outputs of the frozen prefix: `"fp32"` trains with the same bits as None (but for rounding
          where the prefix ends in fewer than 16 channels), `"fp16"` takes half the memory (default None).
        - `cache_folder`: where a temporary file for them is made (default: they are kept in memory).
        - `budget`: see `plan`.
        - `shuffle`: another order in each epoch (default True).
        - `class_weight`: factor of the loss of each class's examples, such as {0: 1, 1: 5} (default: 1 each).
        - `sample_weight`: factor of each example's loss, (n,), or of each row's, such as (n, height, width); for
          several outputs also a dictionary. The sum is divided by the number of examples, not by that of the weights.
        - `steps_per_epoch`, `validation_steps`: batches of an epoch, or of a validation, where `x` or the validation
          data are batches; needed for generators (default: all).

        Raises ShapeError, PlanError (also if no epoch is left to do), DeviceError before anything runs, DataError when
        an example can't be read or a feature doesn't fit the cache, NonFiniteError naming the first layer where a NaN
        or infinity appeared, weights unchanged by that step, and ReconstructionError (see WatchReconstruction).
        """
        arguments = FitArguments(
            batch_size, epochs, micro_batch, validation_data, validation_split, validation_frequency, callbacks,
            verbose, cache, cache_folder, budget, shuffle, class_weight, sample_weight, steps_per_epoch,
            validation_steps,
        )  # fmt: skip
        fitting = Fitting(self, self.network, self._open, self._plans, self._settings, self.metrics)
        try:
            return fitting.run(x, y, arguments)
        finally:
            self._statistics_set |= self.batchnorm == "batch" and self.position.updates > 0
            self.untrained &= self.position.updates == 0

    @one_thread
    def evaluate(
        self, x, y=None, batch_size: int | None = None, sample_weight=None, *, steps: int | None = None
    ) -> Logs:
        """Return the mean loss over examples `x` with targets `y`, the accuracy where the loss has one, and the
        metrics; of several outputs also "NAME_loss" and so on. `x`, `y` and `sample_weight` as in `fit`: metrics leave
        weights out. `steps`: batches, where `x` is a stream of them (default: all).

        Raises ShapeError for examples that don't fit, PlanError if the loss is one of whole episodes and `batch_size`
        isn't.
        """
        x, y = examples_of(x, y, self.network, self.loss, sample_weight, steps=optional_size("steps", steps))
        plan = self._plans.forward(self._settings(y), optional_size("batch_size", batch_size), examples=(len(x),))
        check_examples(self.loss, self.network, len(x), plan.request.micro_batch)
        return trainer.evaluate(self._open.forward(plan), x, y, self.metrics)

    @one_thread
    def predict(self, x, batch_size: int | None = None) -> Any:
        """Return the network's output for examples `x`: float32 (n, ...), probabilities if it ends in a softmax; of
        several outputs a dictionary by name."""
        x = as_source(x, self.network)
        plan = self._plans.forward(self.settings, optional_size("batch_size", batch_size), examples=(len(x),))
        return trainer.predict(self._open.forward(plan), x)

    # -- loops of one's own --------------------------------------------------------------------------------------

    @one_thread
    def trainer(
        self, batch_size: int = 32, micro_batch: int | None = None, budget: BudgetLike | None = None,
        examples: Sequence[int] = (), weighted: bool = False,
    ) -> Trainer:  # fmt: skip
        """Return a Trainer with this model's settings, weights, device and kernels. It is a training of its own, which
        begins at the first step; close it after use.

        Arguments and errors as `plan`, and
        - `examples`: numbers of examples that its `fit` and `evaluate` will get, for shorter last mini-batches.
        - `weighted`: `step` and `gradients` take weights of examples (default False).
        """
        settings = replace(self.settings, weighted=weighted)
        plan = self._plans.training(
            settings, batch_size, micro_batch, budget, last_batches=examples, remainders=examples
        )["train"]
        weights = self._open.weights
        self._open.close()
        return Trainer(plan, weights, self.context, self.kernels)

    @one_thread
    def train_on_batch(
        self, x, y, micro_batch: int | None = None, sample_weight=None, class_weight: Mapping[int, float] | None = None
    ) -> Logs:
        """Run one update from a mini-batch and return its mean loss and accuracy, both from before the update. The
        session stays open for the next call. Arguments and errors as Trainer.step; others as in `fit`."""
        x, y = labeled(x, y, self.network, self.loss, sample_weight, class_weight)
        logs = self._open.train(self._batch_plan(y, micro_batch)).step(x, y)
        self._statistics_set |= self.batchnorm == "batch"
        self.untrained = False
        return logs

    def test_on_batch(self, x, y) -> Logs:
        """Return the mean loss and the metrics of one mini-batch, all of it on the device at once."""
        return self.evaluate(x, y, len(x))

    def predict_on_batch(self, x) -> Any:
        """Return the network's output for one mini-batch, all of it on the device at once: float32 (n, ...)."""
        return self.predict(x, len(x))

    @one_thread
    def gradients(self, x, y, micro_batch: int | None = None, sample_weight=None) -> Weights:
        """Return the gradients of the mean loss over a mini-batch, float32 by "layer/role". Nothing else changes.
        Arguments and errors as Trainer.gradients; `micro_batch` as in `fit`."""
        x, y = labeled(x, y, self.network, self.loss, sample_weight)
        return self._open.train(self._batch_plan(y, micro_batch)).gradients(x, y)

    @one_thread
    def range_records(self) -> Weights:
        return self._open.records

    @one_thread
    def reconstruction_errors(self) -> dict[str, float]:
        if self._open.training is None:
            raise PlanError(
                "Reconstruction errors are those of the last training step: ask for them in a callback of `fit`, "
                "before it evaluates or predicts (WatchReconstruction goes before other callbacks)."
            )
        return self._open.training.session.reconstruction_errors(self.position.updates)

    # -- state and files -----------------------------------------------------------------------------------------

    @one_thread
    def state(self) -> tuple[Weights, dict]:
        state = self._open.state()
        return replace(state, weights={name: state.weights[name] for name in self.changing}).to_tensors()

    @one_thread
    def restore(self, tensors: Weights, position: dict) -> None:
        """Return to where `state` was called. Raises FormatError if that was another network's or another training."""
        state = TrainingState.of(tensors, position)
        shapes = {name: self.network.parameters[name].weight.shape for name in self.network.trainable}
        slots = {f"{slot}/{name}": shape for slot in self.optimizer.all_slots for name, shape in shapes.items()}
        state.check(self.changing, slots, self.precision.quantizes)
        weights = check_weights(self.network, self._open.weights | state.weights)
        self._open.put(replace(state, weights=weights), self.network.trainable)
        self._statistics_set, self.untrained = True, False

    @one_thread
    def to_file(self) -> ModelFile:
        state = self._open.state()
        position = {**asdict(self.position), "seed": int(self.seed), "batchnorm": self.batchnorm}
        return ModelFile(
            self.network, state.weights, state.slots, state.records, position, self.preprocessing,
            tuple(self.class_names), self.metadata,
        )  # fmt: skip

    # -- inside --------------------------------------------------------------------------------------------------

    def _settings(self, *targets: Targets) -> Request:
        """The settings, for targets of which some have weights or none."""
        weighted = any(y.weights is not None for y in targets)
        return replace(self.settings, weighted=True) if weighted else self.settings

    def _batch_plan(self, y: Targets, micro_batch: int | None) -> Plan:
        """The plan of an update from all of `y`."""
        return self._plans.training(self._settings(y), len(y), micro_batch)["train"]

    @property
    def changing(self) -> list[str]:
        """Names of the weights that training changes."""
        moving = {p.name for p in self.network.parameters.values() if not p.weight.trainable}
        return sorted(self.network.trainable | (moving if self.batchnorm == "batch" else set()))
