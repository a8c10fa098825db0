"""How far a phase of a training is, and how long it will take."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

UNITS = {"training": "steps", "extracting features": "pictures", "compiling kernels": "kernels"}


@dataclass(frozen=True)
class Progress:
    """`done` of `total` in a phase. The time that is left is extrapolated from what came after `first` was done, at the
    time `started` (time.monotonic). The first step of a phase compiles and warms up, so that it doesn't count: `warm`
    says that it is over."""

    phase: str
    done: int = 0
    total: int = 0
    first: int = 0
    started: float = field(default_factory=time.monotonic)
    warm: bool = False

    def next(self, phase: str, done: int, total: int) -> Progress:
        """The progress after `done` of `total`."""
        if phase != self.phase:
            return Progress(phase, done, total, done)
        if not self.warm and done > self.first:
            return Progress(phase, done, total, done, warm=True)
        return replace(self, done=done, total=total)

    @property
    def share(self) -> float:
        """0 to 1."""
        return self.done / self.total if self.total else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Extrapolated from the steps after `first`; None before there are some."""
        if not self.warm or self.done <= self.first:
            return None
        return (time.monotonic() - self.started) / (self.done - self.first) * (self.total - self.done)

    def __str__(self) -> str:
        """ "Training: 3 of 12 steps"."""
        count = f": {self.done:,} of {self.total:,} {UNITS.get(self.phase, '')}".rstrip() if self.total else ""
        return f"{self.phase.capitalize()}{count}"
