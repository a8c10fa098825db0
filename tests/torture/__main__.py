"""Attack edgelearn, and print what came of it: `make torture`, or `python -m tests.torture`.

Exit status 1 if anything failed. The same seed makes the same damaged files and kills at the same calls.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from . import command_lines, damaged_files, disks, kills, many_models
from .attacks import Done
from .formats import FORMATS

SHARES = {"files": 0.3, "kills": 0.35, "disks": 0.15, "commands": 0.05, "models": 0.15}  # of the time


def main() -> int:
    """Run all attacks within the time given."""
    parser = argparse.ArgumentParser("torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="stop after so many (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="draws files and kills (default: 0)")
    parser.add_argument("--files", type=int, default=2000, help="damaged files of each format (default: 2,000)")
    parser.add_argument("--kills", type=int, default=100, help="kills of all jobs together (default: 100)")
    parser.add_argument("--jobs", nargs="+", choices=tuple(kills.JOBS), default=tuple(kills.JOBS), help="to be killed")
    parser.add_argument("--models", type=int, default=1200, help="models made, used and deleted (default: 1,200)")
    parser.add_argument("--lines", type=int, default=100, help="hostile lines for each command (default: 100)")
    parser.add_argument("--only", choices=tuple(SHARES), help="one kind of attack")
    parser.add_argument(
        "--done", type=Path, metavar="JSON", help="go on behind earlier runs with this file, and add up"
    )
    options = parser.parse_args()
    done = Done(options.done, options.seed)
    parts = [options.only] if options.only else list(SHARES)
    start, rows = time.monotonic(), []
    for number, part in enumerate(parts):
        left = start + options.minutes * 60 - time.monotonic()
        share = left * SHARES[part] / sum(SHARES[later] for later in parts[number:])
        rows += list(PARTS[part](options, share, done))
    failures = [failure for row in rows for failure in row[3]]
    print(f"\n{'attack':<32} {'attacks':>8} {'failures':>9}  of these")
    for name, attacks, what, found in rows:
        print(f"{name:<32} {attacks:>8,} {len(found):>9}  {what}")
    minutes = (time.monotonic() - start) / 60
    print(f"\n{sum(row[1] for row in rows):,} attacks, {len(failures)} failures, {minutes:.1f} minutes.")
    return int(bool(failures))


def _files(options: argparse.Namespace, seconds: float, done: Done):
    end = time.monotonic() + seconds
    for number, each in enumerate(FORMATS):
        if missing := damaged_files.missing(each):
            yield each.name, 0, f"left out: {', '.join(missing)} isn't installed", []
            continue
        share = (end - time.monotonic()) / (len(FORMATS) - number)
        # One that is done early leaves its time to the others.
        name = f"damaged {each.name}"
        found = damaged_files.run(
            each, options.seed, options.files, time.monotonic() + 4 * share, done.of(name, damaged_files.Damaged)
        )
        done.keep(name, found)
        what = (
            f"{found.read:,} read, {found.refused:,} refused; slowest {found.slowest:.2f} s, {found.largest >> 20} MiB"
        )
        yield _said(name, found.attacks, what, found.failures)


def _kills(options: argparse.Namespace, seconds: float, done: Done):
    end = time.monotonic() + seconds
    for number, job in enumerate(options.jobs):
        share, name = (end - time.monotonic()) / (len(options.jobs) - number), f"kills: {job}"
        most, earlier = options.kills // len(options.jobs), done.of(name, kills.Killed)
        found = kills.run(job, options.seed, most, time.monotonic() + share, earlier)
        done.keep(name, found)
        what = f"{found.in_writes} in writes and renames; {found.finished} trainings ended, with the same bits"
        yield _said(name, found.attacks, what, found.failures)


def _disks(options: argparse.Namespace, seconds: float, done: Done):
    end = time.monotonic() + seconds
    found = disks.run_homes(end, done.of(disks.HOME, disks.Ended))
    done.keep(disks.HOME, found)
    yield _said(
        found.name, found.attacks, f"{found.done} went well, {found.explained} with errors that explain", found.failures
    )
    if not disks.unshare():
        yield _said("full disks", 0, "left out: small file systems can't be mounted here (unshare)", [])
        return
    for number, name in enumerate(disks.JOBS):
        share = (end - time.monotonic()) / (len(disks.JOBS) - number)
        found = disks.run(name, time.monotonic() + share, outcome=done.of(f"full disk: {name}", disks.Ended))
        done.keep(found.name, found)
        what = f"{found.done} went well, {found.explained} with errors that explain"
        yield _said(found.name, found.attacks, what, found.failures)


def _commands(options: argparse.Namespace, seconds: float, done: Done):
    end = time.monotonic() + seconds
    for number, name in enumerate(command_lines.LINES):
        share, what = (end - time.monotonic()) / (len(command_lines.LINES) - number), f"command lines: {name}"
        earlier = done.of(what, command_lines.Lines)
        found = command_lines.run(name, options.seed, options.lines, time.monotonic() + share, earlier)
        done.keep(what, found)
        ends = ", ".join(f"{count} with status {status}" for status, count in sorted(found.statuses.items()))
        yield _said(what, found.attacks, f"{ends or 'none'}; slowest {found.slowest:.1f} s", found.failures)


def _models(options: argparse.Namespace, seconds: float, done: Done):
    if not many_models.countable():
        yield _said("models", 0, "left out: memory is counted by glibc's mallinfo2 and Linux's /proc", [])
        return
    found = done.of("models", many_models.Made)
    if found is None or found.attacks < options.models:
        found = many_models.run(options.models, time.monotonic() + seconds)
        done.keep("models", found)
    what = f"made, used and deleted; {found.growth / 1024:.2f} KiB each after the first {many_models.WARM}"
    yield _said("models", found.attacks, what, found.failures)


PARTS = {"files": _files, "kills": _kills, "disks": _disks, "commands": _commands, "models": _models}


def _said(name: str, attacks: int, what: str, failures: list[str]) -> tuple[str, int, str, list[str]]:
    """Print a row when it is known, and its failures."""
    print(f"{name}: {attacks:,} attacks, {len(failures)} failures; {what}", flush=True)
    for failure in failures[:20]:
        print(f"  {failure}", flush=True)
    return name, attacks, what, failures


if __name__ == "__main__":
    sys.exit(main())
