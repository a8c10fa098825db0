"""Plans within a budget: as requested, or with the fastest ways back for activations that fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from edgelearn.compile.layout import lay_out
from edgelearn.compile.plan import Plan
from edgelearn.compile.request import Request
from edgelearn.device import Device
from edgelearn.errors import DeviceError, PlanError
from edgelearn.ops import BatchNormalization, Traits

from .budget import Budget, BudgetLike, budgets
from .launch_times import LaunchTimes
from .search import Search
from .strategies import Encoding


def make_plan(
    request: Request,
    device: Device,
    budget: BudgetLike | None = None,
    traits: Traits | None = None,
    costs: LaunchTimes | None = None,
    allow: Sequence[Encoding] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Plan training (with an optimizer), evaluation and prediction on `device`, for its `traits` unless others are
    given.

    Where a training that keeps all activations is over the `budget` (see `budgets`), and the request doesn't say
    which to store, the fastest combination of strategies that fits is searched for, by the `costs` of launches (by
    default `LaunchTimes.of(device)`). It consists of exact strategies that stay on the device, and of those in `allow`:
    Compress(Float16()), which is lossy, or Offload(). `progress` is called with a
    line for each plan that is tried. Which one is found doesn't depend on how busy the machine is.

    Raises PlanError for an impossible request or one that doesn't fit, naming what it needs, what would fit, and the
    least that is possible; DeviceError when the device cannot hold it; and PagingError. Nothing has been allocated or
    run by then.
    """
    if not (isinstance(allow, Sequence) and all(isinstance(way, Encoding) for way in allow)):
        raise PlanError(
            f"`allow` expects a list of extra strategies, such as [Compress(), Offload()], got {allow!r}. "
            f"Recompute and Invert are always allowed."
        )
    traits = traits or Traits.of(device)
    plan = lay_out(request, device, traits)
    if budget is not None:
        search = Search(plan, device, budgets(budget), costs, allow, progress)
        plan = search.found()
        if plan is None:
            raise PlanError(_refusal(search))
    if plan.peak_bytes > device.memory:
        raise DeviceError(
            f"The plan needs {plan.peak_bytes:,} bytes, but {device.id} has {device.memory:,}. "
            f"Use a smaller micro-batch (now {request.micro_batch}), train fewer layers, or choose another device."
        )
    role, size = max(plan.bytes_by_role.items(), key=lambda item: item[1])
    if size > device.largest_buffer:
        raise DeviceError(
            f"The plan needs {size:,} bytes of {role.value} in one piece, but {device.id} gives at most "
            f"{device.largest_buffer:,}. Use a smaller micro-batch (now {request.micro_batch})."
        )
    return plan


def _refusal(search: Search) -> str:
    """Why nothing fits, and what would."""
    request = search.first.request
    lines = [_shortfall(search, budget) for budget in search.budgets if not budget.fits(search.first)]
    if len(lines) > 1 and all(search.least(budget) <= budget.nbytes for budget in search.budgets):
        lines.append("Each can be met, but not all at once.")
    if request.optimizer is None:
        lines.append(f"Take fewer examples at a time (now {request.micro_batch}) or a smaller network.")
    elif request.micro_batch == 1:
        lines.append("Freeze more layers, use plain SGD (no optimizer state) or a smaller network.")
    else:
        lines.append(_one_at_a_time(search))
    return " ".join(lines) + f"\n{search.first}"


def _shortfall(search: Search, budget: Budget) -> str:
    need, least = budget.taken_by(search.first), search.least(budget)
    text = f"The plan needs {need:,} bytes, over the budget of {budget}."
    if least < need:
        text += f" Bringing activations back instead of keeping them, it would need {least:,} at least."
    return text


def _one_at_a_time(search: Search) -> str:
    """What a micro-batch of 1 would do."""
    request = search.first.request
    first = lay_out(replace(request, micro_batch=1), search.device, search.first.traits)
    one = Search(first, search.device, search.budgets, search.costs, search.allow, search.progress)
    found = one.found()
    sizes = [budget.taken_by(found) if found else one.least(budget) for budget in search.budgets]
    text = f"A micro-batch of 1 would need {' and '.join(f'{nbytes:,}' for nbytes in sizes)} bytes"
    if not found:
        return f"{text}, still too much. Freeze more layers, use plain SGD (no optimizer state) or a smaller network."
    if request.batchnorm == "batch" and any(
        isinstance(node.op, BatchNormalization) for node in request.network.nodes.values()
    ):
        text += ", but normalize each example by its own statistics, which is another training"
    return f"{text}."
