"""Qualcomm's claim for MobileNet V2, as figures that can be checked: those of plans and single steps; times and the
memory of a process are in machine_claims.py, trainings in trained.py."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from edgelearn.compile import Kind, Plan, Request, account, make_plan
from edgelearn.compile.memory.policies import invertible
from edgelearn.device import Device
from edgelearn.experiments.claim import Claim
from edgelearn.graph import Network
from edgelearn.models import mobilenet_v2, mobilenet_v2_reversible, revnet, revnet38, revnet110, revnet164
from edgelearn.ops import SGD, pack
from edgelearn.runtime import Context, Kernels, Session

MB = 10**6
FRAMEWORK, NOT_IN_PLACE, CONV_INPUTS = 53.78, 78.20, 27.06  # MB of the plain network, by three definitions
# Published: 43 MB and 3.7 MB, 11 times less, without a definition. By FRAMEWORK's, two streams of full width take at
# most 4.19 MB, 12.8 times less, by their shapes. The peak is a bound of our own.
STORED, TIMES, PEAK = 4.19, 12.8, 20.0  # MB, times less, MB
TOLERANCE = 1e-4  # of gradients
MICRO_BATCHES = (1, 8)  # whose gradients are compared
GROWTH, PICTURES = 0.05, 32  # growth of stored bytes; with many images the statistics, which do grow, count little
BUDGET, SECONDS = "8 MB stored", 10.0  # the planner's time limit


def check(device: Device) -> list[Claim]:
    """Claims on MobileNet V2 1.0/224, batch 1 unless stated otherwise, float32, BatchNorm with batch statistics."""
    request = Request(mobilenet_v2(), optimizer=SGD(0.1), batchnorm="batch")
    twin = replace(request, network=mobilenet_v2_reversible())
    # Streams of RevNet-164's bottlenecks are four times as wide as those of 38 and 110: its reference has them, too.
    third = revnet("revnet56", 3, (32, 128, 256, 512), bottleneck=True)
    return [
        *_memory(make_plan(request, device), make_plan(_inverting(twin), device)),
        *(_gradients(replace(twin, batch_size=n, micro_batch=n), device) for n in MICRO_BATCHES),
        *_sizes(make_plan(request, device), make_plan(twin, device)),
        _depth(device, "RevNet-110 stores what RevNet-38 does", revnet38(), revnet110()),
        _depth(device, "RevNet-164 stores what a third of its units do", third, revnet164()),
        _planning(request, device),
    ]


def _inverting(request: Request) -> Request:
    return replace(request, activation_memory=invertible(request.network))


def _memory(plain: Plan, inverted: Plan) -> list[Claim]:
    before, after = account(plain), account(inverted)
    counted = [n / MB for n in (before.framework, before.framework_not_in_place, before.conv_inputs)]
    times = before.framework / after.stored
    return [
        Claim(
            f"Frameworks save {FRAMEWORK:.2f} MB of the plain network ({NOT_IN_PLACE:.2f} MB not in place), "
            f"{CONV_INPUTS:.2f} MB as inputs of convolutions",
            "{:.2f} MB ({:.2f} MB), {:.2f} MB".format(*counted),
            [round(n, 2) for n in counted] == [FRAMEWORK, NOT_IN_PLACE, CONV_INPUTS],
        ),
        Claim(
            f"Inverted, at most {STORED} MB are stored", f"{after.stored / MB:.2f} MB", after.stored <= STORED * MB
        ),
        Claim(f"That is at least {TIMES} times less", f"{times:.1f} times", times >= TIMES),
        Claim(f"With workspace at most {PEAK:.0f} MB", f"{after.peak / MB:.2f} MB", after.peak <= PEAK * MB),
    ]  # fmt: skip


def _gradients(request: Request, device: Device) -> Claim:
    """Gradients of a step that inverts, compared with one that stores everything, and its memory."""
    stored, inverted = make_plan(request, device), make_plan(_inverting(request), device)
    (expected, _), (actual, allocated) = _step(stored, device), _step(inverted, device)
    off = max(
        np.abs(actual[k] - g).max() / max(np.abs(g).max(), np.finfo(np.float32).tiny) for k, g in expected.items()
    )
    return Claim(
        f"Batch {request.batch_size}: gradients are those of storing all, within {TOLERANCE:g}; allocated as planned",
        f"{off:.1e}; {allocated:,} of {inverted.peak_bytes:,}",
        bool(off <= TOLERANCE) and allocated == inverted.peak_bytes,
    )


def _sizes(plain: Plan, twin: Plan) -> list[Claim]:
    plans = plain, twin
    sizes = [sum(p.weight.size for p in plan.request.network.parameters.values()) for plan in plans]
    flops = [sum(launch.flops for launch in plan.program(Kind.PREDICT, 1).launches) for plan in plans]
    return [
        Claim("No parameter more or less", f"{sizes[1]:,} of {sizes[0]:,}", sizes[0] == sizes[1]),
        Claim("No multiply-add more or less", f"{flops[1] // 2:,} of {flops[0] // 2:,}", flops[0] == flops[1]),
    ]


def _depth(device: Device, claim: str, shallow: Network, deep: Network) -> Claim:
    def of(network: Network) -> int:
        request = Request(network, PICTURES, PICTURES, SGD(0.1), "batch")
        return account(make_plan(_inverting(request), device)).stored

    few, many = of(shallow), of(deep)
    return Claim(
        f"{claim}, within {GROWTH:.0%} (batch {PICTURES})",
        f"{many / MB:.2f} MB and {few / MB:.2f} MB", abs(many / few - 1) <= GROWTH,
    )  # fmt: skip


def _planning(request: Request, device: Device) -> Claim:
    start = time.perf_counter()
    accounted = account(make_plan(request, device, BUDGET))
    seconds = time.perf_counter() - start
    return Claim(
        f"The planner finds a plan within {BUDGET} in under {SECONDS:.0f} s",
        f"{accounted.stored / MB:.2f} MB in {seconds:.1f} s", seconds < SECONDS,
    )  # fmt: skip


def _step(plan: Plan, device: Device) -> tuple[dict[str, np.ndarray], int]:
    """(gradients of a step from random weights and images, bytes allocated)"""
    request, context = plan.request, Context(device)
    network, n = request.network, request.batch_size
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (n, *network.input_shape)).astype(np.float32)
    labels = rng.integers(0, network.output.shape[-1], n).astype(np.int32)
    session = Session(plan, context, Kernels(context))
    session.load(network.initialize(0))
    session.train([(pack(x, plan.storage.input.block), labels)], n, 0.0, 1)
    result = session.gradients(), context.ledger.peak
    session.close()
    return result
