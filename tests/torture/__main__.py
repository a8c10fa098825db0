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

KINDS = {  # (share of the time, what is attacked)
    "files": (0.3, damaged_files.attacks), "kills": (0.35, kills.attacks), "disks": (0.15, disks.attacks),
    "commands": (0.05, command_lines.attacks), "models": (0.15, many_models.attacks),
}  # fmt: skip


def main() -> int:
    """Run all attacks within the time given."""
    parser = argparse.ArgumentParser("torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="stop after so many (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="draws files and kills (default: 0)")
    parser.add_argument("--files", type=int, default=2000, help="damaged files of each format (default: 2,000)")
    parser.add_argument("--kills", type=int, default=100, help="kills of all jobs together (default: 100)")
    parser.add_argument("--models", type=int, default=1200, help="models made, used and deleted (default: 1,200)")
    parser.add_argument("--lines", type=int, default=100, help="hostile lines for each command (default: 100)")
    parser.add_argument("--only", choices=tuple(KINDS), help="one kind of attack")
    parser.add_argument(
        "--jobs", nargs="+", default=[""], metavar="WORD", help="only those that have a WORD in the name"
    )
    parser.add_argument(
        "--done", type=Path, metavar="JSON", help="go on behind earlier runs with this file, and add up"
    )
    options = parser.parse_args()
    done, start, outcomes = Done(options.done, options.seed), time.monotonic(), []
    kinds = {name: kind for name, kind in KINDS.items() if options.only in (None, name)}
    while kinds:
        left = start + options.minutes * 60 - time.monotonic()
        share = left / sum(share for share, _ in kinds.values())
        part, attacks = kinds.pop(next(iter(kinds)))
        end = time.monotonic() + share * part
        chosen = [attack for attack in attacks(options) if any(word in attack.name for word in options.jobs)]
        for number, attack in enumerate(chosen):
            if attack.left_out:
                print(f"{attack.name}: left out: {attack.left_out}", flush=True)
                continue
            now = time.monotonic()
            # One that is done early leaves its time to the others.
            share_of_one = (end - now) / (len(chosen) - number) * (4 if attacks is damaged_files.attacks else 1)
            outcome = attack.run(min(end, now + share_of_one), done.of(attack.name))
            done.keep(outcome)
            outcomes.append(outcome)
            print(
                f"{outcome.name}: {outcome.attacks:,} attacks, {len(outcome.failures)} failures; {outcome}", flush=True
            )
            for failure in outcome.failures[:20]:
                print(f"  {failure}", flush=True)
    print(f"\n{'attack':<32} {'attacks':>8} {'failures':>9}  of these")
    for outcome in outcomes:
        print(f"{outcome.name:<32} {outcome.attacks:>8,} {len(outcome.failures):>9}  {outcome}")
    total, failures = (sum(figures) for figures in zip(*((o.attacks, len(o.failures)) for o in outcomes), strict=True))
    print(f"\n{total:,} attacks, {failures} failures, {(time.monotonic() - start) / 60:.1f} minutes.")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
