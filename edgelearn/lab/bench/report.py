"""The report of a run: measurements and comparisons, to and from JSON; table.py, markdown.py and chart.py show it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

from edgelearn import atomic, records
from edgelearn.display import Displayed
from edgelearn.errors import DataError, FormatError
from edgelearn.lab.measure import Ratio, compare

from .variant import AGREEMENT, FULL, Variant, disagreeing, fastest_peer


class Device(TypedDict):
    """Entries that are read of a device's facts."""

    platform: str
    name: str
    driver: str


class Machine(TypedDict):
    """Entries that are read of a machine's description."""

    processor: str
    cores: int
    device: Device


class Settings(TypedDict):
    """Entries that are read of a run's settings."""

    foreign_limit: float


@dataclass(repr=False)
class BenchReport(Displayed):
    """Results of a run.

    - `not_installed`: missing packages by contender.
    - `command`: the command that repeats the run.
    """

    started: str
    machine: Machine
    config: Settings
    versions: dict[str, str]
    not_installed: dict[str, list[str]]
    variants: list[Variant]
    subject: str
    command: str = ""

    @property
    def headline(self) -> str:
        return f"of {', '.join(self.workloads)}: {len(self.variants)} variants, {self.started}"

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(variant.workload for variant in self.variants))

    def of(self, workload: str) -> list[Variant]:
        """The variants of a workload: the subject's first, then from fast to slow, then those that failed."""

        def rank(variant: Variant) -> tuple[bool, bool, float]:
            return not variant.measured, variant.contender != self.subject, variant.median if variant.measured else 0.0

        return sorted((variant for variant in self.variants if variant.workload == workload), key=rank)

    @cached_property
    def _disagreeing(self) -> set[int]:
        return {id(variant) for workload in self.workloads for variant in disagreeing(self.of(workload))}

    def agrees(self, variant: Variant) -> bool:
        """True if `variant` computes the numbers that the other contenders compute."""
        return id(variant) not in self._disagreeing

    def types(self, workload: str) -> list[str]:
        """The types that a workload was computed in."""
        return list(dict.fromkeys(variant.compute for variant in self.variants if variant.workload == workload))

    def fastest_peer(self, workload: str, compute: str = FULL) -> Variant | None:
        """The yardstick of a workload in a type: the fastest variant of any contender but the subject, among those that
        agree, of that type, or of all types where no peer has it."""
        agreeing = [variant for variant in self.of(workload) if self.agrees(variant)]
        alike = [variant for variant in agreeing if variant.compute == compute]
        return fastest_peer(alike, self.subject) or fastest_peer(agreeing, self.subject)

    def comparison(self, variant: Variant) -> Ratio | None:
        """The time of `variant` over that of the fastest peer of its type. None if there is nothing to compare."""
        peer = self.fastest_peer(variant.workload, variant.compute)
        if peer is None or peer is variant or not self._counts(variant):
            return None
        return compare(variant.seconds, peer.seconds)

    def best(self, workload: str, contender: str, compute: str | None = None) -> Variant | None:
        """The fastest variant of a contender among those that agree, of a type, or of all."""
        own = [v for v in self.of(workload) if v.contender == contender and self._counts(v)]
        return next((variant for variant in own if compute in (None, variant.compute)), None)

    def _counts(self, variant: Variant) -> bool:
        return variant.measured and self.agrees(variant)

    @property
    def summary(self) -> str:
        """Machine, device, time and versions in a line."""
        device = self.machine["device"]
        parts = [
            f"{self.machine['processor']}, {self.machine['cores']} cores",
            f"{device['platform']} / {device['name']}, driver {device['driver']}",
            self.started,
            ", ".join(f"{name} {version}" for name, version in self.versions.items()),
        ]
        return "; ".join(part for part in parts if part)

    @property
    def noise(self) -> tuple[int, int, int]:
        """(blocks kept, noisy ones among them, attempts thrown away)"""
        blocks = [block for variant in self.variants for block in variant.blocks]
        return len(blocks), sum(b.noisy for b in blocks), sum(b.attempts for b in blocks) - len(blocks)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values. A refused comparison has both medians and no ratio."""
        kept, noisy, repeated = self.noise
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "variants"}
        return own | {
            "noise": {"blocks": kept, "noisy": noisy, "repeated": repeated},
            "variants": [asdict(variant) | self._derived(variant) for variant in self.variants],
        }

    def _derived(self, variant: Variant) -> dict[str, Any]:
        peer, ratio = self.fastest_peer(variant.workload, variant.compute), self.comparison(variant)
        comparison = None
        if peer is not None and ratio is not None:
            comparison = {"peer": peer.label, "median": variant.median, "peer_median": peer.median}
            comparison |= {"refusal": ratio.refusal} if ratio.refusal else asdict(ratio)
        return {
            "label": variant.label,
            "median": variant.median if variant.measured else None,
            "memory": variant.memory,
            "agrees": self.agrees(variant),
            "fastest_peer": variant is peer,
            "comparison": comparison,
        }

    def write(self, path: Path | str) -> None:
        """Write the report as JSON. Raises RunError if the file can't be written."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"
        atomic.write_bytes(path, text.encode())

    @classmethod
    def read(cls, path: Path | str) -> BenchReport:
        """The report that `write` wrote. Raises FormatError if it is none, DataError if it can't be read."""
        try:
            record = records.read(path, _File)
            own = {name: value for name, value in record.items() if name in _names(cls)}
            own["variants"] = [{k: v for k, v in each.items() if k in _names(Variant)} for each in record["variants"]]
            report = records.convert(own, cls)
            if unknown := {variant.compute for variant in report.variants} - set(AGREEMENT):
                raise records.RecordError(f"the compute type {min(unknown)!r:.60} is unknown")
            for workload in report.workloads:
                if len({len(variant.blocks) for variant in report.of(workload) if variant.measured}) > 1:
                    raise records.RecordError(f"the variants of {workload!r:.60} have unequal numbers of blocks")
            return report
        except OSError as error:
            raise DataError(
                f"Can't read {path}: {error.strerror}. Give a file that `edgelearn bench --save` wrote."
            ) from None
        except records.RecordError as error:
            raise FormatError(
                f"{path} is no report of this version's `edgelearn bench --save` ({error}). Measure again."
            ) from None


class _File(TypedDict):
    """A report in a file, with what is computed from its measurements."""

    variants: list[dict[str, Any]]


def _names(kind: type) -> set[str]:
    return {each.name for each in fields(kind)}
