"""What fusions save in a step of a workload of `edgelearn bench`: launches, bytes, and the time of launches, with and
without each kind; the least time of each over the rounds. Where a plan's memory lies makes 1 to 2 %: start it again.

    python tools/time_fusions.py train_bn:1 mobilenet_v2_cifar/train_bn:32 --kinds moments norm_sums --rounds 8
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter

import numpy as np

from edgelearn.compile import make_plan
from edgelearn.lab.bench.engine import make_request
from edgelearn.lab.bench.workloads import Workload
from edgelearn.lab.profile.roofline import StepTiming, time_launches
from edgelearn.ops.emit import FUSIONS
from edgelearn.runtime import choose_device
from edgelearn.tables import Table

TIMED = ("moments", "norm_sums", "checks")  # those that compute the same in other places


def least(timing: StepTiming) -> float:
    """Milliseconds of all launches of a step."""
    return 1e3 * float(np.min([[seconds for _, seconds in step] for step in timing.steps], axis=0).sum())


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
        timings = time_launches(plans, device, arguments.rounds)
        rows = [
            (", ".join(kinds) or "nothing", str(len(plan.step_launches)),
             f"{sum(launch.nbytes for launch in plan.step_launches) / 1e6:.1f}", f"{least(timing):.2f}")
            for kinds, plan, timing in zip(left_out, plans, timings, strict=True)
        ]  # fmt: skip
        print(Table(("left out", "launches", "MB", "ms"), rows, title=f"{workload.title} on {device.id}", right=True))


if __name__ == "__main__":
    main()
