"""The plans of a model, each made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgelearn.compile import BudgetLike, Plan, Precision, Request, make_plan
from edgelearn.compile.memory.activation_memory import ActivationMemory
from edgelearn.compile.memory.policies import keep_all
from edgelearn.compile.memory.strategies import Encoding
from edgelearn.device import Device
from edgelearn.errors import PlanError
from edgelearn.graph import Network, Split, split_frozen
from edgelearn.ops import SGD, Compute, Loss, Losses, Optimizer, SoftmaxCrossEntropy
from edgelearn.runtime import launch_times
from edgelearn.runtime.feature_cache import DTYPES

from .phases import Phases, largest_that_fits

KEPT = 16  # plans; the one that was used longest ago is dropped first


@dataclass(frozen=True)
class TrainingSettings:
    """How a model trains: the arguments of Model.compile, checked.

    Raises PlanError for settings that contradict each other or can't be.
    """

    optimizer: Optimizer = SGD()  # noqa: RUF009
    loss: Loss | Losses = SoftmaxCrossEntropy()  # noqa: RUF009
    batchnorm: str = "moving"
    precision: Precision = Precision()  # noqa: RUF009
    activation_memory: Callable[[Network], ActivationMemory] = keep_all
    allow: tuple[Encoding, ...] = ()
    weighted: bool = False  # examples have weights
    compute: Compute = Compute()  # noqa: RUF009

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer, Optimizer):
            raise PlanError(f"An optimizer is an object such as SGD(0.01) or Adam(), not {self.optimizer!r}.")
        if not isinstance(self.loss, Loss | Losses):
            raise PlanError(
                f"A loss is an object such as SoftmaxCrossEntropy(label_smoothing=0.1), not {self.loss!r:.60}."
            )
        if not isinstance(self.precision, Precision):
            raise PlanError(f"precision is a Precision(weights=Format(8)), say, not {self.precision!r:.60}.")
        if self.batchnorm not in ("moving", "batch"):
            raise PlanError(
                f"batchnorm is 'moving' (fine-tuning), 'batch' (training from scratch) or 'auto', not "
                f"'{self.batchnorm}'."
            )
        if not callable(self.activation_memory):
            raise PlanError(
                f"activation_memory is a function from a network to strategies by layer, such as policies.checkpoints "
                f"or lambda network: {{'conv': Recompute()}}, not {self.activation_memory!r:.60}."
            )


class Plans:
    """Makes the plans of `network` on `device`, and keeps them: asking again costs microseconds.

    Plans depend on everything that is asked for, and on which layers are trained at that moment.
    """

    def __init__(self, network: Network, device: Device, seed: int) -> None:
        self.network, self.device, self.seed = network, device, seed
        self._plans: dict[tuple, Plan] = {}
        self._splits: dict[tuple, Split] = {}
        self._remainders: dict[tuple, set[int]] = {}

    def training(
        self, settings: TrainingSettings, batch_size: int, micro_batch: int | None = None,
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
        request = Request(
            trained, batch_size, batch_size if micro_batch is None else micro_batch, settings.optimizer,
            settings.batchnorm, settings.loss, self.seed, settings.precision, settings.activation_memory(trained),
            last_batches=tuple(last_batches), remainders=tuple(remainders), weighted=settings.weighted,
            compute=settings.compute,
        )  # fmt: skip
        phases["train"] = self._plan(request, budget, settings.allow)
        return phases

    def forward(
        self, settings: TrainingSettings, batch_size: int | None = None, budget: BudgetLike | None = None,
        examples: Sequence[int] = (), network: Network | None = None,
    ) -> Plan:  # fmt: skip
        """Return the plan that evaluates and predicts `batch_size` examples at a time (default: as many of 16 as fit).

        Sizes of shorter last micro-batches are collected, so that changing between them makes no new plan each time.
        """
        network, loss, precision = network or self.network, settings.loss, settings.precision

        def make(n: int) -> Plan:
            fitting = loss if network is self.network and loss.fits(n) else None
            remainders = self._remainders.setdefault((network, n, repr(budget)), set())
            remainders.update(count % n for count in examples)
            request = Request(
                network, n, n, loss=fitting, precision=precision, remainders=tuple(remainders),
                weighted=fitting is not None and settings.weighted, compute=settings.compute,
            )  # fmt: skip
            return self._plan(request, budget)

        return make(batch_size) if batch_size is not None else largest_that_fits(make, budget)

    def _plan(self, request: Request, budget: BudgetLike | None, allow: tuple[Encoding, ...] = ()) -> Plan:
        key = request, len(request.network.nodes), repr(budget), allow
        plan = self._plans.pop(key, None)
        if plan is None:
            measured = launch_times(self.device, allow) if budget is not None and allow else None
            plan = make_plan(request, self.device, budget, launch_times=measured, allow=allow)
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
