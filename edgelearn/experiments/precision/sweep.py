"""Train all variants of a task with several seeds, and collect the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgelearn.errors import NonFiniteError, PlanError
from edgelearn.experiments.experiment import Log, silent
from edgelearn.experiments.known import can_go_on, is_done, known_runs
from edgelearn.lab.runs import Run, RunStore, mean_and_deviation
from edgelearn.train import Callback

from .config import FLOAT, PrecisionConfig
from .experiment import PrecisionExperiment
from .variants import Variant

SEEDS = (0, 1, 2)
EXPECTED = Path(__file__).parent / "expected.json"


@dataclass(frozen=True)
class VariantResult:
    """The trainings of a variant.

    Arguments:
    - `variant`: its name.
    - `accuracies`: test accuracy by seed.
    - `results`: all results of the first finished training.
    - `devices`: names of the devices that the trainings ran on.
    - `diverged`: seeds whose training ended in a NaN or an infinity.
    """

    variant: str
    accuracies: dict[int, float]
    results: dict
    devices: tuple[str, ...]
    diverged: tuple[int, ...] = ()

    @property
    def mean(self) -> float:
        return mean_and_deviation(list(self.accuracies.values()))[0]

    def to_dict(self) -> dict:
        """The entry in expected.json."""
        record: dict = {"accuracies": {str(seed): value for seed, value in sorted(self.accuracies.items())}}
        return record | ({"diverged": sorted(self.diverged)} if self.diverged else {})


def sweep(
    base: PrecisionConfig, variants: Sequence[Variant], seeds: Sequence[int], store: RunStore,
    callbacks: Callable[[], list[Callback]] = list, log: Log = print,
) -> bool:  # fmt: skip
    """Train what is not finished in `store`, resuming interrupted runs. One that diverges counts as finished; one in
    a compute type that the device has no unit for is left out.

    Arguments:
    - `base`: the settings that all trainings share.
    - `callbacks`: makes the callbacks of a training.

    Returns False after an interrupt.
    """
    known = index(store, base.device)
    configs = [(variant, variant.config(base, seed)) for seed in seeds for variant in variants]
    for number, (variant, config) in enumerate(configs, 1):
        run = known.get(PrecisionExperiment.training(config))
        if is_done(run):
            continue
        log(f"{number} of {len(configs)}: {variant.name}, seed {config.seed}")
        try:
            if run and can_go_on(run):
                results = PrecisionExperiment.resume(run.id, store, callbacks(), silent)
            else:
                results = PrecisionExperiment.start(config, store, callbacks(), silent)
        except NonFiniteError as error:
            log(f"  diverged: {error}")
            continue
        except PlanError as error:
            if config.compute == FLOAT:
                raise
            log(f"  left out: {error}")
            continue
        if results is None:
            return False
        log(f"  {results['accuracy']:.2%} after {results['seconds']:.1f} s")
    return True


def collect(
    base: PrecisionConfig, variants: Sequence[Variant], seeds: Sequence[int], store: RunStore
) -> list[VariantResult]:
    """The results of the variants that have finished or diverged trainings in `store`."""
    known, collected = index(store, base.device), []
    for variant in variants:
        runs = {
            seed: run for seed in seeds if (run := known.get(PrecisionExperiment.training(variant.config(base, seed))))
        }
        done = {seed: run.record for seed, run in runs.items() if is_done(run)}
        if done:
            accuracies = {seed: r["results"]["accuracy"] for seed, r in done.items() if r["status"] == "finished"}
            first = done[next(iter(accuracies or done))]
            diverged = tuple(seed for seed in done if seed not in accuracies)
            devices = tuple(dict.fromkeys(record["device"].get("name", "") for record in done.values()))
            collected.append(VariantResult(variant.name, accuracies, first["results"], devices, diverged))
    return collected


def device_names(results: Iterable[VariantResult]) -> str:
    """The names of all devices that the trainings ran on."""
    return ", ".join(dict.fromkeys(name for result in results for name in result.devices))


def index(store: RunStore, device: str | None) -> dict[str, Run]:
    """The newest run of each training, a finished one if there is one, by `Experiment.training`.

    Arguments:
    - `device`: part of the platform's and device's name (default: all devices).

    Runs with settings or tasks that are unknown here (of a newer version) are left out.
    """

    def training(run: Run) -> str | None:
        name = " / ".join(run.record["device"].get(part, "") for part in ("platform", "name"))  # as Device.id
        if (device or "").lower() not in name.lower():
            return None
        return PrecisionExperiment.training(PrecisionConfig.from_dict(run.config))

    return known_runs(store, PrecisionExperiment.kind, training)


def expected(task: str) -> list[VariantResult]:
    """The results kept in the package; none for a task that was not measured."""
    record = json.loads(EXPECTED.read_text())["tasks"].get(task, {"variants": {}})
    return [
        VariantResult(
            name, {int(seed): accuracy for seed, accuracy in entry["accuracies"].items()}, {}, (record["device"],),
            tuple(entry.get("diverged", ())),
        )
        for name, entry in record["variants"].items()
    ]  # fmt: skip
