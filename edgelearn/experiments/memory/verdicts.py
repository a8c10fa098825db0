"""Qualcomm's claim for MobileNet V2, taken apart into figures that can be checked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgelearn.device import Context, Device
from edgelearn.experiments.verdict import Verdict
from edgelearn.graph import Plan, Request, Session, account, make_plan
from edgelearn.graph.policies import invertible
from edgelearn.launch import Kernels
from edgelearn.models import mobilenet_v2, mobilenet_v2_reversible
from edgelearn.ops import SGD, pack

MB = 10**6
FRAMEWORK, STORED, TIMES, PEAK = 53.78, 4.19, 12.8, 20.0  # MB, MB, times less, MB
TOLERANCE = 1e-4  # of gradients


def check(device: Device) -> list[Verdict]:
    """Of MobileNet V2 1.0/224, batch 1, float32, BatchNorm with the batch's statistics: plans, and a training step of
    the reversible network that inverts beside one that keeps everything."""
    plain, twin = mobilenet_v2(), mobilenet_v2_reversible()
    request = Request(plain, optimizer=SGD(0.1), batchnorm="batch")
    keeping = replace(request, network=twin)
    plans = {
        "plain": make_plan(request, device),
        "kept": make_plan(keeping, device),
        "inverted": make_plan(replace(keeping, saving=invertible(twin)), device),
    }
    before, after = account(plans["plain"]), account(plans["inverted"])
    gradients, allocated = zip(*(_step(plans[name], device) for name in ("kept", "inverted")), strict=True)
    off = max(
        np.abs(gradients[1][name] - g).max() / max(np.abs(g).max(), np.finfo(np.float32).tiny)
        for name, g in gradients[0].items()
    )
    times = before.framework / after.stored
    sizes, flops = (
        [sum(p.weight.size for p in net.parameters.values()) for net in (plain, twin)],
        [sum(x.flops for x in plans[name].program("predict", 1).launches) for name in ("plain", "kept")],
    )
    planned = plans["inverted"].peak_bytes
    return [
        Verdict(
            f"The plain network's activations, as frameworks save them, are {FRAMEWORK} MB",
            f"{before.framework / MB:.2f} MB", round(before.framework / MB, 2) == FRAMEWORK,
        ),
        Verdict(
            f"Inverted, at most {STORED} MB are stored", f"{after.stored / MB:.2f} MB", after.stored <= STORED * MB
        ),
        Verdict(f"That is at least {TIMES} times less", f"{times:.1f} times", times >= TIMES),
        Verdict(f"With workspace at most {PEAK:.0f} MB", f"{after.peak / MB:.2f} MB", after.peak <= PEAK * MB),
        Verdict(f"Gradients are those of keeping all, within {TOLERANCE:g}", f"{off:.1e}", bool(off <= TOLERANCE)),
        Verdict("As much is allocated as was planned", f"{allocated[1]:,} of {planned:,}", allocated[1] == planned),
        Verdict("No parameter more or less", f"{sizes[1]:,} of {sizes[0]:,}", sizes[0] == sizes[1]),
        Verdict("No multiply-add more or less", f"{flops[1] // 2:,} of {flops[0] // 2:,}", flops[0] == flops[1]),
    ]  # fmt: skip


def _step(plan: Plan, device: Device) -> tuple[dict[str, np.ndarray], int]:
    """Gradients of a step from drawn weights and a drawn picture, and the bytes that were allocated."""
    network, context = plan.request.network, Context(device)
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (1, *network.input_shape)).astype(np.float32)
    session = Session(plan, context, Kernels(context))
    session.load(network.initialize(0))
    session.train([(pack(x, plan.program("predict", 1).x.block), np.array([7], np.int32))], 1, 0.0, 1)
    found = session.gradients(), context.ledger.peak
    session.close()
    return found
