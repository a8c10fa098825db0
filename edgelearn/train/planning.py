"""Ask the planner which combination of precision, activation memory, micro-batch and layers fits a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from edgelearn.compile import BudgetLike, Precision
from edgelearn.compile.memory import Encoding
from edgelearn.compile.planner import (
    Combination,
    CombinationPlanner,
    PlannedCombination,
    RefusedCombination,
    shares_of_layers,
)
from edgelearn.compile.search import budgets
from edgelearn.device import Device
from edgelearn.display import MB, Recorded, megabytes, plural
from edgelearn.errors import PlanError
from edgelearn.graph import Network
from edgelearn.ops import Loss, Losses, Optimizer
from edgelearn.runtime import launch_times
from edgelearn.tables import Table, Tabular

from .loading import NetworkLike, as_network, combined

PRECISIONS = ("fp32", "fp16", "int8")  # that are tried unless others are given


@dataclass(frozen=True, repr=False)
class Fitting(Tabular, Recorded):
    """The combinations that fit a budget.

    Arguments:
    - `network`: its name.
    - `batch_size`: examples of a mini-batch.
    - `budget`: the limits in words.
    - `combinations`: those that fit, the fastest first.
    - `refused`: precisions and layers with which nothing fits, the smallest first.
    - `times`: where the predicted times are from.
    - `floor`: device memory that no combination can be without, bytes: all weights in float32.
    - `untrained`: the weights were drawn, so that layers that aren't trained stay random (default False).
    - `int8_speed`: a sentence on the time of int8 on the device (default none).
    """

    network: str
    batch_size: int
    budget: str
    combinations: list[PlannedCombination]
    refused: list[RefusedCombination]
    times: str
    floor: int
    untrained: bool = False
    int8_speed: str = ""

    entries = (
        "network", "batch_size", "budget", "combinations", "largest_micro_batch", "refused", "refusal", "times",
    )  # fmt: skip

    @property
    def headline(self) -> str:
        return f"{plural(len(self.combinations), 'combination')} for '{self.network}' within {self.budget}"

    @property
    def best(self) -> PlannedCombination:
        """The fastest of those that are the training asked for; if there is none, of those that change least. Where
        weights were drawn, one that trains all layers comes before any that leaves layers random. Raises PlanError if
        nothing fits."""
        if not self.combinations:
            raise PlanError(self.refusal)
        return min(self.combinations, key=lambda each: (self._leaves_random(each), len(each.differs)))

    def _leaves_random(self, each: PlannedCombination) -> bool:
        return self.untrained and "layers" in each.differs

    @property
    def largest_micro_batch(self) -> int:
        """The largest micro-batch of all that fit; 0 if nothing does."""
        return max((each.plan.request.micro_batch for each in self.combinations), default=0)

    @property
    def refusal(self) -> str:
        """Why nothing fits, and what would; empty if something fits."""
        if self.combinations:
            return ""
        text = f"Nothing fits {self.budget} with mini-batches of {self.batch_size} of '{self.network}'."
        sized = [each for each in self.refused if each.nbytes]
        if sized:
            sizes = " and ".join(map(megabytes, sized[0].nbytes))
            text += f" The smallest is {sized[0].combination.name}, micro-batch 1: {sizes}."
        device = [limit for limit in budgets(self.budget) if limit.count == "device"]
        if device and device[0].nbytes < self.floor:
            text += (
                f" Its weights alone take {megabytes(self.floor)} on the device: use a smaller network, or limit "
                f"activations and workspace: '{megabytes(device[0].nbytes)} peak'."
            )
        return text

    def table(self) -> Table:
        """A row for each combination, and the notes."""
        header = (
            ("combination", "device MB", "peak MB", "process, predicted MB", "ms/step") if self.combinations else ()
        )
        return Table(header, [_row(each) for each in self.combinations], self.title, self.notes)

    @property
    def title(self) -> str:
        """The combination that was asked for."""
        return f"'{self.network}', mini-batches of {self.batch_size}, within {self.budget}"

    @property
    def notes(self) -> list[str]:
        """Lines below the table: what doesn't fit, and where times are from."""
        over = [f"Not within it: {each.combination.name}: {_reason(each)}" for each in self.refused]
        largest = [f"The largest micro-batch that fits is {self.largest_micro_batch}."] if self.combinations else []
        if any("BatchNorm" in each.differs for each in self.combinations):
            largest.append("Smaller micro-batches are another training: BatchNorm uses their statistics.")
        if self.combinations and self._leaves_random(self.best):
            largest.append(
                f"All that fits leaves layers untrained, and their weights are random: give '{self.network}' trained "
                f"weights first, or a larger budget."
            )
        integers = any(each.plan.request.precision.stores_integers for each in self.combinations)
        measured = [self.int8_speed] if integers and self.int8_speed else []
        return [*largest, *filter(None, [self.refusal]), *over, f"Times are predicted: {self.times}", *measured]


