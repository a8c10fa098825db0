"""Answers of commands: the text that people read, and the JSON that `--json` prints and `--save` writes."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np

from edgelearn import atomic
from edgelearn.display import escaped
from edgelearn.lab.runs.tables import render, table


@dataclass(frozen=True)
class Answer:
    """Result of a command.

    Arguments:
    - `record`: a dictionary or a list of these; `fields.FIELDS` describes their entries.
    - `status`: exit status (default 0).
    """

    record: Any
    status: int = 0


class Escaped:
    """A text stream that escapes control characters: names and texts of files, runs and clients may hold them.

    Arguments:
    - `stream`: receives the escaped text. A progress bar, which moves the cursor, writes to it directly.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return self.stream.write(escaped(text))

    def flush(self) -> None:
        self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def answer(options: argparse.Namespace) -> int:
    """Run a command and return its exit status. With --json, standard output has the record alone: what the command
    prints besides goes to standard error."""
    as_json = getattr(options, "json", False)
    with redirect_stdout(Escaped(sys.stderr if as_json else sys.stdout)), redirect_stderr(Escaped(sys.stderr)):
        found = options.execute(options)
    if not isinstance(found, Answer):
        return found or 0
    if as_json:
        print(json.dumps(plain(found.record), indent=1, allow_nan=False))
    if getattr(options, "save", None):
        atomic.write_json(options.save, plain(found.record))
    return found.status


