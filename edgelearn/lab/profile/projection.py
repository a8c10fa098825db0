"""Prediction of a step's time on a device that is not here; table.py shows it.

The plan is made for the device. Each launch takes as long as the roofline says, the longer of FLOPs at the published
peak and bytes at the published bandwidth of memory; divided by the share of the roof that launches of its kind reached
on measured devices, which the bound leaves out; plus the cost of a launch. See `ASSUMPTIONS` for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from edgelearn.compile import Plan, Request, make_plan
from edgelearn.display import Displayed

from .edge import WIDTHS, EdgeDevice, edge_devices
from .record import DeviceRecord, efficiencies, expected, leave_one_out, like, shipped
from .roofline import bounds, kind

ASSUMPTIONS = (
    "kernels come as close to the roof as on the devices measured of the same kind, or on all of them if there is none",
    "every byte comes from memory, none from a cache",
    "published peaks are held, without throttling",
    "in fp16 every number is half as large, gradients and sums too, and the launches are the same",
    "the host never keeps the device waiting",
    "all of the memory is free",
)


@dataclass(frozen=True)
class Estimate:
    """Predicted time of a step on a device in one precision.

    Arguments:
    - `device`: the device.
    - `precision`: "fp32" or "fp16", in which it computes.
    - `plan`: of the step, made for the device.
    - `launches`: number of kernel launches.
    - `bound`: seconds that no kernel could beat.
    - `expected`: seconds with kernels as efficient as those measured on devices of kind `basis`.
    - `basis`: "gpu", "cpu" or "cpu and gpu".
    - `nbytes`: memory that the step needs; `fits` is True if the device has it.
    """

    device: EdgeDevice
    precision: str
    plan: Plan
    launches: int
    bound: float
    expected: float
    basis: str
    nbytes: int

    @property
    def fits(self) -> bool:
        return self.nbytes <= self.device.memory


@dataclass(frozen=True)
class KindError:
    """How far off predictions for one kind of device are.

    Arguments:
    - `kind`: "cpu" or "gpu".
    - `median`: of the absolute relative errors over measured devices of the kind and their steps, each device predicted
      from the others.
    - `devices`: how many of the kind were measured; with one, it is predicted from devices of other kinds.
    """

    kind: str
    median: float
    devices: int

    def __str__(self) -> str:
        return f"±{self.median:.0%} ({self.devices} {self.kind.upper()}{'s' * (self.devices != 1)})"


@dataclass(frozen=True, repr=False)
class Projection(Displayed):
    """Estimates of one step on several devices, and the measurements that they are based on.

    Arguments:
    - `name`: of the step, such as "training step".
    - `estimates`: one for each device and precision.
    - `records`: measurements of other devices.
    """

    name: str
    estimates: tuple[Estimate, ...]
    records: tuple[DeviceRecord, ...] = field(repr=False)

    @property
    def headline(self) -> str:
        return f"of a {self.name} to {len({e.device.name for e in self.estimates})} devices"

    @property
    def errors(self) -> dict[str, dict[str, float]]:
        """Relative error by measured device and step of a prediction from the other devices; above 0 where it is too
        long."""
        errors: dict[str, dict[str, float]] = {}
        for record, step, seconds in leave_one_out(self.records) if len(self.records) > 1 else []:
            errors.setdefault(record.name, {})[step.name] = seconds / step.wall - 1
        return errors

    @property
    def errors_by_kind(self) -> dict[str, KindError]:
        """The errors of `errors`, in the median over devices of a kind."""
        kinds: dict[str, list[str]] = {}
        for record in self.records:
            kinds.setdefault(record.device["kind"], []).append(record.name)
        errors = self.errors
        found = {
            kind: [abs(e) for name in names for e in errors.get(name, {}).values()] for kind, names in kinds.items()
        }
        return {kind: KindError(kind, median(e), len(kinds[kind])) for kind, e in found.items() if e}

    def error_of(self, estimate: Estimate) -> KindError | None:
        """The error of predictions for the estimate's kind of device, None if no device of the kind was measured."""
        return self.errors_by_kind.get(estimate.device.kind)

    def to_dict(self) -> dict[str, Any]:
        """Estimates with their errors, and what they rest on, as JSON values."""
        return {
            "name": self.name,
            "estimates": [
                {
                    "device": e.device.name, "kind": e.device.kind, "precision": e.precision, "launches": e.launches,
                    "bound": e.bound, "expected": e.expected, "basis": e.basis, "nbytes": e.nbytes, "fits": e.fits,
                    "error": asdict(error) if (error := self.error_of(e)) else None,
                }
                for e in self.estimates
            ],
            "errors": self.errors,
            "assumptions": list(ASSUMPTIONS),
            "sources": {e.device.name: dict(e.device.sources) for e in self.estimates},
        }  # fmt: skip

    @property
    def sources(self) -> str:
        """Where the figures of the devices are from, as text."""
        devices = {estimate.device.name: estimate.device for estimate in self.estimates}.values()
        return "\n".join(
            line for device in devices for line in (device.name, *(f"  {k}: {v}" for k, v in device.sources.items()))
        )


def project(
    request: Request, devices: Sequence[EdgeDevice] | None = None, name: str = "", records: Sequence[DeviceRecord] = ()
) -> Projection:
    """Predict a step on devices that are not here.

    Arguments:
    - `request`: the step: `plan.request` of a plan.
    - `devices`: default: all that are described in the package.
    - `name`: of the step, for reports (default: the network's).
    - `records`: measurements to take efficiencies from (default: those in the package).

    Raises as `make_plan`.
    """
    records = tuple(records) or shipped()
    devices = [EdgeDevice.load(name) for name in edge_devices()] if devices is None else devices
    estimates = tuple(
        _estimate(request, device, precision, records) for device in devices for precision in device.flops
    )
    return Projection(name or request.network.name, estimates, records)


def _estimate(request: Request, device: EdgeDevice, precision: str, records: Sequence[DeviceRecord]) -> Estimate:
    plan = make_plan(request, device.device(), traits=device.traits())
    peaks, width = device.peaks(precision), WIDTHS[precision]
    launches = plan.step_launches
    roofs = bounds(plan, launches, peaks, width)
    measured = like(device.kind, records)
    basis, share = " and ".join(sorted({r.device["kind"] for r in measured})), efficiencies(measured)
    seconds = expected([(kind(x), bound, 1) for x, bound in zip(launches, roofs, strict=True)], share, peaks.launch)
    least = sum(roofs) + len(launches) * peaks.launch
    nbytes = round(plan.peak_bytes * width)
    return Estimate(device, precision, plan, len(launches), least, seconds, basis, nbytes)
