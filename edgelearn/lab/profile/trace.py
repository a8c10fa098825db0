"""A measured step in the Trace Event Format that chrome://tracing and ui.perfetto.dev open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .roofline import Roofline, kind

if TYPE_CHECKING:
    from .measure import Timed

DEVICE, LAYERS = 1, 2  # threads


def trace(roofline: Roofline) -> dict:
    """Complete events ("X"), times in microseconds: each launch of the median step where it ran, so that gaps show, and
    the layers they belong to above them."""
    timed = roofline.measured.timed
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


def _named(thread: int, name: str) -> dict:
    return {"ph": "M", "pid": 1, "tid": thread, "name": "thread_name", "args": {"name": name}}


def _event(thread: int, name: str, start: float, seconds: float, facts: dict) -> dict:
    times = {"ts": round(start * 1e6, 3), "dur": round(seconds * 1e6, 3)}
    return {"ph": "X", "pid": 1, "tid": thread, "name": name, **times, "args": facts}


def _runs(timed: list[Timed]) -> list[tuple[str, Timed, Timed]]:
    """Launches of one layer in a row: (layer, the first, the last)."""
    found: list[tuple[str, Timed, Timed]] = []
    for one in timed:
        layer = one.launch.layer
        if found and found[-1][0] == layer:
            found[-1] = layer, found[-1][1], one
        else:
            found.append((layer, one, one))
    return found
