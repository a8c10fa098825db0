"""A network with its weights on a device, in Keras's words: summary, compile, fit, evaluate, predict, save."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from numbers import Integral
from pathlib import Path
from typing import Any

from edgelearn.compile import BudgetLike, Plan, Precision
from edgelearn.compile.memory.activation_memory import ActivationMemory
from edgelearn.compile.memory.policies import keep_all
from edgelearn.compile.memory.strategies import Encoding
from edgelearn.device import Device
from edgelearn.errors import PlanError
from edgelearn.graph import Network
from edgelearn.interop import ModelFile
from edgelearn.interop.weights import ReadOnlyWeights, Weights, check_weights, copied
from edgelearn.ops import SGD, Compute, Loss, Losses, Optimizer
from edgelearn.ops.optimizers.names import as_optimizer
from edgelearn.runtime import Context, DeviceChoice, Kernels, choose_device

from . import passes
from .arguments import FitArguments, optional_size
from .callbacks import Callback, History
from .fitting import Fitting
from .metrics import OutputMetrics
from .open_session import OpenSession
from .output_losses import check_examples, output_losses
from .phases import Phases
from .plans import Plans, TrainingSettings
from .saved_model import SavedModel
from .sources import as_source
from .state import TrainingState
from .status import Logs, TrainingStatus
from .streams import examples_of
from .summary import summary
from .targets import Targets, labeled
from .trainer import Trainer
from .turns import Turns, one_thread


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
        self._plans = Plans(network, self.device, seed)
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
        return self.settings.optimizer

    @property
    def loss(self) -> Loss | Losses:
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
        settings = TrainingSettings(
            as_optimizer(optimizer), output_losses(loss, loss_weights, self.network), batchnorm,
            precision or Precision(), activation_memory or keep_all, tuple(allow), compute=Compute.of(compute),
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
        return passes.evaluate(self._open.forward(plan), x, y, self.metrics)

    @one_thread
    def predict(self, x, batch_size: int | None = None) -> Any:
        """Return the network's output for examples `x`: float32 (n, ...), probabilities if it ends in a softmax; of
        several outputs a dictionary by name."""
        x = as_source(x, self.network)
        plan = self._plans.forward(self.settings, optional_size("batch_size", batch_size), examples=(len(x),))
        return passes.predict(self._open.forward(plan), x)

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

    def _settings(self, *targets: Targets) -> TrainingSettings:
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
