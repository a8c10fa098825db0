"""The near end of a worker process: starts it, asks it, and says clearly how it failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from typing import Any

from edgelearn.errors import EdgelearnError


class WorkerError(EdgelearnError):
    """A contender raised, died or didn't answer. The text is the end of what it said."""


class Remote:
    """A contender in a fresh interpreter, bound to `cores`, with `environment` added to this process's own."""

    def __init__(
        self,
        target: str,
        cores: Sequence[int],
        device: str = "",
        environment: Mapping[str, str] | None = None,
        patience: float = 600,
    ) -> None:
        self.patience = patience
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        self._pipe, far = Pipe()
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from edgelearn.lab.bench.worker import main; main()",
                str(far.fileno()),
                target,
                json.dumps(list(cores)),
                device,
            ],
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
            pass_fds=[far.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        far.close()
        try:
            self.import_seconds: float = self._answer()["import_seconds"]
        except BaseException:
            self.close()
            raise

    def ask(self, request: str, *arguments: Any) -> Any:
        """The worker's answer to `request`. Raises WorkerError if there is none or it is an error."""
        try:
            self._pipe.send_bytes(json.dumps([request, *arguments]).encode())
        except OSError:
            raise WorkerError(self._obituary()) from None
        return self._answer()

    def _answer(self) -> Any:
        try:
            if not self._pipe.poll(self.patience):
                raise WorkerError(f"No answer within {self.patience:g} s.")
            answer = json.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise WorkerError(self._obituary()) from None
        if "error" in answer:
            raise WorkerError(answer["error"].strip())
        return answer["ok"]

    def _obituary(self) -> str:
        try:
            code = self._process.wait(10)
        except subprocess.TimeoutExpired:
            return "The worker process closed its pipe but is still running."
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += ", as Linux does when memory runs out"
        else:
            how = f"ended with exit status {code}"
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        said = self._log.read().decode(errors="replace").strip()
        return f"The worker process {how}." + (f" Its last words:\n{said}" if said else "")

    def close(self) -> None:
        """End the process. It is idle between requests, so there is nothing to wait for."""
        self._pipe.close()
        self._process.kill()
        self._process.wait()
        self._log.close()

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
