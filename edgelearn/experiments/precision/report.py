"""Results as tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from edgelearn.compile.precision.formula import LayerTraffic, convolutions, layer_traffic, network_traffic
from edgelearn.device import Device
from edgelearn.device.units import first_of
from edgelearn.display import Displayed
from edgelearn.errors import RunError
from edgelearn.extensions import check_name
from edgelearn.graph import Network
from edgelearn.lab.runs import RunStore, figures, interval, mean_and_deviation
from edgelearn.lab.statistics import quartiles
from edgelearn.units import MB

from .config import FLOAT, PrecisionConfig
from .sweep import VariantResult, collect, device_names, expected
from .tasks import TASKS
from .timing import COMPUTE, VARIANTS, Times, time_steps
from .variants import Variant

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KIB = 1 << 10  # as in the paper's tables
HEADER = (
    "quantized", "test accuracy ± 95 %", "seeds", "below fp32", "expected", "planned", "allocated", "process",
    "moved/step",
)  # fmt: skip
TIME_HEADER = ("step", "ms", "middle half", "to current", "planned MB", "moved MB")
COST_HEADER = ("convolution", "weights", "input", "output", "static", "dynamic", "saved")


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """The finished trainings of a task.

    Arguments:
    - `config`: the settings that they share.
    - `results`: one for each variant that was trained.
    """

    config: PrecisionConfig
    results: list[VariantResult]

    @property
    def headline(self) -> str:
        return f"of {len(self.results)} variants on '{self.config.task}'"

    @classmethod
    def of(
        cls, config: PrecisionConfig, variants: Sequence[Variant], seeds: Sequence[int], store: RunStore
    ) -> Comparison:
        """Collect the trainings in `store`. Raises RunError if there is none."""
        results = collect(config, variants, seeds, store)
        if not results:
            raise RunError(
                f"No training of '{config.task}' with these settings is finished in {store.root}. Train with "
                f"'edgelearn precision sweep' and the same options."
            )
        return cls(config, results)

    @property
    def title(self) -> str:
        return f"{self.config.task}, {device_names(self.results)}"

    def cells(self) -> list[tuple[str, ...]]:
        """Rows under HEADER, with the expected accuracies if the number of epochs is the task's."""
        usual = self.config.epochs in (None, TASKS[self.config.task].epochs)
        return cells(self.results, expected(self.config.task) if usual else ())

    def to_dict(self, command: str) -> dict:
        """The task's entry in expected.json. `command`: the command that makes it."""
        entry = {"device": device_names(self.results), "date": f"{date.today()}", "command": command}
        return {"tasks": {self.config.task: entry | {"variants": {r.variant: r.to_dict() for r in self.results}}}}


def cells(results: Sequence[VariantResult], expected: Sequence[VariantResult] = ()) -> list[tuple[str, ...]]:
    """Rows under HEADER: mean and 95 % interval over seeds in percent, memory in MB, MB that a step moves."""
    reference = next((result for result in results if result.variant == FLOAT), None)
    known = {result.variant: result for result in expected}
    return [_cells(result, reference, known.get(result.variant)) for result in results]


def _cells(result: VariantResult, reference: VariantResult | None, expected: VariantResult | None) -> tuple[str, ...]:
    below = []
    if reference is not None and reference is not result:
        seeds = set(result.accuracies) & set(reference.accuracies)
        below = [100 * (reference.accuracies[seed] - result.accuracies[seed]) for seed in seeds]
    memory, traffic = result.results.get("memory", {}), result.results.get("traffic")
    return (
        result.variant,
        spread(list(result.accuracies.values())) if result.accuracies else "",
        str(len(result.accuracies)) + (f", {len(result.diverged)} diverged" if result.diverged else ""),
        f"{mean_and_deviation(below)[0]:+.2f}" if below else "",
        spread(list(expected.accuracies.values())) if expected else "",
        *(f"{memory[name] / MB:,.1f}" if memory else "" for name in ("planned", "allocated", "process")),
        f"{traffic / MB:,.0f}" if traffic else "",
    )


def spread(accuracies: Sequence[float]) -> str:
    """ "81.23 ± 0.45" percent: mean and Student's 95 % interval over the seeds; of one seed its value."""
    if len(accuracies) == 1:
        return f"{100 * accuracies[0]:.2f}"
    found = interval(accuracies)
    return f"{100 * found.mean:.2f} ± {100 * found.margin:.2f}"


def plot(results: Sequence[VariantResult], path: str | Path | None = None) -> Figure:
    """Draw test accuracies: a line for each variant, a dot for each seed, a bar for the mean."""
    accuracies = {result.variant: list(result.accuracies.values()) for result in results if result.accuracies}
    return figures.plot_spread(accuracies, "Test accuracy (%)", path)


def time_precisions(
    network: Network, device: Device, examples: int, batchnorm: str, rounds: int, steps: int,
    only: Sequence[str] | None = None,
) -> Times:  # fmt: skip
    """Time training steps in each of timing.VARIANTS and the compute types that the device has units for, or those that
    `only` names. Raises UsageError for another name."""
    known = [*VARIANTS, *COMPUTE]
    for name in only or ():
        check_name(name, known, "variant")
    possible = [name for name in known if name in VARIANTS or first_of(device.units, name)]
    return time_steps(network, device, examples, batchnorm, rounds, steps, variants=only or possible)


def time_cells(times: Times) -> list[tuple[str, ...]]:
    """Rows under TIME_HEADER: median and middle half over rounds, also of the ratio to the step with current ranges."""
    rows = []
    for name, seconds in times.seconds.items():
        reference = "integers, current" if name.startswith("integers") else "current"
        ratio = ""
        if name.endswith("in-hindsight") and reference in times.seconds:
            ratio = "{:.3f} ({:.3f} – {:.3f})".format(*times.ratio(name, reference))
        sizes = (f"{nbytes[name] / MB:,.1f}" for nbytes in (times.peaks, times.traffic))
        low, middle, high = (f"{1e3 * value:.2f}" for value in quartiles(seconds))
        rows.append((name, middle, f"{low} – {high}", ratio, *sizes))
    return rows


def time_title(times: Times, batchnorm: str) -> str:
    """Return two lines that say which network, batch and steps were measured."""
    examples, rounds, steps = (
        f"{count} {what}{'s' * (count > 1)}"
        for count, what in ((times.examples, "example"), (times.rounds, "round"), (times.steps, "step"))
    )
    return (
        f"{times.network}, training steps of {examples}, {batchnorm} BatchNorm statistics, on {times.device}\n"
        f"Median and middle half of {rounds}, in each of which every precision takes {steps} in turn"
    )


def cost_cells(network: Network) -> list[tuple[str, ...]]:
    """Rows under COST_HEADER: KiB of each convolution by the formula, and of all."""
    traffic = {name: layer_traffic(network, name) for name in convolutions(network)}
    return [_cost_cells(*item) for item in (*traffic.items(), ("all", network_traffic(network)))]


def _cost_cells(name: str, traffic: LayerTraffic) -> tuple[str, ...]:
    sizes = traffic.weights / 8, traffic.inputs / 8, traffic.outputs / 8, traffic.static_bytes, traffic.dynamic_bytes
    return name, *(f"{size / KIB:,.1f}" for size in sizes), f"{traffic.saved_share:.1%}"
