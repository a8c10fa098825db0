"""A slider over memory budgets: the plan within each, its timeline and predicted time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import ipywidgets

from edgelearn.compile import LaunchTimes, Plan, Request, account, make_plan
from edgelearn.compile.memory.budget import COUNTS
from edgelearn.device import Device
from edgelearn.errors import DeviceError, PlanError
from edgelearn.experiments.plan_figures import plot_timeline
from edgelearn.lab.runs import figures


class BudgetView(ipywidgets.VBox):
    """Plans a request within the budget that the slider chooses. Plans are kept in `plans`, by budget; None if no plan
    fits.

    Arguments:
    - `request`, `device`: the step to plan.
    - `sizes`: the budgets, megabytes (10^6).
    - `count`: what the budget limits: "stored", "peak" or "device" (see compile.memory.budget).
    - `costs`: predict the time (default: the device's).
    """

    def __init__(
        self, request: Request, device: Device, sizes: Sequence[int] = (64, 48, 32, 24, 16, 12, 8, 6, 4, 2),
        count: str = "stored", costs: LaunchTimes | None = None,
    ) -> None:  # fmt: skip
        self.request, self.device, self.costs = request, device, costs or LaunchTimes.of(device)
        self.plans: dict[str, Plan | None] = {}
        self._refusals: dict[str, str] = {}
        self._size = ipywidgets.SelectionSlider(
            options=[(f"{size} MB", size) for size in sizes], description="Budget", continuous_update=False
        )
        self._count = ipywidgets.Dropdown(options=list(COUNTS), value=count, description="of")
        self._status = ipywidgets.HTML()
        self._chart = ipywidgets.Image(format="png")
        super().__init__([ipywidgets.HBox([self._size, self._count]), self._status, self._chart])
        for control in (self._size, self._count):
            control.observe(self._moved, "value")
        self._moved({})

    @property
    def budget(self) -> str:
        """The chosen budget, as text."""
        return f"{self._size.value} MB {self._count.value}"

    @property
    def status(self) -> str:
        return self._status.value

    def _moved(self, change: dict) -> None:
        if self.budget not in self.plans:
            self._status.value = f"Planning within {self.budget} …"
            self.plans[self.budget] = self._planned()
        plan = self.plans[self.budget]
        if plan is None:
            words = escape(self._refusals[self.budget])
            self._status.value = f"<span style='color: {figures.ORANGE}'>{words}</span>"
            self._chart.layout.display = "none"  # an image without a picture is shown as a broken one
            return
        found = account(plan)
        self._status.value = (
            f"<b>{found.stored / 1e6:.2f} MB stored</b>, {found.peak / 1e6:.2f} MB at the peak, "
            f"{plan.peak_bytes / 1e6:.2f} MB of device memory in all; a step is predicted to take "
            f"<b>{self.costs.step(plan) * 1e3:.1f} ms</b> ({escape(self.costs.origin)})"
        )
        self._chart.value = figures.to_png(plot_timeline(plan, f"Budget: {self.budget}"))
        self._chart.layout.display = None

    def _planned(self) -> Plan | None:
        try:
            return make_plan(self.request, self.device, self.budget, launch_times=self.costs)
        except (PlanError, DeviceError) as error:
            self._refusals[self.budget] = str(error).splitlines()[0]
            return None
