"""A network with its weights on a device: summary, plan, fit, evaluate, predict, in Keras's words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from pathlib import Path

import numpy as np

from edgelearn.compile import BudgetLike, Invert, LaunchTimes, Plan, Precision, Request, make_plan
from edgelearn.compile.lower import input_block
from edgelearn.compile.memory.activation_memory import ActivationMemory
from edgelearn.compile.memory.policies import keep_all
from edgelearn.compile.memory.strategies import Encoding
from edgelearn.device import Device
from edgelearn.errors import PlanError
from edgelearn.graph import Network, Split, split_frozen
from edgelearn.interop.weights import Weights, check_weights
from edgelearn.ops import SGD, Loss, Optimizer, SoftmaxCrossEntropy
from edgelearn.runtime import Context, DeviceChoice, Kernels, Session, choose_device, launch_times

from . import passes, sources
from .callbacks import Callback, History
from .feature_cache import DTYPES, FeatureCache
from .loop import Loop, Position, StoppedError
from .phases import Phases, largest_that_fits
from .reconstruction import WatchReconstruction
from .sources import Source
from .state import TrainingState
from .summary import summary


class Model:
    """`network` with `weights` (by name; fresh ones from `seed` where None) on `device` (chosen where None).

    `weights` are the host's copies: assign other ones to change them. During `fit` the device's are ahead of them.
    With a model to be `beside`, its device, context and compiled kernels are used: nothing starts or compiles twice.
    Raises FormatError for weights that don't fit, DeviceError for an unknown device, PlanError for a bad seed.
    """

    def __init__(
        self, network: Network, weights: Weights | None = None, device: str | Device | None = None, seed: int = 0,
        share_with: Model | None = None,
    ) -> None:  # fmt: skip
        if not (isinstance(seed, Integral) and 0 <= seed < 1 << 64):
            raise PlanError(f"A seed is a whole number from 0 to 2**64 - 1, not {seed!r}.")
        self.network, self.seed = network, seed
        self._session: Session | None = None
        self._slots: Weights = {}  # the host's copy of the optimizer's state
        self._records: Weights = {}  # and of the ranges of quantized tensors
        self.weights = network.initialize(seed) if weights is None else weights
        self.choice: DeviceChoice = share_with.choice if share_with else choose_device(device)
        self.context = share_with.context if share_with else Context(self.choice.device)
        self.kernels = share_with.kernels if share_with else Kernels(self.context)
        self.optimizer: Optimizer = SGD()
        self.loss: Loss = SoftmaxCrossEntropy()
        self.batchnorm = "moving"
        self.precision, self.activation_memory, self.allow = Precision(), keep_all, ()
        self.position = Position()
        self.stop_training = False
        self.epochs = self.steps_total = 0
        self._steps_of_epoch = 0

    @property
    def weights(self) -> Weights:
        """All of the network's weights, float32 by name."""
        return self._weights

    @weights.setter
    def weights(self, weights: Weights) -> None:
        self._close()
        self._weights = check_weights(self.network, weights)

    @property
    def device(self) -> Device:
        return self.choice.device

    @property
    def steps_done(self) -> int:
        return self.position.epoch * self._steps_of_epoch + self.position.step

    def compile(
        self,
        optimizer: Optimizer,
        label_smoothing: float = 0.0,
        batchnorm: str = "moving",
        precision: Precision | None = None,
        activation_memory: Callable[[Network], ActivationMemory] = keep_all,
        loss: Loss | None = None,
        allow: Sequence[Encoding] = (),
    ) -> Model:
        """How `fit` trains. `batchnorm` is "moving" (moving statistics are used and left alone, as in fine-tuning) or
        "batch" (each micro-batch's own, and moving averages follow). `precision` says what is quantized, in training
        and wherever the network runs: nothing by default. `activation_memory` is a policy (see
        compile/memory/policies.py) that gives each activation a strategy; within a budget the planner chooses among
        exact strategies on the device and those in `allow`, such as Compress() or Offload() (see
        compile/memory/strategies.py). `loss` is softmax cross-entropy with `label_smoothing` unless another one is
        given (see ops/loss.py).

        Training starts anew: `position` is the first step. Raises PlanError for settings that can't be."""
        if not isinstance(optimizer, Optimizer):
            raise PlanError(f"An optimizer is an object such as SGD(0.01) or Adam(), not {optimizer!r}.")
        if loss is not None and label_smoothing:
            raise PlanError("label_smoothing is of softmax cross-entropy: leave it out beside another loss.")
        loss = loss or SoftmaxCrossEntropy(label_smoothing)
        if batchnorm not in ("moving", "batch"):
            raise PlanError(
                f"batchnorm is 'moving' (fine-tuning) or 'batch' (training from scratch), not '{batchnorm}'."
            )
        if not callable(activation_memory):
            raise PlanError(
                f"`saving` is a function from a network to its layers' ways back, such as policies.checkpoints or "
                f"lambda network: {{'conv': Recompute()}}, not {activation_memory!r:.60}."
            )
        self._close()
        self.optimizer, self.loss, self.batchnorm = optimizer, loss, batchnorm
        self.precision, self.activation_memory, self.allow = precision or Precision(), activation_memory, allow
        self.position, self._slots, self._records = Position(), {}, {}
        return self

    def summary(self) -> str:
        """The layers, their shapes and parameters, and which are trained."""
        return summary(self.network)

    def plan(
        self,
        batch_size: int = 32,
        micro_batch: int | None = None,
        budget: BudgetLike | None = None,
        cache: str | None = None,
    ) -> Plan:
        """Every byte of a training step before it runs. With a `cache`, of the part above the frozen prefix, which is
        all that trains when the prefix's features are kept (see `fit`). The `budget`, such as "60 MB" of device memory,
        "20 MB peak", "8 MB stored" or both with a comma, is met by the fastest ways back for activations, unless
        `compile` said which.

        Raises PlanError (over the `budget`, nothing to train) or DeviceError (the device is too small).
        """
        return self.phases(batch_size, micro_batch, budget, cache)["train"]

    def phases(
        self,
        batch_size: int = 32,
        micro_batch: int | None = None,
        budget: BudgetLike | None = None,
        cache: str | None = None,
    ) -> Phases:
        """The plans of all that `fit` puts on the device, one after the other: "extract" with a `cache`, and "train".
        Raises as `plan`."""
        found = Phases()
        trained = self.network
        if cache is not None:
            if cache not in DTYPES:
                raise PlanError(f"The cache of features is {' or '.join(map(repr, DTYPES))} or None, not {cache!r}.")
            if self.precision != Precision():
                raise PlanError(
                    "Features of quantized layers follow training: they can't be cached. Leave the cache off."
                )
            split = self._split()
            found["extract"] = self._forward_plan(split.prefix, budget)
            trained = split.suffix
        micro = batch_size if micro_batch is None else micro_batch
        settings = self.optimizer, self.batchnorm, self.loss
        more = {"precision": self.precision, "activation_memory": self.activation_memory(trained)}
        request = Request(trained, batch_size, micro, *settings, seed=self.seed, **more)
        found["train"] = make_plan(request, self.device, budget, costs=self._launch_times(budget), allow=self.allow)
        return found

    def fit(
        self,
        x,
        y: np.ndarray,
        batch_size: int = 32,
        epochs: int = 1,
        *,
        micro_batch: int | None = None,
        validation_data: tuple | None = None,
        validation_frequency: int = 1,
        callbacks: Sequence[Callback] = (),
        cache: str | None = None,
        cache_folder: Path | None = None,
        budget: BudgetLike | None = None,
        shuffle: bool = True,
    ) -> History:
        """Train on examples `x` (an array (n, ...) or a Source) with int labels `y` (n,).

        A mini-batch of `batch_size` is run as micro-batches of `micro_batch` (all at once by default); gradients are
        summed over them, so the update is that of the mini-batch. `cache` keeps what the frozen prefix makes of each
        example: "fp32" gives the same bits as None (but for rounding where the prefix ends in fewer than 16 channels),
        "fp16" takes half the memory; both lie in memory, or in a temporary file in `cache_folder`. The order of epoch
        e depends on the seed and e alone; a Source may vary its examples by epoch (see VariedSource). Training goes on
        from `position` until `epochs` are done in all, those of earlier calls among them, until `compile` is called
        again; `stop_training` ends it after a step. Callbacks may call `evaluate`, `predict` and `state`.

        Raises ShapeError, PlanError (also where no epoch is left to do), DeviceError before anything runs, DataError
        when an example can't be read or a feature doesn't fit the cache, NonFiniteError naming the first layer where a
        NaN or infinity appeared, weights unchanged by that step, and ReconstructionError (see WatchReconstruction).
        """
        self.stop_training = False
        x, y = self._labeled(x, y)
        if validation_data is not None:
            validation_data = self._labeled(*validation_data)
        if min(epochs, batch_size, validation_frequency) < 1:
            raise PlanError(
                f"epochs, batch_size and validation_frequency are at least 1, not {epochs}, {batch_size} and "
                f"{validation_frequency}."
            )
        if cache is not None and sources.varies(x):
            raise PlanError(
                "These examples differ from epoch to epoch, so what the frozen prefix makes of them cannot be cached: "
                "leave the cache off, or train on the examples as they are."
            )
        batch_size = min(batch_size, len(x))
        self._check_position(len(x), batch_size, epochs)
        if self.loss.ordered and shuffle:
            raise PlanError(f"{type(self.loss).__name__} needs examples in the order of their episodes: shuffle=False.")
        self._check_whole(len(x), batch_size)
        self._check_whole(batch_size, min(micro_batch or batch_size, batch_size))
        phases = self.phases(batch_size, micro_batch and min(micro_batch, len(x)), budget, cache)
        self._steps_of_epoch = -(-len(x) // batch_size)
        self.epochs, self.steps_total = epochs, epochs * self._steps_of_epoch
        history = History()
        callbacks = [*callbacks, history]
        inverts = any(isinstance(way, Invert) for way in phases["train"].request.activation_memory.values())
        if inverts and not any(isinstance(callback, WatchReconstruction) for callback in callbacks):
            callbacks.insert(0, WatchReconstruction())  # before others, which may use another session
        for callback in callbacks:
            callback.model = self

        def tell(moment: str, *arguments) -> None:
            for callback in callbacks:
                getattr(callback, moment)(*arguments)

        try:
            if cache is not None:
                wanted = [x] if validation_data is None else [x, validation_data[0]]
                block = input_block(phases["train"].request.network)
                features = self._extract(wanted, phases["extract"], cache, cache_folder, block, tell)
                x, validation_data = features[0], validation_data and (features[1], validation_data[1])

            def session() -> Session:
                return self._open(phases["train"], tell)

            Loop(self, session, tell, x, y, batch_size, shuffle, validation_data, validation_frequency).run()
        except StoppedError:
            pass
        finally:
            self._close()
            tell("on_train_end", {})
        return history

    def forward_plan(self, batch_size: int | None = None, budget: BudgetLike | None = None) -> Plan:
        """The plan of `evaluate` and `predict`: `batch_size` examples at a time (by default as many of 16 as fit)."""
        return self._forward_plan(self.network, budget, batch_size)

    def evaluate(self, x, y: np.ndarray, batch_size: int | None = None) -> dict[str, float]:
        """Mean loss and accuracy over examples `x` with int labels `y`. Raises PlanError where the loss is one of whole
        episodes and `batch_size` isn't."""
        x, y = self._labeled(x, y)
        plan = self.forward_plan(batch_size)
        if plan.request.loss is None:
            self.loss.check(self._outputs(), plan.request.micro_batch)
        self._check_whole(len(x), plan.request.micro_batch)
        return passes.evaluate(self._open(plan), x, y)

    def predict(self, x, batch_size: int | None = None) -> np.ndarray:
        """The network's output for examples `x`: float32 (n, ...), probabilities where it ends in a softmax."""
        x = sources.as_source(x, self.network.input_shape)
        return passes.predict(self._open(self.forward_plan(batch_size)), x)

    def range_records(self) -> Weights:
        """What is known of the quantized tensors, by "layer/kind": float32 (16,), fields as ops.quantize.FIELDS."""
        training = self._session is not None and self._session.plan.request.optimizer is not None
        return self._session.records() if training and self._session.ranges_known else dict(self._records)

    def reconstruction_errors(self) -> dict[str, float]:
        """How far off the activations were that the last step inverted: see Session.reconstruction_errors. Raises
        PlanError unless that step is the last thing that ran."""
        if self._session is None or self._session.plan.request.optimizer is None:
            raise PlanError(
                "Reconstruction errors are those of the last training step: ask for them in a callback of `fit`, "
                "before it evaluates or predicts (WatchReconstruction goes before other callbacks)."
            )
        return self._session.reconstruction_errors(self.position.updates)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def state(self) -> tuple[Weights, dict]:
        """All that training needs to go on: (tensors, JSON-able state). At a step boundary."""
        self._keep()
        changing = {name: self.weights[name] for name in self._changing()}
        return TrainingState(changing, self._slots, self._records, self.position).to_tensors()

    def restore(self, tensors: Weights, state: dict) -> None:
        """Go back to where `state` was taken. Raises FormatError when it is another network's or training's."""
        found = TrainingState.of(tensors, state)
        slots = {f"{slot}/{name}" for slot in self.optimizer.slots for name in self.network.trainable}
        found.check(self._changing(), slots, self.precision.quantizes)
        self.weights = self.weights | found.weights
        self.position, self._slots, self._records = found.position, found.slots, found.records

    def check_stop(self) -> None:
        """Raises StoppedError once `stop_training` is set."""
        if self.stop_training:
            raise StoppedError

    # -- inside --------------------------------------------------------------------------------------------------

    def _changing(self) -> list[str]:
        """Names of the weights that training changes."""
        moving = {p.name for p in self.network.parameters.values() if not p.weight.trainable}
        return sorted(self.network.trainable | (moving if self.batchnorm == "batch" else set()))

    def _labeled(self, x, y) -> tuple[Source, np.ndarray]:
        x = sources.as_source(x, self.network.input_shape)
        return x, sources.as_labels(y, len(x), self.loss.labels(self._outputs()))

    def _check_position(self, examples: int, batch_size: int, epochs: int) -> None:
        """Whether training can go on from where it stands, to the end of `epochs`."""
        at = self.position
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

    def _check_whole(self, examples: int, size: int) -> None:
        if self.loss.ordered and examples % size:
            raise PlanError(
                f"{examples} examples aren't whole episodes of {size}: give as many as make them, or another size."
            )

    def _outputs(self) -> int:
        shape = self.network.output.shape
        if len(shape) != 1:
            raise PlanError(f"The network gives {shape}, not (classes,): end it with a Dense layer.")
        return shape[0]

    def _launch_times(self, budget: BudgetLike | None) -> LaunchTimes | None:
        """What the planner weighs the strategies of `allow` by; nothing is measured where it has nothing to choose."""
        return launch_times(self.device, self.allow) if budget is not None and self.allow else None

    def _split(self) -> Split:
        if not self.network.trainable:
            raise PlanError("Nothing to train: every parameter is frozen. Unfreeze some: network.unfreeze('dense').")
        split = split_frozen(self.network)
        if split is None:
            raise PlanError(
                "There is no frozen prefix whose features could be cached: the first layers are trained, or no single "
                "tensor separates the frozen part. Leave the cache off, or freeze the first layers."
            )
        return split

    def _forward_plan(self, network: Network, budget: BudgetLike | None, size: int | None = None) -> Plan:
        def make(n: int) -> Plan:
            loss = self.loss if len(network.output.shape) == 1 and self.loss.fits(n) else None
            return make_plan(Request(network, n, n, loss=loss, precision=self.precision), self.device, budget)

        return make(size) if size is not None else largest_that_fits(make, budget)

    def _extract(
        self, wanted: list[Source], plan: Plan, cache: str, folder: Path | None, block: int, tell: Callable
    ) -> list[FeatureCache]:
        session = self._open(plan, tell)
        total, before = sum(map(len, wanted)), 0
        found = []
        for source in wanted:
            features = FeatureCache(plan.request.network.output.shape, len(source), cache, folder, block)
            for done in features.fill(source, session):
                tell("on_extract", before + done, total)
                self.check_stop()
            found.append(features)
            before += len(source)
        return found

    def _open(self, plan: Plan, tell: Callable | None = None) -> Session:
        """The one session at a time: memory of the one before is given back first."""
        session = self._session
        if session is not None and session.plan.request == plan.request and session.can_step:
            return session
        self._close()

        def progress(done: int, total: int, kernel: str) -> None:
            if tell:
                tell("on_compile", done, total)
                self.check_stop()

        session = Session(plan, self.context, self.kernels, progress)
        session.load(self.weights)
        if plan.request.optimizer is not None and self._slots:
            session.load_optimizer_state(self._slots)
        training = plan.request.optimizer is not None and self.position.updates
        if self._records or training:  # which may not have any, but must have them for all that it quantizes
            session.load_records(self._records)
        self._session = session
        return session

    def _keep(self) -> None:
        """Copy what training has changed on the device to the host."""
        if self._session is not None and self._session.plan.request.optimizer is not None:
            self._weights = self._weights | self._session.weights()
            self._slots = self._session.optimizer_state()
            if self._session.ranges_known:
                self._records = self._session.records()

    def _close(self) -> None:
        if self._session is not None:
            self._session.end_steps()  # the weights that come back have room where activations were
            self._keep()
            self._session.close()
            self._session = None
