"""Speed: next to other frameworks, by number format, next to the device's limits, and on devices that are not here."""

from __future__ import annotations

from collections.abc import Sequence

from edgelearn.experiments import precision_claims
from edgelearn.lab.bench.report import draw_chart, report_parts
from edgelearn.lab.bench.run import BenchConfig, run
from edgelearn.lab.bench.workloads import Workload
from edgelearn.lab.profile import plot, profile, project
from edgelearn.lab.profile.show import projection_parts, roofline_parts
from edgelearn.models import named_network
from edgelearn.ops import SGD
from edgelearn.runtime import choose_device
from edgelearn.tables import Table
from edgelearn.train import Model
from edgelearn.widgets.pictures import Waiting

from .shown import Shown, Text

VARIANTS = ["edgelearn", "torch channels_last", "keras function"]


def speed(
    workloads: Sequence[str], contenders: Sequence[str] = ("edgelearn", "torch", "keras"), rounds: int = 5
) -> Shown:
    """Measure workloads next to other frameworks, in processes that take turns.

    Arguments:
    - `workloads`: see `edgelearn bench --list`.
    - `contenders`: those that aren't installed are left out.
    - `rounds`: of the measurement (default 5).
    """
    config = BenchConfig(rounds=rounds, block_seconds=0.1, attempts=1)
    with Waiting("Measuring", choose_device().device) as say:
        report = run(
            [Workload.parse(each) for each in workloads], list(contenders), VARIANTS, config=config, progress=say
        )
    return Shown(repr(report), draw_chart(report), *report_parts(report))


def formats(network: str = "mobilenet_v1", rounds: int = 5, device: str | None = None) -> Table:
    """Time training steps of one example in each number format that the device has units for, or simulates.

    Arguments:
    - `network`: the name of one of el.models.
    - `rounds`: of the measurement (default 5).
    - `device`: part of a device's name (default: the best one).
    """
    chosen = choose_device(device).device
    with Waiting("Compiling kernels and timing steps", chosen):
        times = precision_claims.time_precisions(named_network(network), chosen, 1, "batch", rounds=rounds, steps=2)
    return precision_claims.time_table(times)


def _plan(network: str, device: str | None = None):
    return Model(named_network(network), device=device).compile(SGD(0.003)).plan(batch_size=1)


def roofline(network: str = "mobilenet_v1", rounds: int = 5, device: str | None = None) -> Shown:
    """Time each launch of a training step of one example, next to the limits of the device, which are measured as well.
    Arguments as of `formats`."""
    with Waiting("Measuring the limits of the device, then each launch", choose_device(device).device):
        found = profile(_plan(network, device), device, name="training step", rounds=rounds)
    return Shown(repr(found), plot(found), *roofline_parts(found))


def phones(network: str = "mobilenet_v1") -> Shown:
    """Predict a training step of one example on devices that are not here, from their published figures; with the
    sources of these."""
    with Waiting("Making the plans of other devices"):
        found = project(_plan(network).request, name="training step")
    return Shown(repr(found), *projection_parts(found), Text(found.sources, "Sources"))
