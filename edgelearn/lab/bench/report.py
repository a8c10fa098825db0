"""The report of a run: what it measured and what that says. JSON goes out and in; table.py, markdown.py and chart.py
show it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from edgelearn import atomic
from edgelearn.errors import DataError, FormatError

from .results import Block, Comparison, Lane, compare, disagreeing, fastest_peer


@dataclass
class BenchReport:
    """Everything a run found. `not_installed` maps a contender to the packages it lacks; `command` says how to do it
    again."""

    started: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    versions: dict[str, str]
    not_installed: dict[str, list[str]]
    lanes: list[Lane]
    subject: str
    command: str = ""

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(lane.workload for lane in self.lanes))

    def of(self, workload: str) -> list[Lane]:
        """The lanes of a workload: the subject's first, then from fast to slow, then those that failed."""

        def rank(lane: Lane) -> tuple[bool, bool, float]:
            return not lane.measured, lane.contender != self.subject, lane.median if lane.measured else 0.0

        return sorted((lane for lane in self.lanes if lane.workload == workload), key=rank)

    @cached_property
    def _odd_ones(self) -> set[int]:
        return {id(lane) for workload in self.workloads for lane in disagreeing(self.of(workload))}

    def agrees(self, lane: Lane) -> bool:
        """Whether `lane` computes the numbers the other contenders compute."""
        return id(lane) not in self._odd_ones

    def fastest_peer(self, workload: str) -> Lane | None:
        """The yardstick of a workload: the fastest lane of any contender but the subject, among those that agree."""
        return fastest_peer(filter(self.agrees, self.of(workload)), self.subject)

    def comparison(self, lane: Lane) -> Comparison | None:
        """The time of `lane` over that of the fastest peer. None if there is nothing to compare."""
        peer = self.fastest_peer(lane.workload)
        if peer is None or peer is lane or not self._counts(lane):
            return None
        return compare(lane.seconds, peer.seconds, peer.label)

    def best(self, workload: str, contender: str) -> Lane | None:
        """The fastest lane of a contender among those that agree."""
        return next((lane for lane in self.of(workload) if lane.contender == contender and self._counts(lane)), None)

    def _counts(self, lane: Lane) -> bool:
        return lane.measured and self.agrees(lane)

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
        """Blocks kept, blocks kept though others were using the machine, and attempts thrown away."""
        blocks = [block for lane in self.lanes for block in lane.blocks]
        return len(blocks), sum(b.noisy for b in blocks), sum(b.attempts for b in blocks) - len(blocks)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON knows it. A refused comparison has both medians and no ratio."""
        lanes = []
        for lane in self.lanes:
            found = self.comparison(lane)
            comparison = None
            if found is not None:
                comparison = asdict(found)
                if found.refusal:
                    del comparison["ratio"], comparison["low"], comparison["high"]
            lanes.append(
                asdict(lane)
                | {
                    "label": lane.label,
                    "median": lane.median if lane.measured else None,
                    "memory": lane.memory,
                    "agrees": self.agrees(lane),
                    "fastest_peer": lane is self.fastest_peer(lane.workload),
                    "comparison": comparison,
                }
            )
        kept, noisy, repeated = self.noise
        return {
            "command": self.command,
            "started": self.started,
            "machine": self.machine,
            "settings": self.settings,
            "versions": self.versions,
            "not_installed": self.not_installed,
            "subject": self.subject,
            "noise": {"blocks": kept, "noisy": noisy, "repeated": repeated},
            "lanes": lanes,
        }

    def write(self, path: Path | str) -> None:
        """Write the report as JSON. Raises RunError if the file can't be written."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"
        atomic.write_bytes(path, text.encode())

    @classmethod
    def read(cls, path: Path | str) -> BenchReport:
        """The report that `write` wrote. Raises FormatError if it is none, DataError if it can't be read."""
        try:
            record = json.loads(Path(path).read_bytes())
            own = {field.name: record[field.name] for field in fields(cls)}
            return cls(**own | {"lanes": [_lane(lane) for lane in record["lanes"]]})
        except OSError as error:
            raise DataError(
                f"Can't read {path}: {error.strerror}. Give a file that `edgelearn bench --json` wrote."
            ) from None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"{path} is no report of this version of `edgelearn bench --json` ({error!r}). Measure again."
            ) from None


def _lane(record: dict[str, Any]) -> Lane:
    own = {field.name: record[field.name] for field in fields(Lane)}
    return Lane(**own | {"blocks": [Block(**block) for block in record["blocks"]]})
