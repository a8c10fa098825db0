"""Make a plan within a budget: as requested, or with the fastest strategies for activations that fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgelearn.compile.layout import lay_out
from edgelearn.compile.plan import Plan
from edgelearn.compile.request import Request
from edgelearn.device import Device
from edgelearn.errors import DeviceError, PlanError
from edgelearn.ops import BatchNormalization, Traits
from edgelearn.units import megabytes

from .budget import Budget, BudgetLike, budgets
from .launch_times import LaunchTimes
from .search import Search
from .strategies import Encoding

SMALLER = "Freeze more layers, use plain SGD (no optimizer state) or a smaller network."


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

    Raises PlanError for an impossible request, or if nothing fits, naming the smallest possible plan and the largest
    micro-batch that fits; DeviceError if the device can't hold the plan.
    """
    if not (isinstance(allow, Sequence) and all(isinstance(strategy, Encoding) for strategy in allow)):
        raise PlanError(
            f"`allow` expects a list of extra strategies, such as [Compress(), Offload()], got {allow!r}. "
            f"Recompute and Invert are always allowed."
        )
    traits = traits or Traits.of(device)
    plan = lay_out(request, device, traits)
    if budget is not None:
        search = Search(plan, device, budgets(budget), launch_times, allow, progress)
        fitting = search.run()
        if fitting is None:
            raise PlanError(_refusal(search))
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


def _refusal(search: Search) -> str:
    """Why nothing fits, the smallest plan, and the largest micro-batch that fits."""
    request = search.first.request
    over = [budget for budget in search.budgets if not budget.fits(search.first)]
    lines = [_shortfall(search, budget) for budget in over]
    if len(over) > 1 and all(search.smallest(budget) <= budget.nbytes for budget in search.budgets):
        lines.append("Each limit can be met, but not all at once.")
    if request.optimizer is None:
        lines.append(f"Take fewer examples at a time (now {request.micro_batch}), or a smaller network.")
    elif request.micro_batch > 1 and not request.losses.ordered:
        lines.append(_smaller_micro_batch(search))
    else:
        lines.append(SMALLER)
    return " ".join(lines) + f"\n{search.first}"


def _shortfall(search: Search, budget: Budget) -> str:
    need, smallest = budget.used_by(search.first), search.smallest(budget)
    text = f"The plan needs {megabytes(need)}, over the budget of {budget}."
    if smallest < need:
        text += f" With other strategies for activations, the smallest possible is {megabytes(smallest)}."
    return text


def _smaller_micro_batch(search: Search) -> str:
    """The largest micro-batch that fits, by bisection: smaller ones take less."""
    request = search.first.request
    one = search.with_micro_batch(1)
    if not one.is_feasible():
        sizes = " and ".join(f"{megabytes(one.smallest(b))} {b.count}" for b in search.budgets)
        return f"Even a micro-batch of 1 needs {sizes}. {SMALLER}"
    fits, over = 1, request.micro_batch
    while over - fits > 1:
        middle = (fits + over) // 2
        if search.with_micro_batch(middle).is_feasible():
            fits = middle
        else:
            over = middle
    text = f"The largest micro-batch that fits is {fits} (now {request.micro_batch})"
    norms = any(isinstance(node.op, BatchNormalization) for node in request.network.nodes.values())
    if request.batchnorm == "batch" and norms:
        text += "; BatchNorm would use the statistics of so few examples, which is another training"
    return f"{text}."
