"""Reports of a federation's run: records of its rounds, tables, and figures of bytes and of partitions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgelearn import atomic, records
from edgelearn.display import MB, megabytes, plural
from edgelearn.errors import FormatError, RunError
from edgelearn.federated import RoundRecord
from edgelearn.lab.runs import Run, figures
from edgelearn.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ROUNDS = "rounds.jsonl"  # in the run's folder
_KINDS = ("federated", "verification")


def read_rounds(run: Run) -> list[dict]:
    """Return the record of each round of a run, ascending.

    Raises RunError if the run is no federation, FormatError if a line is damaged.
    """
    if run.record["kind"] not in _KINDS:
        raise RunError(f"Run {run.id} is no federation. `edgelearn runs` lists the kinds; choose one of {_KINDS}.")
    rounds: dict[int, dict] = {}
    for line in atomic.read_lines(run.folder / ROUNDS):
        try:
            happened = records.parse(line, RoundRecord).to_dict()
        except records.RecordError as error:
            raise FormatError(f"{run.folder / ROUNDS} is damaged ({error}). Restore it from a backup.") from None
        rounds[happened["round"]] = happened  # a round that was repeated replaces its old line
    return [rounds[number] for number in sorted(rounds)]


def totals(happened: Sequence[dict]) -> dict:
    """Return the `bytes` of all messages, by direction, how many updates were `left_out`, and the most `memory` that a
    client reported, planned and allocated; clients of others need not report any."""
    clients = [client for each in happened for client in each["clients"]]
    return {
        "bytes": {
            way: {k: sum(each[way][k] for each in happened) for k in ("payload", "total")} for way in ("up", "down")
        },
        "left_out": sum(len(each["left_out"]) for each in happened),
        "memory": {k: int(max((client.get(k, 0) for client in clients), default=0)) for k in ("planned", "allocated")},
    }


_REASONS = 5  # that a summary has
_SHOWN = ("strategy", "compress", "partition", "engine", "seed")  # settings that tell runs apart


def table(runs: Sequence[Run]) -> Table:
    """A row for each run: what sets it apart, accuracy and bytes."""
    header = ("run", "settings", "rounds", "accuracy", "ε", "MB up", "MB down", "left out", "client MB")
    return Table(header, [_row(run, label) for run, label in zip(runs, labels(runs), strict=True)])


def summary(run: str, results: dict, happened: Sequence[dict]) -> list[str]:
    """Return lines on a finished run: bytes, privacy, and which clients were left out, and why.

    Arguments:
    - `run`: id of the run.
    - `results`: its results.
    - `happened`: record of each round.
    """
    up, down = (megabytes(results["bytes"][way]["total"]) for way in ("up", "down"))
    lines = [f"Clients sent {up} and received {down}"]
    if "epsilon" in results:
        lines.append(f"Differential privacy: ε = {results['epsilon']:.2f} at δ = {results['delta']:g}")
    if "local_epsilon" in results:
        epsilon, delta = results["local_epsilon"], results["delta"]
        lines.append(f"Local privacy of who took part most often: ε = {epsilon:.2f} at δ = {delta:g}")
    left_out = [(each["round"], client, why) for each in happened for client, why in each["left_out"].items()]
    if left_out:
        asked = len(left_out) + sum(len(each["clients"]) for each in happened)
        lines.append(
            f"Left out: {len(left_out)} of {plural(asked, 'update')} (edgelearn federated rounds {run} has all)"
        )
        lines += [f"  round {number}, client {client}: {why}" for number, client, why in left_out[:_REASONS]]
    return lines


def labels(runs: Sequence[Run]) -> list[str]:
    """The settings in which runs differ, as a text for each; the strategy if there is none."""
    differing = [name for name in _SHOWN if len({run.config.get(name) for run in runs}) > 1] or ["strategy"]
    return [", ".join(str(run.config.get(name)) for name in differing) for run in runs]


def plot_bytes(runs: Sequence[Run], path: str | Path | None = None) -> Figure:
    """Draw test accuracy over the bytes that clients have sent.

    Arguments:
    - `runs`: federations; one that is still running is drawn as far as it is.
    - `path`: a PNG to write (default: none).
    """
    figure = figures.canvas(figures.WIDTH, 4.2)
    axes = figure.add_subplot()
    for number, (run, label) in enumerate(zip(runs, labels(runs), strict=True)):
        accuracies = {row["epoch"]: 100 * row["val_accuracy"] for row in run.history() if "val_accuracy" in row}
        happened = read_rounds(run)
        sent = [total / MB for total in accumulate(each["up"]["total"] for each in happened)]
        known = [(x, accuracies[each["round"]]) for x, each in zip(sent, happened, strict=True)
                 if each["round"] in accuracies]  # fmt: skip
        axes.plot(
            *zip(*known, strict=True),
            **figures.look(number),
            markersize=4,
            label=label,
        )
    axes.set_xscale("log")
    figures.style(axes, x="Sent by clients (MB)", y="Test accuracy (%)")
    axes.legend(frameon=False)
    return figures.saved(figure, path)


def _row(run: Run, label: str) -> tuple[str, ...]:
    happened, results = read_rounds(run), run.record.get("results") or {}
    up, down = (sum(each[way]["total"] for each in happened) / MB for way in ("up", "down"))
    accuracy = f"{results['accuracy']:.2%}" if results else run.status
    left_out = sum(len(each["left_out"]) for each in happened)
    epsilon = f"{results['epsilon']:.2f}" if "epsilon" in results else "–"
    planned = f"{results['memory']['planned'] / MB:.2f}" if results else ""
    return run.id, label, str(len(happened)), accuracy, epsilon, f"{up:.3f}", f"{down:.3f}", str(left_out), planned


_SHADES = 20  # classes with a colour of their own


def plot_partition(counts: np.ndarray, class_names: Sequence[str], path: str | Path | None = None) -> Figure:
    """Draw the examples of each client as a bar of its classes.

    Arguments:
    - `counts`: number of examples by client and class, as `edgelearn.federated.counts` returns it.
    - `class_names`: names of the classes.
    - `path`: a PNG to write (default: none).
    """
    import matplotlib

    clients, classes = counts.shape
    figure = figures.canvas(figures.WIDTH, 4.5)
    axes = figure.add_subplot()
    colors = figures.PALETTE if classes <= len(figures.PALETTE) else matplotlib.colormaps["tab20"].colors  # pyright: ignore
    bottom = np.zeros(clients)
    for number in range(classes):
        label = class_names[number] if classes <= _SHADES else None
        held = np.flatnonzero(counts[:, number])
        color = colors[number % len(colors)]
        axes.bar(held, counts[held, number], bottom=bottom[held], color=color, label=label)
        bottom += counts[:, number]
    title = f"{plural(clients, 'client')}, {plural(int(counts.sum()), 'example')}, {classes} classes"
    figures.style(axes, title, "Client", "Examples", grid=False)
    if classes <= _SHADES:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figures.saved(figure, path)
