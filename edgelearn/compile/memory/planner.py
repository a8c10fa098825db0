"""Make a plan within a budget: as requested, or with the fastest strategies for activations that fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgelearn.compile.layout import Layout
from edgelearn.compile.plan import Plan
from edgelearn.compile.request import Request
from edgelearn.device import Device
from edgelearn.errors import DeviceError, PlanError
from edgelearn.ops import Traits
from edgelearn.units import megabytes

from .budget import BudgetLike, budgets
from .launch_times import LaunchTimes
from .refusal import refusal
from .search import Search
from .strategies import Encoding


def make_plan(
    request: Request,
    device: Device,
    budget: BudgetLike | None = None,
    traits: Traits | None = None,
    launch_times: LaunchTimes | None = None,
    allow: Sequence[Encoding] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Plan training (with an optimizer), evaluation and prediction. Nothing is allocated or run.

    If a training that stores all activations is over the budget, and the request names no strategies, the planner
    searches for the fastest combination that fits: of exact strategies that stay on the device, and of those in
    `allow`. The result doesn't depend on how busy the machine is.

    Arguments:
    - `request`: what to plan.
    - `device`: where it will run.
    - `budget`: limits such as "60 MB", "20 MB peak" or "8 MB stored, 20 MB peak" (see `Budget`); default: none.
    - `traits`: what the choice of kernels depends on; default: the device's.
    - `launch_times`: by which strategies are compared; default: `LaunchTimes.of(device)`.
    - `allow`: extra strategies, such as `Compress(Float16())`, which is approximate, or `Offload()` (default none).
    - `progress`: called with a line for each plan that is tried.

    Raises PlanError for an impossible request, or if nothing fits, naming the smallest possible plan, the largest
    micro-batch that fits and the nearest other combination that does; DeviceError if the device can't hold the plan.
    """
    if not (isinstance(allow, Sequence) and all(isinstance(strategy, Encoding) for strategy in allow)):
        raise PlanError(
            f"`allow` expects a list of extra strategies, such as [Compress(), Offload()], got {allow!r}. "
            f"Recompute and Invert are always allowed."
        )
    traits = traits or Traits.of(device)
    layout = Layout(request, device, traits)
    plan = layout.plan
    if budget is not None:
        search = Search(layout, budgets(budget), launch_times, allow, progress)
        fitting = search.run()
        if fitting is None:
            raise PlanError(refusal(search))
        plan = fitting
    _check_device(plan, device)
    return plan


def _check_device(plan: Plan, device: Device) -> None:
    remedy = f"Use a smaller micro-batch (now {plan.request.micro_batch}), train fewer layers, or another device."
    if plan.peak_bytes > device.memory:
        raise DeviceError(
            f"The plan needs {megabytes(plan.peak_bytes)}, but {device.id} has {megabytes(device.memory)}. {remedy}"
        )
    role, size = max(plan.bytes_by_role.items(), key=lambda item: item[1])
    if size > device.largest_buffer:
        raise DeviceError(
            f"The plan needs {megabytes(size)} of {role.value} in one buffer, but {device.id} gives at most "
            f"{megabytes(device.largest_buffer)}. {remedy}"
        )
