"""Train one network in several combinations, and compare them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgelearn.compile.combination import Combination
from edgelearn.data.split import stratified_split
from edgelearn.errors import DataError, RunError
from edgelearn.experiments.experiment import Log, silent
from edgelearn.experiments.known import can_go_on, diverged, is_done, known_runs
from edgelearn.experiments.task import Task
from edgelearn.graph import Network
from edgelearn.lab.runs import Run, RunStore
from edgelearn.ops import Loss, Losses, Optimizer
from edgelearn.train import Callback, Model, Subset
from edgelearn.train.callbacks.progress import with_progress
from edgelearn.train.combined import NetworkLike, as_network, combined

from .config import CombinationConfig, described, digest, weights_digest
from .experiment import CombinationExperiment
from .results import CombinationResult, CombinationResults

SPLIT_SEED = 0  # of the test examples: the same for all seeds


@dataclass(frozen=True)
class _Shared:
    """Network, examples and settings that all trainings share."""

    network: Network | Model
    train: tuple[Any, Any]
    test: tuple[Any, Any]
    epochs: int
    batch_size: int
    settings: dict[str, Any]  # of `combined`
    device: str | None


def compare(
    network: NetworkLike,
    data: tuple[Any, Any],
    combinations: Sequence[Combination | Mapping[str, Any]],
    *,
    epochs: int = 1,
    batch_size: int = 32,
    optimizer: Optimizer | str | None = None,
    loss: Loss | Losses | None = None,
    batchnorm: str = "auto",
    metrics: Any = (),
    validation_data: tuple[Any, Any] | None = None,
    validation_split: float = 0.2,
    seeds: Sequence[int] = (0,),
    device: str | None = None,
    store: RunStore | str | None = None,
    callbacks: Callable[[], Sequence[Callback]] = list,
    verbose: str | int = "auto",
) -> CombinationResults:
    """Train a network in several combinations of precision, activation memory, micro-batch and trained layers, on the
    same data and with the same seeds.

    >>> comparison = el.compare(network, (x, y), [{}, {"precision": "int8"}, {"activation_memory": "1 MB stored"}])
    >>> print(comparison)
    >>> comparison.plot("comparison.png")

    Each training is a run in the run store. Finished runs are found by their settings, network and data, and aren't
    trained again; interrupted ones go on. A combination that can't be planned or trained is a row with its reason.

    Arguments:
    - `network`: a Network, whose weights are drawn from the seed; a Model, whose weights and settings all trainings
      begin with; the name of one of el.models, a model file, or "MODULE:FUNCTION".
    - `data`: (x, y) as for Model.fit.
    - `combinations`: Combinations, or dictionaries of their arguments.
    - `epochs`, `batch_size`: as for Model.fit (default 1 and 32).
    - `optimizer`, `loss`, `batchnorm`, `metrics`: as for Model.compile (default: the model's; of a network, SGD()).
    - `validation_data`: (x, y) to test with (default: a part of `data`).
    - `validation_split`: share of `data` that is tested with instead, of each class the same (default 0.2).
    - `seeds`: a training of each combination with each (default (0,)).
    - `device`: any part of a device's name (default: the model's, else the best one).
    - `store`: a RunStore or its folder (default: that of the commands).
    - `callbacks`: makes the callbacks of a training (default: none).
    - `verbose`: as for Model.fit.

    Raises PlanError for a combination with unknown arguments, DataError for classes too small to split.
    """
    chosen = [Combination.of(each) for each in combinations]
    if not chosen or not seeds:
        raise RunError("There is nothing to compare: give at least one combination and one seed.")
    bars = with_progress([], verbose)
    log: Log = print if bars else silent
    log(f"{len(chosen)} combinations, seeds {', '.join(map(str, seeds))}")
    network = as_network(network)
    train, test = (data, validation_data) if validation_data else split(data, validation_split)
    settings = {"optimizer": optimizer, "loss": loss, "batchnorm": batchnorm, "metrics": metrics}
    shared = _Shared(network, train, test, epochs, batch_size, settings, device)
    trainings = _Trainings(shared, store if isinstance(store, RunStore) else RunStore(store), log)
    rows, interrupted = [CombinationResult(each) for each in chosen], False
    jobs = [(seed, row) for seed in seeds for row in rows]
    for number, (seed, row) in enumerate(jobs, 1):
        log(f"{number} of {len(jobs)}: {row.combination.name}, seed {seed}")
        outcome = trainings.run(row.combination, seed, [*callbacks(), *with_progress([], verbose)])
        if outcome is None:
            interrupted = True
            break
        if isinstance(outcome, Run):
            row.runs[seed] = outcome
        else:
            row.reasons[seed] = outcome
            log(f"  {outcome}")
    used = trainings.first.device
    return CombinationResults(trainings.network.name, used.id, rows, interrupted, used.int8_speed)


def split(data: tuple[Any, Any], share: float) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Divide (x, y) into examples to train and to test with: of class numbers the same share of each class."""
    x, y = data
    count = len(next(iter(y.values())) if isinstance(y, Mapping) else y)
    labels = np.asarray(y) if not isinstance(y, Mapping) else np.zeros((0, 0))
    if labels.ndim == 1 and labels.dtype.kind in "iu":
        parts = stratified_split(labels, round(1 - share, 6), SPLIT_SEED)
    else:
        order, kept = np.random.default_rng(SPLIT_SEED).permutation(count), round(count * (1 - share))
        if not 0 < kept < count:
            raise DataError(f"A validation_split of {share:g} of {count} examples leaves none.")
        parts = np.sort(order[:kept]), np.sort(order[kept:])
    first, second = ((_part(x, part), _part(y, part)) for part in parts)
    return first, second


