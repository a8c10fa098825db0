"""TensorFlow in a process of its own, which freezes SavedModels within limits of time and memory.

TensorFlow ends its process on some damaged files, and believes the sizes that they state. So the process in
`freezer_worker` loads them, and is killed when it takes too long or too much.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from edgelearn.errors import FormatError, signal_name
from edgelearn.extensions import import_path

from ..limits import watched

SCRIPT = Path(__file__).with_name("freezer_worker.py")
START = 120.0  # seconds until TensorFlow is imported, on a busy machine
SECONDS = 6.0  # of a processor that a small model may take
SECONDS_PER_MB = 20.0  # of the graph: that of EfficientNet-B0 has 5 MB
MEMORY = 1 << 29  # bytes that a small model may take
EXPANSION = 8  # times its own size that a large one may take


class Freezer:
    """A process that has imported TensorFlow; it starts with the first model, and anew after one that ended it.

    >>> with Freezer() as freezer:
    ...     data = freezer.freeze(folder)
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Freezer:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def freeze(self, folder: Path) -> bytes:
        """Return the GraphDef of a SavedModel. Raises FormatError if TensorFlow can't load it within the limits."""
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        more = SECONDS_PER_MB * (folder / "saved_model.pb").stat().st_size / 1e6
        process = self._process or self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        with tempfile.TemporaryDirectory() as temporary:
            frozen = Path(temporary) / "frozen.pb"
            killed: list[str] = []

            def kill(reason: str) -> None:
                killed.append(reason)
                process.kill()

            with watched(process, SECONDS + more, max(MEMORY, EXPANSION * size), kill):
                with suppress(OSError):  # it has ended: there is no answer
                    process.stdin.write(json.dumps([str(folder.resolve()), str(frozen)]) + "\n")
                    process.stdin.flush()
                answer = process.stdout.readline()
            if not answer:
                code = process.wait()
                self.close()
                how = f"was killed by {signal_name(code)}" if code < 0 else f"ended with exit status {code}"
                reason = killed[0] if killed else f"TensorFlow {how} while reading it"
                raise FormatError(f"{folder} is damaged, or not for TensorFlow: {reason}. Export it again.")
            if (reason := json.loads(answer)) is not None:
                raise FormatError(f"{folder}: TensorFlow can't load the SavedModel ({reason:.300}). Export it again.")
            return frozen.read_bytes()

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    @property
    def ended(self) -> bool:
        """True if no process waits for a model."""
        return self._process is None

    def start(self) -> subprocess.Popen[str]:
        """Start the process and wait until it has imported TensorFlow."""
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "PYTHONPATH": import_path(), "CUDA_VISIBLE_DEVICES": "-1"},
        )  # fmt: skip
        assert process.stdout is not None
        timer = threading.Timer(START, process.kill)
        timer.start()
        try:
            ready = process.stdout.readline()
        finally:
            timer.cancel()
        if not ready:
            self.close()
            raise FormatError(
                f"TensorFlow, which has to freeze a SavedModel, wasn't imported within {START:.0f} s (exit status "
                f"{process.returncode}). Try python -c 'import tensorflow'."
            )
        return process
