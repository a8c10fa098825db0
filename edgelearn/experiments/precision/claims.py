"""Qualcomm's claim, taken apart into figures that can be checked, each with what it was held against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgelearn.compile import Request, make_plan
from edgelearn.compile.accounting import stored
from edgelearn.compile.precision.formula import LayerTraffic, convolutions, layer_traffic, network_traffic
from edgelearn.device import Device
from edgelearn.experiments.claim import Claim
from edgelearn.graph import Network
from edgelearn.lab.runs import RunStore
from edgelearn.launch import Traffic
from edgelearn.models import mobilenet_v1, mobilenet_v2, resnet18, vgg16
from edgelearn.ops import SGD
from edgelearn.runtime import Context, Kernels, Session

from .config import FLOAT, PrecisionConfig
from .sweep import Row, arms, collect
from .timing import VARIANTS, Times, time_steps

KIB = 1024
# Tensors with a number for each channel, or fewer, by the ends of their names: the formula leaves them out.
VECTORS = ("range", "ranges", "found", "statistics", "scale", "shift", "bias")
# The paper's figures (table 6 and section 5.3): layer (None: all convolutions), KiB static, KiB dynamic, share saved.
PUBLISHED: tuple[tuple[str, str | None, float | None, float | None, float], ...] = (
    ("ResNet-18", "conv2_block1_1_conv", 428.0, 1996.0, 0.786),
    ("MobileNet V2", "block_1_expand", None, None, 0.873),
    ("ResNet-18", None, None, None, 0.557),
    ("VGG16", None, None, None, 0.744),
    ("MobileNet V2", None, None, None, 0.774),
)

SEEDS = 3  # fewer don't settle a claim about accuracy
# Rows, what they are held against, and how many points below that is near enough.
ACCURACY = (
    ("everything, in-hindsight", "everything, current", 0.5),
    ("everything, in-hindsight", FLOAT, 1.0),
    ("everything, per-channel weights, in-hindsight", "everything, per-channel weights, current", 0.5),
    ("everything, per-channel weights, in-hindsight", FLOAT, 1.0),
)


def networks() -> dict[str, Network]:
    """The networks of the paper's tables of costs."""
    return {"ResNet-18": resnet18(), "VGG16": vgg16(), "MobileNet V2": mobilenet_v2()}


def costs() -> list[Claim]:
    """The cost formula against the published figures, as precisely as these are given."""
    found, built = [], networks()
    for name, layer, static, dynamic, share in PUBLISHED:
        cost: LayerTraffic = layer_traffic(built[name], layer) if layer else network_traffic(built[name])
        fits = round(cost.saved_share, 3) == share
        if static is not None:
            fits = fits and round(cost.static_bytes / KIB, 1) == static
            fits = fits and round(cost.dynamic_bytes / KIB, 1) == dynamic
        figures = f"{cost.static_bytes / KIB:,.1f} KiB static, {cost.dynamic_bytes / KIB:,.1f} KiB dynamic"
        claim = f"{name}, {layer or 'all convolutions'}: {share:.1%} less data moved"
        found.append(Claim(claim, f"{cost.saved_share:.1%}: {figures}", fits))
    return found


def counted(network: Network, observer: str, device: Device) -> dict[str, tuple[int, float]]:
    """(bytes counted, bytes of the formula) for each convolution of a forward pass of one example on integers: what the
    launches of the layer read and write, but for vectors."""
    precision = PrecisionConfig(integers=True, observer=observer).precision
    plan = make_plan(Request(network, precision=precision, loss=None), device)
    moved: dict[str, int] = {}
    for (layer, _, tensor, _), nbytes in Traffic.of(plan.program(plan.kind("predict"), 1).micro).items():
        if not tensor.endswith(VECTORS):
            moved[layer] = moved.get(layer, 0) + nbytes
    static = precision.observer.static
    costs = {layer: layer_traffic(network, layer) for layer in convolutions(network)}
    return {k: (moved[k], cost.static_bytes if static else cost.dynamic_bytes) for k, cost in costs.items()}


def counters(device: Device) -> list[Claim]:
    """The formula against what launches declare, layer by layer, for both kinds of ranges."""
    found = []
    for name, network in networks().items():
        for observer, kind in (("in-hindsight", "static"), ("current", "dynamic")):
            pairs = counted(network, observer, device)
            padded = {layer for layer in pairs if _is_padded(network, layer)}
            same = sum(pairs[layer][0] == pairs[layer][1] for layer in pairs)
            measured = f"{same} of {len(pairs)} convolutions to the byte"
            if padded:
                more = sum(a for a, _ in pairs.values()) / sum(b for _, b in pairs.values()) - 1
                measured += f"; {len(padded)} have channels that memory pads to 16s: {more:.1%} more in all"
            claim = f"{name}, {kind}: counters agree with the formula"
            found.append(Claim(claim, measured, same == len(pairs) - len(padded)))
    return found


