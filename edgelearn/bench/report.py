"""The report of a run: a table a workload to read, JSON to keep."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgelearn.bench.results import Comparison, Lane, compare, disagreeing, fastest_peer
from edgelearn.bench.workloads import Workload
from edgelearn.errors import EdgelearnError

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass
class Report:
    """Everything a run found. `not_installed` maps a contender to the packages it lacks."""

    started: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    versions: dict[str, str]
    not_installed: dict[str, list[str]]
    lanes: list[Lane]
    subject: str

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
        if peer is None or peer is lane or not lane.measured or not self.agrees(lane):
            return None
        return compare(lane.seconds, peer.seconds, peer.label)

    @property
    def noise(self) -> tuple[int, int, int]:
        """Blocks kept, blocks kept though others were using the machine, and attempts thrown away."""
        blocks = [block for lane in self.lanes for block in lane.blocks]
        return len(blocks), sum(b.noisy for b in blocks), sum(b.attempts for b in blocks) - len(blocks)

    def table(self, width: int = 120) -> str:
        """The report as text, `width` characters wide."""
        from rich.console import Console

        console = Console(file=io.StringIO(), width=width, color_system=None)
        for part in self._parts():
            console.print(part, highlight=False, soft_wrap=False)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"

    def _parts(self) -> list[RenderableType]:
        from rich.text import Text

        used = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        parts: list[RenderableType] = [
            Text(f"{self.machine['processor']}, {self.machine['cores']} cores; {self.started}" + (used and f"; {used}"))
        ]
        for workload in self.workloads:
            parts.append(self._workload_table(workload))
        kept, noisy, repeated = self.noise
        limit = self.settings["foreign_limit"]
        parts.append(
            Text(
                f"{kept} blocks; {noisy} of them noisy (others used more than {limit:.0%} of the cores even at the "
                f"quietest attempt), {repeated} attempts thrown away."
            )
        )
        for name, packages in self.not_installed.items():
            parts.append(Text(f"{name}: not installed (needs {', '.join(packages)})."))
        for lane in self.lanes:
            if lane.error is not None:
                parts.append(Text(f"{lane.workload} {lane.label} failed:\n{lane.error}"))
            elif not self.agrees(lane):
                parts.append(Text(f"{lane.workload} {lane.label}: computes other numbers: {_numbers(lane.probe)}"))
        return parts

    def _workload_table(self, workload: str) -> RenderableType:
        from rich import box
        from rich.table import Table

        title = f"{workload}: {Workload.parse(workload).description}"
        table = Table(title=title, title_justify="left", box=box.SIMPLE)
        table.add_column("contender")
        for heading in ("median ms", "middle half ms", "time / fastest peer's"):
            table.add_column(heading, justify="right")
        for heading in ("noisy", "memory MiB", "import s", "first step s"):
            table.add_column(heading, justify="right")
        for lane in self.of(workload):
            table.add_row(*self._row(lane))
        return table

    def _row(self, lane: Lane) -> list[str]:
        import numpy as np

        if not lane.measured:
            return [lane.label, "failed" if lane.error else "no blocks", *[""] * 6]
        low, high = np.quantile(lane.seconds, (0.25, 0.75))
        return [
            lane.label,
            f"{lane.median * 1e3:.2f}",
            f"{low * 1e3:.2f} – {high * 1e3:.2f}",
            self._verdict(lane),
            f"{sum(block.noisy for block in lane.blocks)} of {len(lane.blocks)}",
            "" if lane.memory is None else f"{lane.memory / 2**20:.0f}",
            "" if lane.import_seconds is None else f"{lane.import_seconds:.2f}",
            "" if lane.first_step_seconds is None else f"{lane.first_step_seconds:.2f}",
        ]

    def _verdict(self, lane: Lane) -> str:
        if not self.agrees(lane):
            return "computes other numbers"
        if lane is self.fastest_peer(lane.workload):
            return "fastest peer"
        found = self.comparison(lane)
        if found is None:
            return ""
        if found.refusal:
            return f"{found.refusal}: {found.median * 1e3:.2f} and {found.peer_median * 1e3:.2f} ms"
        return f"{found.ratio:.2f} ({found.low:.2f} – {found.high:.2f})"

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
        """Write the report as JSON. Raises EdgelearnError if the file can't be written."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise EdgelearnError(
                f"Can't write the report to {path}: {error.strerror}. Choose a folder that exists and is yours."
            ) from error


def _numbers(probe: list[float]) -> str:
    return " ".join(f"{number:.5g}" for number in probe)
