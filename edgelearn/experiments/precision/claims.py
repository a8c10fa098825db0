"""The published claims, checked against formula, counters, measured steps and trainings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgelearn.compile import Kind, Request, make_plan
from edgelearn.compile.accounting import stored
from edgelearn.compile.precision.formula import LayerTraffic, convolutions, layer_traffic, network_traffic
from edgelearn.device import Device
from edgelearn.experiments.claim import Claim
from edgelearn.graph import Network
from edgelearn.lab.runs import RunStore
from edgelearn.launch import Traffic
from edgelearn.models import ds_cnn, mobilenet_v1, mobilenet_v2, resnet18, vgg16
from edgelearn.ops import SGD
from edgelearn.runtime import Context, Kernels, Session

from .config import FLOAT, PrecisionConfig
from .sweep import VariantResult, collect
from .timing import VARIANTS, Times, time_steps
from .variants import variants

KIB = 1024
# Ends of the names of tensors with at most one number per channel: the formula leaves them out.
VECTORS = ("range", "ranges", "found", "statistics", "scale", "shift", "bias")
# The paper's figures (table 6 and section 5.3): layer (None: all convolutions), KiB static, KiB dynamic, share saved.
PUBLISHED: tuple[tuple[str, str | None, float | None, float | None, float], ...] = (
    ("ResNet-18", "conv2_block1_1_conv", 428.0, 1996.0, 0.786),
    ("MobileNet V2", "block_1_expand", None, None, 0.873),
    ("ResNet-18", None, None, None, 0.557),
    ("VGG16", None, None, None, 0.744),
    ("MobileNet V2", None, None, None, 0.774),
)

SEEDS = 3  # with fewer, a claim about accuracy is not measured
# (variant, reference, allowed percentage points below it)
ACCURACY = (
    ("everything, in-hindsight", "everything, current", 0.5),
    ("everything, in-hindsight", FLOAT, 1.0),
    ("everything, per-channel weights, in-hindsight", "everything, per-channel weights, current", 0.5),
    ("everything, per-channel weights, in-hindsight", FLOAT, 1.0),
)


def networks() -> dict[str, Network]:
    """The networks of the paper's cost tables."""
    return {"ResNet-18": resnet18(), "VGG16": vgg16(), "MobileNet V2": mobilenet_v2()}


def costs() -> list[Claim]:
    """The cost formula against the published figures, rounded as these are."""
    claims, built = [], networks()
    for name, layer, static, dynamic, share in PUBLISHED:
        cost: LayerTraffic = layer_traffic(built[name], layer) if layer else network_traffic(built[name])
        fits = round(cost.saved_share, 3) == share
        if static is not None:
            fits = fits and round(cost.static_bytes / KIB, 1) == static
            fits = fits and round(cost.dynamic_bytes / KIB, 1) == dynamic
        figures = f"{cost.static_bytes / KIB:,.1f} KiB static, {cost.dynamic_bytes / KIB:,.1f} KiB dynamic"
        claim = f"{name}, {layer or 'all convolutions'}: {share:.1%} less data moved"
        claims.append(Claim(claim, f"{cost.saved_share:.1%}: {figures}", fits))
    return claims


def counted(network: Network, observer: str, device: Device) -> dict[str, tuple[int, float]]:
    """(counted bytes, formula's bytes) for each convolution in a forward pass of one example on integers. Counted are
    the bytes that the layer's launches read and write, without VECTORS and without what a convolution that computes the
    sum behind it adds: a launch reads the layer's input first."""
    precision = PrecisionConfig(integers=True, observer=observer).precision
    plan = make_plan(Request(network, precision=precision, loss=None), device)
    moved: dict[str, int] = {}
    inputs: dict[tuple[str, str], str] = {}
    for (layer, kernel, tensor, direction), nbytes in Traffic.of(plan.program(Kind.PREDICT).micro).items():
        is_value = direction == "read" and tensor.endswith("activations")
        is_added = is_value and inputs.setdefault((layer, kernel), tensor) != tensor
        if not is_added and not tensor.endswith(VECTORS):
            moved[layer] = moved.get(layer, 0) + nbytes
    static = precision.observer.static
    costs = {layer: layer_traffic(network, layer) for layer in convolutions(network)}
    return {k: (moved[k], cost.static_bytes if static else cost.dynamic_bytes) for k, cost in costs.items()}