def _part(values: Any, indices: np.ndarray) -> Any:
    if isinstance(values, Mapping):
        return {name: _part(value, indices) for name, value in values.items()}
    if isinstance(values, list | tuple) and values and hasattr(values[0], "shape"):
        return [_part(value, indices) for value in values]
    if isinstance(values, list | tuple):
        values = np.asarray(values)
    return values[indices] if isinstance(values, np.ndarray) else Subset(values, indices)


class _Trainings:
    """The trainings of a comparison, of which the store may have some."""

    def __init__(self, shared: _Shared, store: RunStore, log: Log) -> None:
        self.shared, self.store, self.log = shared, store, log
        given = shared.network
        self.first = combined(given, device=shared.device, **shared.settings)
        self.network = self.first.network
        self.known = known_runs(
            store, CombinationExperiment.kind, lambda run: CombinationConfig.from_dict(run.config).key
        )
        metrics = shared.settings["metrics"]
        named = [metrics] if isinstance(metrics, str) or callable(metrics) else list(metrics)
        self.config = {
            "network": self.network.name, "graph": digest(self.network.to_json()),
            "weights": weights_digest(given) if isinstance(given, Model) else "",
            "data": digest(shared.train, shared.test), "epochs": shared.epochs, "batch_size": shared.batch_size,
            "optimizer": described(self.first.optimizer), "loss": described(self.first.loss),
            "batchnorm": self.first.batchnorm, "metrics": tuple(map(described, named)), "device": shared.device,
        }  # fmt: skip

    def run(self, combination: Combination, seed: int, callbacks: Sequence[Callback]) -> Run | str | None:
        """The finished run; or the reason why there is none; or None after an interrupt."""
        try:
            config = CombinationConfig.of(combination, seed, **self.config)
            known = self.known.get(config.key)
            if known is not None and is_done(known):
                return _diverged(known) if diverged(known) else known
            experiment = CombinationExperiment(config, self._task(combination, seed), combination)
            _ = experiment.phases
            if known is not None and can_go_on(known):
                with known.resume() as run:
                    return run if experiment.run(run, callbacks, silent) else None
            with experiment.create_run(self.store) as run:
                return run if experiment.run(run, callbacks, silent) else None
        except Exception as error:  # of any kind: ops, losses and sources may be the caller's
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"

    def _task(self, combination: Combination, seed: int) -> Task:
        shared, given = self.shared, self.shared.network
        model = combined(given, combination, device=shared.device, seed=seed, share_with=self.first, **shared.settings)
        (_, y), (_, test_y) = shared.train, shared.test
        labels = np.asarray(y) if not isinstance(y, Mapping) else np.zeros(0)
        classes = [str(label) for label in np.unique(labels)] if labels.dtype.kind in "iu" else []
        data = {
            "origin": "arrays", "description": f"{len(y):,} examples to train and {len(test_y):,} to test with.",
            "classes": classes, "train": len(y), "test": len(test_y), "skipped": 0,
        }  # fmt: skip
        digest = self.config["weights"]
        weights = {"description": "of the model" if digest else f"Drawn from seed {seed}.", "sha256": digest}
        return Task(
            model, shared.train, shared.test, lambda steps: model.optimizer, data, weights, shared.batch_size,
            model.batchnorm,
        )  # fmt: skip


def _diverged(run: Run) -> str:
    return f"diverged: {run.record['error']['message']}"