def plain(value: Any) -> Any:
    """`value` as JSON has it: arrays become lists; NaN and infinity, which JSON lacks, null."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def width() -> int:
    """Columns of the terminal, 80 where there is none."""
    return shutil.get_terminal_size((80, 24)).columns


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool = False, optional: Sequence[str] = ()
) -> None:
    """Print a table as wide as the terminal.

    Arguments:
    - `markdown`: in Markdown.
    - `optional`: columns that are left out where there is no room.
    """
    if markdown:
        print("\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows)))
        return
    lines = table(None, header)
    for row in rows:
        lines.add_row(*row)
    print(render([lines], width(), optional))


_CLAIMS = {"claim": "in words", "measured": "in words", "passed": "true, false, or null if it was not measured"}
_TRAINING = {
    "run": "id of the run",
    "status": "finished, or interrupted (exit status 130)",
    "results": "the run's results, null after an interrupt: accuracy, its interval, memory in bytes, seconds",
}
_LIST, _ONE = "list", "object"

# The JSON that a command prints, a list or one object, and the entries of the object or of each in the list.
FIELDS: dict[str, tuple[str, dict[str, str]]] = {
    "devices": (_LIST, {
        "name, platform, vendor, driver, version": "as OpenCL says", "kind": "cpu, gpu or accelerator",
        "memory": "bytes", "compute_units": "number",
        "notes": "faults of the driver that are worked around", "extensions": "of OpenCL", "units": "matrix units",
        "tuned": "files of tuned choices", "self_test": "passed, problem, seconds, bandwidth (bytes/s), flops (FLOP/s)",
    }),
    "doctor": (_ONE, {"problems": "number", "checks": "each with state (ok, optional, problem), text and remedy"}),
    "flowers": (_ONE, _TRAINING),
    "finetune": (_ONE, _TRAINING),
    "memory train": (_ONE, _TRAINING),
    "precision train": (_ONE, _TRAINING),
    "keywords train": (_ONE, _TRAINING),
    "federated run": (_ONE, _TRAINING),
    "inspect": (_ONE, {
        "name, source": "of the network, and the file", "supported": "true if every operator is here",
        "inputs, outputs": "shapes by name, without the batch", "parameters, multiply_adds": "numbers",
        "saved_bytes": "of an example's activations that the backward pass reads, or null",
        "layers": "name, op, inputs, shape, parameters, multiply_adds, saved_bytes, and true or false: forward, "
                  "backward, trainable, trained",
        "problems": "operators without a counterpart: kind, name, attributes, reason, nearest", "notes": "in words",
    }),
    "convert": (_ONE, {
        "out": "the file", "format": "name", "network": "name", "parameters": "number", "bytes": "size of the file",
        "types": "bytes of weights and other constants by type",
        "float32": "layers that stay float32 where integers were asked for, with the reason",
    }),
    "runs": (_LIST, {
        "id, folder, kind": "of the run", "status": "running, finished, failed, interrupted or damaged",
        "started, updated": "times as texts", "epochs": "finished ones", "device, results": "as in the run's record",
        "last": "newest row of its history", "problem": "why a damaged run can't be read, or null",
        "bytes": "of its files",
    }),
    "runs RUN": (_ONE, {
        "format": "version of this document", "run": "its record: configuration, device, versions, results",
        "history": "a row an epoch",
    }),
    "compare": (_ONE, {
        "runs": "ids", "differences": "by key of the configuration: its value by run",
        "results": "a list a run: as in the run's record",
    }),
    "sweep": (_LIST, {
        "settings": "those that vary, by name", "seed": "number", "run": "id", "results": "of the run, or null",
        "problem": "why there are none, or empty",
    }),
    "predict": (_LIST, {"image": "file", "classes": "name and probability, best first", "problem": "text or null"}),
    "precision sweep": (_ONE, {"tasks": "by name: device, date, command, variants"}),
    "precision report": (_ONE, {"tasks": "by name: device, date, command, variants"}),
    "precision trace": (_ONE, {
        "run": "id", "steps": "numbers of the updates", "tensors": "names",
        "divergence": "step and tensor whose rounded values first point elsewhere, or null",
        "cosine, signal_to_noise, clipped, staleness": "a list a step, a number a tensor",
    }),
    "precision time": (_LIST, {
        "device, network": "names", "examples": "of a step", "seconds": "of a step, by variant, a number a round",
        "peaks": "planned bytes by variant", "traffic": "bytes moved by a step, by variant",
        "steps": "of each variant in a round",
        "noise": "share of the rounds during which other processes used the cores",
    }),
    "precision cost": (_LIST, {
        "network": "name", "layers": "by name: weights, inputs, outputs, accumulators in bits, and saved_share",
    }),
    "precision tasks": (_LIST, {"task": "name", "epochs": "number", "title": "in words"}),
    "precision check": (_LIST, _CLAIMS),
    "memory check": (_LIST, _CLAIMS),
    "keywords check": (_LIST, _CLAIMS),
    "federated check": (_LIST, _CLAIMS),
    "memory plan": (_ONE, {
        "network, device, budget": "names", "batch_size, micro_batch": "examples",
        "planned": "all device memory, bytes",
        "stored, peak, paged": "activations between the passes, at their peak, and outside the device, bytes",
        "predicted_seconds": "of a step", "measured_launches": "share of them whose time was measured",
        "shares": "layer, purpose and nbytes", "timeline": "layer, forward, nbytes and paged, in order",
    }),
    "memory fit": (_ONE, {
        "network, budget": "names", "batch_size": "examples",
        "combinations": "those that fit, best first: combination, device_bytes, peak_bytes, seconds, and what differs "
                        "from float32 with all layers",
        "largest_micro_batch": "that fits, or null", "refused": "combination, bytes and reason of those that don't fit",
        "refusal": "in words where nothing fits", "times": "where the seconds come from",
    }),
    "memory compare": (_ONE, {
        "command": "the command",
        "plans": "plan, seconds (a number a round), bytes: stored, peak, paged, planned, allocated, process; loss, "
                 "predicted (seconds), measured_launches, network, device, noisy",
    }),
    "memory measure": (_ONE, {
        "device": "name", "launches": "number of measured launches",
        "between": "seconds more for each launch of a step",
        "fixed": "seconds more for each step", "file": "where they are stored",
    }),
    "keywords enrol": (_ONE, {"file": "of words", "words": "number of clips by word"}),
    "keywords words": (_ONE, {"file": "of words", "words": "number of clips by word"}),
    "keywords listen": (_ONE, {"words": "enrolled", "threshold": "score", "detections": "time (s), word, score"}),
    "keywords bundle": (_ONE, {
        "folder": "the bundle", "words": "enrolled", "network": "its file", "bytes": "size of that file",
        "types": "bytes of its weights and other constants by type",
        "float32": "layers that stay float32 where integers were asked for, with the reason",
    }),
    "keywords compose": (_ONE, {
        "recording, labels": "files", "seconds": "length", "words": "word, start and end in seconds, in order",
    }),
    "keywords evaluate": (_LIST, {
        "learner": "name and settings", "num_classes, shots, speakers, episodes": "of the episodes",
        "measures": "by name: mean, margin (95 %) and count",
    }),
    "keywords personal": (_LIST, {
        "what": "english, or a run", "learner": "settings as text", "shots": "clips of each word",
        "users": "a result each: errors and false accepts before and after, bytes, seconds",
    }),
    "federated tasks": (_LIST, {"task, partition, title": "names", "clients, rounds": "numbers"}),
    "federated rounds": (_LIST, {
        "round": "number", "clients": "those aggregated: client, examples, metrics and bytes",
        "left_out": "reasons by client", "down, up": "bytes of all messages: payload and total",
    }),
    "federated deploy": (_ONE, _TRAINING),
    "federated compare": (_LIST, {"run": "id", "status": "of the run", "results": "of the run, or null"}),
    "federated personal": (_ONE, {
        "run": "id", "users": "names", "tested": "clips of each user",
        "errors": "of each user, before training, after the rounds, and after the user's enrolment",
    }),
    "federated verify train": (_ONE, _TRAINING | {
        "results": "as of `federated run`, and seen, unseen: share of one's own accepted where 10 % of other users, or "
        "of outsiders, are; seen_eer, unseen_eer: equal error rates; null after an interrupt",
    }),
    "federated verify enrol": (_ONE, {"user": "the file", "recordings": "number", "threshold": "score"}),
    "federated verify test": (_LIST, {"recording": "file", "score": "number", "accepted": "true or false"}),
    "bench": (_ONE, {
        "started, command, subject": "when, and what was measured", "machine, config, versions": "facts",
        "not_installed": "missing packages by contender", "noise": "blocks, noisy, repeated",
        "variants": "workload, contender, compute (type), blocks of seconds, median, memory in bytes, comparison with "
                    "the fastest peer of the type, or of all types where no peer has it",
    }),
    "profile": (_ONE, {
        "device": "facts", "date": "of the measurement",
        "peaks": "FLOP/s, bytes/s, seconds a launch, operations/s of units by type",
        "steps": "name, wall (seconds), kinds: launches, FLOPs, bytes, seconds, bound and compute type of each kind of "
                 "launch",
    }),
    "profile --project": (_LIST, {
        "name": "of the step",
        "estimates": "device, kind, precision, launches, bound and expected (seconds), basis, nbytes, fits, and error: "
                     "median relative error of predictions for its kind, and the number of devices that rests on",
        "errors": "relative errors by measured device and step", "assumptions": "in words",
        "sources": "of each device's figures",
    }),
    "tune": (_ONE, {
        "device": "name", "file": "of the choices",
        "workloads": "by name: before and after (seconds), decisions, changed",
    }),
}  # fmt: skip


def to_markdown() -> str:
    """The tables of docs/reference/json.md."""
    parts = []
    for command, (kind, entries) in FIELDS.items():
        rows = ["| entry | meaning |", "|---|---|"]
        for names, meaning in entries.items():
            rows.append(f"| {', '.join(f'`{name}`' for name in names.split(', '))} | {meaning} |")
        what = "A list of objects" if kind == _LIST else "An object"
        parts.append(f"## {command}\n\n{what}:\n\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"