def counters(device: Device) -> list[Claim]:
    """The formula against the launches' declared traffic, layer by layer, for both kinds of ranges."""
    claims = []
    for name, network in networks().items():
        for observer, kind in (("in-hindsight", "static"), ("current", "dynamic")):
            pairs = counted(network, observer, device)
            padded = {layer for layer in pairs if _is_padded(network, layer)}
            same = sum(pairs[layer][0] == pairs[layer][1] for layer in pairs)
            measured = f"{same} of {len(pairs)} convolutions to the byte"
            if padded:
                more = sum(a for a, _ in pairs.values()) / sum(b for _, b in pairs.values()) - 1
                measured += f"; {len(padded)} have padded channels (to a multiple of 16): {more:.1%} more in all"
            claim = f"{name}, {kind}: counters agree with the formula"
            claims.append(Claim(claim, measured, same == len(pairs) - len(padded)))
    return claims


def _is_padded(network: Network, layer: str) -> bool:
    node = network.nodes[layer]
    ends = network.shape_of(node.inputs[0])[-1], node.shape[-1]
    return any(channels % 16 for channels in ends if channels > 3)


def steps(device: Device, batch: int = 4) -> list[Claim]:
    """Steps of a small network: traffic and memory are as predicted, int8 activations take a quarter of the bytes."""
    network = ds_cnn()
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
            predicted += plan.traffic(ranges=plan.ranges(Kind.TRAIN, session.ranges_known, step))
            session.train([(x, np.zeros(batch, np.int32))], batch, 0.01, step)
        traffic, allocated = session.traffic, session.allocated_bytes
    finally:
        session.close()
    saved = {name: sum(buffer.nbytes for buffer in stored(p.program(Kind.TRAIN))) for name, p in plans.items()}
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


def faster(times: Times, name: str = "in-hindsight", reference: str = "current") -> Claim:
    """A step with ranges in hindsight takes less time than with current ranges. Not measured if 1 lies within the
    middle half of the ratios."""
    middle, low, high = times.ratio(name, reference)
    claim = f"{times.network}, {times.examples} a step: {name} is faster than {reference}"
    measured = f"{middle:.3f} of its time (middle half {low:.3f} to {high:.3f})"
    return Claim(claim, measured, None if low < 1 < high else high <= 1)


def check(config: PrecisionConfig, seeds: Sequence[int], store: RunStore, device: Device) -> list[Claim]:
    """All claims: formula, counters, steps on `device`, and the task's finished trainings in `store`."""
    results = collect(config, variants(), seeds, store)
    times = time_steps(mobilenet_v1((96, 96, 3), 0.25, 5), device, 1, variants=("in-hindsight", "current"))
    trained = [accuracy(results, *claim) for claim in ACCURACY]
    return [*costs(), *counters(device), *steps(device), faster(times), *trained]


def accuracy(results: Sequence[VariantResult], name: str, reference: str, points: float) -> Claim:
    """A variant's mean accuracy is at most `points` percentage points below that of `reference`. Counted are seeds of
    both; not measured with fewer than SEEDS of them."""
    claim = f"'{name}': at most {points:g} points below '{reference}'"
    by_name = {result.variant: result for result in results}
    if name not in by_name or reference not in by_name:
        return Claim(claim, "not trained yet", None)
    variant, other = by_name[name], by_name[reference]
    if variant.diverged:
        return Claim(claim, f"diverged with seeds {', '.join(map(str, variant.diverged))}", False)
    seeds = sorted(set(variant.accuracies) & set(other.accuracies))
    if not seeds:
        return Claim(claim, "no seed of both is trained yet", None)
    mean, other_mean = (sum(result.accuracies[s] for s in seeds) / len(seeds) for result in (variant, other))
    below = 100 * (other_mean - mean)
    text = f"{-below:+.2f} points, mean of {len(seeds)} seeds ({mean:.2%} and {other_mean:.2%})"
    return Claim(claim, text, below <= points if len(seeds) >= SEEDS else None)
