"""Trainings that the home page starts: commands in processes of their own, one at a time."""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgelearn.errors import RunError
from edgelearn.lab.runs import RunStore

LOG = "output.log"  # in the run's folder
_SECONDS = 0.3  # from one look to the next
_RUN = re.compile(r"^Run (\S+?)(?:, continued)?$", re.MULTILINE)
_WAITS = re.compile(r"^Waits for (.+?)\. ", re.MULTILINE)
_TAIL = 4000  # bytes of the output that are looked at
_KEPT = 20  # jobs that have ended


@dataclass
class Job:
    """A command to run.

    Arguments:
    - `number`: its own.
    - `title`: in words.
    - `words`: the command, without `edgelearn`.
    - `run`: id of the run that it trains, "" until that is known.
    - `state`: "waiting" for the job before, "running", "ended", "failed" or "stopped".
    - `text`: whom it waits for, or why it failed.
    """

    number: int
    title: str
    words: tuple[str, ...]
    run: str = ""
    state: str = "waiting"
    text: str = ""
    log: Path | None = None
    process: subprocess.Popen | None = field(default=None, repr=False)


class Jobs:
    """A queue of trainings. The next one starts when the one before has ended, and then waits, as every training, until
    no notebook and no terminal trains on the device.

    Arguments:
    - `store`: where the runs are kept.
    """

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self._jobs: list[Job] = []
        self._changing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def add(self, title: str, words: Sequence[str]) -> Job:
        """Queue `edgelearn WORDS`."""
        with self._changing:
            number = self._jobs[-1].number + 1 if self._jobs else 1
            ended = [job for job in self._jobs if job.state not in ("waiting", "running")]
            self._jobs = [job for job in self._jobs if job not in ended[:-_KEPT]]
            job = Job(number, title, tuple(words))
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="edgelearn-jobs", daemon=True)
                self._thread.start()
                atexit.register(self.close)
        return job

    def entries(self) -> list[dict[str, Any]]:
        """The jobs as JSON, the newest first."""
        return [
            {"number": job.number, "title": job.title, "command": f"edgelearn {' '.join(job.words)}", "run": job.run,
             "state": job.state, "text": job.text}
            for job in reversed(self._jobs)
        ]  # fmt: skip

    def stop(self, number: int | None = None, run: str | None = None) -> str:
        """Stop the job of this number, or that trains `run`, after its step; it is saved and can be resumed. Returns
        what happens. Raises RunError if no job that waits or runs is that one."""
        with self._changing:
            for job in self._jobs:
                if job.state in ("waiting", "running") and (job.number == number or (run and job.run == run)):
                    return self._stop(job)
        raise RunError("It was not started here: stop it where it trains, in its notebook or its terminal.")

    def _stop(self, job: Job) -> str:
        if job.process is None:
            job.state = "stopped"
            return f"{job.title} is not started."
        job.text = "stops after this step"
        _interrupt(job.process)
        return f"{job.title} stops after this step and is saved."

    def close(self, seconds: float = 10) -> None:
        """End everything: what trains stops after its step and is saved, at most for `seconds`."""
        self._closed.set()
        for job in self._jobs:
            if job.process is not None and job.process.poll() is None:
                _interrupt(job.process)
                with suppress(subprocess.TimeoutExpired):
                    job.process.wait(seconds)

    def _work(self) -> None:
        while not self._closed.wait(_SECONDS):
            job = next((job for job in self._jobs if job.state in ("waiting", "running")), None)
            if job is None:
                continue
            if job.process is not None:
                self._look_after(job)
            else:
                self._start(job)

    def _start(self, job: Job) -> None:
        with self._changing:
            if job.state != "waiting":
                return
            descriptor, path = tempfile.mkstemp(prefix="edgelearn-job-", suffix=".log")
            job.log, job.state, job.text = Path(path), "running", "starts"
            command = [sys.executable, "-u", "-m", "edgelearn.cli", *job.words, "--runs", str(self.store.root)]
            with os.fdopen(descriptor, "wb") as log:
                job.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def _look_after(self, job: Job) -> None:
        assert job.process is not None and job.log is not None
        status, text = job.process.poll(), job.log.read_text("utf-8", "replace")
        if not job.run and (found := _RUN.search(text)):
            job.run, job.text = found[1], "" if job.text.startswith(("starts", "waits")) else job.text
        elif not job.run and job.text == "starts" and (found := _WAITS.search(text)):
            job.text = f"waits for {found[1]}"
        if status is None:
            return
        lines = [line for line in text[-_TAIL:].splitlines() if line.strip()]
        job.state = {0: "ended", 130: "stopped"}.get(status, "failed")
        job.text = (lines or [f"exit status {status}"])[-1] if job.state == "failed" else ""
        with suppress(OSError, RunError):  # the run may have gone
            if job.run:
                folder = self.store.open(job.run).folder
                with (folder / LOG).open("a", encoding="utf-8") as file:
                    file.write(text)
        job.log.unlink(missing_ok=True)
        job.process = None


def _interrupt(process: subprocess.Popen) -> None:
    """Ctrl-C, which commands save at; Windows can't send it to one process alone."""
    if os.name == "nt":
        process.terminate()
    else:
        process.send_signal(signal.SIGINT)
