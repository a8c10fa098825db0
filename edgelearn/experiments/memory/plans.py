"""Named plans: training steps of the same network by policy, precision or budget, and PyTorch's two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any

from edgelearn.compile import Compress, Offload, Plan, Request, make_plan
from edgelearn.compile.memory.policies import POLICIES, find_policy
from edgelearn.compile.memory.strategies import Encoding
from edgelearn.compile.precision.named import named_precision
from edgelearn.device import Device
from edgelearn.errors import PlanError, UsageError
from edgelearn.extensions import is_reference
from edgelearn.graph import Network, reversible
from edgelearn.ops import SGD, Float16
from edgelearn.runtime import launch_times

PRECISIONS = {f"{name} saved": named_precision(name) for name in ("fp16", "int8")}
ALLOWED = {"halves": Compress(Float16()), "compressed": Compress(), "paged": Offload()}  # within a budget
REVERSIBLE = "keep_all, reversible"  # the reference of "invertible": the same network
COUPLED = (REVERSIBLE, "invertible")  # plans of the network with its residual blocks as couplings
TORCH = ("torch", "torch, checkpointed")
BUDGETS = tuple(f"{size} MB stored" for size in (64, 48, 32, 24, 16, 8, 4))
MEASURED = ("keep_all", "checkpoints", "nested", *COUPLED)  # together they have all launches in float32
PLANS = (*POLICIES, REVERSIBLE, *PRECISIONS, *BUDGETS, *TORCH)


def named_plan(
    name: str,
    network: Network,
    device: Device,
    examples: int = 1,
    batchnorm: str = "batch",
    allow: Sequence[Encoding] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """The plan of a training step.

    Arguments:
    - `name`: a policy, a precision, a budget such as "8 MB stored", or MODULE:NAME of a policy or an Encoding.
      "invertible" couples the network's residual
      blocks, and so does "keep_all, reversible", which stores everything.
    - `examples`: of a step.
    - `batchnorm`: "batch" or "moving".
    - `allow`: extra strategies that the planner may choose within a budget.
    - `progress`: called with a line for each plan that the planner tries.

    Raises UsageError for another name, PlanError where nothing fits, or nothing can be coupled.
    """
    settings: dict[str, Any] = {
        "batch_size": examples, "micro_batch": examples, "optimizer": SGD(0.01), "batchnorm": batchnorm
    }  # fmt: skip
    if name in COUPLED:
        network = reversible(network)
    if policy := POLICIES.get("keep_all" if name == REVERSIBLE else name):
        return make_plan(Request(network, **settings, activation_memory=policy(network)), device)
    if is_reference(name):
        return make_plan(Request(network, **settings, activation_memory=find_policy(name)(network)), device)
    if name in PRECISIONS:
        return make_plan(Request(network, **settings, precision=PRECISIONS[name]), device)
    if name.endswith(("stored", "peak", "device")):
        times = launch_times(device, allow) if allow else None
        return make_plan(Request(network, **settings), device, name, launch_times=times, allow=allow, progress=progress)
    raise UsageError(f"There is no plan '{name}'. Choose {', '.join(PLANS)}; or a budget such as '6 MB stored'.")


def plans_to_measure(network: Network, device: Device, examples: int = 1) -> dict[str, Plan]:
    """Plans whose launches together are those of all plans in float32, by name: trainings, and a prediction; those of
    couplings where the network has blocks for them."""
    plans = {"prediction": make_plan(Request(network, examples, examples), device)}
    for name in MEASURED:
        with suppress(PlanError) if name in COUPLED else nullcontext():
            plans[name] = named_plan(name, network, device, examples)
    return plans
