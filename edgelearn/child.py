"""Python processes started by this one: limited in time and memory, called, and ended with a reason.

`run` runs a program to its end. A `Worker` is an object in a process of its own. Started as a program, `python -m
edgelearn.child SETTINGS`, this file is that process: it makes the object and answers calls from standard input, a
line of JSON each. Whatever else it prints goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from edgelearn.errors import EdgelearnError, signal_name
from edgelearn.extensions import import_path

STILL = 9.0  # seconds without computing; a busy machine leaves a process some
SHARE = 0.25  # of a processor that a busy machine leaves a process at least, all the while
KEPT = 2000  # bytes of a dead process's output that an error quotes


class Child:
    """A Python process with pipes to standard input and output; a context manager that ends it.

    Arguments:
    - `arguments`: of the interpreter, such as "-m", "module".
    - `environment`: variables added to this process's.
    """

    def __init__(self, *arguments: str | Path, environment: Mapping[str, str] | None = None) -> None:
        self.reason = ""  # why it was killed
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        self.process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": import_path(), **(environment or {})},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
        )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self.requests: IO[bytes] = self.process.stdin
        self.answers: IO[bytes] = self.process.stdout

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and close its pipes."""
        self.process.kill()
        self.process.wait()
        for file in (self.requests, self.answers, self._log):
            with suppress(OSError):  # a request that the process didn't read any more
                file.close()

    def kill(self, reason: str) -> None:
        """End the process; the first reason counts."""
        self.reason = self.reason or reason
        self.process.kill()

    def ending(self) -> str:
        """How the process ended, such as "was killed by SIGSEGV"."""
        try:
            code = self.process.wait(10)
        except subprocess.TimeoutExpired:
            return "closed its pipe but is still running"
        if code >= 0:
            return f"ended with exit status {code}"
        name = signal_name(code)
        return f"was killed by {name}" + (", as Linux does when memory runs out" if name == "SIGKILL" else "")

    def output(self) -> str:
        """The end of what the process wrote to standard error."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - KEPT))
        return self._log.read().decode(errors="replace").strip()

    def failure(self) -> str:
        """Why the process failed: the limit that it exceeded, the signal that killed it, or the last line of its
        output; "" if it ended well."""
        how = self.ending()
        if self.reason or self.process.returncode == 0:
            return self.reason
        lines = self.output().splitlines() if (self.process.returncode or 0) > 0 else []  # None: it still runs
        return lines[-1] if lines else f"it {how}"

    @contextmanager
    def limited(
        self, clock: float | None = None, computing: float | None = None, memory: int | None = None,
        is_asked: Callable[[], bool] = lambda: True,
    ) -> Iterator[None]:  # fmt: skip
        """Kill the process, with a reason, when it exceeds a limit while the block lasts.

        Arguments:
        - `clock`: seconds that may pass (default: any).
        - `computing`: seconds of computing (default: any). While it is asked, the process may then take that divided by
          SHARE by the clock, and be still for STILL seconds.
        - `memory`: bytes by which it may grow (default: any).
        - `is_asked`: True while an answer is due (default: always).
        """
        done = threading.Event()
        timer = threading.Timer(clock or 0, self.kill, [f"no end after {clock:g} seconds" if clock else ""])
        watch = threading.Thread(target=self._watch, args=(computing, memory or sys.maxsize, is_asked, done))
        threads = [timer] * (clock is not None) + [watch] * (computing is not None)
        for thread in threads:
            thread.daemon = True
            thread.start()
        try:
            yield
        finally:
            done.set()
            timer.cancel()
            for thread in threads:
                thread.join()

    def _watch(self, seconds: float, memory: int, is_asked: Callable[[], bool], done: threading.Event) -> None:
        import psutil

        def computed() -> float:
            times = found.cpu_times()
            return times.user + times.system

        with suppress(psutil.Error):  # it has ended
            found = psutil.Process(self.process.pid)
            before, begun = found.memory_info().rss, computed()
            clock, moved, last, left = time.monotonic(), time.monotonic(), begun, seconds / SHARE
            while not done.wait(0.05):
                earlier, clock = clock, time.monotonic()
                left -= clock - earlier if is_asked() else 0.0
                if (now := computed()) != last or not is_asked():
                    moved, last = clock, now
                if now - begun > seconds:
                    self.kill(f"no end after {seconds:.0f} seconds of computing")
                elif left < 0:
                    self.kill(f"no end after {seconds / SHARE:.0f} seconds")
                elif clock - moved > STILL:
                    self.kill(f"no end, and nothing computed for {STILL:.0f} seconds")
                elif found.memory_info().rss - before > memory:
                    self.kill(f"it takes more than {memory:,} bytes of memory")


def run(*arguments: str | Path, environment: Mapping[str, str] | None = None, **limits: Any) -> str:
    """Run Python to its end. Return "" if it ended well, else why it failed, as `Child.failure` says.

    Arguments:
    - `arguments`, `environment`: as of `Child`.
    - `limits`: as of `Child.limited`.
    """
    with Child(*arguments, environment=environment) as child, child.limited(**limits):
        child.process.communicate()
        return child.failure()


class WorkerError(EdgelearnError):
    """A worker raised, died or didn't answer. `reason` is the message of an EdgelearnError raised there, else None."""

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class Worker(Child):
    """An object in a Python process of its own, whose methods are called from here; a context manager.

    Arguments:
    - `target`: "module:Class", imported in the process.
    - `arguments`: of the class. Like arguments and results of calls they must fit into JSON.
    - `cores`: the processor cores it may use (default: those of this process).
    - `environment`: variables added to this process's.
    - `patience`: seconds that an answer may take; then the process is killed.

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
        settings = json.dumps({"target": target, "arguments": list(arguments), "cores": list(cores)})
        super().__init__("-m", "edgelearn.child", settings, environment=environment)
        self.patience = patience
        try:
            self.import_seconds: float = self._answer()
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object. Raises WorkerError if it raises, dies or takes too long."""
        with suppress(OSError):  # it has ended, and gives no answer
            self.requests.write(json.dumps([method, *arguments]).encode() + b"\n")
            self.requests.flush()
        return self._answer()

    def _answer(self) -> Any:
        with self.limited(clock=self.patience):
            line = self.answers.readline()
        if not line:
            output = self.output()
            raise WorkerError(
                f"No answer within {self.patience:g} s." if self.reason else f"The worker process {self.ending()}."
                + (f" Its last output:\n{output}" if output else "")
            )  # fmt: skip
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"].strip(), answer.get("reason"))
        return answer["result"]


def _answer(work: Callable[..., Any], *arguments: Any) -> bytes:
    """Result or error of a call, as a line."""
    try:
        line = json.dumps({"result": work(*arguments)})
    except Exception as error:
        own = {"reason": str(error)} if isinstance(error, EdgelearnError) else {}
        line = json.dumps({"error": traceback.format_exc(), **own})
    return line.encode() + b"\n"


def main(settings: dict[str, Any]) -> None:
    """Make the object of a `Worker`, and serve until standard input ends."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    made: list[Any] = []

    def make() -> float:
        begin = time.perf_counter()
        if settings["cores"]:
            import psutil

            process = psutil.Process()
            if hasattr(process, "cpu_affinity"):  # where the system has it
                process.cpu_affinity(settings["cores"])
        module, _, name = settings["target"].partition(":")
        made.append(getattr(importlib.import_module(module), name)(*settings["arguments"]))
        return time.perf_counter() - begin

    answers.write(_answer(make))
    for line in requests:
        method, *arguments = json.loads(line)
        answers.write(_answer(getattr(made[0], method), *arguments))
    # Frameworks leave threads behind that can hang or crash an orderly exit; nothing here needs one.
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
