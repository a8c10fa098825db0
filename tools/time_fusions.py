"""Savings of fusions in a step of a workload of `edgelearn bench`: launches, bytes and milliseconds, of launches (the
least of each over the rounds), of those that the fusion changed and what they were with it, and of the median step.
Where a plan's memory lies makes 1 to 2 %: start it again.

    python tools/time_fusions.py train_bn:1 mobilenet_v2_cifar/train_bn:32 --kinds moments norm_sums --rounds 8
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter

import numpy as np

from edgelearn.compile import make_plan
from edgelearn.compile.search import launch_key
from edgelearn.lab.bench.engine import make_request
from edgelearn.lab.bench.workloads import Workload
from edgelearn.lab.profile.roofline import StepTiming, time_launches
from edgelearn.ops.emit import FUSIONS
from edgelearn.runtime import choose_device
from edgelearn.tables import Table

TIMED = ("residual", "moments", "norm_sums", "checks")  # those within the passes


def least(timing: StepTiming) -> np.ndarray:
    """Milliseconds of each launch of a step."""
    return 1e3 * np.min([[seconds for _, seconds in step] for step in timing.steps], axis=0)


def differing(timing: StepTiming, other: StepTiming) -> float:
    """Milliseconds of the launches of a step that another step hasn't, or has fewer of."""
    like = Counter(launch_key(timed.launch) for timed in other.launches)
    times: dict[str, list[float]] = {}
    for timed, milliseconds in zip(timing.launches, least(timing), strict=True):
        times.setdefault(launch_key(timed.launch), []).append(milliseconds)
    return sum(float(np.mean(each)) * max(0, len(each) - like[key]) for key, each in times.items())


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="+", help="such as train_bn:1")
    parser.add_argument("--kinds", nargs="+", choices=list(FUSIONS), default=TIMED, help=f"default: {' '.join(TIMED)}")
    parser.add_argument("--device", help="any part of its name (default: the best)")
    parser.add_argument("--compute", default="fp32", help="type to compute in (default: fp32)")
    parser.add_argument("--rounds", type=int, default=8, help="steps of each plan, in turn (default: 8)")
    arguments = parser.parse_args()
    device = choose_device(arguments.device).device
    for name in arguments.workload:
        workload = Workload.parse(name, compute=arguments.compute)
        request = make_request(workload, workload.micro_batch)
        left_out = [(), *((kind,) for kind in arguments.kinds), arguments.kinds]
        plans = [make_plan(request.without(*kinds), device) for kinds in left_out]
        whole, *_ = timings = time_launches(plans, device, arguments.rounds)
        rows = [
            (", ".join(kinds) or "nothing", str(len(timing.launches)),
             f"{sum(timed.launch.nbytes for timed in timing.launches) / 1e6:.1f}", f"{least(timing).sum():.2f}",
             f"{differing(timing, whole):.2f}", f"{differing(whole, timing):.2f}", f"{timing.wall * 1e3:.2f}")
            for kinds, timing in zip(left_out, timings, strict=True)
        ]  # fmt: skip
        header = "left out", "launches", "MB", "ms", "changed", "were", "step"
        print(Table(header, rows, title=f"{workload.title} on {device.id}", right=True))


if __name__ == "__main__":
    main()