def _is_padded(network: Network, layer: str) -> bool:
    node = network.nodes[layer]
    ends = network.shape_of(node.inputs[0])[-1], node.shape[-1]
    return any(channels % 16 for channels in ends if channels > 3)


def steps(device: Device, batch: int = 4) -> list[Claim]:
    """Steps of a small network: traffic and memory as predicted, and activations saved in a quarter of the bytes."""
    network = mobilenet_v1((96, 96, 3), 0.25, 5)
    plans = {}
    for name, config in (("int8", PrecisionConfig(integers=True)), (FLOAT, VARIANTS[FLOAT])):
        request = Request(network, batch, batch, SGD(0.01), precision=config.precision)
        plans[name] = make_plan(request, device)
    plan, context = plans["int8"], Context(device)
    session = Session(plan, context, Kernels(context))
    try:
        session.load(network.initialize(0))
        x = np.zeros(plan.storage.input.buffer.nbytes // 4, np.float32)
        predicted = Traffic()
        for step in (1, 2):
            predicted += plan.traffic(kind=plan.kind("train", session.ranges_known, step))
            session.train([(x, np.zeros(batch, np.int32))], batch, 0.01, step)
        traffic, allocated = session.traffic, session.allocated_bytes
    finally:
        session.close()
    saved = {name: sum(buffer.nbytes for buffer in stored(p.program("train", batch))) for name, p in plans.items()}
    counted, expected = sum(traffic.values()), sum(predicted.values())
    return [
        Claim("Bytes that a step moves are as predicted", f"{counted:,} and {expected:,}", traffic == predicted),
        Claim("Memory is as planned", f"{allocated:,} and {plan.peak_bytes:,}", allocated == plan.peak_bytes),
        Claim(
            "Saved activations of an int8 plan are a quarter of fp32's",
            f"{saved['int8']:,} of {saved[FLOAT]:,} bytes: {saved['int8'] / saved[FLOAT]:.1%}",
            4 * saved["int8"] <= saved[FLOAT],
        ),
    ]


def faster(times: Times, lane: str = "in-hindsight", share_with: str = "current") -> Claim:
    """Whether the ratio of times is below 1; open where its middle half is on both sides."""
    middle, low, high = times.ratio(lane, share_with)
    holds = None if low < 1 < high else high <= 1
    claim = f"{times.network}, {times.examples} a step: {lane} is faster than {share_with}"
    return Claim(claim, f"{middle:.3f} of its time (middle half {low:.3f} to {high:.3f})", holds)


def check(config: PrecisionConfig, seeds: Sequence[int], store: RunStore, device: Device) -> list[Claim]:
    """All of it: formula, counters, steps on `device`, and the task's finished trainings in `store`."""
    rows = collect(config, arms(), seeds, store)
    times = time_steps(mobilenet_v1((96, 96, 3), 0.25, 5), device, 1, variants=("in-hindsight", "current"))
    trained = [accuracy(rows, *claim) for claim in ACCURACY]
    return [*costs(), *counters(device), *steps(device), faster(times), *trained]


def accuracy(rows: Sequence[Row], arm: str, share_with: str, points: float) -> Claim:
    """Whether trainings of the row `arm` end at most so many percentage points below those of the row `beside`; open
    with fewer than SEEDS seeds of both."""
    by_arm = {row.arm: row for row in rows}
    claim = f"'{arm}': at most {points:g} points below '{share_with}'"
    found, other = by_arm.get(arm), by_arm.get(share_with)
    if found is None or other is None:
        return Claim(claim, "not trained yet", None)
    if found.diverged:
        return Claim(claim, f"diverged with seeds {', '.join(map(str, found.diverged))}", False)
    seeds = sorted(set(found.accuracies) & set(other.accuracies))
    if not seeds:
        return Claim(claim, "no seed of both is trained yet", None)
    mean, beside_mean = (sum(row.accuracies[s] for s in seeds) / len(seeds) for row in (found, other))
    below = 100 * (beside_mean - mean)
    text = f"{-below:+.2f} points, mean of {len(seeds)} seeds ({mean:.2%} and {beside_mean:.2%})"
    return Claim(claim, text, below <= points if len(seeds) >= SEEDS else None)
