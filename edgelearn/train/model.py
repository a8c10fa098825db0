"""A network with its weights on a device, in Keras's words: summary, compile, fit, evaluate, predict, save.

Plans are made once and kept; one session is open at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from html import escape
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np

from edgelearn import atomic
from edgelearn.compile import BudgetLike, Plan, Precision, Request, make_plan
from edgelearn.compile.memory import ActivationMemory, Encoding
from edgelearn.compile.policies import keep_all
from edgelearn.compile.precision import named_precision
from edgelearn.device import Device
from edgelearn.display import MB, Displayed, megabytes, plural
from edgelearn.errors import FormatError, PlanError
from edgelearn.graph import Network, Split, split_frozen
from edgelearn.interop import ModelFile, read_model, safetensors, write_model
from edgelearn.interop.formats import Written
from edgelearn.interop.weights import ReadOnlyWeights, Weights, check_weights, copied
from edgelearn.ops import SGD, Compute, Loss, Losses, Optimizer
from edgelearn.ops.base import number, whole
from edgelearn.ops.optimizers import as_optimizer
from edgelearn.runtime import Context, DeviceChoice, Kernels, Session, choose_device, launch_times
from edgelearn.runtime.pages import DTYPES
from edgelearn.tables import Table

from . import sources, trainer
from .adaptation import BATCH_SIZE as ADAPTED_AT_ONCE
from .adaptation import Adaptation
from .callbacks import Callback, CallbackList, History, ProgressBar, as_callbacks, watched, with_progress
from .control import Turns, interrupted_between_steps, one_thread
from .metrics import OutputMetrics
from .remaining import Remaining
from .replay import Replay
from .sources import (
    Stream,
    Targets,
    check_examples,
    examples_of,
    fit_examples,
    labeled,
    output_losses,
    to_predict,
)
from .state import OWN, Logs, StoppedError, TrainedModel, TrainingState, TrainingStatus, calibrate, check_suffix
from .trainer import Trainer

BATCH_SIZE = 32  # Keras's default, which None stands for
FORWARD_SIZES = (16, 8, 4, 2, 1)  # examples at a time where nothing is trained
UNFOLDED = 40  # layers of a network whose table a notebook shows unfolded
KEPT = 16  # plans; the one that was used longest ago is dropped first


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


def optional_size(name: str, value: Any) -> int | None:
    """Return None or a whole number of at least 1. Raises PlanError for anything else."""
    return None if value is None else whole(name, value)


class Plans:
    """Makes the plans of `network` on `device`, and keeps them: asking again costs microseconds.

    Plans depend on everything that is asked for, and on which layers are trained at that moment.
    """

    def __init__(self, network: Network, device: Device) -> None:
        self.network, self.device = network, device
        self._plans: dict[tuple, Plan] = {}
        self._splits: dict[tuple, Split] = {}
        self._remainders: dict[tuple, set[int]] = {}
        self._frozen, self._frozen_of = network, tuple[Any, ...]()  # a frozen copy, and what it is a copy of

    def training(
        self, settings: Request, batch_size: int, micro_batch: int | None, budget: BudgetLike | None = None,
        cache: str | None = None, last_batches: Sequence[int] = (), remainders: Sequence[int] = (),
        weighted: bool = False,
    ) -> Phases:  # fmt: skip
        """Return the plans of a `fit`: "extract" with a `cache`, and "train". `last_batches`, `remainders` and
        `weighted` as in Request; other arguments as Model.plan."""
        phases, trained = Phases(), self.network
        if cache is not None:
            if cache not in DTYPES:
                raise PlanError(f"The cache of features is {' or '.join(map(repr, DTYPES))} or None, not {cache!r}.")
            if settings.precision != Precision() or settings.compute.stores_halves:
                raise PlanError(
                    "Features of layers in low precision can't be cached. Leave the cache off, or compute in 'fp32'."
                )
            split = self._split()
            phases["extract"] = self.forward(settings, None, budget, (*last_batches, *remainders), network=split.prefix)
            trained = split.suffix
        request = replace(
            settings, network=trained, batch_size=batch_size,
            micro_batch=batch_size if micro_batch is None else micro_batch, last_batches=tuple(last_batches),
            remainders=tuple(remainders), weighted=weighted,
        )  # fmt: skip
        phases["train"] = self._plan(request.with_memory(request.strategies), budget)
        return phases

    def forward(
        self, settings: Request, batch_size: int | None = None, budget: BudgetLike | None = None,
        examples: Sequence[int] = (), weighted: bool = False, network: Network | None = None,
    ) -> Plan:  # fmt: skip
        """Return the plan that evaluates and predicts `batch_size` examples at a time (default: as many of 16 as fit
        the budget, one if none does).

        Sizes of shorter last micro-batches are collected, so that changing between them makes no new plan each time.
        """
        network = network or self.network

        def make(n: int) -> Plan:
            loss = settings.loss if network is self.network and settings.losses.fits(n) else None
            remainders = self._remainders.setdefault((network, n, repr(budget)), set())
            remainders.update(count % n for count in examples)
            request = Request(
                network, n, n, loss=loss, precision=settings.precision, remainders=tuple(remainders),
                weighted=loss is not None and weighted, compute=settings.compute,
            )  # fmt: skip
            return self._plan(request, budget)

        if batch_size is not None or budget is None:
            return make(FORWARD_SIZES[0] if batch_size is None else batch_size)
        for size in FORWARD_SIZES[:-1]:
            try:
                return make(size)
            except PlanError:
                continue
        return make(FORWARD_SIZES[-1])

    def of_inputs(self, settings: Request, batch_size: int, micro_batch: int | None, weighted: bool) -> Plan:
        """Return the plan of the gradients of the network's inputs: all layers are frozen."""
        network = self.network
        key = network.outputs, tuple(network.nodes.values())
        if key != self._frozen_of:
            self._frozen, self._frozen_of = network.copy(), key
            self._frozen.trainable = set()
        request = Request(
            self._frozen, batch_size, micro_batch or batch_size, SGD(), loss=settings.loss, compute=settings.compute,
            weighted=weighted, input_gradients=True,
        )  # fmt: skip
        return self._plan(request, None)

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


