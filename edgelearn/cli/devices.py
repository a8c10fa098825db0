"""List the OpenCL devices, each with a one-second self-test, best first."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from edgelearn.runtime import list_devices, self_test
from edgelearn.runtime.devices import rank
from edgelearn.tuned import find

from .answer import Answer

GIB = 1 << 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--extensions", action="store_true", help="list the extensions of each device")


def run(options: argparse.Namespace) -> Answer:
    found = [(device, self_test(device)) for device in rank(list_devices())]
    for number, (device, test) in enumerate(found):
        print(f"{'*' if number == 0 else ' '} {device.id}")
        print(f"    {device.kind.upper()}, {device.version}, driver {device.driver}")
        print(
            f"    {device.memory / GIB:.1f} GiB memory (largest buffer {device.largest_buffer / GIB:.1f} GiB), "
            f"{device.compute_units} compute units, {len(device.extensions)} extensions"
        )
        if test.passed:
            print(
                f"    self-test passed in {test.seconds:.1f} s: {test.bandwidth / 1e9:.0f} GB/s, "
                f"{test.flops / 1e9:.0f} GFLOP/s"
            )
        else:
            print(f"    SELF-TEST FAILED: {test.problem}")
        print(f"    units for small numbers: {', '.join(device.units) or 'none'}")
        print(f"    {device.int8_speed}")
        print(f"    {find(device)}")
        for note in device.notes:
            print(f"    note: {note}")
        if options.extensions:
            print("    " + " ".join(device.extensions))
    print("* would be chosen; choose another with --device NAME (any part of its name)")
    return Answer([
        d.facts() | {"extensions": d.extensions, "units": d.units, "tuned": [str(p) for p in find(d).files],
                     "self_test": asdict(t)}
        for d, t in found
    ])  # fmt: skip
