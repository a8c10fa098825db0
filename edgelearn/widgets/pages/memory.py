"""Training in less memory: the claim, the plans, budgets, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgelearn.compile import LaunchTimes, Plan, Request, account
from edgelearn.compile.policies import invertible
from edgelearn.errors import EdgelearnError
from edgelearn.experiments import memory_plans
from edgelearn.experiments.claims import Verdicts, check_claims
from edgelearn.experiments.memory import PLAN_CLAIMS, MemoryConfig, MemoryExperiment, MobileNets
from edgelearn.experiments.memory_plans import named_plan, plans_to_measure, plot_timeline
from edgelearn.lab.profile import measure_launches
from edgelearn.lab.runs import RunStore
from edgelearn.lab.runs.tradeoff import Tradeoff
from edgelearn.models import named_network
from edgelearn.ops import SGD
from edgelearn.runtime import choose_device
from edgelearn.tables import Table
from edgelearn.train import Model, WatchReconstruction
from edgelearn.widgets.pictures import Waiting, plot_reconstruction
from edgelearn.widgets.views import BudgetView

from .shown import Shown, tradeoff

SIZES = (64, 32, 16, 8, 4)  # MB of stored activations


def memory_claims(device: str | None = None) -> Verdicts:
    """Check Qualcomm's claim on MobileNet V2 point by point, by plans of this device.

    Arguments:
    - `device`: part of a device's name (default: the best one).
    """
    with Waiting("Checking the claim"):
        return check_claims(PLAN_CLAIMS, lambda: MobileNets(choose_device(device).device))


def memory(
    policies: Sequence[str] = ("keep_all", "checkpoints"), task: str = "thicket", seeds: Sequence[int] = (0,),
    store: RunStore | str | None = None, **settings: Any,
) -> Tradeoff:  # fmt: skip
    """Train a task with each policy for the activation memory; show accuracy, memory and time.

    Arguments:
    - `policies`: see `edgelearn memory train --activation-memory`.
    - `task`: see `edgelearn memory train` (default "thicket").
    - `seeds`: a training of each with each (default one, 0).
    - `store`: a RunStore or its folder (default: that of the commands).
    - `settings`: others of MemoryConfig, such as `epochs`.
    """
    configs = {
        name: [MemoryConfig(task, activation_memory=name, seed=seed, **settings) for seed in seeds] for name in policies
    }
    return tradeoff(MemoryExperiment, configs, store)


def reconstruction(depth: int = 110, examples: int = 4, device: str | None = None) -> Shown:
    """Invert every block of a RevNet, with and without streams that are rounded to multiples of 2⁻¹⁶, and draw the
    errors.

    Arguments:
    - `depth`: of the RevNet: 38, 110 or 164 (default 110).
    - `examples`: of the one step (default 4).
    - `device`: part of a device's name (default: the best one).
    """
    rng = np.random.default_rng(0)
    pictures, labels = rng.standard_normal((examples, 32, 32, 3)), rng.integers(0, 10, examples)
    watches = {"multiples of 2⁻¹⁶": WatchReconstruction(), "plain floats": WatchReconstruction()}
    for watch, step in zip(watches.values(), (2**-16, 0), strict=True):
        model = Model(named_network(f"revnet{depth}", step=step), device=device).compile(
            SGD(0.01), batchnorm="batch", activation_memory=invertible
        )
        with Waiting("Compiling, and one step", model.device):
            model.fit(pictures, labels, batch_size=examples, callbacks=[watch], verbose=0)
    return Shown(f"Errors of inverted activations of RevNet-{depth}", plot_reconstruction(watches))


class Planned(Shown):
    """A plan, accounted for, and its memory over a step.

    - `plan`: the Plan.
    """

    def __init__(self, plan: Plan, title: str) -> None:
        self.plan = plan
        found = account(plan)
        line = f"{title}: {found.stored / 1e6:.2f} MB stored, {found.peak / 1e6:.2f} MB at the peak"
        super().__init__(line, f"{line}.", plot_timeline(plan, title))


def plan(name: str = "keep_all", network: str = "mobilenet_v2", device: str | None = None) -> Planned:
    """Plan a step of one example by a policy or a budget, such as "invertible" or "8 MB stored".

    Arguments:
    - `network`: the name of one of el.models.
    - `device`: part of a device's name (default: the best one).
    """
    with Waiting("Planning"):
        return Planned(named_plan(name, named_network(network), choose_device(device).device), name)


def budget(network: str = "mobilenet_v2", rounds: int = 5, device: str | None = None) -> BudgetView:
    """A slider for the budget: plan, timeline and predicted time follow. The times of launches are measured first.

    Arguments:
    - `network`: the name of one of el.models.
    - `rounds`: of the measurement (default 5).
    - `device`: part of a device's name (default: the best one).
    """
    chosen, graph = choose_device(device).device, named_network(network)
    try:
        with Waiting("Measuring launches", chosen):
            measure_launches(list(plans_to_measure(graph, chosen).values()), chosen, rounds=rounds)
    except EdgelearnError:  # a busy machine: earlier times are used, or an estimate; the view says which
        pass
    view = BudgetView(Request(graph, optimizer=SGD(0.01), batchnorm="batch"), chosen, costs=LaunchTimes.of(chosen))
    with Waiting("Planning"):
        view.wait()  # a saved notebook shows a plan
    return view


def budgets(sizes: Sequence[int] = SIZES, network: str = "mobilenet_v2", device: str | None = None) -> Table:
    """Plan a step within each budget for stored activations.

    Arguments:
    - `sizes`: MB.
    - `network`: the name of one of el.models.
    - `device`: part of a device's name (default: the best one).
    """
    chosen, graph, rows = choose_device(device).device, named_network(network), []
    costs = LaunchTimes.of(chosen)
    with Waiting("Planning") as say:
        for each in sizes:
            say(f"Planning within {each} MB")
            made = named_plan(f"{each} MB stored", graph, chosen)
            found = account(made)
            rows.append((f"{each} MB", f"{found.stored / 1e6:.2f}", f"{found.peak / 1e6:.2f}",
                         f"{costs.step(made) * 1e3:.1f}"))  # fmt: skip
    return Table(("budget", "stored (MB)", "peak (MB)", "a step, predicted (ms)"), rows)


def time_against_memory(
    plans: Sequence[str] = ("keep_all", "checkpoints", "invertible", "32 MB stored", "8 MB stored"),
    network: str = "mobilenet_v2", rounds: int = 5,
) -> Shown:  # fmt: skip
    """Measure steps of one example by each plan, in processes that take turns.

    Arguments:
    - `plans`: policies and budgets.
    - `network`: the name of one of el.models.
    - `rounds`: of the measurement (default 5).
    """
    with Waiting("Measuring", choose_device().device) as say:
        measured = memory_plans.compare(network, plans, rounds=rounds, attempts=1, progress=say)
    return Shown(f"{len(measured)} plans of {network}", memory_plans.plot(measured), memory_plans.table(measured))