def plan_for(
    network: NetworkLike,
    budget: BudgetLike,
    batch_size: int = 32,
    *,
    precision: Sequence[str | Precision] = PRECISIONS,
    trained: Sequence[str | Sequence[str]] | None = None,
    optimizer: Optimizer | None = None,
    loss: Loss | Losses | None = None,
    batchnorm: str = "auto",
    allow: Sequence[Encoding] = (),
    device: str | Device | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Fitting:
    """Find the combinations of precision, activation memory, micro-batch and trained layers that fit a budget, the
    fastest first. Nothing is trained.

    >>> fitting = el.plan_for(network, "20 MB peak", batch_size=32, optimizer=el.SGD(0.01))
    >>> print(fitting)
    >>> model = el.combined(network, fitting.best.combination, el.SGD(0.01))
    >>> model.fit(x, y, batch_size=32, **fitting.best.combination.fit_arguments)

    Arguments:
    - `network`: a Network, a compiled Model, the name of one of el.models, a model file, or "MODULE:FUNCTION".
    - `budget`: "20 MB" of device memory, "20 MB peak" of activations and workspace, "8 MB stored", "80 MB
      process", or several.
    - `batch_size`: examples of a mini-batch (default 32).
    - `precision`: names (see `Combination`) or Precisions to try (default float32, half precision, 8 bits).
    - `trained`: choices of layers to train, see `Combination` (default: all that the network trains, the upper half of
      these layers, the last one).
    - `optimizer`, `loss`, `batchnorm`, `allow`: as in Model.compile (default: the model's; of a network, SGD()).
    - `device`: any part of a device's name, or a Device (default: the model's, else the best one).
    - `progress`: called with a line for each precision and choice of layers.

    Raises PlanError for settings that contradict each other; a budget that nothing fits gives a result that says so.
    """
    network = as_network(network)
    untrained = isinstance(network, Network) or network.untrained
    model = combined(network, Combination(), optimizer, loss, batchnorm=batchnorm, allow=allow, device=device)
    request = replace(model.settings, batch_size=batch_size, micro_batch=batch_size)
    request.check()
    times = launch_times(model.device, request.allow)
    planner = CombinationPlanner(request, model.device, budget, times, progress)
    chosen = shares_of_layers(model.network) if trained is None else trained
    found, refused = [], []
    for layers, name in product(chosen, precision):
        fitting, other = planner.plan(Combination(name, trained=layers))
        found, refused = found + fitting, refused + other
    found.sort(key=lambda each: each.seconds)
    refused.sort(key=lambda each: each.nbytes or (1 << 62,))
    floor = 4 * model.network.count()
    return Fitting(
        model.network.name,
        batch_size,
        planner.text,
        found,
        refused,
        times.origin,
        floor,
        untrained,
        model.device.int8_speed,
    )


def _row(each: PlannedCombination) -> tuple[str, ...]:
    sizes = (f"{size / MB:,.2f}" for size in (each.device_bytes, each.activation_bytes, each.plan.process_bytes))
    return (each.combination.name, *sizes, f"{each.seconds * 1e3:,.1f}")


def _reason(each: RefusedCombination) -> str:
    return f"{' and '.join(map(megabytes, each.nbytes))} with micro-batches of 1" if each.nbytes else each.reason
