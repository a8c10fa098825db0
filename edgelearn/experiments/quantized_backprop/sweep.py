"""Many trainings that differ in their precision and their seed alone, and what came of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from edgelearn.errors import NonFiniteError, RunError
from edgelearn.runs import Run, RunStore, mean_and_deviation
from edgelearn.train import Callback

from .config import ESTIMATORS, FLOAT, PrecisionConfig
from .job import PrecisionJob

SEEDS = (0, 1, 2)
EXPECTED = Path(__file__).parent / "expected.json"
# What is quantized to 8 bits in the three tables of the paper: gradients (1), activations (2), and everything (3).
PARTS = {
    "gradients": {"weights": FLOAT, "activations": FLOAT},
    "activations": {"weights": FLOAT, "gradients": FLOAT},
    "everything": {},
}


@dataclass(frozen=True)
class Arm:
    """A row of a comparison: a name, and what its configurations have in common."""

    name: str
    settings: dict

    def config(self, base: PrecisionConfig, seed: int) -> PrecisionConfig:
        return replace(base, **self.settings, seed=seed)


def arms() -> list[Arm]:
    """float32; each part quantized with each estimator; and everything, with a range for each channel of kernels, and
    with fewer bits for gradients."""
    few = "in-hindsight", "current"
    found = [Arm(FLOAT, dict.fromkeys(("weights", "activations", "gradients"), FLOAT))]
    for part, settings in PARTS.items():
        found += [Arm(f"{part}, {name}", settings | {"estimator": name}) for name in ESTIMATORS]
    found += [Arm(f"everything, per-channel weights, {name}", {"per_channel": True, "estimator": name}) for name in few]
    for bits in (6, 4):
        found += [Arm(f"gradients of {bits} bits, {name}", {"gradients": str(bits), "estimator": name}) for name in few]
    return found


def chosen(patterns: Sequence[str]) -> list[Arm]:
    """The arms whose names fit one of `patterns`, all without any. Raises RunError where a pattern fits none."""
    everything = arms()
    for pattern in patterns:
        if not any(fnmatchcase(arm.name, pattern) for arm in everything):
            raise RunError(f"No row is called '{pattern}'. There are: {'; '.join(arm.name for arm in everything)}.")
    return [arm for arm in everything if not patterns or any(fnmatchcase(arm.name, p) for p in patterns)]


@dataclass(frozen=True)
class Row:
    """What an arm's trainings came to: test accuracies by seed, the seeds that ended in a NaN or an infinity, the
    figures of the first finished one, and the names of the devices they ran on."""

    arm: str
    accuracies: dict[int, float]
    results: dict
    devices: tuple[str, ...]
    diverged: tuple[int, ...] = ()

    @property
    def device(self) -> str:
        return ", ".join(self.devices)

    @property
    def mean(self) -> float:
        return mean_and_deviation(list(self.accuracies.values()))[0]

    @property
    def deviation(self) -> float:
        return mean_and_deviation(list(self.accuracies.values()))[1]

    def to_dict(self) -> dict:
        """As expected.json has it."""
        found: dict = {"accuracies": {str(seed): value for seed, value in sorted(self.accuracies.items())}}
        return found | ({"diverged": sorted(self.diverged)} if self.diverged else {})


def sweep(
    base: PrecisionConfig, rows: Sequence[Arm], seeds: Sequence[int], store: RunStore,
    callbacks: Callable[[], list[Callback]] = list, say: Callable[[str], None] = print,
) -> bool:  # fmt: skip
    """Train whatever isn't finished in `store` yet, going on with what was interrupted; whether all is done now. A
    training that ends in a NaN or an infinity is done: it diverged."""
    known = index(store, base.device)
    configs = [(arm, arm.config(base, seed)) for seed in seeds for arm in rows]
    for number, (arm, config) in enumerate(configs, 1):
        found = known.get(key(config))
        if found and (found.status == "finished" or _diverged(found)):
            continue
        say(f"{number} of {len(configs)}: {arm.name}, seed {config.seed}")
        try:
            if found and found.status in ("interrupted", "failed") and found.has_checkpoint():
                results = PrecisionJob.resume(found.id, store, callbacks(), _quiet)
            else:
                results = PrecisionJob.start(config, store, callbacks(), _quiet)
        except NonFiniteError as error:
            say(f"  diverged: {error}")
            continue
        if results is None:
            return False
        say(f"  {results['accuracy']:.2%} after {results['seconds']:.1f} s")
    return True


def collect(base: PrecisionConfig, rows: Sequence[Arm], seeds: Sequence[int], store: RunStore) -> list[Row]:
    """A row for each arm that has trainings in `store` which finished or diverged."""
    known, found = index(store, base.device), []
    for arm in rows:
        runs = {seed: run for seed in seeds if (run := known.get(key(arm.config(base, seed))))}
        done = {seed: run.record for seed, run in runs.items() if run.status == "finished" or _diverged(run)}
        if done:
            accuracies = {seed: r["results"]["accuracy"] for seed, r in done.items() if r["status"] == "finished"}
            first = done[next(iter(accuracies or done))]
            diverged = tuple(seed for seed in done if seed not in accuracies)
            devices = tuple(dict.fromkeys(record["device"].get("name", "") for record in done.values()))
            found.append(Row(arm.name, accuracies, first["results"], devices, diverged))
    return found


def device_names(rows: Iterable[Row]) -> str:
    """All devices that trainings of `rows` ran on."""
    return ", ".join(dict.fromkeys(name for row in rows for name in row.devices))


def device_of(run: Run) -> str:
    """Platform and name, as Device.id has them."""
    return " / ".join(run.record["device"].get(part, "") for part in ("platform", "name"))


def _diverged(run: Run) -> bool:
    return run.status == "failed" and run.record["error"]["type"] == NonFiniteError.__name__


def key(config: PrecisionConfig) -> str:
    """The same for configurations that train the same: wherever the data lie, whatever the device is called, however
    far they are traced."""
    settings = PrecisionJob.resolve(config).to_dict()
    left_out = "data", "download", "trace", "device"
    return json.dumps({k: v for k, v in settings.items() if k not in left_out}, sort_keys=True)


def index(store: RunStore, device: str | None) -> dict[str, Run]:
    """The newest run of each configuration on devices with `device` in their names; a finished one if there is one.
    Runs of newer versions, whose configurations or tasks are unknown here, are of other trainings."""
    found: dict[str, Run] = {}
    for summary in store.list():
        if summary.kind == PrecisionJob.kind and summary.status != "damaged":
            run = store.open(summary.id)
            if (device or "").lower() not in device_of(run).lower():
                continue
            try:
                name = key(PrecisionConfig.from_dict(run.config))
            except RunError:
                continue
            if name not in found or (summary.status == "finished" != found[name].status):
                found[name] = run
    return found


def expected(task: str) -> list[Row]:
    """What the task's arms came to when this was written; none for a task that was not measured."""
    record = json.loads(EXPECTED.read_text())["tasks"].get(task, {"arms": {}})
    return [
        Row(
            name,
            {int(seed): share for seed, share in arm["accuracies"].items()},
            {},
            (record["device"],),
            tuple(arm.get("diverged", ())),
        )
        for name, arm in record["arms"].items()
    ]


def _quiet(text: str) -> None:
    pass
