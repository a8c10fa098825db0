"""Worker processes: start one, call it, and report clearly how it failed."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from edgelearn.errors import EdgelearnError
from edgelearn.extensions import import_path

KEPT = 2000  # bytes of a dead worker's output that its error quotes


class WorkerError(EdgelearnError):
    """A worker raised, died or didn't answer. `reason` is the message of an EdgelearnError raised there, else None."""

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class Worker:
    """An object in a Python process of its own, whose methods are called from here; a context manager.

    Arguments:
    - `target`: "module:Class", imported in the process.
    - `arguments`: of the class. Like arguments and results of calls they must fit into JSON.
    - `cores`: the processor cores it may use (default: those of this process).
    - `environment`: variables added to this process's.
    - `patience`: seconds that an answer may take.

    Raises WorkerError if the object can't be made.
    """

    def __init__(
        self,
        target: str,
        arguments: Sequence[Any] = (),
        cores: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        patience: float = 600,
    ) -> None:
        self.patience = patience
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        settings = json.dumps({"target": target, "arguments": list(arguments), "cores": list(cores)})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edgelearn.lab.measure.worker", settings],
            env={**os.environ, "PYTHONPATH": import_path(), **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._requests: IO[bytes] = self.process.stdin
        self._pipe: IO[bytes] = self.process.stdout
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()  # an empty line: there will be no more
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.import_seconds: float = self._answer()
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object. Raises WorkerError if it raises, dies or takes too long."""
        try:
            self._requests.write(json.dumps([method, *arguments]).encode() + b"\n")
            self._requests.flush()
        except OSError:
            raise WorkerError(self._obituary()) from None
        return self._answer()

    def close(self) -> None:
        """End the process. It is idle between calls, so there is nothing to wait for."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        with suppress(OSError):  # a request that the process didn't read any more
            self._requests.close()
        self._pipe.close()
        self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        for line in self._pipe:
            self._answers.put(line)
        self._answers.put(b"")

    def _answer(self) -> Any:
        try:
            line = self._answers.get(timeout=self.patience)
        except queue.Empty:
            raise WorkerError(f"No answer within {self.patience:g} s.") from None
        if not line:
            self._answers.put(b"")
            raise WorkerError(self._obituary())
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"].strip(), answer.get("reason"))
        return answer["result"]

    def _obituary(self) -> str:
        """How the process ended, and the end of its output."""
        try:
            code = self.process.wait(10)
        except subprocess.TimeoutExpired:
            return "The worker process closed its pipe but is still running."
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if how.endswith("SIGKILL"):
                how += ", as Linux does when memory runs out"
        else:
            how = f"ended with exit status {code}"
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - KEPT))
        output = self._log.read().decode(errors="replace").strip()
        return f"The worker process {how}." + (f" Its last output:\n{output}" if output else "")
