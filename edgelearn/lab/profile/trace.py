"""A measured step in the Trace Event Format that chrome://tracing and ui.perfetto.dev open."""

from __future__ import annotations

from typing import Any

from .measure import TimedLaunch
from .roofline import Roofline, kind

DEVICE, LAYERS = 1, 2  # threads


def trace(roofline: Roofline) -> dict[str, Any]:
    """The step as JSON values for chrome://tracing or ui.perfetto.dev: complete events ("X"), times in microseconds.
    Each launch of the median step stands where it ran, so that gaps show; its layer is on a line of its own."""
    timed = roofline.timing.launches
    events = [_named(DEVICE, "launches"), _named(LAYERS, "layers")]
    for one, bound in zip(timed, roofline.bounds, strict=True):
        launch = one.launch
        facts = {
            "kernel": launch.kernel, "grid": list(launch.grid), "MFLOP": launch.flops / 1e6, "bytes": launch.nbytes,
            "bound µs": round(bound * 1e6, 3), "of the roof": round(bound / one.seconds, 3),
        }  # fmt: skip
        events.append(_event(DEVICE, kind(launch), one.start, one.seconds, facts))
    for layer, first, last in _runs(timed):
        events.append(_event(LAYERS, layer, first.start, last.start + last.seconds - first.start, {}))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"step": roofline.name, "device": roofline.device.id, "wall ms": roofline.wall * 1e3},
    }


def _named(thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": thread, "name": "thread_name", "args": {"name": name}}


def _event(thread: int, name: str, start: float, seconds: float, facts: dict[str, Any]) -> dict[str, Any]:
    times = {"ts": round(start * 1e6, 3), "dur": round(seconds * 1e6, 3)}
    return {"ph": "X", "pid": 1, "tid": thread, "name": name, **times, "args": facts}


def _runs(timed: list[TimedLaunch]) -> list[tuple[str, TimedLaunch, TimedLaunch]]:
    """(layer, first launch, last launch) of each row of launches of one layer."""
    runs: list[tuple[str, TimedLaunch, TimedLaunch]] = []
    for one in timed:
        layer = one.launch.layer
        if runs and runs[-1][0] == layer:
            runs[-1] = layer, runs[-1][1], one
        else:
            runs.append((layer, one, one))
    return runs
