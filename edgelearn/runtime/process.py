"""The process that opened the OpenCL driver. A driver's threads and locks do not survive a fork."""

from __future__ import annotations

import os

from edgelearn.errors import DeviceError

_opened_by = 0  # process id; 0 while no process up to this one has opened the driver


def check_process() -> None:
    """Record that this process uses the driver. Raises DeviceError in a process forked from one that had opened it,
    where the next call into the driver would wait for ever."""
    global _opened_by
    if _opened_by not in (0, os.getpid()):
        raise DeviceError(
            f"Process {os.getpid()} was forked from process {_opened_by}, which had opened an OpenCL device: the "
            f"driver's threads are not copied by a fork. Start processes with "
            f"multiprocessing.get_context('spawn'), or fork before the first device is listed or used."
        )
    _opened_by = os.getpid()
