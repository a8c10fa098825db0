"""What is compared: plans for the same network, and PyTorch's two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress

from edgelearn.compile import Compress, Offload, Plan, Precision, Request, make_plan
from edgelearn.compile.memory.policies import POLICIES
from edgelearn.compile.memory.strategies import Encoding
from edgelearn.device import Device
from edgelearn.errors import PlanError, RunError
from edgelearn.graph import Network, reversible
from edgelearn.ops import SGD
from edgelearn.ops.formats import Float16, Format
from edgelearn.ops.observers import InHindsightMinMax
from edgelearn.runtime import launch_times

PRECISIONS = {
    "fp16 saved": Precision(activations=Float16(), norm_inputs=Float16(), simulated=False),
    "int8 saved": Precision(
        Format(8, symmetric=True), Format(8), Format(8, rounding="stochastic"), InHindsightMinMax(), simulated=False,
        norm_inputs=Format(8),
    ),
}  # fmt: skip
ALLOWED = {
    "halves": Compress(Float16()),
    "compressed": Compress(),
    "paged": Offload(),
}  # within a budget, where allowed
TWIN = "keep_all, reversible"  # what "invertible" is held against
TORCH = ("torch", "torch, checkpointed")
BUDGETS = tuple(f"{size} MB stored" for size in (64, 48, 32, 24, 16, 8, 4))
COUPLED = (TWIN, "invertible")
MEASURED = ("keep_all", "checkpoints", "nested", *COUPLED)  # together all launches in float32
LANES = (*POLICIES, TWIN, *PRECISIONS, *BUDGETS, *TORCH)


def lane_plan(
    lane: str,
    network: Network,
    device: Device,
    examples: int = 1,
    batchnorm: str = "batch",
    allow: Sequence[Encoding] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """The plan of a training step in this lane: that of a policy, of a precision, or within a budget, for which the
    planner may choose the strategies in `allow`, too; `progress` is called with a line for each plan that it tries.
    "invertible" couples the network's residual blocks, and so does TWIN, which keeps everything. Raises RunError for
    another lane, PlanError where nothing fits, or nothing can be coupled."""
    request = {"batch_size": examples, "micro_batch": examples, "optimizer": SGD(0.01), "batchnorm": batchnorm}
    if lane in COUPLED:
        network = reversible(network)
    if policy := POLICIES.get("keep_all" if lane == TWIN else lane):
        return make_plan(Request(network, **request, activation_memory=policy(network)), device)
    if lane in PRECISIONS:
        return make_plan(Request(network, **request, precision=PRECISIONS[lane]), device)
    if lane.endswith(("stored", "peak", "device")):
        times = launch_times(device, allow) if allow else None
        return make_plan(Request(network, **request), device, lane, launch_times=times, allow=allow, progress=progress)
    raise RunError(f"'{lane}' is no lane: choose {', '.join(LANES)}, or another budget such as '6 MB stored'.")


def plans_to_measure(network: Network, device: Device, examples: int = 1) -> dict[str, Plan]:
    """What tells the costs of launches of all lanes in float32 (see profile.launches.measure_costs), by lane:
    trainings, and a prediction; those of couplings where the network has blocks for them."""
    plans = {"prediction": make_plan(Request(network, examples, examples), device)}
    for lane in MEASURED:
        with suppress(PlanError) if lane in COUPLED else nullcontext():
            plans[lane] = lane_plan(lane, network, device, examples)
    return plans
