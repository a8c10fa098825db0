"""Make plans within a budget, say why none fits, find combinations of settings that do, and say what fusions save."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

from edgelearn.device import Device
from edgelearn.display import Recorded, megabytes
from edgelearn.errors import DeviceError, PlanError
from edgelearn.graph import Network, reversible
from edgelearn.graph.rewrites import invertible_streams
from edgelearn.launch import Launch
from edgelearn.ops import BatchNormalization, LinearOp, Traits
from edgelearn.ops.emit import FUSIONS

from .lower import Layout, Lowering
from .memory import Encoding
from .page import Fusion
from .plan import Kind, Plan, account
from .policies import POLICIES, keep_all
from .precision import KINDS, PRECISIONS, Precision, named_precision
from .request import Policy, Request
from .search import Budget, BudgetLike, LaunchTimes, Search, budgets
from .storage import Storage

FROM = "from "  # before the name of the first layer that is trained


@dataclass(frozen=True)
class Combination:
    """Settings in which trainings of one network differ: precision, activation memory, micro-batch and trained layers.

    Arguments:
    - `precision`: "fp32" (default), "fp16", "int8" (see `named_precision`), or a Precision.
    - `activation_memory`: name of a policy, such as "checkpoints", or a policy; or a budget that the planner meets,
      such as "8 MB stored" (default "keep_all", as None). "invertible" makes couplings of residual blocks.
    - `micro_batch`: examples that are on the device at once (default None: the mini-batch).
    - `trained`: patterns of the layers to train, such as ("dense", "*/gamma"), or ("from LAYER",), that layer and those
      after it (default (): the network's own).

    Raises PlanError for values of other types; others are checked when they are used, with a PlanError.
    """

    precision: str | Precision = "fp32"
    activation_memory: str | Policy = "keep_all"
    micro_batch: int | None = None
    trained: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        trained = (self.trained,) if isinstance(self.trained, str) else tuple(self.trained or ())
        object.__setattr__(self, "trained", trained)
        if self.activation_memory is None:
            object.__setattr__(self, "activation_memory", "keep_all")
        if not isinstance(self.activation_memory, str) and not hasattr(self.activation_memory, "__qualname__"):
            raise PlanError(
                f"activation_memory is the name of a policy ({', '.join(POLICIES)}), a function of a network, or a "
                f"budget such as '8 MB stored', not {self.activation_memory!r:.60}."
            )

    @classmethod
    def of(cls, value: Combination | Mapping[str, Any]) -> Combination:
        """A combination, or one of a dictionary of its arguments. Raises PlanError for other arguments."""
        if isinstance(value, cls):
            return value
        known = [field.name for field in fields(cls)]
        given: dict[Any, Any] = dict(value) if isinstance(value, Mapping) else {str(value): None}
        if unknown := [name for name in given if name not in known]:
            raise PlanError(f"A combination is a dictionary of {', '.join(known)}, not of {unknown[0]!r:.60}.")
        return cls(**given)

    @classmethod
    def product(cls, **values: Sequence[Any]) -> list[Combination]:
        """All combinations of values of the arguments.

        >>> Combination.product(precision=("fp32", "int8"), micro_batch=(32, 8))
        """
        return [cls.of(dict(zip(values, chosen, strict=True))) for chosen in product(*values.values())]

    @property
    def name(self) -> str:
        """The combination in a few words."""
        parts = [self.precision if isinstance(self.precision, str) else _formats(self.precision)]
        if self.activation_memory not in ("keep_all", keep_all):
            parts.append(str(self.to_dict()["activation_memory"]))
        if self.micro_batch is not None:
            parts.append(f"micro-batch {self.micro_batch}")
        if self.trained:
            parts.append(f"trained {', '.join(self.trained)}")
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """JSON values, equal for equal combinations; runs record them."""
        memory, precision = self.activation_memory, self.precision
        return {
            "precision": precision.to_json() if isinstance(precision, Precision) else precision,
            "activation_memory": memory if isinstance(memory, str) else f"{memory.__module__}:{memory.__qualname__}",
            "micro_batch": self.micro_batch,
            "trained": list(self.trained),
        }

    @property
    def formats(self) -> Precision:
        """The precision as the plan takes it. Raises PlanError for an unknown name."""
        return named_precision(self.precision)

    @property
    def policy(self) -> Policy:
        """The policy; of a budget that which stores everything, from which the planner starts. Raises PlanError for
        text that is neither."""
        if not isinstance(self.activation_memory, str):
            return self.activation_memory
        if policy := POLICIES.get(self.activation_memory):
            return policy
        _ = self.budget
        return keep_all

    @property
    def budget(self) -> str | None:
        """The budget, if the activation memory is one. Raises PlanError for text that is neither."""
        memory = self.activation_memory
        if not isinstance(memory, str) or memory in POLICIES:
            return None
        try:
            budgets(memory)
        except PlanError:
            raise PlanError(
                f"activation_memory is {', '.join(POLICIES)}, a policy, or a budget such as '8 MB stored', not "
                f"{memory!r}."
            ) from None
        return memory

    @property
    def fit_arguments(self) -> dict[str, Any]:
        """The arguments of Model.fit and Model.plan that it chooses: `micro_batch` and `budget`."""
        return {"micro_batch": self.micro_batch, "budget": self.budget}

    def network(self, network: Network) -> Network:
        """A copy of `network` that trains its layers, with couplings where the policy inverts them. Raises PlanError
        for a pattern without a match, or where nothing can be coupled."""
        if self.activation_memory == "invertible" and not invertible_streams(network)[1]:
            network = reversible(network)
        copy = network.copy()
        if self.trained:
            copy.freeze()
            for pattern in self.trained:
                copy.unfreeze(*(layers_from(copy, pattern) if pattern.startswith(FROM) else [pattern]))
        return copy


def layers_from(network: Network, pattern: str) -> list[str]:
    """Names of the parameters of the layers that "from LAYER" means. Raises PlanError for an unknown layer."""
    first, names = pattern.removeprefix(FROM), list(network.nodes)
    if first not in network.nodes:
        raise PlanError(f"'{pattern}': '{network.name}' has no layer '{first}'. It has: {', '.join(names)}.")
    behind = set(names[names.index(first) :])
    return [name for name, parameter in network.parameters.items() if parameter.layer in behind]


def shares_of_layers(network: Network) -> list[tuple[str, ...]]:
    """Values of `trained` from most to fewest layers: all that the network trains, the upper half, the last."""
    trained = (p.layer for name, p in network.parameters.items() if name in network.trainable)
    layers = [name for name in dict.fromkeys(trained) if isinstance(network.nodes[name].op, LinearOp)]
    starts = dict.fromkeys([layers[len(layers) // 2], layers[-1]]) if len(layers) > 1 else {}
    return [(), *((f"{FROM}{name}",) for name in starts)]


def _formats(precision: Precision) -> str:
    """The formats of a precision without a name, in a few words."""
    formats = {kind: getattr(precision, kind) for kind in KINDS}
    return ", ".join(f"{kind} {fmt}" for kind, fmt in formats.items() if fmt) or "fp32"


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
    - `allow`: extra strategies, such as `Compress(Float16())`, which is approximate, or `Offload()` (default: those of
      the request).
    - `progress`: called with a line for each plan that is tried.

    Raises PlanError for an impossible request, or if nothing fits, naming the smallest possible plan, the largest
    micro-batch that fits and the nearest other combination that does; DeviceError if the device can't hold the plan.
    """
    allow = allow or request.allow
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


@dataclass(frozen=True)
class PlannedCombination(Recorded):
    """A combination that fits.

    Arguments:
    - `combination`: the settings.
    - `plan`: of its training step; every byte.
    - `seconds`: predicted for a step, that is for one update from a mini-batch.
    - `differs`: what makes it another training than the one asked for: "precision", "layers", "BatchNorm"; none if only
      memory and time differ.
    """

    combination: Combination
    plan: Plan
    seconds: float
    differs: tuple[str, ...] = ()

    entries = (
        "combination", "device_bytes", "peak_bytes: activation_bytes", "process_bytes: plan.process_bytes", "seconds",
        "differs",
    )  # fmt: skip

    @property
    def device_bytes(self) -> int:
        """All device memory of the plan."""
        return self.plan.peak_bytes

    @property
    def activation_bytes(self) -> int:
        """Activations and workspace at their fullest moment, and the input: what a "peak" budget limits."""
        return account(self.plan).peak


@dataclass(frozen=True)
class RefusedCombination(Recorded):
    """A precision and trained layers with which no micro-batch fits.

    Arguments:
    - `combination`: the settings.
    - `reason`: why.
    - `nbytes`: the fewest bytes found, for each limit of the budget; none if no plan can be made.
    """

    combination: Combination
    reason: str
    nbytes: tuple[int, ...] = ()

    entries = "combination", "bytes: nbytes", "reason"


class CombinationPlanner:
    """Plans combinations of one training within a budget.

    For each precision and each choice of layers there are at most two: everything stored, with the largest micro-batch
    that fits so; and the fastest strategies for activations with the largest micro-batch that fits at all.
    Micro-batches are halves of the mini-batch, its quarters and so on, so that all are equal.

    Arguments:
    - `request`: the training as it should be: whole mini-batch, everything stored.
    - `device`: where it will run.
    - `budget`: limits, as in `make_plan`.
    - `launch_times`: by which times are predicted.
    - `progress`: called with a line for each combination (default: nothing).
    """

    def __init__(
        self, request: Request, device: Device, budget: BudgetLike, launch_times: LaunchTimes,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:  # fmt: skip
        self.request, self.device, self.limits = request, device, budgets(budget)
        self.text = budget if isinstance(budget, str) else ", ".join(f"{b.nbytes} {b.count}" for b in self.limits)
        self.times, self.progress, self.traits = launch_times, progress, Traits.of(device)

    def plan(self, asked: Combination) -> tuple[list[PlannedCombination], list[RefusedCombination]]:
        """Plans with the precision and the trained layers of `asked`, or why there are none."""
        self.progress(asked.name)
        try:
            network = asked.network(self.request.network)
            request = replace(self.request, network=network, precision=asked.formats)
            search = Search(
                Layout(request, self.device, self.traits), self.limits, self.times, request.allow,
                lambda text: None,
            )  # fmt: skip
        except PlanError as error:
            return [], [RefusedCombination(asked, str(error).splitlines()[0])]
        searches = {size: search if size == request.micro_batch else None for size in self._sizes}

        def at(size: int) -> Search:
            found = searches[size] = searches[size] or search.with_micro_batch(size)
            return found

        stored = self._largest(at, lambda found: found.stores_all, lambda found: [found.first])
        largest = self._largest(at, Search.is_feasible, lambda found: found.tried, stored)
        found = []
        if stored:
            found.append(self._planned(asked, "keep_all", at(stored), at(stored).first))
        if largest and largest != stored:
            plan = at(largest).run()
            found += [self._planned(asked, self.text, at(largest), plan)] if plan else []
        if found:
            return found, []
        one = at(self._sizes[-1])
        sizes = tuple(one.smallest(limit) for limit in self.limits)
        return [], [RefusedCombination(asked, "too large", sizes)]

    @property
    def _sizes(self) -> list[int]:
        """Micro-batches, largest first."""
        sizes = [self.request.micro_batch]
        while sizes[-1] % 2 == 0 and not self.request.losses.ordered:
            sizes.append(sizes[-1] // 2)
        return sizes if sizes[-1] == 1 or self.request.losses.ordered else [*sizes, 1]

    def _largest(
        self, at: Callable[[int], Search], fits: Callable[[Search], bool], plans: Callable[[Search], list[Plan]],
        known: int = 0,
    ) -> int:  # fmt: skip
        """The largest of the sizes of which a search `fits`; `known` does, or is 0. `plans`: those that were tried."""
        most = self._sizes[0]
        for size in self._sizes:
            if size <= known:
                return known
            if size <= most:
                search = at(size)
                if fits(search):
                    return size
                most = min(most, search.most_examples(plans(search)))
        return known

    def _planned(self, asked: Combination, memory: str, search: Search, plan: Plan) -> PlannedCombination:
        size = plan.request.micro_batch
        other_size = size != self.request.micro_batch
        differs = {
            "precision": plan.request.precision != self.request.precision and plan.request.precision != Precision(),
            "layers": plan.request.trainable != self.request.trainable,
            "BatchNorm": other_size and batch_statistics(search),
        }
        combination = replace(asked, activation_memory=memory, micro_batch=size if other_size else None)
        return PlannedCombination(combination, plan, self.times.step(plan), tuple(k for k, v in differs.items() if v))


# -- fusions -----------------------------------------------------------------------------------------------------------


def fusions(plan: Plan) -> list[Fusion]:
    """Savings of each kind of fusion in a step, alone: a step without it beside the plan's. Kinds that the plan's
    request leaves out, and those that change nothing, are not listed."""
    found: list[Fusion] = []
    launches, nbytes = _size(plan.step_launches)
    for kind, description in FUSIONS.items():
        if kind not in plan.request.unfused:
            more, moved = _size(_step_without(plan, kind))
            if (more, moved) != (launches, nbytes):
                found.append(Fusion(kind, description, more - launches, moved - nbytes))
    return found


def _step_without(plan: Plan, kind: str) -> list[Launch]:
    request = plan.request.without(kind)
    storage = Storage(request, plan.alignment, plan.traits.bare)
    step = Kind.PREDICT if request.optimizer is None else Kind.TRAIN
    # In the order of the plan: its first program decides how many partial sums there are.
    programs = {key: Lowering(request, storage, plan.traits, key).program for key in plan.programs if key.kind is step}
    return replace(plan, request=request, storage=storage, programs=programs).step_launches


def _size(launches: list[Launch]) -> tuple[int, int]:
    return len(launches), sum(launch.nbytes for launch in launches)
