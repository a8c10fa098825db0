"""What fusions save: launches and bytes, by planning the step once more without each kind."""

from __future__ import annotations

from dataclasses import replace

from edgelearn.launch import Launch
from edgelearn.ops.emit import FUSIONS

from .lower import Lowering
from .page import Fusion
from .plan import Kind, Plan
from .storage import Storage


def fusions(plan: Plan) -> list[Fusion]:
    """What each kind of fusion saves in a step, alone: a step without it beside the plan's. Kinds that the plan's
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