def _layers(network: Network) -> list[tuple[str, str, tuple[int, ...], str, str]]:
    """Layer, op, output shape, number of parameters and "trained", "frozen" or "" of each layer."""
    rows = []
    for node in network.nodes.values():
        names = [] if node.shares else network.weights_of(node)
        trained = sum(name in network.trainable for name in names)
        mark = "" if not names else "frozen" if not trained else "trained"
        rows.append((node.name, type(node.op).__name__, tuple(node.shape), f"{network.count(names):,}", mark))
    return rows


def summary(network: Network) -> str:
    """Layer, op, output shape, number of parameters and whether they are trained; then the totals."""
    rows = [(name, op, str((None, *shape)), *others) for name, op, shape, *others in _layers(network)]
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
            f"Total parameters: {total:,} ({megabytes(network.nbytes)})",
            f"Trainable parameters: {trained:,}",
            f"Non-trainable parameters: {total - trained:,}",
            f"Forward pass of one example: {network.flops / 2e6:,.1f} million multiply-adds",
        ]
    )  # fmt: skip


class Model(TrainedModel):
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
        self._state, self._trained = TrainingState(checked), frozenset(network.trainable)  # on the host
        self._open: Trainer | Session | None = None  # the one session on the device
        self.features = trainer.Features()  # of a fit that was stopped; an object to share among models may replace it
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
        return ReadOnlyWeights(self._current().weights)

    @weights.setter
    @one_thread
    def weights(self, weights: Weights) -> None:
        self._put(replace(self._current(), weights=copied(check_weights(self.network, weights))))
        self._statistics_set, self.untrained = True, False

    @one_thread
    def swap_averages(self) -> None:
        self._put(self._current().swapped())

    @property
    def device(self) -> Device:
        return self.choice.device

    @property
    def optimizer(self) -> Optimizer:
        return self.settings.optimizer  # type: ignore[return-value]  compile gives one

    @property
    def loss(self) -> Loss | Losses:
        return self.settings.loss  # type: ignore[return-value]  compile gives one

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
        loss: Loss | Losses | Callable | Mapping[str, Any] | Sequence[Any] | str | None = None,
        *,
        loss_weights: Mapping[str, float] | Sequence[float] | None = None,
        metrics: Any = (),
        batchnorm: str = "auto",
        precision: Precision | str | None = None,
        activation_memory: Callable[[Network], ActivationMemory] | None = None,
        allow: Sequence[Encoding] = (),
        compute: Compute | str = "fp32",
        one_launch: bool = False,
    ) -> Model:
        """Configure training and reset its progress: the next `fit` begins at the first step.

        Arguments:
        - `optimizer`: updates the weights, for example `SGD(0.01, momentum=0.9)`; or Keras's name of one, "adam".
        - `loss`: default `SoftmaxCrossEntropy()`, on int class numbers; see el.losses for others, or a function
          `f(xp, targets, outputs)` (see `edgelearn.ops.formula_loss`). For several outputs a dictionary by name or a
          list in their order; a single loss is that of each.
        - `loss_weights`: factors of several outputs' losses in the sum that is minimized (default: 1 each).
        - `metrics`: what `evaluate` and the validation of `fit` return besides: names such as "accuracy", objects of
          el.metrics, functions `f(y_true, y_pred)`; one, a list, or a dictionary of these by output (default none).
        - `batchnorm`: `"moving"` normalizes with the stored statistics and leaves them unchanged (fine-tuning);
          `"batch"` uses the statistics of each micro-batch and updates the stored ones (training from scratch);
          `"auto"` is `"batch"` if the network has statistics that were never set (see Model), else `"moving"`.
        - `precision`: what is quantized, in training and wherever the network runs: a Precision, or a name as commands
          take it, "fp16" or "int8" (see `Combination`); default "fp32", float32 everywhere.
        - `activation_memory`: a policy such as `policies.checkpoints`; default: store everything, or what the budget
          given to `fit` or `plan` leads to.
        - `allow`: strategies that the planner may use within a budget, besides exact ones on the device: `Compress()`,
          `Offload()`.
        - `compute`: what layers multiply in: `"fp32"` (default), `"tf32"`, `"bf16"`, `"fp16"` or a `Compute`.
        - `one_launch`: on NVIDIA's GPUs a step runs as one launch, faster where its launches are many and short (see
          `Request`; default False).

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
            batchnorm=batchnorm, seed=self.seed, precision=named_precision("fp32" if precision is None else precision),
            compute=Compute.of(compute), activation_memory=activation_memory or keep_all, allow=tuple(allow),
            one_launch=one_launch,
        )  # fmt: skip
        found = OutputMetrics(() if metrics is None else metrics, self.network)
        weights = self._current().weights
        self._close()
        self._put(TrainingState(weights))
        self._trained, self.settings, self.metrics = frozenset(self.network.trainable), settings, found or None
        return self

    @property
    def headline(self) -> str:
        return f"of {self.network.headline}, on {self.device.id}"

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """Return a table of the layers, their shapes and parameters, and which are trained."""
        return summary(self.network)

    def _repr_html_(self) -> str:
        """The table of `summary`, folded where it is long, below the totals."""
        network, rows = self.network, _layers(self.network)
        trained = network.count(network.trainable)
        totals = (
            f"<b>{escape(network.name)}</b> on {escape(self.device.id)}: {plural(network.count(), 'parameter')} "
            f"({megabytes(network.nbytes)}), {trained:,} of them trainable; "
            f"{network.flops / 2e6:,.1f} million multiply-adds for the forward pass of one example"
        )
        table = Table(("layer", "op", "output shape", "parameters", "trainable"), [
            (name, op, "×".join(map(str, shape)), count, {"trained": "yes", "frozen": "no"}.get(mark, ""))
            for name, op, shape, count, mark in rows
        ]).to_html()  # fmt: skip
        if len(rows) > UNFOLDED:
            table = f"<details><summary>{plural(len(rows), 'layer')}</summary>{table}</details>"
        return f"<p>{totals}</p>{table}"

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
        return self._plans.training(self.settings, batch_size, micro_batch, budget, cache, examples[:1], examples[1:])

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
        size = BATCH_SIZE if batch_size is None else whole("batch_size", batch_size)
        micro_batch, epochs = optional_size("micro_batch", micro_batch), whole("epochs", epochs)
        steps = optional_size("steps_per_epoch", steps_per_epoch), optional_size("validation_steps", validation_steps)
        frequency = whole("validation_frequency", validation_frequency)
        validation_split, asked = number("validation_split", validation_split, 0, 1), as_callbacks(callbacks)
        if verbose not in ("auto", 0, 1, 2):
            raise PlanError(f"verbose is 'auto', 0 (silent), 1 (a bar) or 2 (a line an epoch), not {verbose!r}.")
        examples = fit_examples(
            x, y, self.network, self.loss, sample_weight, class_weight, validation_data, validation_split, *steps
        )  # fmt: skip
        wanted = [source for source, _ in examples]
        if cache is not None and sources.varies(wanted[0]):
            raise PlanError(
                "These examples differ from epoch to epoch, so their features can't be cached: leave the cache off, or "
                "train on the examples as they are."
            )
        count, *others = map(len, wanted)
        if isinstance(wanted[0], Stream):
            size, shuffle = wanted[0].batch_size, False
        size = min(size, count)
        trainer.start(self.status, self.loss, count, size, min(micro_batch or size, size), epochs, shuffle)
        weighted = any(targets.weights is not None for _, targets in examples)
        micro_batch = micro_batch and min(micro_batch, count)
        phases = self._plans.training(self.settings, size, micro_batch, budget, cache, [count], others, weighted)
        plan, history = phases["train"], History()
        callbacks = with_progress(watched(asked, plan), verbose)
        bars = [each for each in callbacks if isinstance(each, ProgressBar) and each.bar and each.remaining is None]
        if bars:
            passes = epochs // frequency + 1
            left = Remaining.of(phases, self.device, [count, *others], size, epochs, wanted[0], validations=passes)
            callbacks = [left, *callbacks]
            for each in bars:
                each.remaining = left
        notify = CallbackList(self, [*callbacks, history])
        with interrupted_between_steps(self.status):
            try:
                if cache is not None:
                    features = self.features.extract(
                        wanted, phases["extract"], plan.request.network, self._current().weights, cache, cache_folder,
                        lambda: self._predicting(phases["extract"], notify), notify, self.status,
                    )  # fmt: skip
                    examples = [(each, targets) for each, (_, targets) in zip(features, examples, strict=True)]
                trainer.run_epochs(
                    lambda: self._training(plan, notify), self.status, notify, examples, size, shuffle, frequency,
                    self.metrics,
                )  # fmt: skip
            except StoppedError:
                pass
            finally:
                self._close()
                if not self.stop_training:
                    self.features.end()
                self._statistics_set |= self.batchnorm == "batch" and self.position.updates > 0
                self.untrained &= self.position.updates == 0
                notify("on_train_end", {})
        return history

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
        weighted, size = y.weights is not None, optional_size("batch_size", batch_size)
        plan = self._plans.forward(self.settings, size, examples=(len(x),), weighted=weighted)
        check_examples(self.loss, self.network, len(x), plan.request.micro_batch)
        return trainer.evaluate(self._predicting(plan), x, y, self.metrics)

    @one_thread
    def predict(self, x, batch_size: int | None = None, *, steps: int | None = None) -> Any:
        """Return the network's output for examples `x`: float32 (n, ...), probabilities if it ends in a softmax; of
        several outputs a dictionary by name.

        - `x`: as in `fit`; or batches of examples, alone or as (x, y, ...), of which the rest isn't read: a DataLoader,
          a tf.data.Dataset, a generator, or a function that returns one.
        - `steps`: most batches, where `x` is a stream of them (default: all).
        """
        size, found = optional_size("batch_size", batch_size), []
        for part in to_predict(x, self.network, optional_size("steps", steps)):
            plan = self._plans.forward(self.settings, size, examples=(len(part),))
            found.append(trainer.predict(self._predicting(plan), part))
        return trainer.joined(found)

    @one_thread
    def adapt(
        self, x=None, method: str = "tent", *, batch_size: int = ADAPTED_AT_ONCE, micro_batch: int | None = None,
        optimizer: Optimizer | None = None, prior: int = 0, anchor=None, anchor_weight: float = 2000.0,
        budget: BudgetLike | None = None, guard: bool = True, mixed: bool = False, steps: int | None = None,
    ) -> Adaptation:  # fmt: skip
        """Return an Adaptation: a copy of the network that adapts to examples without labels as it answers them, by the
        statistics, scales and shifts of its normalization layers. This model stays as it is.

        >>> adaptation = model.adapt(x)          # answers: adaptation.answers
        >>> adaptation.predict(more)             # goes on; undo() and reset() go back
        >>> model.weights = adaptation.weights   # keeps what it has learnt

        Arguments:
        - `x`: examples as `predict` takes them, also a stream of batches (default None: none yet).
        - `method`: `"statistics"` replaces the moving statistics of BatchNormalization by those of the examples so far
          (Nado et al. 2020; Schneider et al. 2020); `"tent"` (default) also moves scales and shifts towards answers of
          less entropy (Wang et al. 2021); `"eata"` learns from sure and new examples alone (Niu et al. 2022).
        - `batch_size`: examples of an update (default 200). Fewer ones, also one at a time, are answered at once and
          wait until there are so many.
        - `micro_batch`: examples that are on the device at once, a divisor of `batch_size`; statistics are averaged
          over them (default: 50, or the next smaller divisor).
        - `optimizer`: moves scales and shifts (default: Adam at 0.001).
        - `prior`: number of examples that the stored statistics count as (default 0).
        - `anchor`: examples of the world before, (n, ...), without labels: the guard compares new statistics with
          theirs, and "eata" changes least what their answers depend on most; `anchor_weight`: factor of that penalty
          (default 2000).
        - `budget`: as in `plan`.
        - `guard`: go back to the unadapted network where the examples look like those before, come in the order of
          their classes, or answers collapse; `Adaptation.off` says why (default True).
        - `mixed`: every batch is known to be of many classes: the guard need not see it before adapted answers are
          given (default False).
        - `steps`: most batches, where `x` is a stream of them (default: all).

        Raises PlanError for a network without normalization, or that is no classifier of one output with a Softmax, for
        settings that can't be, and over the budget; errors of `predict`.
        """
        self._close()
        adaptation = Adaptation(
            self, method, batch_size, micro_batch, optimizer=optimizer, prior=prior, anchor=anchor,
            anchor_weight=anchor_weight, budget=budget, guard=guard, mixed=mixed,
        )  # fmt: skip
        if x is not None:
            adaptation.answers = adaptation.predict(x, optional_size("steps", steps))
        return adaptation

    @one_thread
    def replay(self, memory: BudgetLike | None = "1 MB", *, batch_size: int = 32, updates: int = 1) -> Replay:
        """Return a Replay: a copy of a classifier that learns examples one at a time, and earlier ones beside them, so
        that it doesn't forget them (Pellegrini et al. 2020). This model stays as it is.

        >>> learner = model.replay("1 MB")
        >>> learner.remember(x, y)           # old examples
        >>> learner.learn(example, [3])      # a new one; undo() goes back
        >>> model.weights = learner.weights  # keeps what it has learnt

        Arguments:
        - `memory`: bytes of kept examples, int8 activations of the last frozen layer, or the examples themselves if all
          layers are trained (default "1 MB"); None keeps none.
        - `batch_size`: examples of an update: the new ones, and kept ones, from each class as often (default 32).
        - `updates`: number of updates for each call of `learn` (default 1).

        BatchNormalization keeps its statistics. Raises PlanError for a memory that holds no example, and for a network
        of several inputs or outputs.
        """
        self._close()
        return Replay(self, memory, batch_size, updates)

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
        plans = self._plans.training(self.settings, batch_size, micro_batch, budget, None, examples, examples, weighted)
        weights = self._current().weights
        self._close()
        return Trainer(plans["train"], weights, self.context, self.kernels)

    @one_thread
    def train_on_batch(
        self, x, y, micro_batch: int | None = None, sample_weight=None, class_weight: Mapping[int, float] | None = None
    ) -> Logs:
        """Run one update from a mini-batch and return its mean loss and accuracy, both from before the update. The
        session stays open for the next call. Arguments and errors as Trainer.step; others as in `fit`."""
        x, y = labeled(x, y, self.network, self.loss, sample_weight, class_weight)
        logs = self._training(self._batch_plan(y, micro_batch)).step(x, y)
        self._statistics_set |= self.batchnorm == "batch"
        self.untrained = False
        return logs

    def test_on_batch(self, x, y) -> Logs:
        """Return the mean loss and the metrics of one mini-batch, all of it on the device at once."""
        return self.evaluate(x, y, len(x))

    def predict_on_batch(self, x) -> Any:
        """Return the network's output for one mini-batch, all of it on the device at once: float32 (n, ...)."""
        return self.predict(x, len(next(iter(x.values())) if isinstance(x, Mapping) else x))

    @one_thread
    def gradients(
        self, x, y, micro_batch: int | None = None, sample_weight=None, *, of: Literal["weights", "inputs"] = "weights"
    ) -> Any:
        """Return the gradients of the mean loss over a mini-batch, float32 by "layer/role". Nothing else changes.
        Arguments and errors as Trainer.gradients; `micro_batch` as in `fit`.

        - `of`: `"inputs"` returns those of the examples instead, (n, ...), by name if there are several inputs. They
          are computed as for predictions: by the stored statistics of BatchNorms, and without dropout.
        """
        if of not in ("weights", "inputs"):
            raise PlanError(f"Gradients are of 'weights' or 'inputs', not {of!r}.")
        x, y = labeled(x, y, self.network, self.loss, sample_weight)
        if of == "inputs":
            plan = self._plans.of_inputs(self.settings, len(x), micro_batch, y.weights is not None)
            session = self._predicting(plan)
            parts = trainer.mini_batches(np.arange(len(x)), plan.request.micro_batch)
            found = session.input_gradients(((session.fetch(x, part), y[part]) for part in parts), len(x))
            return found if len(self.network.inputs) > 1 else next(iter(found.values()))
        return self._training(self._batch_plan(y, micro_batch)).gradients(x, y)

    @one_thread
    def range_records(self) -> Weights:
        return (self._open.range_records() if isinstance(self._open, Trainer) else {}) or dict(self._state.records)

    @one_thread
    def reconstruction_errors(self) -> dict[str, float]:
        if not isinstance(self._open, Trainer):
            raise PlanError(
                "Reconstruction errors are those of the last training step: ask for them in a callback of `fit`, "
                "before it evaluates or predicts (WatchReconstruction goes before other callbacks)."
            )
        return self._open.reconstruction_errors()

    # -- state and files -----------------------------------------------------------------------------------------

    @one_thread
    def state(self) -> tuple[Weights, dict]:
        state = self._current()
        return replace(state, weights={name: state.weights[name] for name in self.changing}).to_tensors()

    @one_thread
    def restore(self, tensors: Weights, position: dict) -> None:
        state = TrainingState.of(tensors, position)
        shapes = {name: self.network.parameters[name].weight.shape for name in self.network.trainable}
        slots = {f"{slot}/{name}": shape for slot in self.optimizer.all_slots for name, shape in shapes.items()}
        state.check(self.changing, slots, self.precision.quantizes)
        weights = check_weights(self.network, self._current().weights | state.weights)
        self._trained = frozenset(self.network.trainable)
        self._put(replace(state, weights=weights))
        self._statistics_set, self.untrained = True, False

    @one_thread
    def to_file(self) -> ModelFile:
        """Return everything that `save` writes: graph, weights, state of training, preprocessing, class names and
        metadata."""
        state = self._current()
        position = {**asdict(state.position), "seed": int(self.seed), "batchnorm": self.batchnorm}
        return ModelFile(
            self.network, state.weights, state.slots, state.records, position, self.preprocessing,
            tuple(self.class_names), self.metadata,
        )  # fmt: skip

    @property
    def changing(self) -> list[str]:
        """Names of the weights that training changes."""
        moving = {p.name for p in self.network.parameters.values() if not p.weight.trainable}
        return sorted(self.network.trainable | (moving if self.batchnorm == "batch" else set()))

    def save(self, path: str | Path) -> None:
        """Write one safetensors file with the graph, the weights and the state of training, and with `preprocessing`,
        `class_names` and `metadata`, which are attributes of the model for JSON values. `edgelearn.load` reads it.

        Raises FormatError for a name that doesn't end in .safetensors, RunError if the file can't be written; the old
        file is then kept.
        """
        check_suffix(path)
        safetensors.write_model_file(path, self.to_file())

    def save_weights(self, path: str | Path) -> None:
        """Write the weights alone, for `load_weights` of a model of the same network: .safetensors, under the names of
        `weights`; or, as `export` writes them, .weights.h5, .pt or .pth.

        Raises FormatError for another name, RunError if the file can't be written; the old file is then kept.
        """
        if check_suffix(path, weights_alone=True) == OWN:
            atomic.write_bytes(path, safetensors.to_bytes(self.weights))
        else:
            write_model(path, self.to_file())

    def load_weights(
        self, path: str | Path, skip: tuple[str, ...] = (), names: Mapping[str, str] | None = None
    ) -> None:  # fmt: skip
        """Assign the weights that a file holds. Arguments and errors as of `edgelearn.load`; layers in `skip` keep the
        weights that they have."""
        file = read_model(path, self.network, tuple(skip), names=names)
        self.weights = {**self.weights, **file.weights}

    def export(self, path: str | Path, calibration: Any = None, **options: Any) -> Written:
        """Write the model in the format of another framework, with `preprocessing` and `class_names` in its metadata.
        Return what was written: bytes by type, and the layers that stay float32.

        >>> model.export("flowers.tflite")
        >>> model.export("flowers.onnx", int8=True)
        >>> model.export("flowers_int8.tflite", int8=True, calibration=x[:100])
        >>> model.export("flowers_micro.tflite", full_integer=True, calibration=x[:100])

        Arguments:
        - `path`: its suffix names the format: .tflite, .onnx, .keras, .weights.h5, .safetensors, .pt, .qfp32 or .qfp16.
        - `calibration`: examples, for integers (a dictionary by input if there are several): activations get the range
          of their values here (default None: the range that a training with a Precision left).
        - `options`: of the format. `int8=True` (TFLite, ONNX) writes integers; inputs and outputs stay
          float32. `full_integer=True` (TFLite) writes integers alone, int8 inputs and outputs among them.
          `float16=True` (TFLite, ONNX) stores weights in float16.

        Raises FormatError for an unknown suffix or option, an op that the format doesn't have, missing ranges, a
        missing package, or layers that can't be computed with integers alone; DataError for no examples; RunError if
        the file can't be written.
        """
        file = self.to_file()
        if calibration is not None:
            if not (options.get("int8") or options.get("full_integer")):
                raise FormatError(f"{path}: calibration is for integers: give int8=True or full_integer=True, too.")
            file = replace(file, ranges=calibrate(self, calibration))
        return write_model(path, file, **options)

    # -- the one session on the device -----------------------------------------------------------------------------

    def _current(self) -> TrainingState:
        """The state of the training with all weights, copied from the device if training has changed them there."""
        if isinstance(self._open, Trainer) and self._open.changed:
            new = self._open.snapshot()
            self._state = replace(
                new, weights=self._state.weights | new.weights, records=new.records or self._state.records
            )
        return replace(self._state, position=self.position)

    def _put(self, state: TrainingState) -> None:
        """Replace everything by `state`, which has all weights; the open session gets it at once."""
        self._state, self.position = state, state.position
        if isinstance(self._open, Trainer):
            self._open.resume(state)
        elif self._open is not None:
            self._load(self._open)

    def _batch_plan(self, y: Targets, micro_batch: int | None) -> Plan:
        """The plan of an update from all of `y`."""
        return self._plans.training(self.settings, len(y), micro_batch, weighted=y.weights is not None)["train"]

    def _training(self, plan: Plan, notify: CallbackList | None = None) -> Trainer:
        """Return the open training of `plan`; closes any other session. `notify` hears of compilation and may end
        it."""
        if not (isinstance(self._open, Trainer) and self._open.plan is plan and self._open.session.can_step):
            self._close()
            state, trained = self._current(), plan.request.trainable
            if trained != self._trained:
                state = state.carried(plan.storage.slot_tensors, plan.storage.quantizers)
            progress = self._progress(notify)
            self._open = Trainer(plan, state.weights, self.context, self.kernels, self.status, progress, state)
            self._state, self._trained = replace(state, new_ranges=False), trained
        return self._open

    def _predicting(self, plan: Plan, notify: CallbackList | None = None) -> Session:
        """Return the session of `plan`, which doesn't train; closes any other. `notify` as in `_training`."""
        if not isinstance(self._open, Session) or self._open.plan is not plan:
            self._close()
            session = Session(plan, self.context, self.kernels, self._progress(notify))
            self._load(session)
            self._open = session
        return self._open

    def _load(self, session: Session) -> None:
        session.load(self._state.weights)
        if self._state.records:
            session.load_records(self._state.records)

    def _close(self) -> None:
        """Give the device's memory back; weights and training state stay on the host."""
        if isinstance(self._open, Trainer):
            self._open.session.end_steps()  # the weights that come back have room where activations were
            self._current()
        if self._open is not None:
            self._open.close()
        self._open = None

    def _progress(self, notify: CallbackList | None) -> Callable[[int, int, str], None] | None:
        if notify is None:
            return None

        def progress(done: int, total: int, kernel: str) -> None:
            notify("on_compile", done, total)
            self.status.check_stop()

        return progress
