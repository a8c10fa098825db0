"""Why nothing fits a budget, and what would: the smallest plan, the largest micro-batch, the nearest combination."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from edgelearn.compile.combination import Combination, shares_of_layers
from edgelearn.compile.precision.named import PRECISIONS
from edgelearn.compile.precision.precision import Precision
from edgelearn.errors import PlanError
from edgelearn.ops import BatchNormalization
from edgelearn.units import megabytes

from .budget import Budget
from .search import Search

SMALLER = "Freeze more layers, use plain SGD (no optimizer state) or a smaller network."


def refusal(search: Search) -> str:
    """The error of a search that found nothing."""
    request = search.first.request
    over = [budget for budget in search.budgets if not budget.fits(search.first)]
    lines = [_shortfall(search, budget) for budget in over]
    if len(over) > 1 and all(search.smallest(budget) <= budget.nbytes for budget in search.budgets):
        lines.append("Each limit can be met, but not all at once.")
    if request.optimizer is None:
        lines.append(f"Take fewer examples at a time (now {request.micro_batch}), or a smaller network.")
    elif request.micro_batch > 1 and not request.losses.ordered:
        lines += [_smaller_micro_batch(search), _other(search)]
    else:
        lines += [_other(search) or SMALLER]
    return " ".join(filter(None, lines)) + f"\n{search.first}"


def largest_micro_batch(search: Search) -> int:
    """The largest micro-batch of which a plan fits, up to that of the search, by bisection: smaller ones take less.
    0 if none fits, or a loss of whole episodes doesn't fit whole."""
    size = search.first.request.micro_batch
    if search.is_feasible():
        return size
    if size == 1 or search.first.request.losses.ordered or not search.with_micro_batch(1).is_feasible():
        return 0
    most, over = 1, min(size, search.most_examples(search.tried) + 1)
    while over - most > 1:
        middle = (most + over) // 2
        if _fits(search.with_micro_batch(middle)):
            most = middle
        else:
            over = middle
    return most


def batch_statistics(search: Search) -> bool:
    """True if another micro-batch is another training, since BatchNorm uses its statistics."""
    request = search.first.request
    norms = any(isinstance(node.op, BatchNormalization) for node in request.network.nodes.values())
    return request.batchnorm == "batch" and norms


def _shortfall(search: Search, budget: Budget) -> str:
    need, smallest = budget.used_by(search.first), search.smallest(budget)
    text = f"The plan needs {megabytes(need)}, over the budget of {budget}."
    if smallest < need:
        text += f" With other strategies for activations, the smallest possible is {megabytes(smallest)}."
    return text


def _smaller_micro_batch(search: Search) -> str:
    request, largest = search.first.request, largest_micro_batch(search)
    if not largest:
        one = search.with_micro_batch(1)
        sizes = " and ".join(f"{megabytes(one.smallest(b))} {b.count}" for b in search.budgets)
        return f"Even a micro-batch of 1 needs {sizes}. {SMALLER}"
    text = f"The largest micro-batch that fits is {largest} (now {request.micro_batch})"
    if batch_statistics(search):
        text += "; BatchNorm would use the statistics of so few examples, which is another training"
    return f"{text}."


def _fits(search: Search) -> bool:
    """True if a plan fits. No plan is tried where a single launch uses more than a budget."""
    return not search.is_hopeless and search.is_feasible()


def _other(search: Search) -> str:
    """The nearest combination of precision, trained layers and micro-batch that fits, as a sentence; none is empty."""
    for combination, micro_batch in _others(search):
        request, network = search.first.request, combination.network(search.first.request.network)
        with suppress(PlanError):  # a precision that this network can't have
            other = replace(request, network=network, precision=combination.formats, micro_batch=micro_batch)
            if _fits(search.with_request(other)):
                size = f", micro-batch {micro_batch}" if micro_batch < request.micro_batch else ""
                return f"What fits: {combination.name}{size}."
    return ""


def _others(search: Search) -> Iterator[tuple[Combination, int]]:
    """Combinations that take less, those that change least first, each with a micro-batch."""
    request = search.first.request
    lower = list(PRECISIONS)[1:] if request.precision == Precision() else []
    last = shares_of_layers(request.network)[1:]
    own = Combination(precision=request.precision)
    for name in lower:
        yield Combination(name), request.micro_batch
    for trained in last:
        yield Combination(own.precision, trained=trained), request.micro_batch
    if lower and last:
        yield Combination(lower[-1], trained=last[-1]), request.micro_batch
    if not request.losses.ordered:
        yield Combination(lower[-1] if lower else own.precision), 1
        yield Combination(lower[-1] if lower else own.precision, trained=last[-1] if last else ()), 1
